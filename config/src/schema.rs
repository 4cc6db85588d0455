//! [`Config`]: every setting, with its meaning, unit and default.
//!
//! The doc comments are the reference of the settings: `examples/causeway.toml` and `docs/reference/settings.md` are
//! generated from them, which a test checks. Units come last in names. A list replaces the list of the layer below; it
//! never adds to it.

pub use crate::acme::AcmeChallenge;
use crate::acme::{contacts, names as certificate_names, names_of_hosts, without_duplicates};
use crate::caches::FrontCache;
use crate::listen::{FileMode, ListenAddress, TrustedProxy};
use crate::p2p::P2p;
use crate::site::Site;
pub use crate::values::{Host, ListSetting, ListSource};
use crate::values::{Secret, addresses, attributes, cids};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;

const MIB: u64 = 1024 * 1024;
const GIB: u64 = 1024 * MIB;

/// All settings of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The data directory, which holds what must survive a restart: blocks, pins and the peer's identity. It is created
    /// if it does not exist. Only one running node can use it at a time.
    pub data_dir: PathBuf,
    /// The public HTTP listener.
    pub http: Http,
    /// The operator's HTTP listener: metrics, health checks and the admin API, which commands use while the gateway
    /// runs.
    pub admin: Admin,
    /// Uploads through the admin listener: POST /upload and the other upload endpoints.
    pub uploads: Uploads,
    /// The peer-to-peer network.
    pub p2p: P2p,
    /// The resolution of /ipns/ paths, which begin with an IPNS key or a domain with a DNSLink.
    pub names: Names,
    /// The sizes of the caches, and the block store.
    pub cache: Cache,
    /// Pinning: fetching DAGs and keeping them permanently.
    pub pinning: Pinning,
    /// Several gateways as one: they share pins in a PostgreSQL database, and blocks in one storage.
    pub site: Site,
    /// Content policy: denylists and allowlists.
    pub policy: PolicySettings,
    /// Logging to standard error.
    pub log: Log,
    /// Traces of requests, which are exported to a collector by the OpenTelemetry protocol (OTLP).
    pub telemetry: Telemetry,
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
            site: Site::default(),
            policy: PolicySettings::default(),
            log: Log::default(),
            telemetry: Telemetry::default(),
        }
    }
}

