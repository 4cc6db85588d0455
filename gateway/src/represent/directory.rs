//! Directory listings, as HTML and as JSON, for directories without `index.html`.
//!
//! Goals: the first byte does not wait for the last entry, and memory does not depend on the number of entries: a
//! listing is generated in chunks, and long listings have pages, each of which is found without reading those before
//! it; a page is generated once for all concurrent requests ([`crate::represent::listings`]); the page fits phones and
//! desktops, has a light and a dark style, and loads no other resources.
//!
//! Entries are in stored order: by name, or in sharded directories by the hash of the name. A query filters and sorts
//! them ([`crate::represent::listings::selection`]).
//!
//! The JSON is `{"cid", "path", "entries": [{"name", "cid", "size"?, "type"?}], "next"?}`. `next` is the URL of the
//! next page, and `type` is present where the CID alone determines it.

use crate::body::Content;
use crate::errors::Problem;
use crate::headers::header;
use crate::html;
use crate::represent::Context;
use crate::represent::listings::selection::{Entries, Selection, Sort};
use crate::represent::listings::{Chunks, Key, Listings, Wanted};
use crate::represent::plan::{self, About};
use crate::request::Ask;
use crate::request::negotiate::Format;
use crate::request::route::{Links, Place};
use crate::resolve::Target;
use crate::resolve::source::{RootSource, Tier};
use crate::respond::Draft;
use crate::workers::Workers;
use bytes::Bytes;
use content::budget::Budget;
use content::cid::is_identity;
use content::unixfs::dir::{self, DirEntry};
use content::{Block, BlockSource as _, Cid, Policy, Verdict, Work, codec};
use futures::FutureExt as _;
use futures::future::ready;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use http::HeaderValue;
use http::header::CONTENT_LENGTH;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode, utf8_percent_encode};
use services::url::PATH_SEGMENT;
use std::borrow::Cow;
use std::sync::Arc;

/// Part of the entity tag: must be increased when the appearance of listings changes.
const VERSION: u32 = 3;
/// The size of a chunk in bytes, exceeded by its last entry.
const CHUNK_BYTES: usize = 16 * 1024;
/// The processor cost of a row, in steps.
const STEPS_PER_ROW: u64 = 32;
/// The maximum length of a name that is shown and linked, in bytes. No URL can have a longer one.
const NAME_BYTES_MAX: usize = 4 * 1024;

/// The characters that are encoded in a link: those of path segments, `:`, which would begin a scheme, and `'`.
const SEGMENT: &AsciiSet = &PATH_SEGMENT.add(b':').add(b'\'');

/// The characters that are encoded in a query value.
const VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The entity tag of a directory's HTML pages. All pages share it; their URLs differ.
pub fn etag(directory: &Cid) -> HeaderValue {
    header(&format!("\"DirIndex-{VERSION}_CID-{directory}\""))
}

/// The listing of a directory. Waits only for the first entries, so that an unreadable directory gets an error status.
///
/// # Errors
/// [`Problem`] when the first entries cannot be read, or the page does not exist.
pub async fn listing(cx: &Context<'_>, directory: Block, roots: &HeaderValue) -> Result<Draft, Problem> {
    let cid = *directory.cid();
    let key = key(cx.ask, cx.place, cx.target, cx.generation);
    let etag = if key.json { header(&format!("\"DirIndex-{VERSION}_CID-{cid}.json\"")) } else { etag(&cid) };
    if let Some(head) = plan::not_modified(&cx.about(roots), &etag, true) {
        return Ok(head.map(|()| Content::Empty));
    }
    let view = Arc::new(View::of(&key, cid));
    let (after, entries_max) = (key.after.clone(), cx.resources.limits.listing_entries_max);
    // A page is generated for requests of several connections.
    let memory = cx.resources.limits.memory_of(cx.source.client()).budget();
    let workers = cx.resources.workers.clone();
    let writer = Arc::new(move |source| {
        let (directory, after, view) = (directory.clone(), after.clone(), Arc::clone(&view));
        let limits = (entries_max, Some(Arc::clone(&memory)));
        let selects = view.selection().sort.is_some() || view.selection().search.is_some();
        let page = stream::once(write(workers.clone(), source, directory, after, view, limits)).try_flatten().boxed();
        // A search may read many entries before it finds one.
        if selects { workers.stream(page) } else { page }
    });
    let json = key.json;
    let wanted = Wanted { key, etag: etag.clone(), roots: roots.clone(), writer };
    let content = cx.resources.listings.read(wanted, cx.source).await?;
    Ok(page(&cx.about(roots), &etag, json, content))
}

