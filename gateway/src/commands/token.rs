//! `causeway token`: who may use the admin API.
//!
//! Goals: a token is made and revoked on the gateway's machine and nowhere else, whether the gateway runs or not; its secret is
//! shown once, alone on standard output, so that it goes from there into a file or a store of secrets.

use crate::admin::access::book::{Book, Terms};
use crate::admin::access::{Quota, Scope};
use crate::admin::access_api::{TokenView, TokensView};
use crate::admin::store_views::size;
use crate::commands::output::{print_view, table};
use crate::commands::place::{Asking, Place, RUNNING};
use crate::commands::remote::running;
use crate::commands::values::{bytes, duration, moment};
use clap::{Args, Subcommand};
use config::{Flags, Loaded};
use serde::Serialize;
use std::time::Duration;

const HELP: &str = "\
A token is good for what its scopes say, and for nothing else:
  read      looking: metrics, figures, peers, requests, settings, content
  pin       pinning and uploading, and removing what it has pinned; what other
            tokens pinned it neither sees nor changes
  operate   changing how the gateway runs: the store (add, import), purge, warm,
            drain, keys and names, everybody's pins; explain; the audit log
  takedown  deciding what is not served

Commands on the gateway's own data folder need none: they use the one in DATA_DIR/admin.token.";

const CREATE: &str = "\
Examples:
  causeway token create --scope pin --name ci --expires 90d > ci.token
  causeway token create --scope pin --pins-max 100 --bytes-max 50GiB
  causeway token create --scope read,operate --name console --json
For Kubo:
  ipfs pin remote service add causeway http://127.0.0.1:8081/psa \"$(cat ci.token)\"";

const SHOW: &str = "\
Examples:
  causeway token show
  causeway token show --token-file ci.token";

/// `causeway token`
#[derive(Debug, Subcommand)]
#[command(after_help = HELP)]
pub enum TokenCommand {
    /// Make a token and print it, this once
    #[command(after_help = CREATE)]
    Create(CreateArgs),
    /// List the tokens, without what opens anything
    #[command(
        alias = "list",
        after_help = "Examples:\n  causeway token ls\n  causeway token ls --json | jq -r '.tokens[].name'"
    )]
    Ls {
        /// How it is asked.
        #[command(flatten)]
        asking: Asking,
    },
    /// Revoke a token: it is good for nothing from the next request on. What it has pinned stays
    #[command(alias = "remove", after_help = "Example:\n  causeway token rm ci")]
    Rm {
        /// Its name or its id
        #[arg(value_name = "NAME|ID")]
        token: String,
        /// Print JSON: what it was
        #[arg(long)]
        json: bool,
        /// Which node is meant.
        #[command(flatten)]
        place: Place,
    },
    /// Say whose token this is that commands here show to the gateway, and what it is good for
    #[command(after_help = format!("{SHOW}\n\n{RUNNING}"))]
    Show {
        /// How it is asked.
        #[command(flatten)]
        asking: Asking,
    },
}

/// `causeway token create`
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// What it is to be good for: read, pin, operate, takedown
    #[arg(long, value_name = "SCOPES", required = true, value_delimiter = ',')]
    scope: Vec<Scope>,
    /// What to call it; by default "token-" and a number
    #[arg(long)]
    name: Option<String>,
    /// How many pins it may have; any number if left out
    #[arg(long, value_name = "NUMBER")]
    pins_max: Option<u64>,
    /// How much it may pin, such as 50GiB; any amount if left out
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    bytes_max: Option<u64>,
    /// For how long it is good, such as 90d; until it is revoked if left out
    #[arg(long, value_name = "TIME", value_parser = duration)]
    expires: Option<Duration>,
    /// Print JSON: token, and what "ls" says of it
    #[arg(long)]
    json: bool,
    /// Which node is meant.
    #[command(flatten)]
    place: Place,
}

impl TokenCommand {
    /// The settings that were given.
    pub fn flags(&self) -> Flags {
        match self {
            Self::Create(CreateArgs { place, .. }) | Self::Rm { place, .. } => place.into(),
            Self::Ls { asking } | Self::Show { asking } => asking.flags(),
        }
    }
}

/// A token that was made.
#[derive(Debug, Serialize)]
struct CreatedView {
    /// In the clear.
    token: String,
    #[serde(flatten)]
    kept: TokenView,
}

/// Runs a command.
///
/// # Errors
/// One line of what went wrong, and what to do.
pub async fn run(loaded: &Loaded, command: TokenCommand) -> anyhow::Result<()> {
    let book = Book::of(&loaded.config.data_dir);
    match command {
        TokenCommand::Create(args) => create(&book, args),
        TokenCommand::Rm { token, json, .. } => {
            let removed = TokenView::from(book.remove(&token)?);
            print_view(json, &removed, |view| format!("revoked {} ({})\n", view.name, view.id))
        }
        TokenCommand::Ls { asking } => {
            let tokens = if asking.node.admin().is_some() {
                running(loaded, &asking.node).await?.get("/api/v1/tokens").await?
            } else {
                TokensView { tokens: book.list()?.into_iter().map(TokenView::from).collect() }
            };
            print_view(asking.json, &tokens, list)
        }
        TokenCommand::Show { asking } => {
            let own: TokenView = running(loaded, &asking.node).await?.get("/api/v1/token").await?;
            print_view(asking.json, &own, |own| rows(std::slice::from_ref(own)))
        }
    }
}

fn create(book: &Book, args: CreateArgs) -> anyhow::Result<()> {
    let CreateArgs { scope, name, pins_max, bytes_max, expires, json, .. } = args;
    let name = match name {
        Some(name) => name,
        None => free_name(book)?,
    };
    let quota = Quota { pins_max, bytes_max };
    let (kept, token) = book.create(Terms { name, scopes: scope.into_iter().collect(), quota, lifetime: expires })?;
    let created = CreatedView { token: token.reveal(), kept: kept.into() };
    print_view(json, &created, |created| format!("{}\n", created.token))?;
    let TokenView { id, name, .. } = &created.kept;
    eprintln!("This is the only time that the token is shown. It is called \"{name}\"; its id is {id}.");
    Ok(())
}

/// The first of "token-1", "token-2" and so on that nobody is called.
fn free_name(book: &Book) -> anyhow::Result<String> {
    let taken: Vec<String> = book.list()?.into_iter().map(|entry| entry.name).collect();
    let mut names = (1..=taken.len() + 1).map(|number| format!("token-{number}"));
    // Of one more than are taken, one is free.
    Ok(names.find(|name| !taken.contains(name)).unwrap_or_default())
}

fn list(tokens: &TokensView) -> String {
    if tokens.tokens.is_empty() { "there are none\n".to_owned() } else { rows(&tokens.tokens) }
}

fn rows(tokens: &[TokenView]) -> String {
    let row = |token: &TokenView| {
        let Quota { pins_max, bytes_max } = token.quota;
        let scopes: Vec<&str> = token.scopes.iter().map(|scope| scope.as_str()).collect();
        let or_any = |limit: Option<String>| limit.unwrap_or_else(|| "any".to_owned());
        [
            token.id.clone(),
            token.name.clone(),
            scopes.join(","),
            or_any(pins_max.map(|pins| pins.to_string())),
            or_any(bytes_max.map(size)),
            token.created_at.map_or_else(|| "-".to_owned(), moment),
            token.expires_at.map_or_else(|| "never".to_owned(), moment),
        ]
    };
    table(["ID", "NAME", "SCOPES", "PINS", "BYTES", "CREATED", "EXPIRES"], tokens.iter().map(row))
}
