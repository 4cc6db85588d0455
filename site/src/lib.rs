//! What the gateways of one site agree on: a PostgreSQL database that they share.
//!
//! Goals: one list of pins for all gateways of a site, of which none can overwrite what another has decided; what was
//! acknowledged is durable; while the database cannot be reached, changes fail with an error that says so and can be
//! repeated, and nothing else does.
//!
//! Non-goals: blocks; a database of our own; what records mean (`services`).
//!
//! | module | concern |
//! |---|---|
//! | [`database`] | the connection to the database, its tables, and the log of changes |

pub mod blocks;
pub mod database;