/// The public HTTP listener.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    /// Addresses and ports of the public listener, such as `0.0.0.0:8080` or `[::]:8080`, and Unix sockets, such as
    /// `unix:/run/causeway/http.sock`. Port 0 selects a free port. Sockets that systemd passes are used in their place.
    pub listen: Vec<ListenAddress>,
    /// Addresses and ports at which the public listener speaks TLS, such as `0.0.0.0:8443`, in addition to those of
    /// http.listen. Needs http.tls_certificate and http.tls_key, or http.acme_directory. An empty list turns TLS off.
    #[serde(deserialize_with = "addresses")]
    pub tls_listen: Vec<SocketAddr>,
    /// A file with the TLS certificate chain of tls_listen in PEM format, the server certificate first. It is reloaded
    /// when it changes, and by SIGHUP.
    pub tls_certificate: PathBuf,
    /// The file with the private key of the certificate, in PEM format.
    pub tls_key: PathBuf,
    /// The directory URL of a certificate authority that speaks ACME (RFC 8555), such as
    /// "https://acme-v02.api.letsencrypt.org/directory". The certificates of tls_listen are obtained and renewed there.
    /// Needs acme_terms_agreed. With tls_certificate as well, that certificate is used for all names that have none of
    /// the authority. Empty: no authority is contacted.
    pub acme_directory: String,
    /// Whether you agree to the terms of service of the certificate authority, which its directory links to.
    pub acme_terms_agreed: bool,
    /// E-mail addresses at which the certificate authority may contact you.
    #[serde(deserialize_with = "contacts")]
    pub acme_contact: Vec<String>,
    /// The names to obtain certificates for, each its own: host names, and wildcards such as `*.ipfs.example.org`.
    /// Empty: the names of http.hosts that are public host names, and for those with subdomains `*.ipfs.NAME` and
    /// `*.ipns.NAME` as well.
    #[serde(deserialize_with = "certificate_names")]
    pub acme_names: Vec<String>,
    /// The challenges with which this gateway proves that it controls a name, in order of preference: "tls-alpn-01"
    /// (port 443 of the name must lead to tls_listen), "http-01" (port 80 must lead to http.listen), "dns-01"
    /// (acme_dns_hook). After a failure the next one is tried. Wildcards are proved by dns-01 alone.
    pub acme_challenges: Vec<AcmeChallenge>,
    /// A program that sets DNS records for dns-01. It is run without a shell as "PROGRAM present NAME VALUE" before the
    /// challenge, and as "PROGRAM cleanup NAME VALUE" after it. NAME is the full name of a TXT record, such as
    /// _acme-challenge.ipfs.example.org. "present" must return when all name servers of the zone answer with VALUE. Its
    /// environment has no variables that begin with CAUSEWAY_. It is stopped after five minutes.
    pub acme_dns_hook: PathBuf,
    /// A file with root certificates in PEM format that the certificate authority's own certificate may be signed by,
    /// in addition to those of the system: for a private authority such as step-ca or Pebble.
    pub acme_ca: PathBuf,
    /// Obtain a certificate for any other domain when a client first asks for it in a TLS handshake, if the domain has
    /// a DNSLink that resolves: for websites under their own domains (dnslink_sites). The client waits for some seconds
    /// and may have to retry.
    pub acme_on_demand: bool,
    /// The maximum number of certificates on demand. At the limit, a new one replaces the least recently used one that
    /// was not used for a day.
    pub acme_on_demand_max: u64,
    /// The maximum number of certificates that are ordered on demand in an hour, on average, and so many at once after a
    /// pause; a tenth of them, but at least three, for domains with a common registered domain, and for one client (an
    /// IPv4 address or an IPv6 /64 network).
    pub acme_on_demand_hourly_max: u64,
    /// Let clients choose HTTP/2 at tls_listen. If false, only HTTP/1.1 is spoken there.
    pub http2: bool,
    /// Let clients choose HTTP/3: QUIC is spoken at the addresses of tls_listen, at the UDP port of the same number.
    /// Responses over TLS announce it (Alt-Svc). Not at addresses of proxy_protocol. The library for HTTP/3 (h3) is an
    /// early version.
    pub http3: bool,
    /// The UDP port that Alt-Svc announces for HTTP/3, if clients reach this machine at another one than that of
    /// tls_listen, such as 443 where a router or a container forwards it. 0 announces the port of tls_listen.
    pub http3_public_port: u16,
    /// The permissions of the Unix sockets of http.listen, in octal digits. A client needs permission to write.
    pub unix_mode: FileMode,
    /// The addresses of http.listen and http.tls_listen at which each connection begins with a header of the PROXY
    /// protocol, version 2, which has the client's address. Only trusted_proxies may connect there.
    pub proxy_protocol: Vec<ListenAddress>,
    /// How long a request waits while the network delivers no block. It is then answered with 504. Each block that
    /// arrives restarts the timeout.
    pub stall_timeout_seconds: u64,
    /// How long a client may take to send the head of a request. Also the keep-alive timeout of idle connections.
    pub header_timeout_seconds: u64,
    /// How long a client may read nothing of a response that is being sent. The connection is then closed.
    pub send_timeout_seconds: u64,
    /// How long /readyz answers 503 after SIGTERM or SIGINT before the listener stops accepting connections, so that
    /// load balancers send no more traffic. Longer than the interval of their health checks; 0 where there are none.
    pub drain_delay_seconds: u64,
    /// How long the graceful drain waits for open requests to finish once no more connections are accepted.
    pub drain_timeout_seconds: u64,
    /// The maximum number of simultaneous connections, and of simultaneous requests over HTTP/2 and HTTP/3. At the
    /// limit, a new connection replaces an idle one; if none is idle, a request waits for up to two seconds and is then
    /// answered with 503. /healthz and /readyz are always answered.
    pub connections_max: u64,
    /// The maximum number of simultaneous connections of one client (an IPv4 address or an IPv6 /64 network), and of
    /// simultaneous requests of one client behind trusted_proxies or over HTTP/2 or HTTP/3. The proxies themselves are
    /// not limited.
    pub client_connections_max: u64,
    /// The minimum transfer rate in bytes per second, averaged over rate_window_seconds, at which a client must read a
    /// response and send a request body. Slower clients are disconnected. 0 turns the check off.
    pub rate_bytes_min: u64,
    /// The averaging window of rate_bytes_min. Only time spent waiting for the client counts.
    pub rate_window_seconds: u64,
    /// Host names of this gateway, each a subdomain gateway unless configured otherwise. A plain name stands for { name
    /// = NAME, subdomains = true, inline_dnslink = true, namespaces = ["ipfs", "ipns"], deserialized = true }. Requests
    /// to any other name, or to an IP address, are answered as a path gateway.
    pub hosts: Vec<Host>,
    /// Serve a domain that points to this gateway and has a DNSLink as a website: the content of the DNSLink.
    pub dnslink_sites: bool,
    /// Serve deserialised responses (files, pages and archives) under names that are not in hosts. If false, only
    /// verifiable responses are served there: raw blocks, CAR and IPNS records.
    pub deserialized: bool,
    /// Convert between codecs (dag-pb, dag-cbor, dag-json and others) when the requested format is not the content's
    /// own. If false, such requests are answered with 406, as the specification requires.
    pub convert_codecs: bool,
    /// Addresses or networks of trusted proxies, such as "127.0.0.1" or "10.0.0.0/8"; "unix:" stands for the peers of
    /// Unix sockets. Their X-Forwarded-Host, -Proto and -For headers are used; those of other clients are ignored.
    /// Without "unix:", all peers of Unix sockets count as one client.
    pub trusted_proxies: Vec<TrustedProxy>,
    /// The maximum number of simultaneous requests that fetch from the network. Further requests wait for up to two
    /// seconds and are then answered with 429. Content that is stored locally is always served.
    pub misses_max: u64,
    /// The maximum number of simultaneous requests of one client (an IPv4 address or an IPv6 /64 network) that fetch
    /// from the network.
    pub client_misses_max: u64,
    /// The mean rate at which one client (an IPv4 address or an IPv6 /64 network) may send requests that need the
    /// network: that fetch content, look up a name, or search for peers. Each MiB that is fetched counts as another
    /// request. Further requests wait for up to two seconds and are then answered with 429; downloads in progress are
    /// slowed to the rate. Content that is stored locally is always served. 0 turns the limit off.
    pub client_misses_per_second: u64,
    /// How many such requests one client may send at once after a pause.
    pub client_misses_burst: u64,
    /// The maximum duration of a request, from its head to the last byte of its response. The connection is then reset.
    pub request_timeout_seconds: u64,
    /// The maximum size of a response. Longer files can be read with range requests.
    pub response_bytes_max: u64,
    /// The total number of bytes of files, archives and listings that are read ahead for all responses together,
    /// including what is buffered for HTTP/1.0 clients. One client (an IPv4 address or an IPv6 /64 network) can use at
    /// most three quarters of it. When the budget is used up, further responses are fetched block by block.
    pub read_ahead_total_bytes_max: u64,
    /// The maximum number of entries on one page of a directory listing, in HTML and in JSON.
    pub listing_entries_max: u64,
    /// The maximum number of archives (CAR, TAR) that are generated simultaneously. Each may take some megabytes of
    /// memory. Further requests are answered with 429.
    pub archives_max: u64,
    /// The maximum number of simultaneous archives of one client (an IPv4 address or an IPv6 /64 network).
    pub client_archives_max: u64,
    /// The maximum depth of a DAG that is sent as an archive (CAR, TAR).
    pub dag_depth_max: u64,
    /// The maximum number of blocks that a CAR archive tracks for deduplication, and of entries of a TAR archive.
    pub dag_blocks_max: u64,
    /// The maximum number of bytes of repeated blocks in an archive. A small DAG can link to the same blocks any number
    /// of times.
    pub dag_repeated_bytes_max: u64,
    /// The work budget of one request, in steps of some hundred nanoseconds of CPU time: links followed, policy rules
    /// checked, block pieces decoded. Every 8 bytes sent add a step. A request that exceeds the budget fails, because
    /// crafted content can cost much work for few bytes.
    pub work_steps_max: u64,
    /// The maximum number of path segments after the CID.
    pub path_depth_max: u64,
    /// The maximum length of the path and query of a request, in bytes.
    pub url_bytes_max: u64,
    /// The maximum length of the head of a request, in bytes.
    pub head_bytes_max: u64,
    /// Send files, raw blocks and CARs as they are stored, compressed, to clients that accept zstd. Small files are
    /// sent as brotli or gzip to other clients.
    pub zstd: bool,
    /// The number of bytes of a file that are read ahead of the client, for each response.
    pub read_ahead_bytes_max: u64,
    /// The number of bytes of a generated page that are buffered to determine its Content-Length for an HTTP/1.0
    /// client, which cannot detect a truncated page otherwise. Longer pages require HTTP/1.1.
    pub http10_buffer_bytes_max: u64,
    /// When a browser requests an HTML page that is fetched from the network, also fetch in the background what the
    /// page loads from the same site: stylesheets, scripts and images. The browser requests them only once it has read
    /// the page. At most 100 files and about 8 MiB for a page, within the limits of the client.
    pub prefetch_subresources: bool,
    /// Serve /routing/v1 (Delegated Routing V1) on this listener, so that light clients can find providers, peers and
    /// IPNS records through this node. These requests are limited like requests that fetch from the network.
    pub routing_v1: bool,
    /// Send Surrogate-Key and Cache-Tag headers with content: its root CID and the requested name. Content delivery
    /// networks and the admin API purge by them.
    pub surrogate_keys: bool,
    /// How long shared caches (proxies, content delivery networks) may use a response before they revalidate it:
    /// s-maxage in Cache-Control. Revalidation of unchanged content is cheap. The setting bounds how long shared caches
    /// serve content after a take-down. 0 applies the max-age of browsers.
    pub shared_max_age_seconds: u64,
    /// Pin the welcome site at the first start, and link to it on the page at "/". Once it is unpinned it is not pinned
    /// again; once pinned, it stays pinned until it is unpinned, whatever this setting is.
    pub welcome_site: bool,
}

