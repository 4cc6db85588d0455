//! [`Rules`]: the `_redirects` file of a website (<https://specs.ipfs.tech/http-gateways/web-redirects-file/>).
//!
//! Goals: accepts and rejects the same files as Kubo; matching takes linear time in the size of the file and the path,
//! since placeholders match whole segments and need no backtracking; a value from the URL is encoded, so that it cannot
//! change the structure of the target.
//!
//! The path of a request is percent-decoded once, and the file is not decoded: `/a%20b` in a file matches only these
//! six characters.
//!
//! Non-goals: reading the file, and when to apply it: only below a root that has an origin of its own, and only for
//! paths that do not exist.

use crate::work::Work;
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};

/// The maximum size of the file, in bytes (the specification, "Max File Size").
pub const FILE_BYTES_MAX: usize = 64 * 1024;
/// The maximum length of a target with its placeholders replaced, in bytes: the value of a `Location`, or a path.
pub const TARGET_BYTES_MAX: usize = 16 * 1024;
/// The maximum number of colons in `from` and in `to`. Each can begin a placeholder.
const COLONS_MAX: usize = 64;
/// Comparisons of rules and segments that are counted as one step of work.
const COMPARISONS_PER_STEP: u64 = 8;
/// The minimum size of an allocation, and the allocator's overhead for each, in bytes.
const ALLOCATION_BYTES: usize = 16;
/// The schemes that an absolute target may have.
const SCHEMES: [&str; 4] = ["http", "https", "ipfs", "ipns"];
/// The characters that are encoded in the value of a placeholder: all with a meaning anywhere in a URL. Slashes are
/// kept, because the value of a splat has several segments.
const VALUE_ENCODE_SET: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The rules of a file, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    from: Box<str>,
    to: Box<str>,
    status: u16,
}

/// The rule that matches a path, with its placeholders replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// The status of the response: one of 200, 301, 302, 303, 307, 308, 404, 410 and 451.
    pub status: u16,
    /// The target of the rule.
    pub to: Target,
}

/// The target of a matching rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A redirect: the value of `Location`, in printable ASCII. The status is 3xx. [`with_query`] adds the query of the
    /// request.
    Location(String),
    /// Other content of the same site: its decoded path below the root. The content is sent with the status.
    Path(String),
    /// Content of another site with status 200, which would have to be proxied. Not supported.
    Elsewhere,
    /// A target of more than [`TARGET_BYTES_MAX`].
    TooLong,
}

impl Target {
    fn bytes(&self) -> usize {
        match self {
            Self::Location(text) | Self::Path(text) => text.len(),
            Self::Elsewhere => 0,
            // As many were written before the bound was reached.
            Self::TooLong => TARGET_BYTES_MAX,
        }
    }
}

/// Why a file is rejected, as a whole (the specification, "Error Handling").
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RedirectsError {
    /// The file exceeds [`FILE_BYTES_MAX`].
    #[error("redirects file size cannot exceed {max} bytes")]
    TooLarge {
        /// The maximum size, in bytes.
        max: usize,
    },
    /// The file is not UTF-8.
    #[error("line {line} is not UTF-8 text")]
    NotText {
        /// The line, counted from one.
        line: usize,
    },
    /// A line is not a valid rule.
    #[error("line {line}: {problem}")]
    Line {
        /// The line, counted from one.
        line: usize,
        /// What is wrong with it.
        problem: RuleError,
    },
}

