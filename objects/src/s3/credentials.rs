//! Where the keys are that requests are signed with.

use super::credentials_file::{Keys, read};
use crate::error::OpenError;
use crate::options::{Credentials, Environment, StoreOptions};
use futures::future::BoxFuture;
use object_store::CredentialProvider;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential};
use reqwest::Url;
use std::fs::Metadata;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// What the variables are called that `object_store` has to know for what the platform gives.
const PLATFORM: [(&str, AmazonS3ConfigKey); 7] = [
    ("AWS_WEB_IDENTITY_TOKEN_FILE", AmazonS3ConfigKey::WebIdentityTokenFile),
    ("AWS_ROLE_ARN", AmazonS3ConfigKey::RoleArn),
    ("AWS_ROLE_SESSION_NAME", AmazonS3ConfigKey::RoleSessionName),
    ("AWS_ENDPOINT_URL_STS", AmazonS3ConfigKey::StsEndpoint),
    ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", AmazonS3ConfigKey::ContainerCredentialsRelativeUri),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI", AmazonS3ConfigKey::ContainerCredentialsFullUri),
    ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", AmazonS3ConfigKey::ContainerAuthorizationTokenFile),
];

/// Tells a builder where the keys are.
pub(super) fn configure(builder: AmazonS3Builder, options: &StoreOptions) -> Result<AmazonS3Builder, OpenError> {
    let environment = &options.environment;
    match chosen(&options.credentials, environment) {
        Credentials::Automatic | Credentials::Environment => of_environment(builder, environment),
        Credentials::File { path, profile } => {
            Ok(builder.with_credentials(Arc::new(FileCredentials::open(path, profile).map_err(OpenError::new)?)))
        }
        Credentials::Metadata { endpoint } => of_platform(builder, environment, &endpoint),
    }
}

/// What [`Credentials::Automatic`] stands for.
fn chosen(credentials: &Credentials, environment: &Environment) -> Credentials {
    let profile = || environment.get("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
    match credentials {
        Credentials::Automatic if environment.get("AWS_ACCESS_KEY_ID").is_some() => Credentials::Environment,
        Credentials::Automatic => match environment.get("AWS_SHARED_CREDENTIALS_FILE") {
            Some(path) => Credentials::File { path: path.into(), profile: profile() },
            None => Credentials::Metadata { endpoint: String::new() },
        },
        other => other.clone(),
    }
}

fn of_environment(builder: AmazonS3Builder, environment: &Environment) -> Result<AmazonS3Builder, OpenError> {
    let needed = |name: &str| match environment.get(name) {
        Some(value) => checked(name, value),
        None => Err(OpenError::new(format!(
            "the credentials of S3 are to be in the environment, and the variable {name} is not set"
        ))),
    };
    let builder = builder.with_access_key_id(needed("AWS_ACCESS_KEY_ID")?);
    let builder = builder.with_secret_access_key(needed("AWS_SECRET_ACCESS_KEY")?);
    Ok(match environment.get("AWS_SESSION_TOKEN") {
        Some(token) => builder.with_token(checked("AWS_SESSION_TOKEN", token)?),
        None => builder,
    })
}

/// The value of a variable that becomes part of a request. The error does not show it.
fn checked(name: &str, value: String) -> Result<String, OpenError> {
    match value.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(value),
        false => Err(OpenError::new(format!("the variable {name} has characters that no such value has"))),
    }
}

/// A variable that is a URL, which is plain HTTP only on this machine or to what the platform has on its own link.
fn check_url(name: &str, value: &str) -> Result<(), OpenError> {
    let url = Url::parse(value).ok().filter(Url::has_host);
    let invalid = |reason: &str| OpenError::new(format!("the variable {name} {reason}"));
    let url = url.ok_or_else(|| invalid("is not a URL"))?;
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let is_near = match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => address.is_loopback() || address.is_link_local(),
        Ok(IpAddr::V6(address)) => address.is_loopback() || address.is_unique_local(),
        Err(_) => host == "localhost",
    };
    match url.scheme() {
        "https" => Ok(()),
        "http" if is_near => Ok(()),
        "http" => Err(invalid("leads to another machine without TLS: credentials would be sent unencrypted")),
        _ => Err(invalid("is neither an http nor an https URL")),
    }
}

