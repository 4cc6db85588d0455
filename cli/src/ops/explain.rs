//! `causeway explain`: how the gateway would answer a request, and why.

use crate::ops::path_of;
use crate::options::{GATEWAY_REQUIRED, RequestOptions};
use crate::output::{count, print_view};
use crate::remote::address::query;
use crate::remote::client::Wait;
use crate::remote::connect;
use crate::store_cli::printable;
use api::explain::{AnswerView, ContentView, ExplainView, HeldView, NetworkView, PackedFileView, SearchView};
use api::text::size;
use clap::Args;
use config::Loaded;
use http::Method;
use std::fmt::Write as _;

const HELP: &str = "\
Examples:
  causeway explain bafy…
  causeway explain example.org/page
  causeway explain https://bafy….ipfs.gateway.example.org/
  causeway explain --fetch bafy…       fetch it, and show how
  causeway explain --json bafy… | jq .network.search

Without --fetch, this sends no requests to peers and fetches nothing.";

/// `causeway explain`
#[derive(Debug, Args)]
#[command(after_help = format!("{HELP}\n\n{GATEWAY_REQUIRED}"))]
pub struct ExplainArgs {
    /// What the client would request: CID, NAME, CID/PATH, /ipfs/CID/PATH, /ipns/NAME/PATH, or a URL
    #[arg(value_name = "CID|PATH|URL")]
    what: String,
    /// Fetch it as for a client's request, and show how that went
    #[arg(long)]
    fetch: bool,
    /// Output format and node.
    #[command(flatten)]
    pub options: RequestOptions,
}

/// An argument as a query parameter of the API.
fn parameter(argument: &str) -> (&'static str, String) {
    match argument.split_once("://") {
        None | Some(("ipfs" | "ipns", _)) => ("path", path_of(argument)),
        Some(_) => ("url", argument.to_owned()),
    }
}

/// Prints the explanation.
///
/// # Errors
/// When the gateway cannot be reached or rejects the request.
pub async fn explain(loaded: &Loaded, args: ExplainArgs) -> anyhow::Result<()> {
    let ExplainArgs { what, fetch, options } = args;
    let mut parameters = vec![parameter(&what)];
    parameters.extend(fetch.then(|| ("fetch", "true".to_owned())));
    let path = format!("/api/v1/explain{}", query(&parameters));
    let remote = connect(loaded, &options.node).await?;
    let explained = remote.client().call::<ExplainView>(Method::GET, &path, None::<&()>, Wait::Long).await?;
    print_view(options.json, &explained, text)
}

fn text(view: &ExplainView) -> String {
    let then = view.then.as_deref().map(text).unwrap_or_default();
    let own = own_text(view);
    if then.is_empty() { own } else { format!("{own}\n{then}") }
}

fn own_text(view: &ExplainView) -> String {
    let mut text = format!("{} {}{}\n", view.method, view.host.as_deref().unwrap_or_default(), printable(&view.path));
    let mut say = |what: &str, words: &str| _ = writeln!(text, "{what:10} {}", printable(words));
    match &view.answer {
        Some(answer) => say("answer", &answer_text(answer)),
        None if view.missing.is_some() && view.network.is_none() => {
            say("answer", "unknown: not all blocks are stored, and the gateway is offline");
        }
        None => say("answer", "unknown without fetching blocks (--fetch)"),
    }
    if let Some(problem) = view.answer.as_ref().and_then(|answer| answer.breaks_off.as_ref()) {
        say("cut short", problem);
    }
    if let Some(fetched) = &view.fetched {
        let end = if fetched.in_time { "was ready" } else { "timed out" };
        say("fetched", &format!("the answer {end} after {:.3} s", fetched.seconds));
    }
    for step in &view.names {
        let value = step.value.as_deref().or(step.error.as_deref());
        let value = value.map_or_else(|| "not cached".to_owned(), |value| format!("{value} ({})", step.source));
        say("name", &format!("{}: {value}", step.name));
    }
    view.resolved.iter().for_each(|path| say("path", path));
    if let Some(policy) = &view.policy {
        let by = policy.decided_by.as_deref().map(|by| format!(", by {by}")).unwrap_or_default();
        let what = policy.refused.as_deref().map(|refused| format!(" {refused}")).unwrap_or_default();
        say("policy", &format!("{}{what}{by}", policy.verdict));
    }
    view.blocks.iter().for_each(|block| say("block", &block_text(block)));
    if let Some(PackedFileView { plain, zstd, packed }) = &view.packed {
        say("packed", &format!("plain file {plain}, zstd file {zstd}, plain content by the zstd file {packed}"));
    }
    view.missing.iter().for_each(|cid| say("missing", cid));
    view.content.iter().for_each(|content| say("content", &content_text(content)));
    if let Some(cached) = &view.remembered {
        let state = if cached.is_current { "" } else { ", stale: the denylists have changed" };
        say("cached", &format!("{}{state}", cached.cid));
    }
    view.network.iter().flat_map(network_lines).for_each(|line| say("network", &line));
    // The line of the answer already has its problem.
    let problem = view.answer.as_ref().and_then(|answer| answer.problem.as_ref());
    let notes = view.notes.iter().filter(|note| Some(*note) != problem);
    notes.for_each(|note| say("note", &note.replace("fetch=true", "--fetch")));
    text
}

