//! [`Command`]: the specification of a command. Requests are parsed by it ([`crate::kubo_rpc::call`]), and the OpenAPI
//! description is made from it.
//!
//! It includes options of Kubo that are not supported here, with the reason why they are rejected. Unknown options are
//! ignored, as in Kubo, since clients pass on all options of their callers.

use api::error::KuboError;
use axum::http::StatusCode;
use serde_json::json;
use utoipa::ToSchema as _;
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{ArrayBuilder, KnownFormat, Schema, SchemaFormat, Type};
use utoipa::openapi::{Content, ObjectBuilder, RefOr, Required, Response, ResponseBuilder};
use utoipa_axum::router::UtoipaMethodRouter;

/// A CID with an identity hash, as an example that works on every node.
const EXAMPLE: &str = "bafkqac3imvwgy3zao5xxe3de";

/// A command.
#[derive(Debug)]
pub struct Command {
    /// Its path below `/api/v0/`.
    pub path: &'static str,
    /// Its arguments, given as `arg`.
    pub arguments: Arguments,
    /// Its options.
    pub options: &'static [Opt],
    /// The kind of its body.
    pub body: Input,
    /// The kind of its answer.
    pub answers: Answers,
}

/// The arguments of a command.
#[derive(Debug)]
pub struct Arguments {
    /// The minimum number.
    pub least: usize,
    /// The maximum number.
    pub most: usize,
    /// The description.
    pub about: &'static str,
    /// Whether they may be in the body as well, one on each line.
    pub in_body: bool,
}

/// The kind of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// Empty, or arguments.
    Arguments,
    /// Files, as parts of a form.
    Files,
}

/// The kind of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// One value.
    Value,
    /// Any number of values, one on each line.
    Lines,
    /// Bytes.
    Bytes,
}

/// An option of a command.
#[derive(Debug)]
pub struct Opt {
    /// Its name.
    pub name: &'static str,
    /// Its short name or alias.
    pub short: Option<&'static str>,
    /// The kind of its value.
    pub kind: Kind,
    /// The description; the reason if it is not supported.
    pub about: &'static str,
}

/// The kind of an option's value.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// A boolean; true if the value is empty.
    Flag,
    /// A whole number.
    Number {
        /// The minimum.
        least: i64,
        /// The maximum.
        most: i64,
    },
    /// A duration in Go's format.
    Duration,
    /// Any text.
    Text,
    /// A boolean that is rejected if it is true.
    UnsupportedFlag,
    /// Any value; the option is rejected.
    UnsupportedValue,
    /// Any value, any number of times; the option only concerns the client and is ignored.
    Client,
}

/// The maximum number of arguments of any command.
pub const ARGUMENTS_MAX: usize = 256;

impl Arguments {
    /// No arguments.
    pub const NONE: Self = Self { least: 0, most: 0, about: "", in_body: false };

    /// Exactly one argument.
    pub const fn one(about: &'static str) -> Self {
        Self { least: 1, most: 1, about, in_body: true }
    }

    /// An optional argument.
    pub const fn perhaps(about: &'static str) -> Self {
        Self { least: 0, most: 1, about, in_body: false }
    }

    /// At least `least` arguments.
    pub const fn several(least: usize, about: &'static str) -> Self {
        Self { least, most: ARGUMENTS_MAX, about, in_body: least > 0 }
    }
}

/// A boolean option.
pub const fn flag(name: &'static str, about: &'static str) -> Opt {
    Opt { name, short: None, kind: Kind::Flag, about }
}

/// A text option.
pub const fn text(name: &'static str, about: &'static str) -> Opt {
    Opt { name, short: None, kind: Kind::Text, about }
}

/// A duration option.
pub const fn duration(name: &'static str, about: &'static str) -> Opt {
    Opt { name, short: None, kind: Kind::Duration, about }
}

/// A numeric option of 32 bits.
pub const fn number(name: &'static str, about: &'static str) -> Opt {
    Opt { name, short: None, kind: Kind::Number { least: i32::MIN as i64, most: i32::MAX as i64 }, about }
}

