//! `causeway site import`: the pins of another gateway, with their blocks, owners, names and metadata.
//!
//! Goals: both gateways serve meanwhile; a pin that cannot be imported does not stop the others; a second run
//! continues, because what is there already is neither requested nor sent again; memory does not grow with the number of pins, and
//! blocks are streamed from one gateway to the other.
//!
//! How, for each pin: it is requested for the owner with the same name → its DAG is exported by the other gateway, and
//! sent to this one as an archive for that request. A run that ends in between leaves a request that the gateway tries
//! to complete from the network, and that the next run supplies with its blocks.
//!
//! Non-goals: tokens, rules and keys, which are other files and commands; pins that the other gateway has given up.

use crate::options::{GATEWAY_REQUIRED, NodeOptions};
use crate::output::{count, print, print_line};
use crate::pin::show::status_name;
use crate::progress;
use crate::remote::access::Access;
use crate::remote::address::query;
use crate::remote::client::{Client, RequestError};
use crate::remote::compression::TransferOptions;
use crate::remote::{Remote, connect};
use crate::store_cli::printable;
use anyhow::{Context as _, bail, ensure};
use api::access::OPERATOR;
use api::node::NodeView;
use api::pins::{NewPinView, OwnedPinView, OwnedPinsView, OwnersView, PinView, StatusView};
use api::site::SiteView;
use api::text::size;
use api::tokens::TokensView;
use clap::Args;
use config::{Flags, Loaded};
use futures::TryStreamExt as _;
use http::StatusCode;
use indicatif::ProgressBar;
use serde::Serialize;
use services::logging::chain;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Pins per request to the other gateway.
const PAGE: usize = 100;
/// Pins of an owner for a root that are compared with one.
const SAME_MAX: usize = 1000;
/// How often a request is repeated that a gateway has answered with 429 or 503, and how long it takes until the first
/// repetition. The time doubles with each further one.
const RETRIES: usize = 6;
const RETRY_FIRST: Duration = Duration::from_secs(1);

const IMPORT: &str = "\
Examples:
At a gateway of a site, into which a gateway moves that was alone:
  causeway site import --from http://old:8081 --from-token-file old.token
At a gateway that leaves a site, and has no [site] lines any more:
  causeway site import --from http://gw1:8081 --from-token-file gw1.token

The pins that the gateway at --from has are requested here, with their owners, names, metadata and origins, and their \
blocks are copied. Both gateways serve meanwhile. What is here already is not copied again, so that the command can be \
repeated: after an error, and at the end for pins that were added meanwhile. Pins that the other gateway is still \
fetching are requested, and fetched from the network. Pins that have failed there are left out. IDs and times of pins \
are new ones.

Owners are tokens, and this gateway must have a token with the name of each owner: create them before, with \"causeway \
token create --name NAME\". --owner gives all pins to one instead. A token for --from needs the scopes read and \
operate; one for this gateway, which a command on the gateway's own machine does not need, also pin.

If a pin cannot be imported, the error is printed, the others are imported, and the exit code is 1. \
--dry-run prints what would be done.";

/// `causeway site import`
#[derive(Debug, Args)]
#[command(after_help = format!("{IMPORT}\n\n{GATEWAY_REQUIRED}"))]
pub struct SiteImportArgs {
    /// The admin listener of the gateway that has the pins, such as https://old.example.org:8081 or unix:/PATH
    #[arg(long, value_name = "URL")]
    from: String,
    /// The file with a token of that gateway
    #[arg(long, value_name = "FILE")]
    from_token_file: PathBuf,
    /// Trust the certificates in this PEM file as well as those that the system trusts, for that gateway
    #[arg(long, value_name = "FILE")]
    from_ca: Option<PathBuf>,
    /// Give all pins to this token, by its name or ID, or to "operator" [default: to the tokens with the same names]
    #[arg(long, value_name = "NAME|ID")]
    owner: Option<String>,
    /// Print what would be imported, without importing it
    #[arg(long)]
    dry_run: bool,
    /// Print a JSON object for each pin, and one with the numbers at the end
    #[arg(long)]
    json: bool,
    /// How blocks are sent.
    #[command(flatten)]
    transfer: TransferOptions,
    #[command(flatten)]
    node: NodeOptions,
}

