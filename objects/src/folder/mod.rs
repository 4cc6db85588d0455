//! Objects as files of a folder that gateways share, on NFS or another POSIX file system.
//!
//! The object `a/b` is the file `a/b`. It is written as a file in `.tmp`, synced and renamed, and the folders that
//! lead to it are synced. Names of objects have no component that begins with a dot, so `.tmp` is none of them.
//!
//! | module | concern |
//! |---|---|
//! | `paths` | folders and files below the root, without following symbolic links |
//! | `writing` | an object becomes durable under its name |
//! | `reading` | the bytes of an object |
//! | `listing` | the files below a prefix, page by page |
//! | `leftovers` | temporary files of gateways that were killed |
//! | `mounts` | whether the file system is one that shows new files to others at once |
//! | `errors` | what an error of the system means to the caller |
//!
//! System calls block, for ever if a server of NFS is away. They are made on threads for blocking work, of which a
//! bounded number is used, and callers wait until the deadline.

mod errors;
mod leftovers;
mod listing;
mod mounts;
mod paths;
mod reading;
mod writing;

use crate::contract::{ListedObject, Objects};
use crate::error::{ObjectError, OpenError};
use crate::names;
use crate::options::StoreOptions;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use listing::Listing;
use paths::Root;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use writing::Writer;

/// How many operations are done at once.
const CONCURRENT_MAX: usize = 32;

/// Objects in a folder.
#[derive(Debug)]
pub(crate) struct Folder {
    shared: Arc<Shared>,
    slots: Arc<Semaphore>,
    deadline: Duration,
}

/// What the threads for blocking work use.
#[derive(Debug)]
struct Shared {
    root: Root,
    writer: Writer,
    bytes_max: u64,
}

impl Folder {
    /// Opens a folder that exists. Nothing is written to one that has no marker yet.
    pub(crate) fn new(path: PathBuf, options: &StoreOptions) -> Result<Self, OpenError> {
        let root = Root::new(path)?;
        mounts::check(root.path())?;
        let writer = Writer::new().map_err(|error| OpenError::new(format!("no random numbers: {error}")))?;
        if root.has_marker().map_err(|error| OpenError::new(error.to_string()))? {
            leftovers::tidy_away(&root, &writer).map_err(|error| OpenError::new(error.to_string()))?;
        }
        let shared = Arc::new(Shared { root, writer, bytes_max: options.bytes_max });
        Ok(Self { shared, slots: Arc::new(Semaphore::new(CONCURRENT_MAX)), deadline: options.deadline })
    }

    /// Runs blocking work. If the deadline passes, the work goes on and keeps its slot.
    async fn run<T, W>(&self, what: &str, work: W) -> Result<T, ObjectError>
    where
        T: Send + 'static,
        W: FnOnce(&Shared) -> Result<T, ObjectError> + Send + 'static,
    {
        let (shared, slots) = (Arc::clone(&self.shared), Arc::clone(&self.slots));
        let done = tokio::time::timeout(self.deadline, async move {
            let slot = slots.acquire_owned().await;
            tokio::task::spawn_blocking(move || {
                let result = work(&shared);
                drop(slot);
                result
            })
            .await
        });
        let path = self.shared.root.path().display();
        match done.await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => Err(ObjectError::unavailable(format!("{what} in {path} was not completed: {error}"))),
            Err(_) => Err(ObjectError::unavailable(format!(
                "{what} in {path} has not completed within {:?}: is the file server away?",
                self.deadline
            ))),
        }
    }

    fn pages<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl futures::Stream<Item = Result<Vec<ListedObject>, ObjectError>> + 'a {
        stream::try_unfold(Some(None::<Listing>), move |next| async move {
            let Some(listing) = next else { return Ok(None) };
            names::check_prefix(prefix)?;
            let prefix = prefix.to_owned();
            let page = self.run("listing", move |shared| {
                let mut listing = match listing {
                    Some(listing) => listing,
                    None => Listing::new(&shared.root, &prefix)?,
                };
                let page = listing.page(&shared.root)?;
                Ok((page, listing))
            });
            let (page, listing) = page.await?;
            let next = (!listing.is_done()).then_some(Some(listing));
            Ok(Some((page, next)))
        })
    }
}

impl Objects for Folder {
    fn put<'a>(&'a self, name: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), ObjectError>> {
        Box::pin(async move {
            names::check(name)?;
            if data.len() as u64 > self.shared.bytes_max {
                return Err(ObjectError::too_long(name, data.len() as u64, self.shared.bytes_max));
            }
            let name = name.to_owned();
            self.run("writing", move |shared| shared.writer.write(&shared.root, &name, &data)).await
        })
    }

    fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, ObjectError>> {
        Box::pin(async move {
            names::check(name)?;
            let name = name.to_owned();
            self.run("reading", move |shared| reading::read(&shared.root, &name, shared.bytes_max)).await
        })
    }

    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), ObjectError>> {
        Box::pin(async move {
            names::check(name)?;
            let name = name.to_owned();
            self.run("deleting", move |shared| writing::delete(&shared.root, &name)).await
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<ListedObject, ObjectError>> {
        self.pages(prefix).map_ok(|page| stream::iter(page.into_iter().map(Ok))).try_flatten().boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn work_that_blocks_is_left_at_the_deadline_and_keeps_its_slot() {
        let dir = tempfile::tempdir().expect("a folder");
        let options = StoreOptions { deadline: Duration::from_millis(50), ..StoreOptions::default() };
        let folder = Folder::new(dir.path().to_owned(), &options).expect("opens");
        let (unblock, blocked) = mpsc::channel::<()>();
        let blocked = Arc::new(std::sync::Mutex::new(blocked));
        for number in 1..=CONCURRENT_MAX {
            let blocked = Arc::clone(&blocked);
            let result = folder.run("reading", move |_| {
                _ = blocked.lock().map(|blocked| blocked.recv());
                Ok(())
            });
            match result.await {
                Err(ObjectError::Unavailable { reason }) => assert!(reason.contains("file server"), "{reason}"),
                other => panic!("{other:?}"),
            }
            assert_eq!(folder.slots.available_permits(), CONCURRENT_MAX - number);
        }
        // There is no slot left.
        assert!(matches!(folder.get("a").await, Err(ObjectError::Unavailable { .. })));
        drop(unblock);
        _ = folder.slots.acquire_many(u32::try_from(CONCURRENT_MAX).expect("small")).await.expect("is open");
        let patient = Folder { deadline: Duration::from_secs(60), ..folder };
        assert_eq!(patient.get("a").await, Ok(None));
    }
}