impl Default for Http {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 8080)).into()],
            tls_listen: Vec::new(),
            tls_certificate: PathBuf::new(),
            tls_key: PathBuf::new(),
            acme_directory: String::new(),
            acme_terms_agreed: false,
            acme_contact: Vec::new(),
            acme_names: Vec::new(),
            acme_challenges: vec![AcmeChallenge::TlsAlpn01, AcmeChallenge::Http01],
            acme_dns_hook: PathBuf::new(),
            acme_ca: PathBuf::new(),
            acme_on_demand: false,
            acme_on_demand_max: 1000,
            acme_on_demand_hourly_max: 60,
            http2: true,
            http3: false,
            http3_public_port: 0,
            unix_mode: FileMode(0o660),
            proxy_protocol: Vec::new(),
            stall_timeout_seconds: 30,
            header_timeout_seconds: 30,
            send_timeout_seconds: 60,
            drain_delay_seconds: 0,
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
            client_misses_per_second: 0,
            client_misses_burst: 1000,
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
            prefetch_subresources: true,
            routing_v1: false,
            surrogate_keys: false,
            shared_max_age_seconds: 0,
            welcome_site: true,
        }
    }
}

impl Http {
    /// The names that certificates are obtained for by ACME, each once: `acme_names`, or those of `hosts`.
    pub fn certificate_names(&self) -> Vec<String> {
        match self.acme_names.is_empty() {
            true => names_of_hosts(&self.hosts),
            false => without_duplicates(self.acme_names.iter().cloned()),
        }
    }
}

