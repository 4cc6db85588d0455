//! Content negotiation (<https://specs.ipfs.tech/http-gateways/path-gateway/#accept-request-header>,
//! <https://specs.ipfs.tech/http-gateways/trustless-gateway/#request-headers>).
//!
//! `?format=` takes precedence over `Accept` (IPIP-0523). In `Accept` the media range with the highest weight applies
//! (RFC 9110, section 12.5.1); of equal weights an exact one before a wildcard, and else the first. Media types without
//! a format of their own select the native format.

use http::header::{ACCEPT, ACCEPT_ENCODING, HeaderMap};

/// The format of a response's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// The content's own format: a file, a web page, a listing, a document.
    Native,
    /// The block at the end of the path.
    Raw,
    /// A CAR with the blocks that prove the path and its target.
    Car,
    /// An IPNS record.
    IpnsRecord,
    /// A file or a directory as a TAR archive.
    Tar,
    /// JSON, as stored.
    Json,
    /// CBOR, as stored.
    Cbor,
    /// IPLD data as JSON.
    DagJson,
    /// IPLD data as CBOR.
    DagCbor,
}

/// All formats with a name: the value of `?format=`, and the media type.
const FORMATS: [(Format, &str, &str); 8] = [
    (Format::Raw, "raw", "application/vnd.ipld.raw"),
    (Format::Car, "car", "application/vnd.ipld.car"),
    (Format::IpnsRecord, "ipns-record", "application/vnd.ipfs.ipns-record"),
    (Format::Tar, "tar", "application/x-tar"),
    (Format::Json, "json", "application/json"),
    (Format::Cbor, "cbor", "application/cbor"),
    (Format::DagJson, "dag-json", "application/vnd.ipld.dag-json"),
    (Format::DagCbor, "dag-cbor", "application/vnd.ipld.dag-cbor"),
];

/// The value of `?format=` for the native format, with documents as HTML previews, as `Accept` of browsers selects it.
const HTML: &str = "html";

impl Format {
    /// The value of `?format=`; empty for the native format.
    pub fn name(self) -> &'static str {
        FORMATS.iter().find(|(format, ..)| *format == self).map_or("", |(_, name, _)| name)
    }

    /// The media type; empty for the native format.
    pub fn media_type(self) -> &'static str {
        FORMATS.iter().find(|(format, ..)| *format == self).map_or("", |(.., media_type)| media_type)
    }

    /// Whether the format has content codings, so that its responses vary by `Accept-Encoding`.
    pub fn is_encoded(self) -> bool {
        matches!(self, Self::Native | Self::Raw | Self::Car)
    }

    /// Whether a client can verify the response against the CID or the name.
    pub fn is_trustless(self) -> bool {
        matches!(self, Self::Raw | Self::Car | Self::IpnsRecord)
    }
}

/// The requested format is not supported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the format \"{asked}\" is not supported, only html, raw, car, ipns-record, tar, json, cbor, dag-json and \
     dag-cbor are"
)]
pub struct NotSupported {
    asked: String,
}

/// The negotiated format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The format.
    pub format: Format,
    /// Whether `Accept` alone selected it: then the same URL has other representations.
    pub by_accept: bool,
    /// The parameters of its media range, as sent, for `application/vnd.ipld.car`.
    pub parameters: Vec<(String, String)>,
    /// Whether HTML is preferred for documents, which have a media type of their own.
    pub html: bool,
}

/// Negotiates the format from the query's `format` and the `Accept` headers.
///
/// # Errors
/// [`NotSupported`] with the format's name.
pub fn wanted(query: Option<&str>, headers: &HeaderMap) -> Result<Wanted, NotSupported> {
    let best = best_range(headers);
    match query {
        None | Some("") => Ok(best),
        Some(HTML) => Ok(Wanted { format: Format::Native, by_accept: false, parameters: Vec::new(), html: true }),
        Some(name) => match FORMATS.iter().find(|(_, known, _)| *known == name) {
            // The parameters of the media range apply if its format is the same.
            Some((format, ..)) if *format == best.format => Ok(Wanted { by_accept: false, ..best }),
            Some((format, ..)) => Ok(Wanted { format: *format, by_accept: false, parameters: Vec::new(), html: false }),
            None => Err(NotSupported { asked: name.chars().take(80).collect() }),
        },
    }
}

/// A content coding of files (`Content-Encoding`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Coding {
    /// RFC 8878.
    Zstd,
    /// RFC 7932.
    Brotli,
    /// RFC 1952.
    Gzip,
}