fn answer_text(answer: &AnswerView) -> String {
    let bytes = answer.bytes.map(|bytes| format!(", {}", size(bytes))).unwrap_or_default();
    let kind = answer.headers.get("content-type").map(|kind| format!(", {kind}")).unwrap_or_default();
    let location = answer.location.as_deref().map(|to| format!(", to {to}")).unwrap_or_default();
    let problem = answer.problem.as_deref().map(|problem| format!(": {problem}")).unwrap_or_default();
    format!("{}{bytes}{kind}{location}{problem}", answer.status)
}

fn block_text(block: &HeldView) -> String {
    let in_site = block.site == Some(true);
    let places = [(block.ram, "memory"), (block.disk, "disk"), (in_site, "site"), (block.pinned, "pinned")];
    let places: Vec<&str> = places.iter().filter_map(|(is, place)| is.then_some(*place)).collect();
    let places = if places.is_empty() { "not stored".to_owned() } else { places.join(", ") };
    let stored = block.stored_bytes.map(|bytes| format!(" ({})", size(bytes))).unwrap_or_default();
    format!("{}: {places}{stored}", block.cid)
}

fn content_text(content: &ContentView) -> String {
    let ContentView { cid, kind, blocks_here, missing_blocks, pinned_blocks, .. } = content;
    let bytes = content.bytes.map(|bytes| format!(" of {}", size(bytes))).unwrap_or_default();
    let missing = match (missing_blocks, content.counted_all) {
        (0, true) => "complete".to_owned(),
        (missing, true) => format!("{missing} missing"),
        (missing, false) => format!("at least {missing} missing"),
    };
    format!("{kind}{bytes}, {cid}: {}, {pinned_blocks} of them pinned; {missing}", count(*blocks_here, "block"))
}

fn network_lines(network: &NetworkView) -> Vec<String> {
    let mut lines = vec![format!("connected to {}", count(network.peers as u64, "peer"))];
    if let Some(session) = &network.session {
        let gave = session.members.iter().filter(|member| member.gave).count();
        lines.push(format!(
            "current or recent Bitswap session: asked {}, {} answered, {gave} sent blocks; waiting for {}",
            count(session.asked as u64, "peer"),
            session.answered,
            count(session.wanted as u64, "block"),
        ));
    }
    network.search.iter().for_each(|search| lines.extend(search_lines(search)));
    for provider in &network.remembered_providers {
        lines.push(format!("{} is a cached provider", provider.peer_id));
    }
    lines
}

fn search_lines(search: &SearchView) -> Vec<String> {
    let took = search.seconds.map_or_else(|| "is still running".to_owned(), |seconds| format!("took {seconds:.3} s"));
    let mut lines = vec![format!("the last provider search started {:.0} s ago and {took}", search.seconds_ago)];
    for asked in &search.asked {
        let answered = asked.seconds.map_or_else(|| "no answer".to_owned(), |seconds| format!("{seconds:.3} s"));
        lines.push(format!("  asked {}: {answered}", asked.whom));
    }
    for found in &search.providers {
        let by: Vec<&str> = found.named_by.iter().map(|named| named.whom.as_str()).collect();
        let dial = match &found.dial {
            _ if found.was_connected => "was connected".to_owned(),
            Some(dial) => match (&dial.error, dial.seconds) {
                (Some(error), _) => format!("cannot be reached: {error}"),
                (None, Some(seconds)) => format!("connected in {seconds:.3} s"),
                (None, None) => "is being dialled".to_owned(),
            },
            None => "was not dialled".to_owned(),
        };
        let proved = found.proved_seconds.map(|seconds| format!(", sent it after {seconds:.3} s")).unwrap_or_default();
        lines.push(format!("  found {} ({}): {dial}{proved}", found.peer_id, by.join(", ")));
    }
    if search.further > 0 {
        lines.push(format!("  and {} more", search.further));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_a_path_or_a_url() {
        const CID: &str = "bafkqac3imvwgy3zao5xxe3de";
        let table = [
            (CID.to_owned(), ("path", format!("/ipfs/{CID}"))),
            (format!("{CID}?format=car"), ("path", format!("/ipfs/{CID}?format=car"))),
            ("example.org".to_owned(), ("path", "/ipns/example.org".to_owned())),
            ("nonsense/a".to_owned(), ("path", "/ipfs/nonsense/a".to_owned())),
            (format!("/ipfs/{CID}"), ("path", format!("/ipfs/{CID}"))),
            (format!("{CID}/a"), ("path", format!("/ipfs/{CID}/a"))),
            (format!("ipfs://{CID}/a"), ("path", format!("/ipfs/{CID}/a"))),
            ("ipns://example.org".to_owned(), ("path", "/ipns/example.org".to_owned())),
            ("http://localhost/ipfs/x".to_owned(), ("url", "http://localhost/ipfs/x".to_owned())),
        ];
        for (argument, expected) in table {
            assert_eq!(parameter(&argument), expected, "{argument}");
        }
    }
}
