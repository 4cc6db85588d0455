//! [`open`]: from the settings of a site to its engines.
//!
//! Goals: what one gateway of a site needs to start is examined in one place, in an order in which nothing is written
//! to a storage before the database says whose it is; an error names the setting, says what the operator can do, and
//! has no part of a URL that may be a password.
//!
//! Non-goals: a start without the database or the storage; what the engines are used for.

use crate::blocks::{BlockIndex, SharedBlocks};
use crate::database::{
    ClaimOptions, Database, DatabaseClaims, DatabaseError, DatabaseIndex, DatabaseLog, DatabaseOptions, IndexOptions,
    LogOptions, ServerState,
};
use crate::uploads::UploadEngines;
use cache::StoreError;
use config::{S3Addressing, Site, SiteNames};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use objects::{Addressing, Credentials, Objects, StoreOption, StoreOptions, client_tls};
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The greatest length of the file with the URL of the database, in bytes.
const URL_BYTES_MAX: u64 = 64 << 10;
/// How long the examination of a folder may take.
const STORE_TIMEOUT: Duration = Duration::from_secs(20);
/// From which difference of clocks on there is a warning.
const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_secs(5);

/// The engines of a site, opened.
#[derive(Debug)]
pub struct Engines {
    /// The log of pins.
    pub log: DatabaseLog,
    /// The log of the rules and tokens of all gateways.
    pub control: DatabaseLog,
    /// The log of the IPNS keys and published names, if the gateways share them.
    pub names: Option<DatabaseLog>,
    /// The claims on the work for pins and for published names.
    pub claims: DatabaseClaims,
    /// The blocks.
    pub blocks: SharedBlocks,
    /// What resumable uploads need.
    pub uploads: UploadEngines,
    /// The database, for [`crate::members::Members`].
    pub database: Database,
    /// The name and hosts of the database, for messages.
    pub database_name: Arc<str>,
    /// The URL of the storage, for messages.
    pub store_name: Arc<str>,
}

/// Why a site cannot be opened, in a sentence for the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct OpenError {
    /// The setting that it is about.
    pub setting: &'static str,
    /// What is wrong, and what the operator can do.
    pub reason: String,
}

impl OpenError {
    fn new(setting: &'static str, reason: impl Into<String>) -> Self {
        Self { setting, reason: reason.into() }
    }
}

/// Opens the engines of a site, whose settings have been validated ([`config::load`]). Tables are created or brought up
/// to date, and a new storage is marked as that of the site.
///
/// # Errors
/// [`OpenError`] about the first setting that cannot be used.
pub fn open(settings: &Site) -> BoxFuture<'_, Result<Engines, OpenError>> {
    open_engines(settings).boxed()
}

async fn open_engines(settings: &Site) -> Result<Engines, OpenError> {
    let database = database(settings)?;
    let refused = |error: DatabaseError| OpenError::new(database_setting(settings), with_advice(&error));
    let log = DatabaseLog::open(database.clone(), LogOptions::default()).await.map_err(refused)?;
    let control = DatabaseLog::open(database.clone(), LogOptions::control()).await.map_err(refused)?;
    let names = match settings.names {
        SiteNames::Own => None,
        SiteNames::Shared => Some(DatabaseLog::open(database.clone(), LogOptions::names()).await.map_err(refused)?),
    };
    match database.server_state().await {
        Ok(state) => warn(state, &database),
        Err(error) => tracing::debug!(%error, "the state of the database server is not known"),
    }
    let claims = DatabaseClaims::new(database.clone(), &ClaimOptions::default()).map_err(refused)?;
    let objects = open_storage(settings).await?;
    let database_name = Arc::clone(database.display_name());
    let index: Arc<dyn BlockIndex> = Arc::new(DatabaseIndex::new(database.clone(), IndexOptions::default()));
    // What fails after this is about the storage.
    index.identity().await.map_err(|error| OpenError::new(database_setting(settings), reason(&error)))?;
    let blocks = SharedBlocks::open(index, Arc::clone(&objects), &settings.name).await;
    let blocks = blocks.map_err(|error| OpenError::new("site.store", reason(&error)))?;
    let uploads = UploadEngines { database: database.clone(), objects, mark: Arc::clone(blocks.mark()) };
    let store_name = settings.store.as_str().into();
    Ok(Engines { log, control, names, claims, blocks, uploads, database, database_name, store_name })
}

/// Opens the log of the rules and tokens alone, for commands that change them without a gateway.
///
/// # Errors
/// [`OpenError`] about the database.
pub async fn open_control_log(settings: &Site) -> Result<DatabaseLog, OpenError> {
    open_log(settings, LogOptions::control()).await
}