/// The operator's HTTP listener: `/metrics`, `/healthz`, `/readyz`, `/psa` and `/api/…`, which commands use while the
/// gateway runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// Addresses and ports of the admin listener, and Unix sockets, such as `unix:/run/causeway/admin.sock`. Any
    /// address but loopback requires TLS, or plaintext = true. Commands use the first one. An empty list turns the
    /// listener off.
    pub listen: Vec<ListenAddress>,
    /// The permissions of the Unix sockets of admin.listen, in octal digits. A client needs permission to write, and a
    /// token.
    pub unix_mode: FileMode,
    /// Serve the console, a web page for the operator, at "/" of the admin listener. It needs a token to sign in.
    pub console: bool,
    /// A bearer token ("Authorization: Bearer TOKEN") with all scopes. Every path of the admin listener but /healthz,
    /// /readyz and the files of the console requires a token: this one, one from "causeway token create", or the one
    /// that commands read from the file admin.token in data_dir. Empty: only the latter two.
    pub token: Secret,
    /// A file with the TLS certificate chain in PEM format, the server certificate first. It turns TLS on, except on
    /// Unix sockets, and is reloaded when it changes.
    pub tls_certificate: PathBuf,
    /// The file with the private key of the certificate, in PEM format.
    pub tls_key: PathBuf,
    /// Accept connections from other machines without TLS. Use it only on a network that only a TLS proxy or the
    /// container host can reach, because tokens are sent unencrypted.
    pub plaintext: bool,
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 8081)).into()],
            unix_mode: FileMode(0o660),
            console: true,
            token: Secret::default(),
            tls_certificate: PathBuf::new(),
            tls_key: PathBuf::new(),
            plaintext: false,
        }
    }
}

