//! [`RequestError`]: why a request leads nowhere, as far as its head alone tells.

use crate::request::negotiate::NotSupported;
use content::names::{Domain, NameError};
use content::path::PathError;
use content::subdomain::LabelError;

/// Why a request leads nowhere. [`crate::errors::Problem`] chooses the status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The path cannot name content.
    #[error("invalid path \"{}\": {error}", shortened(path))]
    Path {
        /// The path as it was sent.
        path: String,
        /// Which rule it breaks.
        error: PathError,
    },
    /// The host name cannot stand for content.
    #[error(transparent)]
    Label(#[from] LabelError),
    /// `?uri=` is not an address of IPFS.
    #[error("the parameter \"uri\" is not a CID, a name, or an address that begins with ipfs:// or ipns://")]
    Uri,
    /// A domain cannot be looked up at the moment.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The path and query are too long.
    #[error("the address has more than {max} bytes")]
    UrlTooLong {
        /// The limit, in bytes.
        max: usize,
    },
    /// The header `Host` is missing, repeated or malformed.
    #[error("the request needs one header Host, with a host name and perhaps a port")]
    Host,
    /// The method is not GET, HEAD or OPTIONS.
    #[error("only GET, HEAD and OPTIONS are supported")]
    Method,
    /// The format is not supported.
    #[error(transparent)]
    Format(#[from] NotSupported),
    /// There is nothing at this address, and it is not below `/ipfs/`.
    #[error("there is no such page here; content is found under /ipfs/ and /ipns/")]
    NoSuchPage,
    /// A domain could not be looked up, so it is unknown whether it is a site with such a page.
    #[error("it cannot be looked up whether {domain} is a website, and there is no such page otherwise")]
    SiteUnknown {
        /// The domain.
        domain: Domain,
    },
}

/// As much of a text of any length as a person reads.
fn shortened(text: &str) -> String {
    const SHOWN: usize = 200;
    match text.char_indices().nth(SHOWN) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}
