//! Documents: IPLD data, and plain JSON and CBOR
//! (<https://specs.ipfs.tech/http-gateways/path-gateway/#accept-request-header>).
//!
//! A document is sent as stored, with its own media type or the plain one of the same syntax. Conversion to other
//! codecs is optional (IPIP-0524). Browsers get an HTML preview.

use crate::body::Content;
use crate::errors::Problem;
use crate::headers::header;
use crate::html;
use crate::represent::file::{InMemory, Origin, in_memory};
use crate::represent::{Context, plan};
use crate::request::Ask;
use crate::request::conditional::none_match;
use crate::request::negotiate::Format;
use crate::request::route::Links;
use crate::resolve::{self, etag_of};
use crate::respond::{self, Draft};
use content::ipld::{self, IpldError, Kind, Label, Outline, OutlineLimits};
use content::policy::check_inlined;
use content::walk::{Resolved, WalkError};
use content::{Block, BlockSource as _, Cid, codec};
use http::HeaderValue;
use maud::{DOCTYPE, Markup, html};

/// The maximum size of documents that are decoded on the request's thread, in bytes: less than a millisecond of work.
const DECODE_INLINE_BYTES_MAX: usize = 16 * 1024;
/// Part of the entity tag of a preview: must be increased when its appearance changes.
const VERSION: u32 = 1;

/// The format of a codec.
pub fn native_format(cid: &Cid) -> Option<Format> {
    match cid.codec() {
        codec::DAG_CBOR => Some(Format::DagCbor),
        codec::DAG_JSON => Some(Format::DagJson),
        codec::CBOR => Some(Format::Cbor),
        codec::JSON => Some(Format::Json),
        _ => None,
    }
}

fn codec_of(format: Format) -> u64 {
    match format {
        Format::DagCbor => codec::DAG_CBOR,
        Format::Cbor => codec::CBOR,
        Format::Json => codec::JSON,
        _ => codec::DAG_JSON,
    }
}

/// Whether stored bytes are valid in the other format: dag-json is JSON, and dag-cbor is CBOR.
fn is_same_syntax(stored: Format, wanted: Format) -> bool {
    stored == wanted || matches!((stored, wanted), (Format::DagCbor, Format::Cbor) | (Format::DagJson, Format::Json))
}

/// A document in the requested format.
///
/// # Errors
/// [`Problem`] when the path leads into the document, or the format is not available.
pub async fn document(cx: &Context<'_>, resolved: Resolved) -> Result<Draft, Problem> {
    let cid = *resolved.block.cid();
    if !resolved.remainder.is_empty() {
        return Err(Problem::InsideDocument { cid });
    }
    if ipld::is_document(cid.codec()) {
        // Values inside a document have paths of their own, which the policy may withhold.
        resolved.check_below(cx.source.policy(), &cx.target.segments).map_err(WalkError::Source)?;
    }
    check_inlined(cx.source.policy(), &resolved.block).map_err(WalkError::Source)?;
    let roots = resolve::roots_header(&resolved);
    let native = native_format(&cid).unwrap_or(Format::Raw);
    match cx.ask.wanted.format {
        Format::Native if shows_preview(cx.ask) => preview(cx, &resolved.block, &roots).await,
        Format::Native => stored(cx, &resolved.block, native, &roots),
        wanted if is_same_syntax(native, wanted) => stored(cx, &resolved.block, wanted, &roots),
        wanted => converted(cx, &resolved.block, wanted, &roots).await,
    }
}

/// The target of a path as dag-json or dag-cbor.
///
/// # Errors
/// [`Problem`] when the path cannot be resolved, or the format is not available.
pub async fn of_path(cx: &Context<'_>) -> Result<Draft, Problem> {
    let resolved = cx.walk().await?;
    document(cx, resolved).await
}

/// Browsers get a preview, unless they download the document.
pub fn shows_preview(ask: &Ask<'_>) -> bool {
    ask.wanted.html && !ask.download
}