/// Uploads through the admin listener: POST /upload and the other upload endpoints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Uploads {
    /// The maximum size of an upload. The quota of a token may be lower.
    pub bytes_max: u64,
    /// The maximum number of files, folders and links in an upload.
    pub entries_max: u64,
    /// The maximum number of simultaneous uploads. Further uploads are answered with 429. One token can use at most
    /// three quarters of them.
    pub at_once_max: u64,
    /// The memory budget of all uploads and imports, and of walking the DAGs that they pin. Most uploads take some 32
    /// MiB, small ones less. An upload that finds too little memory is answered with 503.
    pub memory_bytes_max: u64,
    /// The maximum total size of incomplete resumable uploads of all tokens, in data_dir or in the storage of a site.
    pub parts_bytes_max: u64,
    /// The maximum total size of incomplete resumable uploads of one token.
    pub parts_token_bytes_max: u64,
    /// The maximum number of incomplete resumable uploads of one token.
    pub parts_token_max: u64,
    /// How long an incomplete resumable upload is kept after the last data was received, and how long the result of a
    /// complete one can be queried.
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

/// The resolution of /ipns/ paths, which begin with an IPNS key or a domain with a DNSLink.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Names {
    /// A file of static names that are not looked up: NAME:PATH entries, such as "example.org:/ipfs/CID" or
    /// "k51…:/ipns/example.org", separated by commas or line ends. SIGHUP reloads it. Empty: all names are looked up.
    pub dnslink_map: PathBuf,
    /// DNS-over-HTTPS resolvers for the DNSLinks below a suffix, such as "eth=https://dns.example.org/dns-query". The
    /// longest suffix wins; "." matches every domain. Other domains are looked up with the system's resolver.
    #[serde(deserialize_with = "crate::values::routes", serialize_with = "crate::values::as_text")]
    pub doh: Vec<crate::values::Route>,
    /// How long a lookup of an IPNS record in the network may take.
    pub timeout_seconds: u64,
    /// The maximum number of names in the name cache. A record of more than 1 KiB counts as several.
    pub cache_entries_max: u64,
    /// The maximum number of simultaneous lookups, each of keys in the DHT and of domains in DNS. Further requests are
    /// answered with 429.
    pub lookups_max: u64,
    /// The maximum number of simultaneous requests of one client (an IPv4 address or an IPv6 /64 network) that wait for
    /// a lookup.
    pub client_lookups_max: u64,
    /// How long after its time to live a cached name is used immediately, while it is refreshed in the background
    /// (stale-while-revalidate). More makes rarely used names faster; less makes changes visible sooner. 0: such
    /// requests wait for the lookup.
    pub stale_while_revalidate_seconds: u64,
    /// How long a request waits for the lookup when the cached name has been stale for longer. It is then answered with
    /// the stale name and its Age. 0: requests do not wait.
    pub refresh_wait_seconds: u64,
    /// How long after its time to live a cached name is used while lookups fail (stale-if-error). An IPNS record is
    /// never used after its validity ends. It must not be less than stale_while_revalidate_seconds.
    pub stale_if_error_seconds: u64,
    /// The validity of the IPNS records that this node publishes. It bounds how long a name resolves after its node is
    /// gone, and how long an old record can be replayed in place of a newer one.
    pub publish_lifetime_hours: u64,
    /// The interval at which IPNS records are published again. It must be less than publish_lifetime_hours. Peers of
    /// the DHT come and go, so a few hours keep a name easy to find.
    pub republish_hours: u64,
    /// The time to live of published IPNS records: how long resolvers may cache them. Less makes changes visible
    /// sooner; more makes the name faster. It is at most publish_lifetime_hours.
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