impl SiteImportArgs {
    /// The settings that the options override.
    pub fn flags(&self) -> Flags {
        self.node.flags()
    }
}

/// Imports the pins of another gateway.
///
/// # Errors
/// When a gateway cannot be reached or rejects the token, an owner has no token here, or pins could not be imported.
pub async fn run(loaded: &Loaded, args: SiteImportArgs) -> anyhow::Result<()> {
    let SiteImportArgs { from, from_token_file, from_ca, owner, dry_run, json, transfer, node } = args;
    let from = Remote::connect(Client::new(&from, Access::of_file(&from_token_file, from_ca)?)?).await?;
    let to = connect(loaded, &node).await?.sending(transfer);
    check_that_they_differ(&from, &to).await?;
    let owners = Owners::find(&from, &to, owner).await?;
    let mut import =
        Import { from, to, owners, dry_run, json, summary: Summary::default(), progress: progress::text() };
    let ended = import.all().await;
    let Import { summary, progress, .. } = import;
    drop(progress);
    print(&if json { summary.json()? } else { summary.text(dry_run) })?;
    ended.context("the import ended early: run the command again, which continues")?;
    let failed = summary.failed;
    ensure!(failed == 0, "{} could not be imported: run the command again, which continues", count(failed, "pin"));
    Ok(())
}

/// Fails if both are the same gateway, or gateways of one site, which have the same pins.
async fn check_that_they_differ(from: &Remote, to: &Remote) -> anyhow::Result<()> {
    let nodes: (NodeView, NodeView) = (from.get("/api/v1/node").await?, to.get("/api/v1/node").await?);
    ensure!(nodes.0.peer_id != nodes.1.peer_id, "--from is this gateway: name the one that has the pins");
    if let (Some(one), Some(other)) = (site_of(from).await?, site_of(to).await?) {
        let is_same = |one: &SiteView, other: &SiteView| one.name == other.name && one.storage == other.storage;
        ensure!(!is_same(&one, &other), "both are gateways of the site {}, and have the same pins", one.name);
    }
    Ok(())
}

/// The site of a gateway, unless it is alone.
async fn site_of(remote: &Remote) -> anyhow::Result<Option<SiteView>> {
    match remote.get("/api/v1/site").await {
        Err(error) if RequestError::status(&error) == Some(StatusCode::NOT_FOUND) => Ok(None),
        site => site.map(Some),
    }
}

/// Whose pins those of the other gateway become.
enum Owners {
    /// All of this token.
    One(String),
    /// The IDs of tokens here, by the IDs of those there.
    ById(HashMap<String, String>),
}

impl Owners {
    async fn find(from: &Remote, to: &Remote, one: Option<String>) -> anyhow::Result<Self> {
        let here: TokensView = to.get("/api/v1/tokens").await?;
        if let Some(one) = one {
            let url = to.client().url();
            ensure!(is_owner(&one, &here), "the gateway at {url} has no token \"{one}\", or several of this name");
            return Ok(Self::One(one));
        }
        let there: OwnersView = from.get("/api/v1/pins/owners").await?;
        match ids_here(&there, &here) {
            Ok(ids) => Ok(Self::ById(ids)),
            Err(unknown) => bail!(
                "the gateway at {} has no token, or several, of the name of these owners: {}. Create them there with \
                 \"causeway token create --name NAME\", or give all pins to one owner with --owner",
                to.client().url(),
                unknown.join(", ")
            ),
        }
    }

    fn of(&self, pin: &OwnedPinView) -> anyhow::Result<&str> {
        match self {
            Self::One(id) => Ok(id),
            Self::ById(ids) => {
                let id = ids.get(&pin.owner).context("its owner is a new one: run the command again")?;
                Ok(id)
            }
        }
    }
}

