//! [`Config`]: every setting, with its meaning, unit and default.
//!
//! The doc comments here are the manual: `examples/causeway.toml` repeats them word for word, and a test keeps the two
//! equal. Units come last in names. A list replaces the list of the layer below; it never adds to it.

use crate::caches::FrontCache;
use crate::p2p::P2p;
pub use crate::values::{Host, ListPlace, ListSetting};
use crate::values::{Secret, addresses, cids, networks};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;

/// All settings of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The folder for everything that outlives a restart: blocks, pins and the peer's identity. It is created if it does
    /// not exist, and belongs to one running node at a time.
    pub data_dir: PathBuf,
    /// The public HTTP listener.
    pub http: Http,
    /// The operator's HTTP listener: metrics, health and the admin API, through which commands ask a gateway that runs.
    pub admin: Admin,
    /// What is uploaded over the admin listener: POST /upload and its like.
    pub uploads: Uploads,
    /// The peer-to-peer network.
    pub p2p: P2p,
    /// What /ipns/ paths stand for: IPNS keys and domains with a DNSLink.
    pub names: Names,
    /// How much is remembered, and where.
    pub cache: Cache,
    /// What is fetched to be kept.
    pub pinning: Pinning,
    /// What is not served.
    pub policy: PolicySettings,
    /// What is written to standard error.
    pub log: Log,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("data"),
            http: Http::default(),
            admin: Admin::default(),
            uploads: Uploads::default(),
            p2p: P2p::default(),
            names: Names::default(),
            cache: Cache::default(),
            pinning: Pinning::default(),
            policy: PolicySettings::default(),
            log: Log::default(),
        }
    }
}

