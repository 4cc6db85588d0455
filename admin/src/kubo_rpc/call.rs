//! [`Call`]: a request as a command with its arguments and options, parsed like in Kubo
//! (<https://docs.ipfs.tech/reference/kubo/rpc/>, and the package `go-ipfs-cmds`, which has no other description).
//!
//! Arguments are given by repeating `arg`; options have long and short names, and each at most one value. Flags are
//! booleans in Go's syntax, and an empty flag is true. Numbers are integer literals in Go's syntax, such as `0x1f` or
//! `0o644`.
//!
//! Departure: a query that cannot be decoded is rejected and not ignored.

use crate::kubo_rpc::cids::CidText;
use crate::kubo_rpc::command::{ARGUMENTS_MAX, Command, Kind, Opt};
use crate::kubo_rpc::problem::RpcError;
use crate::kubo_rpc::{duration, files};
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::TE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use gateway::listen::connection::Connection;
use services::uploads::request_body::BodyCoding;
use services::url;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The maximum length of a query, in bytes.
const QUERY_BYTES_MAX: usize = 24 * 1024;
/// The maximum timeout; a longer one counts as none.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// The encoding of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// JSON.
    Json,
    /// What Kubo's command line prints.
    Text,
}

/// The value of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Flag(bool),
    Number(i64),
    Duration(Duration),
    Text(String),
}

/// A parsed command.
#[derive(Debug)]
pub struct Call {
    /// The arguments.
    pub arguments: Vec<String>,
    /// The encoding of its answer.
    pub encoding: Encoding,
    /// How CIDs are written.
    pub cids: CidText,
    /// Whether only locally stored blocks are read.
    pub offline: bool,
    /// The client's address.
    pub client: IpAddr,
    /// Whether the client accepts trailers, so that an error may follow the answer's body.
    pub takes_trailers: bool,
    options: Vec<(&'static str, Value)>,
    timeout: Option<(Duration, Instant)>,
    connection: Option<Arc<Connection>>,
}

impl Call {
    /// Parses the head of a request, whose body the caller reads.
    ///
    /// # Errors
    /// 400 with what is wrong.
    pub fn of(command: &Command, head: &Parts) -> Result<Self, RpcError> {
        let mut call = Self::read(command, head)?;
        call.check_arguments(command)?;
        call.set_client(head);
        Ok(call)
    }

    /// Parses a request whose arguments may be in its body.
    ///
    /// # Errors
    /// 400 with what is wrong.
    pub async fn receive(command: &Command, request: Request) -> Result<Self, RpcError> {
        let (head, body) = request.into_parts();
        let mut call = Self::read(command, &head)?;
        if command.arguments.in_body && call.arguments.len() < command.arguments.least {
            call.read_arguments(&head, body).await?;
        }
        call.check_arguments(command)?;
        call.set_client(&head);
        Ok(call)
    }

    /// The value of a flag.
    pub fn flag(&self, name: &str) -> Option<bool> {
        self.find(name).and_then(|value| match value {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        })
    }

    /// The value of a numeric option.
    pub fn number(&self, name: &str) -> Option<i64> {
        self.find(name).and_then(|value| match value {
            Value::Number(number) => Some(*number),
            _ => None,
        })
    }

    /// The value of a duration option.
    pub fn duration(&self, name: &str) -> Option<Duration> {
        self.find(name).and_then(|value| match value {
            Value::Duration(duration) => Some(*duration),
            _ => None,
        })
    }

