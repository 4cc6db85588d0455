//! `causeway token`: access tokens of the admin API.
//!
//! Goals: tokens are created and revoked on the gateway's machine, with or without a running gateway, or remotely with
//! the operator's own token; the secret is printed once, alone on standard output, to be redirected to a file or a
//! secret store.
//!
//! On the machine of a gateway of a site, the commands change the tokens of the site, in its database. A token that the
//! gateway had before is in its data folder, and is revoked without the database.

use crate::audited_change::AuditedChange;
use crate::options::{GATEWAY_REQUIRED, RequestOptions};
use crate::output::{print_view, table};
use crate::remote::connect;
use crate::values::{bytes, duration, moment};
use api::access::{Quota, Scope};
use api::text::size;
use api::tokens::{CreateToken, CreatedToken, TokenView, TokensView};
use clap::{Args, Subcommand};
use config::{Flags, Loaded};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::json;
use services::access::token_store::{TokenStore, TokenStoreError};
use services::control_log::ControlLog;
use services::views;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const HELP: &str = "\
A token authorises what its scopes allow, and nothing else:
  read      reading: metrics, statistics, peers, requests, settings, content
  pin       pinning and uploading, and removing its own pins; the pins of other
            tokens are neither visible nor changeable
  operate   operating the gateway: the store (add, import), purge, warm, drain,
            keys and names, the pins of all tokens; explain; the audit log
  takedown  adding and removing denylist rules

Commands on the gateway's own data folder need no token: they use DATA_DIR/admin.token. With --admin, only the \
operator's own token can create and revoke tokens.

The tokens of a gateway of a site are valid at all of its gateways: the commands change them in the site's database.";

const CREATE: &str = "\
Examples:
  causeway token create --scope pin --name ci --expires 90d > ci.token
  causeway token create --scope pin --pins-max 100 --bytes-max 50GiB
  causeway token create --scope read,operate --name console --json
  causeway token create --scope read --admin https://gw.example:8081
As a remote pinning service of Kubo:
  ipfs pin remote service add causeway http://127.0.0.1:8081/psa \"$(cat ci.token)\"";

const SHOW: &str = "\
Examples:
  causeway token show
  causeway token show --token-file ci.token";

/// `causeway token`
#[derive(Debug, Subcommand)]
#[command(after_help = HELP)]
pub enum TokenCommand {
    /// Create a token and print it, once
    #[command(after_help = CREATE)]
    Create(CreateArgs),
    /// List the tokens, without their secrets
    #[command(
        alias = "list",
        after_help = "Examples:\n  causeway token ls\n  causeway token ls --json | jq -r '.tokens[].name'"
    )]
    Ls {
        /// Output format and node.
        #[command(flatten)]
        options: RequestOptions,
    },
    /// Revoke a token, from the next request on. Its pins are kept
    #[command(alias = "remove", after_help = "Example:\n  causeway token rm ci")]
    Rm {
        /// The token's name or ID
        #[arg(value_name = "NAME|ID")]
        token: String,
        /// Output format and node.
        #[command(flatten)]
        options: RequestOptions,
    },
    /// Show the token that commands authenticate with, and its scopes
    #[command(after_help = format!("{SHOW}\n\n{GATEWAY_REQUIRED}"))]
    Show {
        /// Output format and node.
        #[command(flatten)]
        options: RequestOptions,
    },
}

/// `causeway token create`
#[derive(Debug, Args)]
pub struct CreateArgs {
    /// The scopes of the token: read, pin, operate, takedown
    #[arg(long, value_name = "SCOPES", required = true, value_delimiter = ',')]
    scope: Vec<Scope>,
    /// The name of the token [default: "token-" and a number]
    #[arg(long)]
    name: Option<String>,
    /// The quota of pins [default: unlimited]
    #[arg(long, value_name = "NUMBER")]
    pins_max: Option<u64>,
    /// The quota of pinned bytes, such as 50GiB [default: unlimited]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    bytes_max: Option<u64>,
    /// The lifetime of the token, such as 90d [default: until it is revoked]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    expires: Option<Duration>,
    /// Output format and node.
    #[command(flatten)]
    options: RequestOptions,
}

