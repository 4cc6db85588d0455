//! Tables of requests and expected answers.
//!
//! A [`Case`] is a request and the expected answer. [`judge`] runs a table, prints every failed case with the
//! request and the difference, and then panics. Each GET is also sent as HEAD, which must have the same head.

use crate::fixtures::read_car;
use crate::socket::{Reply, exchange};
use crate::tar;
use bytes::Bytes;
use content::ipns::Record;
use content::names::Key;
use futures::StreamExt as _;
use serde_json::Value;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::SystemTime;

/// The maximum number of concurrent requests.
const ABREAST: usize = 4;
/// The default host of requests, which is not a configured gateway host, so that paths are answered.
const HOST: &str = "127.0.0.1";
/// Headers in which a HEAD may differ: they depend on the time or on the message framing.
const OF_THE_MESSAGE: [&str; 5] = ["age", "connection", "date", "server-timing", "transfer-encoding"];

/// A request and the expected answer.
#[derive(Clone)]
pub struct Case {
    name: String,
    method: &'static str,
    /// The request target, as it is sent.
    target: String,
    host: String,
    headers: Vec<(String, String)>,
    checks: Vec<Check>,
    /// Whether it is also sent as HEAD.
    has_twin: bool,
}

/// An expectation.
#[derive(Clone)]
enum Check {
    Status(Vec<u16>),
    Header(String, Text),
    Body(Body),
    /// The response must not look complete.
    BrokenOff,
    /// All expectations of one of these lists.
    Either(Vec<Vec<Check>>),
}

/// An expectation of a header.
#[derive(Clone, Debug)]
pub enum Text {
    Is(String),
    Has(String),
    Lacks(String),
    /// Has this prefix and suffix.
    Like(String, String),
    /// A list with all of these, in any case and order.
    Lists(Vec<&'static str>),
    Present,
    Absent,
}

/// An expectation of a body.
#[derive(Clone)]
pub enum Body {
    Is(Bytes),
    Empty,
    /// Text that contains all of the first and none of the second.
    Page(Vec<String>, Vec<String>),
    Json(Value),
    /// A CAR of exactly these blocks, in this order.
    Blocks(Vec<String>),
    /// A CAR of these blocks in any order, each once or more.
    BlocksUnordered(Vec<String>),
    /// An archive that the system's tar accepts, with these paths and contents in it.
    Tar(Vec<(String, Option<Bytes>)>),
    /// An IPNS record that is valid for a name and has a value.
    Record(String, String),
}

pub fn is(text: impl Into<String>) -> Text {
    Text::Is(text.into())
}

pub fn has(text: impl Into<String>) -> Text {
    Text::Has(text.into())
}

/// An HTML page that contains all of these.
pub fn page<const N: usize>(parts: [impl Into<String>; N]) -> Body {
    Body::Page(parts.map(Into::into).into(), Vec::new())
}

/// A GET of a path, with its query.
pub fn get(name: impl Into<String>, target: impl Into<String>) -> Case {
    let (name, target, host) = (name.into(), target.into(), HOST.to_owned());
    Case { name, method: "GET", target, host, headers: Vec::new(), checks: Vec::new(), has_twin: true }
}

impl Case {
    /// Another method.
    pub fn by(mut self, method: &'static str) -> Self {
        self.method = method;
        self
    }

    /// Sets the host.
    pub fn at(mut self, host: impl Into<String>) -> Self {
        self.host = host.into();
        self
    }

