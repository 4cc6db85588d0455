//! [`Command`]: what a command takes, written down once: requests are read by it ([`crate::kubo_rpc::call`]), and it is what the
//! description of the API says.
//!
//! Options that Kubo has and that mean nothing here are in it too, with the reason why they are refused; what neither has is
//! passed over, as Kubo does, since clients send whatever their callers name.

use api::error::KuboError;
use axum::http::StatusCode;
use serde_json::json;
use utoipa::ToSchema as _;
use utoipa::openapi::path::{Operation, Parameter, ParameterBuilder, ParameterIn};
use utoipa::openapi::request_body::{RequestBody, RequestBodyBuilder};
use utoipa::openapi::schema::{ArrayBuilder, KnownFormat, Schema, SchemaFormat, Type};
use utoipa::openapi::{Content, ObjectBuilder, RefOr, Required, Response, ResponseBuilder};
use utoipa_axum::router::UtoipaMethodRouter;

/// A CID that holds its own content, as an example that works anywhere.
const EXAMPLE: &str = "bafkqac3imvwgy3zao5xxe3de";

/// A command.
#[derive(Debug)]
pub struct Command {
    /// Its path below `/api/v0/`.
    pub path: &'static str,
    /// What it works on, given as `arg`.
    pub arguments: Arguments,
    /// What can be said besides.
    pub options: &'static [Opt],
    /// What its body is.
    pub body: Input,
    /// What it answers.
    pub answers: Answers,
}

/// The arguments of a command.
#[derive(Debug)]
pub struct Arguments {
    /// How many it needs.
    pub least: usize,
    /// How many it takes.
    pub most: usize,
    /// What they are.
    pub about: &'static str,
    /// Whether they may come in the body as well, a line each.
    pub in_body: bool,
}

/// What the body of a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// Nothing, or arguments.
    Arguments,
    /// Files, as parts of a form.
    Files,
}

/// What a command answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answers {
    /// One value.
    Value,
    /// Any number of values, one after the other, or one.
    Lines,
    /// Bytes.
    Bytes,
}

/// An option of a command.
#[derive(Debug)]
pub struct Opt {
    /// Its name.
    pub name: &'static str,
    /// Its other name, of a letter usually.
    pub short: Option<&'static str>,
    /// What can be given.
    pub kind: Kind,
    /// What it does.
    pub about: &'static str,
}

/// What an option takes.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// Yes or no. To name it is to say yes.
    Flag,
    /// A whole number.
    Number {
        /// The least.
        least: i64,
        /// The most.
        most: i64,
    },
    /// A duration as Go writes it.
    Duration,
    /// Any text.
    Text,
    /// Yes or no, and yes is refused.
    NoFlag,
    /// Whatever it is, it is refused.
    NoValue,
    /// Whatever it is, and however often, it is for the client alone.
    Client,
}

/// The most arguments that a command takes.
pub const ARGUMENTS_MAX: usize = 256;

impl Arguments {
    /// None.
    pub const NONE: Self = Self { least: 0, most: 0, about: "", in_body: false };

    /// Exactly one.
    pub const fn one(about: &'static str) -> Self {
        Self { least: 1, most: 1, about, in_body: true }
    }

    /// One, or none.
    pub const fn perhaps(about: &'static str) -> Self {
        Self { least: 0, most: 1, about, in_body: false }
    }

    /// At least `least`.
    pub const fn several(least: usize, about: &'static str) -> Self {
        Self { least, most: ARGUMENTS_MAX, about, in_body: least > 0 }
    }
}

/// An option that is yes or no.
pub const fn flag(name: &'static str, about: &'static str) -> Opt {
    Opt { name, short: None, kind: Kind::Flag, about }
}

/// An option that is a text.
pub const fn text(name: &'static str, about: &'static str) -> Opt {
    Opt { name, short: None, kind: Kind::Text, about }
}

/// An option that is a duration.
pub const fn duration(name: &'static str, about: &'static str) -> Opt {
    Opt { name, short: None, kind: Kind::Duration, about }
}

/// An option that is a number of at most 32 bits.
pub const fn number(name: &'static str, about: &'static str) -> Opt {
    Opt { name, short: None, kind: Kind::Number { least: i32::MIN as i64, most: i32::MAX as i64 }, about }
}

/// An option that is a number of 64 bits.
pub const fn long_number(name: &'static str, about: &'static str) -> Opt {
    Opt { name, short: None, kind: Kind::Number { least: i64::MIN, most: i64::MAX }, about }
}

