//! `causeway pin`: what is kept for good, and fetched if it is not here.
//!
//! Goals: a person sees how far it is and why it does not go on; a script learns by the exit code whether it is here. Pins are those
//! of the token that is shown, as any client of the Pinning Service API sees them (`admin::pins::psa`).
//!
//! Without a gateway that runs, what is in the store can be pinned and listed. Nothing is removed then: whose pins they are is known
//! to the gateway.
//!
//! | module | concern |
//! |---|---|
//! | [`args`] | what can be typed |
//! | [`everybody`] | the pins of all tokens, for the operator |
//! | [`show`] | pins, as people are shown them |

pub mod args;
pub mod everybody;
pub mod show;

pub use self::args::{AddArgs, LsArgs, PinCommand};

use self::args::STATUSES;
use self::show::{describe, details, line, rows, short, word};
use crate::output::{print_line, print_view};
use crate::progress::Progress;
use crate::recorded::Recorded;
use crate::remote::address::{query, segment};
use crate::remote::{Remote, Worker, reach, running};
use crate::store_cli::{Named, and_close_now};
use anyhow::{Context as _, bail, ensure};
use api::peers::{ConnectRequest, ConnectedView};
use api::pins::{PinResultsView, PinStatusView, PinView, StatusView, rfc3339};
use cache::{Addition, BlockStore, PinState, PinSummary};
use config::Loaded;
use content::Cid;
use futures::stream::{self, Stream, TryStreamExt as _};
use serde_json::json;
use services::stores;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// How often a pin is looked at that is being made: at first, and in the long run.
const GLANCES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// How long it may take to connect with an origin, in seconds.
const ORIGIN_SECONDS: u64 = 10;
/// Pins that are asked for at a time.
const PAGE: usize = 1000;

/// Runs a command.
///
/// # Errors
/// One line of what went wrong, and what to do; among it that a pin has failed.
pub async fn run(loaded: &Loaded, command: PinCommand) -> anyhow::Result<()> {
    match command {
        PinCommand::Add(args) => add(loaded, &args).await,
        PinCommand::Ls(args) if args.everybody || args.owner.is_some() => everybody::ls(loaded, &args).await,
        PinCommand::Ls(args) => ls(loaded, &args).await,
        PinCommand::Rm { pins, everybody, json, node } => {
            let remote = running(loaded, &node).await?;
            for pin in &pins {
                if everybody { everybody::rm(&remote, pin, json).await? } else { rm(&remote, pin, json).await? }
            }
            Ok(())
        }
        PinCommand::Owners { asking } => everybody::owners(loaded, &asking).await,
        PinCommand::Status { pin, watch, json, node } => {
            let found = match reach(loaded, &node, async || stores::open_existing(loaded).await).await? {
                Worker::There(remote) => {
                    let found = one(&remote, &pin).await?;
                    if watch { wait(&remote, found, None).await? } else { found }
                }
                Worker::Here(store) => {
                    let found = one_here(&*store, &pin).await;
                    and_close_now(&*store, found).await?
                }
            };
            print_view(json, &found, describe)?;
            check(&found)
        }
        PinCommand::Replace { old, new } => replace(loaded, &old, &new).await,
    }
}

async fn add(loaded: &Loaded, args: &AddArgs) -> anyhow::Result<()> {
    let named = args.paths.iter().map(|path| Named::parse(path)).collect::<anyhow::Result<Vec<_>>>()?;
    match reach(loaded, &args.node, async || stores::open_existing(loaded).await).await? {
        Worker::There(remote) => {
            let mut asked = Vec::new();
            for named in &named {
                let pin = wanted(&remote, named, args).await?;
                asked.push(remote.post("/psa/pins", &pin).await.with_context(|| unpinned(named))?);
            }
            conclude(&remote, asked, args).await
        }
        Worker::Here(store) => {
            let asked = json!({ "paths": args.paths, "name": args.name });
            let added = match Recorded::begin(&loaded.config.data_dir, "pin add", asked.clone()) {
                Ok(record) => record.end(add_here(&*store, &named, args).await, |()| asked),
                Err(error) => Err(error),
            };
            and_close_now(&*store, added).await
        }
    }
}

fn unpinned(named: &Named) -> String {
    format!("{} was not pinned", named.said())
}

