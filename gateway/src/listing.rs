//! The HTML page of a directory that has no `index.html`.
//!
//! Goals: the first byte does not wait for the last entry, and memory does not depend on their number: the page is made
//! in chunks as the client reads it; it reads well on a phone and on a desktop, in the light and in the dark, without
//! asking for anything else.
//!
//! Non-goals: sorting and paging, which would need the whole directory. Entries come in stored order.

use crate::body::Content;
use crate::errors::Problem;
use crate::plan;
use crate::resolve::{Trail, header};
use crate::respond::Draft;
use crate::source::RootSource;
use bytes::Bytes;
use content::unixfs::dir::{self, DirError, Entry};
use content::{Block, Cid, codec};
use futures::stream::{self, StreamExt as _};
use http::HeaderValue;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use std::sync::Arc;

/// Part of the entity tag: to be raised whenever the page looks different.
const VERSION: u32 = 1;
/// Entries rendered at a time.
const CHUNK_ENTRIES: usize = 128;

/// What a path segment need not encode (RFC 3986, section 3.3), `:` apart.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'!')
    .remove(b'$')
    .remove(b'&')
    .remove(b'(')
    .remove(b')')
    .remove(b'*')
    .remove(b'+')
    .remove(b',')
    .remove(b';')
    .remove(b'=')
    .remove(b'@');

/// The entity tag of a directory's page.
pub fn etag(directory: &Cid) -> HeaderValue {
    header(&format!("\"DirIndex-{VERSION}_CID-{directory}\""))
}

/// The page of a directory. Waits for the first entries only, so that a directory that cannot be read at all is answered
/// with an error.
///
/// # Errors
/// [`Problem::Dir`] when the first entries do not come.
pub async fn page(source: Arc<RootSource>, directory: Block, path: &str, trail: &Trail) -> Result<Draft, Problem> {
    let cid = *directory.cid();
    let head = plan::listing(&etag(&cid), trail);
    let mut entries = dir::list(source, directory).ready_chunks(CHUNK_ENTRIES);
    let first = rows(entries.next().await.unwrap_or_default())?;
    let opening = Bytes::from(opening(path, &cid) + &first);
    let middle = entries.map(|chunk| rows(chunk).map(Bytes::from));
    let end = stream::once(async { Ok(Bytes::from_static(END.as_bytes())) });
    let body = stream::once(async { Ok(opening) }).chain(middle).chain(end);
    // After an error nothing may follow, least of all an end that makes the page look whole.
    let until_error = body.scan(false, |failed, chunk| {
        let next = (!*failed).then_some(chunk);
        *failed |= matches!(next, Some(Err(_)));
        async move { next }
    });
    Ok(head.map(|()| Content::Page(until_error.boxed())))
}

/// The head of the same page, for which no entry is needed.
pub fn head_only(directory: &Cid, trail: &Trail) -> Draft {
    plan::listing(&etag(directory), trail).map(|()| Content::Empty)
}

fn opening(path: &str, cid: &Cid) -> String {
    let crumbs = crumbs(path);
    let name = crumbs.last().map_or_else(|| cid.to_string(), |(name, _)| name.clone());
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (name) }
                style { (PreEscaped(STYLE)) }
            }
        }
    };
    let header = html! {
        header {
            nav aria-label="Path" {
                span { "ipfs" }
                @for (name, href) in &crumbs { span.sep { "/" } a href=(href) { (name) } }
            }
            p.cid { "CID " code { (cid) } " · " a href="?format=raw" { "raw block" } }
        }
    };
    // The document is left open: the rows and the end follow.
    let open = markup.into_string();
    let open = open.strip_suffix("</html>").unwrap_or(&open);
    let parent = if crumbs.len() > 1 { PARENT } else { "" };
    format!("{open}<body>{}<main><ul>{parent}", header.into_string())
}

const PARENT: &str = "<li class=\"up\"><a href=\"../\"><i>↑</i><span>parent folder</span></a></li>\n";
const END: &str = "</ul></main></body></html>\n";

/// The name and address of the root and of each folder on the way.
fn crumbs(path: &str) -> Vec<(String, String)> {
    let mut href = String::from("/ipfs/");
    let segments = path.trim_start_matches("/ipfs/").split('/').filter(|segment| !segment.is_empty());
    let crumb = segments.map(|segment| {
        href.push_str(segment);
        href.push('/');
        (percent_decode_str(segment).decode_utf8_lossy().into_owned(), href.clone())
    });
    crumb.collect()
}

