//! W3C Trace Context (<https://www.w3.org/TR/trace-context/>): the headers `traceparent` and `tracestate`.
//!
//! Goals: what is malformed is ignored as a whole, as the specification demands, and never in part; later versions of
//! `traceparent` are read as far as the specification allows.
//!
//! Non-goals: whether a header may be believed, which depends on who sent it (`gateway::request::client`).

use http::HeaderMap;
use std::fmt;

/// The maximum number of members of `tracestate` (section 3.3.1.1).
const STATE_MEMBERS_MAX: usize = 32;
/// The length that must be propagated (section 3.3.1.5). A longer one is dropped.
const STATE_BYTES_MAX: usize = 512;
/// The length of a `traceparent` of version 00.
const PARENT_BYTES: usize = 55;

/// The identifier of a trace; never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

/// The identifier of a span; never zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId([u8; 8]);

macro_rules! identifier {
    ($Name:ident, $bytes:literal) => {
        impl $Name {
            /// The identifier with these bytes; `None` if all are zero.
            pub fn new(bytes: [u8; $bytes]) -> Option<Self> {
                (bytes != [0; $bytes]).then_some(Self(bytes))
            }

            /// Its bytes.
            pub const fn bytes(&self) -> [u8; $bytes] {
                self.0
            }
        }

        impl fmt::Display for $Name {
            /// In lower-case hexadecimal digits.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

identifier!(TraceId, 16);
identifier!(SpanId, 8);

/// The header `traceparent`: the span that a request belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace.
    pub trace_id: TraceId,
    /// The span of the caller.
    pub span_id: SpanId,
    /// Whether the caller records the trace.
    pub sampled: bool,
}

impl TraceParent {
    /// Parses the value of the header (section 3.2.2); `None` if it is malformed.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let (known, further) = value.split_at_checked(PARENT_BYTES)?;
        let [version] = hexadecimal(known.get(..2)?)?;
        let separated = [2, 35, 52].iter().all(|at| known.get(*at) == Some(&b'-'));
        // Version ff is invalid. Later versions may only append fields.
        let has_valid_end = further.is_empty() || (version != 0 && further.first() == Some(&b'-'));
        if version == 0xff || !separated || !has_valid_end {
            return None;
        }
        let [flags] = hexadecimal(known.get(53..)?)?;
        Some(Self {
            trace_id: TraceId::new(hexadecimal(known.get(3..35)?)?)?,
            span_id: SpanId::new(hexadecimal(known.get(36..52)?)?)?,
            sampled: flags & 1 == 1,
        })
    }

    /// The parent in the headers of a request, which must have exactly one, and its state.
    pub fn of(headers: &HeaderMap) -> Option<(Self, TraceState)> {
        let mut values = headers.get_all("traceparent").iter();
        let parent = Self::parse(values.next()?.as_bytes())?;
        if values.next().is_some() {
            return None;
        }
        if !parent.sampled {
            return Some((parent, TraceState::default()));
        }
        let states = headers.get_all("tracestate").iter().map(http::HeaderValue::as_bytes);
        Some((parent, TraceState::parse(states).unwrap_or_default()))
    }
}

impl fmt::Display for TraceParent {
    /// As the header of version 00.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace_id, span_id, sampled } = self;
        write!(f, "00-{trace_id}-{span_id}-{:02x}", u8::from(*sampled))
    }
}

/// Bytes of lower-case hexadecimal digits.
fn hexadecimal<const BYTES: usize>(digits: &[u8]) -> Option<[u8; BYTES]> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; BYTES];
    let (pairs, rest) = digits.as_chunks::<2>();
    if pairs.len() != BYTES || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

/// The header `tracestate`: what tracing systems pass along with a trace. It is exported as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceState(String);

