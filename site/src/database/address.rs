//! [`Database`]: where the database is, and how connections to it are encrypted.
//!
//! Unless a host is this machine, it has to prove its name by a certificate: with `sslmode=prefer`, which is the default
//! of PostgreSQL, anybody on the way could turn encryption off.
//!
//! Each host has a timeout of its own, from the connection to the first statement: a server that accepts connections
//! and is stalled must not keep gateways from the one that was promoted in its place. The host that was connected to
//! last is tried first.

use super::error::DatabaseError;
use super::session::Session;
use objects::client_tls;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::timeout;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};
use tokio_postgres_rustls::MakeRustlsConnect;

/// How long a connection to one host may take, with TLS, authentication and settings.
const HOST_TIMEOUT: Duration = Duration::from_secs(4);
/// After how much time without data the operating system asks whether the server still exists.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// The longest name of a site, in bytes: with the prefix it stays within PostgreSQL's limit of 63 for identifiers.
const NAME_BYTES_MAX: usize = 40;
/// Parameters of libpq that this client does not know.
const UNSUPPORTED: [&str; 13] = [
    "sslrootcert",
    "sslcert",
    "sslkey",
    "sslpassword",
    "sslcrl",
    "sslcompression",
    "passfile",
    "service",
    "gssencmode",
    "krbsrvname",
    "client_encoding",
    "fallback_application_name",
    "require_auth",
];

/// The settings of the database of a site.
#[derive(Clone)]
pub struct DatabaseOptions {
    /// The name of the site: lowercase letters, digits, `-` and `_`. Its tables are in a PostgreSQL schema of this
    /// name, so that a database can have several sites.
    pub site: String,
    /// A connection URL or string as of libpq
    /// (<https://www.postgresql.org/docs/15/libpq-connect.html#LIBPQ-CONNSTRING>), with several hosts if there are
    /// standbys: the one that accepts changes is used.
    pub url: String,
    /// A file with the certificates of the authorities that may certify the server, in PEM format. Empty: those that
    /// the system trusts.
    pub ca: PathBuf,
}

impl fmt::Debug for DatabaseOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may have a password.
        f.debug_struct("DatabaseOptions").field("site", &self.site).field("ca", &self.ca).finish_non_exhaustive()
    }
}

