//! What IPFS data *is*: CIDs, verified blocks, names and their records, paths, DAG walks, UnixFS and CAR.
//!
//! Goals: one definition of every data rule, usable from a test table, a fuzzer, a command line or a server; bounded
//! memory and no panics on any input.
//!
//! Non-goals: sockets, disks and HTTP. This crate knows none of them; where blocks come from is behind [`BlockSource`].
//!
//! | module | concern |
//! |---|---|
//! | [`cid`] | CIDs, multihashes and the key that every tier stores blocks under |
//! | [`hashes`] | which hash functions are accepted, and how bytes are checked against them |
//! | [`block`] | [`Block`]: bytes that match their CID |
//! | [`budget`] | [`budget::Budget`]: bytes that many share |
//! | [`source`] | [`BlockSource`]: the one seam to memory, disk and network |
//! | [`dagpb`] | MerkleDAG protobuf nodes, decoded in place |
//! | [`unixfs`] | files, directories and symlinks, and readers for them |
//! | [`importer`] | UnixFS out of bytes and names: the blocks that `ipfs add` makes |
//! | [`ipld`] | documents of every codec as values, and conversions between them |
//! | [`names`] | [`Name`]: a key or a domain, and [`NameResolver`]: what it stands for |
//! | [`ipns`] | the records that the owners of keys publish |
//! | [`dnslink`] | what domains, and the operator's own list, say that names stand for |
//! | [`path`] | [`ContentPath`]: the path of a URL, as a root and names |
//! | [`redirects`] | the `_redirects` file of a website |
//! | [`walk`] | from a root and path segments to a block |
//! | [`dag`] | the links of a block, and every block of a DAG |
//! | [`frontier`] | the links that a walk over a whole DAG has yet to follow, in bounded memory |
//! | [`fingerprints`] | what walks have met, in a few bytes for each |
//! | [`car`] | CARv1 archives, verified block by block when read, not copied when written |
//! | [`scope`] | which blocks answer a request for part of a DAG, in order: what a gateway's CARs hold |
//! | [`tar`] | a file or a directory tree as a TAR archive |
//! | [`denylist`] | lists of what is withheld, and whether a block, a path or a name is on one |
//! | [`policy`] | [`Policy`]: whether content may be emitted at all |
//! | [`work`] | [`Work`]: the processor budget of one request |

#![allow(clippy::result_large_err, reason = "errors name the CID, whose digest has room for 128 bytes, and are rare")]

pub mod block;
pub mod budget;
pub mod car;
pub mod cid;
pub mod dag;
pub mod dagpb;
pub mod denylist;
pub mod dnslink;
pub mod fingerprints;
pub mod frontier;
pub mod hashes;
pub mod importer;
pub mod ipld;
pub mod ipns;
pub mod key;
pub mod links;
pub mod names;
pub mod path;
pub mod policy;
pub mod redirects;
pub mod scope;
pub mod source;
pub mod source_error;
pub mod subdomain;
pub mod tar;
pub mod unixfs;
pub mod verdict;
pub mod walk;
pub mod work;

pub use crate::block::{Block, BlockError, MAX_BLOCK_BYTES};
pub use crate::cid::{BlockKey, Cid, CidError, Multihash, codec};
pub use crate::names::{Name, NameError, NameResolver, Resolution};
pub use crate::path::ContentPath;
pub use crate::policy::{AllowAll, DenyList, Permitted, Policy, Verdict};
pub use crate::source::{BlockSource, MemoryBlocks, SourceError, Stall};
pub use crate::work::Work;
