//! What a site's `_redirects` file says of a path that is not there
//! (<https://specs.ipfs.tech/http-gateways/web-redirects-file/>).
//!
//! Only a site that has its origin for itself may say so.

use super::Context;
use crate::errors::Problem;
use crate::resolve::Target;
use content::redirects::{FILE_BYTES_MAX, Match, Rules};
use content::unixfs::file::{FileReader, ReadLimits, file_size};
use content::unixfs::{Node, dir};
use content::walk::{self, WalkError};
use futures::StreamExt as _;
use std::sync::Arc;

const FILE: &str = "_redirects";

/// What the rules of the site say of the path, if the site has any.
///
/// # Errors
/// [`Problem::Redirects`] when its file cannot be understood, or whatever it cannot be read for.
pub async fn rule(cx: &Context<'_>) -> Result<Option<Match>, Problem> {
    let Some(text) = file(cx).await? else { return Ok(None) };
    let rules = Rules::parse(&text).map_err(Problem::Redirects)?;
    let asked = cx.target.segments.iter().skip(cx.target.site);
    let path: String = asked.flat_map(|segment| ["/", segment]).collect();
    Ok(rules.find(if path.is_empty() { "/" } else { &path }))
}

/// The file at the root of the site.
async fn file(cx: &Context<'_>) -> Result<Option<Vec<u8>>, Problem> {
    let Target { root, segments, site, .. } = cx.target;
    let root = match walk::resolve(&**cx.source, *root, &segments[..*site]).await {
        Ok(resolved) => resolved.block,
        Err(WalkError::NoLink { .. } | WalkError::NotADirectory { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if !matches!(Node::decode(&root), Ok(Node::Directory(_) | Node::HamtShard(_))) {
        return Ok(None);
    }
    let Some(cid) = dir::lookup(&**cx.source, &root, FILE).await? else { return Ok(None) };
    let block = cx.source.fetch(&cid).await.map_err(WalkError::Source)?;
    // One byte more than is allowed, so that the parser sees that there is too much.
    let Ok(size) = file_size(&block) else { return Ok(None) };
    let range = 0..size.min(FILE_BYTES_MAX as u64 + 1);
    let mut reader = FileReader::new(Arc::clone(cx.source) as _, block, range, ReadLimits::default())?;
    let mut text = Vec::new();
    while let Some(chunk) = reader.next().await {
        text.extend_from_slice(&chunk?);
    }
    Ok(Some(text))
}