/// The sizes of the caches, and the block store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cache {
    /// The capacity of the block cache in memory.
    pub ram_bytes_max: u64,
    /// The eviction policy of the block cache in memory: "tinylfu" keeps the blocks that are requested most often, so
    /// that one reading of a long file evicts nothing; "lru" keeps the blocks that were requested last.
    pub ram_policy: RamPolicy,
    /// The block store beyond ram_bytes_max. "rocksdb": a few large segment files and a RocksDB index, for a local
    /// disk. "flat": one file per block, also for a network file system; slower, and takes memory for each block.
    /// "memory": nothing survives a restart. Each store has a directory of its own in data_dir (store, flat): after a
    /// change of this setting the new store is empty, and the old one stays on the disk. "causeway store export" and
    /// "import" transfer the pinned content.
    pub store: StoreKind,
    /// The maximum size of the cached blocks on disk. Pinned blocks do not count and are never evicted.
    pub disk_bytes_max: u64,
    /// The free disk space to leave. Below it, the cache evicts blocks; when the cache is empty, nothing more is
    /// stored.
    pub disk_free_bytes_min: u64,
    /// The capacity of store = "memory". Cached blocks, at most disk_bytes_max of them, are evicted for pinned ones. A
    /// pin that does not fit fails.
    pub memory_bytes_max: u64,
    /// The zstd compression level of blocks on disk, from 1 (fast) to 22 (small). Incompressible blocks are stored
    /// uncompressed.
    pub zstd_level: u8,
    /// The capacity of the cache in memory of small files in their content encodings (zstd, brotli, gzip).
    pub encoded_bytes_max: u64,
    /// The zstd level at which pinned content is recompressed in the background, with at most a quarter of a CPU core:
    /// at the start and every scrub_hours. 0 turns recompression off. Only store = "rocksdb" does it.
    pub zstd_pinned_level: u8,
    /// The rate of the background scrub, in bytes per second read from disk to detect corruption before a client reads
    /// the data. Corrupt blocks are deleted, and fetched again when they are requested. 0 turns the scrub and
    /// recompression off.
    pub scrub_bytes_per_second: u64,
    /// How long after the end of a scrub the next one starts.
    pub scrub_hours: u64,
    /// The capacity of the cache of resolved paths in memory. A sixteenth of it is for the _redirects files of sites.
    pub paths_bytes_max: u64,
    /// The capacity of the cache in memory of generated directory listings.
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

