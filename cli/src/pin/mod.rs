//! `causeway pin`: pins.
//!
//! Goals: the operator sees the progress of a pin and why it stalls; scripts learn by the exit code whether the DAG is
//! pinned. The pins are those of the token, as for any client of the Pinning Service API (`admin::pins::psa`).
//!
//! Without a running gateway, complete DAGs of the store can be pinned and listed, but not unpinned: only the gateway
//! knows the owners of pins.
//!
//! | module | concern |
//! |---|---|
//! | [`args`] | arguments |
//! | [`all_owners`] | the pins of all tokens, for the operator |
//! | [`show`] | pins as text |

pub mod all_owners;
pub mod args;
pub mod show;

pub use self::args::{AddArgs, LsArgs, PinCommand};

use self::args::STATUSES;
use self::show::{describe, details, line, rows, short, status_name};
use crate::audited_change::AuditedChange;
use crate::local_policy;
use crate::output::{print_line, print_view};
use crate::progress;
use crate::remote::address::{query, segment};
use crate::remote::{Backend, Remote, connect, open_or_connect};
use crate::store_cli::{ContentRef, finish_and_close_async};
use anyhow::{Context as _, bail, ensure};
use api::peers::{ConnectRequest, ConnectedView};
use api::pins::{PinResultsView, PinStatusView, PinView, StatusView, rfc3339};
use cache::{Addition, BlockStore, MissingBlocks, PinState, PinSummary};
use config::Loaded;
use content::Cid;
use content::packed::packed_cid;
use futures::stream::{self, Stream, TryStreamExt as _};
use serde_json::json;
use services::stores;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The interval of polling a pin that is being fetched: the first, and the longest.
const POLL_INTERVALS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// The timeout of a connection to an origin, in seconds.
const ORIGIN_TIMEOUT_SECONDS: u64 = 10;
/// Pins per request.
const PAGE: usize = 1000;

/// Runs a command.
///
/// # Errors
/// With a message for the user, also when a pin has failed.
pub async fn run(loaded: &Loaded, command: PinCommand) -> anyhow::Result<()> {
    match command {
        PinCommand::Add(args) => add(loaded, &args).await,
        PinCommand::Ls(args) if args.everybody || args.owner.is_some() => all_owners::ls(loaded, &args).await,
        PinCommand::Ls(args) => ls(loaded, &args).await,
        PinCommand::Rm { pins, everybody, json, node } => {
            let remote = connect(loaded, &node).await?;
            for pin in &pins {
                if everybody { all_owners::rm(&remote, pin, json).await? } else { rm(&remote, pin, json).await? }
            }
            Ok(())
        }
        PinCommand::Owners { options } => all_owners::owners(loaded, &options).await,
        PinCommand::Status { pin, watch, json, node } => {
            let found = match open_or_connect(loaded, &node, async || stores::open_existing(loaded).await).await? {
                Backend::Remote(remote) => {
                    let found = one(&remote, &pin).await?;
                    if watch { wait(&remote, found, None).await? } else { found }
                }
                Backend::Local(store) => {
                    let found = pin_in_store(loaded, &*store, &pin).await;
                    finish_and_close_async(&*store, found).await?
                }
            };
            print_view(json, &found, describe)?;
            check(&found)
        }
        PinCommand::Replace { old, new } => replace(loaded, &old, &new).await,
    }
}

async fn add(loaded: &Loaded, args: &AddArgs) -> anyhow::Result<()> {
    let named = args.paths.iter().map(|path| ContentRef::parse(path)).collect::<anyhow::Result<Vec<_>>>()?;
    match open_or_connect(loaded, &args.node, async || stores::open_existing(loaded).await).await? {
        Backend::Remote(remote) => {
            let mut requested = Vec::new();
            for named in &named {
                let pin = pin_request(&remote, named, args).await?;
                requested.push(remote.post("/psa/pins", &pin).await.with_context(|| unpinned(named))?);
            }
            wait_and_print(&remote, requested, args).await
        }
        Backend::Local(store) => {
            let added = add_to_store(loaded, &*store, &named, args).await;
            finish_and_close_async(&*store, added).await
        }
    }
}

fn unpinned(named: &ContentRef) -> String {
    format!("{} was not pinned", named.text())
}