/// Why a line is not a valid rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// The line has one word.
    #[error("missing 'to' path")]
    NoTarget,
    /// The line has more than three words.
    #[error("must be 'from to [status]'")]
    TooManyWords,
    /// `from` is not a path.
    #[error("'from' must begin with '/'")]
    From,
    /// `from` has an asterisk that is not the last character.
    #[error("'from' can have one asterisk, and only at its end")]
    Splat,
    /// `to` is neither a path nor a URL with an accepted scheme.
    #[error("'to' must begin with '/' or be a URL of http, https, ipfs or ipns")]
    To,
    /// There is a control character, or a percent sign that is not followed by two hexadecimal digits.
    #[error("'{word}' has a control character or an incomplete percent-encoding")]
    Escape {
        /// `from` or `to`.
        word: &'static str,
    },
    /// There are too many placeholders.
    #[error("'{word}' has more than {max} colons")]
    Placeholders {
        /// `from` or `to`.
        word: &'static str,
        /// The maximum.
        max: usize,
    },
    /// The rule would override existing content.
    #[error("forced redirects (a status with '!') are not supported")]
    Forced,
    /// The status is not a number, or is not supported.
    #[error("status \"{0}\" is not supported")]
    Status(String),
}

impl Rules {
    /// Parses a file.
    ///
    /// # Errors
    /// [`RedirectsError`] for the whole file, if any line is invalid.
    pub fn parse(text: &[u8]) -> Result<Self, RedirectsError> {
        if text.len() > FILE_BYTES_MAX {
            return Err(RedirectsError::TooLarge { max: FILE_BYTES_MAX });
        }
        let mut rules = Vec::new();
        for (line, bytes) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            let text = str::from_utf8(bytes).map_err(|_| RedirectsError::NotText { line })?;
            rules.extend(Rule::parse(text.trim()).map_err(|problem| RedirectsError::Line { line, problem })?);
        }
        rules.shrink_to_fit();
        Ok(Self(rules))
    }

    /// The first rule that matches a path below the root of the site. The path is decoded, begins with a slash and has
    /// no empty segments; a trailing slash is ignored. Charges the comparisons to `work`; their number is less than the
    /// size of the file in bytes.
    pub fn find(&self, path: &str, work: &Work) -> Option<Match> {
        let path = path.strip_suffix('/').unwrap_or(path);
        let segments: Vec<&str> = path.split('/').collect();
        let mut comparisons = segments.len();
        let found = self.0.iter().find_map(|rule| {
            let values = rule.bind(path, &segments, &mut comparisons)?;
            let found = rule.apply(&values);
            work.charge_text(rule.to.len() + found.to.bytes());
            Some(found)
        });
        work.charge(comparisons as u64 / COMPARISONS_PER_STEP);
        found
    }

    /// An estimate of the memory that the rules take, in bytes: for a file of many short lines, thirty times its size.
    pub fn memory_bytes(&self) -> usize {
        let text = |text: &str| text.len().max(ALLOCATION_BYTES) + ALLOCATION_BYTES;
        let texts: usize = self.0.iter().map(|rule| text(&rule.from) + text(&rule.to)).sum();
        self.0.capacity() * size_of::<Rule>() + texts
    }
}

/// Adds the query of a request to `location`, after the query that it may have already.
pub fn with_query(location: &str, query: &str) -> String {
    let (before, fragment) = location.split_at(location.find('#').unwrap_or(location.len()));
    let separator = match before.split_once('?') {
        _ if query.is_empty() => "",
        None => "?",
        Some((_, "")) => "",
        Some(_) => "&",
    };
    format!("{before}{separator}{query}{fragment}")
}

impl Rule {
    /// Parses a line; `None` for comments and empty lines.
    fn parse(line: &str) -> Result<Option<Self>, RuleError> {
        if line.is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        let mut words = line.split_whitespace();
        let (from, to) = (words.next().unwrap_or_default(), words.next().ok_or(RuleError::NoTarget)?);
        let status = words.next();
        if words.next().is_some() {
            return Err(RuleError::TooManyWords);
        }
        check_from(from)?;
        check_to(to)?;
        Ok(Some(Self { from: from.into(), to: to.into(), status: status.map_or(Ok(301), parse_status)? }))
    }