/// The eviction policy of the block cache in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RamPolicy {
    /// Keeps the most frequently requested blocks.
    #[default]
    TinyLfu,
    /// Keeps the most recently requested blocks.
    Lru,
}

/// The kind of block store.
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

/// Pinning: fetching DAGs and keeping them permanently.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pinning {
    /// The maximum number of DAGs that are fetched for pins simultaneously. Further pins are queued.
    pub workers_max: u64,
    /// The maximum number of pins of all tokens together, in any state. Each takes about 1 KiB of memory, and its name
    /// and metadata.
    pub pins_max: u64,
    /// How long after the last received block the fetch of a DAG is retried before its pin fails. Retries back off from
    /// minutes to hours.
    pub give_up_hours: u64,
}

impl Default for Pinning {
    fn default() -> Self {
        Self { workers_max: 8, pins_max: 200_000, give_up_hours: 24 }
    }
}

/// Content policy: denylists and allowlists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PolicySettings {
    /// CIDs of blocks that are answered with 410 and never sent to peers, with any codec and CID version. No rule of a
    /// list can allow them again.
    #[serde(deserialize_with = "cids", serialize_with = "crate::values::as_text")]
    pub deny: Vec<crate::values::Cid>,
    /// Denylists in the compact denylist format (https://specs.ipfs.tech/compact-denylist-format/): files, or http://
    /// or https:// URLs, which are fetched periodically. A plain file or URL stands for { from = FILE, status = 410 };
    /// status = 451 reports that the content is withheld for legal reasons. Rules of later lists override those of
    /// earlier ones, and rules added through the admin API override all lists.
    pub denylists: Vec<ListSetting>,
    /// "deny" serves everything that no list withholds. "allow" serves over HTTP only paths that begin with a root or a
    /// name on an allowlist, and serves to peers only blocks that are pinned or on an allowlist.
    pub mode: PolicyMode,
    /// Allowlists for mode = "allow", in the same format: /ipfs/CID and /ipns/NAME with everything below,
    /// /ipfs/CID/path with this path alone, /ipfs/CID/path* with everything that has this prefix.
    pub allowlists: Vec<ListSetting>,
    /// The interval at which lists are fetched from their URLs.
    pub refresh_seconds: u64,
    /// The maximum size of a list. The rest of a longer list is ignored.
    pub list_bytes_max: u64,
    /// Caches in front of this gateway, which receive purge requests when content is taken down or purged:
    /// "refresh+http://127.0.0.1" (nginx: requests each URL, bypassing the cache), "purge+URL" (PURGE of each URL),
    /// "ban+URL" and "xkey+URL" (Varnish: BAN and PURGE by surrogate key), or { kind = "fastly", url =
    /// "https://api.fastly.com/service/ID", token_file = FILE } and likewise "cloudflare" with
    /// "https://api.cloudflare.com/client/v4/zones/ID". token_env names an environment variable instead of a file, and
    /// hosts the public host names if they are not http.hosts. All kinds but "refresh" and "purge" require
    /// http.surrogate_keys.
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

/// Whether unlisted content is served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyMode {
    /// Serves everything that no list withholds.
    #[default]
    Deny,
    /// Serves only what is on an allowlist.
    Allow,
}