/// The request for a pin. A path is resolved first, for which blocks are fetched.
async fn pin_request(remote: &Remote, named: &ContentRef, args: &AddArgs) -> anyhow::Result<PinView> {
    let cid = if named.is_root() {
        named.root()
    } else {
        connect_to_origins(remote, &args.origin).await;
        let blocks = remote.blocks_below(named.root());
        *named.find(&blocks).await.with_context(|| unpinned(named))?.cid()
    };
    let meta: BTreeMap<String, String> = args.meta.iter().cloned().collect();
    Ok(PinView {
        cid: cid.to_string(),
        name: args.name.clone(),
        origins: (!args.origin.is_empty()).then(|| args.origin.clone()),
        meta: (!meta.is_empty()).then_some(meta),
    })
}

/// Connects the gateway to the origins, if they can be reached and the token authorises it.
async fn connect_to_origins(remote: &Remote, origins: &[String]) {
    for origin in origins {
        let request = ConnectRequest { address: origin.clone(), timeout_seconds: Some(ORIGIN_TIMEOUT_SECONDS) };
        // The status of the pin has the error.
        _ = remote.post::<ConnectedView>("/api/v1/peers/connect", &request).await;
    }
}

/// Waits for the requested pins unless `--no-wait` is given, and prints them.
async fn wait_and_print(remote: &Remote, requested: Vec<PinStatusView>, args: &AddArgs) -> anyhow::Result<()> {
    let mut failed = Ok(());
    for pin in requested {
        let pin = if args.no_wait { pin } else { wait(remote, pin, args.timeout).await? };
        let line = if args.json { serde_json::to_string(&pin)? } else { line(&pin) };
        print_line(&line)?;
        // The other pins are awaited all the same.
        failed = failed.and(check(&pin));
    }
    failed
}

/// Pins in a store without a running gateway. Each pin is durable when it is made, and is a change of its own in the
/// audit log: if a later one fails, the earlier ones stay.
async fn add_to_store(
    loaded: &Loaded,
    store: &dyn BlockStore,
    named: &[ContentRef],
    args: &AddArgs,
) -> anyhow::Result<()> {
    ensure!(args.origin.is_empty() && args.meta.is_empty(), "no gateway is running: --origin and --meta require one");
    cache::pins::check_name(args.name.as_deref())?;
    for named in named {
        let request = json!({ "paths": [named.text()], "name": args.name });
        let record = AuditedChange::begin(&loaded.config.data_dir, "pin add", request.clone())?;
        let pins = record.end(pin_in(store, named, args).await, |_| request)?;
        for pin in pins.iter().map(|pin| of_store(pin, MissingBlocks::default())) {
            print_line(&if args.json { serde_json::to_string(&pin)? } else { line(&pin) })?;
        }
    }
    Ok(())
}

async fn pin_in(store: &dyn BlockStore, named: &ContentRef, args: &AddArgs) -> anyhow::Result<Vec<PinSummary>> {
    let root = *named.find(store).await.with_context(|| unpinned(named))?.cid();
    let pins = Addition::begin(store).await?.pin(&[root], args.name.as_deref()).await;
    pins.with_context(|| format!("{} (start the gateway, which fetches missing blocks)", unpinned(named)))
}

async fn replace(loaded: &Loaded, old: &str, args: &AddArgs) -> anyhow::Result<()> {
    let [path] = &args.paths[..] else { bail!("a pin is replaced by exactly one DAG: give one CID or path") };
    let named = ContentRef::parse(path)?;
    let remote = connect(loaded, &args.node).await?;
    let old = one(&remote, old).await?;
    let mut pin = pin_request(&remote, &named, args).await?;
    // Name and metadata are kept unless new ones are given.
    pin.name = pin.name.or(old.pin.name);
    pin.meta = pin.meta.or(old.pin.meta);
    let requested = remote.post(&request_path(&old.requestid), &pin).await.with_context(|| unpinned(&named))?;
    wait_and_print(&remote, vec![requested], args).await
}

/// Polls a pin until it is pinned or has failed, or the timeout is over.
async fn wait(remote: &Remote, pin: PinStatusView, timeout: Option<Duration>) -> anyhow::Result<PinStatusView> {
    let (mut pin, mut interval, progress) = (pin, POLL_INTERVALS.0, progress::text());
    while matches!(pin.status, StatusView::Queued | StatusView::Pinning) {
        if let Some(timeout) = timeout.filter(|timeout| progress.elapsed() >= *timeout) {
            bail!("{} is not pinned after {} s: {}", pin.pin.cid, timeout.as_secs(), details(&pin));
        }
        progress.set_message(format!("{}: {}", short(&pin.pin.cid), details(&pin)));
        tokio::time::sleep(interval).await;
        interval = (interval * 5 / 4).min(POLL_INTERVALS.1);
        pin = remote.get(&request_path(&pin.requestid)).await?;
    }
    Ok(pin)
}