/// A numeric option of 64 bits.
pub const fn long_number(name: &'static str, about: &'static str) -> Opt {
    Opt { name, short: None, kind: Kind::Number { least: i64::MIN, most: i64::MAX }, about }
}

/// A boolean option that is not supported and is rejected if it is true.
pub const fn unsupported_flag(name: &'static str, why: &'static str) -> Opt {
    Opt { name, short: None, kind: Kind::UnsupportedFlag, about: why }
}

/// An option with a value that is not supported and is rejected.
pub const fn unsupported_value(name: &'static str, why: &'static str) -> Opt {
    Opt { name, short: None, kind: Kind::UnsupportedValue, about: why }
}

/// An option that only concerns the client.
pub const fn client(name: &'static str, about: &'static str) -> Opt {
    Opt { name, short: None, kind: Kind::Client, about }
}

impl Opt {
    /// Adds a short name or alias.
    pub const fn or(self, short: &'static str) -> Self {
        Self { short: Some(short), ..self }
    }
}

/// An option of every command that pins, which has no effect: the settings control which CIDs are provided to the DHT.
pub const FAST_PROVIDE_ROOT: Opt =
    flag("fast-provide-root", "Has no effect: pinned roots are provided according to the settings.");
/// The same option for the blocks below the root.
pub const FAST_PROVIDE_DAG: Opt =
    flag("fast-provide-dag", "Has no effect: pinned blocks are provided according to the settings.");
/// No command waits until a CID is provided.
pub const FAST_PROVIDE_WAIT: Opt = flag("fast-provide-wait", "Has no effect.");

/// The options of every command (<https://docs.ipfs.tech/reference/kubo/rpc/>, and Kubo's root command).
pub const GLOBAL: &[Opt] = &[
    text("encoding", "The encoding of the answer: \"json\" (the default) or \"text\".").or("enc"),
    flag("stream-channels", "Has no effect: answers with several values are always streamed."),
    duration("timeout", "The timeout of the command, such as \"1m30s\"."),
    flag("offline", "Whether only locally stored blocks are read."),
    flag("local", "An older name of \"offline\".").or("L"),
    text("cid-base", "The multibase of CIDs in the answer, such as \"base32\", which converts them to version 1."),
    flag("upgrade-cidv0-in-output", "Whether CIDs in the answer are converted to version 1."),
];

impl Command {
    /// The option with a name or short name.
    pub fn option(&self, name: &str) -> Option<&'static Opt> {
        let mut all = self.options.iter().chain(GLOBAL);
        all.find(|option| option.name == name || option.short == Some(name))
    }

    /// Adds the arguments, options and errors of the command to the description of its route.
    pub fn describe<S>(&self, (schemas, mut paths, router): UtoipaMethodRouter<S>) -> UtoipaMethodRouter<S> {
        for item in paths.paths.values_mut() {
            if let Some(operation) = &mut item.post {
                self.describe_operation(operation);
            }
        }
        (schemas, paths, router)
    }

    fn describe_operation(&self, operation: &mut Operation) {
        let parameters = operation.parameters.get_or_insert_default();
        let options = self.options.iter().chain(GLOBAL).flat_map(Opt::parameters);
        parameters.extend(self.arguments.parameter().into_iter().chain(options).map(RefOr::T));
        operation.request_body = match self.body {
            Input::Files => Some(RefOr::T(files())),
            Input::Arguments => None,
        };
        if let Some(RefOr::T(answer)) = operation.responses.responses.get_mut("200") {
            self.answers.describe(answer);
        }
        for (status, about) in PROBLEMS {
            operation.responses.responses.entry(status.as_str().to_owned()).or_insert_with(|| RefOr::T(problem(about)));
        }
        operation.operation_id = Some(format!("kubo_{}", self.path.replace('/', "_")));
    }
}

