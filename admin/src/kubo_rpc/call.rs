//! [`Call`]: a request as a command with its arguments and options, read as Kubo reads it
//! (<https://docs.ipfs.tech/reference/kubo/rpc/>, and the package `go-ipfs-cmds`, which has no other description).
//!
//! Arguments are repeated as `arg`; options have long and short names, and each at most one value. Flags are what Go takes for
//! booleans, and an empty one is yes. Numbers may be written as in Go's source, `0x1f` or `0o644`.
//!
//! Departure: what cannot be decoded is refused and not passed over.

use crate::kubo_rpc::cids::CidText;
use crate::kubo_rpc::command::{ARGUMENTS_MAX, Command, Kind, Opt};
use crate::kubo_rpc::problem::RpcError;
use crate::kubo_rpc::{duration, files};
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::TE;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use gateway::listen::server::Connection;
use services::url::form_decoded;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The longest query that is read, in bytes.
const QUERY_BYTES_MAX: usize = 24 * 1024;
/// The longest time that is counted; a longer one is none.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// How an answer is written.
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

/// A command that is to be done.
#[derive(Debug)]
pub struct Call {
    /// What it works on.
    pub arguments: Vec<String>,
    /// How its answer is written.
    pub encoding: Encoding,
    /// How CIDs are written.
    pub cids: CidText,
    /// Whether nobody is asked for what is not held here.
    pub offline: bool,
    /// Who asks.
    pub client: IpAddr,
    /// Whether an error may follow the answer's body.
    pub takes_trailers: bool,
    options: Vec<(&'static str, Value)>,
    timeout: Option<(Duration, Instant)>,
    connection: Option<Arc<Connection>>,
}

impl Call {
    /// Reads a request of a command whose body is looked at by somebody else.
    ///
    /// # Errors
    /// A 400 that says what cannot be read.
    pub fn of(command: &Command, head: &Parts) -> Result<Self, RpcError> {
        let mut call = Self::read(command, head)?;
        call.check_arguments(command)?;
        call.note_client(head);
        Ok(call)
    }

    /// Reads a request whose arguments may be in its body.
    ///
    /// # Errors
    /// A 400 that says what cannot be read.
    pub async fn receive(command: &Command, request: Request) -> Result<Self, RpcError> {
        let (head, body) = request.into_parts();
        let mut call = Self::read(command, &head)?;
        if command.arguments.in_body && call.arguments.len() < command.arguments.least {
            call.read_arguments(&head, body).await?;
        }
        call.check_arguments(command)?;
        call.note_client(&head);
        Ok(call)
    }

    /// Whether an option is set.
    pub fn flag(&self, name: &str) -> Option<bool> {
        self.find(name).and_then(|value| match value {
            Value::Flag(flag) => Some(*flag),
            _ => None,
        })
    }

    /// The number that an option says.
    pub fn number(&self, name: &str) -> Option<i64> {
        self.find(name).and_then(|value| match value {
            Value::Number(number) => Some(*number),
            _ => None,
        })
    }

    /// The duration that an option says.
    pub fn duration(&self, name: &str) -> Option<Duration> {
        self.find(name).and_then(|value| match value {
            Value::Duration(duration) => Some(*duration),
            _ => None,
        })
    }

