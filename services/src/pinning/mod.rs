//! The pin service: who asked for which DAG to be kept, and the workers that fetch it.
//!
//! | module | concern |
//! |---|---|
//! | [`request`] | [`Request`]: one wish to keep a DAG, as it is shown |
//! | [`filter`] | [`Filter`]: which requests are listed, and the page that comes of it |
//! | [`service`] | [`Pins`]: everything that is done with requests |
//! | [`adopt`] | stored blocks become an owner's pins |
//! | [`index`] | all requests in memory, and the queue |
//! | [`record`] | how they lie in the register |
//! | [`clock`] | time that no step of the wall clock changes |
//! | `workers` | who fetches, when, and what follows from a failure |
//! | [`fetch`], [`walk`] | one attempt at a DAG |
//! | [`reach`] | the network, as far as it is needed here |
//! | [`metrics`] | what a scrape says |
//!
//! Goals: what was acknowledged is never lost; a root that several ask for is fetched once and pinned in the store
//! once, and stays until the last of them lets it go; 10,000 requests of one owner are listed and filtered in
//! milliseconds; a request that waits costs a row in memory and no task.
//!
//! Non-goals: who may ask, which `admin` decides, where its routes are too; blocks, which are the store's.
//!
//! A root's pin in the store belongs to this service while a gateway runs: whoever pins something writes it into the
//! store and then has it recorded ([`Pins::record`]), and whoever unpins removes requests ([`Pins::remove`]), never the
//! store's pin. Pins that are found in the store when a gateway starts, and that nobody asked for, become requests of
//! [`OPERATOR`].
//!
//! A pin that was here in full and loses a block, whatever finds that, is partial in the store from then on, and its requests
//! are pending again: what is missing is fetched again, for as long as it takes, and the rest is kept. What is missing because a
//! rule withholds it is not fetched; the requests say so until the rules change.

pub mod adopt;
pub mod clock;
pub mod fetch;
pub mod filter;
pub mod index;
pub mod metrics;
pub mod reach;
pub mod record;
pub mod request;
pub mod service;
pub mod walk;
mod workers;

pub use self::filter::{Filter, NameMatch, Page};
pub use self::metrics::PinMetrics;
pub use self::reach::Reach;
pub use self::request::{Meta, OPERATOR, Owner, Progress, Request, Status, Wanted};
pub use self::service::{DamageReport, PinOptions, Pins, PinsError, Protection, Room, Used};

#[cfg(test)]
mod tests;