    /// Matches the rule against a path and returns the values of the placeholders by name. A placeholder matches one
    /// segment, and a splat at least one. `segments` are those of `path`. Of a name that occurs twice the last value is
    /// used, and so comes later.
    fn bind<'a>(
        &'a self,
        path: &'a str,
        segments: &[&'a str],
        comparisons: &mut usize,
    ) -> Option<Vec<(&'a str, &'a str)>> {
        let pattern = self.from.strip_suffix('/').unwrap_or(&self.from);
        let (pattern, has_splat) = pattern.strip_suffix("/*").map_or((pattern, false), |pattern| (pattern, true));
        let mut rest = segments.iter();
        let (mut used, mut values) = (0, vec![(SPLAT, "")]);
        for expected in pattern.split('/') {
            *comparisons += 1;
            let segment = rest.next()?;
            used += segment.len() + 1;
            match expected.strip_prefix(':') {
                Some(name) => values.push((name, *segment)),
                None if expected == *segment => {}
                None => return None,
            }
        }
        if has_splat != rest.next().is_some() {
            return None;
        }
        values[0].1 = path.get(used..).unwrap_or_default();
        Some(values)
    }

    fn apply(&self, values: &[(&str, &str)]) -> Match {
        let pieces = pieces(&self.to, values);
        let to = match self.status {
            300..400 => join(pieces.flat_map(Piece::encode)).map(Target::Location),
            _ if self.to.starts_with('/') => join(pieces.map(Piece::text)).map(Target::Path),
            _ => Some(Target::Elsewhere),
        };
        Match { status: self.status, to: to.unwrap_or(Target::TooLong) }
    }
}

/// The placeholder for the segments that an asterisk matches.
const SPLAT: &str = "splat";

fn check_from(from: &str) -> Result<(), RuleError> {
    check_word("from", from)?;
    if !from.starts_with('/') {
        return Err(RuleError::From);
    }
    match from.find('*') {
        Some(at) if at + 1 < from.len() => Err(RuleError::Splat),
        _ => Ok(()),
    }
}

fn check_to(to: &str) -> Result<(), RuleError> {
    check_word("to", to)?;
    let scheme_is_accepted = |(scheme, _): (&str, &str)| SCHEMES.iter().any(|good| scheme.eq_ignore_ascii_case(good));
    match to.starts_with('/') || to.split_once(':').is_some_and(scheme_is_accepted) {
        true => Ok(()),
        false => Err(RuleError::To),
    }
}

fn check_word(which: &'static str, word: &str) -> Result<(), RuleError> {
    // Percent signs in a query follow the rules of form encoding, and are not checked.
    let (before, after) = word.split_once('?').unwrap_or((word, ""));
    let fragment = after.split_once('#').map_or("", |(_, fragment)| fragment);
    let mut after_percent = before.split('%').skip(1).chain(fragment.split('%').skip(1));
    let escapes_are_whole = after_percent
        .all(|after| after.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)));
    if !escapes_are_whole || word.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(RuleError::Escape { word: which });
    }
    match word.bytes().filter(|byte| *byte == b':').count() > COLONS_MAX {
        true => Err(RuleError::Placeholders { word: which, max: COLONS_MAX }),
        false => Ok(()),
    }
}

fn parse_status(word: &str) -> Result<u16, RuleError> {
    if word.ends_with('!') {
        return Err(RuleError::Forced);
    }
    match word.parse() {
        Ok(status @ (200 | 301 | 302 | 303 | 307 | 308 | 404 | 410 | 451)) => Ok(status),
        _ => Err(RuleError::Status(word.chars().take(20).collect())),
    }
}

/// A piece of a target.
#[derive(Debug, Clone, Copy)]
enum Piece<'a> {
    /// Text of the rule.
    Text(&'a str),
    /// The value of a placeholder.
    Value(&'a str),
}

impl<'a> Piece<'a> {
    fn text(self) -> &'a str {
        match self {
            Self::Text(text) | Self::Value(text) => text,
        }
    }

    /// Percent-encodes a value, and in the text of the rule only the characters that a header cannot have.
    fn encode(self) -> PercentEncode<'a> {
        match self {
            Self::Text(text) => utf8_percent_encode(text, CONTROLS),
            Self::Value(value) => utf8_percent_encode(value, VALUE_ENCODE_SET),
        }
    }
}