impl TokenCommand {
    /// The settings that the options override.
    pub fn flags(&self) -> Flags {
        match self {
            Self::Create(CreateArgs { options, .. }) | Self::Rm { options, .. } => options.flags(),
            Self::Ls { options } | Self::Show { options } => options.flags(),
        }
    }
}

/// Runs a command.
///
/// # Errors
/// With a message for the user.
pub async fn run(loaded: &Loaded, command: TokenCommand) -> anyhow::Result<()> {
    match command {
        TokenCommand::Create(args) => create(loaded, args).await,
        TokenCommand::Rm { token, options } => {
            let removed = if options.node.admin().is_some() {
                let path = format!("/api/v1/tokens/{}", utf8_percent_encode(&token, NON_ALPHANUMERIC));
                connect(loaded, &options.node).await?.delete(&path).await?
            } else {
                let data_dir = &loaded.config.data_dir;
                let store = token_store(loaded).await.or_else(|error| own_store_with(data_dir, &token, error))?;
                revoke_locally(data_dir, store, token).await?
            };
            print_view(options.json, &removed, |view| format!("revoked {} ({})\n", view.name, view.id))
        }
        TokenCommand::Ls { options } => {
            let tokens = if options.node.admin().is_some() {
                connect(loaded, &options.node).await?.get("/api/v1/tokens").await?
            } else {
                let listed = token_store(loaded).await?.list()?;
                TokensView { tokens: listed.into_iter().map(views::tokens::token).collect() }
            };
            print_view(options.json, &tokens, list_text)
        }
        TokenCommand::Show { options } => {
            let own: TokenView = connect(loaded, &options.node).await?.get("/api/v1/token").await?;
            print_view(options.json, &own, |own| rows(std::slice::from_ref(own)))
        }
    }
}

async fn create(loaded: &Loaded, args: CreateArgs) -> anyhow::Result<()> {
    let CreateArgs { scope, name, pins_max, bytes_max, expires, options } = args;
    let quota = Quota { pins_max, bytes_max };
    let request = CreateToken { scopes: scope, name, quota, expires_seconds: expires.map(|time| time.as_secs()) };
    let created = if options.node.admin().is_some() {
        connect(loaded, &options.node).await?.post("/api/v1/tokens", &request).await?
    } else {
        create_locally(&loaded.config.data_dir, token_store(loaded).await?, request).await?
    };
    print_view(options.json, &created, |created| format!("{}\n", created.token))?;
    let TokenView { id, name, .. } = &created.kept;
    eprintln!("The token is shown only once. Its name is \"{name}\", and its ID is {id}.");
    Ok(())
}

/// The tokens of the data folder, with those of the site if the settings have one.
async fn token_store(loaded: &Loaded) -> anyhow::Result<TokenStore> {
    let (store, site) = (TokenStore::of(&loaded.config.data_dir), &loaded.config.site);
    if !site.is_on() {
        return Ok(store);
    }
    let log = site::open_control_log(site).await.map_err(|error| loaded.error(error.setting, error.reason))?;
    Ok(store.with_site(Some(ControlLog::open_without_copy(Arc::new(log)).await?)))
}

/// The tokens of the data folder, if one of them has an ID or a name; otherwise the error why those of the site cannot
/// be used.
fn own_store_with(data_dir: &Path, id_or_name: &str, error: anyhow::Error) -> anyhow::Result<TokenStore> {
    let store = TokenStore::of(data_dir);
    let own = store.list().unwrap_or_default();
    match own.iter().find(|token| token.id == id_or_name || token.name == id_or_name) {
        None => Err(error),
        Some(own) => {
            let id = &own.id;
            eprintln!("warning: only the gateway's own token {id} is revoked, and none of the site: {error:#}");
            Ok(store)
        }
    }
}

/// Runs a change on a thread where it may block.
async fn change<T: Send + 'static>(
    store: TokenStore,
    change: impl FnOnce(&TokenStore) -> Result<T, TokenStoreError> + Send + 'static,
) -> anyhow::Result<T> {
    Ok(tokio::task::spawn_blocking(move || change(&store)).await??)
}

async fn create_locally(data_dir: &Path, store: TokenStore, request: CreateToken) -> anyhow::Result<CreatedToken> {
    let record = AuditedChange::begin(data_dir, "token create", json!(request))?;
    let created = change(store, |store| store.create(views::tokens::terms(request))).await;
    let (kept, token) =
        record.end(created.map(|(kept, token)| (views::tokens::token(kept), token)), |(kept, _)| json!(kept))?;
    Ok(CreatedToken { token: token.reveal(), kept })
}