/// The public HTTP listener.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Addresses and ports that answer the public, such as `0.0.0.0:8080` or `[::]:8080`. Port 0 takes a free one.
    #[serde(deserialize_with = "addresses")]
    pub listen: Vec<SocketAddr>,
    /// How long a request waits while the network delivers nothing, before it is answered with 504. Each block that
    /// arrives starts the wait anew.
    pub stall_timeout_seconds: u64,
    /// How long a client may take to send a request's head. Also how long an idle connection is kept open.
    pub header_timeout_seconds: u64,
    /// How long a client may leave the response that is being sent to it unread, before its connection is closed.
    pub send_timeout_seconds: u64,
    /// How long open requests may take to finish after SIGTERM or SIGINT.
    pub drain_timeout_seconds: u64,
    /// Connections that are served at a time. When there are as many, one that is idle gives way to a new one; if none is, a request
    /// waits for up to two seconds and is then answered with 503. /healthz and /readyz are answered all the same.
    pub connections_max: u64,
    /// Connections of one client (an IPv4 address, or an IPv6 network of 64 bits) at a time, and requests of one client behind
    /// trusted_proxies. The proxies themselves may have any number of connections.
    pub client_connections_max: u64,
    /// Bytes a second that a client has to take of a response that waits for it, and to send of a body, on average over
    /// rate_window_seconds. Slower ones are disconnected. 0 disconnects nobody for being slow.
    pub rate_bytes_min: u64,
    /// How long the time is that rate_bytes_min is averaged over. Only time that is spent waiting for the client counts.
    pub rate_window_seconds: u64,
    /// Host names that this gateway answers as, each as a subdomain gateway unless it says otherwise. A name alone stands
    /// for { name = NAME, subdomains = true, inline_dnslink = true, namespaces = ["ipfs", "ipns"], deserialized = true }.
    /// What is asked under any other name, or an address, is answered by path.
    pub hosts: Vec<Host>,
    /// Serve a domain that has a DNSLink and points here as the website that the DNSLink names.
    pub dnslink_sites: bool,
    /// Serve files, pages and archives under names that are not among the hosts. If false, only what the client can
    /// check for itself is served there: raw blocks, CAR and IPNS records.
    pub deserialized: bool,
    /// Convert between dag-pb, dag-cbor, dag-json and the like when a format other than the content's own is asked for.
    /// If false, that is answered with 406, as the specification has it.
    pub convert_codecs: bool,
    /// Addresses or networks of proxies whose X-Forwarded-Host, -Proto and -For headers are believed, such as
    /// "127.0.0.1" or "10.0.0.0/8". Anybody else's are ignored.
    #[serde(deserialize_with = "networks")]
    pub trusted_proxies: Vec<IpNet>,
    /// Requests that fetch from the network at a time. Further ones wait for up to two seconds and are then answered with
    /// 429. What is held here is served whatever the network does.
    pub misses_max: u64,
    /// Requests of one client (an IPv4 address, or an IPv6 network of 64 bits) that fetch from the network at a time.
    pub client_misses_max: u64,
    /// How long one request may take from its head to the last byte of its response, before the connection is reset.
    pub request_timeout_seconds: u64,
    /// Bytes that one response may have. A longer file can still be read in ranges.
    pub response_bytes_max: u64,
    /// Bytes of files, archives and listings that are fetched ahead of clients, and held back for those of HTTP/1.0, over all
    /// responses together. When they are used up, further responses are fetched one block after the other.
    pub read_ahead_total_bytes_max: u64,
    /// Entries on one page of a directory listing, in HTML and in JSON.
    pub listing_entries_max: u64,
    /// Archives (CAR, TAR) that are made at a time. Each may take some megabytes. Requests for further ones are answered with
    /// 429.
    pub archives_max: u64,
    /// Archives of one client (an IPv4 address, or an IPv6 network of 64 bits) that are made at a time.
    pub client_archives_max: u64,
    /// Levels of a DAG that an archive (CAR, TAR) of it may have.
    pub dag_depth_max: u64,
    /// Blocks of a DAG that an archive remembers in order not to repeat them (CAR), or entries that it may have (TAR).
    pub dag_blocks_max: u64,
    /// Bytes that an archive may spend on blocks that it has sent before: a small DAG can repeat itself without end.
    pub dag_repeated_bytes_max: u64,
    /// Work that one request may cost besides what it sends, in steps of some hundred nanoseconds of a processor: links
    /// that are looked at, rules that are asked, pieces of blocks that are decoded. Every 8 bytes that are sent earn a
    /// step more. A request that would take more ends in an error: content can be made so that little of it costs much.
    pub work_steps_max: u64,
    /// Segments that a path may have after the CID.
    pub path_depth_max: u64,
    /// Bytes that a request's path and query may have together.
    pub url_bytes_max: u64,
    /// Bytes that a request's head may have.
    pub head_bytes_max: u64,
    /// Send files that are stored compressed as they are stored, to clients who accept zstd; small ones as brotli or gzip to others.
    pub zstd: bool,
    /// Bytes of a file that are fetched ahead of the client who reads it, for each response.
    pub read_ahead_bytes_max: u64,
    /// Bytes of a generated page that are held back to learn its length for an HTTP/1.0 client, who could not tell a
    /// page that broke off from a complete one. Longer pages need HTTP/1.1.
    pub http10_buffer_bytes_max: u64,
    /// Answer /routing/v1 on this listener, so that light clients can look for providers, peers and IPNS records through
    /// this node. Their searches are work for the node and are limited like requests that fetch from the network.
    pub routing_v1: bool,
    /// Send Surrogate-Key and Cache-Tag with content: its root CID, and the name it was asked for by. Content delivery networks
    /// purge by them, and so does the admin API here.
    pub surrogate_keys: bool,
    /// How long shared caches (proxies, content delivery networks) may keep an answer before they ask whether it still holds,
    /// which costs next to nothing where it does: s-maxage in Cache-Control, beside max-age for browsers. This bounds how long
    /// content that was taken down may still come from a shared cache. 0 for as long as browsers.
    pub shared_max_age_seconds: u64,
    /// Pin the welcome site at the first start, and show the way to it on the page at "/". Once it is unpinned it does not come
    /// back, whatever this says; switched off later, it stays pinned until it is unpinned.
    pub welcome_site: bool,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 8080))],
            stall_timeout_seconds: 30,
            header_timeout_seconds: 30,
            send_timeout_seconds: 60,
            drain_timeout_seconds: 30,
            connections_max: 4096,
            client_connections_max: 512,
            rate_bytes_min: 64,
            rate_window_seconds: 60,
            hosts: vec![Host::named("localhost")],
            dnslink_sites: true,
            deserialized: true,
            convert_codecs: false,
            trusted_proxies: Vec::new(),
            misses_max: 1024,
            client_misses_max: 128,
            request_timeout_seconds: 6 * 3600,
            response_bytes_max: 256 * GIB,
            read_ahead_total_bytes_max: 256 * MIB,
            listing_entries_max: 2000,
            archives_max: 256,
            client_archives_max: 64,
            dag_depth_max: 1024,
            dag_blocks_max: 4 * MIB,
            dag_repeated_bytes_max: GIB,
            work_steps_max: 16 * MIB,
            path_depth_max: 256,
            url_bytes_max: 8192,
            head_bytes_max: 32 * 1024,
            zstd: true,
            read_ahead_bytes_max: 16 * MIB,
            http10_buffer_bytes_max: 16 * MIB,
            routing_v1: false,
            surrogate_keys: false,
            shared_max_age_seconds: 0,
            welcome_site: true,
        }
    }
}

