//! [`Scan`]: what a browser loads for an HTML page, found by the tokeniser of the HTML standard.
//!
//! Goals: what is kept of a page is bounded, whatever the page is: of a tag with a million attributes, some 70 KiB.
//! Only the tokeniser itself may keep as much as the page's length more: the name of an end tag in raw text. The caller
//! is returned to after each [`BYTES_PER_STEP`] or so, so that it can yield.
//!
//! Departures: no tree is built, so an element counts wherever it is, except inside of `<template>`, whose content is
//! inert. Of the candidates of a `srcset` the first one counts, because the size of the browser's window is unknown.

use html5gum::{Emitter, Error, State, StringReader, Tokenizer, naive_next_state};
use std::collections::VecDeque;

/// The maximum length of a URL that is found, in bytes.
pub const URL_BYTES_MAX: usize = 2048;
/// The maximum length of the names of elements and attributes that count, in bytes.
const NAME_BYTES_MAX: usize = 16;
/// The number of bytes after which the caller is returned to. Within a single text or value of an attribute, nothing
/// is returned.
pub const BYTES_PER_STEP: usize = 16 * 1024;

/// What a subresource is for, in the order in which browsers need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A stylesheet, a script or a font: the page is not shown, or does not work, without it.
    Render,
    /// An image, an icon or a frame.
    Image,
    /// Audio or video.
    Media,
}

/// A URL of a page, as it is written there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// The base of the URLs after it.
    Base(String),
    /// What the browser loads.
    Load(Kind, String),
}

/// A step of a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A URL.
    Found(Found),
    /// Some bytes without a URL.
    Pause,
}

/// The scan of a page, or of its first bytes. A tag that is cut off does not count.
pub struct Scan<'a> {
    tokenizer: Tokenizer<StringReader<'a>, Finder>,
}

impl<'a> Scan<'a> {
    /// Scans a page from its beginning.
    pub fn new(page: &'a [u8]) -> Self {
        Self { tokenizer: Tokenizer::new_with_emitter(page, Finder::default()) }
    }
}

impl Iterator for Scan<'_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        // Reading from memory does not fail.
        self.tokenizer.next()?.ok()
    }
}

/// The attributes that count.
const ATTRIBUTES: [&[u8]; 13] = [
    b"href",
    b"src",
    b"srcset",
    b"rel",
    b"as",
    b"type",
    b"loading",
    b"poster",
    b"preload",
    b"imagesrcset",
    b"nomodule",
    b"disabled",
    b"data",
];

/// Text that is kept up to a maximum length.
#[derive(Debug, Default)]
struct Text {
    bytes: Vec<u8>,
    /// Whether it is longer than what was kept.
    is_cut: bool,
}

impl Text {
    fn push(&mut self, more: &[u8], max: usize) {
        let room = max.saturating_sub(self.bytes.len());
        self.is_cut |= more.len() > room;
        self.bytes.extend_from_slice(&more[..more.len().min(room)]);
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.is_cut = false;
    }

    /// The bytes, if they are all there.
    fn whole(&self) -> Option<&[u8]> {
        (!self.is_cut).then_some(&*self.bytes)
    }
}

/// The attributes of a tag, by their places in [`ATTRIBUTES`].
#[derive(Debug, Default)]
struct Attributes([Option<Text>; ATTRIBUTES.len()]);

impl Attributes {
    fn place(name: &[u8]) -> Option<usize> {
        ATTRIBUTES.iter().position(|known| *known == name)
    }

    fn text(&self, name: &str) -> Option<&Text> {
        self.0.get(Self::place(name.as_bytes())?)?.as_ref()
    }