/// Whether a text is the ID of a token, or the name of one token only, or that of the operator.
fn is_owner(text: &str, here: &TokensView) -> bool {
    let named = here.tokens.iter().filter(|token| token.name == text).count();
    text == OPERATOR || named == 1 || here.tokens.iter().any(|token| token.id == text)
}

/// The IDs of tokens here by the IDs of the owners there, or the owners of which there is not one of the same name.
fn ids_here(there: &OwnersView, here: &TokensView) -> Result<HashMap<String, String>, Vec<String>> {
    let (mut ids, mut unknown) = (HashMap::new(), Vec::new());
    for owner in &there.owners {
        if owner.owner == OPERATOR {
            ids.insert(owner.owner.clone(), OPERATOR.to_owned());
            continue;
        }
        let is_named = |name: &str| owner.owner_name.as_deref() == Some(name);
        let mut named = here.tokens.iter().filter(|token| is_named(&token.name));
        match (named.next(), named.next()) {
            (Some(token), None) => _ = ids.insert(owner.owner.clone(), token.id.clone()),
            _ => unknown.push(match &owner.owner_name {
                Some(name) => format!("\"{}\"", printable(name)),
                None => format!("{} (revoked)", printable(&owner.owner)),
            }),
        }
    }
    if unknown.is_empty() { Ok(ids) } else { Err(unknown) }
}

/// What became of a pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    /// It was there already.
    Present,
    /// It is pinned here, and its blocks were copied if they were not here.
    Copied,
    /// It is not complete at the other gateway either, and is fetched from the network.
    Requested,
    /// It has failed at the other gateway.
    Skipped,
    /// It could not be imported.
    Failed,
}

/// The line of a pin, as JSON.
#[derive(Debug, Serialize)]
struct PinLine<'a> {
    cid: &'a str,
    name: Option<&'a str>,
    owner: &'a str,
    result: Outcome,
    /// The size of what was copied, in bytes.
    bytes: u64,
    error: Option<String>,
}

impl PinLine<'_> {
    fn text(&self, dry_run: bool) -> String {
        let Self { cid, name, result, bytes, error, .. } = self;
        let name = name.map(|name| format!(" ({})", printable(name))).unwrap_or_default();
        let of = if *bytes > 0 { format!(", {}", size(*bytes)) } else { String::new() };
        match (result, error, dry_run) {
            (_, Some(error), _) => format!("failed {cid}{name}: {error}"),
            (Outcome::Copied, _, true) => format!("would copy {cid}{name}{of}"),
            (Outcome::Requested, _, true) => format!("would request {cid}{name}"),
            (Outcome::Copied, ..) => format!("copied {cid}{name}{of}"),
            (Outcome::Requested, ..) => format!("requested {cid}{name}"),
            (Outcome::Present, ..) => format!("present {cid}{name}"),
            (Outcome::Skipped | Outcome::Failed, ..) => format!("left out {cid}{name}: it has failed there"),
        }
    }
}

/// The numbers of pins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
struct Summary {
    copied: u64,
    copied_bytes: u64,
    present: u64,
    requested: u64,
    skipped: u64,
    failed: u64,
}

impl Summary {
    fn count(&mut self, result: Outcome, bytes: u64) {
        self.copied_bytes += bytes;
        *match result {
            Outcome::Present => &mut self.present,
            Outcome::Copied => &mut self.copied,
            Outcome::Requested => &mut self.requested,
            Outcome::Skipped => &mut self.skipped,
            Outcome::Failed => &mut self.failed,
        } += 1;
    }

    fn seen(&self) -> u64 {
        self.present + self.copied + self.requested + self.skipped + self.failed
    }

    fn json(&self) -> anyhow::Result<String> {
        Ok(format!("{}\n", serde_json::to_string(self)?))
    }