    /// The value of a text option, unless it is empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.find(name).and_then(|value| match value {
            Value::Text(text) if !text.is_empty() => Some(text.as_str()),
            _ => None,
        })
    }

    fn find(&self, name: &str) -> Option<&Value> {
        self.options.iter().find(|(option, _)| *option == name).map(|(_, value)| value)
    }

    /// The single argument; an empty string if there is none, which [`Command`] rules out for commands that need one.
    pub fn argument(&self) -> &str {
        self.arguments.first().map_or("", String::as_str)
    }

    /// Runs work within the command's timeout.
    ///
    /// # Errors
    /// The error of the work, or 408 on a timeout.
    pub async fn within<T>(&self, work: impl Future<Output = Result<T, RpcError>>) -> Result<T, RpcError> {
        match self.timeout {
            None => work.await,
            Some((allowed, until)) => {
                tokio::time::timeout_at(until, work).await.unwrap_or_else(|_| Err(timed_out(allowed)))
            }
        }
    }

    /// The timeout and the connection of the command's answer.
    pub fn limits(&self) -> StreamLimits {
        StreamLimits { timeout: self.timeout, connection: self.connection.clone(), takes_trailers: self.takes_trailers }
    }

    fn read(command: &Command, head: &Parts) -> Result<Self, RpcError> {
        let (mut arguments, mut options) = (Vec::new(), Vec::new());
        let query = head.uri.query().unwrap_or_default();
        if query.len() > QUERY_BYTES_MAX {
            return Err(RpcError::bad_request(format!("the query has more than {QUERY_BYTES_MAX} bytes")));
        }
        for (name, value) in url::pairs(query) {
            let (name, value) = (decode(name)?, decode(value)?);
            if name == "arg" {
                arguments.push(value);
                continue;
            }
            let Some(option) = command.option(&name) else { continue };
            if options.iter().any(|(known, _)| *known == option.name) {
                let message = format!("the option \"{}\" is given more than once", option.name);
                return Err(RpcError::bad_request(message));
            }
            if let Some(value) = option.read(&value)? {
                options.push((option.name, value));
            }
        }
        Self::new(arguments, options, &head.headers)
    }

    fn new(arguments: Vec<String>, options: Vec<(&'static str, Value)>, headers: &HeaderMap) -> Result<Self, RpcError> {
        let mut call = Self {
            arguments,
            encoding: Encoding::Json,
            cids: CidText::default(),
            offline: false,
            client: Ipv4Addr::LOCALHOST.into(),
            takes_trailers: takes_trailers(headers),
            options,
            timeout: None,
            connection: None,
        };
        call.encoding = match call.text("encoding") {
            None | Some("json") => Encoding::Json,
            Some("text") => Encoding::Text,
            Some(other) => {
                return Err(RpcError::bad_request(format!(
                    "the encoding must be \"json\" or \"text\", and not \"{other}\""
                )));
            }
        };
        call.cids = CidText::new(call.text("cid-base"), call.flag("upgrade-cidv0-in-output"))?;
        call.offline = call.flag("offline") == Some(true) || call.flag("local") == Some(true);
        let allowed = call.duration("timeout").filter(|allowed| *allowed < TIMEOUT_MAX);
        call.timeout = allowed.map(|allowed| (allowed, Instant::now() + allowed));
        Ok(call)
    }

    fn set_client(&mut self, head: &Parts) {
        self.connection = head.extensions.get::<Arc<Connection>>().cloned();
        if let Some(connection) = &self.connection {
            self.client = connection.peer().ip();
        }
    }

    fn check_arguments(&self, command: &Command) -> Result<(), RpcError> {
        let (given, takes) = (self.arguments.len(), &command.arguments);
        if given < takes.least {
            return Err(RpcError::bad_request(format!("the argument \"arg\" is required: {}", takes.about)));
        }
        if given > takes.most {
            return Err(RpcError::bad_request(format!("{} arguments at most, not {given}", takes.most)));
        }
        match self.arguments.iter().any(String::is_empty) {
            true => Err(RpcError::bad_request("an argument is empty")),
            false => Ok(()),
        }
    }

    async fn read_arguments(&mut self, head: &Parts, body: Body) -> Result<(), RpcError> {
        if BodyCoding::of(&head.headers) != Ok(BodyCoding::Identity) {
            let message = "the arguments of a command must be sent without Content-Encoding";
            return Err(RpcError { status: StatusCode::UNSUPPORTED_MEDIA_TYPE, message: message.to_owned() });
        }
        if let Some(boundary) = files::boundary(&head.headers) {
            let room = ARGUMENTS_MAX + 1 - self.arguments.len().min(ARGUMENTS_MAX);
            let lines = files::first_as_text(body, boundary).await?;
            let lines = lines.lines().map(str::trim).filter(|line| !line.is_empty());
            self.arguments.extend(lines.take(room).map(str::to_owned));
        }
        Ok(())
    }
}

/// The timeout of a streamed answer, and the connection to reset if it fails.
#[derive(Debug, Clone)]
pub struct StreamLimits {
    timeout: Option<(Duration, Instant)>,
    connection: Option<Arc<Connection>>,
    /// Whether the client accepts trailers.
    pub takes_trailers: bool,
}

impl StreamLimits {
    /// Waits for a part of an answer.
    ///
    /// # Errors
    /// 408 on a timeout.
    pub async fn wait<T>(&self, next: impl Future<Output = T>) -> Result<T, RpcError> {
        match self.timeout {
            None => Ok(next.await),
            Some((allowed, until)) => tokio::time::timeout_at(until, next).await.map_err(|_| timed_out(allowed)),
        }
    }

