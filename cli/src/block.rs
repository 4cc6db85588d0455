//! `causeway block`: rules of the local denylist, and the state of all denylists.
//!
//! Goals: content is named as it was reported: by CID, path, name or URL; the operator sees which blocks a rule removed
//! from the store; the exit code tells scripts whether content is blocked.

use crate::options::{GATEWAY_REQUIRED, RequestOptions};
use crate::output::{count, print_json, print_line, print_view, table};
use crate::remote::address::query;
use crate::remote::{Remote, connect};
use crate::store_cli::printable;
use crate::values::moment;
use anyhow::ensure;
use api::denylists::{AddRule, AddedView, CheckView, DecisionView, ListView, ListsView, RemovedView, RulesView};
use api::text::size;
use clap::{Args, Subcommand};
use config::{Flags, Loaded};
use content::path::Namespace;
use content::{cid, codec};
use services::subject::Subject;
use std::fmt::Write as _;

/// Rules per request.
const PAGE: usize = 1000;

const HELP: &str = "\
Rules come from the denylists of policy.denylists, and from the local list, which these commands change and which \
takes precedence over all others. When \"add\" returns, the rule is in force for HTTP and for peers, and the content \
that it blocks has been deleted from memory and disk, including pinned content.

For a gateway of a site, the commands change the list of the site, which is in force at all of its gateways within a \
second.";

const ADD: &str = "\
WHAT is a CID, a path, an IPNS key or a domain, or the URL of a page at any gateway.

Examples:
  causeway block add bafy…
  causeway block add https://gateway.example.org/ipfs/bafy…/page
  causeway block add --status 451 --reason \"court order 7/26\" bafy…
  causeway block add --below /ipns/example.org/files
  causeway block add --deep bafy…      also every stored block below it
  causeway block add --allow bafy…     an exception from all lists
  causeway block add --rule '//d9d295bde21f422d…'";

const CHECK: &str = "\
Examples:
  causeway block check https://bafy….ipfs.gateway.example.org/page
  causeway block check --json bafy… | jq '.decisions[] | select(.blocked)'

This prints the status that a request would be answered with. It resolves names, but fetches no blocks.

Exit codes: 0 not blocked; 1 blocked.";

/// `causeway block`
#[derive(Debug, Subcommand)]
#[command(after_help = format!("{HELP}\n\n{GATEWAY_REQUIRED}"))]
pub enum BlockCommand {
    /// Block content, and delete it from memory and disk
    #[command(after_help = ADD)]
    Add(AddArgs),
    /// Unblock content: remove a rule of "add"
    #[command(
        alias = "remove",
        after_help = "Examples:\n  causeway block rm bafy…\n  causeway block rm --rule '/ipns/example.org/files/*'"
    )]
    Rm {
        /// The rule's subject, as for "add".
        #[command(flatten)]
        what: SubjectArgs,
        /// Output format and node.
        #[command(flatten)]
        options: RequestOptions,
    },
    /// List the denylists with their state, or the rules of the local list
    #[command(
        alias = "list",
        after_help = "Examples:\n\
            \x20 causeway block ls\n\
            \x20 causeway block ls --rules\n\
            \x20 causeway block ls --json | jq '.lists[] | select(.error)'"
    )]
    Ls {
        /// List the rules of the local list instead
        #[arg(long)]
        rules: bool,
        /// Output format and node.
        #[command(flatten)]
        options: RequestOptions,
    },
    /// Check whether content is blocked, and by which line of which list
    #[command(after_help = CHECK)]
    Check {
        /// A CID, a path, a name or a URL
        what: String,
        /// Output format and node.
        #[command(flatten)]
        options: RequestOptions,
    },
    /// Reload denylists now
    #[command(after_help = "Examples:\n  causeway block reload\n  causeway block reload /etc/causeway/own.deny")]
    Reload {
        /// The ID of the list, from "ls" [default: all lists]
        list: Option<String>,
        /// Output format and node.
        #[command(flatten)]
        options: RequestOptions,
    },
}

/// The subject of a rule.
#[derive(Debug, Args)]
pub struct SubjectArgs {
    /// A CID, a path, a name or a URL
    #[arg(required_unless_present = "rule")]
    what: Option<String>,
    /// Match all paths with this prefix
    #[arg(long)]
    below: bool,
    /// A rule in the syntax of denylists, instead
    #[arg(long, value_name = "LINE", conflicts_with_all = ["what", "below"])]
    rule: Option<String>,
}

