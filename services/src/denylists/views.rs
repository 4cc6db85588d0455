//! API views of lists, rules and decisions.

use crate::denylists::lists::{ListEntry, ListKind};
use crate::denylists::local::LocalRule;
use crate::denylists::subscription::Fetched;
use crate::denylists::takedown::{Decision, Done};
use api::denylists::{AddedView, DecisionView, ListView, ReportedView, RuleView};
use content::Verdict;
use p2p_bridge::epoch;

/// The HTTP status of a verdict.
pub fn status(verdict: Verdict) -> Option<u16> {
    match verdict {
        Verdict::Allow => None,
        Verdict::Gone => Some(410),
        Verdict::Legal => Some(451),
        Verdict::Unlisted => Some(403),
    }
}

/// The view of a list.
pub fn list(entry: &ListEntry) -> ListView {
    let state = entry.state();
    let header = state.list.header();
    let reported = state.list.reported().iter();
    ListView {
        id: entry.id.to_string(),
        kind: match &entry.kind {
            ListKind::File => "file",
            ListKind::Subscription(_) => "subscription",
            ListKind::Local => "local",
            ListKind::Site => "site",
        }
        .to_owned(),
        allows: entry.allows,
        status: status(state.list.status().unwrap_or(entry.status)).unwrap_or(410),
        name: header.name.clone(),
        description: header.description.clone(),
        author: header.author.clone(),
        rules: state.list.rules(),
        bytes: state.bytes,
        memory_bytes: state.list.memory_bytes() as u64,
        cut_off: state.cut_off,
        malformed: state.list.malformed(),
        reported: reported.map(|it| ReportedView { line: it.line, error: it.error.to_string() }).collect(),
        checked_at: state.checked_at.map(epoch::seconds),
        changed_at: state.changed_at.map(epoch::seconds),
        error: state.error,
        failures: state.failures,
        fetching_bytes: entry.progress(),
        fetched: state.fetched.and_then(|fetched| match fetched {
            Fetched::Same => None,
            Fetched::Appended(_) => Some("appended".to_owned()),
            Fetched::Whole(_) => Some("whole".to_owned()),
        }),
    }
}

/// The view of a completed take-down.
pub fn added(line: String, done: &Done) -> AddedView {
    AddedView {
        rule: line,
        added: done.added,
        deep_rules: done.deep_rules,
        complete: done.complete,
        unread_blocks: done.unread,
        evicted_blocks: done.evicted.blocks,
        evicted_bytes: done.evicted.bytes,
        unpinned: done.unpinned.iter().map(ToString::to_string).collect(),
        caches_notified: done.caches_notified,
        unpurged_blocks: done.unpurged,
    }
}

/// The view of a rule of the local list, or of that of the site.
pub fn rule(listed: &LocalRule) -> RuleView {
    let LocalRule { line, rule, .. } = listed;
    RuleView {
        line: *line,
        rule: listed.to_string(),
        allows: rule.allows,
        status: rule.status().and_then(status),
        reason: rule.hint("reason"),
        added_at: rule.hint("added").and_then(|added| added.parse().ok()),
    }
}

/// The view of a decision, with the text of the rule.
pub fn decision(decision: Decision, rule: Option<String>) -> DecisionView {
    let Decision { of, verdict, hit } = decision;
    DecisionView {
        of,
        blocked: verdict != Verdict::Allow,
        status: status(verdict),
        line: hit.as_ref().map(|hit| hit.line).filter(|_| rule.is_some()),
        list: hit.map(|hit| hit.list.to_string()),
        rule,
    }
}
