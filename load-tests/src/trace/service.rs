//! The gateway under test: a running one, or one of our own with a second node as the network.

use super::corpus;
use super::tier::{self, ByTier};
use super::workload::Trace;
use super::{Options, corpus_files};
use crate::directory::temp_dir;
use crate::servers::{Causeway, Setup};
use anyhow::{Context as _, Result};
use content::Cid;
use std::path::Path;
use std::time::Duration;

/// Limit for concurrent misses of one client, which the whole replay is.
const MISSES_MAX: &str = "1024";

/// A gateway, and where its usage is measured.
pub struct Service {
    url: String,
    /// The admin listener.
    admin: Option<String>,
    nodes: Option<Nodes>,
}

/// The gateway, and the only peer it has.
struct Nodes {
    gateway: Causeway,
    _source: Causeway,
}

/// Counters of a gateway.
#[derive(Debug, Clone, Copy)]
pub struct Usage {
    /// Bytes of the blocks that each tier has served.
    pub served: Option<ByTier<u64>>,
    /// CPU time.
    pub cpu: Option<Duration>,
}

impl Service {
    /// A running gateway that has the content.
    pub fn running(url: &str, admin: Option<&str>) -> Self {
        let bare = |url: &str| url.trim_end_matches('/').to_owned();
        Self { url: bare(url), admin: admin.map(bare), nodes: None }
    }

    /// Starts a gateway that has the pinned content, and a node that has the rest. Returns the objects' CIDs too.
    pub async fn start(options: &Options, trace: &Trace, ram_bytes: u64) -> Result<(Self, Vec<Cid>)> {
        let dir = temp_dir("trace")?;
        let cids = write(trace, dir.path())?;
        let [pinned, others] = corpus_files(dir.path());
        let setup = Setup { archive: Some(&others), flags: options.flags.get(), ..Setup::default() };
        let source = Causeway::start(&options.causeway, setup).await?;
        let peers = [source.multiaddr()?];
        let ram_bytes = ram_bytes.to_string();
        let settings = [
            ("CAUSEWAY_CACHE_RAM_BYTES_MAX", ram_bytes.as_str()),
            ("CAUSEWAY_HTTP_MISSES_MAX", MISSES_MAX),
            ("CAUSEWAY_HTTP_CLIENT_MISSES_MAX", MISSES_MAX),
        ];
        let (archive, flags) = (Some(pinned.as_path()), options.flags.get());
        let setup = Setup { peers: &peers, archive, flags, settings: &settings, ..Setup::default() };
        let gateway = Causeway::start(&options.causeway, setup).await?;
        let (url, admin) = (gateway.server.url.clone(), Some(gateway.admin.clone()));
        Ok((Self { url, admin, nodes: Some(Nodes { gateway, _source: source }) }, cids))
    }

    /// Host and port.
    pub fn authority(&self) -> Result<String> {
        let authority = self.url.strip_prefix("http://").with_context(|| format!("{} is not plain HTTP", self.url))?;
        Ok(if authority.contains(':') { authority.to_owned() } else { format!("{authority}:80") })
    }

    pub async fn usage(&self) -> Result<Usage> {
        let served = match &self.admin {
            Some(admin) => Some(tier::bytes_served(admin).await?),
            None => None,
        };
        Ok(Usage { served, cpu: self.nodes.as_ref().map(|nodes| nodes.gateway.server.process.cpu()) })
    }
}

/// Writes the archives of a trace: the pinned content, and the rest. Returns the objects' CIDs in their order.
pub fn write(trace: &Trace, dir: &Path) -> Result<Vec<Cid>> {
    let archive = |file: &Path, pinned| {
        let objects = trace.objects.iter().filter(|object| object.pinned == pinned);
        Ok::<_, anyhow::Error>(corpus::archive(file, objects)?.into_iter())
    };
    let [pinned, others] = corpus_files(dir);
    let (mut pinned, mut others) = (archive(&pinned, true)?, archive(&others, false)?);
    let next = |pinned_one| if pinned_one { pinned.next() } else { others.next() };
    trace
        .objects
        .iter()
        .map(|object| object.pinned)
        .map(next)
        .collect::<Option<_>>()
        .context("an archive is incomplete")
}