async fn revoke_locally(data_dir: &Path, store: TokenStore, token: String) -> anyhow::Result<TokenView> {
    let record = AuditedChange::begin(data_dir, "token rm", json!({ "token": token }))?;
    let removed = change(store, move |store| store.remove(&token)).await.map(views::tokens::token);
    record.end(removed, |removed| json!(removed))
}

fn list_text(tokens: &TokensView) -> String {
    if tokens.tokens.is_empty() { "no tokens\n".to_owned() } else { rows(&tokens.tokens) }
}

fn rows(tokens: &[TokenView]) -> String {
    let row = |token: &TokenView| {
        let Quota { pins_max, bytes_max } = token.quota;
        let scopes: Vec<&str> = token.scopes.iter().map(|scope| scope.as_str()).collect();
        let or_unlimited = |limit: Option<String>| limit.unwrap_or_else(|| "unlimited".to_owned());
        [
            token.id.clone(),
            token.name.clone(),
            scopes.join(","),
            or_unlimited(pins_max.map(|pins| pins.to_string())),
            or_unlimited(bytes_max.map(size)),
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

    async fn create(data_dir: &Path, scopes: &[Scope], name: Option<&str>) -> anyhow::Result<CreatedToken> {
        let quota = Quota { pins_max: Some(7), bytes_max: None };
        let name = name.map(str::to_owned);
        let request = CreateToken { scopes: scopes.to_vec(), name, quota, expires_seconds: Some(7_776_000) };
        create_locally(data_dir, TokenStore::of(data_dir), request).await
    }

    async fn revoke(data_dir: &Path, token: &str) -> anyhow::Result<TokenView> {
        revoke_locally(data_dir, TokenStore::of(data_dir), token.to_owned()).await
    }

    #[tokio::test]
    async fn created_and_revoked_tokens_are_in_the_audit_log() {
        let dir = tempfile::tempdir().expect("a folder");
        let created = create(dir.path(), &[Scope::Pin, Scope::Read], Some("ci")).await.expect("is created");
        create(dir.path(), &[Scope::Pin], Some("ci")).await.expect_err("the name is taken");
        revoke(dir.path(), "ci").await.expect("is there");
        revoke(dir.path(), "ci").await.expect_err("is gone");
        let log = AuditLog::open(dir.path()).expect("opens").last(9).expect("reads");
        let logged = log.iter().map(|entry| (entry.path.as_str(), entry.status)).collect::<Vec<_>>();
        let (create, rm) = ("token create", "token rm");
        assert_eq!(logged, [(rm, Some(404)), (rm, Some(200)), (create, Some(409)), (create, Some(200))]);
        let detail = log[3].detail.as_ref().expect("is logged");
        assert_eq!((&detail["id"], &detail["scopes"]), (&json!(created.kept.id), &json!(["read", "pin"])), "{detail}");
        let text = std::fs::read_to_string(dir.path().join("audit.log")).expect("reads");
        let secret = created.token.rsplit_once('_').expect("a secret").1;
        assert!(!text.contains(secret), "{text}");
    }

    #[tokio::test]
    async fn own_tokens_are_revoked_without_the_database_of_the_site() {
        let dir = tempfile::tempdir().expect("a folder");
        let own = create(dir.path(), &[Scope::Pin], Some("ci")).await.expect("is created").kept;
        let store_with = |id_or_name: &str| own_store_with(dir.path(), id_or_name, anyhow::anyhow!("no database"));
        for id_or_name in [&own.id, "ci"] {
            assert_eq!(store_with(id_or_name).expect("it is there").list().expect("reads").len(), 1);
        }
        assert_eq!(store_with("other").expect_err("there is none").to_string(), "no database");
    }

    #[tokio::test]
    async fn a_token_that_cannot_be_logged_is_not_created() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("audit.log")).expect("makes");
        let error = create(dir.path(), &[Scope::Pin], None).await.expect_err("there is no log");
        assert!(error.to_string().contains("nothing was changed"), "{error}");
        assert_eq!(TokenStore::of(dir.path()).list().expect("reads"), []);
    }
}