    /// Resets the connection when it closes, so that the client does not take the answer for complete.
    pub fn reset_connection(&self) {
        self.connection.iter().for_each(|connection| connection.response_aborted());
    }
}

/// Clients look for "context deadline exceeded".
fn timed_out(allowed: Duration) -> RpcError {
    let message = format!("context deadline exceeded: the command did not finish within {}", duration::show(allowed));
    RpcError { status: StatusCode::REQUEST_TIMEOUT, message }
}

fn takes_trailers(headers: &HeaderMap) -> bool {
    let values = headers.get_all(TE).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|one| one.trim().eq_ignore_ascii_case("trailers"))
}

/// Form-decodes a name or value: `+` is a space.
fn decode(text: &str) -> Result<String, RpcError> {
    let bad = || RpcError::bad_request("the query has an invalid percent-encoding, or is not UTF-8");
    let mut escapes = text.split('%').skip(1);
    if !escapes.all(|rest| rest.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))) {
        return Err(bad());
    }
    String::from_utf8(url::form_decoded(text.as_bytes())).map_err(|_| bad())
}

impl Opt {
    /// Parses a value; none if it has no effect.
    fn read(&self, text: &str) -> Result<Option<Value>, RpcError> {
        let unreadable =
            |what: &str| RpcError::bad_request(format!("the option \"{}\" must be {what}, not \"{text}\"", self.name));
        let refused =
            || RpcError::bad_request(format!("the option \"{}\" is not supported: {}", self.name, self.about));
        let value = match self.kind {
            Kind::Flag => Value::Flag(boolean(text).ok_or_else(|| unreadable("true or false"))?),
            Kind::Number { least, most } => {
                let number = integer(text).filter(|number| (least..=most).contains(number));
                Value::Number(number.ok_or_else(|| unreadable("a whole number that fits"))?)
            }
            Kind::Duration => {
                let read = duration::parse(text);
                Value::Duration(read.ok_or_else(|| unreadable("a duration such as \"1m30s\""))?)
            }
            Kind::Text => Value::Text(text.to_owned()),
            Kind::UnsupportedFlag => match boolean(text) {
                Some(false) => return Ok(None),
                Some(true) => return Err(refused()),
                None => return Err(unreadable("true or false")),
            },
            Kind::UnsupportedValue => return Err(refused()),
            Kind::Client => return Ok(None),
        };
        Ok(Some(value))
    }
}

/// Parses a boolean in Go's syntax (<https://pkg.go.dev/strconv#ParseBool>), case-insensitively; an empty one is true.
fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "" | "1" | "t" | "true" => Some(true),
        "0" | "f" | "false" => Some(false),
        _ => None,
    }
}

