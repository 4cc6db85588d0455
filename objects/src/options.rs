//! [`StoreOptions`]: the settings of both engines.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The settings of object storage. Those up to `addresses` concern S3 only.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The URL of the S3 server, such as `https://s3.example.org:9000`. Empty: that of AWS for the region.
    pub endpoint: String,
    /// The region that requests are signed for. Servers other than AWS mostly accept `us-east-1`.
    pub region: String,
    /// Where requests name the bucket.
    pub addressing: Addressing,
    /// Where the keys are that requests are signed with.
    pub credentials: Credentials,
    /// A file with the certificates of the authorities that may certify the server, in PEM format. Empty: those that
    /// the system trusts.
    pub ca: PathBuf,
    /// Whether an endpoint that is not this machine may be `http://`. Requests are signed then, but objects can be read
    /// and answers can be changed on the way.
    pub allow_http: bool,
    /// How long a connection to the server may take, with TLS.
    pub connect_timeout: Duration,
    /// How long one attempt of a request may take, from the connection to the last byte of the answer.
    pub request_timeout: Duration,
    /// How often a request is attempted, if the server does not answer, asks for patience, or breaks off. At least 1.
    pub attempts: u32,
    /// The greatest wait before the second attempt. It doubles with each further one, and each wait is random between
    /// half of it and all of it.
    pub backoff: Duration,
    /// The greatest wait before any attempt.
    pub backoff_max: Duration,
    /// The environment variables of the process: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`,
    /// and those that [`Credentials`] names.
    pub environment: Environment,
    /// Hosts with addresses that take the place of those of the resolver.
    pub addresses: Vec<(String, SocketAddr)>,

    /// How long an operation may take with all of its attempts.
    pub deadline: Duration,
    /// The greatest length of an object, in bytes.
    pub bytes_max: u64,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            endpoint: String::new(),
            region: "us-east-1".to_owned(),
            addressing: Addressing::Path,
            credentials: Credentials::Automatic,
            ca: PathBuf::new(),
            allow_http: false,
            connect_timeout: Duration::from_secs(3),
            request_timeout: Duration::from_secs(10),
            attempts: 4,
            backoff: Duration::from_millis(100),
            backoff_max: Duration::from_secs(2),
            environment: Environment::default(),
            addresses: Vec::new(),
            deadline: Duration::from_secs(20),
            bytes_max: 8 << 20,
        }
    }
}

/// Where requests name the bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addressing {
    /// In the path, `https://host/bucket/name`: what every server knows.
    Path,
    /// In the host, `https://bucket.host/name`: what AWS recommends. The name server and the certificate must have
    /// that host.
    VirtualHost,
}

/// Where the keys are that requests are signed with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credentials {
    /// The first of: [`Self::Environment`], if `AWS_ACCESS_KEY_ID` is set; [`Self::File`], if
    /// `AWS_SHARED_CREDENTIALS_FILE` is set, with the profile of `AWS_PROFILE` or `default`; [`Self::Metadata`].
    Automatic,
    /// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and, for temporary ones, `AWS_SESSION_TOKEN`.
    Environment,
    /// A file in the format of AWS's shared credentials file. It is read again when it changes.
    File {
        /// The file.
        path: PathBuf,
        /// The section of the file, such as `default`.
        profile: String,
    },
    /// What the platform gives, renewed before it expires. The first of: a web identity token
    /// (`AWS_WEB_IDENTITY_TOKEN_FILE` and `AWS_ROLE_ARN`, as in Kubernetes at AWS), the container's role
    /// (`AWS_CONTAINER_CREDENTIALS_RELATIVE_URI`, or `AWS_CONTAINER_CREDENTIALS_FULL_URI` and
    /// `AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE`), the instance metadata service (IMDSv2).
    Metadata {
        /// The URL of the instance metadata service. Empty: `http://169.254.169.254`.
        endpoint: String,
    },
}

/// How environment variables are looked up.
#[derive(Clone)]
pub struct Environment(Arc<Lookup>);

type Lookup = dyn Fn(&str) -> Option<String> + Send + Sync;

impl Environment {
    /// An environment of these variables, in place of the process's.
    pub fn of<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let variables: HashMap<String, String> = variables.into_iter().map(own).collect();
        Self(Arc::new(move |name| variables.get(name).cloned()))
    }

    /// The value of a variable, unless it is empty.
    pub(crate) fn get(&self, name: &str) -> Option<String> {
        // A file that a secret was made of ends in a newline.
        (self.0)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }
}

impl Default for Environment {
    /// The environment of the process.
    fn default() -> Self {
        Self(Arc::new(|name| std::env::var(name).ok()))
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The values are secrets.
        f.write_str("Environment")
    }
}
