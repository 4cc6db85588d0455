//! `causeway block`: what is not served.
//!
//! Goals: content is named as it was reported, whether as a CID, a path, a name or the address of a page; whoever blocks something
//! hears what left the store; a script learns by the exit code whether something is blocked.

use crate::output::{count, print_json, print_line, print_view, table};
use crate::place::{Asking, RUNNING};
use crate::remote::address::query;
use crate::remote::{Remote, running};
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

/// Rules that are asked for at a time.
const PAGE: usize = 1000;

const HELP: &str = "\
Rules come from lists, which policy.denylists names, and from here; what is said here counts for more than any list. A rule is in force \
when the command ends, for HTTP and for other peers, and what it blocks has left memory and disk, pins included.";

const ADD: &str = "\
WHAT is a CID, a path, an IPNS key or a domain, or the address of a page at any gateway.

Examples:
  causeway block add bafy…
  causeway block add https://gateway.example.org/ipfs/bafy…/page
  causeway block add --status 451 --reason \"court order 7/26\" bafy…
  causeway block add --below /ipns/example.org/files
  causeway block add --deep bafy…      each block of it that is here as well
  causeway block add --allow bafy…     it is served, whatever lists say
  causeway block add --rule '//d9d295bde21f422d…'";

const CHECK: &str = "\
Examples:
  causeway block check https://bafy….ipfs.gateway.example.org/page
  causeway block check --json bafy… | jq '.decisions[] | select(.blocked)'

What is said is what a request would be answered with. Nothing is fetched for it; names are looked up.

Exit codes: 0 it is not blocked; 1 it is blocked.";

/// `causeway block`
#[derive(Debug, Subcommand)]
#[command(after_help = format!("{HELP}\n\n{RUNNING}"))]
pub enum BlockCommand {
    /// Block content, and take it out of memory and off the disk
    #[command(after_help = ADD)]
    Add(AddArgs),
    /// Block something no longer: what "add" was told
    #[command(
        alias = "remove",
        after_help = "Examples:\n  causeway block rm bafy…\n  causeway block rm --rule '/ipns/example.org/files/*'"
    )]
    Rm {
        /// What: as for "add"
        #[command(flatten)]
        what: What,
        /// How it is asked.
        #[command(flatten)]
        asking: Asking,
    },
    /// List the lists, and what became of them when they were last looked at; or the rules that were added here
    #[command(
        alias = "list",
        after_help = "Examples:\n  causeway block ls\n  causeway block ls --rules\n  causeway block ls --json | jq '.lists[] | select(.error)'"
    )]
    Ls {
        /// The rules that were added here
        #[arg(long)]
        rules: bool,
        /// How it is asked.
        #[command(flatten)]
        asking: Asking,
    },
    /// Say whether something is blocked, and by which line of which list
    #[command(after_help = CHECK)]
    Check {
        /// A CID, a path, a name or the address of a page
        what: String,
        /// How it is asked.
        #[command(flatten)]
        asking: Asking,
    },
    /// Look at lists now, and not when it is time
    #[command(after_help = "Examples:\n  causeway block reload\n  causeway block reload /etc/causeway/own.deny")]
    Reload {
        /// Which, as "ls" says; all of them if left out
        list: Option<String>,
        /// How it is asked.
        #[command(flatten)]
        asking: Asking,
    },
}

/// What a rule is about.
#[derive(Debug, Args)]
pub struct What {
    /// A CID, a path, a name or the address of a page
    #[arg(required_unless_present = "rule")]
    what: Option<String>,
    /// Everything whose path begins so as well
    #[arg(long)]
    below: bool,
    /// A line as it stands in a list, instead
    #[arg(long, value_name = "LINE", conflicts_with_all = ["what", "below"])]
    rule: Option<String>,
}