    /// A request header.
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets the name, for a case that is derived from another.
    pub fn called(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Whether the request has a header.
    pub fn has_header(&self, name: &str) -> bool {
        self.headers.iter().any(|(found, _)| found.eq_ignore_ascii_case(name))
    }

    /// Not sent as HEAD: the answer depends on more of the content than a HEAD reads.
    pub fn get_only(mut self) -> Self {
        self.has_twin = false;
        self
    }

    pub fn status(self, status: u16) -> Self {
        self.check(Check::Status(vec![status]))
    }

    pub fn statuses(self, range: std::ops::Range<u16>) -> Self {
        self.check(Check::Status(range.collect()))
    }

    pub fn header(self, name: impl Into<String>, text: Text) -> Self {
        self.check(Check::Header(name.into(), text))
    }

    pub fn body(self, body: Body) -> Self {
        self.check(Check::Body(body))
    }

    /// Expects this body.
    pub fn bytes(self, bytes: impl Into<Bytes>) -> Self {
        self.body(Body::Is(bytes.into()))
    }

    /// Expects a redirect to this URL.
    pub fn redirects(self, status: u16, location: impl Into<String>) -> Self {
        self.status(status).header("location", is(location))
    }

    /// Expects no complete response: an error, or a truncated body.
    pub fn breaks_off(self) -> Self {
        self.check(Check::BrokenOff).get_only()
    }

    /// Expects one of several answers, each given as the checks of a case.
    pub fn either<const N: usize>(self, answers: [fn(Case) -> Case; N]) -> Self {
        let blank = || get("", "");
        let answers = answers.map(|answer| answer(blank()).checks);
        self.check(Check::Either(answers.into()))
    }

    fn check(mut self, check: Check) -> Self {
        self.checks.push(check);
        self
    }

    fn head(&self, method: &str) -> String {
        let mut head = format!("{method} {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.target, self.host);
        for (name, value) in &self.headers {
            let _ = write!(head, "{name}: {value}\r\n");
        }
        head + "\r\n"
    }

    /// The differences; empty if there are none.
    async fn run(&self, gateway: SocketAddr) -> Option<String> {
        let (mut faults, reply) = match exchange(gateway, &self.head(self.method)).await {
            Ok(reply) => (self.faults(&reply), Some(reply)),
            Err(error) => (vec![error], None),
        };
        if let (Some(reply), "GET", true) = (&reply, self.method, self.has_twin) {
            faults.extend(self.twin_faults(gateway, reply).await);
        }
        (!faults.is_empty()).then(|| self.report(&faults, reply.as_ref()))
    }

    fn faults(&self, reply: &Reply) -> Vec<String> {
        let may_break = self.checks.iter().any(|check| matches!(check, Check::BrokenOff));
        let broken = (!reply.complete && !may_break).then(|| "the response broke off".to_owned());
        broken.into_iter().chain(self.checks.iter().filter_map(|check| check.fault(reply))).collect()
    }

    /// A HEAD must have the head of the GET (RFC 9110, section 9.3.2). Ranges are defined for GET only.
    async fn twin_faults(&self, gateway: SocketAddr, reply: &Reply) -> Vec<String> {
        if self.has_header("range") {
            return Vec::new();
        }
        let twin = match exchange(gateway, &self.head("HEAD")).await {
            Ok(twin) => twin,
            Err(error) => return vec![format!("HEAD: {error}")],
        };
        let mut faults = Vec::new();
        if twin.status != reply.status {
            faults.push(format!("HEAD: status {} instead of {}", twin.status, reply.status));
        }
        if !twin.body.is_empty() {
            faults.push(format!("HEAD: a body of {} bytes", twin.body.len()));
        }
        let names = reply.headers.keys().chain(twin.headers.keys()).map(|name| name.as_str());
        let mut names: Vec<&str> = names.filter(|name| !OF_THE_MESSAGE.contains(name)).collect();
        names.sort_unstable();
        names.dedup();
        for name in names.into_iter().filter(|name| !is_twin(name, reply.header(name), twin.header(name))) {
            faults.push(format!("HEAD: {name} is {:?} instead of {:?}", twin.header(name), reply.header(name)));
        }
        faults
    }

    fn report(&self, faults: &[String], reply: Option<&Reply>) -> String {
        let mut report = format!("✗ {}\n", self.name);
        for line in self.head(self.method).trim_end().lines() {
            let _ = writeln!(report, "    > {line}");
        }
        if let Some(reply) = reply {
            let _ = writeln!(report, "    < {}", reply.status);
            for (name, value) in &reply.headers {
                let _ = writeln!(report, "    < {name}: {}", String::from_utf8_lossy(value.as_bytes()));
            }
            let start = reply.text().chars().take(200).collect::<String>();
            let _ = writeln!(report, "    < {} bytes: {start:?}", reply.body.len());
        }
        for fault in faults {
            let _ = writeln!(report, "  {fault}");
        }
        report
    }
}

/// Whether a HEAD's header equals the GET's. A remaining max-age may be lower in the later answer; and a HEAD may omit
/// a Content-Length of zero (RFC 9110, section 8.6).
fn is_twin(name: &str, of_get: Option<String>, of_head: Option<String>) -> bool {
    match (name, of_get.as_deref(), of_head.as_deref()) {
        ("content-length", Some("0"), None) => true,
        ("cache-control", Some(of_get), Some(of_head)) => {
            let (of_get, of_head) = (without_age(of_get), without_age(of_head));
            of_get.0 == of_head.0 && of_get.1.abs_diff(of_head.1) < 60
        }
        _ => of_get == of_head,
    }
}

/// "public, max-age=3600" is ("public, max-age=", 3600).
fn without_age(text: &str) -> (String, u64) {
    let Some((start, rest)) = text.split_once("max-age=") else { return (text.to_owned(), 0) };
    let digits = rest.find(|char: char| !char.is_ascii_digit()).unwrap_or(rest.len());
    (format!("{start}max-age={}", &rest[digits..]), rest[..digits].parse().unwrap_or_default())
}

impl Check {
    fn fault(&self, reply: &Reply) -> Option<String> {
        match self {
            Self::Status(expected) => {
                let fault = || format!("status: {} instead of {}", reply.status, statuses(expected));
                (!expected.contains(&reply.status)).then(fault)
            }
            Self::Header(name, text) => text.fault(reply.header(name)).map(|fault| format!("{name}: {fault}")),
            Self::Body(body) => body.fault(&reply.body).map(|fault| format!("body: {fault}")),
            Self::BrokenOff => {
                let looks_good = reply.complete && reply.status < 500;
                looks_good.then(|| "it looks like a good and complete answer".to_owned())
            }
            Self::Either(answers) => {
                let faults =
                    answers.iter().map(|checks| checks.iter().filter_map(|check| check.fault(reply)).collect());
                let faults: Vec<Vec<String>> = faults.collect();
                (!faults.iter().any(Vec::is_empty)).then(|| format!("none of the possible answers: {faults:?}"))
            }
        }
    }
}

fn statuses(expected: &[u16]) -> String {
    match expected {
        [one] => one.to_string(),
        [first, .., last] => format!("{first} to {last}"),
        [] => "nothing".to_owned(),
    }
}

impl Text {
    fn fault(&self, found: Option<String>) -> Option<String> {
        let value = found.clone().unwrap_or_default();
        let holds = match self {
            Self::Is(text) => value == *text,
            Self::Has(text) => value.contains(text),
            Self::Lacks(text) => !value.contains(text),
            Self::Like(start, end) => value.starts_with(start) && value.ends_with(end),
            Self::Lists(parts) => {
                let has = |part: &&str| value.split(',').any(|found| found.trim().eq_ignore_ascii_case(part));
                parts.iter().all(has)
            }
            Self::Present => !value.is_empty(),
            Self::Absent => found.is_none(),
        };
        (!holds).then(|| format!("{found:?}, but it has to be: {self:?}"))
    }
}

impl Body {
    fn fault(&self, body: &[u8]) -> Option<String> {
        match self {
            Self::Is(expected) => different_bytes(body, expected),
            Self::Empty => different_bytes(body, &[]),
            Self::Page(parts, not) => {
                let text = String::from_utf8_lossy(body);
                let missing =
                    parts.iter().find(|part| !text.contains(*part)).map(|part| format!("no {part:?} in {text}"));
                missing
                    .or_else(|| not.iter().find(|part| text.contains(*part)).map(|part| format!("{part:?} in {text}")))
            }
            Self::Json(expected) => match serde_json::from_slice::<Value>(body) {
                Ok(found) => (found != *expected).then(|| format!("{found} instead of {expected}")),
                Err(error) => Some(format!("not JSON: {error}")),
            },
            Self::Blocks(expected) => different_blocks(body, expected, false),
            Self::BlocksUnordered(expected) => different_blocks(body, expected, true),
            Self::Tar(expected) => tar::fault(body, expected),
            Self::Record(name, value) => record_fault(body, name, value),
        }
    }
}

fn different_bytes(found: &[u8], expected: &[u8]) -> Option<String> {
    let shown = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(120)]).into_owned();
    let fault = || {
        let (len, expected_len) = (found.len(), expected.len());
        format!("{len} bytes {:?} instead of {expected_len} bytes {:?}", shown(found), shown(expected))
    };
    (found != expected).then(fault)
}

fn different_blocks(body: &[u8], expected: &[String], in_any_order: bool) -> Option<String> {
    let mut found: Vec<String> = match read_car(body) {
        Ok(blocks) => blocks.into_iter().map(|(cid, _)| cid).collect(),
        Err(error) => return Some(format!("no good CAR: {error}")),
    };
    let mut expected = expected.to_vec();
    if in_any_order {
        for cids in [&mut found, &mut expected] {
            cids.sort_unstable();
            cids.dedup();
        }
    }
    let count = (found.len(), expected.len());
    let at = || found.iter().zip(&expected).position(|(a, b)| a != b).unwrap_or(count.0.min(count.1));
    (found != expected).then(|| {
        let near = |cids: &[String]| format!("{:?}", cids.iter().skip(at()).take(3).collect::<Vec<_>>());
        format!(
            "{} blocks instead of {}; from block {} on {} instead of {}",
            count.0,
            count.1,
            at(),
            near(&found),
            near(&expected)
        )
    })
}

/// Verifies a record like a trustless client; returns the error.
fn record_fault(body: &[u8], name: &str, value: &str) -> Option<String> {
    let key = Key::parse(name).expect("a key's name");
    match Record::verify(&key, Bytes::copy_from_slice(body)) {
        Ok(record) if !record.is_valid_at(SystemTime::now()) => Some("the record has expired".to_owned()),
        Ok(record) => (record.value() != value).then(|| format!("to {} instead of {value}", record.value())),
        Err(error) => Some(error.to_string()),
    }
}

/// Runs a table; panics with all differences.
pub async fn judge(gateway: SocketAddr, table: &str, cases: Vec<Case>) {
    let total = cases.len();
    assert!(total > 0, "{table} is empty");
    let runs = futures::stream::iter(cases).map(|case| async move { case.run(gateway).await });
    let failures: Vec<String> = runs.buffered(ABREAST).filter_map(|failure| async { failure }).collect().await;
    assert!(failures.is_empty(), "{table}: {} of {total} cases failed\n{}", failures.len(), failures.join("\n"));
}
