//! The configuration of a node: typed settings, their defaults, and the layers that override them.
//!
//! Goals: every setting is documented where it is typed; the same key works in the file, as an environment variable
//! and,
//! for some, as a flag; invalid settings are rejected before anything starts, with one line that names the key and
//! the layer that set it.
//!
//! Non-goals: reloading at run time; settings that only one deployment needs.
//!
//! | module | concern |
//! |---|---|
//! | [`schema`] | [`Config`]: the tree of settings and their defaults |
//! | [`p2p`] | [`P2p`]: the settings of the peer-to-peer network |
//! | [`site`] | [`Site`]: several gateways as one |
//! | [`acme`] | certificates by ACME: names and challenges |
//! | [`caches`] | caches in front of the gateway, and how they are purged |
//! | [`size`] | sizes such as "1GiB" |
//! | [`mod@listen`] | where listeners listen, and which peers are trusted proxies |
//! | [`values`] | validated values: addresses, CIDs, URLs, secrets |
//! | [`keys`] | the list of keys and the names of their environment variables, taken from the tree itself |
//! | [`flags`] | the command-line flags that set keys |
//! | [`mod@load`] | merges defaults < file < environment < flags, and reports errors |
//! | `shape` | type checks of values, with messages for the operator |
//! | `check` | validation across settings: too small, too large, inconsistent |

pub mod acme;
pub mod caches;
pub mod flags;
pub mod keys;
pub mod listen;
pub mod load;
pub mod loaded;
pub mod p2p;
pub mod schema;
pub mod site;
pub mod size;
pub mod values;

mod check;
mod shape;

pub use acme::AcmeChallenge;
pub use caches::{CacheKind, FrontCache};
pub use flags::Flags;
pub use listen::{FileMode, ListenAddress, ShownAddress, TrustedProxy, UNIX_PEER};
pub use load::{ConfigError, Loaded, Origin, load};
pub use p2p::{DhtMode, P2p, Provide};
pub use schema::{
    AccessAddresses, AccessFormat, AccessLog, Admin, Cache, Config, Host, Http, ListSetting, ListSource, Log,
    LogFormat, Names, Pinning, PolicyMode, PolicySettings, RamPolicy, StoreKind, Telemetry, Uploads,
};
pub use site::{Isolated, S3Addressing, Site, SiteNames};
pub use values::{AddressPattern, Route, Secret, ServeTo};