/// A database that can be connected to. Clones remember the same host.
#[derive(Clone)]
pub struct Database {
    hosts: Arc<[Config]>,
    /// The host that was connected to last.
    latest: Arc<AtomicUsize>,
    tls: MakeRustlsConnect,
    /// Names this client, and counts its sessions.
    client: u64,
    sessions: Arc<AtomicU64>,
    display_name: Arc<str>,
    schema: Arc<str>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("at", &self.display_name).field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Database {
    /// A database by its settings. Nothing is connected yet.
    ///
    /// # Errors
    /// [`DatabaseError::Settings`].
    pub fn new(options: &DatabaseOptions) -> Result<Self, DatabaseError> {
        let invalid = |error: String| DatabaseError::Settings(error.into());
        let schema = schema_of(&options.site).map_err(invalid)?;
        let config = parsed(&options.url).map_err(invalid)?;
        let tls = MakeRustlsConnect::new(client_tls(&options.ca, "databases").map_err(invalid)?);
        let client = super::random_number()?;
        let hosts = (0..config.get_hosts().len()).map(|index| of_host(&config, index)).collect();
        let display_name = display_name(&config).into();
        Ok(Self { hosts, latest: Arc::default(), tls, client, sessions: Arc::default(), display_name, schema })
    }

    /// Connects to the host that accepts changes, with the settings that every session has.
    ///
    /// # Errors
    /// [`DatabaseError::Unreachable`], [`DatabaseError::Refused`]: that of the last host.
    pub(super) async fn connect(&self) -> Result<Session, DatabaseError> {
        let first = self.latest.load(Ordering::Relaxed);
        let mut result = Err(self.timed_out(HOST_TIMEOUT));
        for index in (0..self.hosts.len()).map(|offset| (first + offset) % self.hosts.len()) {
            let marker = format!("{:x}-{}", self.client, self.sessions.fetch_add(1, Ordering::Relaxed));
            let establishing = Session::establish(&self.hosts[index], self.tls.clone(), marker);
            result = match timeout(HOST_TIMEOUT, establishing).await {
                Ok(established) => established.map_err(|error| self.error(&error)),
                Err(_) => Err(self.timed_out(HOST_TIMEOUT)),
            };
            if result.is_ok() {
                self.latest.store(index, Ordering::Relaxed);
                break;
            }
        }
        result
    }

    /// The error of a statement or of an attempt to connect.
    pub(super) fn error(&self, error: &tokio_postgres::Error) -> DatabaseError {
        DatabaseError::of(&self.display_name, error)
    }

    /// No answer in time.
    pub(super) fn timed_out(&self, waited: Duration) -> DatabaseError {
        self.unreachable(&format!("no answer within {} seconds", waited.as_secs()))
    }

    /// Why it cannot be used now.
    pub(super) fn unreachable(&self, reason: &str) -> DatabaseError {
        DatabaseError::Unreachable { database: Arc::clone(&self.display_name), reason: reason.into() }
    }

    /// Waits for the answer to a statement.
    ///
    /// # Errors
    /// That of the statement, or [`DatabaseError::Unreachable`] if there is no answer within this time.
    pub(super) async fn within<T>(
        &self,
        time: Duration,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, DatabaseError> {
        match timeout(time, statement).await {
            Ok(answer) => answer.map_err(|error| self.error(&error)),
            Err(_) => Err(self.timed_out(time)),
        }
    }

    /// Whether the URL names several hosts, of which all but one are standbys.
    pub(super) fn has_several_hosts(&self) -> bool {
        self.hosts.len() > 1
    }

    /// Its name and hosts, for messages: without the password.
    pub fn display_name(&self) -> &Arc<str> {
        &self.display_name
    }

    /// The PostgreSQL schema of the site's tables.
    pub fn schema(&self) -> &str {
        &self.schema
    }
}

/// The PostgreSQL schema of a site, which needs quotes in statements but no escapes.
fn schema_of(site: &str) -> Result<Arc<str>, String> {
    let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    if site.is_empty() || site.len() > NAME_BYTES_MAX || !site.bytes().all(is_valid) {
        return Err(format!(
            "the name of a site has 1 to {NAME_BYTES_MAX} characters, which are lowercase letters, digits, \"-\" and \
             \"_\": {site:?} has others"
        ));
    }
    Ok(format!("causeway_{site}").into())
}

/// Reads a URL. Errors have no part of it that may be a password.
fn parsed(url: &str) -> Result<Config, String> {
    // Those of libpq that verify the name of the server are what `require` means here.
    let url = url.replace("sslmode=verify-full", "sslmode=require");
    let config = Config::from_str(&url).map_err(|error| {
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        match UNSUPPORTED.iter().find(|name| cause.contains(**name)) {
            Some(name) => format!("the parameter {name} in the URL of the database is not supported"),
            None => {
                "the URL of the database is invalid: it has the form postgresql://USER:PASSWORD@HOST:PORT/DATABASE, \
                     with %40 in place of @ in the password"
                    .to_owned()
            }
        }
    })?;
    if config.get_hosts().is_empty() {
        return Err("the URL of the database names no host, such as postgresql://USER@HOST/DATABASE".to_owned());
    }
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:%".contains(&byte);
    let is_name = |host: &Host| matches!(host, Host::Tcp(name) if !name.bytes().all(is_valid));
    match config.get_hosts().iter().any(is_name) {
        true => {
            Err("a host in the URL of the database has characters that no host has: a password that has @ or / is \
                     written with %40 or %2F"
                .to_owned())
        }
        false => Ok(config),
    }
}

/// The configuration for one of the hosts.
fn of_host(config: &Config, index: usize) -> Config {
    let mut one = Config::new();
    let host = &config.get_hosts()[index];
    match host {
        Host::Tcp(name) => one.host(name),
        Host::Unix(path) => one.host_path(path),
    };
    let address = config.get_hostaddrs().get(index).copied();
    address.map(|address| one.hostaddr(address));
    one.port(port(config, index));
    config.get_user().map(|user| one.user(user));
    config.get_password().map(|password| one.password(password));
    config.get_dbname().map(|name| one.dbname(name));
    config.get_options().map(|options| one.options(options));
    one.application_name(config.get_application_name().unwrap_or("causeway"));
    one.ssl_mode(match config.get_ssl_mode() {
        // A socket of the machine cannot be encrypted.
        _ if matches!(host, Host::Unix(_)) => SslMode::Disable,
        SslMode::Prefer if is_this_machine(host, address) => SslMode::Disable,
        SslMode::Prefer => SslMode::Require,
        mode => mode,
    });
    one.ssl_negotiation(config.get_ssl_negotiation()).channel_binding(config.get_channel_binding());
    one.target_session_attrs(TargetSessionAttrs::ReadWrite);
    one.connect_timeout(HOST_TIMEOUT);
    one.keepalives_idle(KEEPALIVE).keepalives_interval(KEEPALIVE).keepalives_retries(3);
    // A server whose machine has died acknowledges nothing.
    one.tcp_user_timeout(3 * KEEPALIVE);
    one
}

fn port(config: &Config, index: usize) -> u16 {
    config.get_ports().get(index).or(config.get_ports().first()).copied().unwrap_or(5432)
}

fn is_this_machine(host: &Host, address: Option<IpAddr>) -> bool {
    match (host, address) {
        (_, Some(address)) => address.is_loopback(),
        (Host::Unix(_), None) => true,
        (Host::Tcp(name), None) => {
            name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        }
    }
}

fn display_name(config: &Config) -> String {
    let hosts = config.get_hosts().iter().enumerate().map(|(index, host)| match host {
        Host::Tcp(name) if name.contains(':') => format!("[{name}]:{}", port(config, index)),
        Host::Tcp(name) => format!("{name}:{}", port(config, index)),
        Host::Unix(path) => format!("{}:{}", path.display(), port(config, index)),
    });
    let hosts = hosts.collect::<Vec<_>>().join(", ");
    let name = config.get_dbname().or(config.get_user()).unwrap_or_default();
    format!("{name} at {hosts}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_has_a_schema_of_its_own() {
        assert_eq!(schema_of("berlin-1").as_deref(), Ok("causeway_berlin-1"));
        for name in ["", "Berlin", "a b", "a\"b", "ä", &"x".repeat(NAME_BYTES_MAX + 1)] {
            assert!(schema_of(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn other_machines_are_connected_to_with_tls_only() {
        use SslMode::{Disable, Require};
        let table: [(&str, &[SslMode]); 10] = [
            ("postgresql://u@localhost/d", &[Disable]),
            ("postgresql://u@127.0.0.1,[::1]:5433/d", &[Disable, Disable]),
            ("host=/run/postgresql user=u", &[Disable]),
            ("host=/run/postgresql,db.example user=u sslmode=require", &[Disable, Require]),
            ("postgresql://u@db.example/d", &[Require]),
            ("postgresql://u@localhost,db.example/d", &[Disable, Require]),
            ("postgresql://u@localhost/d?sslmode=require", &[Require]),
            ("postgresql://u@db.example/d?sslmode=verify-full", &[Require]),
            ("host=localhost hostaddr=192.0.2.5 user=u", &[Require]),
            // An operator may have a tunnel.
            ("postgresql://u@db.example/d?sslmode=disable", &[Disable]),
        ];
        for (url, expected) in table {
            let config = parsed(url).expect(url);
            let modes: Vec<_> = (0..expected.len()).map(|index| of_host(&config, index).get_ssl_mode()).collect();
            assert_eq!(modes, expected, "{url}");
        }
    }

    #[test]
    fn each_host_keeps_the_parameters() {
        let url = "postgresql://u:p@a.example:7,b.example:8/d?options=-cwork_mem%3D1MB&application_name=x";
        let config = parsed(url).expect("is valid");
        for (index, (name, port)) in [("a.example", 7), ("b.example", 8)].into_iter().enumerate() {
            let one = of_host(&config, index);
            assert_eq!((one.get_hosts(), one.get_ports()), (&[Host::Tcp(name.into())][..], &[port][..]));
            assert_eq!((one.get_user(), one.get_password(), one.get_dbname()), (Some("u"), Some(&b"p"[..]), Some("d")));
            assert_eq!((one.get_options(), one.get_application_name()), (Some("-cwork_mem=1MB"), Some("x")));
            assert_eq!(one.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
        }
    }

    #[test]
    fn messages_name_the_database_and_never_the_password() {
        let table = [
            ("postgresql://u:secret@a.example,b.example:7/d", "d at a.example:5432, b.example:7"),
            ("postgresql://u@[::1]:7/d", "d at [::1]:7"),
            ("host=/run/postgresql user=u password=secret", "u at /run/postgresql:5432"),
        ];
        for (url, expected) in table {
            assert_eq!(display_name(&parsed(url).expect(url)), expected);
        }
        let invalid = [
            "",
            "secret",
            "postgresql:///d",
            "postgresql://u:secret@host/d?no-such=1",
            "postgresql://u:p@secret@host/d",
            "host=h user=u password=my secret",
        ];
        for url in invalid {
            let error = parsed(url).expect_err(url);
            assert!(!error.contains("secret"), "{error}");
        }
        let error = parsed("postgresql://u@h/d?sslrootcert=/x").expect_err("is not supported");
        assert!(error.contains("sslrootcert"), "{error}");
        let options = DatabaseOptions { site: "s".into(), url: "postgresql://u:secret@h/d".into(), ca: PathBuf::new() };
        let database = Database::new(&options).expect("is valid");
        assert!(!format!("{options:?} {database:?}").contains("secret"));
    }

    #[test]
    fn a_file_of_authorities_must_have_a_certificate() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("ca.pem");
        assert!(client_tls(&file, "databases").is_err(), "there is no file");
        std::fs::write(&file, "nonsense").expect("writes");
        assert!(client_tls(&file, "databases").expect_err("is refused").contains("no certificate"));
        let own = rcgen::generate_simple_self_signed(["db.example".to_owned()]).expect("is created");
        std::fs::write(&file, own.cert.pem()).expect("writes");
        assert!(client_tls(&file, "databases").is_ok());
    }
}
