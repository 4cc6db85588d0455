//! `causeway token`: who may use the admin API.
//!
//! Goals: a token is made and revoked on the gateway's machine, whether the gateway runs or not, or from afar with the operator's own
//! token; its secret is shown once, alone on standard output, so that it goes from there into a file or a store of secrets.

use crate::output::{print_view, table};
use crate::place::{Asking, RUNNING};
use crate::recorded::Recorded;
use crate::remote::running;
use crate::values::{bytes, duration, moment};
use api::access::{Quota, Scope};
use api::text::size;
use api::tokens::{CreateToken, CreatedToken, TokenView, TokensView};
use clap::{Args, Subcommand};
use config::{Flags, Loaded};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::json;
use services::access::token_store::TokenStore;
use services::views;
use std::path::Path;
use std::time::Duration;

const HELP: &str = "\
A token is good for what its scopes say, and for nothing else:
  read      looking: metrics, figures, peers, requests, settings, content
  pin       pinning and uploading, and removing what it has pinned; what other
            tokens pinned it neither sees nor changes
  operate   changing how the gateway runs: the store (add, import), purge, warm,
            drain, keys and names, everybody's pins; explain; the audit log
  takedown  deciding what is not served

Commands on the gateway's own data folder need none: they use the one in DATA_DIR/admin.token. With --admin, tokens are made and \
revoked by the operator's own token alone.";

const CREATE: &str = "\
Examples:
  causeway token create --scope pin --name ci --expires 90d > ci.token
  causeway token create --scope pin --pins-max 100 --bytes-max 50GiB
  causeway token create --scope read,operate --name console --json
  causeway token create --scope read --admin https://gw.example:8081
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
        /// How it is asked.
        #[command(flatten)]
        asking: Asking,
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
    /// How it is asked.
    #[command(flatten)]
    asking: Asking,
}

impl TokenCommand {
    /// The settings that were given.
    pub fn flags(&self) -> Flags {
        match self {
            Self::Create(CreateArgs { asking, .. }) | Self::Rm { asking, .. } => asking.flags(),
            Self::Ls { asking } | Self::Show { asking } => asking.flags(),
        }
    }
}

/// Runs a command.
///
/// # Errors
/// One line of what went wrong, and what to do.
pub async fn run(loaded: &Loaded, command: TokenCommand) -> anyhow::Result<()> {
    let data_dir = &loaded.config.data_dir;
    match command {
        TokenCommand::Create(args) => create(loaded, args).await,
        TokenCommand::Rm { token, asking } => {
            let removed = if asking.node.admin().is_some() {
                let path = format!("/api/v1/tokens/{}", utf8_percent_encode(&token, NON_ALPHANUMERIC));
                running(loaded, &asking.node).await?.delete(&path).await?
            } else {
                remove(data_dir, &token)?
            };
            print_view(asking.json, &removed, |view| format!("revoked {} ({})\n", view.name, view.id))
        }
        TokenCommand::Ls { asking } => {
            let tokens = if asking.node.admin().is_some() {
                running(loaded, &asking.node).await?.get("/api/v1/tokens").await?
            } else {
                TokensView { tokens: TokenStore::of(data_dir).list()?.into_iter().map(views::tokens::token).collect() }
            };
            print_view(asking.json, &tokens, list)
        }
        TokenCommand::Show { asking } => {
            let own: TokenView = running(loaded, &asking.node).await?.get("/api/v1/token").await?;
            print_view(asking.json, &own, |own| rows(std::slice::from_ref(own)))
        }
    }
}

async fn create(loaded: &Loaded, args: CreateArgs) -> anyhow::Result<()> {
    let CreateArgs { scope, name, pins_max, bytes_max, expires, asking } = args;
    let quota = Quota { pins_max, bytes_max };
    let asked = CreateToken { scopes: scope, name, quota, expires_seconds: expires.map(|time| time.as_secs()) };
    let created = if asking.node.admin().is_some() {
        running(loaded, &asking.node).await?.post("/api/v1/tokens", &asked).await?
    } else {
        make(&loaded.config.data_dir, asked)?
    };
    print_view(asking.json, &created, |created| format!("{}\n", created.token))?;
    let TokenView { id, name, .. } = &created.kept;
    eprintln!("This is the only time that the token is shown. It is called \"{name}\"; its id is {id}.");
    Ok(())
}

fn make(data_dir: &Path, asked: CreateToken) -> anyhow::Result<CreatedToken> {
    let record = Recorded::begin(data_dir, "token create", json!(asked))?;
    let made = TokenStore::of(data_dir).create(views::tokens::terms(asked)).map_err(anyhow::Error::from);
    let (kept, token) =
        record.end(made.map(|(kept, token)| (views::tokens::token(kept), token)), |(kept, _)| json!(kept))?;
    Ok(CreatedToken { token: token.reveal(), kept })
}

fn remove(data_dir: &Path, token: &str) -> anyhow::Result<TokenView> {
    let record = Recorded::begin(data_dir, "token rm", json!({ "token": token }))?;
    let removed = TokenStore::of(data_dir).remove(token).map(views::tokens::token).map_err(anyhow::Error::from);
    record.end(removed, |removed| json!(removed))
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

#[cfg(test)]
mod tests {
    use super::*;
    use services::audit::AuditLog;

    fn create(data_dir: &Path, scopes: &[Scope], name: Option<&str>) -> anyhow::Result<CreatedToken> {
        let quota = Quota { pins_max: Some(7), bytes_max: None };
        let name = name.map(str::to_owned);
        make(data_dir, CreateToken { scopes: scopes.to_vec(), name, quota, expires_seconds: Some(7_776_000) })
    }

    #[test]
    fn tokens_that_are_made_and_revoked_are_in_the_audit_log() {
        let dir = tempfile::tempdir().expect("a folder");
        let created = create(dir.path(), &[Scope::Pin, Scope::Read], Some("ci")).expect("makes");
        create(dir.path(), &[Scope::Pin], Some("ci")).expect_err("the name is taken");
        remove(dir.path(), "ci").expect("is there");
        remove(dir.path(), "ci").expect_err("is gone");
        let log = AuditLog::open(dir.path()).expect("opens").last(9).expect("reads");
        let told = log.iter().map(|entry| (entry.path.as_str(), entry.status)).collect::<Vec<_>>();
        let (create, rm) = ("token create", "token rm");
        assert_eq!(told, [(rm, Some(404)), (rm, Some(200)), (create, Some(409)), (create, Some(200))]);
        let detail = log[3].detail.as_ref().expect("is told");
        assert_eq!((&detail["id"], &detail["scopes"]), (&json!(created.kept.id), &json!(["read", "pin"])), "{detail}");
        let text = std::fs::read_to_string(dir.path().join("audit.log")).expect("reads");
        let secret = created.token.rsplit_once('_').expect("a secret").1;
        assert!(!text.contains(secret), "{text}");
    }

    #[test]
    fn a_token_that_cannot_be_recorded_is_not_made() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("audit.log")).expect("makes");
        let error = create(dir.path(), &[Scope::Pin], None).expect_err("there is no log");
        assert!(error.to_string().contains("nothing was changed"), "{error}");
        assert_eq!(TokenStore::of(dir.path()).list().expect("reads"), []);
    }
}