/// `causeway block add`
#[derive(Debug, Args)]
pub struct AddArgs {
    /// The rule's subject.
    #[command(flatten)]
    what: SubjectArgs,
    /// Allow it, even if a list blocks it
    #[arg(long, conflicts_with = "rule")]
    allow: bool,
    /// The reason, for readers of the list
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// The status of answers: 410, or 451 for legal reasons [default: 410]
    #[arg(long, value_name = "STATUS", value_parser = clap::value_parser!(u16).range(400..=499))]
    status: Option<u16>,
    /// Write the rule as a double hash, so that the list does not reveal its subject
    #[arg(long, conflicts_with_all = ["rule", "below"])]
    double_hash: bool,
    /// Also block every stored block below it by its own multihash
    #[arg(long, conflicts_with = "allow")]
    deep: bool,
    /// Output format and node.
    #[command(flatten)]
    options: RequestOptions,
}

impl BlockCommand {
    /// The settings that the options override.
    pub fn flags(&self) -> Flags {
        let options = match self {
            Self::Add(args) => &args.options,
            Self::Rm { options, .. }
            | Self::Ls { options, .. }
            | Self::Check { options, .. }
            | Self::Reload { options, .. } => options,
        };
        options.flags()
    }
}

/// Runs a command.
///
/// # Errors
/// When the gateway cannot be reached or rejects the request; for `check`, when the content is blocked.
pub async fn run(loaded: &Loaded, command: BlockCommand) -> anyhow::Result<()> {
    match command {
        BlockCommand::Add(args) => add(loaded, args).await,
        BlockCommand::Rm { what, options } => {
            let rule = rule_text(what)?;
            let path = format!("/api/v1/denylists/local/rules{}", query(&[("rule", rule.clone())]));
            let removed: RemovedView = connect(loaded, &options.node).await?.delete(&path).await?;
            print_view(options.json, &removed, |removed| removed_text(&rule, removed.removed))
        }
        BlockCommand::Ls { rules: true, options } => rules(loaded, &options).await,
        BlockCommand::Ls { rules: false, options } => {
            let lists: ListsView = connect(loaded, &options.node).await?.get("/api/v1/denylists").await?;
            print_view(options.json, &lists, lists_text)
        }
        BlockCommand::Check { what, options } => {
            let path = format!("/api/v1/denylists/check{}", query(&[("subject", normalised(&what))]));
            let check: CheckView = connect(loaded, &options.node).await?.get(&path).await?;
            print_view(options.json, &check, check_text)?;
            ensure!(!check.blocked, "{} is blocked", check.subject);
            Ok(())
        }
        BlockCommand::Reload { list, options } => {
            let list: Vec<_> = list.into_iter().map(|list| ("list", list)).collect();
            let path = format!("/api/v1/denylists/reload{}", query(&list));
            let lists: ListsView = connect(loaded, &options.node).await?.post(&path, &()).await?;
            print_view(options.json, &lists, lists_text)
        }
    }
}

/// Adds `/ipfs/` to a path that begins with a CID.
fn normalised(what: &str) -> String {
    let what = what.trim();
    let is_below_cid = what.split_once('/').is_some_and(|(root, _)| cid::parse(root).is_ok());
    if is_below_cid { format!("/ipfs/{what}") } else { what.to_owned() }
}

/// The API's request for a rule about a subject.
fn request(what: SubjectArgs) -> AddRule {
    let SubjectArgs { what, below, rule } = what;
    let mut request = AddRule { rule, below, ..AddRule::default() };
    let Some(what) = what.as_deref().map(normalised) else { return request };
    let field = match cid::parse(&what) {
        _ if Namespace::split(&what).is_some() => &mut request.path,
        _ if what.contains("://") => &mut request.url,
        Ok(cid) if cid.codec() != codec::LIBP2P_KEY => &mut request.cid,
        _ => &mut request.name,
    };
    *field = Some(what);
    request
}

/// The rule that `add` wrote for the same subject.
fn rule_text(what: SubjectArgs) -> anyhow::Result<String> {
    let SubjectArgs { what, below, rule } = what;
    match (rule, what) {
        (Some(rule), _) => Ok(rule),
        (None, what) => Ok(Subject::of_anything(&normalised(&what.unwrap_or_default()))?.rule_text(below)),
    }
}