    fn text(&self, dry_run: bool) -> String {
        let Self { copied, copied_bytes, present, requested, skipped, failed } = *self;
        let (copy, request) = if dry_run { ("would copy", "would request") } else { ("copied", "requested") };
        let mut text = format!("{copy}: {}, {}\n", count(copied, "pin"), size(copied_bytes));
        _ = writeln!(text, "present already: {}", count(present, "pin"));
        let more = [
            (requested, format!("{request}, and fetched from the network: {}", count(requested, "pin"))),
            (skipped, format!("left out, because they have failed at the other gateway: {}", count(skipped, "pin"))),
            (failed, format!("failed: {}", count(failed, "pin"))),
        ];
        more.iter().filter(|(count, _)| *count > 0).for_each(|(_, line)| _ = writeln!(text, "{line}"));
        text
    }
}

/// An import in progress.
struct Import {
    from: Remote,
    to: Remote,
    owners: Owners,
    dry_run: bool,
    json: bool,
    summary: Summary,
    progress: ProgressBar,
}

impl Import {
    /// Imports all pins, page by page, the newest first.
    async fn all(&mut self) -> anyhow::Result<()> {
        let mut page = self.page(None).await?;
        loop {
            let is_last = page.len() < PAGE;
            for pin in &page {
                self.one(pin).await?;
            }
            if is_last {
                return Ok(());
            }
            page = self.page_after(&page).await?;
        }
    }

    async fn page(&self, older_than: Option<&str>) -> anyhow::Result<Vec<OwnedPinView>> {
        let mut parameters = vec![("limit", PAGE.to_string())];
        parameters.extend(older_than.map(|id| ("older_than", id.to_owned())));
        let path = format!("/api/v1/pins{}", query(&parameters));
        let page: OwnedPinsView = retrying(async || self.from.get(&path).await).await?;
        Ok(page.pins)
    }

    /// The pins after those of a page. The last ones of the page may have been removed meanwhile.
    async fn page_after(&self, page: &[OwnedPinView]) -> anyhow::Result<Vec<OwnedPinView>> {
        for pin in page.iter().rev() {
            match self.page(Some(&pin.requestid)).await {
                Err(error) if RequestError::status(&error) == Some(StatusCode::NOT_FOUND) => {}
                next => return next,
            }
        }
        bail!("the gateway at {} has removed a page of pins meanwhile", self.from.client().url())
    }

    /// Imports a pin, and prints what became of it.
    ///
    /// # Errors
    /// When a gateway cannot be reached any more. Another error is one of this pin.
    async fn one(&mut self, pin: &OwnedPinView) -> anyhow::Result<()> {
        self.progress.set_message(format!("pin {}: {}", self.summary.seen() + 1, pin.cid));
        let (result, bytes, error) = match self.import(pin).await {
            Ok((result, bytes)) => (result, bytes, None),
            Err(error) if matches!(error.downcast_ref(), Some(RequestError::Unreachable(_))) => return Err(error),
            Err(error) => (Outcome::Failed, 0, Some(chain(&error))),
        };
        self.summary.count(result, bytes);
        let owner = pin.owner_name.as_deref().unwrap_or(&pin.owner);
        let line = PinLine { cid: &pin.cid, name: pin.name.as_deref(), owner, result, bytes, error };
        let line = match self.json {
            true => serde_json::to_string(&line)?,
            // There may be many, at a second run.
            false if result == Outcome::Present => return Ok(()),
            false => line.text(self.dry_run),
        };
        self.progress.suspend(|| print_line(&line))
    }

    /// Imports a pin. Also returns the size of what was copied, in bytes.
    async fn import(&self, pin: &OwnedPinView) -> anyhow::Result<(Outcome, u64)> {
        if pin.status == StatusView::Failed {
            return Ok((Outcome::Skipped, 0));
        }
        let (owner, is_complete) = (self.owners.of(pin)?, pin.status == StatusView::Pinned);
        let known = self.known(owner, pin).await?;
        match known {
            Some(known) if known.status == StatusView::Pinned || !is_complete => return Ok((Outcome::Present, 0)),
            _ if self.dry_run && is_complete => return Ok((Outcome::Copied, pin.bytes)),
            _ if self.dry_run => return Ok((Outcome::Requested, 0)),
            Some(_) => {}
            None => {
                let requested = self.request(owner, pin).await?;
                // Another pin may have the same root.
                match requested.status {
                    StatusView::Pinned => return Ok((Outcome::Copied, 0)),
                    _ if !is_complete => return Ok((Outcome::Requested, 0)),
                    _ => {}
                }
            }
        }
        let bytes = retrying(async || self.copy(&pin.cid).await).await?;
        self.check_that_it_is_pinned(owner, pin).await?;
        Ok((Outcome::Copied, bytes))
    }

