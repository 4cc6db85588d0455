//! [`PageUrl`]: which URLs of a page lead to content of its own site, and to which path of it
//! (<https://url.spec.whatwg.org/>).
//!
//! Non-goals: URLs of other origins, and other content of the same origin. They are not prefetched.

use crate::request::Ask;
use crate::request::client::Client;
use crate::request::route::{Links, Place};
use content::ContentPath;
use content::path::{Namespace, Root};
use services::url::parameter;
use std::borrow::Cow;

/// The maximum length of the path of a base, in bytes.
const BASE_BYTES_MAX: usize = 2048;

/// The URL of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageUrl {
    scheme: &'static str,
    /// In lower case, without the scheme's own port.
    authority: String,
    /// The path, as sent.
    path: String,
    /// What precedes a path of this origin in the path of its content: nothing, if content is served by path.
    prefix: String,
    /// Whether paths below `/ipfs/` and `/ipns/` lead to other content, although the origin has a site of its own.
    serves_paths: bool,
    /// The root of the page.
    root: Root,
    depth_max: usize,
    url_bytes_max: usize,
}

/// The base of a page's relative URLs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// A path of the page's origin.
    Path(String),
    /// Another origin, to which relative URLs lead, or a path that is too long.
    Elsewhere,
}

impl Base {
    /// A path of the page's origin. Each relative URL costs work for all of it, so longer ones do not count.
    fn of_path(path: String) -> Self {
        match path.len() <= BASE_BYTES_MAX {
            true => Self::Path(path),
            false => Self::Elsewhere,
        }
    }

    /// The length of its path, in bytes.
    pub fn path_bytes(&self) -> usize {
        match self {
            Self::Path(path) => path.len(),
            Self::Elsewhere => 0,
        }
    }
}

/// A reference to a page's own origin, or a path relative to a base.
struct Reference<'a> {
    path: &'a str,
    /// Whether the origin is part of the reference.
    names_origin: bool,
}

impl PageUrl {
    /// The URL of a request. `None` if its content has no path.
    pub fn of(ask: &Ask<'_>, place: &Place, client: &Client, depth_max: usize, url_bytes_max: usize) -> Option<Self> {
        let root = ContentPath::parse(&ask.path, depth_max).ok()?.root;
        Some(Self {
            scheme: client.scheme(),
            authority: normalized(&client.authority, client.scheme()),
            path: ask.sent.to_owned(),
            prefix: ask.path.strip_suffix(ask.sent)?.to_owned(),
            serves_paths: matches!(place.links, Links::DnsLink(_)) && !place.isolated,
            root,
            depth_max,
            url_bytes_max,
        })
    }

    /// The root of the page, and of all paths that count.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// The base of a page without `<base>`.
    pub fn base(&self) -> Base {
        Base::of_path(self.path.clone())
    }

    /// The base that `<base href>` sets.
    pub fn base_of(&self, href: &str) -> Base {
        let href = cleaned(href);
        let href = href.split(['?', '#']).next().unwrap_or_default();
        match self.reference(href) {
            Some(reference) => self.joined(&self.base(), &reference).map_or(Base::Elsewhere, Base::of_path),
            None => Base::Elsewhere,
        }
    }

    /// The path of the content that a URL of the page leads to, if that is below the page's root.
    pub fn content(&self, base: &Base, url: &str) -> Option<ContentPath> {
        let url = cleaned(url);
        let url = url.split('#').next().unwrap_or_default();
        let (url, query) = url.split_once('?').unwrap_or((url, ""));
        // Other representations than that of a browser.
        if url.is_empty() || parameter(query, "format").is_some() {
            return None;
        }
        let path = self.joined(base, &self.reference(url)?)?;
        if path.len() + query.len() > self.url_bytes_max {
            return None;
        }
        if self.serves_paths && Namespace::split(&path).is_some() {
            return None;
        }
        let content = ContentPath::parse(&format!("{}{path}", self.prefix), self.depth_max).ok()?;
        (content.root == self.root).then_some(content)
    }

