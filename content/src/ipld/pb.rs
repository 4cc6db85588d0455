//! The logical form of MerkleDAG protobuf nodes (<https://ipld.io/specs/codecs/dag-pb/spec/#logical-format>): a map of
//! `Data`, if present, and `Links`, each of which has a `Hash`, and a `Name` and `Tsize` if present.

use super::{CodecError, Ipld, ItemBudget, Map};
use crate::dagpb::{PbError, PbLink, PbNode};
use bytes::Bytes;

pub(super) fn decode(bytes: &Bytes) -> Result<Ipld, CodecError> {
    let malformed = |error: PbError| CodecError::malformed(error.to_string());
    let node = PbNode::decode(bytes.clone()).map_err(malformed)?;
    let mut budget = ItemBudget::new();
    budget.take(4)?;
    let mut links = Vec::new();
    for link in node.links() {
        // The map, with its keys and values.
        budget.take(7)?;
        links.push(logical(&link.map_err(malformed)?)?);
    }
    let data = node.data().map(|data| ("Data", Ipld::Bytes(data.clone())));
    map_of(data.into_iter().chain([("Links", Ipld::List(links))]))
}

fn logical(link: &PbLink<'_>) -> Result<Ipld, CodecError> {
    let cid = link.cid().map_err(|error| CodecError::malformed(error.to_string()))?;
    let name = link.written_name().map(|name| match std::str::from_utf8(name) {
        Ok(name) => Ok(("Name", Ipld::String(name.to_owned()))),
        Err(_) => Err(CodecError::inexpressible("the name of a link is not UTF-8")),
    });
    let tsize = link.tsize.map(|tsize| ("Tsize", Ipld::Integer(i128::from(tsize))));
    map_of([("Hash", Ipld::Link(Box::new(cid)))].into_iter().chain(name.transpose()?).chain(tsize))
}

fn map_of<'a>(entries: impl Iterator<Item = (&'a str, Ipld)>) -> Result<Ipld, CodecError> {
    let entries = entries.map(|(key, value)| (key.to_owned(), value)).collect();
    Map::new(entries).map(Ipld::Map).ok_or_else(|| CodecError::malformed("it has a duplicate key"))
}