/// The operator's HTTP listener: `/metrics`, `/healthz`, `/readyz`, `/psa`, and `/api/…`, which commands ask while the gateway runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// Addresses and ports that answer the operator. Anything but loopback needs TLS, or plaintext. An empty list turns the
    /// listener off.
    #[serde(deserialize_with = "addresses")]
    pub listen: Vec<SocketAddr>,
    /// A token that is good for everything: what "Authorization: Bearer TOKEN" may carry on the admin listener. It is asked for on
    /// every path but /healthz and /readyz, as are the tokens that "causeway token create" makes, and the one in the file
    /// admin.token of the data folder, which commands use. Empty: only those.
    pub token: Secret,
    /// A file of certificates in PEM, the listener's own first: it speaks TLS then. It is read again when it changes.
    pub tls_certificate: PathBuf,
    /// The file of the certificate's private key, in PEM.
    pub tls_key: PathBuf,
    /// Answer other machines without TLS: for a network that only a proxy with TLS, or a container's host, can reach. Whoever
    /// sees the traffic has the tokens.
    pub plaintext: bool,
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 8081))],
            token: Secret::default(),
            tls_certificate: PathBuf::new(),
            tls_key: PathBuf::new(),
            plaintext: false,
        }
    }
}

/// What is uploaded over the admin listener: POST /upload and its like.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Uploads {
    /// Bytes that one upload may have. A token's quota may allow less.
    pub bytes_max: u64,
    /// Files, folders and links that one upload may have.
    pub entries_max: u64,
    /// Uploads that are taken in at a time. Further ones are answered with 429. One token has at most three quarters of them.
    pub at_once_max: u64,
    /// Bytes of memory that uploads and imports take together, and the walks over the DAGs that they pin. Most uploads take some
    /// 32 MiB, small ones less. One that finds too little is answered with 503.
    pub memory_bytes_max: u64,
    /// Bytes of resumable uploads that lie in data_dir until they are complete, of all tokens together.
    pub parts_bytes_max: u64,
    /// Bytes of them that one token may have there.
    pub parts_token_bytes_max: u64,
    /// Resumable uploads that one token may have begun and not completed.
    pub parts_token_max: u64,
    /// How long a resumable upload is kept to which nothing is added, and how long the outcome of a complete one is told.
    pub parts_hours: u64,
}

impl Default for Uploads {
    fn default() -> Self {
        Self {
            bytes_max: 64 * GIB,
            entries_max: 10_000_000,
            at_once_max: 4,
            memory_bytes_max: 256 * MIB,
            parts_bytes_max: 64 * GIB,
            parts_token_bytes_max: 16 * GIB,
            parts_token_max: 64,
            parts_hours: 24,
        }
    }
}

/// What /ipns/ paths stand for: IPNS keys and domains with a DNSLink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Names {
    /// A file of names that are not looked up: NAME:PATH entries, such as "example.org:/ipfs/CID" or "k51…:/ipns/example.org",
    /// separated by commas or line ends. SIGHUP has it read again. Empty: every name is looked up.
    pub dnslink_map: PathBuf,
    /// DNS-over-HTTPS services that are asked for the DNSLinks below a suffix, such as "eth=https://dns.example.org/dns-query".
    /// The longest suffix wins; "." is everything. Domains without a service are looked up as the system does it.
    #[serde(deserialize_with = "crate::values::routes", serialize_with = "crate::values::as_text")]
    pub doh: Vec<crate::values::Route>,
    /// How long the network is searched for the record of an IPNS key.
    pub timeout_seconds: u64,
    /// Names that are remembered. A record of more than 1 KiB counts as several.
    pub cache_entries_max: u64,
    /// Names that are looked up at a time, keys in the DHT and domains in the DNS each. Requests for further ones are answered
    /// with 429.
    pub lookups_max: u64,
    /// Requests of one client (an IPv4 address, or an IPv6 network of 64 bits) that wait at a time for a name to be looked up.
    pub client_lookups_max: u64,
    /// How long after its time to live an answer is still given at once, while it is looked up again behind. More makes names
    /// that are asked for now and then faster; less makes changes of them seen sooner. 0: such a request waits.
    pub stale_while_revalidate_seconds: u64,
    /// How long a request waits for that look-up when the answer has been out of date for longer. Then it gets the old one,
    /// with its Age. 0: nobody waits.
    pub refresh_wait_seconds: u64,
    /// How long after its time to live an answer is given at all if no look-up succeeds, and no longer than an IPNS record is
    /// valid. It must not be less than stale_while_revalidate_seconds.
    pub stale_if_error_seconds: u64,
    /// How long the IPNS records that are published here are valid. It bounds how long the name outlives its node, and how
    /// long somebody may show an old record for a new one.
    pub publish_lifetime_hours: u64,
    /// How often they are published again. It must be less than publish_lifetime_hours. Peers of the DHT come and go, so a
    /// few hours keep a name easy to find.
    pub republish_hours: u64,
    /// How long others may remember what such a record says before they ask again. Less makes a change seen sooner; more
    /// makes the name faster. It is at most publish_lifetime_hours.
    pub publish_ttl_seconds: u64,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            dnslink_map: PathBuf::new(),
            doh: Vec::new(),
            timeout_seconds: 30,
            cache_entries_max: 16 * 1024,
            lookups_max: 256,
            client_lookups_max: 32,
            stale_while_revalidate_seconds: 60,
            refresh_wait_seconds: 5,
            stale_if_error_seconds: 172_800,
            publish_lifetime_hours: 48,
            republish_hours: 4,
            publish_ttl_seconds: 300,
        }
    }
}

