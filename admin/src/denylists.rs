//! The admin API of denylists and take-downs.
//!
//! | request | does |
//! |---|---|
//! | `GET /api/v1/denylists` | all lists with their state |
//! | `POST /api/v1/denylists/reload?list=` | reloads one list, or all |
//! | `GET /api/v1/denylists/local/rules?after=&limit=` | the rules of the local list |
//! | `POST /api/v1/denylists/local/rules` | adds a rule to the local list: a take-down |
//! | `DELETE /api/v1/denylists/local/rules?rule=` | removes a rule from the local list |
//!
//! In a site, these three concern the list of the site; a removal concerns the local list as well.
//!
//! | request | does |
//! |---|---|
//! | `GET /api/v1/denylists/check?subject=` | whether a subject is withheld, and by which line of which list |

use crate::http::answer::{Answer, ApiError, json, stopping};
use crate::http::extract::Audited;
use crate::http::long_running::run_to_completion;
use crate::http::parameters::{Parameters, bad_request};
use api::denylists::{AddRule, AddedView, CheckView, ListsView, RemovedView, RuleView, RulesView};
use api::error::ErrorView;
use axum::Extension;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::{StatusCode, Uri};
use axum::response::IntoResponse as _;
use cache::StoreError;
use config::PolicyMode;
use content::Policy as _;
use content::denylist::{Rule, RuleError};
use content::path::Root;
use services::audit::ResponseDetail;
use services::control_log::ControlLogError;
use services::denylists::lists::SETTINGS;
use services::denylists::takedown::{Control, ControlError, Decision, NewRule, hints, subject_of};
use services::denylists::views;
use services::subject::Subject;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes as route;

/// The maximum number of rules in one answer.
const RULES_MAX: usize = 1000;
/// The maximum length of a request to add a rule, in bytes.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// The maximum length of a reason, in characters.
const REASON_MAX: usize = 1000;

/// The routes that have a timeout.
pub fn routes(control: Arc<Control>) -> OpenApiRouter {
    OpenApiRouter::new().routes(route!(lists)).routes(route!(rules)).routes(route!(check)).with_state(control)
}

/// The long-running routes, which have no timeout: they may fetch a list, walk a DAG, or read all rules of a site.
pub fn long_running_routes(control: Arc<Control>) -> OpenApiRouter {
    OpenApiRouter::new().routes(route!(reload)).routes(route!(add, remove)).with_state(control)
}

impl From<ControlError> for ApiError {
    fn from(error: ControlError) -> Self {
        match error {
            ControlError::Store(StoreError::Closed) | ControlError::Site(ControlLogError::Log(StoreError::Closed)) => {
                stopping()
            }
            error => Self(status(&error), error.to_string()),
        }
    }
}

/// The status of a change that failed: whether a repetition may succeed by itself.
fn status(error: &ControlError) -> StatusCode {
    match error {
        ControlError::Store(StoreError::Unavailable { .. } | StoreError::Busy | StoreError::Closed)
        | ControlError::Site(ControlLogError::Log(_) | ControlLogError::Busy)
        | ControlError::Busy => StatusCode::SERVICE_UNAVAILABLE,
        ControlError::Below { error, .. } => status(error),
        ControlError::List(_) | ControlError::Site(_) | ControlError::Store(_) => StatusCode::INSUFFICIENT_STORAGE,
    }
}

/// All denylists and allowlists, in order of precedence.
#[utoipa::path(get, path = "/api/v1/denylists", tag = "control", security(("bearer" = ["read"])),
    responses((status = 200, description = "The lists.", body = ListsView)))]
async fn lists(State(control): State<Arc<Control>>) -> Answer {
    Ok(json(StatusCode::OK, &lists_view(&control)))
}

fn lists_view(control: &Control) -> ListsView {
    let lists = &control.lists;
    let mode = match lists.mode() {
        PolicyMode::Deny => "deny",
        PolicyMode::Allow => "allow",
    };
    ListsView {
        mode: mode.to_owned(),
        generation: lists.running().generation(),
        settings_rules: lists.denied(),
        lists: lists.entries().iter().map(|entry| views::list(entry)).collect(),
    }
}

