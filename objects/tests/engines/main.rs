//! Object storage with real servers: versitygw for S3, and folders of file systems.
//!
//! | module | concern |
//! |---|---|
//! | `behaviour` | what every engine does, for each of them |
//! | `markers` | whose objects these are |
//! | `s3` | TLS, addressing, refusals |
//! | `faults` | connections that break off, busy and stalled servers |
//! | `credentials` | files, the environment, the metadata service |
//! | `folder` | mounts, permissions, symbolic links, leftovers |
//! | `crash` | `kill -9` while objects are written to a folder |
//! | `server`, `relay`, `support` | a versitygw, a relay with faults before it, helpers |

mod behaviour;
mod crash;
mod credentials;
mod faults;
mod folder;
mod markers;
mod relay;
mod s3;
mod server;
mod support;