/// Logging to standard error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// The log level: "error", "warn", "info", "debug" or "trace", then levels of single modules after commas:
    /// "info,p2p_bridge=debug". Modules are gateway (the public listener), admin, services (pins, uploads, denylists),
    /// cache, content, p2p_bridge and causeway.
    pub level: String,
    /// The log format: "text" for people, or "json" for log collectors, one object per line.
    pub format: LogFormat,
    /// The access log: "log" writes a line when the response to a public request ends: client, method, host, path
    /// without its query, status, duration, time to the first byte, bytes, tier of the content (ram, disk, network),
    /// root of the content, and user agent. "off" writes none.
    pub access: AccessLog,
    /// The format of the access log: "log" for lines of the log, with the target "access"; "text" for name=value pairs
    /// (logfmt); "json" for one object per line, with the same names; "combined" for the combined log format of Apache
    /// and nginx, without further fields. The latter three also have the origin of the Referer, without its path.
    pub access_format: AccessFormat,
    /// The file that the access log is appended to, in the format "text", "json" or "combined"; empty for standard
    /// error. SIGHUP opens it again, so that logrotate can rename it. While it cannot be written, because the disk is
    /// full or slow, lines are dropped and counted (causeway_access_log_dropped), and requests are answered as before.
    pub access_file: PathBuf,
    /// Addresses of clients in the access log, in the log of slow requests and in traces: "full"; "truncated" to the
    /// network (24 bits of IPv4, 48 of IPv6); "hashed" with a random key that is replaced at midnight UTC and at a
    /// start, so that the requests of one client and day can be counted; "none".
    pub access_addresses: AccessAddresses,
    /// Write a warning to the log for a request whose response began or ended after so many seconds, with where the
    /// time went: admission, host, name, path, first block, body. 0 turns it off.
    pub slow_request_seconds: u64,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: "info,libp2p=warn".to_owned(),
            format: LogFormat::Text,
            access: AccessLog::Off,
            access_format: AccessFormat::Log,
            access_file: PathBuf::new(),
            access_addresses: AccessAddresses::Full,
            slow_request_seconds: 0,
        }
    }
}

/// The access log of public requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessLog {
    /// None.
    #[default]
    Off,
    /// One log line per request.
    Log,
}

/// The format of the access log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessFormat {
    /// Lines of the log.
    #[default]
    Log,
    /// logfmt.
    Text,
    /// JSON.
    Json,
    /// The combined log format.
    Combined,
}

/// Addresses of clients in logs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessAddresses {
    /// As they are.
    #[default]
    Full,
    /// Their networks.
    Truncated,
    /// Pseudonyms of a day.
    Hashed,
    /// None.
    None,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For collectors: one JSON object a line.
    Json,
}

/// Traces of requests, exported by the OpenTelemetry protocol (OTLP).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Telemetry {
    /// The base URL of a collector that speaks OTLP over HTTP in protobuf, such as "http://127.0.0.1:4318". Traces are
    /// sent to /v1/traces below it. Empty: no request is traced.
    pub otlp_endpoint: String,
    /// Headers of each export, with credentials for the collector: "NAME=VALUE" pairs, separated by commas, with
    /// percent-encoding of other characters, such as "authorization=Bearer%20TOKEN".
    pub otlp_headers: Secret,
    /// A file with such headers, one pair on each line or separated by commas. It is read at the start.
    pub otlp_headers_file: PathBuf,
    /// A file with root certificates in PEM format that the collector's certificate may be signed by, in addition to
    /// those of the system.
    pub otlp_ca: PathBuf,
    /// The share of requests that are traced, from 0 to 1. A request whose trusted proxy (http.trusted_proxies) sent a
    /// valid traceparent header is traced if, and only if, that header says that it is sampled.
    pub sample_ratio: f64,
    /// The name of this service in traces: the resource attribute service.name.
    pub service_name: String,
    /// Further resource attributes of all traces, such as "deployment.environment.name=production".
    #[serde(deserialize_with = "attributes")]
    pub resource_attributes: Vec<String>,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            otlp_endpoint: String::new(),
            otlp_headers: Secret::default(),
            otlp_headers_file: PathBuf::new(),
            otlp_ca: PathBuf::new(),
            sample_ratio: 0.01,
            service_name: "causeway".to_owned(),
            resource_attributes: Vec::new(),
        }
    }
}