fn stored(cx: &Context<'_>, block: &Block, format: Format, roots: &HeaderValue) -> Result<Draft, Problem> {
    let origin = Origin::Block { source: cx.source, block, limits: cx.read };
    in_format(cx, block.cid(), block.data().clone(), origin, format, roots)
}

async fn converted(cx: &Context<'_>, block: &Block, wanted: Format, roots: &HeaderValue) -> Result<Draft, Problem> {
    let cid = *block.cid();
    if !cx.resources.limits.convert_codecs {
        return Err(Problem::NotConverted { cid, wanted: wanted.name() });
    }
    let bytes = read(cx, block, move |block| ipld::convert(block, codec_of(wanted))).await?;
    in_format(cx, &cid, bytes, Origin::Made { limits: cx.read }, wanted, roots)
}

fn in_format(
    cx: &Context<'_>,
    cid: &Cid,
    bytes: bytes::Bytes,
    origin: Origin<'_>,
    format: Format,
    roots: &HeaderValue,
) -> Result<Draft, Problem> {
    let is_json = matches!(format, Format::Json | Format::DagJson);
    let name = format!("{cid}.{}", if is_json { "json" } else { "cbor" });
    let it = InMemory {
        bytes,
        origin,
        etag: etag(cid, format),
        content_type: HeaderValue::from_static(format.media_type()),
        // Browsers display JSON, and save CBOR.
        disposition: Some(plan::disposition(cx.ask, !is_json, Some(name))),
    };
    in_memory(&cx.about(roots), it)
}

/// The entity tag of a document in a format.
pub fn etag(cid: &Cid, format: Format) -> HeaderValue {
    etag_of(cid, &format!(".{}", format.name()))
}

/// The entity tag of a document's preview.
pub fn preview_etag(cid: &Cid) -> HeaderValue {
    header(&format!("\"DagIndex-{VERSION}_CID-{cid}\""))
}

async fn preview(cx: &Context<'_>, block: &Block, roots: &HeaderValue) -> Result<Draft, Problem> {
    let (about, etag) = (cx.about(roots), preview_etag(block.cid()));
    if none_match(cx.ask.headers, etag.as_bytes(), true) {
        return Ok(plan::not_modified(&about, &etag, true).map(|()| Content::Empty));
    }
    let outline = read(cx, block, |block| Ok(ipld::outline(&ipld::decode(block)?, OutlineLimits::default()))).await?;
    let page = page(cx, block, &outline).into_string();
    let head = plan::stream(&about, &etag, HeaderValue::from_static("text/html; charset=utf-8"), true);
    Ok(respond::page(head.map(|()| page)))
}

/// Decodes a document: a small one here, a large one on worker threads.
async fn read<T: Send + 'static>(
    cx: &Context<'_>,
    block: &Block,
    reading: impl FnOnce(&Block) -> Result<T, IpldError> + Send + 'static,
) -> Result<T, Problem> {
    let work = cx.source.work();
    work.charge_decoding(block);
    work.turn().await.map_err(WalkError::Source)?;
    if block.data().len() <= DECODE_INLINE_BYTES_MAX {
        return Ok(reading(block)?);
    }
    let block = block.clone();
    let read = cx.resources.workers.run(async move { reading(&block) }).await;
    Ok(read.ok_or_else(Problem::closed)??)
}