impl TraceState {
    /// Parses the values of the header, which belong together in their order (section 3.3.1.1); `None` if any is
    /// malformed, or all together are too long.
    pub fn parse<'a>(values: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut keys: Vec<&str> = Vec::new();
        let mut state = String::new();
        for value in values {
            let value = std::str::from_utf8(value).ok()?;
            for member in value.split(',').map(|member| member.trim_matches([' ', '\t'])) {
                // Empty members are allowed.
                if member.is_empty() {
                    continue;
                }
                let (key, value) = member.split_once('=')?;
                if !is_key(key) || !is_value(value) || keys.contains(&key) || keys.len() == STATE_MEMBERS_MAX {
                    return None;
                }
                keys.push(key);
                if !state.is_empty() {
                    state.push(',');
                }
                state.push_str(member);
                if state.len() > STATE_BYTES_MAX {
                    return None;
                }
            }
        }
        Some(Self(state))
    }

    /// The header's value.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A key (section 3.3.1.3.1): a simple one, or `TENANT@SYSTEM`.
fn is_key(key: &str) -> bool {
    let is_tail = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/".contains(&byte))
    };
    let begins = |text: &str, digits: bool| {
        text.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || (digits && byte.is_ascii_digit()))
    };
    match key.split_once('@') {
        None => key.len() <= 256 && begins(key, false) && is_tail(key),
        Some((tenant, system)) => {
            let is_tenant = tenant.len() <= 241 && begins(tenant, true) && is_tail(tenant);
            is_tenant && system.len() <= 14 && begins(system, false) && is_tail(system)
        }
    }
}