/// Parses an integer in Go's syntax (<https://pkg.go.dev/strconv#ParseInt> with base 0), except for underscores.
fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, &lower[..]),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let value = i128::from_str_radix(digits, radix).ok()?;
    i64::try_from(if negative { -value } else { value }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubo_rpc::command::{self, Answers, Arguments, Input};
    use axum::http::header::CONTENT_TYPE;
    use proptest::prelude::*;

    static COMMAND: Command = Command {
        path: "test",
        arguments: Arguments { least: 1, most: 2, about: "what to test", in_body: true },
        options: &[
            command::flag("recursive", "").or("r"),
            command::number("level", "").or("l"),
            command::long_number("offset", ""),
            command::text("name", "").or("n"),
            command::unsupported_flag("nocopy", "files are never left where they are"),
            command::unsupported_value("to-files", "there is no MFS"),
        ],
        body: Input::Arguments,
        answers: Answers::Value,
    };

    fn head(query: &str) -> Option<Parts> {
        let uri: axum::http::Uri = format!("/api/v0/test?{query}").parse().ok()?;
        Request::builder().uri(uri).body(()).ok().map(|request| request.into_parts().0)
    }

    fn read(query: &str) -> Result<Call, RpcError> {
        Call::of(&COMMAND, &head(query).expect("a query"))
    }

    #[test]
    fn options_have_two_names_and_arguments_are_repeated() {
        let call = read("arg=a+b%2Bc&r&l=0x10&n=x%20y&arg=%C3%A4&unknown=1&offset=-5").expect("reads");
        assert_eq!(call.arguments, ["a b+c", "ä"]);
        assert_eq!(call.flag("recursive"), Some(true));
        assert_eq!((call.number("level"), call.number("offset")), (Some(16), Some(-5)));
        assert_eq!((call.text("name"), call.text("unknown")), (Some("x y"), None));
        assert_eq!((call.encoding, call.offline), (Encoding::Json, false));
        let call = read("arg=a&encoding=text&offline=true&recursive=F&n=&nocopy=false").expect("reads");
        assert_eq!((call.encoding, call.offline), (Encoding::Text, true));
        assert_eq!((call.flag("recursive"), call.text("name")), (Some(false), None));
    }

    #[test]
    fn invalid_options_are_rejected_by_name() {
        let table = [
            ("", "\"arg\" is required"),
            ("arg=", "empty"),
            ("arg=a&arg=b&arg=c", "2 arguments at most"),
            ("arg=a&r=maybe", "\"recursive\" must be true or false"),
            ("arg=a&level=many", "\"level\" must be a whole number"),
            ("arg=a&level=4294967296", "\"level\" must be a whole number"),
            ("arg=a&r=1&recursive=1", "more than once"),
            ("arg=a&timeout=5", "\"timeout\" must be a duration"),
            ("arg=a&nocopy=true", "\"nocopy\" is not supported"),
            ("arg=a&to-files=/", "there is no MFS"),
            ("arg=a&encoding=xml", "\"json\" or \"text\""),
            ("arg=a&cid-base=base1", "base1"),
            ("arg=%", "percent-encoding"),
            ("arg=%ff", "UTF-8"),
        ];
        for (query, message) in table {
            let error = read(query).expect_err(query);
            assert_eq!(error.status, StatusCode::BAD_REQUEST, "{query}");
            assert!(error.message.contains(message), "{query}: {error}");
        }
    }

    #[test]
    fn booleans_and_numbers_have_the_syntax_of_go() {
        for (text, expected) in [("", Some(true)), ("T", Some(true)), ("FALSE", Some(false)), ("yes", None)] {
            assert_eq!(boolean(text), expected, "{text}");
        }
        let table = [
            ("42", Some(42)),
            ("+42", Some(42)),
            ("-0x10", Some(-16)),
            ("0755", Some(0o755)),
            ("0o17", Some(15)),
            ("0b101", Some(5)),
            ("0", Some(0)),
            ("08", None),
            ("", None),
            ("-", None),
            ("--1", None),
            ("0x", None),
            ("0x-1", None),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
        ];
        for (text, expected) in table {
            assert_eq!(integer(text), expected, "{text}");
        }
    }

    #[tokio::test]
    async fn a_command_ends_at_its_timeout() {
        let call = read("arg=a&timeout=20ms").expect("reads");
        let error = call.within(std::future::pending::<Result<(), _>>()).await.expect_err("it times out");
        assert_eq!(error.status, StatusCode::REQUEST_TIMEOUT);
        assert!(error.message.contains("context deadline exceeded"), "{error}");
        assert!(call.limits().wait(std::future::pending::<()>()).await.is_err());
        assert_eq!(read("arg=a").expect("reads").within(async { Ok(5) }).await, Ok(5));
    }

    #[tokio::test]
    async fn arguments_may_be_in_the_body() {
        let form =
            "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"stdin\"\r\n\r\none\n two \n\r\n--x--\r\n";
        let request = |query: &str| {
            let request = Request::builder().uri(format!("/api/v0/test?{query}"));
            let request = request.header(CONTENT_TYPE, "multipart/form-data; boundary=x");
            request.body(Body::from(form)).expect("a request")
        };
        let call = Call::receive(&COMMAND, request("")).await.expect("reads");
        assert_eq!(call.arguments, ["one", "two"]);
        let call = Call::receive(&COMMAND, request("arg=three")).await.expect("reads");
        assert_eq!(call.arguments, ["three"]);
        let mut encoded = request("");
        encoded.headers_mut().insert("content-encoding", "zstd".parse().expect("a value"));
        let error = Call::receive(&COMMAND, encoded).await.expect_err("arguments are not encoded");
        assert_eq!(error.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{error}");
    }

    proptest! {
        #[test]
        fn no_query_panics(query in "[a-z=&%0-9+._-]{0,60}") {
            if let Some(head) = head(&query) {
                _ = Call::of(&COMMAND, &head);
            }
        }

        #[test]
        fn any_argument_survives(argument in "\\PC{1,20}") {
            let encoded = percent_encoding::utf8_percent_encode(&argument, percent_encoding::NON_ALPHANUMERIC);
            let call = read(&format!("arg={encoded}")).expect("reads");
            prop_assert_eq!(call.arguments, [argument]);
        }
    }
}