impl Coding {
    /// All codings in the order of preference: blocks are stored as zstd, and brotli is smaller than gzip.
    pub const ALL: [Self; 3] = [Self::Zstd, Self::Brotli, Self::Gzip];

    /// The name in `Content-Encoding`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }
}

/// The codings that a client accepts, in the order of preference.
pub fn codings(headers: &HeaderMap) -> impl Iterator<Item = Coding> {
    Coding::ALL.into_iter().filter(|coding| accepts_coding(headers, coding.name()))
}

/// Whether a client accepts zstd, the only coding of raw blocks and CARs.
pub fn accepts_zstd(headers: &HeaderMap) -> bool {
    accepts_coding(headers, Coding::Zstd.name())
}

/// Whether `Accept-Encoding` names a coding (RFC 9110, section 12.5.3), and does not prefer `identity`. A wildcard does
/// not count: clients name the codings that they support.
fn accepts_coding(headers: &HeaderMap, coding: &str) -> bool {
    let weight_of = |coding: &str| {
        let lists = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
        lists.flat_map(|list| list.split(',')).find_map(|element| coding_weight(element, coding))
    };
    weight_of(coding).is_some_and(|weight| weight > 0.0 && weight_of("identity").is_none_or(|other| other <= weight))
}

/// The weight of an element of `Accept-Encoding` for a coding; 0 if it is malformed.
fn coding_weight(element: &str, coding: &str) -> Option<f32> {
    let mut parts = element.split(';').map(str::trim);
    parts.next().filter(|name| name.eq_ignore_ascii_case(coding))?;
    let weight = parts.filter_map(|part| part.split_once('=')).find(|(name, _)| name.trim().eq_ignore_ascii_case("q"));
    Some(weight.map_or(1.0, |(_, weight)| {
        weight.trim().parse().ok().filter(|weight| (0.0..=1.0).contains(weight)).unwrap_or(0.0)
    }))
}

/// A media range of `Accept`.
struct MediaRange<'a> {
    media_type: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
    weight: f32,
}

impl<'a> MediaRange<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split(';').map(str::trim);
        let media_type = parts.next().filter(|media_type| !media_type.is_empty())?;
        let mut range = Self { media_type, parameters: Vec::new(), weight: 1.0 };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            let (name, value) = (name.trim(), value.trim().trim_matches('"'));
            match name.eq_ignore_ascii_case("q") {
                true => range.weight = value.parse::<f32>().ok().filter(|weight| (0.0..=1.0).contains(weight))?,
                false => range.parameters.push((name, value)),
            }
        }
        Some(range)
    }

    fn format(&self) -> Format {
        let is = |known: &&(Format, &str, &str)| self.media_type.eq_ignore_ascii_case(known.2);
        FORMATS.iter().find(is).map_or(Format::Native, |(format, ..)| *format)
    }

    /// The order of preference: by weight, then exact ones before wildcards.
    fn rank(&self) -> (f32, bool) {
        (self.weight, !self.media_type.contains('*'))
    }
}

fn ranges(headers: &HeaderMap) -> impl Iterator<Item = MediaRange<'_>> {
    let lists = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).filter_map(MediaRange::parse)
}

/// The media ranges of `Accept`, as sent, with their weights.
pub fn media_ranges(headers: &HeaderMap) -> impl Iterator<Item = (&str, f32)> {
    ranges(headers).map(|range| (range.media_type, range.weight))
}

fn best_range(headers: &HeaderMap) -> Wanted {
    let mut best: Option<MediaRange<'_>> = None;
    for range in ranges(headers).filter(|range| range.weight > 0.0) {
        if best.as_ref().is_none_or(|best| range.rank() > best.rank()) {
            best = Some(range);
        }
    }
    let Some(best) = best else {
        return Wanted { format: Format::Native, by_accept: false, parameters: Vec::new(), html: false };
    };
    let format = best.format();
    let own = |(name, value): &(&str, &str)| (name.to_ascii_lowercase(), (*value).to_owned());
    Wanted {
        format,
        by_accept: format != Format::Native,
        parameters: best.parameters.iter().map(own).collect(),
        html: best.media_type.eq_ignore_ascii_case("text/html"),
    }
}