async fn add(loaded: &Loaded, args: AddArgs) -> anyhow::Result<()> {
    let AddArgs { what, allow, reason, status, double_hash, deep, options } = args;
    let rule = AddRule { allow, reason, status, double_hash, deep, ..request(what) };
    let added: AddedView = connect(loaded, &options.node).await?.post("/api/v1/denylists/local/rules", &rule).await?;
    print_view(options.json, &added, added_text)
}

fn removed_text(rule: &str, removed: u64) -> String {
    let further = removed.saturating_sub(1);
    let more =
        if further == 0 { String::new() } else { format!(", and {} for blocks below it", count(further, "rule")) };
    format!("removed {rule} from the list{more}\n")
}

fn added_text(added: &AddedView) -> String {
    let AddedView { rule, evicted_blocks, evicted_bytes, .. } = added;
    let mut text = format!("{rule}\n{}\n", if added.added { "in force" } else { "already in force" });
    if added.deep_rules > 0 || !added.complete {
        let more = if added.complete { "" } else { "; the DAG is larger than the limit of the walk" };
        _ = writeln!(text, "{} for blocks below{more}", count(added.deep_rules, "rule"));
    }
    if added.unread_blocks > 0 {
        let blocks = count(added.unread_blocks, "block");
        _ = writeln!(text, "not stored here: {blocks}; what is below was not looked for");
    }
    // Blocks that were deleted by unpinning are not counted.
    if *evicted_blocks > 0 {
        _ = writeln!(text, "deleted {} from the disk ({})", count(*evicted_blocks, "block"), size(*evicted_bytes));
    }
    if added.caches_notified > 0 {
        let unpurged = match added.unpurged_blocks {
            0 => String::new(),
            blocks => format!(", except for {} below", count(blocks, "block")),
        };
        _ = writeln!(text, "sending purge requests to {}{unpurged}", count(added.caches_notified, "cache"));
    }
    let unpinned = added.unpinned.iter();
    unpinned.for_each(|root| _ = writeln!(text, "unpinned {root}; its blocks without another pin are deleted"));
    text
}

async fn rules(loaded: &Loaded, options: &RequestOptions) -> anyhow::Result<()> {
    let remote: Remote = connect(loaded, &options.node).await?;
    let mut all = RulesView { rules: Vec::new(), next: Some(0) };
    while let Some(after) = all.next {
        let parameters = [("after", after.to_string()), ("limit", PAGE.to_string())];
        let page: RulesView = remote.get(&format!("/api/v1/denylists/local/rules{}", query(&parameters))).await?;
        all.next = page.next;
        if options.json {
            all.rules.extend(page.rules);
            continue;
        }
        for rule in page.rules {
            let added = rule.added_at.map_or_else(|| "-".to_owned(), moment);
            print_line(&format!("{added}  {}", printable(&rule.rule)))?;
        }
    }
    if options.json { print_json(&all) } else { Ok(()) }
}

fn lists_text(lists: &ListsView) -> String {
    let row = |list: &ListView| {
        let checked = list.checked_at.map_or_else(|| "never".to_owned(), moment);
        let state = match (&list.error, list.fetching_bytes) {
            (Some(error), _) => format!("{}: {}", count(list.failures.into(), "failure"), printable(error)),
            (None, Some(bytes)) => format!("fetching: {} so far", size(bytes)),
            (None, None) if list.cut_off => "too long: only its beginning is read".to_owned(),
            (None, None) if list.malformed > 0 => format!("malformed: {}", count(list.malformed, "line")),
            (None, None) => "good".to_owned(),
        };
        let kind = if list.allows { format!("{}, allows", list.kind) } else { list.kind.clone() };
        [list.id.clone(), kind, list.rules.to_string(), size(list.memory_bytes), checked, state]
    };
    let mut text = table(["LIST", "KIND", "RULES", "MEMORY", "CHECKED", "STATE"], lists.lists.iter().map(row));
    if lists.settings_rules > 0 {
        _ = writeln!(text, "and the {} CIDs of policy.deny", lists.settings_rules);
    }
    if lists.mode == "allow" {
        text.push_str("allowlist mode: only content on an allowlist is served\n");
    }
    text
}

