//! What a site's `_redirects` file says of a path that is not there
//! (<https://specs.ipfs.tech/http-gateways/web-redirects-file/>).
//!
//! Only a site that has its origin for itself may say so. Its file is read once for all who ask at the same time
//! ([`crate::resolve::walks`]), and what it says, or that there is none, is remembered: every address of a site that is one page asks for it.

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
/// What a remembered site counts for besides its rules and its path, in bytes.
const ENTRY_OVERHEAD_BYTES: usize = 400;

/// The rules of a file, or why there is no understanding it.
type Said = Result<Arc<Rules>, RedirectsError>;

/// What sites are known to say, by the path of each below its root CID and the policy's generation. Clones share the memory.
#[derive(Clone)]
pub struct SiteRedirects {
    known: Cache<(Arc<str>, u64), Said>,
}

impl SiteRedirects {
    /// A memory of at most `bytes_max`.
    pub fn new(bytes_max: u64) -> Self {
        Self { known: Cache::builder().name("sites").max_capacity(bytes_max).weigher(weight).build() }
    }

    /// Forgets what the sites say whose path is concerned; how many these were.
    pub fn invalidate_where(&self, concerns: impl Fn(&str) -> bool, mode: PurgeMode) -> u64 {
        invalidate_where(&self.known, |(site, _), _| concerns(site), mode)
    }

    /// Forgets all of them.
    pub fn forget(&self) {
        self.known.invalidate_all();
    }

    /// What the site whose root is at `site` is known to say.
    pub fn known(&self, site: &Target, generation: u64) -> Option<Said> {
        self.known.get::<(Arc<str>, u64)>(&(site.key().into(), generation))
    }

    /// The rules of the site whose root is at `site`; none if it has no such file. Reads it unless it is known.
    ///
    /// # Errors
    /// [`Problem::Redirects`] when its file cannot be understood, or whatever it cannot be read for.
    pub async fn rules(&self, source: &Arc<RootSource>, site: &Target, generation: u64) -> Result<Arc<Rules>, Problem> {
        // An earlier flight may have landed between this request's look at the memory and the start of this one.
        let said = match self.known(site, generation) {
            Some(said) => said,
            None => {
                let text = read(source, site).await?.unwrap_or_default();
                source.work().charge_text(text.len());
                let said = Rules::parse(&text).map(Arc::new);
                self.known.insert((site.key().into(), generation), said.clone());
                said
            }
        };
        said.map_err(Problem::Redirects)
    }
}

impl std::fmt::Debug for SiteRedirects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SiteRedirects").field("known", &self.known.entry_count()).finish()
    }
}

fn weight((path, _): &(Arc<str>, u64), said: &Said) -> u32 {
    let rules = said.as_ref().map_or(0, |rules| rules.memory_bytes());
    u32::try_from(path.len() + rules + ENTRY_OVERHEAD_BYTES).unwrap_or(u32::MAX)
}

/// The file at the root of the site.
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
    // One byte more than is allowed, so that the parser sees that there is too much.
    let Ok(size) = file_size(&block) else { return Ok(None) };
    let range = 0..size.min(FILE_BYTES_MAX as u64 + 1);
    let mut reader = FileReader::new(Arc::clone(source) as _, block, range, ReadLimits::default())?;
    let mut text = Vec::new();
    while let Some(chunk) = reader.next().await {
        text.extend_from_slice(&chunk?);
    }
    Ok(Some(text))
}