/// Whether the client accepts HTML, as browsers do.
pub fn wants_html(headers: &HeaderMap) -> bool {
    headers.get_all(ACCEPT).iter().any(|value| value.to_str().is_ok_and(|list| list.contains("text/html")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn read(query: Option<&str>, accept: &'static str) -> Result<Wanted, NotSupported> {
        wanted(query, &HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]))
    }

    const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,image/webp,*/*;q=0.8";

    #[test]
    fn the_query_takes_precedence_and_then_the_highest_weight() {
        use Format::{Car, Cbor, DagCbor, DagJson, IpnsRecord, Json, Native, Raw, Tar};
        let table = [
            (None, "", Native),
            (None, BROWSER, Native),
            (None, "*/*", Native),
            (None, "application/json", Json),
            (None, "application/cbor", Cbor),
            (None, "application/x-tar", Tar),
            (None, "application/vnd.ipld.dag-json", DagJson),
            (None, "application/vnd.ipld.dag-cbor", DagCbor),
            (None, "application/vnd.ipfs.ipns-record", IpnsRecord),
            (None, "application/vnd.ipld.raw", Raw),
            (None, "application/vnd.ipld.car, application/vnd.ipld.raw;q=0.5", Car),
            (None, "application/vnd.ipld.car;q=0.5, application/vnd.ipld.raw", Raw),
            (None, "application/vnd.ipld.raw, application/vnd.ipld.car", Raw),
            (None, "Application/Vnd.Ipld.Raw;q=0, text/html", Native),
            (None, "application/vnd.ipld.car; version=1; order=dfs; dups=n", Car),
            (None, "*/*, application/vnd.ipld.car", Car),
            (None, "application/vnd.ipld.car;q=0.1, */*;q=0.9", Native),
            (None, "application/vnd.ipld.car;q=2", Native),
            (None, "text/html, application/vnd.ipld.raw", Native),
            (Some("raw"), BROWSER, Raw),
            (Some("raw"), "application/vnd.ipld.car", Raw),
            (Some("car"), BROWSER, Car),
            (Some("ipns-record"), "", IpnsRecord),
            (Some(""), "application/vnd.ipld.raw", Raw),
            (Some("html"), "application/vnd.ipld.raw", Native),
        ];
        for (query, accept, expected) in table {
            assert_eq!(read(query, accept).map(|wanted| wanted.format), Ok(expected), "{query:?} {accept}");
        }
        assert!(read(Some("bogus"), "*/*").expect_err("no format").to_string().contains("dag-json"));
    }

    #[test]
    fn codings_must_be_accepted_explicitly() {
        let table = [
            ("zstd", true),
            ("gzip, deflate, br, zstd", true),
            ("gzip,ZStd ; Q=0.001", true),
            ("zstd;q=1.0, identity;q=0.5, *;q=0", true),
            ("zstd;q=0.5, identity; q=0.5", true),
            ("zstd;q=0.5, gzip", true),
            ("zstd;level=3", true),
            ("zstd;q=0.5, identity", false),
            ("identity;q=0.8, zstd;q=0.5", false),
            ("zstd;q=0", false),
            ("zstd;q=0.000, gzip", false),
            ("zstd;q=", false),
            ("zstd;q=x", false),
            ("zstd;q=nan", false),
            ("zstd;q=inf", false),
            ("zstd;q=-1", false),
            ("zstd;q=2", false),
            ("*", false),
            ("x-zstd, zstdx", false),
            ("gzip;zstd", false),
            ("", false),
            (",;,;q=1", false),
        ];
        for (value, expected) in table {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(value))]);
            assert_eq!(codings(&headers).any(|coding| coding == Coding::Zstd), expected, "{value}");
        }
        let mut headers = HeaderMap::new();
        assert_eq!(codings(&headers).count(), 0);
        for value in ["gzip", "caf\u{e9}", "zstd"] {
            headers.append(ACCEPT_ENCODING, HeaderValue::from_bytes(value.as_bytes()).expect("a header"));
        }
        assert!(codings(&headers).eq([Coding::Zstd, Coding::Gzip]), "what is no text is passed over");
        let all = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static("gzip, deflate, br;q=0.1"))]);
        assert!(codings(&all).eq([Coding::Brotli, Coding::Gzip]));
    }

    #[test]
    fn parameters_and_origin_of_the_choice_are_kept() {
        let car = read(None, "application/vnd.ipld.car; Version=1;dups=\"n\";q=0.9").expect("a format");
        let pairs = [("version", "1"), ("dups", "n")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!((car.by_accept, car.parameters), (true, pairs.to_vec()));
        let both = read(Some("car"), "application/vnd.ipld.car;dups=y").expect("a format");
        assert_eq!((both.by_accept, both.parameters.len()), (false, 1));
        let other = read(Some("raw"), "application/vnd.ipld.car;dups=y").expect("a format");
        assert_eq!((other.by_accept, other.parameters.len()), (false, 0));
        assert!(read(Some("html"), "*/*").expect("a format").html);
        assert!(read(None, BROWSER).expect("a format").html && !read(None, "*/*").expect("a format").html);
    }
}