    /// The text that an option says, unless it is empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.find(name).and_then(|value| match value {
            Value::Text(text) if !text.is_empty() => Some(text.as_str()),
            _ => None,
        })
    }

    fn find(&self, name: &str) -> Option<&Value> {
        self.options.iter().find(|(option, _)| *option == name).map(|(_, value)| value)
    }

    /// The one argument; an empty text if there is none, which no command with one gets.
    pub fn argument(&self) -> &str {
        self.arguments.first().map_or("", String::as_str)
    }

    /// Waits for work as long as the command may take.
    ///
    /// # Errors
    /// What the work says, or that it took too long.
    pub async fn within<T>(&self, work: impl Future<Output = Result<T, RpcError>>) -> Result<T, RpcError> {
        match self.timeout {
            None => work.await,
            Some((allowed, until)) => tokio::time::timeout_at(until, work).await.unwrap_or_else(|_| Err(late(allowed))),
        }
    }

    /// What ends streams that take too long, and the connections of those that break off.
    pub fn limits(&self) -> StreamLimits {
        StreamLimits { timeout: self.timeout, connection: self.connection.clone(), takes_trailers: self.takes_trailers }
    }

    fn read(command: &Command, head: &Parts) -> Result<Self, RpcError> {
        let (mut arguments, mut options) = (Vec::new(), Vec::new());
        let query = head.uri.query().unwrap_or_default();
        if query.len() > QUERY_BYTES_MAX {
            return Err(RpcError::bad(format!("the query has more than {QUERY_BYTES_MAX} bytes")));
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            if name == "arg" {
                arguments.push(value);
                continue;
            }
            let Some(option) = command.option(&name) else { continue };
            if options.iter().any(|(taken, _)| *taken == option.name) {
                let words = format!("the option \"{}\" is given more than once", option.name);
                return Err(RpcError::bad(words));
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
                return Err(RpcError::bad(format!("the encoding is \"json\" or \"text\", and not \"{other}\"")));
            }
        };
        call.cids = CidText::new(call.text("cid-base"), call.flag("upgrade-cidv0-in-output"))?;
        call.offline = call.flag("offline") == Some(true) || call.flag("local") == Some(true);
        let allowed = call.duration("timeout").filter(|allowed| *allowed < TIMEOUT_MAX);
        call.timeout = allowed.map(|allowed| (allowed, Instant::now() + allowed));
        Ok(call)
    }

    fn note_client(&mut self, head: &Parts) {
        self.connection = head.extensions.get::<Arc<Connection>>().cloned();
        if let Some(connection) = &self.connection {
            self.client = connection.peer().ip();
        }
    }

    fn check_arguments(&self, command: &Command) -> Result<(), RpcError> {
        let (given, takes) = (self.arguments.len(), &command.arguments);
        if given < takes.least {
            return Err(RpcError::bad(format!("the argument \"arg\" is required: {}", takes.about)));
        }
        if given > takes.most {
            return Err(RpcError::bad(format!("{} arguments at most, not {given}", takes.most)));
        }
        match self.arguments.iter().any(String::is_empty) {
            true => Err(RpcError::bad("an argument is empty")),
            false => Ok(()),
        }
    }

    async fn read_arguments(&mut self, head: &Parts, body: Body) -> Result<(), RpcError> {
        if let Some(boundary) = files::boundary(&head.headers) {
            let room = ARGUMENTS_MAX + 1 - self.arguments.len().min(ARGUMENTS_MAX);
            let lines = files::first_as_text(body, boundary).await?;
            let lines = lines.lines().map(str::trim).filter(|line| !line.is_empty());
            self.arguments.extend(lines.take(room).map(str::to_owned));
        }
        Ok(())
    }
}

/// What ends a stream early.
#[derive(Debug, Clone)]
pub struct StreamLimits {
    timeout: Option<(Duration, Instant)>,
    connection: Option<Arc<Connection>>,
    /// Whether an error may follow the answer's body.
    pub takes_trailers: bool,
}

impl StreamLimits {
    /// Waits for a part of an answer.
    ///
    /// # Errors
    /// That it took too long.
    pub async fn wait<T>(&self, next: impl Future<Output = T>) -> Result<T, RpcError> {
        match self.timeout {
            None => Ok(next.await),
            Some((allowed, until)) => tokio::time::timeout_at(until, next).await.map_err(|_| late(allowed)),
        }
    }

    /// Has the connection end in a way that nobody takes for the end of the answer.
    pub fn break_off(&self) {
        self.connection.iter().for_each(|connection| connection.reset_on_close());
    }
}