    /// The owner's pin here that equals one there, unless it has failed.
    async fn known(&self, owner: &str, pin: &OwnedPinView) -> anyhow::Result<Option<OwnedPinView>> {
        let parameters = [("owner", owner.to_owned()), ("cid", pin.cid.clone()), ("limit", SAME_MAX.to_string())];
        let path = format!("/api/v1/pins{}", query(&parameters));
        let page: OwnedPinsView = retrying(async || self.to.get(&path).await).await?;
        Ok(page.pins.into_iter().find(|known| is_same(known, pin)))
    }

    async fn request(&self, owner: &str, pin: &OwnedPinView) -> anyhow::Result<OwnedPinView> {
        let OwnedPinView { cid, name, meta, origins, .. } = pin.clone();
        let (origins, meta) = (Some(origins).filter(|list| !list.is_empty()), Some(meta).filter(|map| !map.is_empty()));
        let request = NewPinView { pin: PinView { cid, name, origins, meta }, owner: Some(owner.to_owned()) };
        retrying(async || self.to.post("/api/v1/pins", &request).await).await
    }

    /// Copies the blocks of a DAG, and so completes the pins that are requested for it. Returns their size in bytes.
    async fn copy(&self, cid: &str) -> anyhow::Result<u64> {
        let exported = self.from.client().download(&format!("/api/v1/store/export/{cid}")).await?;
        let (progress, shown) = (self.progress.clone(), format!("pin {}: {cid}", self.summary.seen() + 1));
        let (mut copied, begun) = (0_u64, Instant::now());
        let chunks = exported.inspect_ok(move |chunk| {
            copied += chunk.len() as u64;
            progress.set_message(format!("{shown}, {}", progress::rate(copied, begun.elapsed())));
        });
        Ok(self.to.supply(chunks).await?.bytes)
    }

    /// The root is pinned, but the pin of this owner may have failed because of its quota.
    async fn check_that_it_is_pinned(&self, owner: &str, pin: &OwnedPinView) -> anyhow::Result<()> {
        let known = self.known(owner, pin).await?;
        let known = known.context("the pin has failed or was removed: see \"causeway pin ls --everybody --all\"")?;
        let details = known.details.unwrap_or_default();
        ensure!(known.status == StatusView::Pinned, "the pin is {}: {details}", status_name(known.status));
        Ok(())
    }
}

fn is_same(known: &OwnedPinView, pin: &OwnedPinView) -> bool {
    known.name == pin.name && known.meta == pin.meta && known.status != StatusView::Failed
}

/// Repeats a request that a gateway has no time for.
async fn retrying<T>(attempt: impl AsyncFn() -> anyhow::Result<T>) -> anyhow::Result<T> {
    retrying_after(RETRY_FIRST, attempt).await
}

async fn retrying_after<T>(mut wait: Duration, attempt: impl AsyncFn() -> anyhow::Result<T>) -> anyhow::Result<T> {
    for _ in 0..RETRIES {
        match attempt().await {
            Err(error) if is_busy(&error) => tokio::time::sleep(wait).await,
            done => return done,
        }
        wait *= 2;
    }
    attempt().await
}

