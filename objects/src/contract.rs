//! [`Objects`]: what each engine promises.

use crate::error::ObjectError;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use std::fmt::Debug;

/// Immutable named objects.
///
/// A name is written once: it is not overwritten, and not used again after its object was deleted. A name must not be
/// that of a folder of other names, as `a` is of `a/b`: file systems cannot store both.
///
/// Every operation, and each page of a listing, ends within [`StoreOptions::deadline`](crate::StoreOptions::deadline).
/// One that has failed with
/// [`ObjectError::Unavailable`], or whose future was dropped, may have taken effect, or may take effect later.
pub trait Objects: Send + Sync + Debug {
    /// Writes an object. It is durable when this completes, and atomic: a reader gets all of it or nothing.
    fn put<'a>(&'a self, name: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), ObjectError>>;

    /// All bytes of an object; `None` if there is none. One that is longer than
    /// [`StoreOptions::bytes_max`](crate::StoreOptions::bytes_max) is an error, and needs no more memory than that.
    fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, ObjectError>>;

    /// Deletes an object, if there is one.
    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), ObjectError>>;

    /// The names and lengths of the objects whose names begin with a prefix. It ends in `/`, or within the last
    /// component of names, or is empty. They are in no particular order, and are read page by page.
    ///
    /// Objects that are put or deleted in the meantime may be missing or listed. In a folder on NFS, so may those that
    /// other machines have put or deleted within the time for which the mount caches attributes (`acdirmax`, 60 s by
    /// default). [`Self::get`] has no such delay.
    ///
    /// After an error the stream ends.
    fn list<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<ListedObject, ObjectError>>;
}

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedObject {
    /// Its name.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
}