    /// The value of an attribute; `None` if it is missing, too long or not UTF-8.
    fn value(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.text(name)?.whole()?).ok()
    }

    fn has(&self, name: &str) -> bool {
        self.text(name).is_some()
    }

    /// A URL.
    fn url(&self, name: &str) -> Option<String> {
        let url = self.value(name)?.trim_matches(|c: char| c.is_ascii_whitespace());
        (!url.is_empty()).then(|| url.to_owned())
    }

    /// The first candidate of a `srcset`, of which the rest may be cut off.
    fn first_candidate(&self, name: &str) -> Option<String> {
        let text = self.text(name)?;
        let is_separator = |byte: &u8| byte.is_ascii_whitespace() || *byte == b',';
        let start = text.bytes.iter().position(|byte| !is_separator(byte))?;
        let rest = &text.bytes[start..];
        let end = rest.iter().position(u8::is_ascii_whitespace);
        let url = match end {
            Some(end) => &rest[..end],
            None => (!text.is_cut).then_some(rest)?,
        };
        // A comma ends a candidate without a descriptor, if a space follows or nothing.
        let url = std::str::from_utf8(url).ok()?.trim_end_matches(',');
        (!url.is_empty()).then(|| url.to_owned())
    }

    fn is(&self, name: &str, expected: &str) -> bool {
        self.value(name).is_some_and(|value| value.trim_ascii().eq_ignore_ascii_case(expected))
    }

    /// What an element with these attributes loads.
    fn found(&self, element: &[u8], mut add: impl FnMut(Found)) {
        let mut load = |kind, url: Option<String>| url.into_iter().for_each(|url| add(Found::Load(kind, url)));
        let image = || self.first_candidate("srcset").or_else(|| self.url("src"));
        match element {
            b"base" => self.url("href").into_iter().for_each(|url| add(Found::Base(url))),
            b"link" => match self.link() {
                Some(Kind::Image) => {
                    load(Kind::Image, self.first_candidate("imagesrcset").or_else(|| self.url("href")))
                }
                Some(kind) => load(kind, self.url("href")),
                None => {}
            },
            b"script" if self.is_run() => load(Kind::Render, self.url("src")),
            b"img" if !self.is("loading", "lazy") => load(Kind::Image, image()),
            b"iframe" if !self.is("loading", "lazy") => load(Kind::Image, self.url("src")),
            b"input" if self.is("type", "image") => load(Kind::Image, self.url("src")),
            b"embed" => load(Kind::Media, self.url("src")),
            b"object" => load(Kind::Media, self.url("data")),
            b"source" if self.has("srcset") => load(Kind::Image, self.first_candidate("srcset")),
            b"source" => load(Kind::Media, self.url("src")),
            b"video" | b"audio" => {
                load(Kind::Image, self.url("poster"));
                if !self.is("preload", "none") {
                    load(Kind::Media, self.url("src"));
                }
            }
            _ => {}
        }
    }

    /// What a `<link>` loads.
    fn link(&self) -> Option<Kind> {
        let rel = self.value("rel")?;
        let is = |name: &str| rel.split_ascii_whitespace().any(|token| token.eq_ignore_ascii_case(name));
        if is("stylesheet") {
            return (!is("alternate") && !self.has("disabled")).then_some(Kind::Render);
        }
        if is("modulepreload") {
            return Some(Kind::Render);
        }
        if is("preload") {
            let is_as = |names: &[&str]| names.iter().any(|name| self.is("as", name));
            let (image, media) = (is_as(&["image"]), is_as(&["audio", "video", "track"]));
            return Some(if image {
                Kind::Image
            } else if media {
                Kind::Media
            } else {
                Kind::Render
            });
        }
        is("icon").then_some(Kind::Image)
    }

    /// Whether a browser with modules runs the script, and so loads it. Other types are data.
    fn is_run(&self) -> bool {
        let is_script = match self.text("type") {
            None => true,
            Some(_) => self.value("type").is_some_and(|text| {
                let text = text.trim_ascii().to_ascii_lowercase();
                matches!(&*text, "" | "module") || text.ends_with("javascript") || text.ends_with("ecmascript")
            }),
        };
        is_script && !self.has("nomodule")
    }
}

/// The current tag.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Tag {
    #[default]
    Start,
    End,
}

/// Finds URLs in what the tokeniser reads. It keeps one tag, of which each name and value is bounded.
#[derive(Debug, Default)]
struct Finder {
    tag: Tag,
    name: Text,
    last_start_tag: Text,
    attributes: Attributes,
    attribute_name: Text,
    /// The place of the attribute whose value is being read.
    attribute: Option<usize>,
    /// The number of `<template>` that are open.
    templates: u32,
    found: VecDeque<Found>,
    /// Bytes since the last step.
    read_bytes: usize,
}

impl Finder {
    fn init_tag(&mut self, tag: Tag) {
        self.tag = tag;
        self.name.clear();
        self.end_attribute();
        self.attributes = Attributes::default();
    }

    /// The attribute's name is complete: its value is kept if it counts and is the first of this name.
    fn begin_value(&mut self) {
        if self.attribute.is_none() {
            let place = self.attribute_name.whole().and_then(Attributes::place);
            self.attribute = place.filter(|place| self.attributes.0[*place].is_none());
            if let Some(place) = self.attribute {
                self.attributes.0[place] = Some(Text::default());
            }
        }
    }