/// Reloads one list, or all. A list that cannot be read keeps its rules, and its state has the error.
#[utoipa::path(post, path = "/api/v1/denylists/reload", tag = "control", security(("bearer" = ["takedown"])),
    params(("list" = Option<String>, Query, description = "The ID of the list; all lists by default.")),
    responses(
        (status = 200, description = "The lists after the reload.", body = ListsView),
        (status = 400, description = "A parameter is unknown.", body = ErrorView),
        (status = 404, description = "There is no such list.", body = ErrorView)))]
async fn reload(State(control): State<Arc<Control>>, uri: Uri) -> Answer {
    let selected = Parameters::of(&uri, &["list"])?.get("list");
    let entries = control.lists.entries().iter();
    let selected: Vec<_> = entries.filter(|entry| selected.as_ref().is_none_or(|id| *id == *entry.id)).collect();
    if selected.is_empty() {
        let message =
            "there is no such list: \"causeway block ls\" and GET /api/v1/denylists show the IDs of the lists";
        return Err(ApiError(StatusCode::NOT_FOUND, message.to_owned()));
    }
    // Each list's state has its own error.
    futures::future::join_all(selected.into_iter().map(|entry| control.lists.look(entry))).await;
    Ok(json(StatusCode::OK, &lists_view(&control)))
}

/// The rules of the local list. In a site, those of the list of the site.
#[utoipa::path(get, path = "/api/v1/denylists/local/rules", tag = "control", security(("bearer" = ["read"])),
    params(("after" = Option<u64>, Query, description = "Only rules after this line."),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000, description = "The maximum number of rules.")),
    responses(
        (status = 200, description = "A page of the rules.", body = RulesView),
        (status = 400, description = "A parameter is unknown or invalid.", body = ErrorView)))]
async fn rules(State(control): State<Arc<Control>>, uri: Uri) -> Answer {
    let parameters = Parameters::of(&uri, &["after", "limit"])?;
    let limit = parameters.number("limit", 1..=RULES_MAX)?.unwrap_or(100);
    let after = parameters.number("after", 0..=usize::MAX)?.unwrap_or(0);
    let rules = control.lists.local_rules(after as u64, limit + 1).await;
    let rules = rules.map_err(ControlError::List)?;
    let shown: Vec<RuleView> = rules.iter().take(limit).map(views::rule).collect();
    let next = (rules.len() > limit).then(|| shown.last().map(|last| last.line)).flatten();
    Ok(json(StatusCode::OK, &RulesView { rules: shown, next }))
}

/// Adds a rule to the local list, and deletes the content that it withholds from every tier. When the request is
/// answered, the rule is on the disk and in force. In a site, it is added to the list of the site, which is in force at
/// the other gateways within a second.
#[utoipa::path(post, path = "/api/v1/denylists/local/rules", tag = "control", security(("bearer" = ["takedown"])),
    request_body = AddRule, responses(
        (status = 200, description = "The list already had the rule.", body = AddedView),
        (status = 201, description = "The rule is in force.", body = AddedView),
        (status = 400, description = "The rule or its subject is invalid.", body = ErrorView),
        (status = 422, description = "The rule would withhold an empty block.", body = ErrorView),
        (status = 503, description = "The rule cannot be added, or is in force and the content cannot be deleted: the \
            database or the storage of the site cannot be reached, or too many changes wait. Repeat the request.",
            body = ErrorView),
        (status = 507, description = "The list cannot be written, or would exceed policy.list_bytes_max; or the store \
            cannot delete the content.", body = ErrorView)))]