fn of_platform(
    builder: AmazonS3Builder,
    environment: &Environment,
    endpoint: &str,
) -> Result<AmazonS3Builder, OpenError> {
    let set = |builder: AmazonS3Builder, (name, key): (&str, AmazonS3ConfigKey)| match environment.get(name) {
        Some(value) => builder.with_config(key, value),
        None => builder,
    };
    if environment.get("AWS_WEB_IDENTITY_TOKEN_FILE").is_some() && environment.get("AWS_ROLE_ARN").is_none() {
        return Err(OpenError::new(
            "the variable AWS_WEB_IDENTITY_TOKEN_FILE is set, and AWS_ROLE_ARN is not".to_owned(),
        ));
    }
    for (name, key) in PLATFORM {
        let Some(value) = environment.get(name) else { continue };
        match key {
            AmazonS3ConfigKey::StsEndpoint | AmazonS3ConfigKey::ContainerCredentialsFullUri => check_url(name, &value)?,
            AmazonS3ConfigKey::ContainerCredentialsRelativeUri if !value.starts_with('/') => {
                return Err(OpenError::new(format!("the variable {name} does not begin with a slash")));
            }
            _ => {}
        }
        // A path is not part of a request.
        if !name.ends_with("_FILE") {
            checked(name, value)?;
        }
    }
    let builder = PLATFORM.into_iter().fold(builder, set);
    if endpoint.is_empty() {
        return Ok(builder);
    }
    match Url::parse(endpoint) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => {
            Ok(builder.with_metadata_endpoint(endpoint.trim_end_matches('/')))
        }
        _ => Err(OpenError::new(
            "the endpoint of the instance metadata service is invalid: it has the form http://169.254.169.254",
        )),
    }
}

/// Keys in a file, which is read again when it changes.
struct FileCredentials {
    path: PathBuf,
    profile: String,
    current: Mutex<(Fingerprint, Arc<AwsCredential>)>,
}

impl std::fmt::Debug for FileCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileCredentials")
            .field("path", &self.path)
            .field("profile", &self.profile)
            .finish_non_exhaustive()
    }
}

impl FileCredentials {
    fn open(path: PathBuf, profile: String) -> Result<Self, String> {
        let fingerprint = Fingerprint::of(&path)?;
        let keys = credential(read(&path, &profile)?);
        Ok(Self { path, profile, current: Mutex::new((fingerprint, keys)) })
    }

    /// The current keys. If the file has become unreadable or is half written, the former keys remain.
    async fn keys(&self) -> Arc<AwsCredential> {
        let found = tokio::fs::metadata(&self.path).await.map(|metadata| Fingerprint::from(&metadata));
        let (known, keys) = self.current.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Ok(found) = found.map_err(|error| tracing::warn!(path = %self.path.display(), %error, "credentials file"))
        else {
            return keys;
        };
        if found == known {
            return keys;
        }
        let (path, profile) = (self.path.clone(), self.profile.clone());
        let keys = match tokio::task::spawn_blocking(move || read(&path, &profile)).await {
            Ok(Ok(keys)) => {
                tracing::info!(path = %self.path.display(), "the credentials of S3 were read again");
                credential(keys)
            }
            Ok(Err(error)) => {
                // It is read again: it may have been unreadable for a moment only.
                tracing::warn!(%error, "the former credentials of S3 remain");
                return keys;
            }
            Err(_) => return keys,
        };
        // The fingerprint is from before the reading: what was written since is read next time.
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = (found, Arc::clone(&keys));
        keys
    }
}

impl CredentialProvider for FileCredentials {
    type Credential = AwsCredential;