/// A value (section 3.3.1.3.2): printable ASCII without `,` and `=`, which does not end in a space.
fn is_value(value: &str) -> bool {
    let is_valid = |byte| matches!(byte, b' '..=b'~') && byte != b',' && byte != b'=';
    !value.is_empty() && value.len() <= 256 && value.bytes().all(is_valid) && !value.ends_with(' ')
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const SPAN: &str = "00f067aa0ba902b7";

    #[test]
    fn a_traceparent_is_valid_or_ignored() {
        let zeros = "0".repeat(32);
        let table = [
            (format!("00-{TRACE}-{SPAN}-01"), Some(true)),
            (format!("00-{TRACE}-{SPAN}-00"), Some(false)),
            // Other flags are ignored.
            (format!("00-{TRACE}-{SPAN}-fe"), Some(false)),
            (format!("00-{TRACE}-{SPAN}-ff"), Some(true)),
            // Later versions.
            (format!("01-{TRACE}-{SPAN}-01"), Some(true)),
            (format!("cc-{TRACE}-{SPAN}-01-what-the-future-brings"), Some(true)),
            (format!("cc-{TRACE}-{SPAN}-01.what"), None),
            (format!("ff-{TRACE}-{SPAN}-01"), None),
            (format!("00-{TRACE}-{SPAN}-01-"), None),
            (format!("00-{TRACE}-{SPAN}-01-x"), None),
            (format!("00-{TRACE}-{SPAN}-1"), None),
            (format!("00-{TRACE}-{SPAN}"), None),
            (format!("00-{zeros}-{SPAN}-01"), None),
            (format!("00-{TRACE}-0000000000000000-01"), None),
            (format!("00-{}-{SPAN}-01", TRACE.to_uppercase()), None),
            (format!("00-{TRACE}-{SPAN}-0A"), None),
            (format!("0A-{TRACE}-{SPAN}-01"), None),
            (format!("00_{TRACE}-{SPAN}-01"), None),
            (format!("00-{TRACE}_{SPAN}-01"), None),
            (format!("00-{TRACE}-{SPAN}_01"), None),
            (format!(" 00-{TRACE}-{SPAN}-01"), None),
            (format!("00-{TRACE}-{SPAN}-0é"), None),
            (String::new(), None),
            ("00".to_owned(), None),
        ];
        for (value, sampled) in table {
            let parent = TraceParent::parse(value.as_bytes());
            assert_eq!(parent.map(|parent| parent.sampled), sampled, "{value}");
            if let Some(parent) = parent {
                assert_eq!((parent.trace_id.to_string(), parent.span_id.to_string()), (TRACE.into(), SPAN.into()));
            }
        }
    }

    #[test]
    fn a_request_has_one_traceparent_and_its_state_is_valid_or_dropped() {
        let parent = format!("00-{TRACE}-{SPAN}-01");
        let headers = |parents: &[&str], states: &[&str]| {
            let mut headers = HeaderMap::new();
            let mut add = |name, values: &[&str]| {
                for value in values {
                    let value = HeaderValue::from_bytes(value.as_bytes()).expect("a value");
                    headers.append(HeaderName::from_static(name), value);
                }
            };
            add("traceparent", parents);
            add("tracestate", states);
            TraceParent::of(&headers)
        };
        assert_eq!(headers(&[], &["a=1"]), None);
        assert_eq!(headers(&[&parent, &parent], &[]), None);
        assert_eq!(headers(&["nonsense"], &["a=1"]), None);
        let many = (0..33).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(",");
        let (long, longest) = (format!("a={}", "x".repeat(257)), format!("a={},b=c", "x".repeat(250)));
        let longer = format!("{longest},d={},e=f", "x".repeat(256));
        let table: [(&[&str], &str); 14] = [
            (&[], ""),
            (&["rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"], "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
            (&["a=1 , b=2\t,,", "c=3"], "a=1,b=2,c=3"),
            (&["0t-x@sys=v w"], "0t-x@sys=v w"),
            (&["a=1", "a=2"], ""),
            (&["A=1"], ""),
            (&["1a=1"], ""),
            (&["a=1=2"], ""),
            (&["a="], ""),
            (&["a"], ""),
            (&["a=é"], ""),
            (&[&long], ""),
            (&[&longest], &longest),
            (&[&longer], ""),
        ];
        for (states, expected) in table {
            let (found, state) = headers(&[&parent], states).expect("a parent");
            assert_eq!((state.as_str(), found.to_string()), (expected, parent.clone()), "{states:?}");
        }
        assert_eq!(headers(&[&parent], &[&many]).expect("a parent").1, TraceState::default());
    }

    proptest! {
        #[test]
        fn what_is_written_is_parsed(trace: [u8; 16], span: [u8; 8], sampled: bool) {
            prop_assume!(trace != [0; 16] && span != [0; 8]);
            let parent = TraceParent { trace_id: TraceId(trace), span_id: SpanId(span), sampled };
            prop_assert_eq!(TraceParent::parse(parent.to_string().as_bytes()), Some(parent));
        }

        /// Whatever is accepted as version 00 is what a writer of that version has written, but for unknown flags.
        #[test]
        fn nothing_else_is_parsed(value in "(00|[0-9a-f]{2})[-_][0-9a-fA-F]{31,33}-[0-9a-fg]{15,17}-[0-9a-f]{1,3}(-[a-z]*)?") {
            if let Some(parent) = TraceParent::parse(value.as_bytes()) {
                prop_assert_eq!(&value[2..53], &parent.to_string()[2..53]);
                prop_assert!(!value.starts_with("00") || value.len() == PARENT_BYTES);
            }
        }

        #[test]
        fn any_bytes_are_parsed_without_panic(value in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = TraceParent::parse(&value);
            let state = TraceState::parse([&value[..]].into_iter());
            if let Some(state) = state {
                prop_assert!(state.as_str().len() <= STATE_BYTES_MAX && state.as_str().is_ascii());
                prop_assert_eq!(TraceState::parse([state.as_str().as_bytes()].into_iter()), Some(state));
            }
        }

        #[test]
        fn a_valid_state_is_kept(members in proptest::collection::btree_map("[a-z][a-z0-9_*/-]{0,8}", "[!-+.-<>-~]{1,8}", 0..20)) {
            let text = members.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
            let state = TraceState::parse([text.as_bytes()].into_iter()).expect("is valid");
            prop_assert_eq!(state.as_str(), text);
        }
    }
}
