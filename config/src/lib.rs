//! What a node can be told, and how it is told: typed settings, their defaults, and the layers that override them.
//!
//! Goals: every setting is documented where it is typed; the same key works in the file, as an environment variable and,
//! where there is one, as a flag; anything wrong is refused before anything starts, in one line that names the key and
//! where its value came from.
//!
//! Non-goals: reloading while running; settings that only one deployment needs.
//!
//! | module | concern |
//! |---|---|
//! | [`schema`] | [`Config`]: the tree of settings and their defaults |
//! | [`p2p`] | [`P2p`]: the part of the tree that is about the peer-to-peer network |
//! | [`caches`] | caches in front of the gateway, and how they are told of take-downs |
//! | [`size`] | sizes such as "1GiB" |
//! | [`values`] | values that are checked as they are read: addresses, CIDs, URLs, secrets |
//! | [`keys`] | the list of keys and the names of their environment variables, taken from the tree itself |
//! | [`flags`] | the command-line flags that set keys |
//! | [`mod@load`] | defaults < file < environment < flags, and what is wrong with them |
//! | `shape` | whether a value has its key's type, in words |
//! | `check` | what is wrong with values that parse: too small, too large, at odds with each other |

pub mod caches;
pub mod flags;
pub mod keys;
pub mod load;
pub mod loaded;
pub mod p2p;
pub mod schema;
pub mod size;
pub mod values;

mod check;
mod shape;

pub use caches::{CacheKind, FrontCache};
pub use flags::Flags;
pub use load::{ConfigError, Loaded, Origin, load};
pub use p2p::{DhtMode, P2p, Provide};
pub use schema::{
    AccessLog, Admin, Cache, Config, Host, Http, ListPlace, ListSetting, Log, LogFormat, Names, Pinning, PolicyMode,
    PolicySettings, RamPolicy, StoreKind, Uploads,
};
pub use values::{AddressPattern, Route, Secret, ServeTo};