    /// Whether a reference is to this origin, and which path it has.
    fn reference<'a>(&self, url: &'a str) -> Option<Reference<'a>> {
        let rest = match scheme(url) {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case(self.scheme) => {
                // Without slashes it is a relative reference for historical reasons, which no page needs.
                rest.starts_with(is_slash).then_some(rest)?
            }
            Some(_) => return None,
            None => url,
        };
        let has_scheme = rest.len() < url.len();
        let Some(rest) = rest.strip_prefix(is_slash).and_then(|rest| rest.strip_prefix(is_slash)) else {
            return (!has_scheme).then_some(Reference { path: url, names_origin: false });
        };
        let (authority, path) = rest.split_at(rest.find(is_slash).unwrap_or(rest.len()));
        let is_own = !authority.contains('@') && normalized(authority, self.scheme) == self.authority;
        is_own.then_some(Reference { path: if path.is_empty() { "/" } else { path }, names_origin: true })
    }

    /// The path that a reference leads to, without dot segments.
    fn joined(&self, base: &Base, reference: &Reference<'_>) -> Option<String> {
        let Reference { path, names_origin } = reference;
        let folder = match base {
            _ if *names_origin => "",
            Base::Elsewhere => return None,
            Base::Path(_) if path.starts_with(is_slash) => "",
            Base::Path(base) => &base[..base.rfind('/').map_or(0, |slash| slash + 1)],
        };
        Some(without_dots(&format!("{folder}{path}")))
    }
}

fn is_slash(c: char) -> bool {
    matches!(c, '/' | '\\')
}

/// A URL without what its parser ignores: spaces and control characters around it, tabs and line breaks anywhere.
fn cleaned(url: &str) -> Cow<'_, str> {
    let url = url.trim_matches(|c: char| c <= ' ');
    match url.contains(['\t', '\n', '\r']) {
        true => Cow::Owned(url.replace(['\t', '\n', '\r'], "")),
        false => Cow::Borrowed(url),
    }
}

/// The scheme of a URL, and what follows its colon.
fn scheme(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once(':')?;
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
    is_scheme.then_some((scheme, rest))
}

fn normalized(authority: &str, scheme: &str) -> String {
    let port = if scheme == "https" { ":443" } else { ":80" };
    authority.strip_suffix(port).unwrap_or(authority).to_ascii_lowercase()
}

/// The number of dots in a dot segment, each of which may be encoded; zero for all other segments.
fn dots(segment: &str) -> usize {
    let is = |form: &&str| segment.eq_ignore_ascii_case(form);
    match segment.len() {
        1 | 3 if [".", "%2e"].iter().any(is) => 1,
        2 | 4 | 6 if ["..", ".%2e", "%2e.", "%2e%2e"].iter().any(is) => 2,
        _ => 0,
    }
}

