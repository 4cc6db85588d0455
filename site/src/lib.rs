//! What the gateways of one site share: a PostgreSQL database, and a storage for blocks.
//!
//! Goals: one list of pins for all gateways of a site, of which none can overwrite what another has decided; what was
//! acknowledged is durable; while the database cannot be reached, changes fail with an error that says so and can be
//! repeated, and nothing else does.
//!
//! Non-goals: a database or a storage of our own (`objects` has the storage); what records mean (`services`).
//!
//! | module | concern |
//! |---|---|
//! | [`open`](mod@open) | from the settings of a site to its engines |
//! | [`database`] | the connection to the database, its tables, and the logs of changes |
//! | [`blocks`] | the blocks in the shared storage, and their index in the database |
//! | [`engine_state`] | whether the database and the storage can be used |
//! | [`members`] | which gateways there are, and which of them provides a key |
//! | [`store`] | the block store of a gateway of a site: its own disk, and the shared storage |
//! | [`uploads`] | resumable uploads, which any gateway continues |

pub mod blocks;
pub mod database;
pub mod engine_state;
pub mod members;
pub mod open;
pub mod store;
pub mod uploads;

pub use open::{Engines, OpenError, open, open_control_log, open_name_log};