    // What `async_trait` makes of `async fn get_credential(&self)`.
    fn get_credential<'a, 'b>(&'a self) -> BoxFuture<'b, object_store::Result<Arc<AwsCredential>>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move { Ok(self.keys().await) })
    }
}

fn credential(keys: Keys) -> Arc<AwsCredential> {
    Arc::new(AwsCredential { key_id: keys.id, secret_key: keys.secret, token: keys.token })
}

/// Tells whether a file was changed or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fingerprint([i64; 6], u64);

impl Fingerprint {
    fn of(path: &Path) -> Result<Self, String> {
        let metadata = std::fs::metadata(path)
            .map_err(|error| format!("the credentials file {} cannot be read: {error}", path.display()))?;
        Ok(Self::from(&metadata))
    }
}

impl From<&Metadata> for Fingerprint {
    fn from(file: &Metadata) -> Self {
        let (inode, device) = (file.ino().cast_signed(), file.dev().cast_signed());
        Self([file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec(), inode, device], file.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn automatic_credentials_are_those_that_are_there() {
        let file = |path: &str, profile: &str| Credentials::File { path: path.into(), profile: profile.to_owned() };
        let metadata = Credentials::Metadata { endpoint: String::new() };
        let table: [(&[(&str, &str)], Credentials); 5] = [
            (&[("AWS_ACCESS_KEY_ID", "x"), ("AWS_SHARED_CREDENTIALS_FILE", "/f")], Credentials::Environment),
            (&[("AWS_SHARED_CREDENTIALS_FILE", "/f")], file("/f", "default")),
            (&[("AWS_SHARED_CREDENTIALS_FILE", "/f"), ("AWS_PROFILE", "p")], file("/f", "p")),
            (&[("AWS_ACCESS_KEY_ID", "")], metadata.clone()),
            (&[], metadata),
        ];
        for (variables, expected) in table {
            assert_eq!(chosen(&Credentials::Automatic, &Environment::of(variables.iter().copied())), expected);
        }
    }

    #[test]
    fn keys_of_the_environment_are_complete() {
        let with = |variables: &[(&str, &str)]| StoreOptions {
            credentials: Credentials::Environment,
            environment: Environment::of(variables.iter().copied()),
            ..StoreOptions::default()
        };
        let error = |options: &StoreOptions| {
            configure(AmazonS3Builder::new(), options).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert!(error(&with(&[])).contains("AWS_ACCESS_KEY_ID"));
        assert!(error(&with(&[("AWS_ACCESS_KEY_ID", "x")])).contains("AWS_SECRET_ACCESS_KEY"));
        let whole = with(&[("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "secret")]);
        assert_eq!(error(&whole), "");
        assert!(!format!("{whole:?}").contains("secret"));
    }

    #[tokio::test]
    async fn a_file_is_read_again_when_it_changes() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("credentials");
        let write = |id: &str| {
            let text = format!("[default]\naws_access_key_id = {id}\naws_secret_access_key = s\n");
            let new = dir.path().join("new");
            std::fs::write(&new, text).expect("writes");
            std::fs::rename(&new, &file).expect("renames");
        };
        assert!(FileCredentials::open(file.clone(), "default".to_owned()).is_err(), "there is no file");
        write("one");
        assert!(FileCredentials::open(file.clone(), "other".to_owned()).is_err(), "there is no such profile");
        let credentials = FileCredentials::open(file.clone(), "default".to_owned()).expect("reads");
        assert_eq!(credentials.keys().await.key_id, "one");
        write("two");
        assert_eq!(credentials.keys().await.key_id, "two");
        std::fs::write(&file, "[default]\naws_access_key_id = thr").expect("writes");
        assert_eq!(credentials.keys().await.key_id, "two", "it is half written");
        std::fs::remove_file(&file).expect("is there");
        assert_eq!(credentials.keys().await.key_id, "two", "it is away");
        write("three");
        assert_eq!(credentials.keys().await.key_id, "three");
        assert!(!format!("{credentials:?}").contains("three"));
    }
}