    /// Attributes without a value count as well.
    fn end_attribute(&mut self) {
        if !self.attribute_name.bytes.is_empty() {
            self.begin_value();
        }
        self.attribute = None;
        self.attribute_name.clear();
    }

    fn end_start_tag(&mut self) {
        if self.name.whole() == Some(b"template") {
            self.templates = self.templates.saturating_add(1);
        }
        if self.templates == 0
            && let Some(element) = self.name.whole()
        {
            let found = &mut self.found;
            self.attributes.found(element, |url| found.push_back(url));
        }
    }

    #[cfg(test)]
    fn kept_bytes(&self) -> usize {
        let attributes = self.attributes.0.iter().flatten().map(|text| text.bytes.capacity());
        let texts = [&self.name, &self.last_start_tag, &self.attribute_name].map(|text| text.bytes.capacity());
        let found = self.found.iter().map(|found| match found {
            Found::Base(url) | Found::Load(_, url) => url.capacity(),
        });
        attributes.chain(texts).chain(found).sum()
    }
}

impl Emitter for Finder {
    type Token = Step;

    fn set_last_start_tag(&mut self, last_start_tag: Option<&[u8]>) {
        self.last_start_tag.clear();
        self.last_start_tag.push(last_start_tag.unwrap_or_default(), NAME_BYTES_MAX);
    }

    fn emit_eof(&mut self) {}

    fn emit_error(&mut self, _: Error) {}

    fn should_emit_errors(&mut self) -> bool {
        false
    }

    fn pop_token(&mut self) -> Option<Step> {
        if let Some(found) = self.found.pop_front() {
            return Some(Step::Found(found));
        }
        if self.read_bytes < BYTES_PER_STEP {
            return None;
        }
        self.read_bytes = 0;
        Some(Step::Pause)
    }

    fn emit_string(&mut self, _: &[u8]) {}

    fn init_start_tag(&mut self) {
        self.init_tag(Tag::Start);
    }

    fn init_end_tag(&mut self) {
        self.init_tag(Tag::End);
    }

    fn init_comment(&mut self) {}

    fn emit_current_tag(&mut self) -> Option<State> {
        self.end_attribute();
        match self.tag {
            Tag::End => {
                if self.name.whole() == Some(b"template") {
                    self.templates = self.templates.saturating_sub(1);
                }
                None
            }
            Tag::Start => {
                self.end_start_tag();
                self.last_start_tag.clear();
                self.last_start_tag.is_cut = self.name.is_cut;
                self.last_start_tag.push(&self.name.bytes, NAME_BYTES_MAX);
                naive_next_state(self.name.whole()?)
            }
        }
    }

    fn emit_current_comment(&mut self) {}

    fn emit_current_doctype(&mut self) {}

    fn set_self_closing(&mut self) {}

    fn set_force_quirks(&mut self) {}

    fn push_tag_name(&mut self, s: &[u8]) {
        self.name.push(s, NAME_BYTES_MAX);
    }

    fn push_comment(&mut self, _: &[u8]) {}

    fn push_doctype_name(&mut self, _: &[u8]) {}

    fn init_doctype(&mut self) {}

    fn init_attribute(&mut self) {
        self.end_attribute();
    }

    fn init_attribute_value(&mut self) {
        self.begin_value();
    }

    fn push_attribute_name(&mut self, s: &[u8]) {
        self.attribute_name.push(s, NAME_BYTES_MAX);
    }

    fn push_attribute_value(&mut self, s: &[u8]) {
        self.begin_value();
        if let Some(text) = self.attribute.and_then(|place| self.attributes.0[place].as_mut()) {
            text.push(s, URL_BYTES_MAX);
        }
    }

    fn set_doctype_public_identifier(&mut self, _: &[u8]) {}

    fn set_doctype_system_identifier(&mut self, _: &[u8]) {}

    fn push_doctype_public_identifier(&mut self, _: &[u8]) {}

    fn push_doctype_system_identifier(&mut self, _: &[u8]) {}

    fn current_is_appropriate_end_tag_token(&mut self) -> bool {
        self.tag == Tag::End && self.name.whole().is_some_and(|name| self.last_start_tag.whole() == Some(name))
    }