fn check_text(check: &CheckView) -> String {
    let CheckView { subject, status, answer, unknown, .. } = check;
    let mut text = match (status, answer, unknown) {
        // The answer is cut short: its head is sent before the blocked part is reached.
        (Some(status), Some(answer), _) if check.blocked && answer != status => {
            format!(
                "{subject} is partly blocked: the answer {answer} is cut short at a block that is withheld with \
                 {status}\n"
            )
        }
        (Some(status), ..) if check.blocked => format!("{subject} is blocked: {status}\n"),
        (_, Some(answer @ ..400), None) => format!("{subject} is served: {answer}\n"),
        (_, Some(answer @ ..400), Some(unknown)) => {
            format!("{subject} is served from stored blocks: {answer} ({unknown})\n")
        }
        (_, Some(answer), _) => format!("{subject} is not blocked; a request for it is answered {answer}\n"),
        (_, None, unknown) => {
            let why = unknown.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            format!("{subject} is not known to be blocked{why}\n")
        }
    };
    for DecisionView { of, blocked, list, line, rule, .. } in &check.decisions {
        let Some(list) = list else { continue };
        let line = line.map(|line| format!(", line {line}")).unwrap_or_default();
        let rule = rule.as_deref().map(|rule| format!(": {}", printable(rule))).unwrap_or_default();
        _ = writeln!(text, "  {of} is {} by {list}{line}{rule}", if *blocked { "blocked" } else { "allowed" });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const CID: &str = "bafkqac3imvwgy3zao5xxe3de";
    const KEY: &str = "k51qzi5uqu5dgutdk6i1ynyzgkqngpha5xpgia3a5qqp4jsh0u4csozksxel2r";

    #[test]
    fn the_kind_of_a_subject_is_inferred() {
        let request =
            |text: &str| super::request(SubjectArgs { what: Some(text.to_owned()), below: false, rule: None });
        assert_eq!(request(CID).cid.as_deref(), Some(CID));
        assert_eq!(request(&format!("{CID}/a")).path, Some(format!("/ipfs/{CID}/a")));
        assert_eq!(request("/ipns/example.org/a").path.as_deref(), Some("/ipns/example.org/a"));
        assert_eq!(request("example.org").name.as_deref(), Some("example.org"));
        assert_eq!(request(KEY).name.as_deref(), Some(KEY));
        let url = format!("https://{CID}.ipfs.example.org/a");
        assert_eq!(request(&url).url, Some(url));
    }

    #[test]
    fn a_check_prints_the_status_of_the_answer() {
        let check = |blocked, status, answer, unknown: Option<&str>| CheckView {
            subject: "/ipfs/x".to_owned(),
            blocked,
            status,
            answer,
            unknown: unknown.map(str::to_owned),
            decisions: Vec::new(),
        };
        let part = "/ipfs/x is partly blocked: the answer 200 is cut short at a block that is withheld with 410\n";
        let table = [
            (check(true, Some(451), Some(451), None), "/ipfs/x is blocked: 451\n"),
            (check(true, Some(410), None, Some("why")), "/ipfs/x is blocked: 410\n"),
            (check(true, Some(410), Some(200), None), part),
            (check(false, None, Some(200), None), "/ipfs/x is served: 200\n"),
            (check(false, None, Some(200), Some("why")), "/ipfs/x is served from stored blocks: 200 (why)\n"),
            (check(false, None, Some(404), None), "/ipfs/x is not blocked; a request for it is answered 404\n"),
            (check(false, None, None, Some("why")), "/ipfs/x is not known to be blocked: why\n"),
            (check(false, None, None, None), "/ipfs/x is not known to be blocked\n"),
        ];
        for (check, expected) in table {
            assert_eq!(check_text(&check), expected);
        }
    }

    #[test]
    fn add_and_rm_derive_the_same_rule() {
        let rule = |text: &str, below| {
            rule_text(SubjectArgs { what: Some(text.to_owned()), below, rule: None }).expect("a rule")
        };
        assert_eq!(rule(CID, false), format!("/ipfs/{CID}"));
        assert_eq!(rule(&format!("{CID}/a"), true), format!("/ipfs/{CID}/a*"));
        assert_eq!(rule("example.org", false), "/ipns/example.org");
    }
}
