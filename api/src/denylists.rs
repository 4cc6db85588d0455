//! Denylists, allowlists, their rules, and decisions.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// All lists.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ListsView {
    /// "deny" serves content that no list withholds; "allow" serves only content on a list.
    pub mode: String,
    /// Increases with every change of the rules.
    pub generation: u64,
    /// The number of CIDs that the settings withhold (`policy.deny`), which take precedence over all lists.
    pub settings_rules: u64,
    /// The lists, in ascending order of precedence.
    pub lists: Vec<ListView>,
}

/// A list.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ListView {
    /// The list's ID: its location in the settings, "local" or "site".
    pub id: String,
    /// "file", "subscription", "local" or "site".
    pub kind: String,
    /// Whether it is an allowlist.
    pub allows: bool,
    /// The default status of its rules: 410 or 451.
    pub status: u16,
    /// The name in the list's header.
    pub name: Option<String>,
    /// The description in the list's header.
    pub description: Option<String>,
    /// The author in the list's header.
    pub author: Option<String>,
    /// The number of rules in force.
    pub rules: u64,
    /// The size of the list, in bytes.
    pub bytes: u64,
    /// The memory that its rules use, in bytes.
    pub memory_bytes: u64,
    /// Whether the list exceeds the maximum size, so that its end is ignored.
    pub cut_off: bool,
    /// The number of invalid rules.
    pub malformed: u64,
    /// The first of the invalid rules.
    pub reported: Vec<ReportedView>,
    /// When it was last checked successfully, in seconds since the epoch.
    pub checked_at: Option<u64>,
    /// When it last changed, in seconds since the epoch.
    pub changed_at: Option<u64>,
    /// The error of the last check, if it failed.
    pub error: Option<String>,
    /// The number of consecutive failures.
    pub failures: u32,
    /// Bytes received of the fetch in progress.
    pub fetching_bytes: Option<u64>,
    /// The kind of the last fetch that received data: "whole" or "appended".
    pub fetched: Option<String>,
}

/// An invalid denylist rule.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ReportedView {
    /// The line number, from 1.
    pub line: u64,
    /// Why the rule is invalid.
    pub error: String,
}

/// A rule to add. Exactly one of the first five fields is required.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AddRule {
    /// A rule as in a list, with its hints.
    pub rule: Option<String>,
    /// A CID.
    pub cid: Option<String>,
    /// A path that begins with /ipfs/ or /ipns/.
    pub path: Option<String>,
    /// An IPNS name or a domain.
    pub name: Option<String>,
    /// The URL of a page, at any gateway.
    pub url: Option<String>,
    /// Also withhold everything below the path.
    pub below: bool,
    /// Add an exception instead: the content is served even if other lists withhold it.
    pub allow: bool,
    /// The reason.
    pub reason: Option<String>,
    /// The status: 410 or 451.
    pub status: Option<u16>,
    /// Write the rule as a double hash, which does not reveal its subject.
    pub double_hash: bool,
    /// Also withhold each block below it that is stored locally, by its own hash.
    pub deep: bool,
}

/// The result of adding a rule.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct AddedView {
    /// The rule.
    pub rule: String,
    /// Whether the rule is new.
    pub added: bool,
    /// The number of rules that were added for blocks below it.
    pub deep_rules: u64,
    /// Whether these are all blocks below it; `false` if there are too many.
    pub complete: bool,
    /// The number of blocks below it that are not stored, so that the blocks below them were not found.
    #[serde(default)]
    pub unread_blocks: u64,
    /// The number of blocks that were evicted.
    pub evicted_blocks: u64,
    /// The size of the evicted blocks on the disk, in bytes.
    pub evicted_bytes: u64,
    /// The roots of pins that were removed.
    pub unpinned: Vec<String>,
    /// The number of caches in front of the gateway that are sent a purge request, now or when they become reachable.
    #[serde(default)]
    pub caches_notified: u64,
    /// The number of blocks below it for which these caches are sent no purge requests, because there are too many.
    #[serde(default)]
    pub unpurged_blocks: u64,
}

/// The result of removing a rule.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RemovedView {
    /// The number of removed lines.
    pub removed: u64,
}

/// Rules of the local list or, in a site, of that of the site.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RulesView {
    /// The rules, in the order of their lines.
    pub rules: Vec<RuleView>,
    /// The value of `after` for the next page; absent on the last page.
    pub next: Option<u64>,
}

/// A rule.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RuleView {
    /// The line number.
    pub line: u64,
    /// The rule, with CIDs as they were added. It holds for every codec and version of a CID.
    pub rule: String,
    /// Whether it is an exception.
    pub allows: bool,
    /// The status, if the rule has one.
    pub status: Option<u16>,
    /// The reason, if the rule has one.
    pub reason: Option<String>,
    /// When it was added, in seconds since the epoch, if known.
    pub added_at: Option<u64>,
}

/// The result of checking a subject.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = DecidedView)]
pub struct CheckView {
    /// The subject, as a path.
    pub subject: String,
    /// Whether it is withheld.
    pub blocked: bool,
    /// The status if it is withheld: 403, 410 or 451. If only a part of it is withheld, the status of that part.
    pub status: Option<u16>,
    /// The status of a request for it; omitted if that cannot be determined from local blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<u16>,
    /// Why the status or the decisions cannot be determined completely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// The decision of each step that can be determined from local blocks.
    pub decisions: Vec<DecisionView>,
}

/// The decision about a block, path or name.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DecisionView {
    /// The block, path or name.
    pub of: String,
    /// Whether it is withheld.
    pub blocked: bool,
    /// The status, if it is withheld.
    pub status: Option<u16>,
    /// The list with the decisive rule; "settings" is `policy.deny`. Absent if there is no such rule, or if the subject
    /// is on no allowlist.
    pub list: Option<String>,
    /// The line number of the rule.
    pub line: Option<u32>,
    /// The rule.
    pub rule: Option<String>,
}
