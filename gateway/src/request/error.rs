//! [`RequestError`]: why a request's head is invalid.

use crate::request::negotiate::NotSupported;
use content::names::{Domain, NameError};
use content::path::PathError;
use content::subdomain::LabelError;

/// A request's head is invalid. [`crate::errors::Problem`] chooses the status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The path does not name content.
    #[error("invalid path \"{}\": {error}", shortened(path))]
    Path {
        /// The path as it was sent.
        path: String,
        /// Why it is invalid.
        error: PathError,
    },
    /// The subdomain label does not name content.
    #[error(transparent)]
    Label(#[from] LabelError),
    /// The value of `?uri=` is not an IPFS address.
    #[error("the parameter \"uri\" must be a CID, a name, or a URI that begins with ipfs:// or ipns://")]
    Uri,
    /// A domain cannot be resolved.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The path and query exceed `http.url_bytes_max`.
    #[error("the URL exceeds the limit of {max} bytes")]
    UrlTooLong {
        /// The limit, in bytes.
        max: usize,
    },
    /// The header `Host` is missing, repeated or malformed.
    #[error("the request must have exactly one Host header, with a host name and an optional port")]
    Host,
    /// The method is not GET, HEAD or OPTIONS.
    #[error("only GET, HEAD and OPTIONS are supported")]
    Method,
    /// The format is not supported.
    #[error(transparent)]
    Format(#[from] NotSupported),
    /// The path does not exist, and is not below `/ipfs/` or `/ipns/`.
    #[error("this path does not exist: content is below /ipfs/ and /ipns/")]
    NoSuchPage,
    /// The DNS look-up of a domain failed, so it is unknown whether the domain is a site with such a page.
    #[error("the DNSLink of {domain} cannot be looked up, so it is unknown whether it has this page")]
    SiteUnknown {
        /// The domain.
        domain: Domain,
    },
}

/// The first characters of a text, for messages.
fn shortened(text: &str) -> String {
    const SHOWN: usize = 200;
    match text.char_indices().nth(SHOWN) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