/// An option that nothing can be made of here, and says so when it is set.
pub const fn no_flag(name: &'static str, why: &'static str) -> Opt {
    Opt { name, short: None, kind: Kind::NoFlag, about: why }
}

/// The same for one that has a value.
pub const fn no_value(name: &'static str, why: &'static str) -> Opt {
    Opt { name, short: None, kind: Kind::NoValue, about: why }
}

/// An option that clients act upon, and send along.
pub const fn client(name: &'static str, about: &'static str) -> Opt {
    Opt { name, short: None, kind: Kind::Client, about }
}

impl Opt {
    /// With another name.
    pub const fn or(self, short: &'static str) -> Self {
        Self { short: Some(short), ..self }
    }
}

/// Options of every command that pins: what is pinned is announced as the settings say.
pub const FAST_PROVIDE_ROOT: Opt =
    flag("fast-provide-root", "Has no effect: pinned roots are announced as the settings say.");
/// The same of everything below the root.
pub const FAST_PROVIDE_DAG: Opt =
    flag("fast-provide-dag", "Has no effect: what is pinned is announced as the settings say.");
/// Nobody waits for an announcement.
pub const FAST_PROVIDE_WAIT: Opt = flag("fast-provide-wait", "Has no effect.");

/// What every command takes (<https://docs.ipfs.tech/reference/kubo/rpc/>, and Kubo's root command).
pub const GLOBAL: &[Opt] = &[
    text("encoding", "How the answer is written: \"json\" (the default) or \"text\".").or("enc"),
    flag("stream-channels", "Answers of several lines are always sent line by line."),
    duration("timeout", "How long the command may take, as in \"1m30s\"; beyond that it is broken off."),
    flag("offline", "Nobody is asked for what is not held here."),
    flag("local", "An older name of \"offline\".").or("L"),
    text("cid-base", "The multibase in which CIDs are written, such as \"base32\"; they are of version 1 then."),
    flag("upgrade-cidv0-in-output", "Whether CIDs are written as version 1."),
];

impl Command {
    /// The option that has a name.
    pub fn option(&self, name: &str) -> Option<&'static Opt> {
        let mut all = self.options.iter().chain(GLOBAL);
        all.find(|option| option.name == name || option.short == Some(name))
    }

    /// Adds to the description of a route what is written down here.
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

/// What any command may answer when it does not do what it was asked for.
const PROBLEMS: [(StatusCode, &str); 11] = [
    (StatusCode::BAD_REQUEST, "The command cannot be understood."),
    (StatusCode::REQUEST_TIMEOUT, "It took longer than the option \"timeout\" allows, or its sender was silent."),
    (StatusCode::CONFLICT, "Something else happened to the same content or key meanwhile."),
    (StatusCode::GONE, "The content was taken down."),
    (
        StatusCode::UNPROCESSABLE_ENTITY,
        "There is no such thing: nothing at that path, no such pin, no such key, not held here.",
    ),
    (StatusCode::TOO_MANY_REQUESTS, "As much is under way as may be."),
    (StatusCode::UNAVAILABLE_FOR_LEGAL_REASONS, "The content is withheld for legal reasons."),
    (StatusCode::INTERNAL_SERVER_ERROR, "Something of this node is broken."),
    (StatusCode::BAD_GATEWAY, "What peers sent is not what was asked for."),
    (StatusCode::GATEWAY_TIMEOUT, "Nobody who has it was found in time."),
    (StatusCode::INSUFFICIENT_STORAGE, "There is no room for it."),
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
            "Files, as parts of a form. The file name is the path, percent-encoded. Folders have the type \
             application/x-directory and links application/symlink; mode and time follow the part's name, as in \
             \"file?mode=0644&mtime=1700000000\".",
        ))
        .content("multipart/form-data", Content::new(Some(Schema::from(form.build()))))
        .required(Some(Required::True))
        .build()
}

impl Answers {
    /// Values are JSON or text, as is asked for. Several of them are no JSON together, so the schema is that of a line.
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
            Kind::Flag | Kind::NoFlag => ObjectBuilder::new().schema_type(Type::Boolean),
            Kind::Number { least, most } => {
                ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(least)).maximum(Some(most))
            }
            Kind::Duration => ObjectBuilder::new().schema_type(Type::String).examples([json!("1m30s")]),
            Kind::Text | Kind::NoValue | Kind::Client => ObjectBuilder::new().schema_type(Type::String),
        };
        let about = match self.kind {
            Kind::NoFlag | Kind::NoValue => format!("Not supported: {}.", self.about),
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