/// What is asked for. A path is looked up first, and fetched as far as that needs.
async fn wanted(remote: &Remote, named: &Named, args: &AddArgs) -> anyhow::Result<PinView> {
    let cid = if named.is_root() {
        named.root()
    } else {
        meet(remote, &args.origin).await;
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

/// Has the gateway connect with those who are said to have it, as far as they can be reached and the token is good for that.
async fn meet(remote: &Remote, origins: &[String]) {
    for origin in origins {
        let request = ConnectRequest { address: origin.clone(), timeout_seconds: Some(ORIGIN_SECONDS) };
        // What stands against it, the pin says.
        _ = remote.post::<ConnectedView>("/api/v1/peers/connect", &request).await;
    }
}

/// Waits for what was asked for, if that is wanted, and says what has become of it.
async fn conclude(remote: &Remote, asked: Vec<PinStatusView>, args: &AddArgs) -> anyhow::Result<()> {
    let mut failed = Ok(());
    for pin in asked {
        let pin = if args.no_wait { pin } else { wait(remote, pin, args.timeout).await? };
        let line = if args.json { serde_json::to_string(&pin)? } else { line(&pin) };
        print_line(&line)?;
        // The others are waited for all the same.
        failed = failed.and(check(&pin));
    }
    failed
}

async fn add_here(store: &dyn BlockStore, named: &[Named], args: &AddArgs) -> anyhow::Result<()> {
    ensure!(
        args.origin.is_empty() && args.meta.is_empty(),
        "no gateway runs, so nobody is asked and nothing is kept with it"
    );
    cache::pins::check_name(args.name.as_deref())?;
    for named in named {
        let root = *named.find(store).await.with_context(|| unpinned(named))?.cid();
        let pins = Addition::begin(store).await?.pin(&[root], args.name.as_deref()).await;
        let pins =
            pins.with_context(|| format!("{} (start the gateway: it fetches what is missing)", unpinned(named)))?;
        for pin in pins.iter().map(of_store) {
            print_line(&if args.json { serde_json::to_string(&pin)? } else { line(&pin) })?;
        }
    }
    Ok(())
}

async fn replace(loaded: &Loaded, old: &str, args: &AddArgs) -> anyhow::Result<()> {
    let [path] = &args.paths[..] else { bail!("one DAG comes in the place of another: name one") };
    let named = Named::parse(path)?;
    let remote = running(loaded, &args.node).await?;
    let old = one(&remote, old).await?;
    let mut pin = wanted(&remote, &named, args).await?;
    // What is not said again stays.
    pin.name = pin.name.or(old.pin.name);
    pin.meta = pin.meta.or(old.pin.meta);
    let asked = remote.post(&request(&old.requestid), &pin).await.with_context(|| unpinned(&named))?;
    conclude(&remote, vec![asked], args).await
}

/// Looks at a pin until nothing more becomes of it, or for so long.
async fn wait(remote: &Remote, pin: PinStatusView, timeout: Option<Duration>) -> anyhow::Result<PinStatusView> {
    let (mut pin, mut glance, mut progress) = (pin, GLANCES.0, Progress::new());
    while matches!(pin.status, StatusView::Queued | StatusView::Pinning) {
        if let Some(timeout) = timeout.filter(|timeout| progress.elapsed() >= *timeout) {
            progress.hide();
            bail!("{} is not here after {} s: {}", pin.pin.cid, timeout.as_secs(), details(&pin));
        }
        progress.show(|_| format!("{}: {}", short(&pin.pin.cid), details(&pin)));
        tokio::time::sleep(glance).await;
        glance = (glance * 5 / 4).min(GLANCES.1);
        pin = remote.get(&request(&pin.requestid)).await?;
    }
    Ok(pin)
}

/// That a pin has failed is an error.
fn check(pin: &PinStatusView) -> anyhow::Result<()> {
    ensure!(pin.status != StatusView::Failed, "{} was not pinned: {}", pin.pin.cid, details(pin));
    Ok(())
}

async fn rm(remote: &Remote, pin: &str, json: bool) -> anyhow::Result<()> {
    let found = match pin.parse::<Cid>() {
        Ok(cid) => all(remote, &of_cid(&cid), usize::MAX).try_collect::<Vec<_>>().await?,
        Err(_) => vec![one(remote, pin).await?],
    };
    ensure!(!found.is_empty(), "nothing of {pin} is pinned with this token");
    for pin in found {
        remote.remove(&request(&pin.requestid)).await?;
        let removed =
            if json { serde_json::to_string(&pin)? } else { format!("unpinned {} ({})", pin.pin.cid, pin.requestid) };
        print_line(&removed)?;
    }
    Ok(())
}

/// The request that is called so, or the newest for a CID.
async fn one(remote: &Remote, pin: &str) -> anyhow::Result<PinStatusView> {
    let Ok(cid) = pin.parse::<Cid>() else {
        return remote.get(&request(pin)).await.with_context(|| format!("\"{pin}\""));
    };
    let newest = all(remote, &of_cid(&cid), 1).try_collect::<Vec<_>>().await?.pop();
    newest.with_context(|| format!("nothing of {cid} is pinned or asked for with this token"))
}

/// The pin of a CID in a store that no gateway runs on.
async fn one_here(store: &dyn BlockStore, pin: &str) -> anyhow::Result<PinStatusView> {
    let cid = pin.parse::<Cid>();
    let cid = cid.ok().with_context(|| format!("\"{pin}\" is no CID: identifiers are known to a gateway that runs"))?;
    let pins = store.pins().await?;
    let found = pins.iter().find(|pin| pin.root.hash() == cid.hash() && pin.root.codec() == cid.codec());
    Ok(of_store(found.with_context(|| format!("{cid} is not pinned here"))?))
}

/// Where a request is.
fn request(id: &str) -> String {
    format!("/psa/pins/{}", segment(id))
}

fn of_cid(cid: &Cid) -> Vec<(&'static str, String)> {
    vec![("cid", cid.to_string()), statuses(&STATUSES)]
}

fn statuses(statuses: &[StatusView]) -> (&'static str, String) {
    ("status", statuses.iter().copied().map(word).collect::<Vec<_>>().join(","))
}

async fn ls(loaded: &Loaded, args: &LsArgs) -> anyhow::Result<()> {
    let limit = args.limit.unwrap_or(usize::MAX);
    let found: Vec<PinStatusView> =
        match reach(loaded, &args.node, async || stores::open_existing(loaded).await).await? {
            Worker::There(remote) => all(&remote, &filter(args), limit).try_collect().await?,
            Worker::Here(store) => {
                let pins = store.pins().await.map_err(anyhow::Error::from);
                of_store_filtered(and_close_now(&*store, pins).await?, args, limit)
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

/// The pins that a filter leaves, page by page.
fn all<'a>(
    remote: &'a Remote,
    filter: &'a [(&'static str, String)],
    limit: usize,
) -> impl Stream<Item = anyhow::Result<PinStatusView>> + 'a {
    struct Pages {
        here: VecDeque<PinStatusView>,
        before: Option<String>,
        left: usize,
        last: bool,
    }
    let pages = Pages { here: VecDeque::new(), before: None, left: limit, last: false };
    stream::try_unfold(pages, move |mut pages| async move {
        if pages.here.is_empty() && !pages.last && pages.left > 0 {
            let limit = PAGE.min(pages.left);
            let mut parameters = filter.to_vec();
            parameters.push(("limit", limit.to_string()));
            parameters.extend(pages.before.take().map(|before| ("before", before)));
            let page: PinResultsView = remote.get(&format!("/psa/pins{}", query(&parameters))).await?;
            pages.last = page.results.len() < limit;
            pages.before = page.results.last().map(|pin| pin.created.clone());
            pages.here = page.results.into();
        }
        pages.left = pages.left.saturating_sub(1);
        Ok(pages.here.pop_front().map(|pin| (pin, pages)))
    })
}

/// A pin of a store that no gateway runs on.
fn of_store(pin: &PinSummary) -> PinStatusView {
    let info = [("blocks", pin.blocks), ("bytes", pin.bytes)].map(|(key, value)| (key.to_owned(), value.to_string()));
    let mut info: BTreeMap<String, String> = info.into();
    if pin.state == PinState::Partial {
        let words = "blocks of it are missing here: the gateway fetches them when it runs";
        info.insert("status_details".to_owned(), words.to_owned());
    }
    PinStatusView {
        requestid: String::new(),
        status: match pin.state {
            PinState::Complete => StatusView::Pinned,
            PinState::Partial => StatusView::Queued,
        },
        created: rfc3339(pin.created),
        pin: PinView { cid: pin.root.to_string(), name: pin.name.clone(), origins: None, meta: None },
        delegates: Vec::new(),
        info,
    }
}

fn of_store_filtered(mut pins: Vec<PinSummary>, args: &LsArgs, limit: usize) -> Vec<PinStatusView> {
    pins.sort_by_key(|pin| std::cmp::Reverse(pin.created));
    let is_called = |name: &str, wanted: &str| match args.partial {
        true => name.to_lowercase().contains(&wanted.to_lowercase()),
        false => name == wanted,
    };
    let pinned = [StatusView::Pinned];
    let statuses = if args.status.is_empty() { &pinned[..] } else { &args.status };
    let is_wanted = |pin: &PinStatusView, root: &Cid| {
        (args.all || statuses.contains(&pin.status))
            && args.name.as_deref().is_none_or(|name| is_called(pin.pin.name.as_deref().unwrap_or_default(), name))
            && (args.cid.is_empty()
                || args.cid.iter().any(|cid| cid.hash() == root.hash() && cid.codec() == root.codec()))
    };
    let views = pins.iter().map(|pin| (of_store(pin), pin.root));
    views.filter(|(view, root)| is_wanted(view, root)).map(|(view, _)| view).take(limit).collect()
}