/// Replaces the placeholders in `to` by their values, in one pass, so that values are not substituted again. Of several
/// matching names the longest is used. A colon before any other text is kept.
fn pieces<'a>(to: &'a str, values: &'a [(&'a str, &'a str)]) -> impl Iterator<Item = Piece<'a>> {
    let mut parts = to.split(':');
    let first = Piece::Text(parts.next().unwrap_or_default());
    let replaced = parts.flat_map(move |part| {
        let named = values.iter().filter(|(name, _)| !name.is_empty() && part.starts_with(name));
        match named.max_by_key(|(name, _)| name.len()) {
            Some((name, value)) => [Piece::Value(value), Piece::Text(&part[name.len()..])],
            None => [Piece::Text(":"), Piece::Text(part)],
        }
    });
    std::iter::once(first).chain(replaced)
}

/// The joined texts; `None` if they exceed [`TARGET_BYTES_MAX`]. Texts after that are not read.
fn join<'a>(texts: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut joined = String::new();
    for text in texts {
        if joined.len() + text.len() > TARGET_BYTES_MAX {
            return None;
        }
        joined.push_str(text);
    }
    Some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rules(text: &str) -> Rules {
        Rules::parse(text.as_bytes()).expect("rules")
    }

    /// The result for a path, as "status target".
    fn answer(text: &str, path: &str) -> Option<String> {
        rules(text).find(path, &Work::unlimited()).map(|found| match found.to {
            Target::Location(to) | Target::Path(to) => format!("{} {to}", found.status),
            Target::Elsewhere => format!("{} elsewhere", found.status),
            Target::TooLong => format!("{} too long", found.status),
        })
    }

    #[test]
    fn the_first_rule_that_matches_counts() {
        let file = "# old addresses\r\n\r\n/home /\n  /kept\t/new/kept   302 \n\n\
                    /posts/:month/:day/:year/:slug /articles/:year/:month/:day/:slug\n\
                    /shop/* /closed.html 404\n/old/* /new/:splat 308\n/old/x /never\n/law/* /451.html 451\n\
                    /gone/* /410.html 410\n/* /index.html 200";
        let table = [
            ("/home", "301 /"),
            ("/home/", "301 /"),
            ("/kept", "302 /new/kept"),
            ("/posts/06/15/2022/hello-world", "301 /articles/2022/06/15/hello-world"),
            ("/posts/06/15/2022", "200 /index.html"),
            ("/posts/06/15/2022/hello/world", "200 /index.html"),
            ("/shop/a/b", "404 /closed.html"),
            ("/shop", "200 /index.html"),
            ("/shop/", "200 /index.html"),
            ("/old/x", "308 /new/x"),
            ("/old/x/y.html", "308 /new/x/y.html"),
            ("/law/a", "451 /451.html"),
            ("/gone/a", "410 /410.html"),
            ("/Home", "200 /index.html"),
            ("/# old", "200 /index.html"),
        ];
        for (path, expected) in table {
            assert_eq!(answer(file, path).as_deref(), Some(expected), "{path}");
        }
        assert_eq!(answer(file, "/"), None, "an asterisk matches at least one segment");
    }

    #[test]
    fn patterns_match_as_in_kubo() {
        let table = [
            ("/ /b", "/", Some("301 /b")),
            ("/a/ /b", "/a", Some("301 /b")),
            ("/a* /b", "/abc", None),
            ("/a* /b", "/a*", Some("301 /b")),
            ("/:a /:a", "/x", Some("301 /x")),
            ("/:a /:a", "/x/y", None),
            ("/:a/:a /:a", "/x/y", Some("301 /y")),
            ("/:a/:ab /:ab/:a", "/x/y", Some("301 /y/x")),
            ("/:a/* /:splat/:a", "/x/y/z", Some("301 /y/z/x")),
            ("/:splat/* /:splat", "/x/y", Some("301 /x")),
            ("/:a/b /:a.html", "/x/b", Some("301 /x.html")),
            ("/:a /:a/:a?q=:a#:a", "/x", Some("301 /x/x?q=x#x")),
            ("/:a /:b:splat", "/x", Some("301 /:b")),
            ("/: /a:b", "/x", Some("301 /a:b")),
            ("/:a/:b /:a", "/:b/y", Some("301 /%3Ab")),
            ("/:a/:b /:a 200", "/:b/y", Some("200 /:b")),
            ("/a:b /c", "/a:b", Some("301 /c")),
            ("/%61 /b", "/a", None),
            ("/%61 /b", "/%61", Some("301 /b")),
            ("/ä /ö", "/ä", Some("301 /%C3%B6")),
            ("/ä /ö 200", "/ä", Some("200 /ö")),
            ("/a https://example.com:8443/b", "/a", Some("301 https://example.com:8443/b")),
            ("/a/* HTTPS://example.com/:splat 302", "/a/b/c", Some("302 HTTPS://example.com/b/c")),
            ("/a ipns://example.com/b 307", "/a", Some("307 ipns://example.com/b")),
            ("/a/* https://example.com/:splat 200", "/a/b", Some("200 elsewhere")),
            ("/a /b +302", "/a", Some("302 /b")),
        ];
        for (file, path, expected) in table {
            assert_eq!(answer(file, path).as_deref(), expected, "{path} by {file}");
        }
    }

    #[test]
    fn values_are_encoded_for_urls() {
        let table = [
            ("/r/* /:splat", "/r/a b/c", "301 /a%20b/c"),
            ("/r/:a /x?a=:a", "/r/1&b=2#c", "301 /x?a=1%26b%3D2%23c"),
            ("/r/:a /:a", "/r/\\evil.example", "301 /%5Cevil.example"),
            ("/r/:a /:a", "/r/\r\nSet-Cookie: a", "301 /%0D%0ASet-Cookie%3A%20a"),
            ("/r/:a /:a", "/r/%2e", "301 /%252e"),
            ("/r/:a /:a", "/r/ä?", "301 /%C3%A4%3F"),
            ("/r/:a /:a 200", "/r/a b?", "200 /a b?"),
        ];
        for (file, path, expected) in table {
            assert_eq!(answer(file, path).as_deref(), Some(expected), "{path:?} by {file}");
        }
    }

    #[test]
    fn queries_are_joined() {
        let table = [
            ("/b", "", "/b"),
            ("/b", "x=1", "/b?x=1"),
            ("/b?y=2", "x=1", "/b?y=2&x=1"),
            ("/b?y=2", "", "/b?y=2"),
            ("/b?", "x=1", "/b?x=1"),
            ("/b#c?d", "x=1", "/b?x=1#c?d"),
            ("/b?y=2#c", "x=1", "/b?y=2&x=1#c"),
            ("https://example.com", "x=1&x=2", "https://example.com?x=1&x=2"),
        ];
        for (location, query, expected) in table {
            assert_eq!(with_query(location, query), expected, "{location} and {query}");
        }
    }

    #[test]
    fn errors_have_the_line_number() {
        use RuleError::{Escape, Forced, From, NoTarget, Placeholders, Splat, Status, To, TooManyWords};
        let colons = ":".repeat(COLONS_MAX + 1);
        let (many_from, many_to) = (format!("/{colons} /b"), format!("/a /{colons}"));
        let table = [
            ("/a", NoTarget),
            ("/a /b 301 302", TooManyWords),
            ("/a /b Country=x 302", TooManyWords),
            ("a /b", From),
            ("https://example.com/a /b", From),
            ("/a/*/b /c", Splat),
            ("/a/** /c", Splat),
            ("/a b", To),
            ("/a ../b", To),
            ("/a ftp://example.com", To),
            ("/a javascript:alert(1)", To),
            ("/a :splat", To),
            ("/a /b 301!", Forced),
            ("/a /b 200!", Forced),
            ("/a /b 42", Status("42".to_owned())),
            ("/a /b 500", Status("500".to_owned())),
            ("/a /b x", Status("x".to_owned())),
            ("/a /b -301", Status("-301".to_owned())),
            ("/a%zz /b", Escape { word: "from" }),
            ("/a /b%4", Escape { word: "to" }),
            ("/a /b?x#%", Escape { word: "to" }),
            ("/a\u{7f} /b", Escape { word: "from" }),
            ("/a /b\u{1}", Escape { word: "to" }),
            (&many_from, Placeholders { word: "from", max: COLONS_MAX }),
            (&many_to, Placeholders { word: "to", max: COLONS_MAX }),
        ];
        for (line, problem) in table {
            let file = format!("# a comment\n/good /line\n{line}\n/x /y");
            assert_eq!(Rules::parse(file.as_bytes()), Err(RedirectsError::Line { line: 3, problem }), "{line}");
        }
        assert_eq!(Rules::parse(b"/a /b\n/\xff /b"), Err(RedirectsError::NotText { line: 2 }));
        assert_eq!(Rules::parse(b"/a?% /b?100%\n# a b c d e\n /a /b"), Ok(rules("/a?% /b?100%\n/a /b")));
    }

    #[test]
    fn the_size_is_limited() {
        let mut file = "/from /to 301\n".repeat(FILE_BYTES_MAX / 14);
        file.push_str(&"#".repeat(FILE_BYTES_MAX - file.len()));
        assert!(Rules::parse(file.as_bytes()).is_ok());
        file.push('#');
        let error = Rules::parse(file.as_bytes()).expect_err("one byte too many");
        assert_eq!(error.to_string(), "redirects file size cannot exceed 65536 bytes");
    }

    #[test]
    fn the_memory_estimate_counts_rules_and_texts() {
        assert_eq!(rules("# nothing but words").memory_bytes(), 0);
        let short = rules(&"/ /\n".repeat(FILE_BYTES_MAX / 4));
        let each = size_of::<Rule>() + 2 * (16 + 16);
        assert_eq!(short.memory_bytes(), FILE_BYTES_MAX / 4 * each, "there is no spare capacity");
        let long = rules(&format!("/a /{}", "b".repeat(1000)));
        assert_eq!(long.memory_bytes(), size_of::<Rule>() + 32 + 1001 + 16);
    }

    #[test]
    fn comparisons_and_targets_are_charged_as_work() {
        let table = [
            ("/a/b /c\n".repeat(8_000), "/x".to_owned(), 1_000..3_000),
            ("/:a/b /c\n".repeat(4_000), "/x/y".to_owned(), 1_000..3_000),
            (format!("/* /{}", ":splat".repeat(COLONS_MAX)), format!("/{}", "a".repeat(200)), 190..220),
            (format!("/* /{}", ":splat".repeat(COLONS_MAX)), format!("/{}", "a".repeat(8_000)), 250..300),
        ];
        for (file, path, steps) in table {
            let work = Work::unlimited();
            rules(&file).find(&path, &work);
            assert!(steps.contains(&work.spent()), "{} steps", work.spent());
        }
    }

    #[test]
    fn the_most_expensive_files_are_cheap() {
        let long = "a".repeat(60_000);
        let many = "/a".repeat(30_000);
        let files = [
            "/:a/b /c\n".repeat(7_000),
            "/:a/* /c\n".repeat(7_000),
            format!("{}/x /c", "/:a".repeat(COLONS_MAX)),
            format!("{}/x /c", "/a".repeat(30_000)),
            format!("/:a{} /{}", "/*", ":a".repeat(COLONS_MAX)),
            format!("/* /{}{}", ":splat".repeat(COLONS_MAX), "x".repeat(60_000)),
        ];
        for file in &files {
            for path in [&long, &many] {
                if let Some(Match { to: Target::Location(to), .. }) =
                    rules(file).find(&format!("/{path}"), &Work::unlimited())
                {
                    assert!(to.len() <= TARGET_BYTES_MAX);
                }
            }
        }
    }

    #[test]
    fn targets_end_at_the_maximum_length() {
        let to = |status: u16, value: &str| answer(&format!("/* /:splat:splat {status}"), &format!("/{value}"));
        let half = TARGET_BYTES_MAX / 2;
        for status in [301, 200] {
            // The slash takes one byte.
            let longest = to(status, &"a".repeat(half - 1)).expect("matches");
            assert_eq!(longest.len(), "301 /".len() + 2 * (half - 1), "{status}");
            assert_eq!(to(status, &"a".repeat(half)), Some(format!("{status} too long")));
        }
        // Each of these takes three bytes in a URL.
        assert_eq!(to(301, &" ".repeat(half / 3 + 1)), Some("301 too long".to_owned()));
        assert_eq!(to(200, &" ".repeat(half / 3 + 1)).map(|to| to.len()), Some("200 /".len() + 2 * (half / 3 + 1)));
        let text = "\u{f6}".repeat(TARGET_BYTES_MAX / 6 + 1);
        assert_eq!(answer(&format!("/a /{text}"), "/a"), Some("301 too long".to_owned()));
    }

    #[test]
    fn nothing_is_written_beyond_the_maximum_length() {
        let (splats, path) = (":splat".repeat(COLONS_MAX), "%".repeat(32 * 1024));
        let rule = rules(&format!("/* /{splats}")).0.remove(0);
        let values = [(SPLAT, path.as_str())];
        let mut read = 0;
        let pieces = pieces(&rule.to, &values).flat_map(Piece::encode).inspect(|text| read += text.len());
        assert_eq!(join(pieces), None);
        assert!(read <= TARGET_BYTES_MAX + "%25".len(), "{read} bytes");
    }

    proptest! {
        #[test]
        fn nothing_panics(
            text in "([/:*a-c%!#?ä \t\r\n]|30[12]|/:a|/\\* |200){0,60}",
            path in "(/[ab:ä%?]{0,3}){0,5}",
        ) {
            if let Ok(rules) = Rules::parse(text.as_bytes()) {
                match rules.find(&path, &Work::unlimited()) {
                    Some(Match { status: 300..400, to: Target::Location(to) }) => {
                        prop_assert!(to.bytes().all(|byte| byte.is_ascii_graphic()), "{:?}", to);
                    }
                    Some(Match { status, to: Target::Path(to) }) => {
                        prop_assert!(to.starts_with('/') && [200, 404, 410, 451].contains(&status));
                    }
                    other => prop_assert!(other.is_none_or(|found| found.to == Target::Elsewhere)),
                }
            }
        }

        #[test]
        fn any_bytes_are_rules_or_an_error(text in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(rules) = Rules::parse(&text) {
                let _ = rules.find("/a/b", &Work::unlimited());
            }
        }

        #[test]
        fn placeholders_carry_segments_over(segments in prop::collection::vec("[^/\u{0}]{1,8}", 3..6)) {
            let path = format!("/{}", segments.join("/"));
            let found = rules("/:a/:b/* /:splat/:b/:a 200").find(&path, &Work::unlimited()).expect("matches");
            let expected = format!("/{}/{}/{}", segments[2..].join("/"), segments[1], segments[0]);
            prop_assert_eq!(found, Match { status: 200, to: Target::Path(expected) });
        }

        #[test]
        fn a_redirect_decodes_to_the_requested_path(segments in prop::collection::vec("[^/\u{0}]{1,8}", 1..6)) {
            let requested = segments.join("/");
            let found = rules("/a/* /b/:splat").find(&format!("/a/{requested}"), &Work::unlimited()).expect("matches");
            let Target::Location(to) = found.to else { return Err(TestCaseError::fail("no redirect")) };
            let decoded = crate::path::decode(&to).expect("encoded text");
            prop_assert_eq!(decoded, format!("/b/{requested}"));
        }
    }
}