/// Removes dot segments. At the root of the origin there is nothing above.
fn without_dots(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    let mut ends_in_folder = false;
    let path = path.strip_prefix(is_slash).unwrap_or(path);
    for segment in path.split(is_slash) {
        let dots = dots(segment);
        ends_in_folder = dots > 0;
        match dots {
            0 => segments.push(segment),
            1 => {}
            _ => _ = segments.pop(),
        }
    }
    let slash = if ends_in_folder && !segments.is_empty() { "/" } else { "" };
    format!("/{}{slash}", segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CID: &str = "bafybeihrw75yfhdx5qsqgesdnxejtjybscwuclpusvxkuttep6h7pkgmze";
    const OTHER: &str = "bafkreifzjut3te7nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e";

    fn page(authority: &str, prefix: &str, path: &str, serves_paths: bool) -> PageUrl {
        let root = ContentPath::parse(&format!("{prefix}{path}"), 100).expect("a path").root;
        PageUrl {
            scheme: "https",
            authority: authority.to_owned(),
            path: path.to_owned(),
            prefix: prefix.to_owned(),
            serves_paths,
            root,
            depth_max: 100,
            url_bytes_max: 8192,
        }
    }

    fn below(page: &PageUrl, base: &Base, url: &str) -> Option<String> {
        let content = page.content(base, url)?;
        Some(content.segments.join("/") + if content.trailing_slash { "/" } else { "" })
    }

    #[test]
    fn urls_of_the_same_root_are_found_by_path() {
        let page = page("gateway.example", "", &format!("/ipfs/{CID}/blog/index.html"), false);
        let absolute = format!("/ipfs/{CID}/a.css");
        let with_host = format!("https://Gateway.example:443/ipfs/{CID}/a.css");
        let other_host = format!("https://other.example/ipfs/{CID}/a.css");
        let other_scheme = format!("http://gateway.example/ipfs/{CID}/a.css");
        let other_root = format!("/ipfs/{OTHER}/a.css");
        let above = format!("../../../ipfs/{CID}/x");
        let user = format!("https://a@gateway.example/ipfs/{CID}/a.css");
        let scheme_relative = format!("//gateway.example/ipfs/{CID}/a.css");
        let table = [
            ("a.css", Some("blog/a.css")),
            ("./a.css", Some("blog/a.css")),
            ("../a.css", Some("a.css")),
            ("..\\a.css", Some("a.css")),
            ("%2e%2E/a.css", Some("a.css")),
            ("../../a.css", None),
            ("..", Some("/")),
            ("b/c/../d.png?v=1#x", Some("blog/b/d.png")),
            ("b/", Some("blog/b/")),
            ("b/.", Some("blog/b/")),
            (&absolute, Some("a.css")),
            (&with_host, Some("a.css")),
            (&scheme_relative, Some("a.css")),
            (&above, Some("x")),
            (&other_host, None),
            (&other_scheme, None),
            (&other_root, None),
            (&user, None),
            ("/a.css", None),
            ("//other.example/a.css", None),
            ("https:a.css", None),
            ("https:/a.css", None),
            ("data:image/png;base64,AAAA", None),
            ("javascript:void(0)", None),
            ("", None),
            ("#top", None),
            ("?q", None),
            ("a.css?format=raw", None),
            ("a%20b.css", Some("blog/a b.css")),
            ("a b.css", Some("blog/a b.css")),
            ("ä.css", Some("blog/ä.css")),
            ("a%.css", None),
            ("%2e%2e%2f%2e%2e%2fa.css", None),
            (" \n a\n.css \t", Some("blog/a.css")),
            ("a:b.css", None),
            ("./a:b.css", Some("blog/a:b.css")),
        ];
        for (url, expected) in table {
            assert_eq!(below(&page, &page.base(), url).as_deref(), expected, "{url}");
        }
    }

    #[test]
    fn an_origin_of_its_own_has_all_paths() {
        let host = format!("{CID}.ipfs.gateway.example");
        let page = page(&host, &format!("/ipfs/{CID}"), "/blog/", false);
        let inside = format!("/ipfs/{OTHER}/a.css");
        let by_host = format!("https://{host}/a.css");
        let table = [
            ("a.css", Some("blog/a.css".to_owned())),
            ("/a.css", Some("a.css".to_owned())),
            ("../../../a.css", Some("a.css".to_owned())),
            ("/", Some("/".to_owned())),
            (&by_host, Some("a.css".to_owned())),
            // A folder of this name.
            (&inside, Some(inside[1..].to_owned())),
            ("//gateway.example/a.css", None),
        ];
        for (url, expected) in table {
            assert_eq!(below(&page, &page.base(), url), expected, "{url}");
        }
    }

    #[test]
    fn a_site_beside_other_content_has_its_own_paths_only() {
        let page = page("gateway.example", "/ipns/gateway.example", "/", true);
        assert_eq!(below(&page, &page.base(), "a.css").as_deref(), Some("a.css"));
        assert_eq!(below(&page, &page.base(), &format!("/ipfs/{CID}/a.css")), None);
        assert_eq!(below(&page, &page.base(), "/ipns/gateway.example/a.css"), None);
    }

    #[test]
    fn a_base_applies_to_relative_urls() {
        let page = page("gateway.example", "", &format!("/ipfs/{CID}/index.html"), false);
        let absolute = format!("/ipfs/{CID}/a.css");
        let with_host = format!("https://gateway.example/ipfs/{CID}/a.css");
        let table = [
            ("assets/", "a.css", Some("assets/a.css")),
            ("assets/x", "a.css", Some("assets/a.css")),
            ("assets/?q/#f/", "a.css", Some("assets/a.css")),
            ("/", "a.css", None),
            ("https://other.example/", "a.css", None),
            ("https://other.example/", &absolute, None),
            ("https://other.example/", &with_host, Some("a.css")),
            ("data:,", "a.css", None),
            ("assets/", &absolute, Some("a.css")),
        ];
        for (base, url, expected) in table {
            assert_eq!(below(&page, &page.base_of(base), url).as_deref(), expected, "{base} {url}");
        }
    }

    #[test]
    fn a_long_url_is_ignored_as_the_gateway_would_reject_it() {
        let page = PageUrl { url_bytes_max: 100, ..page("gateway.example", "", &format!("/ipfs/{CID}/"), false) };
        assert!(page.content(&page.base(), &"a".repeat(20)).is_some());
        assert!(page.content(&page.base(), &"a".repeat(100)).is_none());
        assert!(page.content(&page.base(), &format!("a?{}", "a".repeat(100))).is_none());
    }

    #[test]
    fn dot_segments_are_known_in_each_form() {
        let table = [
            (".", 1),
            ("%2e", 1),
            ("%2E", 1),
            ("..", 2),
            (".%2e", 2),
            ("%2E.", 2),
            ("%2e%2E", 2),
            ("", 0),
            ("a", 0),
            ("...", 0),
            ("%2f", 0),
            ("%2e%2e%2e", 0),
            (".%2e.", 0),
        ];
        for (segment, expected) in table {
            assert_eq!(dots(segment), expected, "{segment}");
        }
    }

    #[test]
    fn relative_urls_do_not_count_below_a_long_base() {
        let long = |path: &str, bytes: usize| format!("{path}{}", "/".repeat(bytes - path.len()));
        let with_host = format!("https://gateway.example/ipfs/{CID}/a.css");
        for (bytes, expected) in [(BASE_BYTES_MAX, Some("b/a.css")), (BASE_BYTES_MAX + 1, None)] {
            let page = page("gateway.example", "", &long(&format!("/ipfs/{CID}/b"), bytes), false);
            assert_eq!(below(&page, &page.base(), "a.css").as_deref(), expected, "{bytes}");
            assert_eq!(below(&page, &page.base(), &with_host).as_deref(), Some("a.css"), "{bytes}");
            assert!(page.base().path_bytes() <= BASE_BYTES_MAX);
            let page = self::page("gateway.example", "", &format!("/ipfs/{CID}/"), false);
            let base = page.base_of(&long(&format!("/ipfs/{CID}/b"), bytes));
            assert_eq!(below(&page, &base, "a.css").as_deref(), expected, "{bytes}");
        }
    }

    proptest! {
        #[test]
        fn no_url_leaves_the_root(url in "[a./\\\\%2eE?#:@ \t-]{0,40}", base in "[a./\\\\%2e:]{0,20}") {
            let page = page("gateway.example", "", &format!("/ipfs/{CID}/a/b"), false);
            for base in [page.base(), page.base_of(&base)] {
                if let Some(content) = page.content(&base, &url) {
                    prop_assert_eq!(&content.root, &page.root);
                    prop_assert!(content.segments.iter().all(|name| !matches!(&**name, "" | "." | "..")));
                }
            }
        }

        #[test]
        fn any_url_is_read(url in any::<String>(), base in any::<String>()) {
            let page = page("gateway.example", "", &format!("/ipfs/{CID}/a/b"), false);
            _ = page.content(&page.base_of(&base), &url);
        }
    }
}
