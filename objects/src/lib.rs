//! Object storage that the gateways of a site share: immutable named objects in S3-compatible storage, or in a folder
//! of a shared POSIX file system (NFS), behind one trait.
//!
//! Goals: an object that was put is durable and readable by every gateway at once; a reader never gets a part of an
//! object, and never "there is none" because a server, a bucket or a mount is missing; each operation ends by a
//! deadline, in memory that is bounded by the longest object; credentials can be rotated without a restart; errors say
//! whether to repeat later or what the operator has to do.
//!
//! Non-goals: what objects contain and which of them are needed (`site`); caching, in particular of absence; changing
//! objects, conditional writes, multipart uploads; a storage engine of our own.
//!
//! Names are used once: the caller ends the name of an object in a number that is random for each attempt. Only
//! because of that, attempts can be repeated without locks and without conditional writes.
//!
//! | module | concern |
//! |---|---|
//! | `contract` | [`Objects`]: what each engine promises |
//! | `error` | [`ObjectError`] and [`OpenError`], by what the caller or the operator can do |
//! | `names` | which names objects have |
//! | `options` | [`StoreOptions`]: the settings of both engines |
//! | `open` | [`open`]: from a URL to an engine |
//! | `marker` | [`check_marker`]: the object that says whose objects these are |
//! | `s3` | S3-compatible storage: the client of the Arrow project over our own HTTP client, retries, credentials |
//! | `folder` | a folder of a file system: temporary files, renaming, syncing, mounts |
//! | `tls` | [`client_tls`]: TLS to servers, also to the database of a site |

mod contract;
mod error;
mod folder;
mod marker;
mod names;
mod open;
mod options;
mod s3;
mod tls;

pub use contract::{ListedObject, Objects};
pub use error::{ObjectError, OpenError, StoreOption};
pub use marker::{MARKER_NAME, check_marker, require_marker};
pub use names::{COMPONENT_BYTES_MAX, NAME_BYTES_MAX};
pub use open::open;
pub use options::{Addressing, Credentials, Environment, StoreOptions};
pub use tls::client_tls;
