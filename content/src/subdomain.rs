//! Labels of subdomain gateways: the DNS label of a CID or a name, and the root that a label encodes
//! (<https://specs.ipfs.tech/http-gateways/subdomain-gateway/>).

use crate::Cid;
use crate::cid;
use crate::codec;
use crate::names::{Key, Name};
use crate::path::{Namespace, Root};
use ::cid::multibase::Base;

/// The maximum length of a DNS label, in characters (RFC 1035, section 2.3.4).
const LABEL_BYTES_MAX: usize = 63;

/// Why a label is invalid, or a root has no label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelError {
    /// The label is not a valid CID.
    #[error(transparent)]
    Cid(#[from] crate::CidError),
    /// The label is not a valid name.
    #[error(transparent)]
    Name(#[from] crate::names::InvalidName),
    /// The root does not fit into a label in any base.
    #[error("CID incompatible with DNS label length limit of 63: {text}")]
    TooLong {
        /// The shortest encoding.
        text: String,
    },
}

/// The root that a DNS label encodes.
///
/// # Errors
/// [`LabelError`] when the label is not a valid root of the namespace.
pub fn root_of_label(namespace: Namespace, label: &str) -> Result<Root, LabelError> {
    match namespace {
        Namespace::Ipfs => Ok(Root::Cid(cid::parse(label)?)),
        Namespace::Ipns if Key::parse(label).is_some() || label.contains('.') => Ok(Root::Name(Name::parse(label)?)),
        Namespace::Ipns => Ok(Root::Name(Name::parse(&crate::dnslink::domain_of_label(label))?)),
    }
}

/// The label of a root before `.ipfs.` or `.ipns.`: case-insensitive, and at most 63 characters long. CIDs are encoded
/// in base32, or in base36 if base32 is too long. With `inlined`, a domain is encoded as one label ([`inline`]).
///
/// # Errors
/// [`LabelError::TooLong`].
pub fn label(root: &Root, inlined: bool) -> Result<String, LabelError> {
    match root {
        Root::Cid(cid) => cid_label(cid),
        Root::Name(Name::Key(key)) => check_length(key.to_string()),
        Root::Name(Name::Domain(domain)) if inlined => check_length(inline(domain.as_str())),
        Root::Name(Name::Domain(domain)) => Ok(domain.to_string()),
    }
}

fn cid_label(cid: &Cid) -> Result<String, LabelError> {
    let v1 = Cid::new_v1(cid.codec(), *cid.hash());
    let base = if cid.codec() == codec::LIBP2P_KEY { Base::Base36Lower } else { Base::Base32Lower };
    let text = |base| v1.to_string_of_base(base).unwrap_or_default();
    check_length(text(base)).or_else(|_| check_length(text(Base::Base36Lower)))
}

fn check_length(text: String) -> Result<String, LabelError> {
    if text.len() <= LABEL_BYTES_MAX { Ok(text) } else { Err(LabelError::TooLong { text }) }
}

/// A domain encoded as one label: `-` becomes `--`, and `.` becomes `-`.
pub fn inline(domain: &str) -> String {
    domain.replace('-', "--").replace('.', "-")
}