fn rows(chunk: Vec<Result<Entry, DirError>>) -> Result<String, Problem> {
    let mut rows = String::with_capacity(chunk.len() * 160);
    for entry in chunk {
        rows.push_str(&row(&entry?).into_string());
        rows.push('\n');
    }
    Ok(rows)
}

fn row(entry: &Entry) -> Markup {
    html! {
        li {
            a href=(format!("./{}", utf8_percent_encode(&entry.name, SEGMENT))) {
                i class=(icon(entry)) {}
                span { (entry.name) }
                @if let Some(size) = entry.tsize { small { (human_size(size)) } }
            }
        }
    }
}

/// The class that draws an entry's icon, by what can be told without fetching the entry: its codec and its name. Icons are
/// drawn by the page itself, since not every system has a font with pictures.
fn icon(entry: &Entry) -> &'static str {
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

const STYLE: &str = ":root{color-scheme:light dark;--line:#0002;--soft:#0009;--link:#0b6e75}\
    @media(prefers-color-scheme:dark){:root{--line:#fff2;--soft:#fff9;--link:#5cc6c4}}\
    *{box-sizing:border-box}body{margin:0;font:1rem/1.5 system-ui,sans-serif}\
    header,main{max-width:54rem;margin:0 auto;padding:1rem}\
    nav{font-size:1.15rem;font-weight:600;overflow-wrap:anywhere}.sep{margin:0 .3em;opacity:.5}\
    .cid{margin:.25rem 0 0;color:var(--soft);font-size:.85rem;overflow-wrap:anywhere}\
    a{color:var(--link)}ul{list-style:none;margin:0;padding:0;border-top:1px solid var(--line)}\
    li{border-bottom:1px solid var(--line)}\
    li a{display:flex;gap:.75rem;align-items:baseline;padding:.55rem .25rem;text-decoration:none}\
    li a:hover{background:var(--line)}li i{flex:none;align-self:center;width:1.1em;height:1.1em;background:currentColor;\
    -webkit-mask:var(--icon) center/contain no-repeat;mask:var(--icon) center/contain no-repeat}\
    .folder{--icon:url(\"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E\
%3Cpath d='M1 3h5l2 2h7v9H1z'/%3E%3C/svg%3E\")}\
    .file{--icon:url(\"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E\
%3Cpath d='M3 1h6v4h4v10H3zM10 1l3 3h-3z'/%3E%3C/svg%3E\")}\
    .text{--icon:url(\"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E\
%3Cpath fill-rule='evenodd' d='M3 1h10v14H3zM5 4v1h6V4zM5 7v1h6V7zM5 10v1h4v-1z'/%3E%3C/svg%3E\")}\
    .media{--icon:url(\"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E\
%3Cpath fill-rule='evenodd' d='M1 2h14v12H1zM3 12h10l-3-5-2 3-2-2z'/%3E%3C/svg%3E\")}\
    li span{flex:1;min-width:0;overflow-wrap:anywhere}li small{color:var(--soft);white-space:nowrap}";

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, cid: &str, tsize: Option<u64>) -> Entry {
        Entry { name: name.to_owned(), cid: content::cid::parse(cid).expect("a CID"), tsize }
    }

    const RAW: &str = "bafkqac3imvwgy3zao5xxe3de";
    const PB: &str = "bafybeig6ka5mlwkl4subqhaiatalkcleo4jgnr3hqwvpmsqfca27cijp3i";

    #[test]
    fn rows_escape_names_for_html_and_for_links() {
        let html = row(&entry("a b<i>%2F?#\"é", RAW, Some(2048))).into_string();
        assert!(html.contains("href=\"./a%20b%3Ci%3E%252F%3F%23%22%C3%A9\""), "{html}");
        assert!(html.contains("a b&lt;i&gt;%2F?#&quot;é") && html.contains("2.0 KiB"), "{html}");
        assert!(row(&entry("javascript:alert(1)", RAW, None)).into_string().contains("href=\"./javascript%3A"));
    }

    #[test]
    fn icons_and_sizes_tell_what_can_be_told() {
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
    fn crumbs_lead_back_to_each_folder() {
        let crumbs = crumbs("/ipfs/bafy/a%20b/c/");
        let expected = [("bafy", "/ipfs/bafy/"), ("a b", "/ipfs/bafy/a%20b/"), ("c", "/ipfs/bafy/a%20b/c/")];
        assert_eq!(crumbs, expected.map(|(name, href)| (name.to_owned(), href.to_owned())));
    }
}