/// Clients look for these words.
fn late(allowed: Duration) -> RpcError {
    let message = format!("context deadline exceeded: it was not done within {}", duration::show(allowed));
    RpcError { status: StatusCode::REQUEST_TIMEOUT, message }
}

fn takes_trailers(headers: &HeaderMap) -> bool {
    let values = headers.get_all(TE).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|one| one.trim().eq_ignore_ascii_case("trailers"))
}

/// Decodes a name or value as forms are written: `+` is a space.
fn decode(text: &str) -> Result<String, RpcError> {
    let bad = || RpcError::bad("the query has a percent sign without two hexadecimal digits, or is not UTF-8");
    let mut escapes = text.split('%').skip(1);
    if !escapes.all(|rest| rest.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))) {
        return Err(bad());
    }
    String::from_utf8(form_decoded(text.as_bytes())).map_err(|_| bad())
}

impl Opt {
    /// The value that a text says; none if it says what is so anyway.
    fn read(&self, text: &str) -> Result<Option<Value>, RpcError> {
        let unreadable = |what: &str| RpcError::bad(format!("the option \"{}\" is {what}, not \"{text}\"", self.name));
        let refused = || RpcError::bad(format!("the option \"{}\" is not supported: {}", self.name, self.about));
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
            Kind::NoFlag => match boolean(text) {
                Some(false) => return Ok(None),
                Some(true) => return Err(refused()),
                None => return Err(unreadable("true or false")),
            },
            Kind::NoValue => return Err(refused()),
            Kind::Client => return Ok(None),
        };
        Ok(Some(value))
    }
}

/// What Go takes for a boolean (<https://pkg.go.dev/strconv#ParseBool>), in any case; nothing at all is yes.
fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "" | "1" | "t" | "true" => Some(true),
        "0" | "f" | "false" => Some(false),
        _ => None,
    }
}

/// What Go takes for a whole number in its source (<https://pkg.go.dev/strconv#ParseInt> with base 0), underscores aside.
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
            command::no_flag("nocopy", "files are never left where they are"),
            command::no_value("to-files", "there is no MFS"),
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
    fn what_cannot_be_read_is_refused_with_its_name() {
        let table = [
            ("", "\"arg\" is required"),
            ("arg=", "empty"),
            ("arg=a&arg=b&arg=c", "2 arguments at most"),
            ("arg=a&r=maybe", "\"recursive\" is true or false"),
            ("arg=a&level=many", "\"level\" is a whole number"),
            ("arg=a&level=4294967296", "\"level\" is a whole number"),
            ("arg=a&r=1&recursive=1", "more than once"),
            ("arg=a&timeout=5", "\"timeout\" is a duration"),
            ("arg=a&nocopy=true", "\"nocopy\" is not supported"),
            ("arg=a&to-files=/", "there is no MFS"),
            ("arg=a&encoding=xml", "\"json\" or \"text\""),
            ("arg=a&cid-base=base1", "base1"),
            ("arg=%", "percent"),
            ("arg=%ff", "UTF-8"),
        ];
        for (query, words) in table {
            let error = read(query).expect_err(query);
            assert_eq!(error.status, StatusCode::BAD_REQUEST, "{query}");
            assert!(error.message.contains(words), "{query}: {error}");
        }
    }

    #[test]
    fn booleans_and_numbers_are_gos() {
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
    async fn a_command_ends_when_its_time_is_over() {
        let call = read("arg=a&timeout=20ms").expect("reads");
        let error = call.within(std::future::pending::<Result<(), _>>()).await.expect_err("too late");
        assert_eq!(error.status, StatusCode::REQUEST_TIMEOUT);
        assert!(error.message.contains("context deadline exceeded"), "{error}");
        assert!(call.limits().wait(std::future::pending::<()>()).await.is_err());
        assert_eq!(read("arg=a").expect("reads").within(async { Ok(5) }).await, Ok(5));
    }

    #[tokio::test]
    async fn arguments_may_come_in_the_body() {
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