/// How much is remembered, and where.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cache {
    /// Bytes of blocks held in memory.
    pub ram_bytes_max: u64,
    /// Which blocks stay in memory when not all can: "tinylfu", those that are asked for most of late, so that a long file
    /// that is read once pushes nothing out; or "lru", those that were asked for last.
    pub ram_policy: RamPolicy,
    /// What holds blocks beyond ram_bytes_max. "rocksdb": a few large files and an index, for a disk of this machine. "flat": a
    /// file for each block, which may lie on a network file system, at the price of speed, and of memory for each block.
    /// "memory": nothing outlives the process. Each has a place of its own in data_dir (store, flat): another choice begins
    /// empty, and what was stored by this one lies there until it is chosen again. What is pinned is carried over by "causeway
    /// store export" and "import".
    pub store: StoreKind,
    /// Bytes of blocks cached on disk. Pinned blocks do not count and are never evicted.
    pub disk_bytes_max: u64,
    /// Bytes that are left free on the disk. Where there is less, the cache shrinks; when it is gone, nothing is stored.
    pub disk_free_bytes_min: u64,
    /// Bytes that store = "memory" takes at most: cached blocks, at most disk_bytes_max of them, make room for pinned ones, and
    /// a pin that finds none fails.
    pub memory_bytes_max: u64,
    /// How hard blocks are compressed on disk, from 1 (fast) to 22 (small). Those that would not shrink are not.
    pub zstd_level: u8,
    /// Bytes of small files held in memory as they are sent to clients who accept zstd, brotli or gzip.
    pub encoded_bytes_max: u64,
    /// How hard what is pinned is compressed later, in the background and by at most a quarter of a processor core: when
    /// the gateway starts, and every scrub_hours. 0 leaves it as it is, and so does any store but "rocksdb".
    pub zstd_pinned_level: u8,
    /// Bytes a second that are read from disk in the background to check what lies there, so that damage is found before
    /// somebody asks for it. What is damaged is forgotten, and fetched again when it is wanted. 0 checks nothing,
    /// and compresses nothing anew.
    pub scrub_bytes_per_second: u64,
    /// How long after the end of one such pass over everything the next one begins.
    pub scrub_hours: u64,
    /// Bytes of resolved paths held in memory, so that a path that was asked for before is not walked again. A sixteenth of
    /// them is for what the _redirects files of sites say.
    pub paths_bytes_max: u64,
    /// Bytes of pages of directory listings held in memory as they are sent to clients.
    pub listings_bytes_max: u64,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            ram_bytes_max: 512 * MIB,
            ram_policy: RamPolicy::TinyLfu,
            store: StoreKind::Rocksdb,
            disk_bytes_max: 10 * GIB,
            disk_free_bytes_min: GIB,
            memory_bytes_max: 512 * MIB,
            zstd_level: 3,
            encoded_bytes_max: 64 * MIB,
            zstd_pinned_level: 0,
            scrub_bytes_per_second: 4 * MIB,
            scrub_hours: 168,
            paths_bytes_max: 64 * MIB,
            listings_bytes_max: 32 * MIB,
        }
    }
}

