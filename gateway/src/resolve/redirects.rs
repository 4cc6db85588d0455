//! The `_redirects` files of sites, for missing paths (<https://specs.ipfs.tech/http-gateways/web-redirects-file/>).
//!
//! Only sites with their own origin have rules. A file is read once for concurrent requests
//! ([`crate::resolve::path_resolver`]), and its rules, or its absence, are cached: single-page applications need them
//! for every path.

use crate::errors::Problem;
use crate::invalidate::{PurgeMode, invalidate_where};
use crate::resolve::source::RootSource;
use crate::resolve::{self, Target};
use content::BlockSource as _;
use content::redirects::{FILE_BYTES_MAX, RedirectsError, Rules};
use content::unixfs::file::{FileReader, ReadLimits, file_size};
use content::unixfs::{Node, dir};
use content::walk::WalkError;
use futures::StreamExt as _;
use moka::sync::Cache;
use std::sync::Arc;

const FILE: &str = "_redirects";
/// The memory overhead of an entry besides its rules and its path, in bytes.
const ENTRY_OVERHEAD_BYTES: usize = 400;

/// The rules of a file, or why it is invalid.
type ParsedRules = Result<Arc<Rules>, RedirectsError>;

/// The cache of rules, by the path of each site below its root CID and the policy's generation. Clones share it.
#[derive(Clone)]
pub struct SiteRedirects {
    cache: Cache<(Arc<str>, u64), ParsedRules>,
}

impl SiteRedirects {
    /// A cache of at most `bytes_max`.
    pub fn new(bytes_max: u64) -> Self {
        Self { cache: Cache::builder().name("sites").max_capacity(bytes_max).weigher(weight).build() }
    }

    /// Invalidates the sites whose path `concerns` selects; returns their number.
    pub fn invalidate_where(&self, concerns: impl Fn(&str) -> bool, mode: PurgeMode) -> u64 {
        invalidate_where(&self.cache, |(site, _), _| concerns(site), mode)
    }

    /// Invalidates all entries.
    pub fn invalidate_all(&self) {
        self.cache.invalidate_all();
    }

    /// The cached rules of the site with its root at `site`.
    pub fn cached(&self, site: &Target, generation: u64) -> Option<ParsedRules> {
        self.cache.get::<(Arc<str>, u64)>(&(site.key().into(), generation))
    }

    /// The rules of the site with its root at `site`, empty without a file. Reads the file unless it is cached.
    ///
    /// # Errors
    /// [`Problem::Redirects`] when the file is invalid, or the error of reading it.
    pub async fn rules(&self, source: &Arc<RootSource>, site: &Target, generation: u64) -> Result<Arc<Rules>, Problem> {
        // An earlier call may have completed between this request's look-up and the start of this call.
        let parsed = match self.cached(site, generation) {
            Some(parsed) => parsed,
            None => {
                let text = read(source, site).await?.unwrap_or_default();
                source.work().charge_text(text.len());
                let parsed = Rules::parse(&text).map(Arc::new);
                self.cache.insert((site.key().into(), generation), parsed.clone());
                parsed
            }
        };
        parsed.map_err(Problem::Redirects)
    }
}

impl std::fmt::Debug for SiteRedirects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SiteRedirects").field("known", &self.cache.entry_count()).finish()
    }
}

fn weight((path, _): &(Arc<str>, u64), parsed: &ParsedRules) -> u32 {
    let rules = parsed.as_ref().map_or(0, |rules| rules.memory_bytes());
    u32::try_from(path.len() + rules + ENTRY_OVERHEAD_BYTES).unwrap_or(u32::MAX)
}

/// The file in the root of the site.
async fn read(source: &Arc<RootSource>, site: &Target) -> Result<Option<Vec<u8>>, Problem> {
    let resolved = match resolve::walk(source, site).await {
        Ok(resolved) => resolved,
        Err(Problem::Walk(WalkError::NoLink { .. } | WalkError::NotADirectory { .. })) => return Ok(None),
        Err(problem) => return Err(problem),
    };
    let root = &resolved.block;
    if !matches!(Node::decode(root), Ok(Node::Directory(_) | Node::HamtShard(_))) {
        return Ok(None);
    }
    let Some(cid) = dir::lookup(&**source, root, FILE).await? else { return Ok(None) };
    resolved.check_further(source.policy(), &site.segments, FILE).map_err(WalkError::Source)?;
    let block = source.fetch(&cid).await.map_err(WalkError::Source)?;
    // One byte more than the limit, so that the parser detects a file that is too large.
    let Ok(size) = file_size(&block) else { return Ok(None) };
    let range = 0..size.min(FILE_BYTES_MAX as u64 + 1);
    let mut reader = FileReader::new(Arc::clone(source) as _, block, range, ReadLimits::default())?;
    let mut text = Vec::new();
    while let Some(chunk) = reader.next().await {
        text.extend_from_slice(&chunk?);
    }
    Ok(Some(text))
}
