//! [`Site`]: the settings of a site, several gateways as one. Part of the [`crate::schema`], with the same rules for
//! comments.

use crate::values::Secret;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Several gateways as one: they share pins in a PostgreSQL database, and blocks in one storage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Site {
    /// The name of the site, which turns it on: 1 to 40 lowercase letters, digits, "-" and "_". Gateways with the same
    /// name, database and store are one site. A database can have several sites. Empty: this gateway is alone.
    pub name: String,
    /// The URL of the PostgreSQL database, such as "postgresql://USER:PASSWORD@HOST/DATABASE", or another connection
    /// string of libpq, with several hosts if there are standbys. Connections to other machines are encrypted, and the
    /// server proves its name by a certificate.
    pub database: Secret,
    /// A file with the URL of the database, in place of database. It is read at the start.
    pub database_file: PathBuf,
    /// A file with root certificates in PEM format that the certificate of the database server may be signed by, in
    /// place of those of the system.
    pub database_ca: PathBuf,
    /// The storage that the gateways share: "s3://BUCKET" or "s3://BUCKET/PREFIX" for S3-compatible storage,
    /// "file:///PATH" for a folder of a shared file system, which is not created. A mount of NFS needs the option
    /// lookupcache=positive or lookupcache=none. It must be empty at first, and belongs to this site alone.
    pub store: String,
    /// The URL of the S3 server without the bucket, such as "https://s3.example.org:9000". Empty: AWS in s3_region.
    pub s3_endpoint: String,
    /// The region that requests to S3 are signed for. Servers other than AWS mostly accept "us-east-1".
    pub s3_region: String,
    /// Where requests to S3 name the bucket: "path" (https://HOST/BUCKET/NAME), which every server supports, or
    /// "virtual_host" (https://BUCKET.HOST/NAME), which AWS recommends.
    pub s3_addressing: S3Addressing,
    /// A file with access keys in the format of AWS's shared credentials file. It is read again when it changes. Empty:
    /// the keys are those of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, of the file that AWS_SHARED_CREDENTIALS_FILE
    /// names, or of the platform: a web identity token, the container's role, or the instance metadata service.
    pub s3_credentials_file: PathBuf,
    /// The profile in s3_credentials_file whose keys are used.
    pub s3_credentials_profile: String,
    /// A file with root certificates in PEM format that the certificate of the S3 server may be signed by, in place of
    /// those of the system.
    pub s3_ca: PathBuf,
    /// Accept an s3_endpoint on another machine that begins with http://. Use it only on a trusted network: requests
    /// are signed, but blocks can be read, and answers can be changed on the way.
    pub s3_allow_http: bool,
    /// The maximum size of the blocks in the shared storage that no pin needs, of all gateways together. 0: only pinned
    /// blocks are stored there.
    pub cache_bytes_max: u64,
    /// What this gateway does with requests for content while it cannot read the rules of the site from the database, so
    /// that it may not know of take-downs: "serve" answers them, "refuse" answers them with 503 once this has lasted for
    /// isolated_after_seconds, sends no blocks to peers, and lets /readyz answer 503.
    pub isolated: Isolated,
    /// For how long the rules of the site cannot be read before isolated = "refuse" applies, from 5 seconds to a day. A
    /// failover of the database should take less.
    pub isolated_after_seconds: u64,
    /// Whose the IPNS keys are that are created or imported at this gateway, and the names that are published with
    /// them: "own" of this gateway alone, "shared" of all gateways of the site, each of which may publish them. The key
    /// "self" is always that of each gateway. "shared" needs names_key_file.
    pub names: SiteNames,
    /// A file with the key that the private keys in the database are encrypted with if names = "shared": 32 random
    /// bytes in base64 or hexadecimal, such as "openssl rand -base64 32" prints, the same for all gateways of the site.
    /// Only its owner and group may be able to read it. Without it the keys in the database are lost: keep a copy.
    pub names_key_file: PathBuf,
}

/// The number of characters of the longest name.
pub(crate) const NAME_BYTES_MAX: usize = 40;

impl Site {
    /// Whether this gateway is one of a site.
    pub fn is_on(&self) -> bool {
        !self.name.is_empty()
    }
}

impl Default for Site {
    fn default() -> Self {
        Self {
            name: String::new(),
            database: Secret::default(),
            database_file: PathBuf::new(),
            database_ca: PathBuf::new(),
            store: String::new(),
            s3_endpoint: String::new(),
            s3_region: "us-east-1".to_owned(),
            s3_addressing: S3Addressing::Path,
            s3_credentials_file: PathBuf::new(),
            s3_credentials_profile: "default".to_owned(),
            s3_ca: PathBuf::new(),
            s3_allow_http: false,
            cache_bytes_max: 100_000_000_000,
            isolated: Isolated::Serve,
            isolated_after_seconds: 60,
            names: SiteNames::Own,
            names_key_file: PathBuf::new(),
        }
    }
}

/// What a gateway does with requests for content while it may not know of take-downs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolated {
    /// It answers them.
    #[default]
    Serve,
    /// It answers them with 503.
    Refuse,
}

/// Whose IPNS keys and published names are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SiteNames {
    /// Those of each gateway.
    #[default]
    Own,
    /// Those of all gateways.
    Shared,
}

/// Where requests to S3 name the bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum S3Addressing {
    /// In the path.
    #[default]
    Path,
    /// In the host.
    VirtualHost,
}