fn page(cx: &Context<'_>, block: &Block, outline: &Outline) -> Markup {
    let cid = block.cid();
    let native = native_format(cid).map_or("", Format::name);
    html! {
        (DOCTYPE)
        html lang="en" {
            (html::head(&format!("{native} {cid}"), STYLE))
            body {
                header {
                    h1 translate="no" { (cid) }
                    p {
                        (native) ", " (block.data().len()) " bytes · "
                        a href={ "?format=" (native) } { (native) } " · "
                        a href="?format=raw" { "raw block" } " · "
                        a href="?format=car" { "CAR" }
                    }
                }
                main {
                    @for line in &outline.lines {
                        div.line style={ "--depth:" (line.depth.min(16)) } {
                            @if let Some(label) = &line.label { b { (name_of(label)) } }
                            @if let Some(link) = &line.link {
                                a href=(link_to(cx, link)) translate="no" { (line.text) }
                            } @else if !line.text.is_empty() {
                                span class=(class_of(line.kind)) { (line.text) @if line.cut { "…" } }
                            }
                            small { (describe(line.kind)) }
                        }
                    }
                    @if !outline.complete { p { "The rest is not shown here." } }
                }
            }
        }
    }
}

fn name_of(label: &Label) -> String {
    match label {
        Label::Key(key) => key.clone(),
        Label::Index(index) => index.to_string(),
    }
}

fn link_to(cx: &Context<'_>, cid: &Cid) -> String {
    match &cx.place.links {
        Links::Subdomain(authority) => format!("//{authority}/ipfs/{cid}"),
        Links::Path => format!("/ipfs/{cid}"),
        // The origin of a DNSLink site serves only the site.
        Links::DnsLink(_) => format!("https://cid.ipfs.tech/#{cid}"),
    }
}

fn class_of(kind: Kind) -> &'static str {
    match kind {
        Kind::String(_) => "text",
        Kind::Bytes(_) => "bytes",
        _ => "value",
    }
}

fn describe(kind: Kind) -> String {
    let many = |count: usize, one: &str, more: &str| format!("{count} {}", if count == 1 { one } else { more });
    match kind {
        Kind::Null => "null".to_owned(),
        Kind::Bool | Kind::Integer | Kind::Float | Kind::String(_) | Kind::Link => String::new(),
        Kind::Bytes(count) => many(count, "byte", "bytes"),
        Kind::List(count) => format!("list of {}", many(count, "value", "values")),
        Kind::Map(count) => format!("map of {}", many(count, "key", "keys")),
    }
}

const STYLE: &str = ":root{color-scheme:light dark;--line:#0002;--soft:#000a;--link:#0b6e75}\
    @media(prefers-color-scheme:dark){:root{--line:#fff2;--soft:#fffa;--link:#5cc6c4}}\
    body{margin:0;font:1rem/1.5 system-ui,sans-serif}header,main{max-width:60rem;margin:0 auto;padding:1rem}\
    h1{margin:0;font-size:1.05rem;overflow-wrap:anywhere}header p{margin:.25rem 0 0;color:var(--soft);font-size:.85rem}\
    a{color:var(--link);overflow-wrap:anywhere}main{border-top:1px solid var(--line)}\
    .line{padding:.2rem 0 .2rem calc(var(--depth)*1.1rem);overflow-wrap:anywhere}.line>*{margin-right:.6em}\
    .text{white-space:pre-wrap}.bytes{font-family:ui-monospace,monospace;font-size:.9em}\
    small{color:var(--soft)}@media(max-width:34rem){.line{padding-left:calc(var(--depth)*.5rem)}}";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_bytes_are_valid_in_their_own_format_and_the_plain_one() {
        use Format::{Cbor, DagCbor, DagJson, Json};
        let table = [
            (DagCbor, DagCbor, true),
            (DagCbor, Cbor, true),
            (DagJson, Json, true),
            (Cbor, DagCbor, false),
            (Json, DagJson, false),
            (DagCbor, DagJson, false),
            (DagJson, Cbor, false),
        ];
        for (stored, wanted, expected) in table {
            assert_eq!(is_same_syntax(stored, wanted), expected, "{stored:?} as {wanted:?}");
        }
    }

    #[test]
    fn sizes_are_described() {
        let table = [(Kind::List(1), "list of 1 value"), (Kind::Map(2), "map of 2 keys"), (Kind::Bytes(3), "3 bytes")];
        for (kind, expected) in table {
            assert_eq!(describe(kind), expected);
        }
    }
}