/// `causeway block add`
#[derive(Debug, Args)]
pub struct AddArgs {
    /// What: see there.
    #[command(flatten)]
    what: What,
    /// Serve it, whatever lists say
    #[arg(long, conflicts_with = "rule")]
    allow: bool,
    /// Why, for those who look at the list
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Answer with 410, or with 451 for legal reasons; 410 if left out
    #[arg(long, value_name = "STATUS", value_parser = clap::value_parser!(u16).range(400..=499))]
    status: Option<u16>,
    /// Write it as a double hash, so that the list does not tell what it is about
    #[arg(long, conflicts_with_all = ["rule", "below"])]
    double_hash: bool,
    /// Block every block below that is here by its own hash as well
    #[arg(long, conflicts_with = "allow")]
    deep: bool,
    /// How it is asked.
    #[command(flatten)]
    asking: Asking,
}

impl BlockCommand {
    /// The settings that were given.
    pub fn flags(&self) -> Flags {
        let asking = match self {
            Self::Add(args) => &args.asking,
            Self::Rm { asking, .. }
            | Self::Ls { asking, .. }
            | Self::Check { asking, .. }
            | Self::Reload { asking, .. } => asking,
        };
        asking.flags()
    }
}

/// Runs a command.
///
/// # Errors
/// What was answered instead; of "check", that it is blocked.
pub async fn run(loaded: &Loaded, command: BlockCommand) -> anyhow::Result<()> {
    match command {
        BlockCommand::Add(args) => add(loaded, args).await,
        BlockCommand::Rm { what, asking } => {
            let rule = rule(what)?;
            let path = format!("/api/v1/denylists/local/rules{}", query(&[("rule", rule.clone())]));
            let removed: RemovedView = running(loaded, &asking.node).await?.delete(&path).await?;
            print_view(asking.json, &removed, |removed| removed_text(&rule, removed.removed))
        }
        BlockCommand::Ls { rules: true, asking } => rules(loaded, &asking).await,
        BlockCommand::Ls { rules: false, asking } => {
            let lists: ListsView = running(loaded, &asking.node).await?.get("/api/v1/denylists").await?;
            print_view(asking.json, &lists, lists_text)
        }
        BlockCommand::Check { what, asking } => {
            let path = format!("/api/v1/denylists/check{}", query(&[("subject", said(&what))]));
            let check: CheckView = running(loaded, &asking.node).await?.get(&path).await?;
            print_view(asking.json, &check, check_text)?;
            ensure!(!check.blocked, "{} is blocked", check.subject);
            Ok(())
        }
        BlockCommand::Reload { list, asking } => {
            let list: Vec<_> = list.into_iter().map(|list| ("list", list)).collect();
            let path = format!("/api/v1/denylists/reload{}", query(&list));
            let lists: ListsView = running(loaded, &asking.node).await?.post(&path, &()).await?;
            print_view(asking.json, &lists, lists_text)
        }
    }
}

/// A path without its namespace is one below a CID.
fn said(what: &str) -> String {
    let what = what.trim();
    let is_below_cid = what.split_once('/').is_some_and(|(root, _)| cid::parse(root).is_ok());
    if is_below_cid { format!("/ipfs/{what}") } else { what.to_owned() }
}

/// What a rule is about, as the API takes it.
fn asked(what: What) -> AddRule {
    let What { what, below, rule } = what;
    let mut asked = AddRule { rule, below, ..AddRule::default() };
    let Some(what) = what.as_deref().map(said) else { return asked };
    let field = match cid::parse(&what) {
        _ if Namespace::split(&what).is_some() => &mut asked.path,
        _ if what.contains("://") => &mut asked.url,
        Ok(cid) if cid.codec() != codec::LIBP2P_KEY => &mut asked.cid,
        _ => &mut asked.name,
    };
    *field = Some(what);
    asked
}

/// The rule that "add" made of the same.
fn rule(what: What) -> anyhow::Result<String> {
    let What { what, below, rule } = what;
    match (rule, what) {
        (Some(rule), _) => Ok(rule),
        (None, what) => Ok(Subject::of_anything(&said(&what.unwrap_or_default()))?.rule_text(below)),
    }
}