async fn add(
    State(control): State<Arc<Control>>,
    Audited(audit_context): Audited,
    body: Result<Bytes, BytesRejection>,
) -> Answer {
    let body = body.map_err(|error| ApiError(error.status(), error.body_text()))?;
    if body.len() > BODY_BYTES_MAX {
        return Err(ApiError(StatusCode::PAYLOAD_TOO_LARGE, format!("a rule has at most {BODY_BYTES_MAX} bytes")));
    }
    let request: AddRule =
        serde_json::from_slice(&body).map_err(|error| bad_request(format!("the body is invalid: {error}")))?;
    let order = parse_order(request)?;
    let line = order.line.clone();
    audit_context.note(&serde_json::json!({ "rule": line }));
    // The take-down runs to completion even if the client disconnects.
    let adding = tokio::spawn({
        let control = Arc::clone(&control);
        async move { control.add(order).await }
    });
    let done = adding.await.map_err(|_| stopping())??;
    let status = if done.added || done.deep_rules > 0 { StatusCode::CREATED } else { StatusCode::OK };
    let view = views::added(line, &done);
    let detail = ResponseDetail(serde_json::to_value(&view).unwrap_or_default());
    Ok((Extension(detail), json(status, &view)).into_response())
}

/// The rule that a request describes.
fn parse_order(request: AddRule) -> Result<NewRule, ApiError> {
    let (status, reason) = (request.status, request.reason.clone());
    check_hints(status, reason.as_deref())?;
    let (deep, double_hash) = (request.deep, request.double_hash);
    let Described { item, rule, subject } = describe(request)?;
    let is_walked = subject.as_ref().is_some_and(|subject| matches!(subject.root, Root::Cid(_)));
    if deep && (rule.allows || !is_walked) {
        return Err(bad_request(
            "deep requires a rule that withholds a CID or a path below one in the clear: not an allow rule, a double \
             hash or a name",
        ));
    }
    let rule = hints(rule, status, reason.as_deref());
    let hints: String = rule.hints.iter().map(|(name, value)| format!(" {name}={value}")).collect();
    Ok(NewRule { line: format!("{item}{hints}"), rule, subject, deep, double_hash })
}

fn check_hints(status: Option<u16>, reason: Option<&str>) -> Result<(), ApiError> {
    if status.is_some_and(|status| !matches!(status, 410 | 451)) {
        return Err(bad_request("status must be 410 or 451"));
    }
    if reason.is_some_and(|reason| reason.chars().count() > REASON_MAX) {
        return Err(bad_request(format!("reason has at most {REASON_MAX} characters")));
    }
    Ok(())
}

/// A rule without the hints of its request.
struct Described {
    /// What the rule matches, as it is written in a list.
    item: String,
    rule: Rule,
    /// The subject, unless the rule is a double hash.
    subject: Option<Subject>,
}

/// The rule of a request, which is either written out or made of its one subject.
fn describe(request: AddRule) -> Result<Described, ApiError> {
    let AddRule { rule, cid, path, name, url, below, allow, double_hash, .. } = request;
    let subjects = [
        cid.map(|text| Subject::of_cid(&text)),
        path.map(|text| Subject::of_path(&text)),
        name.map(|text| Subject::of_name(&text)),
        url.map(|text| Subject::of_url(&text)),
    ];
    let mut subjects = subjects.into_iter().flatten();
    match (rule, subjects.next(), subjects.next()) {
        (Some(_), None, None) if below || allow || double_hash => Err(bad_request(
            "below, allow and double_hash cannot be combined with rule: write them into the rule itself",
        )),
        (Some(line), None, None) => {
            let rule = parse(&line)?;
            let item = line.split_ascii_whitespace().next().unwrap_or_default().to_owned();
            Ok(Described { subject: subject_of(&rule.target, &item), item, rule })
        }
        (None, Some(subject), None) => describe_subject(subject.map_err(bad_request)?, below, allow, double_hash),
        _ => Err(bad_request("exactly one of rule, cid, path, name and url is required")),
    }
}

fn describe_subject(subject: Subject, below: bool, allow: bool, double_hash: bool) -> Result<Described, ApiError> {
    if double_hash && below {
        return Err(bad_request("double_hash cannot be combined with below: a double hash matches exactly one path"));
    }
    let text = subject.rule_text(below);
    parse(&text)?;
    let item = if double_hash { subject.double_hash() } else { text };
    let item = format!("{}{item}", if allow { "!" } else { "" });
    Ok(Described { rule: parse(&item)?, item, subject: Some(subject) })
}