/// The cached listing of a path.
pub fn cached(listings: &Listings, ask: &Ask<'_>, place: &Place, target: &Target, generation: u64) -> Option<Draft> {
    let is_listing = match ask.wanted.format {
        Format::Native => target.trailing_slash,
        Format::Json => true,
        _ => false,
    };
    let key = is_listing.then(|| key(ask, place, target, generation))?;
    let cached_page = listings.get(&key)?;
    let about = About { ask, freshness: target.freshness, roots: &cached_page.roots, tier: Tier::Ram };
    Some(match plan::not_modified(&about, &cached_page.etag, true) {
        Some(head) => head.map(|()| Content::Empty),
        None => page(&about, &cached_page.etag, key.json, Content::Bytes(cached_page.bytes.clone())),
    })
}

fn key(ask: &Ask<'_>, place: &Place, target: &Target, generation: u64) -> Key {
    Key {
        path: target.key(),
        shown: ask.path.to_string(),
        sent: crate::request::route::with_query(ask.sent, None),
        links: place.links.clone(),
        is_root: target.segments.len() == target.site,
        json: ask.wanted.format == Format::Json,
        after: ask.parameter_bytes("after").map(Cow::into_owned),
        selection: Selection::of(ask),
        generation,
    }
}

fn page(about: &About<'_>, etag: &HeaderValue, json: bool, content: Content) -> Draft {
    let media_type = HeaderValue::from_static(if json { "application/json" } else { "text/html; charset=utf-8" });
    let mut head = plan::stream(about, etag, media_type, true);
    if let Some(length) = content.length() {
        head.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    head.map(|()| if about.ask.head_only { Content::Empty } else { content })
}

/// Generates a page in chunks: the opening with the first entries here, the rest on worker threads.
///
/// # Errors
/// [`Problem`] when the first entries cannot be read, or the page does not exist.
async fn write(
    workers: Workers,
    source: Arc<RootSource>,
    directory: Block,
    after: Option<Vec<u8>>,
    view: Arc<View>,
    (entries_max, memory): (usize, Option<Arc<Budget>>),
) -> Result<Chunks, Problem> {
    let work = source.work();
    let entries = match after {
        None => dir::list_with_budget(Arc::clone(&source) as _, directory, memory),
        Some(after) => {
            let listed = dir::list_after(Arc::clone(&source) as _, directory, &after, memory);
            listed.await?.ok_or(Problem::NoSuchEntry)?
        }
    };
    let selected = view.selection().apply(entries, entries_max, &work).await?;
    let (entries, too_long_to_sort) = (selected.entries, selected.too_long_to_sort);
    let policy = Arc::clone(source.policy_handle());
    let (left, over, last) = (entries_max, false, None);
    let mut pages = Pages { entries, policy, work, view, too_long_to_sort, entries_max, left, over, last };
    let opening = pages.view.opening() + &pages.next_chunk().await?.unwrap_or_default();
    let opening = stream::once(ready(Ok(Bytes::from(opening))));
    if pages.over {
        return Ok(opening.boxed());
    }
    let rest = stream::try_unfold(pages, |mut pages| async move {
        let chunk = pages.next_chunk().await?;
        Ok(chunk.map(|chunk| (Bytes::from(chunk), pages)))
    });
    Ok(opening.chain(workers.stream(rest.boxed())).boxed())
}

/// A page that is being generated.
struct Pages {
    entries: Entries,
    policy: Arc<dyn Policy>,
    work: Work,
    view: Arc<View>,
    /// Whether sorting was requested, but the directory is too large.
    too_long_to_sort: bool,
    /// The maximum number of entries on the page, and the remaining number.
    entries_max: usize,
    left: usize,
    over: bool,
    /// The last entry of a full page.
    last: Option<DirEntry>,
}

impl Pages {
    /// Generates the next chunk: waits for one entry, and adds those that are available without waiting, up to a size.
    /// If the page is full, its end replaces the next entry. `None` after the end.
    async fn next_chunk(&mut self) -> Result<Option<String>, Problem> {
        let mut chunk = String::new();
        while !self.over && chunk.len() < CHUNK_BYTES {
            let next = match chunk.is_empty() {
                true => self.entries.next().await,
                false => match self.entries.next().now_or_never() {
                    Some(next) => next,
                    None => break,
                },
            };
            self.write(next.transpose()?, &mut chunk);
        }
        Ok((!chunk.is_empty()).then_some(chunk))
    }

    /// The number of entries so far.
    fn shown(&self) -> usize {
        self.entries_max - self.left
    }

    /// The end of the page; the next page begins after `last`.
    fn end(&self, last: Option<&DirEntry>) -> String {
        self.view.end(last, self.shown(), self.too_long_to_sort)
    }

    fn write(&mut self, entry: Option<DirEntry>, chunk: &mut String) {
        let Some(entry) = entry else {
            chunk.push_str(&self.end(None));
            self.over = true;
            return;
        };
        if self.left == 0 {
            chunk.push_str(&self.end(self.last.as_ref()));
            self.over = true;
            return;
        }
        let before = chunk.len();
        // The data of an identity CID are in the CID itself.
        let withheld = is_identity(&entry.cid) && self.policy.check(&entry.cid) != Verdict::Allow;
        self.view.row(&entry, withheld, self.shown() > 0, chunk);
        self.work.charge(STEPS_PER_ROW);
        self.work.earn(chunk.len() - before);
        self.left -= 1;
        self.last = Some(entry).filter(|_| self.left == 0);
    }
}

/// The format of a listing.
enum View {
    Html(Page),
    Json { cid: Cid, path: String, sent: String, selection: Selection },
}

/// The data of an HTML page.
struct Page {
    cid: Cid,
    /// The path of the URL, percent-encoded, with a trailing slash.
    sent: String,
    /// The content path, percent-encoded.
    path: String,
    links: Links,
    is_root: bool,
    selection: Selection,
}

impl View {
    fn of(key: &Key, cid: Cid) -> Self {
        let (path, sent, selection) = (key.shown.clone(), key.sent.clone(), key.selection.clone());
        if key.json {
            return Self::Json { cid, path, sent, selection };
        }
        Self::Html(Page { cid, sent, path, links: key.links.clone(), is_root: key.is_root, selection })
    }

    fn selection(&self) -> &Selection {
        match self {
            Self::Html(page) => &page.selection,
            Self::Json { selection, .. } => selection,
        }
    }

    fn opening(&self) -> String {
        match self {
            Self::Html(page) => page.opening(),
            Self::Json { cid, path, .. } => {
                format!("{{\"cid\":\"{cid}\",\"path\":{},\"entries\":[", serde_json::Value::from(path.as_str()))
            }
        }
    }

    /// Writes an entry; without its CID if that is `withheld`.
    fn row(&self, entry: &DirEntry, withheld: bool, begun: bool, out: &mut String) {
        match self {
            Self::Html(page) => {
                out.push_str(&page.row(entry, withheld).into_string());
                out.push('\n');
            }
            Self::Json { .. } => {
                out.push_str(if begun { ",\n" } else { "\n" });
                out.push_str(&json_row(entry, withheld).to_string());
            }
        }
    }

    /// The end of a page with so many entries; the next page begins after `last`.
    fn end(&self, last: Option<&DirEntry>, entries: usize, too_long_to_sort: bool) -> String {
        match self {
            Self::Html(page) => page.end(last, entries, too_long_to_sort),
            Self::Json { sent, selection, .. } => match last {
                None => "\n]}\n".to_owned(),
                Some(last) => {
                    let after = percent_encode(last.name_bytes(), NON_ALPHANUMERIC);
                    let next = format!("{sent}?format=json&{}after={after}", selection.query());
                    format!("\n],\"next\":{}}}\n", serde_json::Value::from(next))
                }
            },
        }
    }
}

fn json_row(entry: &DirEntry, withheld: bool) -> serde_json::Value {
    let mut row = serde_json::json!({ "name": shown(&entry.name) });
    if !withheld {
        row["cid"] = entry.cid.to_string().into();
    }
    if let Some(size) = entry.tsize {
        row["size"] = size.into();
    }
    if entry.cid.codec() == codec::RAW {
        row["type"] = "file".into();
    }
    row
}

impl Page {
    fn opening(&self) -> String {
        let name = decoded(self.path.trim_end_matches('/').rsplit('/').next().unwrap_or_default());
        let markup = html! {
            (DOCTYPE)
            html lang="en" {
                (html::head(&format!("Index of {name}"), STYLE))
            }
        };
        let header = html! {
            header {
                h1 { span.hidden { "Index of " } (self.breadcrumbs()) }
                p.cid {
                    @if !self.is_root { "CID " code translate="no" { (self.cid) } " · " }
                    a href="?format=raw" { "raw block" } " · "
                    a href="?format=car" { "CAR" } " · "
                    a href="?format=tar" { "TAR" } " · "
                    a href="?format=json" { "JSON" }
                }
                (self.search())
            }
        };
        // The document stays open: the rows and the end follow.
        let open = markup.into_string();
        let open = open.strip_suffix("</html>").unwrap_or(&open);
        format!("{open}<body>{}<main><ul>{}", header.into_string(), self.parent())
    }

    /// The search form and the sort links, which need no script.
    fn search(&self) -> Markup {
        let Selection { search, sort } = &self.selection;
        html! {
            form role="search" {
                input type="search" name="search" value=[search.as_deref()] placeholder="Search this folder"
                    aria-label="Search this folder" autocomplete="off" spellcheck="false";
                @if let Some(order) = sort { input type="hidden" name="sort" value=(order.name()); }
                button { "Search" }
                span {
                    "Sort by "
                    @for (index, order) in Sort::ALL.into_iter().enumerate() {
                        @if index > 0 { " · " }
                        @let other = Selection { search: search.clone(), sort: Some(order) };
                        @let query = other.query();
                        @let current = (*sort == Some(order)).then_some("true");
                        a href=(format!("?{}", query.trim_end_matches('&'))) aria-current=[current] { (order.name()) }
                    }
                }
            }
        }
    }

    /// The link to the parent directory, except in the root of a site.
    fn parent(&self) -> String {
        if self.is_root {
            return String::new();
        }
        format!("<li class=\"up\"><i></i><a href=\"{}..\">..</a></li>\n", html_attribute(&self.sent))
    }

    /// The breadcrumbs: each step links to its directory, in this origin or in that of its namespace.
    fn breadcrumbs(&self) -> Markup {
        let mut steps = self.path.trim_matches('/').split('/').filter(|step| !step.is_empty());
        let namespace = steps.next().unwrap_or_default();
        let base = match &self.links {
            Links::Path => format!("/{namespace}/"),
            Links::Subdomain(authority) => format!("//{authority}/{namespace}/"),
            Links::DnsLink(authority) => format!("//{authority}/"),
        };
        let is_site = matches!(self.links, Links::DnsLink(_));
        let mut href = base;
        html! {
            "/" (namespace) "/"
            @for (index, step) in steps.enumerate() {
                @if index > 0 { "/" }
                // The root of a DNSLink site is the whole origin.
                @if !(is_site && index == 0) { ({ href.push_str(step); "" }) }
                a href=(href) { (decoded(step)) }
                @if !(is_site && index == 0) { ({ href.push('/'); "" }) }
            }
        }
    }

    fn row(&self, entry: &DirEntry, withheld: bool) -> Markup {
        if entry.name.len() > NAME_BYTES_MAX || !is_segment(&entry.name) {
            return html! {
                li {
                    i class="file" {}
                    span { (shown(&entry.name)) }
                    @if let Some(size) = entry.tsize { small { (human_size(size)) } }
                }
            };
        }
        let encoded = utf8_percent_encode(&entry.name, SEGMENT).to_string();
        let opening_tag = format!("<a href=\"{}{}\">", html_attribute(&self.sent), html_attribute(&encoded));
        html! {
            li {
                i class=(icon(entry)) {}
                (PreEscaped(opening_tag)) (entry.name) (PreEscaped("</a>"))
                @if let Some(size) = entry.tsize { small { (human_size(size)) } }
                @if !withheld { (self.hash_link(entry, &encoded)) }
            }
        }
    }

    /// A link to the entry by its own CID.
    fn hash_link(&self, entry: &DirEntry, encoded: &str) -> Markup {
        let cid = entry.cid.to_string();
        let short = format!("{}…{}", &cid[..cid.len().min(6)], &cid[cid.len().saturating_sub(4)..]);
        let base = match &self.links {
            Links::Path => "/ipfs/".to_owned(),
            Links::Subdomain(authority) => format!("//{authority}/ipfs/"),
            // The origin of a DNSLink site serves only the site, so this links to a page that explains the CID.
            Links::DnsLink(_) => {
                let href = format!("https://cid.ipfs.tech/#{cid}");
                return html! {
                    a class="ipfs-hash" translate="no" href=(href) target="_blank" rel="noreferrer noopener" { (short) }
                };
            }
        };
        // Encoded twice, as in Kubo: the conformance suite requires it.
        let filename = utf8_percent_encode(encoded, VALUE);
        let href = format!("{base}{cid}?filename={filename}");
        html! { a class="ipfs-hash" translate="no" href=(href) { (short) } }
    }

    fn end(&self, last: Option<&DirEntry>, entries: usize, too_long_to_sort: bool) -> String {
        let after = |last: &DirEntry| percent_encode(last.name_bytes(), NON_ALPHANUMERIC).to_string();
        let next = last.map(|last| format!("?{}after={}", self.selection.query(), after(last)));
        let markup = html! {
            p.count { (count(entries, next.is_some(), &self.selection)) @if too_long_to_sort { "; too many to sort" } }
            @if let Some(next) = next { nav.next { a rel="next" href=(next) { "Next page" } } }
        };
        format!("</ul>{}</main></body></html>\n", markup.into_string())
    }
}

/// The number of entries on a page, as text.
fn count(entries: usize, more_follow: bool, selection: &Selection) -> String {
    let what = match (entries, more_follow) {
        (0, _) if selection.search.is_none() => return "This folder is empty.".to_owned(),
        (0, _) => "no entry".to_owned(),
        (1, false) => "1 entry".to_owned(),
        (entries, false) => format!("{entries} entries"),
        (entries, true) => format!("{entries} entries on this page, and more on the next"),
    };
    match &selection.search {
        Some(text) => format!("{what} with “{}” in the name", html::plain(text)),
        None => what,
    }
}

/// Whether a name can be a segment of a URL: not if it contains a slash, encoded or not, or consists of dots.
fn is_segment(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains('/')
}

/// A name, shortened if it is too long for a URL.
fn shown(name: &str) -> Cow<'_, str> {
    if name.len() <= NAME_BYTES_MAX {
        return Cow::Borrowed(name);
    }
    Cow::Owned(format!("{}…", &name[..name.floor_char_boundary(NAME_BYTES_MAX)]))
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Percent-encoded text as the value of an attribute.
fn html_attribute(text: &str) -> String {
    text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;")
}

/// The CSS class of an entry's icon, by its codec and the extension of its name, without fetching it. The page draws
/// the icons itself, since not every system has a font with pictures.
fn icon(entry: &DirEntry) -> &'static str {
    let kind = mime_guess::from_path(&entry.name).first_raw().and_then(|kind| kind.split('/').next());
    match kind {
        Some("image" | "video" | "audio") => "media",
        Some("text") => "text",
        Some(_) => "file",
        None if entry.cid.codec() == codec::DAG_PB && !entry.name.contains('.') => "folder",
        None => "file",
    }
}