async fn add(loaded: &Loaded, args: AddArgs) -> anyhow::Result<()> {
    let AddArgs { what, allow, reason, status, double_hash, deep, asking } = args;
    let rule = AddRule { allow, reason, status, double_hash, deep, ..asked(what) };
    let added: AddedView = running(loaded, &asking.node).await?.post("/api/v1/denylists/local/rules", &rule).await?;
    print_view(asking.json, &added, added_text)
}

fn removed_text(rule: &str, removed: u64) -> String {
    let further = removed.saturating_sub(1);
    let more = if further == 0 { String::new() } else { format!(", nor {} that came with it", count(further, "rule")) };
    format!("the local list no longer has {rule}{more}\n")
}

fn added_text(added: &AddedView) -> String {
    let AddedView { rule, evicted_blocks, evicted_bytes, .. } = added;
    let mut text = format!("{rule}\n{}\n", if added.added { "in force" } else { "was in force already" });
    if added.deep_rules > 0 || !added.complete {
        let more = if added.complete { "" } else { ", and there is more below than is walked" };
        _ = writeln!(text, "{} for what is below{more}", count(added.deep_rules, "rule"));
    }
    // What goes with a pin is not counted.
    if *evicted_blocks > 0 {
        _ = writeln!(text, "{} left the disk ({})", count(*evicted_blocks, "block"), size(*evicted_bytes));
    }
    if added.caches_notified > 0 {
        _ = writeln!(text, "purge requests go to {}", count(added.caches_notified, "cache"));
    }
    let unpinned = added.unpinned.iter();
    unpinned.for_each(|root| _ = writeln!(text, "unpinned {root}, and what no other pin has of it is gone"));
    text
}

async fn rules(loaded: &Loaded, asking: &Asking) -> anyhow::Result<()> {
    let remote: Remote = running(loaded, &asking.node).await?;
    let mut all = RulesView { rules: Vec::new(), next: Some(0) };
    while let Some(after) = all.next {
        let parameters = [("after", after.to_string()), ("limit", PAGE.to_string())];
        let page: RulesView = remote.get(&format!("/api/v1/denylists/local/rules{}", query(&parameters))).await?;
        all.next = page.next;
        if asking.json {
            all.rules.extend(page.rules);
            continue;
        }
        for rule in page.rules {
            let added = rule.added_at.map_or_else(|| "-".to_owned(), moment);
            print_line(&format!("{added}  {}", printable(&rule.rule)))?;
        }
    }
    if asking.json { print_json(&all) } else { Ok(()) }
}

fn lists_text(lists: &ListsView) -> String {
    let row = |list: &ListView| {
        let checked = list.checked_at.map_or_else(|| "never".to_owned(), moment);
        let state = match (&list.error, list.fetching_bytes) {
            (Some(error), _) => format!("{}: {}", count(list.failures.into(), "failure"), printable(error)),
            (None, Some(bytes)) => format!("fetching: {} so far", size(bytes)),
            (None, None) if list.cut_off => "too long: its end is not read".to_owned(),
            (None, None) if list.malformed > 0 => format!("malformed: {}", count(list.malformed, "line")),
            (None, None) => "good".to_owned(),
        };
        let kind = if list.allows { format!("{}, allows", list.kind) } else { list.kind.clone() };
        [list.id.clone(), kind, list.rules.to_string(), size(list.memory_bytes), checked, state]
    };
    let mut text = table(["LIST", "KIND", "RULES", "MEMORY", "CHECKED", "STATE"], lists.lists.iter().map(row));
    if lists.settings_rules > 0 {
        _ = writeln!(text, "and {} CIDs of policy.deny", lists.settings_rules);
    }
    if lists.mode == "allow" {
        text.push_str("only what a list allows is served\n");
    }
    text
}