    fn move_position(&mut self, offset: isize) {
        self.read_bytes = self.read_bytes.saturating_add_signed(offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use html5gum::emitters::ForwardingEmitter;
    use proptest::prelude::*;
    use std::cell::Cell;
    use std::rc::Rc;

    fn found(page: &str) -> Vec<Found> {
        let found = |step| match step {
            Step::Found(found) => Some(found),
            Step::Pause => None,
        };
        Scan::new(page.as_bytes()).filter_map(found).collect()
    }

    #[test]
    fn what_browsers_load_is_found() {
        let table: &[(&str, &[(Kind, &str)])] = &[
            ("<link rel=stylesheet href=a.css>", &[(Kind::Render, "a.css")]),
            ("<LINK HREF='a.css' REL=\"StyleSheet\">", &[(Kind::Render, "a.css")]),
            ("<link rel='alternate stylesheet' href=a.css>", &[]),
            ("<link rel=stylesheet disabled href=a.css>", &[]),
            ("<link rel=modulepreload href=a.mjs>", &[(Kind::Render, "a.mjs")]),
            ("<link rel=preload as=font href=a.woff2>", &[(Kind::Render, "a.woff2")]),
            ("<link rel=preload as=image href=a.png>", &[(Kind::Image, "a.png")]),
            ("<link rel=preload as=image imagesrcset='a.png 1x, b.png 2x'>", &[(Kind::Image, "a.png")]),
            ("<link rel='shortcut icon' href=a.ico>", &[(Kind::Image, "a.ico")]),
            ("<link rel=canonical href=/>", &[]),
            ("<link href=a.css>", &[]),
            ("<script src=a.js></script>", &[(Kind::Render, "a.js")]),
            ("<script type=module src=a.js></script>", &[(Kind::Render, "a.js")]),
            ("<script type='Text/JavaScript' src=a.js></script>", &[(Kind::Render, "a.js")]),
            ("<script type=text/x-template src=a.js></script>", &[]),
            ("<script nomodule src=a.js></script>", &[]),
            ("<script>'<img src=a.png>'</script><img src=b.png>", &[(Kind::Image, "b.png")]),
            ("<style><img src=a.png></style>", &[]),
            ("<noscript><img src=a.png></noscript>", &[]),
            ("<title><img src=a.png></title>", &[]),
            ("<!-- <img src=a.png> --><img src=b.png>", &[(Kind::Image, "b.png")]),
            ("<template><p><img src=a.png></template><img src=b.png>", &[(Kind::Image, "b.png")]),
            ("<img src=a.png src=b.png>", &[(Kind::Image, "a.png")]),
            ("<img alt='>' src=a.png>", &[(Kind::Image, "a.png")]),
            ("<img src='a&amp;b.png'/>", &[(Kind::Image, "a&b.png")]),
            ("<img src=' a.png\n'>", &[(Kind::Image, "a.png")]),
            ("<img loading=lazy src=a.png>", &[]),
            ("<img loading=eager src=a.png>", &[(Kind::Image, "a.png")]),
            ("<img src=a.png srcset='b.png 480w, c.png 800w'>", &[(Kind::Image, "b.png")]),
            ("<img srcset='b.png, c.png 2x'>", &[(Kind::Image, "b.png")]),
            ("<img srcset=b.png>", &[(Kind::Image, "b.png")]),
            ("<img srcset=' , '>", &[]),
            ("<img src=''>", &[]),
            ("<img src>", &[]),
            (
                "<picture><source srcset='a.webp 1x'><img src=b.png></picture>",
                &[(Kind::Image, "a.webp"), (Kind::Image, "b.png")],
            ),
            ("<video poster=a.png src=a.mp4></video>", &[(Kind::Image, "a.png"), (Kind::Media, "a.mp4")]),
            ("<video preload=none poster=a.png src=a.mp4></video>", &[(Kind::Image, "a.png")]),
            ("<video><source src=a.mp4></video>", &[(Kind::Media, "a.mp4")]),
            ("<iframe src=a.html></iframe>", &[(Kind::Image, "a.html")]),
            ("<input type=image src=a.png><input src=b.png>", &[(Kind::Image, "a.png")]),
            ("<a href=a.html>", &[]),
            ("</img src=a.png>", &[]),
            ("<img src=a.png", &[]),
            ("<img src='a.png>", &[]),
        ];
        for (page, expected) in table {
            let expected: Vec<_> = expected.iter().map(|(kind, url)| Found::Load(*kind, (*url).to_owned())).collect();
            assert_eq!(found(page), expected, "{page}");
        }
    }

    #[test]
    fn the_base_is_found_in_its_place() {
        let load = |url: &str| Found::Load(Kind::Image, url.to_owned());
        let expected = [load("a.png"), Found::Base("/b/".to_owned()), load("c.png")];
        assert_eq!(found("<img src=a.png><base href=/b/><img src=c.png>"), expected);
    }

    #[test]
    fn longer_urls_and_other_encodings_are_ignored() {
        let url = |bytes: usize| format!("<img src={}>", "a".repeat(bytes));
        assert_eq!(found(&url(URL_BYTES_MAX)).len(), 1);
        assert_eq!(found(&url(URL_BYTES_MAX + 1)).len(), 0);
        let long_set = format!("<img srcset='a.png 1x, {}'>", "b".repeat(2 * URL_BYTES_MAX));
        assert_eq!(found(&long_set), [Found::Load(Kind::Image, "a.png".to_owned())]);
        assert_eq!(Scan::new(b"<img src=\"\xff.png\">").count(), 0);
    }

    /// Everything that is kept of a page at any time.
    const KEPT_BYTES_MAX: usize = (ATTRIBUTES.len() + 4) * 2 * URL_BYTES_MAX;

    /// A finder that records the most that it has kept.
    #[derive(Default)]
    struct Watched {
        finder: Finder,
        kept_bytes: Rc<Cell<usize>>,
    }

    impl ForwardingEmitter for Watched {
        type Token = Step;

        fn inner(&mut self) -> &mut impl Emitter<Token = Step> {
            &mut self.finder
        }

        fn pop_token(&mut self) -> Option<Step> {
            self.kept_bytes.set(self.kept_bytes.get().max(self.finder.kept_bytes()));
            self.finder.pop_token()
        }
    }

    #[test]
    fn hostile_pages_are_kept_within_bounds() {
        let repeated = |text: &str| text.repeat((256 << 10) / text.len());
        let table = [
            format!("<{} ", repeated("a")),
            format!("<img src='{}' ", repeated("a")),
            format!("<img {}=x ", repeated("a")),
            format!("<img {}>", repeated("a=b ")),
            format!("<img {}>", repeated("src=b ")),
            format!("<img src=x{}>", repeated("&amp;")),
            format!("<title>{}", repeated("</titl")),
            format!("<title></{}>", repeated("a")),
            format!("<script><!--<script{}", repeated("<")),
            repeated("<img src=a srcset=b href=c poster=d>"),
            repeated("<template>"),
            repeated("<"),
            repeated("</"),
            repeated("&"),
            repeated("<!--"),
            repeated("\0"),
        ];
        for page in table {
            let watched = Watched::default();
            let kept_bytes = Rc::clone(&watched.kept_bytes);
            let steps = Tokenizer::new_with_emitter(&page, watched).count();
            let beginning = &page[..20.min(page.len())];
            assert!(kept_bytes.get() <= KEPT_BYTES_MAX, "{beginning}: {} bytes", kept_bytes.get());
            assert!(steps <= page.len() / 8, "{beginning}: {steps} steps");
        }
    }

    #[test]
    fn a_long_page_without_urls_pauses() {
        let page = "<p>text".repeat(100_000);
        let pauses = Scan::new(page.as_bytes()).count();
        assert!(pauses >= page.len() / BYTES_PER_STEP / 2, "{pauses}");
    }

    const FRAGMENTS: [&str; 16] = [
        "<",
        ">",
        "</",
        "<img ",
        "src=",
        "srcset='",
        "\"",
        "<script",
        "</script>",
        "<!--",
        "-->",
        "&#x",
        "<![CDATA[",
        "<base href=",
        "\r\n",
        "\0",
    ];

    proptest! {
        #[test]
        fn any_page_ends_and_its_urls_are_short(
            parts in proptest::collection::vec(
                prop_oneof![
                    proptest::sample::select(&FRAGMENTS[..]).prop_map(str::to_owned),
                    any::<String>(),
                ],
                0..200,
            )
        ) {
            let page = parts.concat();
            for found in found(&page) {
                let (Found::Base(url) | Found::Load(_, url)) = found;
                prop_assert!(!url.is_empty() && url.len() <= URL_BYTES_MAX);
            }
        }

        #[test]
        fn any_bytes_end(page in proptest::collection::vec(any::<u8>(), 0..4096)) {
            prop_assert!(Scan::new(&page).count() <= page.len());
        }
    }
}
