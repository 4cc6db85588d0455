//! The gateway over HTTP, with real tiers in a temporary folder and without a network: complete and aborted responses.

mod answers;
mod certificate;
mod checks;
mod connections;
mod control;
mod dag;
mod drain;
mod encoded;
mod failures;
mod hosts;
mod http2;
mod http2_abuse;
mod limits;
mod listings;
mod proxy_protocol;
mod routing;
mod singleflight;
mod site;
mod tls;
mod tls_by_name;
mod traces;
mod upstream;
mod withheld;
mod work;
