//! The pin service: pin requests, and the workers that fetch their DAGs.
//!
//! | module | concern |
//! |---|---|
//! | [`request`] | [`PinRequest`]: a pin request, as it is shown |
//! | [`filter`] | [`Filter`]: selects requests; [`Page`]: one page of a listing |
//! | [`service`] | [`Pins`]: the operations on requests |
//! | [`adopt`] | stored blocks become an owner's pins |
//! | [`repeatable`] | imports that may run again: idempotency keys and fences |
//! | [`index`] | all requests in memory, and the fetch queue |
//! | [`record`] | the records in the pin metadata store |
//! | [`coordination`] | the log and the claims, by which services that share one list agree |
//! | [`clock`] | a monotonic clock in milliseconds since the epoch |
//! | `workers` | scheduling of fetches, and retries |
//! | [`fetch`], [`walk`] | one attempt to fetch a DAG |
//! | [`reach`] | the part of the network that the service uses |
//! | [`metrics`] | metrics |
//!
//! Goals: acknowledged requests are never lost; a root that several owners request is fetched once and pinned in the
//! store once, and stays until its last request is removed; 10,000 requests of one owner are listed and filtered in
//! milliseconds; a queued request takes a row in memory and no task.
//!
//! Non-goals: authorisation and routes, which are in `admin`; blocks, which are the store's.
//!
//! While a gateway runs, this service owns the pins of the store: code that pins content writes it to the store and
//! then records a request ([`Pins::record`]), and code that unpins removes requests ([`Pins::remove`]), never the
//! store's pin. Pins of the store that have no request when a gateway starts become requests of [`OPERATOR`].
//!
//! When a complete pin loses a block, it becomes partial in the store and its requests become pending: the missing
//! blocks are fetched again, retried without limit, and the rest is kept. Missing blocks that the policy withholds are
//! not fetched; the requests report that until the rules change.

pub mod adopt;
pub mod clock;
pub mod coordination;
pub mod fetch;
pub mod filter;
pub mod index;
pub mod metrics;
pub mod reach;
pub mod record;
pub mod repeatable;
pub mod request;
pub mod service;
pub mod walk;
mod workers;

pub use self::coordination::Coordination;
pub use self::filter::{Filter, NameMatch, Page, StatusCounts};
pub use self::metrics::PinMetrics;
pub use self::reach::PinNetwork;
pub use self::repeatable::RepeatableImport;
pub use self::request::{Meta, OPERATOR, Owner, PinParameters, PinRequest, Progress, Status};
pub use self::service::{DamageReport, PinOptions, Pins, PinsError, Protection, QuotaUsage, RemainingQuota};

#[cfg(test)]
mod tests;