fn parse(line: &str) -> Result<Rule, ApiError> {
    if line.contains(['\n', '\r']) {
        return Err(bad_request("a rule must be a single line"));
    }
    match Rule::parse(line) {
        Ok(Some(rule)) => Ok(rule),
        Ok(None) => Err(bad_request("the rule is empty")),
        Err(error @ RuleError::Empty) => Err(ApiError(StatusCode::UNPROCESSABLE_ENTITY, error.to_string())),
        Err(error) => Err(bad_request(format!("the rule is invalid: {error}"))),
    }
}

/// Removes a rule from the local list: all lines with the same subject, also as a double hash, and the lines that
/// `deep` added for the blocks below it. In a site, also from the list of the site. Deleted content is
/// fetched again on request.
#[utoipa::path(delete, path = "/api/v1/denylists/local/rules", tag = "control", security(("bearer" = ["takedown"])),
    params(("rule" = String, Query, description = "The rule as it is listed; its hints are ignored.")),
    responses(
        (status = 200, description = "The rule is no longer in force.", body = RemovedView),
        (status = 400, description = "The rule is invalid.", body = ErrorView),
        (status = 404, description = "The local list has no such rule.", body = ErrorView),
        (status = 422, description = "The rule would withhold an empty block.", body = ErrorView),
        (status = 503, description = "The database of the site cannot be reached, too many changes wait, the gateway \
            is stopping, or the audit log cannot be written. Repeat the request.", body = ErrorView),
        (status = 507, description = "The list cannot be written.", body = ErrorView)))]
async fn remove(State(control): State<Arc<Control>>, uri: Uri) -> Answer {
    let line = Parameters::of(&uri, &["rule"])?.get("rule");
    let line = line.ok_or_else(|| bad_request("the parameter \"rule\" is required"))?;
    let rule = parse(&line)?;
    // The list may have the rule as a double hash, which does not show its subject.
    let hashed = subject_of(&rule.target, &line).and_then(|subject| parse(&subject.double_hash()).ok());
    let hashed = hashed.map(|hashed| Rule { allows: rule.allows, ..hashed });
    let removed = run_to_completion((), async move {
        match (control.remove(rule).await?, hashed) {
            (0, Some(hashed)) => control.remove(hashed).await,
            (removed, _) => Ok(removed),
        }
    });
    let removed = removed.await??;
    if removed == 0 {
        let message = "the local list has no such rule: \"causeway block ls --rules\" lists its rules";
        return Err(ApiError(StatusCode::NOT_FOUND, message.to_owned()));
    }
    let detail = ResponseDetail(serde_json::json!({ "rule": line, "removed": removed }));
    Ok((Extension(detail), json(StatusCode::OK, &RemovedView { removed })).into_response())
}

/// Whether a subject is withheld, and by which line of which list. The check predicts the answer to a public request
/// from locally stored blocks: it fetches no blocks, and it resolves names.
#[utoipa::path(get, path = "/api/v1/denylists/check", tag = "control", security(("bearer" = ["read"])),
    params(("subject" = String, Query, description = "A CID, a path, a name or a URL.")),
    responses(
        (status = 200, description = "The decisions.", body = CheckView),
        (status = 400, description = "The subject is invalid.", body = ErrorView)))]
async fn check(State(control): State<Arc<Control>>, uri: Uri) -> Answer {
    let subject = Parameters::of(&uri, &["subject"])?.get("subject");
    let subject = subject.ok_or_else(|| bad_request("the parameter \"subject\" is required"))?;
    let subject = Subject::of_anything(&subject).map_err(bad_request)?;
    let mut decisions = Vec::new();
    let (predicted, decided) = control.check(&subject).await;
    for decision in decided {
        let rule = text_of(&control, &decision).await;
        decisions.push(views::decision(decision, rule));
    }
    let refused = decisions.iter().find(|decision| decision.blocked);
    let (blocked, status) = (refused.is_some(), refused.and_then(|decision| decision.status));
    let (answer, unknown) = (predicted.status, predicted.unknown);
    Ok(json(StatusCode::OK, &CheckView { subject: subject.to_string(), blocked, status, answer, unknown, decisions }))
}

