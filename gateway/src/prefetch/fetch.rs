//! Fetches the file at one path into the local tiers, as a request for it would; and reads a page that is stored there.

use super::budget::{CountedSource, PageBudget};
use super::watch::{LOOKED_BYTES_MAX, PageWatch};
use super::{FILE_BYTES_MAX, Inner, Page};
use crate::resolve::source::RootSource;
use crate::resolve::{INDEX, Target};
use content::scope::{DagScope, EntityBytes, ScopeOptions};
use content::unixfs::Node;
use content::unixfs::dir::{self, DirError};
use content::unixfs::file::{FileReader, ReadError, file_size};
use content::walk::{self, Purpose, WalkError};
use content::{Block, BlockSource, Cid, ContentPath, ReadAhead, SourceError, Verdict, Work};
use futures::StreamExt as _;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

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
        let target = self.target(path).await.ok_or(NotFetched::Failed)?;
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

    /// The target of a path, if a request for it would not be refused. A name that has to be looked up is not worth it:
    /// the page's own was looked up a moment ago.
    async fn target(&self, path: ContentPath) -> Option<Target> {
        let Inner { policy, names, .. } = &*self.inner;
        if policy.serves_only_listed() && policy.check_entry(&path.root, &path.segments.join("/")) != Verdict::Allow {
            return None;
        }
        match futures::poll!(pin!(Target::of(path, &**names, &**policy))) {
            Poll::Ready(target) => target.ok(),
            Poll::Pending => None,
        }
    }

    /// The root block of the file at the end of a path; `None` if there is no file.
    async fn file(&self, source: &Arc<dyn BlockSource>, target: &Target) -> Result<Option<Block>, FetchError> {
        let policy = &*self.inner.policy;
        let purpose = Purpose { scope: scope(), further: target.trailing_slash.then_some(INDEX) };
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
            None => Ok(Some(source.get_ahead(&cid, &ReadAhead::below(cid, scope())).await?)),
        }
    }
}

/// What is fetched of a file.
fn scope() -> ScopeOptions {
    let last = i64::try_from(FILE_BYTES_MAX).unwrap_or(i64::MAX) - 1;
    ScopeOptions { scope: DagScope::File, entity_bytes: EntityBytes::new(0, Some(last)).ok(), duplicates: false }
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