/// Opens the log of IPNS keys and published names alone, for commands that change them without a gateway.
///
/// # Errors
/// [`OpenError`] about the database.
pub async fn open_name_log(settings: &Site) -> Result<DatabaseLog, OpenError> {
    open_log(settings, LogOptions::names()).await
}

async fn open_log(settings: &Site, options: LogOptions) -> Result<DatabaseLog, OpenError> {
    let opened = DatabaseLog::open(database(settings)?, options).await;
    opened.map_err(|error| OpenError::new(database_setting(settings), with_advice(&error)))
}

/// The setting with the URL of the database.
fn database_setting(settings: &Site) -> &'static str {
    match settings.database_file.as_os_str().is_empty() {
        true => "site.database",
        false => "site.database_file",
    }
}

fn database(settings: &Site) -> Result<Database, OpenError> {
    let ca = &settings.database_ca;
    if !ca.as_os_str().is_empty() {
        client_tls(ca, "databases").map_err(|reason| OpenError::new("site.database_ca", reason))?;
    }
    let setting = database_setting(settings);
    let url = match setting {
        "site.database" => settings.database.reveal().unwrap_or_default().to_owned(),
        _ => read_url(&settings.database_file).map_err(|reason| OpenError::new(setting, reason))?,
    };
    let options = DatabaseOptions { site: settings.name.clone(), url, ca: ca.clone() };
    Database::new(&options).map_err(|error| OpenError::new(setting, error.to_string()))
}

/// The URL in a file.
fn read_url(path: &Path) -> Result<String, String> {
    let failed = |reason: &str| Err(format!("{} cannot be used: {reason}", path.display()));
    let mut text = String::new();
    match File::open(path).and_then(|file| file.take(URL_BYTES_MAX + 1).read_to_string(&mut text)) {
        Err(error) => return failed(&error.to_string()),
        Ok(length) if length as u64 > URL_BYTES_MAX => return failed("it is longer than 64 KiB"),
        Ok(_) => {}
    }
    match text.trim() {
        "" => failed("it is empty, and has to have the URL of the database"),
        url => Ok(url.to_owned()),
    }
}

/// An error of the database, and what the operator can do.
fn with_advice(error: &DatabaseError) -> String {
    let advice = match error {
        DatabaseError::Settings(_) | DatabaseError::NewerSchema { .. } => return error.to_string(),
        DatabaseError::Unreachable { reason, .. } if reason.contains("certificate") => {
            "Its certificate has to be for the host in the URL, and by an authority that the system knows or that \
             site.database_ca names"
        }
        DatabaseError::Unreachable { .. } => {
            "A server has to run at a host and port of the URL, and to accept connections and changes"
        }
        DatabaseError::Refused { code, .. } => match &**code {
            "28P01" | "28000" => {
                "The user and the password in the URL, and pg_hba.conf of the server, have to allow it"
            }
            "3D000" => "Create the database, or correct its name in the URL",
            "42501" => {
                "The user needs the right to create a schema in the database, or one that an administrator has created \
                 for it, and the right to read and change its tables"
            }
            _ => "The log of the server says more",
        },
    };
    format!("{error}. {advice}")
}

/// Nothing depends on either, but the operator should know.
fn warn(state: ServerState, database: &Database) {
    let database = database.display_name();
    if state.clock_difference > CLOCK_DIFFERENCE_MAX {
        let seconds = state.clock_difference.as_secs();
        tracing::warn!(%database, seconds, "the clocks of this machine and of the site's database differ: use NTP");
    }
    if state.has_asynchronous_standbys {
        tracing::warn!(
            %database,
            "commits do not wait for a standby of the site's database: when one takes over, pins that were \
             acknowledged may be lost (synchronous_standby_names is empty)"
        );
    }
}

/// Opens the storage. An examination of a folder whose file server does not answer does not end: it has a thread that
/// the end of the process does not wait for.
async fn open_storage(settings: &Site) -> Result<Arc<dyn Objects>, OpenError> {
    let (url, options) = (settings.store.clone(), store_options(settings));
    let (sender, opened) = oneshot::channel();
    let runtime = Handle::current();
    let opening = std::thread::Builder::new().name("site-open".to_owned()).spawn(move || {
        let _entered = runtime.enter();
        _ = sender.send(objects::open(&url, &options));
    });
    let failed = |reason: String| OpenError::new("site.store", reason);
    opening.map_err(|error| failed(format!("no thread could be started: {error}")))?;
    match timeout(STORE_TIMEOUT, opened).await {
        Ok(Ok(opened)) => opened.map_err(|error| OpenError::new(setting_of(error.option()), error.to_string())),
        Ok(Err(_)) => Err(failed("the storage could not be opened".to_owned())),
        Err(_) => Err(failed(format!(
            "{} could not be examined within {} seconds: can the file server be reached?",
            settings.store,
            STORE_TIMEOUT.as_secs()
        ))),
    }
}

