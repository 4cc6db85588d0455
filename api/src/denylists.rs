//! Denylists, allowlists, their rules, and what they decide.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// All lists.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ListsView {
    /// "deny" serves what no list withholds, "allow" what is on a list.
    pub mode: String,
    /// Rises with every change of the rules.
    pub generation: u64,
    /// CIDs that the settings withhold (`policy.deny`), which count for more than any list.
    pub settings_rules: u64,
    /// The lists, in the order in which they count: of those that say anything, the last one does.
    pub lists: Vec<ListView>,
}

/// One list.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ListView {
    /// What it is called: the place that the settings name, or "local".
    pub id: String,
    /// "file", "subscription" or "local".
    pub kind: String,
    /// Whether it says what is served, and not what is withheld.
    pub allows: bool,
    /// How it refuses content that no rule of it says more about: 410 or 451.
    pub status: u16,
    /// What it is called by whoever makes it.
    pub name: Option<String>,
    /// What it is for.
    pub description: Option<String>,
    /// Who makes it.
    pub author: Option<String>,
    /// Rules that are in force.
    pub rules: u64,
    /// Its text, in bytes.
    pub bytes: u64,
    /// What its rules take in memory, in bytes.
    pub memory_bytes: u64,
    /// Whether it is longer than a list may be, and what comes beyond is not read.
    pub cut_off: bool,
    /// Lines that are no rules.
    pub malformed: u64,
    /// The first of these.
    pub reported: Vec<ReportedView>,
    /// When it was last looked at with success, in seconds since the epoch.
    pub checked_at: Option<u64>,
    /// When it last changed, in seconds since the epoch.
    pub changed_at: Option<u64>,
    /// What was wrong the last time, if anything.
    pub error: Option<String>,
    /// How often in a row.
    pub failures: u32,
    /// Bytes that came so far of what is being fetched.
    pub fetching_bytes: Option<u64>,
    /// What the last fetch was that brought anything: "whole" or "appended".
    pub fetched: Option<String>,
}

/// A line that is no rule.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ReportedView {
    /// Its number, from 1 on.
    pub line: u64,
    /// What is wrong with it.
    pub error: String,
}

/// A rule to be added: exactly one of the first five fields says what it is about.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AddRule {
    /// A line as in a list, with its hints.
    pub rule: Option<String>,
    /// A CID.
    pub cid: Option<String>,
    /// A path that begins with /ipfs/ or /ipns/.
    pub path: Option<String>,
    /// An IPNS name or a domain.
    pub name: Option<String>,
    /// The address of a page, at whatever gateway.
    pub url: Option<String>,
    /// Withhold everything whose path begins so as well.
    pub below: bool,
    /// Let it out, whatever other lists say.
    pub allow: bool,
    /// Why.
    pub reason: Option<String>,
    /// How it is refused: 410 or 451.
    pub status: Option<u16>,
    /// Write it as a double hash, so that the list does not tell what it is about.
    pub double_hash: bool,
    /// Withhold every block below that is held here by its own hash as well.
    pub deep: bool,
}

/// What adding a rule did.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct AddedView {
    /// The line that says so.
    pub rule: String,
    /// Whether it is new.
    pub added: bool,
    /// Rules that were added for what lies below.
    pub deep_rules: u64,
    /// Whether these are all; if not, there were too many blocks below.
    pub complete: bool,
    /// Blocks that left the store.
    pub evicted_blocks: u64,
    /// What they took there, in bytes.
    pub evicted_bytes: u64,
    /// The roots of pins that were removed.
    pub unpinned: Vec<String>,
    /// Caches in front of the gateway that are sent a purge request, now or as soon as they can be reached.
    #[serde(default)]
    pub caches_notified: u64,
}

/// What removing a rule did.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RemovedView {
    /// Lines that are gone.
    pub removed: u64,
}

/// Rules of the local list.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RulesView {
    /// The rules, in the order of their lines.
    pub rules: Vec<RuleView>,
    /// What to ask for as `after` to have the next ones; absent when there are none.
    pub next: Option<u64>,
}

/// A rule.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RuleView {
    /// Its line.
    pub line: u64,
    /// As it stands there, in its usual form.
    pub rule: String,
    /// Whether it is an exception.
    pub allows: bool,
    /// How it refuses content, if it says so.
    pub status: Option<u16>,
    /// Why, if it says so.
    pub reason: Option<String>,
    /// When it was added, in seconds since the epoch, if that is known.
    pub added_at: Option<u64>,
}

/// Whether something is withheld.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = DecidedView)]
pub struct CheckView {
    /// What was asked about, as a path.
    pub subject: String,
    /// Whether it is withheld.
    pub blocked: bool,
    /// What it is answered with, if it is: 403, 410 or 451. If only a part of it is withheld, what that part is
    /// answered with.
    pub status: Option<u16>,
    /// What a request for it is answered with; left out if that cannot be told by what is held here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<u16>,
    /// Why that cannot be told, or not to its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// What was decided at each step that can be told from what is held here.
    pub decisions: Vec<DecisionView>,
}

/// What was decided about one block, path or name.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DecisionView {
    /// Which.
    pub of: String,
    /// Whether it is withheld.
    pub blocked: bool,
    /// What it is answered with, if it is.
    pub status: Option<u16>,
    /// The list whose rule decided; "settings" is `policy.deny`. Absent if there is none, or if it is on no allowlist.
    pub list: Option<String>,
    /// The rule's line.
    pub line: Option<u32>,
    /// That line.
    pub rule: Option<String>,
}