/// The error statuses of every command.
const PROBLEMS: [(StatusCode, &str); 11] = [
    (StatusCode::BAD_REQUEST, "An argument, an option or the body is invalid."),
    (StatusCode::REQUEST_TIMEOUT, "The option \"timeout\" was exceeded, or the client stalled while it sent the body."),
    (StatusCode::CONFLICT, "A concurrent request changed the same pin or key."),
    (StatusCode::GONE, "The policy withholds the content."),
    (StatusCode::UNPROCESSABLE_ENTITY, "The path, pin or key does not exist, or a block is not stored locally."),
    (StatusCode::TOO_MANY_REQUESTS, "A concurrency limit is reached."),
    (StatusCode::UNAVAILABLE_FOR_LEGAL_REASONS, "The policy withholds the content for legal reasons."),
    (StatusCode::INTERNAL_SERVER_ERROR, "The node failed."),
    (StatusCode::BAD_GATEWAY, "A peer sent an invalid block."),
    (StatusCode::GATEWAY_TIMEOUT, "No provider was found in time."),
    (StatusCode::INSUFFICIENT_STORAGE, "The disk is full, or a quota is exceeded."),
];

fn problem(about: &str) -> Response {
    let content = Content::new(Some(utoipa::openapi::Ref::from_schema_name(KuboError::name())));
    ResponseBuilder::new().description(about).content("application/json", content).build()
}

fn files() -> RequestBody {
    let file =
        ObjectBuilder::new().schema_type(Type::String).format(Some(SchemaFormat::KnownFormat(KnownFormat::Binary)));
    let form = ObjectBuilder::new().property("file", file).required("file");
    RequestBodyBuilder::new()
        .description(Some(
            "Files, as parts of a form. The file name is the percent-encoded path. Folders have the media type \
             application/x-directory and symlinks application/symlink; mode and time are appended to the name of the \
             part, such as \"file?mode=0644&mtime=1700000000\".",
        ))
        .content("multipart/form-data", Content::new(Some(Schema::from(form.build()))))
        .required(Some(Required::True))
        .build()
}

impl Answers {
    /// Values are JSON or text, by the option `encoding`. Several values are not one JSON document, so the schema is
    /// that of a line.
    fn describe(self, answer: &mut Response) {
        if self == Self::Bytes {
            return;
        }
        if let (Self::Lines, Some(RefOr::T(content))) = (self, answer.content.get_mut("application/json")) {
            let schema = content.schema.take().and_then(|schema| serde_json::to_value(schema).ok());
            let lines = schema.map(|schema| ("x-line-schema", schema));
            content.extensions = Some(lines.into_iter().collect());
        }
        answer.content.insert("text/plain".to_owned(), RefOr::T(Content::default()));
    }
}

impl Arguments {
    fn parameter(&self) -> Option<Parameter> {
        if self.most == 0 {
            return None;
        }
        let items = ObjectBuilder::new().schema_type(Type::String).examples([json!(EXAMPLE)]);
        let array = ArrayBuilder::new().items(items).min_items(Some(self.least)).max_items(Some(self.most));
        let required = if self.least > 0 { Required::True } else { Required::False };
        Some(parameter("arg", self.about, Schema::Array(array.build()), required))
    }
}

impl Opt {
    fn parameters(&self) -> Vec<Parameter> {
        let schema = || match self.kind {
            Kind::Flag | Kind::UnsupportedFlag => ObjectBuilder::new().schema_type(Type::Boolean),
            Kind::Number { least, most } => {
                ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(least)).maximum(Some(most))
            }
            Kind::Duration => ObjectBuilder::new().schema_type(Type::String).examples([json!("1m30s")]),
            Kind::Text | Kind::UnsupportedValue | Kind::Client => ObjectBuilder::new().schema_type(Type::String),
        };
        let about = match self.kind {
            Kind::UnsupportedFlag | Kind::UnsupportedValue => format!("Not supported: {}.", self.about),
            _ => self.about.to_owned(),
        };
        let short = self.short.map(|short| (short, format!("The same as \"{}\".", self.name)));
        let names = std::iter::once((self.name, about)).chain(short);
        names.map(|(name, about)| parameter(name, &about, Schema::from(schema().build()), Required::False)).collect()
    }
}

fn parameter(name: &str, about: &str, schema: Schema, required: Required) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Query)
        .description(Some(about))
        .required(required)
        .schema(Some(schema))
        .build()
}