fn store_options(settings: &Site) -> StoreOptions {
    let file = &settings.s3_credentials_file;
    StoreOptions {
        endpoint: settings.s3_endpoint.clone(),
        region: settings.s3_region.clone(),
        addressing: match settings.s3_addressing {
            S3Addressing::Path => Addressing::Path,
            S3Addressing::VirtualHost => Addressing::VirtualHost,
        },
        credentials: match file.as_os_str().is_empty() {
            true => Credentials::Automatic,
            false => Credentials::File { path: file.clone(), profile: settings.s3_credentials_profile.clone() },
        },
        ca: settings.s3_ca.clone(),
        allow_http: settings.s3_allow_http,
        ..StoreOptions::default()
    }
}

fn setting_of(option: StoreOption) -> &'static str {
    match option {
        StoreOption::Url => "site.store",
        StoreOption::Endpoint => "site.s3_endpoint",
        StoreOption::Credentials => "site.s3_credentials_file",
        StoreOption::Ca => "site.s3_ca",
    }
}

/// The reason of an error, without the text for clients.
fn reason(error: &StoreError) -> String {
    match error {
        StoreError::Unavailable { reason } => reason.to_string(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_database_say_what_to_do() {
        let database: Arc<str> = "d at h:5432".into();
        let unreachable =
            |reason: &str| DatabaseError::Unreachable { database: Arc::clone(&database), reason: reason.into() };
        let refused = |code: &str| DatabaseError::Refused {
            database: Arc::clone(&database),
            reason: "no".into(),
            code: code.into(),
        };
        let table = [
            (unreachable("Connection refused"), "A server has to run"),
            (unreachable("invalid peer certificate: UnknownIssuer"), "site.database_ca"),
            (refused("28P01"), "password"),
            (refused("28000"), "pg_hba.conf"),
            (refused("3D000"), "Create the database"),
            (refused("42501"), "right to create a schema"),
            (refused("XX000"), "log of the server"),
            (DatabaseError::NewerSchema { database: Arc::clone(&database), found: 9, known: 1 }, "run that release"),
        ];
        for (error, words) in table {
            let text = with_advice(&error);
            assert!(text.contains(words) && text.contains("d at h:5432"), "{text}");
        }
    }

    #[test]
    fn the_file_of_the_url_is_bounded_and_not_shown() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("url");
        let table = [
            (" postgresql://u:secret@h/d\n".to_owned(), Ok("postgresql://u:secret@h/d")),
            ("\n".to_owned(), Err("it is empty")),
            ("secret ".repeat(10_000), Err("longer than 64 KiB")),
        ];
        for (text, expected) in table {
            std::fs::write(&path, text).expect("writes");
            match (read_url(&path), expected) {
                (Ok(url), Ok(expected)) => assert_eq!(url, expected),
                (Err(error), Err(words)) => assert!(error.contains(words) && !error.contains("secret"), "{error}"),
                (read, _) => panic!("{read:?}"),
            }
        }
        std::fs::write(&path, b"secret\xff").expect("writes");
        assert!(read_url(&path).is_err_and(|error| error.contains("url cannot be used") && !error.contains("secret")));
        assert!(read_url(&dir.path().join("missing")).is_err_and(|error| error.contains("missing cannot be used")));
    }

    #[test]
    fn the_settings_of_s3_become_options() {
        let settings = Site {
            s3_endpoint: "https://s3.example".to_owned(),
            s3_region: "eu-central-1".to_owned(),
            s3_addressing: S3Addressing::VirtualHost,
            s3_credentials_file: "keys".into(),
            s3_credentials_profile: "site".to_owned(),
            s3_ca: "ca.pem".into(),
            s3_allow_http: true,
            ..Site::default()
        };
        let options = store_options(&settings);
        assert_eq!((options.endpoint.as_str(), options.region.as_str()), ("https://s3.example", "eu-central-1"));
        assert_eq!((options.addressing, options.allow_http), (Addressing::VirtualHost, true));
        assert_eq!(options.credentials, Credentials::File { path: "keys".into(), profile: "site".to_owned() });
        assert_eq!(options.ca, Path::new("ca.pem"));
        let (defaults, options) = (store_options(&Site::default()), StoreOptions::default());
        assert_eq!((defaults.endpoint, defaults.region), (options.endpoint, options.region));
        assert_eq!((defaults.addressing, defaults.credentials), (options.addressing, options.credentials));
    }
}
