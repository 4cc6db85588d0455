//! The access log: records of ended requests, their formats, and the file that they are written to.
//!
//! Goals: what the gateway writes in any format, [`parse`] reads; no text of a client leaves its place in a line;
//! writing never blocks a request, whatever the disk does; addresses are anonymised before anything is written.
//!
//! Non-goals: what is recorded of a request (`gateway::access_log`); evaluation (`causeway report`); rotation, which
//! logrotate and others do.
//!
//! | module | concern |
//! |---|---|
//! | [`record`] | a record, and its line in each format |
//! | [`parse`] | lines of any format, back to records |
//! | [`addresses`] | anonymised addresses |
//! | [`writer`] | the bounded queue, and the thread that writes it |

pub mod addresses;
pub mod parse;
pub mod record;
pub mod writer;