/// Fails if the pin has failed.
fn check(pin: &PinStatusView) -> anyhow::Result<()> {
    ensure!(pin.status != StatusView::Failed, "{} was not pinned: {}", pin.pin.cid, details(pin));
    Ok(())
}

async fn rm(remote: &Remote, pin: &str, json: bool) -> anyhow::Result<()> {
    let found = match pin.parse::<Cid>() {
        Ok(cid) => all(remote, &of_cid(&cid), usize::MAX).try_collect::<Vec<_>>().await?,
        Err(_) => vec![one(remote, pin).await?],
    };
    ensure!(!found.is_empty(), "this token has no pin of {pin}");
    for pin in found {
        remote.remove(&request_path(&pin.requestid)).await?;
        let removed =
            if json { serde_json::to_string(&pin)? } else { format!("unpinned {} ({})", pin.pin.cid, pin.requestid) };
        print_line(&removed)?;
    }
    Ok(())
}

/// The pin request with an ID, or the newest one for a CID.
async fn one(remote: &Remote, pin: &str) -> anyhow::Result<PinStatusView> {
    let Ok(cid) = pin.parse::<Cid>() else {
        return remote.get(&request_path(pin)).await.with_context(|| format!("pin \"{pin}\""));
    };
    let newest = all(remote, &of_cid(&cid), 1).try_collect::<Vec<_>>().await?.pop();
    newest.with_context(|| format!("this token has no pin request for {cid}"))
}

/// The pin of a CID in a store without a running gateway.
async fn pin_in_store(loaded: &Loaded, store: &dyn BlockStore, pin: &str) -> anyhow::Result<PinStatusView> {
    let cid = pin.parse::<Cid>();
    let cid = cid
        .ok()
        .with_context(|| format!("\"{pin}\" is not a CID, and IDs of pin requests require a running gateway"))?;
    let mut pins = store.pins().await?;
    pins.retain(|pin| pin.root.hash() == cid.hash() && pin.root.codec() == cid.codec());
    let found = views_of_store(loaded, store, pins).await?.pop();
    Ok(found.with_context(|| format!("{cid} is not pinned in this store"))?.0)
}

/// The pins of a store without a running gateway, and their roots.
async fn views_of_store(
    loaded: &Loaded,
    store: &dyn BlockStore,
    pins: Vec<PinSummary>,
) -> anyhow::Result<Vec<(PinStatusView, Cid)>> {
    if pins.iter().any(|pin| pin.state == PinState::Partial) {
        store.set_is_withheld(local_policy::withheld_or_none(loaded).await);
    }
    let mut views = Vec::with_capacity(pins.len());
    for pin in pins {
        let missing = match pin.state {
            PinState::Complete => MissingBlocks::default(),
            PinState::Partial => store.missing(&pin.root).await?,
        };
        views.push((of_store(&pin, missing), pin.root));
    }
    Ok(views)
}

/// The path of a pin request in the API.
fn request_path(id: &str) -> String {
    format!("/psa/pins/{}", segment(id))
}

fn of_cid(cid: &Cid) -> Vec<(&'static str, String)> {
    vec![("cid", cid.to_string()), statuses(&STATUSES)]
}

fn statuses(statuses: &[StatusView]) -> (&'static str, String) {
    ("status", statuses.iter().copied().map(status_name).collect::<Vec<_>>().join(","))
}

async fn ls(loaded: &Loaded, args: &LsArgs) -> anyhow::Result<()> {
    let limit = args.limit.unwrap_or(usize::MAX);
    let found: Vec<PinStatusView> =
        match open_or_connect(loaded, &args.node, async || stores::open_existing(loaded).await).await? {
            Backend::Remote(remote) => all(&remote, &filter(args), limit).try_collect().await?,
            Backend::Local(store) => {
                let found = async {
                    let mut pins = store.pins().await?;
                    pins.sort_by_key(|pin| std::cmp::Reverse(pin.created));
                    views_of_store(loaded, &*store, pins).await
                };
                filtered(finish_and_close_async(&*store, found.await).await?, args, limit)
            }
        };
    let view = PinResultsView { count: i32::try_from(found.len()).unwrap_or(i32::MAX), results: found };
    print_view(args.json, &view, |view| rows(&view.results))
}

