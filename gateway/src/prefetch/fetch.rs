//! Fetches the file at one path into the local tiers, as a request for it would; and reads a page that is stored there.

use super::budget::{CountedSource, PageBudget};
use super::watch::{LOOKED_BYTES_MAX, PageWatch};
use super::{FILE_BYTES_MAX, Page};
use crate::resolve::source::RootSource;
use crate::resolve::{INDEX, Target};
use content::ipns::Record;
use content::names::Key;
use content::unixfs::Node;
use content::unixfs::dir::{self, DirError};
use content::unixfs::file::{FileReader, ReadError, file_size};
use content::walk::{self, Purpose, WalkError};
use content::{
    Block, BlockSource, Cid, ContentPath, Name, NameError, NameResolver, Resolution, SourceError, Verdict, Work,
};
use futures::future::{BoxFuture, ready};
use futures::{FutureExt as _, StreamExt as _};
use std::sync::Arc;

/// Why a path was not fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotFetched {
    /// It leads to no file, is denied, or was not received.
    Failed,
    /// The client has no permit or token for it, or the page's budget is used up.
    GaveUp,
}

impl Page {
    /// Waits for further bytes of the page. Returns whether they are the last ones that are read.
    pub(super) async fn more(&self, watch: &PageWatch, bytes: &mut Vec<u8>) -> bool {
        if let Some((root, cid)) = &self.stored {
            // Whatever part of it can be read counts.
            _ = self.read_stored(*root, cid, watch).await;
            watch.end();
        }
        watch.more(bytes).await
    }

    /// Reads a page that is stored locally. Nothing else is done meanwhile.
    async fn read_stored(&self, root: Cid, cid: &Cid, watch: &PageWatch) -> Result<(), ReadError> {
        let work = Work::new(self.inner.limits.work_steps_max);
        let source = RootSource::within(&self.inner.sources, root, self.client.clone(), true, work);
        let block = source.fetch(cid).await?;
        let end = file_size(&block)?.min(LOOKED_BYTES_MAX as u64);
        let mut reader = FileReader::new(source, block, 0..end, self.read_limits())?;
        while let Some(chunk) = reader.next().await.transpose()? {
            watch.pass(&chunk);
        }
        Ok(())
    }

    /// Fetches the file at a path, or the `index.html` of a directory, into the local tiers, as a request for it would.
    pub(super) async fn fetch(&self, path: ContentPath, budget: Arc<PageBudget>, work: Work) -> Result<(), NotFetched> {
        let target = self.target(path).ok_or(NotFetched::Failed)?;
        let source = RootSource::within(&self.inner.sources, target.root, self.client.clone(), false, work);
        let source: Arc<dyn BlockSource> = Arc::new(CountedSource::new(source.paced(), Arc::clone(&budget)));
        let fetched = async {
            let Some(block) = self.file(&source, &target).await? else { return Ok(false) };
            let end = file_size(&block)?.min(FILE_BYTES_MAX);
            let mut reader = FileReader::new(source, block, 0..end, self.read_limits())?;
            while reader.next().await.transpose()?.is_some() {}
            Ok::<_, FetchError>(true)
        };
        match fetched.await {
            Ok(true) => Ok(()),
            Ok(false) => Err(NotFetched::Failed),
            Err(FetchError(error)) => Err(match error {
                Some(error) if error.is_of_client() || budget.is_used_up() => NotFetched::GaveUp,
                _ => NotFetched::Failed,
            }),
        }
    }

    /// The target of a path, if a request for it would not be refused.
    fn target(&self, path: ContentPath) -> Option<Target> {
        let policy = &*self.inner.policy;
        if policy.serves_only_listed() && policy.check_entry(&path.root, &path.segments.join("/")) != Verdict::Allow {
            return None;
        }
        // The page's name is resolved already.
        Target::of(path, &self.name, policy).now_or_never()?.ok()
    }

    /// The root block of the file at the end of a path; `None` if there is no file.
    async fn file(&self, source: &Arc<dyn BlockSource>, target: &Target) -> Result<Option<Block>, FetchError> {
        let policy = &*self.inner.policy;
        let purpose = Purpose { further: target.trailing_slash.then_some(INDEX), ..Purpose::default() };
        let resolved = walk::resolve_for(source, policy, target.root, &target.segments, &purpose).await?;
        match Node::decode(&resolved.block).map_err(WalkError::from)? {
            Node::File(_) => return Ok(Some(resolved.block)),
            Node::Directory(_) | Node::HamtShard(_) if target.trailing_slash => {}
            _ => return Ok(None),
        }
        let cid = match dir::lookup(source, &resolved.block, INDEX).await {
            Ok(Some(cid)) => cid,
            Err(DirError::Source(error)) => return Err(error.into()),
            Ok(None) | Err(_) => return Ok(None),
        };
        resolved.check_further(policy, &target.segments, INDEX)?;
        match source.peek(&cid) {
            Some(block) => Ok(Some(block)),
            None => Ok(Some(source.get(&cid).await?)),
        }
    }
}

/// The name of a page, if it has one, which is resolved already: all paths of the page have the same.
pub(super) struct PageName(pub(super) Option<Resolution>);

impl NameResolver for PageName {
    fn resolve(&self, name: &Name) -> BoxFuture<'static, Result<Resolution, NameError>> {
        let found = self.0.clone().ok_or_else(|| NameError::Offline { name: name.clone() });
        ready(found).boxed()
    }

    fn record(&self, key: &Key) -> BoxFuture<'static, Result<Record, NameError>> {
        ready(Err(NameError::Offline { name: Name::Key(*key) })).boxed()
    }
}

/// Why a file could not be fetched: the error of its source, or something that is wrong with it.
struct FetchError(Option<SourceError>);

impl From<SourceError> for FetchError {
    fn from(error: SourceError) -> Self {
        Self(Some(error))
    }
}

impl From<WalkError> for FetchError {
    fn from(error: WalkError) -> Self {
        match error {
            WalkError::Source(error) => Self(Some(error)),
            _ => Self(None),
        }
    }
}

impl From<ReadError> for FetchError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Source(error) => Self(Some(error)),
            _ => Self(None),
        }
    }
}
