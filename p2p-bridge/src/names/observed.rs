//! [`ObservedNames`]: name resolution on behalf of a request that is traced.

use super::{Inner, newest_record, resolve};
use content::ipns::Record;
use content::names::Key;
use content::{Name, NameError, NameObserver, NameResolver, Resolution};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use std::sync::Arc;

/// What is told of the look-ups of a resolution, if anything is.
pub(super) type Observer<'a> = Option<&'a dyn NameObserver>;

/// Names, and an observer of the look-ups.
pub(super) struct ObservedNames {
    pub inner: Arc<Inner>,
    pub observer: Arc<dyn NameObserver>,
}

impl NameResolver for ObservedNames {
    fn resolve(&self, name: &Name) -> BoxFuture<'static, Result<Resolution, NameError>> {
        let (inner, observer, name) = (Arc::clone(&self.inner), Arc::clone(&self.observer), name.clone());
        async move { resolve(&inner, name, Some(&*observer)).await }.boxed()
    }

    fn record(&self, key: &Key) -> BoxFuture<'static, Result<Record, NameError>> {
        let (inner, observer, key) = (Arc::clone(&self.inner), Arc::clone(&self.observer), *key);
        async move { newest_record(&inner, key, Some(&*observer)).await }.boxed()
    }
}

/// A look-up that is waited for. Dropping it tells that the wait has ended before the look-up.
pub(super) struct Waiting<'a>(Observer<'a>);

impl<'a> Waiting<'a> {
    pub fn begin(observer: Observer<'a>, name: &Name, is_shared: bool) -> Self {
        observer.into_iter().for_each(|observer| observer.look_up_began(name, is_shared));
        Self(observer)
    }

    /// The look-up has a result.
    pub fn end(mut self, result: Result<(), &NameError>) {
        self.0.take().into_iter().for_each(|observer| observer.look_up_ended(Some(result)));
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(|observer| observer.look_up_ended(None));
    }
}
