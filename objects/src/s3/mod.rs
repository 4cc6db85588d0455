//! S3-compatible storage, with plain PUT, GET, DELETE and LIST alone: what every server has.
//!
//! | module | concern |
//! |---|---|
//! | `endpoint` | the URLs of requests |
//! | `http` | our HTTP client: TLS, timeouts, bounded answers |
//! | `failure` | what an answer or an error of the connection means to the caller |
//! | `retry` | attempts, back-off and the deadline |
//! | `credentials` | where the keys are |
//! | `credentials_file` | AWS's shared credentials file |
//!
//! `object_store` signs requests and parses answers. It attempts each once: its own retries know nothing of a body
//! that breaks off after the head, except with ranges that the server has to support, repeat a signature with keys
//! that may have been rotated, and have no deadline for the whole.

mod credentials;
mod credentials_file;
mod endpoint;
mod failure;
mod http;
mod retry;

use crate::contract::{ListedObject, Objects};
use crate::error::{ObjectError, OpenError, StoreOption};
use crate::names;
use crate::options::{Addressing, StoreOptions};
use bytes::{Bytes, BytesMut};
use failure::Failure;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::list::{PaginatedListOptions, PaginatedListStore as _};
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, ObjectStoreExt as _, RetryConfig};
use retry::Retries;
use std::fmt;
use std::sync::Arc;

/// How many objects one request lists: the most that S3 does.
const PAGE_OBJECTS: usize = 1_000;

/// Objects in a bucket.
pub(crate) struct S3 {
    store: AmazonS3,
    /// What names are below: empty, or ends in `/`.
    prefix: String,
    /// The server and the bucket, for messages.
    place: Arc<str>,
    retries: Retries,
    bytes_max: u64,
}

impl fmt::Debug for S3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3").field("at", &self.place).field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl S3 {
    /// The objects of a bucket below a prefix, which is empty or has no `/` at its ends.
    pub(crate) fn new(bucket: &str, prefix: &str, options: &StoreOptions) -> Result<Self, OpenError> {
        let endpoint = endpoint::of(bucket, options).map_err(|error| error.about(StoreOption::Endpoint))?;
        let connector = http::Connector::new(&endpoint, options).map_err(|error| error.about(StoreOption::Ca))?;
        let once = RetryConfig { max_retries: 0, retry_timeout: options.deadline, backoff: BackoffConfig::default() };
        let builder = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_region(&options.region)
            .with_endpoint(endpoint.url.as_str())
            .with_virtual_hosted_style_request(options.addressing == Addressing::VirtualHost)
            .with_client_options(ClientOptions::new().with_allow_http(endpoint.is_plain))
            .with_http_connector(connector)
            // One object is deleted at a time, and not every server knows the request for several.
            .with_disable_bulk_delete(true)
            .with_retry(once);
        let builder =
            credentials::configure(builder, options).map_err(|error| error.about(StoreOption::Credentials))?;
        let store = builder.build().map_err(|error| OpenError::new(format!("S3 cannot be used: {error}")))?;
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        let place = format!("the bucket {bucket} at {}", endpoint.authority).into();
        let retries = Retries::new(options);
        Ok(Self { store, prefix, place, retries, bytes_max: options.bytes_max })
    }

    fn path(&self, name: &str) -> Result<Path, ObjectError> {
        names::check(name)?;
        // The path of a valid name is that name: none of its characters is encoded.
        Ok(Path::from(format!("{}{name}", self.prefix)))
    }

    /// One attempt to read an object.
    async fn read(&self, name: &str, path: &Path) -> Result<Option<Bytes>, Failure> {
        let answer = match self.store.get(path).await {
            Ok(answer) => answer,
            Err(error) => return Failure::of(&error).or_absent().map(|()| None),
        };
        let expected = answer.meta.size;
        let too_long = |bytes| Failure::Final(ObjectError::too_long(name, bytes, self.bytes_max));
        if expected > self.bytes_max {
            return Err(too_long(expected));
        }
        let mut data = BytesMut::with_capacity(usize::try_from(expected).unwrap_or_default());
        let mut chunks = answer.into_stream();
        while let Some(chunk) = chunks.try_next().await.map_err(|error| Failure::of(&error))? {
            if (data.len() + chunk.len()) as u64 > expected {
                return Err(Failure::Retry { reason: "the answer is longer than it says".to_owned(), after: None });
            }
            data.extend_from_slice(&chunk);
        }
        match data.len() as u64 == expected {
            true => Ok(Some(data.freeze())),
            false => Err(Failure::Retry { reason: "the answer is shorter than it says".to_owned(), after: None }),
        }
    }

    /// One page of a listing, and the token of the next one.
    async fn page(&self, prefix: &str, token: Option<&String>) -> Result<(Vec<ListedObject>, Option<String>), Failure> {
        let options = PaginatedListOptions {
            max_keys: Some(PAGE_OBJECTS),
            page_token: token.cloned(),
            ..PaginatedListOptions::default()
        };
        let prefix = format!("{}{prefix}", self.prefix);
        let prefix = Some(prefix.as_str()).filter(|prefix| !prefix.is_empty());
        let page = self.store.list_paginated(prefix, options).await.map_err(|error| Failure::of(&error))?;
        if token.is_some() && page.page_token.as_ref() == token {
            return Err(Failure::Retry { reason: "the listing repeats itself".to_owned(), after: None });
        }
        let listed = page.result.objects.into_iter().filter_map(|object| {
            let name = object.location.as_ref().strip_prefix(&self.prefix)?;
            // What somebody else put there.
            names::check(name).ok()?;
            Some(ListedObject { name: name.to_owned(), bytes: object.size })
        });
        Ok((listed.collect(), page.page_token))
    }

    /// The pages of a listing.
    fn pages<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl futures::Stream<Item = Result<Vec<ListedObject>, ObjectError>> + 'a {
        let first = Some(None::<String>);
        stream::try_unfold(first, move |next| async move {
            let Some(token) = next else { return Ok(None) };
            names::check_prefix(prefix)?;
            let page = || self.page(prefix, token.as_ref());
            let (listed, next) = self.retries.run("LIST", &self.place, page).await?;
            Ok(Some((listed, next.map(Some))))
        })
    }
}

impl Objects for S3 {
    fn put<'a>(&'a self, name: &'a str, data: Bytes) -> BoxFuture<'a, Result<(), ObjectError>> {
        Box::pin(async move {
            let path = self.path(name)?;
            if data.len() as u64 > self.bytes_max {
                return Err(ObjectError::too_long(name, data.len() as u64, self.bytes_max));
            }
            // An attempt whose answer was lost wrote the same bytes.
            let put = || async {
                let done = self.store.put(&path, data.clone().into()).await;
                done.map(|_| ()).map_err(|error| Failure::of(&error))
            };
            self.retries.run("PUT", &self.place, put).await
        })
    }

    fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Bytes>, ObjectError>> {
        Box::pin(async move {
            let path = self.path(name)?;
            self.retries.run("GET", &self.place, || self.read(name, &path)).await
        })
    }

    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), ObjectError>> {
        Box::pin(async move {
            let path = self.path(name)?;
            let delete = || async {
                match self.store.delete(&path).await {
                    Ok(()) => Ok(()),
                    Err(error) => Failure::of(&error).or_absent(),
                }
            };
            self.retries.run("DELETE", &self.place, delete).await
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<ListedObject, ObjectError>> {
        self.pages(prefix).map_ok(|page| stream::iter(page.into_iter().map(Ok))).try_flatten().boxed()
    }
}