fn check_text(check: &CheckView) -> String {
    let CheckView { subject, status, answer, unknown, .. } = check;
    let mut text = match (status, answer, unknown) {
        // The head is sent before that part is reached.
        (Some(status), Some(answer), _) if check.blocked && answer != status => {
            format!("{subject} is blocked in part: the answer, {answer}, breaks off where it would be {status}\n")
        }
        (Some(status), ..) if check.blocked => format!("{subject} is blocked: {status}\n"),
        (_, Some(answer @ ..400), None) => format!("{subject} is served: {answer}\n"),
        (_, Some(answer @ ..400), Some(unknown)) => {
            format!("{subject} is served as far as it is held here: {answer} ({unknown})\n")
        }
        (_, Some(answer), _) => format!("{subject} is not blocked; a request for it is answered {answer}\n"),
        (_, None, unknown) => {
            let why = unknown.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            format!("{subject} is not blocked as far as is known{why}\n")
        }
    };
    for DecisionView { of, blocked, list, line, rule, .. } in &check.decisions {
        let Some(list) = list else { continue };
        let line = line.map(|line| format!(", line {line}")).unwrap_or_default();
        let rule = rule.as_deref().map(|rule| format!(": {}", printable(rule))).unwrap_or_default();
        _ = writeln!(text, "  {of} is {} by {list}{line}{rule}", if *blocked { "blocked" } else { "let out" });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const CID: &str = "bafkqac3imvwgy3zao5xxe3de";
    const KEY: &str = "k51qzi5uqu5dgutdk6i1ynyzgkqngpha5xpgia3a5qqp4jsh0u4csozksxel2r";

    #[test]
    fn what_is_said_is_what_it_looks_like() {
        let asked = |text: &str| asked(What { what: Some(text.to_owned()), below: false, rule: None });
        assert_eq!(asked(CID).cid.as_deref(), Some(CID));
        assert_eq!(asked(&format!("{CID}/a")).path, Some(format!("/ipfs/{CID}/a")));
        assert_eq!(asked("/ipns/example.org/a").path.as_deref(), Some("/ipns/example.org/a"));
        assert_eq!(asked("example.org").name.as_deref(), Some("example.org"));
        assert_eq!(asked(KEY).name.as_deref(), Some(KEY));
        let url = format!("https://{CID}.ipfs.example.org/a");
        assert_eq!(asked(&url).url, Some(url));
    }

    #[test]
    fn what_was_checked_is_told_as_it_would_be_answered() {
        let check = |blocked, status, answer, unknown: Option<&str>| CheckView {
            subject: "/ipfs/x".to_owned(),
            blocked,
            status,
            answer,
            unknown: unknown.map(str::to_owned),
            decisions: Vec::new(),
        };
        let part = "/ipfs/x is blocked in part: the answer, 200, breaks off where it would be 410\n";
        let table = [
            (check(true, Some(451), Some(451), None), "/ipfs/x is blocked: 451\n"),
            (check(true, Some(410), None, Some("why")), "/ipfs/x is blocked: 410\n"),
            (check(true, Some(410), Some(200), None), part),
            (check(false, None, Some(200), None), "/ipfs/x is served: 200\n"),
            (check(false, None, Some(200), Some("why")), "/ipfs/x is served as far as it is held here: 200 (why)\n"),
            (check(false, None, Some(404), None), "/ipfs/x is not blocked; a request for it is answered 404\n"),
            (check(false, None, None, Some("why")), "/ipfs/x is not blocked as far as is known: why\n"),
            (check(false, None, None, None), "/ipfs/x is not blocked as far as is known\n"),
        ];
        for (check, expected) in table {
            assert_eq!(check_text(&check), expected);
        }
    }

    #[test]
    fn what_was_added_is_removed_by_the_same_words() {
        let rule = |text: &str, below| rule(What { what: Some(text.to_owned()), below, rule: None }).expect("a rule");
        assert_eq!(rule(CID, false), format!("/ipfs/{CID}"));
        assert_eq!(rule(&format!("{CID}/a"), true), format!("/ipfs/{CID}/a*"));
        assert_eq!(rule("example.org", false), "/ipns/example.org");
    }
}