fn human_size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let exponent = (bytes.ilog2() / 10) as usize;
    let scaled = bytes as f64 / 1024_f64.powi(exponent as i32);
    format!("{scaled:.1} {}", UNITS[exponent - 1])
}

const STYLE: &str = ":root{color-scheme:light dark;--line:#0002;--soft:#000a;--link:#0b6e75}\
    @media(prefers-color-scheme:dark){:root{--line:#fff2;--soft:#fffa;--link:#5cc6c4}}\
    *{box-sizing:border-box}body{margin:0;font:1rem/1.5 system-ui,sans-serif}\
    header,main{max-width:60rem;margin:0 auto;padding:1rem}\
    h1{margin:0;font-size:1.15rem;font-weight:600;line-height:1.4;overflow-wrap:anywhere}\
    form{display:flex;flex-wrap:wrap;gap:.5rem;align-items:center;margin:.75rem 0 0;font-size:.9rem}\
    form span{color:var(--soft)}form input[type=search]{flex:1 1 12rem;min-width:0}\
    form input,form button{font:inherit;padding:.35rem .6rem;min-height:2rem}\
    form a{display:inline-block;padding:.35rem 0}[aria-current]{font-weight:600;text-decoration:none}\
    h1 a{unicode-bidi:isolate}.count{margin:1rem .25rem;color:var(--soft);font-size:.85rem}\
    .hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}\
    .cid{margin:.25rem 0 0;color:var(--soft);font-size:.85rem;overflow-wrap:anywhere}\
    a{color:var(--link)}ul{list-style:none;margin:0;padding:0;border-top:1px solid var(--line)}\
    li{display:flex;gap:.25rem .75rem;align-items:center;border-bottom:1px solid var(--line)}\
    li:hover{background:var(--line)}li>a{padding:.55rem .25rem;text-decoration:none}\
    li>span,li>a:first-of-type{flex:1;min-width:0;overflow-wrap:anywhere}\
    li .ipfs-hash{flex:none;width:8.5em;text-align:right;color:var(--soft);font:.8rem ui-monospace,monospace}\
    li small,li .ipfs-hash{align-self:flex-start}li .ipfs-hash{padding-top:.8rem}\
    li small{flex:none;padding:.7rem 0;color:var(--soft);white-space:nowrap}\
    .next a{display:inline-block;padding:1rem .25rem}\
    @media(max-width:34rem){li .ipfs-hash{display:none}}\
    li i{flex:none;align-self:flex-start;width:18px;height:18px;margin:.8rem 0 0 .25rem;background:var(--link);\
    -webkit-mask:var(--icon) center/contain no-repeat;mask:var(--icon) center/contain no-repeat}\
    .up i{--icon:url(\"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E\
%3Cpath d='M8 2l5 6h-3v6H6V8H3z'/%3E%3C/svg%3E\")}\
    .folder{--icon:url(\"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E\
%3Cpath d='M1 3h5l2 2h7v9H1z'/%3E%3C/svg%3E\")}\
    .file{--icon:url(\"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E\
%3Cpath d='M3 1h6v4h4v10H3zM10 1l3 3h-3z'/%3E%3C/svg%3E\")}\
    .text{--icon:url(\"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E\
%3Cpath fill-rule='evenodd' d='M3 1h10v14H3zM5 4v1h6V4zM5 7v1h6V7zM5 10v1h4v-1z'/%3E%3C/svg%3E\")}\
    .media{--icon:url(\"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E\
%3Cpath fill-rule='evenodd' d='M1 2h14v12H1zM3 12h10l-3-5-2 3-2-2z'/%3E%3C/svg%3E\")}";

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, cid: &str, tsize: Option<u64>) -> DirEntry {
        DirEntry { name: name.to_owned(), not_text: None, cid: content::cid::parse(cid).expect("a CID"), tsize }
    }

    const RAW: &str = "bafkqac3imvwgy3zao5xxe3de";
    const PB: &str = "bafybeig6ka5mlwkl4subqhaiatalkcleo4jgnr3hqwvpmsqfca27cijp3i";

    fn page(path: &str, sent: &str, links: Links) -> Page {
        let cid = content::cid::parse(PB).expect("a CID");
        Page {
            cid,
            sent: sent.to_owned(),
            path: path.to_owned(),
            links,
            is_root: false,
            selection: Selection::default(),
        }
    }

    #[test]
    fn rows_escape_names_for_html_and_for_links() {
        let page = page("/ipfs/x/", "/ipfs/x/", Links::Path);
        let html = page.row(&entry("a b<i>%2F?#\"é&c", RAW, Some(2048)), false).into_string();
        assert!(html.contains("href=\"/ipfs/x/a%20b%3Ci%3E%252F%3F%23%22%C3%A9&amp;c\""), "{html}");
        assert!(html.contains("a b&lt;i&gt;%2F?#&quot;é&amp;c") && html.contains("2.0 KiB"), "{html}");
        assert!(page.row(&entry("javascript:alert(1)", RAW, None), false).into_string().contains("/x/javascript%3A"));
    }

    #[test]
    fn names_that_no_url_can_have_are_shown_without_a_link() {
        let page = page("/ipfs/x/", "/ipfs/x/", Links::Path);
        for name in ["a/b", "..", "."] {
            let html = page.row(&entry(name, PB, None), false).into_string();
            assert!(html.contains(&format!("<span>{name}</span>")) && !html.contains("href"), "{html}");
        }
    }

    #[test]
    fn a_withheld_identity_cid_is_not_shown() {
        let page = page("/ipfs/x/", "/ipfs/x/", Links::Path);
        let (inlined, json) =
            (entry("a", RAW, None), |withheld| json_row(&entry("a", RAW, None), withheld).to_string());
        assert!(page.row(&inlined, false).into_string().contains(RAW) && json(false).contains(RAW));
        assert!(!page.row(&inlined, true).into_string().contains(RAW) && !json(true).contains(RAW));
    }

    #[test]
    fn icons_depend_on_codec_and_extension() {
        let table =
            [("pic.png", RAW, "media"), ("notes.md", PB, "text"), ("folder", PB, "folder"), ("LICENSE", RAW, "file")];
        for (name, cid, expected) in table {
            assert_eq!(icon(&entry(name, cid, None)), expected, "{name}");
        }
        let sizes = [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_572_864, "1.5 MiB"), (u64::MAX, "16.0 EiB")];
        for (bytes, expected) in sizes {
            assert_eq!(human_size(bytes), expected);
        }
    }

    #[test]
    fn pages_show_their_number_of_entries() {
        let all = Selection::default();
        let search = Selection { search: Some("a\u{202e}b".to_owned()), sort: None };
        let table = [
            (0, false, &all, "This folder is empty."),
            (1, false, &all, "1 entry"),
            (2, false, &all, "2 entries"),
            (2000, true, &all, "2000 entries on this page, and more on the next"),
            (0, false, &search, "no entry with “a\u{fffd}b” in the name"),
            (1, false, &search, "1 entry with “a\u{fffd}b” in the name"),
        ];
        for (entries, more, selection, expected) in table {
            assert_eq!(count(entries, more, selection), expected);
        }
    }

    #[test]
    fn breadcrumbs_link_to_each_directory_from_every_origin() {
        let table = [
            (
                page("/ipfs/bafy/a%20b/c/", "/ipfs/bafy/a%20b/c/", Links::Path),
                "/ipfs/<a href=\"/ipfs/bafy\">bafy</a>/<a href=\"/ipfs/bafy/a%20b\">a b</a>/<a href=\"/ipfs/bafy/a%20b/c\">c</a>",
            ),
            (
                page("/ipfs/bafy/a/", "/a/", Links::Subdomain("gw.example:81".to_owned())),
                "/ipfs/<a href=\"//gw.example:81/ipfs/bafy\">bafy</a>/<a href=\"//gw.example:81/ipfs/bafy/a\">a</a>",
            ),
            (
                page("/ipns/a.example/b/", "/b/", Links::DnsLink("a.example".to_owned())),
                "/ipns/<a href=\"//a.example/\">a.example</a>/<a href=\"//a.example/b\">b</a>",
            ),
        ];
        for (page, expected) in table {
            assert_eq!(page.breadcrumbs().into_string(), expected);
        }
    }

    #[test]
    fn json_rows_have_the_known_fields() {
        assert_eq!(
            json_row(&entry("a\"b", RAW, Some(3)), false).to_string(),
            format!("{{\"cid\":\"{RAW}\",\"name\":\"a\\\"b\",\"size\":3,\"type\":\"file\"}}")
        );
        assert_eq!(json_row(&entry("d", PB, None), false).to_string(), format!("{{\"cid\":\"{PB}\",\"name\":\"d\"}}"));
    }
}