fn filter(args: &LsArgs) -> Vec<(&'static str, String)> {
    let mut filter = Vec::new();
    if !args.cid.is_empty() {
        filter.push(("cid", args.cid.iter().map(Cid::to_string).collect::<Vec<_>>().join(",")));
    }
    if let Some(name) = &args.name {
        filter.push(("name", name.clone()));
        filter.push(("match", if args.partial { "ipartial" } else { "exact" }.to_owned()));
    }
    if args.all {
        filter.push(statuses(&STATUSES));
    } else if !args.status.is_empty() {
        filter.push(statuses(&args.status));
    }
    filter
}

/// The pins that match a filter, page by page.
fn all<'a>(
    remote: &'a Remote,
    filter: &'a [(&'static str, String)],
    limit: usize,
) -> impl Stream<Item = anyhow::Result<PinStatusView>> + 'a {
    struct Pages {
        loaded: VecDeque<PinStatusView>,
        before: Option<String>,
        left: usize,
        last: bool,
    }
    let pages = Pages { loaded: VecDeque::new(), before: None, left: limit, last: false };
    stream::try_unfold(pages, move |mut pages| async move {
        if pages.loaded.is_empty() && !pages.last && pages.left > 0 {
            let limit = PAGE.min(pages.left);
            let mut parameters = filter.to_vec();
            parameters.push(("limit", limit.to_string()));
            parameters.extend(pages.before.take().map(|before| ("before", before)));
            let page: PinResultsView = remote.get(&format!("/psa/pins{}", query(&parameters))).await?;
            pages.last = page.results.len() < limit;
            pages.before = page.results.last().map(|pin| pin.created.clone());
            pages.loaded = page.results.into();
        }
        pages.left = pages.left.saturating_sub(1);
        Ok(pages.loaded.pop_front().map(|pin| (pin, pages)))
    })
}

/// A pin of a store without a running gateway.
fn of_store(pin: &PinSummary, missing: MissingBlocks) -> PinStatusView {
    let stored = [("blocks", pin.blocks, missing.blocks), ("bytes", pin.bytes, missing.bytes)];
    let info = stored.map(|(key, all, missing)| (key.to_owned(), all.saturating_sub(missing).to_string()));
    let mut info: BTreeMap<String, String> = info.into();
    let (status, details) = match pin.state {
        PinState::Complete => (StatusView::Pinned, None),
        // As a running gateway answers.
        PinState::Partial if missing.is_withheld() => {
            (StatusView::Failed, Some("the missing blocks are withheld by a rule of this gateway; the rest is kept"))
        }
        PinState::Partial => {
            (StatusView::Queued, Some("blocks are missing in the store: a running gateway fetches them"))
        }
    };
    if let Some(zstd_file) = &pin.packed {
        info.insert("zstd".to_owned(), zstd_file.to_string());
        info.insert("packed".to_owned(), packed_cid(zstd_file).to_string());
    }
    info.extend(details.map(|details| ("status_details".to_owned(), details.to_owned())));
    PinStatusView {
        requestid: String::new(),
        status,
        created: rfc3339(pin.created),
        pin: PinView { cid: pin.root.to_string(), name: pin.name.clone(), origins: None, meta: None },
        delegates: Vec::new(),
        info,
    }
}

fn filtered(views: Vec<(PinStatusView, Cid)>, args: &LsArgs, limit: usize) -> Vec<PinStatusView> {
    let matches_name = |name: &str, wanted: &str| match args.partial {
        true => name.to_lowercase().contains(&wanted.to_lowercase()),
        false => name == wanted,
    };
    let pinned = [StatusView::Pinned];
    let statuses = if args.status.is_empty() { &pinned[..] } else { &args.status };
    let matches = |pin: &PinStatusView, root: &Cid| {
        (args.all || statuses.contains(&pin.status))
            && args.name.as_deref().is_none_or(|name| matches_name(pin.pin.name.as_deref().unwrap_or_default(), name))
            && (args.cid.is_empty()
                || args.cid.iter().any(|cid| cid.hash() == root.hash() && cid.codec() == root.codec()))
    };
    views.into_iter().filter(|(view, root)| matches(view, root)).map(|(view, _)| view).take(limit).collect()
}
