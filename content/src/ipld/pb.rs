//! The logical form of MerkleDAG protobuf nodes (<https://ipld.io/specs/codecs/dag-pb/spec/#logical-format>): a map of
//! `Data`, if the node has any, and of `Links`, each of which has a `Hash`, and a `Name` and `Tsize` if they are written.

use super::{Budget, Fault, Ipld, Map};
use crate::dagpb::{PbError, PbLink, PbNode};
use bytes::Bytes;

pub(super) fn decode(bytes: &Bytes) -> Result<Ipld, Fault> {
    let malformed = |error: PbError| Fault::malformed(error.to_string());
    let node = PbNode::decode(bytes.clone()).map_err(malformed)?;
    let mut budget = Budget::new();
    budget.take(4)?;
    let mut links = Vec::new();
    for link in node.links() {
        // The map, and its keys and values.
        budget.take(7)?;
        links.push(logical(&link.map_err(malformed)?)?);
    }
    let data = node.data().map(|data| ("Data", Ipld::Bytes(data.clone())));
    map_of(data.into_iter().chain([("Links", Ipld::List(links))]))
}

fn logical(link: &PbLink<'_>) -> Result<Ipld, Fault> {
    let cid = link.cid().map_err(|error| Fault::malformed(error.to_string()))?;
    let name = link.written_name().map(|name| match std::str::from_utf8(name) {
        Ok(name) => Ok(("Name", Ipld::String(name.to_owned()))),
        Err(_) => Err(Fault::inexpressible("the name of a link is not UTF-8")),
    });
    let tsize = link.tsize.map(|tsize| ("Tsize", Ipld::Integer(i128::from(tsize))));
    map_of([("Hash", Ipld::Link(Box::new(cid)))].into_iter().chain(name.transpose()?).chain(tsize))
}

fn map_of<'a>(entries: impl Iterator<Item = (&'a str, Ipld)>) -> Result<Ipld, Fault> {
    let entries = entries.map(|(key, value)| (key.to_owned(), value)).collect();
    Map::new(entries).map(Ipld::Map).ok_or_else(|| Fault::malformed("it has a key twice"))
}
