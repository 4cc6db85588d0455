//! The gateway over real HTTP, on real tiers in a temporary folder, without any network: what it answers, and what
//! becomes of a response that cannot be completed.

mod answers;
mod connections;
mod control;
mod dag;
mod encoded;
mod failures;
mod flights;
mod hosts;
mod limits;
mod listings;
mod routing;
mod site;
mod tls;
mod upstream;
mod withheld;
mod work;