fn is_busy(error: &anyhow::Error) -> bool {
    let busy = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
    RequestError::status(error).is_some_and(|status| busy.contains(&status))
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::access::{Quota, Scopes};
    use api::pins::OwnerView;
    use api::tokens::TokenView;
    use std::cell::Cell;

    fn owners(list: &[(&str, Option<&str>)]) -> OwnersView {
        let owner = |(id, name): &(&str, Option<&str>)| OwnerView {
            owner: (*id).to_owned(),
            owner_name: name.map(str::to_owned),
            pins: 1,
            bytes: 1,
        };
        let owners = list.iter().map(owner).collect();
        OwnersView { owners, pending: 0, pinned: 0, failed: 0, queued_roots: 0, active_roots: 0 }
    }

    fn tokens(list: &[(&str, &str)]) -> TokensView {
        let token = |(id, name): &(&str, &str)| TokenView {
            id: (*id).to_owned(),
            name: (*name).to_owned(),
            scopes: Scopes::all().into(),
            quota: Quota::default(),
            created_at: None,
            expires_at: None,
        };
        TokensView { tokens: list.iter().map(token).collect() }
    }

    #[test]
    fn owners_are_found_by_their_names() {
        let here = tokens(&[("h1", "ci"), ("h2", "app"), ("h3", "twice"), ("h4", "twice")]);
        let table = [
            (vec![(OPERATOR, Some(OPERATOR))], Ok(vec![(OPERATOR, OPERATOR)])),
            (vec![("t1", Some("app")), ("h1", Some("ci"))], Ok(vec![("t1", "h2"), ("h1", "h1")])),
            (vec![("t1", Some("app")), ("t2", Some("web"))], Err(vec!["\"web\""])),
            (vec![("t3", None), ("t4", Some("twice"))], Err(vec!["t3 (revoked)", "\"twice\""])),
            (vec![], Ok(vec![])),
        ];
        for (there, expected) in table {
            let found = ids_here(&owners(&there), &here);
            let owned = |(there, here): (&str, &str)| (there.to_owned(), here.to_owned());
            let expected = expected.map(|ids| ids.into_iter().map(owned).collect::<HashMap<_, _>>());
            assert_eq!(found, expected.map_err(|names| names.into_iter().map(str::to_owned).collect::<Vec<_>>()));
        }
    }

    #[test]
    fn the_one_owner_is_a_token_or_the_operator() {
        let here = tokens(&[("h1", "ci"), ("h3", "twice"), ("h4", "twice")]);
        for (text, expected) in
            [("ci", true), ("h1", true), ("h4", true), (OPERATOR, true), ("twice", false), ("web", false), ("", false)]
        {
            assert_eq!(is_owner(text, &here), expected, "{text}");
        }
    }

    #[tokio::test]
    async fn a_busy_gateway_is_asked_again_and_other_errors_are_final() {
        let rejected = |status| anyhow::Error::from(RequestError::Rejected { status, message: "no".to_owned() });
        let (busy, stopping) = (StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE);
        // How often it is refused, with which status, how often it is asked, and whether it succeeds.
        let table =
            [(2, busy, 3, true), (6, stopping, 7, true), (7, busy, 7, false), (1, StatusCode::CONFLICT, 1, false)];
        for (refusals, status, expected, succeeds) in table {
            let asked = Cell::new(0);
            let done = retrying_after(Duration::from_millis(1), async || {
                asked.set(asked.get() + 1);
                if asked.get() <= refusals { Err(rejected(status)) } else { Ok(()) }
            })
            .await;
            assert_eq!((asked.get(), done.is_ok()), (expected, succeeds), "{refusals} {status}");
        }
    }

    #[test]
    fn the_numbers_are_printed() {
        let mut summary = Summary::default();
        summary.count(Outcome::Copied, 3 << 20);
        summary.count(Outcome::Present, 0);
        assert_eq!(summary.text(false), "copied: 1 pin, 3.0 MiB\npresent already: 1 pin\n");
        for outcome in [Outcome::Requested, Outcome::Skipped, Outcome::Failed] {
            summary.count(outcome, 0);
        }
        let text = summary.text(true);
        for words in [
            "would copy: 1 pin, 3.0 MiB\n",
            "would request, and fetched from the network: 1 pin\n",
            "left out, because they have failed at the other gateway: 1 pin\n",
            "failed: 1 pin\n",
        ] {
            assert!(text.contains(words), "{words:?} is not in {text}");
        }
        assert_eq!(summary.seen(), 5);
        let json = summary.json().expect("JSON");
        assert!(json.ends_with("}\n") && json.contains("\"copied_bytes\":3145728"), "{json}");
    }
}
