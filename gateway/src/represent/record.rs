//! IPNS records (<https://specs.ipfs.tech/http-gateways/trustless-gateway/#ipns-record-responses-application-vnd-ipfs-ipns-record>).

use crate::errors::Problem;
use crate::headers::header;
use crate::represent::file::{InMemory, Origin, in_memory};
use crate::represent::plan::{self, About};
use crate::request::Ask;
use crate::request::negotiate::Format;
use crate::resolve::Freshness;
use crate::resolve::source::Tier;
use crate::respond::Draft;
use content::path::Root;
use content::{ContentPath, Name, NameResolver, hashes};
use http::HeaderValue;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

/// The IPNS record of a path that is a key.
///
/// # Errors
/// [`Problem`] when the path is not a key, or the record cannot be found.
pub async fn record(ask: &Ask<'_>, path: &ContentPath, names: &dyn NameResolver) -> Result<Draft, Problem> {
    let Root::Name(Name::Key(key)) = &path.root else { return Err(Problem::NotIpnsKey) };
    if !path.segments.is_empty() {
        return Err(Problem::NotIpnsKey);
    }
    let record = names.record(key).await?;
    let left = record.end_of_life().duration_since(SystemTime::now()).unwrap_or(Duration::ZERO);
    let roots = HeaderValue::from_static("");
    let about = About { ask, freshness: Freshness::For(record.ttl().min(left)), roots: &roots, tier: Tier::Ram };
    let it = InMemory {
        etag: etag(record.bytes()),
        bytes: record.bytes().clone(),
        origin: Origin::Small,
        content_type: HeaderValue::from_static(Format::IpnsRecord.media_type()),
        disposition: Some(plan::disposition(ask, true, Some(format!("{key}.ipns-record")))),
    };
    let mut draft = in_memory(&about, it)?;
    // A record is not content: it has no roots and no tier.
    draft.headers_mut().remove("x-ipfs-roots");
    draft.headers_mut().remove("server-timing");
    Ok(draft)
}

/// The entity tag of a record.
pub fn etag(bytes: &[u8]) -> HeaderValue {
    let digest = hashes::digest(hashes::SHA2_256, 32, bytes);
    let hex = digest.map(|hash| {
        hash.digest().iter().take(16).fold(String::new(), |mut hex, byte| {
            _ = write!(hex, "{byte:02x}");
            hex
        })
    });
    header(&format!("\"{}.ipns-record\"", hex.unwrap_or_default()))
}