/// The text of the line that decided.
async fn text_of(control: &Control, decision: &Decision) -> Option<String> {
    let hit = decision.hit.as_ref().filter(|hit| &*hit.list != SETTINGS)?;
    control.list_of(hit)?.line(hit.line).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const CID: &str = "bafybeihrw75yfhdx5qsqgesdnxejtjybscwuclpusvxkuttep6h7pkgmze";

    fn ordered(body: Value) -> Result<String, u16> {
        let request: AddRule = serde_json::from_value(body).map_err(|_| 400_u16)?;
        let order = parse_order(request).map_err(|error| error.0.as_u16())?;
        let line = order.line.rsplit_once(" added=").expect("when it was added").0.to_owned();
        let read = Rule::parse(&order.line).expect("a rule").expect("no remark");
        assert_eq!(read, order.rule, "{line}");
        Ok(line)
    }

    #[test]
    fn rules_are_ordered_in_many_ways() {
        let path = format!("/ipfs/{CID}/a%20b");
        let good = [
            (json!({ "cid": CID }), format!("/ipfs/{CID}")),
            (json!({ "cid": CID, "below": true, "status": 451 }), format!("/ipfs/{CID}/* status=451")),
            (
                json!({ "cid": CID, "allow": true, "reason": "not so bad" }),
                format!("!/ipfs/{CID} reason=not%20so%20bad"),
            ),
            (json!({ "path": path }), path.clone()),
            (json!({ "path": path, "below": true }), format!("{path}*")),
            (json!({ "url": format!("https://x.example{path}?a=b"), "deep": true }), path.clone()),
            (json!({ "name": "Bad.Example" }), "/ipns/bad.example".to_owned()),
            (json!({ "rule": format!("{path}* x=y"), "reason": "why" }), format!("{path}* x=y reason=why")),
            (json!({ "rule": format!("!{path} reason=old"), "reason": "new" }), format!("!{path} reason=new")),
            (json!({ "rule": format!("//{}", "ab".repeat(32)) }), format!("//{}", "ab".repeat(32))),
        ];
        for (body, expected) in good {
            assert_eq!(ordered(body.clone()), Ok(expected), "{body}");
        }
        let hidden = ordered(json!({ "cid": CID, "double_hash": true })).expect("a rule");
        assert!(hidden.starts_with("//Qm") && !hidden.contains(CID), "{hidden}");
        let bad = [
            (json!({}), 400),
            (json!({ "cid": CID, "path": path }), 400),
            (json!({ "cid": CID, "rule": path }), 400),
            (json!({ "cid": "hello" }), 400),
            (json!({ "cid": CID, "status": 404 }), 400),
            (json!({ "cid": CID, "why": "x" }), 400),
            (json!({ "cid": CID, "reason": "x".repeat(1001) }), 400),
            (json!({ "cid": CID, "double_hash": true, "below": true }), 400),
            (json!({ "cid": CID, "allow": true, "deep": true }), 400),
            (json!({ "name": "bad.example", "deep": true }), 400),
            (json!({ "path": "/ipns/bad.example/a", "deep": true }), 400),
            (json!({ "rule": format!("/ipfs/{CID}\n/ipfs/{CID}/x") }), 400),
            (json!({ "rule": "# remark" }), 400),
            (json!({ "rule": path, "below": true }), 400),
            (json!({ "rule": format!("//{}", "ab".repeat(32)), "deep": true }), 400),
            (json!({ "cid": "bafkqaaa" }), 422),
            (json!({ "rule": "/ipfs/QmUNLLsPACCz1vLxQVkXqqLX5R1X345qqfHbsf67hvA3Nn/*" }), 422),
        ];
        for (body, status) in bad {
            assert_eq!(ordered(body.clone()), Err(status), "{body}");
        }
    }
}
