//! IPFS data: CIDs, verified blocks, names and their records, paths, DAG traversals, UnixFS and CAR.
//!
//! Goals: one definition of every data rule, usable in a test table, a fuzzer, a command-line tool or a server; bounded
//! memory, and no panics on any input.
//!
//! Non-goals: sockets, disks and HTTP. [`BlockSource`] abstracts where blocks come from.
//!
//! | module | concern |
//! |---|---|
//! | [`cid`] | CIDs, multihashes, and the key under which every tier stores a block |
//! | [`hashes`] | which hash functions are accepted, and how bytes are checked against them |
//! | [`block`] | [`Block`]: bytes that match their CID |
//! | [`budget`] | [`budget::Budget`]: a memory quota that many tasks share |
//! | [`source`] | [`BlockSource`]: the interface to memory, disk and network |
//! | [`dagpb`] | MerkleDAG protobuf nodes, decoded in place |
//! | [`unixfs`] | files, directories and symlinks, and readers for them |
//! | [`importer`] | builds UnixFS DAGs from files and directories, with the same blocks as `ipfs add` |
//! | [`ipld`] | documents of every codec as values, and conversions between them |
//! | [`names`] | [`Name`]: a public key or a domain, and [`NameResolver`]: resolves a name to a path |
//! | [`ipns`] | IPNS records: verification and signing |
//! | [`dnslink`] | DNSLink records, and the operator's table of names |
//! | [`path`] | [`ContentPath`]: the path of a URL, as a root and names |
//! | [`redirects`] | the `_redirects` file of a website |
//! | [`walk`] | resolves a root and path segments to a block |
//! | [`dag`] | the links of a block, and traversal of a whole DAG |
//! | [`cid_list`] | many CIDs in little memory |
//! | [`frontier`] | the links that a traversal has yet to follow, in bounded memory |
//! | [`fingerprints`] | the visited set of a traversal: a fixed-size hash for each item |
//! | [`car`] | CARv1 archives, verified block by block when read, not copied when written |
//! | [`stored`] | the stored form of a block: compressed where that saves space, and sent to a browser as it is |
//! | [`dag_scope`] | the parameters that name a part of a DAG |
//! | [`packed`] | files as seekable zstd, whose leaves are also the leaves of the plain file |
//! | [`scope`] | which blocks a CAR response has, and in which order (`dag-scope`, `entity-bytes`) |
//! | [`tar`] | a file or a directory tree as a TAR archive |
//! | [`denylist`] | denylists in the compact format, and matching blocks, paths and names against them |
//! | [`read_ahead`] | [`ReadAhead`]: what a reader will request after a block |
//! | [`policy`] | [`Policy`]: whether content may be served |
//! | [`work`] | [`Work`]: the CPU budget of one request |

#![allow(clippy::result_large_err, reason = "errors name the CID, whose digest has room for 128 bytes, and are rare")]

pub mod block;
pub mod budget;
pub mod car;
pub mod cid;
pub mod cid_list;
pub mod dag;
pub mod dag_scope;
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
pub mod packed;
pub mod path;
pub mod policy;
pub mod read_ahead;
pub mod redirects;
pub mod scope;
pub mod source;
pub mod source_error;
pub mod stored;
pub mod subdomain;
pub mod tar;
pub mod unixfs;
pub mod verdict;
pub mod walk;
pub mod work;

pub use crate::block::{Block, BlockError, MAX_BLOCK_BYTES, UnpackError};
pub use crate::cid::{BlockKey, Cid, CidError, Multihash, codec};
pub use crate::names::{Name, NameError, NameObserver, NameResolver, Resolution};
pub use crate::path::ContentPath;
pub use crate::policy::{AllowAll, DenyList, Permitted, Policy, Verdict};
pub use crate::read_ahead::ReadAhead;
pub use crate::source::{BlockSource, MemoryBlocks, SourceError, Stall};
pub use crate::work::Work;

pub(crate) use crate::unixfs::{Node, NodeError};