/// Which blocks stay in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RamPolicy {
    /// Those that are asked for most of late.
    #[default]
    TinyLfu,
    /// Those that were asked for last.
    Lru,
}

/// What holds the blocks that are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// Segment files and RocksDB.
    #[default]
    Rocksdb,
    /// A file for each block.
    Flat,
    /// Memory.
    Memory,
}

/// What is fetched to be kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pinning {
    /// DAGs that are fetched at a time in order to be pinned. Further ones wait for their turn.
    pub workers_max: u64,
    /// Pins that everybody may have together, whatever became of them. Each takes about 1 KiB of memory, and what its name and
    /// metadata take.
    pub pins_max: u64,
    /// How long a DAG is tried of which nothing more arrives, before its pin is given up as failed. The first attempts follow
    /// each other within minutes, later ones within hours.
    pub give_up_hours: u64,
}

impl Default for Pinning {
    fn default() -> Self {
        Self { workers_max: 8, pins_max: 200_000, give_up_hours: 24 }
    }
}

/// What is not served.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicySettings {
    /// CIDs of blocks that are answered with 410 and never sent to peers, whatever codec or version they are asked for by. No
    /// list can except them.
    #[serde(deserialize_with = "cids", serialize_with = "crate::values::as_text")]
    pub deny: Vec<crate::values::Cid>,
    /// Lists of what is not served, in the compact denylist format (https://specs.ipfs.tech/compact-denylist-format/): files, and
    /// http:// or https:// addresses, which are fetched again from time to time. A file or address alone stands for
    /// { from = FILE, status = 410 }; the status 451 says that content is withheld for legal reasons. Rules of later lists count
    /// for more, and those that are added through the admin API for more than any list's.
    pub denylists: Vec<ListSetting>,
    /// "deny" serves everything that no list withholds. "allow" serves over HTTP only what begins with a root or a name on one of the
    /// allowlists, and gives peers only blocks that are pinned or on these lists.
    pub mode: PolicyMode,
    /// Lists of what is served if the mode is "allow", in the same format: /ipfs/CID and /ipns/NAME with everything below,
    /// /ipfs/CID/path with this path alone, /ipfs/CID/path* with whatever begins so.
    pub allowlists: Vec<ListSetting>,
    /// How long after a list was fetched from an address it is asked for again.
    pub refresh_seconds: u64,
    /// Bytes that a list may have. What a longer one has beyond is not read.
    pub list_bytes_max: u64,
    /// Caches in front of this gateway that are sent purge requests when content is taken down or purged here:
    /// "refresh+http://127.0.0.1" (nginx: the addresses are asked for past the cache), "purge+URL" (PURGE of the addresses),
    /// "ban+URL" and "xkey+URL" (BAN and PURGE with surrogate keys: Varnish), or { kind = "fastly", url =
    /// "https://api.fastly.com/service/ID", token_file = FILE } and likewise "cloudflare" with
    /// "https://api.cloudflare.com/client/v4/zones/ID". token_env names an environment variable instead of a file, and hosts the
    /// names that pages are asked under if these are not http.hosts. All but the first two need http.surrogate_keys.
    pub caches: Vec<FrontCache>,
}

impl Default for PolicySettings {
    fn default() -> Self {
        Self {
            deny: Vec::new(),
            denylists: Vec::new(),
            mode: PolicyMode::Deny,
            allowlists: Vec::new(),
            refresh_seconds: 3600,
            list_bytes_max: 512 * MIB,
            caches: Vec::new(),
        }
    }
}

/// What is served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyMode {
    /// Whatever no list withholds.
    #[default]
    Deny,
    /// What is on a list.
    Allow,
}

/// What is written to standard error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// "error", "warn", "info", "debug" or "trace", and after commas other levels for modules: "info,p2p_bridge=debug". Modules
    /// are gateway (the public listener), admin, services (pins, uploads, denylists), cache, content, p2p_bridge and causeway.
    pub level: String,
    /// "text" for people, "json" for collectors: one object a line.
    pub format: LogFormat,
    /// "log" writes a line for each request that was answered in public, once its response has ended, with the target "access":
    /// client, method, host, path without its query, status, duration, bytes, tier that the content came from (ram, disk,
    /// network), and program. "off" writes none.
    pub access: AccessLog,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info,libp2p=warn".to_owned(), format: LogFormat::Text, access: AccessLog::Off }
    }
}

/// Which requests are written down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessLog {
    /// None.
    #[default]
    Off,
    /// Each, as a line of the log.
    Log,
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For collectors: one JSON object a line.
    Json,
}
