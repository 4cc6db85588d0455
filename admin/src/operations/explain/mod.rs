//! `GET /api/v1/explain`: how a request would be answered, and why; which of its blocks are stored locally, in which
//! tier; and which peers provide the others.
//!
//! | module | concern |
//! |---|---|
//! | `request` | the request to explain, its route, and the views of its answer |
//! | `local_answer` | the answer from locally stored blocks, to the last byte |
//! | `local_content` | which blocks of a path are stored locally, in which tier |
//! | `network` | the known providers, and the history of the provider search |
//!
//! Goals: `explain` has no logic of its own. The functions that serve clients route the request, parse its path,
//! resolve its name and path, and make its answer, in a gateway of the same components that does not use the network
//! ([`gateway::pipeline::Gateway::local_view`]). With `fetch=true` the request is also sent through the real gateway, and
//! its duration is shown.
//!
//! Bounds: the number of blocks that are counted below the path's end, the number of bytes of an answer that are read,
//! and the time for both.

mod local_answer;
mod local_content;
mod network;
mod request;

use self::local_answer::{LocalAnswer, REDIRECTS_MAX, UnknownReason};
use self::request::ExplainedRequest;
use crate::http::answer::{Answer, json};
use crate::http::error_responses::BadRequest;
use crate::http::extract::Authenticated;
use crate::http::parameters::{Parameters, bad_request};
use crate::operations::Operations;
use crate::operations::names::{path_of, step_view};
use api::explain::{ExplainView, FetchedView, PackedFileView, PolicyView};
use api::text::seconds;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use content::packed::{packed_cid, zstd_file_of};
use content::path::Root;
use content::{BlockKey, Cid, ContentPath, NameError, Resolution, Verdict};
use gateway::errors::Problem;
use gateway::request::negotiate::Format;
use gateway::request::route::Route;
use gateway::resolve::Target;
use services::denylists::Refused;
use std::time::{Duration, Instant};

/// The timeout of a fetch.
const FETCH_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum length of a path or URL, in bytes.
const REQUEST_BYTES_MAX: usize = 8192;

/// Explains how a request for a path or URL would be answered, and why: the route, the name, the policy, the locally
/// stored blocks and their tiers, and the known providers. Does not use the network, unless `fetch` is `true`: then the
/// content is fetched, and the duration is shown.
#[utoipa::path(get, path = "/api/v1/explain", tag = "operations", security(("bearer" = ["operate"])),
    params(("path" = Option<String>, Query, description = "The path of a request: /ipfs/… or /ipns/…"),
        ("url" = Option<String>, Query, description = "The URL of a request, if the host matters: http://HOST/…"),
        ("fetch" = Option<bool>, Query, description = "Whether blocks that are not stored locally are fetched")),
    responses((status = 200, description = "How the request would be answered, and why",
        body = ExplainView), BadRequest))]
pub async fn explain(State(operations): State<Operations>, Authenticated(bearer): Authenticated, uri: Uri) -> Answer {
    let parameters = Parameters::of(&uri, &["path", "url", "fetch"])?;
    let fetch = match parameters.get("fetch").as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(bad_request("fetch must be \"true\" or \"false\"")),
    };
    let request = match (parameters.get("path"), parameters.get("url")) {
        (Some(path), None) if path.len() <= REQUEST_BYTES_MAX => ExplainedRequest::of_path(&path)?,
        (None, Some(url)) if url.len() <= REQUEST_BYTES_MAX => ExplainedRequest::of_url(&url)?,
        (Some(_), None) | (None, Some(_)) => {
            return Err(bad_request(format!("path or url has more than {REQUEST_BYTES_MAX} bytes")));
        }
        _ => return Err(bad_request("exactly one of \"path\" and \"url\" is required")),
    };
    let _permit = operations.begin(&bearer)?;
    Ok(json(StatusCode::OK, &operations.explain_all(request, fetch).await))
}

impl Operations {
    /// Explains a request, and the requests that its answer redirects to.
    async fn explain_all(&self, request: ExplainedRequest, fetch: bool) -> ExplainView {
        let (mut views, mut next) = (Vec::new(), Some(request));
        while let Some(request) = next.take() {
            let view = self.explain(&request, fetch).await;
            let location = view.answer.as_ref().and_then(|answer| answer.location.as_deref());
            next = location.filter(|_| views.len() < REDIRECTS_MAX).and_then(|location| request.redirected(location));
            views.push(view);
        }
        let chain = |then: Option<ExplainView>, view| Some(ExplainView { then: then.map(Box::new), ..view });
        views.into_iter().rev().fold(None, chain).unwrap_or_default()
    }

    async fn explain(&self, request: &ExplainedRequest, fetch: bool) -> ExplainView {
        let begun = Instant::now();
        let mut view = ExplainView {
            method: "GET".to_owned(),
            host: request.host(),
            path: request.path(),
            ..ExplainView::default()
        };
        let fetched = if fetch { Some(self.fetch(request, &mut view).await) } else { None };
        self.explain_route(request, &mut view).await;
        view.fetched = fetched;
        view.seconds = seconds(begun.elapsed());
        view
    }

    /// Sends the request through the real gateway, as far as the head of the answer.
    async fn fetch(&self, request: &ExplainedRequest, view: &mut ExplainView) -> FetchedView {
        let begun = Instant::now();
        let gateway = &self.parts().gateway;
        let (head, client) = (request.head(false), request.client());
        let preview = tokio::time::timeout(FETCH_TIMEOUT, gateway.preview(&head, &client)).await;
        let took = begun.elapsed();
        match preview {
            Ok(outcome) => {
                view.answer = Some(request::answer_of(outcome, &head));
                FetchedView { seconds: seconds(took), in_time: true }
            }
            Err(_) => FetchedView { seconds: seconds(took), in_time: false },
        }
    }

    async fn explain_route(&self, request: &ExplainedRequest, view: &mut ExplainView) {
        let looking = &self.inner.local_gateway;
        let (head, client) = (request.head(true), request.client());
        let mut ask = match request::ask_of(&head, looking) {
            Ok(ask) => ask,
            Err(problem) => return view.answer = Some(request::problem_view(&problem, &head)),
        };
        // The native format has no name in URLs.
        let format = ask.wanted.format.name();
        view.format = Some(if format.is_empty() { "native" } else { format }.to_owned());
        let wanted = ask.wanted.format;
        let route = looking.lead(&client, &mut ask).await;
        view.route = Some(request::route_view(&route, &ask));
        if let Ok(Route::Content(_)) = route {
            match looking.read_path(&ask) {
                Ok(path) => self.explain_content(&ask.path, path, view).await,
                Err(problem) => view.notes.push(problem.to_string()),
            }
        }
        self.answer_here(request, view).await;
        self.explain_coding(wanted, view).await;
    }

    /// Adds what a client that accepts zstd gets instead. For files, the content has it.
    async fn explain_coding(&self, format: Format, view: &mut ExplainView) {
        let Some(encoded) = self.parts().gateway.encoded() else { return };
        if view.answer.as_ref().is_none_or(|answer| answer.status != StatusCode::OK.as_u16()) {
            return;
        }
        let note = match format {
            Format::Car => Some("as zstd, with its blocks as they are stored".to_owned()),
            Format::Raw => {
                let cid = view.blocks.last().and_then(|block| content::cid::parse(&block.cid).ok());
                let bytes = match cid.filter(|_| view.missing.is_none()) {
                    Some(cid) => encoded.block_bytes(&cid).await,
                    None => None,
                };
                bytes.map(|bytes| format!("as it is stored, as {bytes} bytes of zstd"))
            }
            _ => None,
        };
        view.notes.extend(note.map(|note| format!("a client that accepts zstd gets it {note}")));
    }

    /// Adds the answer from locally stored blocks, unless the request was fetched; and whether its body is complete.
    async fn answer_here(&self, request: &ExplainedRequest, view: &mut ExplainView) {
        let LocalAnswer { view: answer, refused, unknown } =
            LocalAnswer::here(&self.inner.local_gateway, request).await;
        match (unknown, &mut view.answer) {
            (Some(UnknownReason::Name), None) if self.parts().bridge.is_some() => {
                view.notes.push("the resolution of the name is not cached: fetch=true resolves it".to_owned());
            }
            (Some(unknown @ UnknownReason::Head), None) => {
                view.notes.push(format!("{}: fetch=true fetches it", unknown.message()));
            }
            (unknown, fetched) => {
                view.notes.extend(
                    unknown.filter(|unknown| !matches!(unknown, UnknownReason::Head | UnknownReason::Name)).map(
                        |unknown| format!("{}: whether the answer would be complete is unknown", unknown.message()),
                    ),
                );
                match fetched {
                    Some(fetched) if fetched.status == answer.status => fetched.breaks_off = answer.breaks_off,
                    Some(_) => return,
                    None => view.answer = Some(answer),
                }
            }
        }
        if let Some((refused, verdict)) = refused {
            self.explain_refusal(&refused, verdict, view);
        }
    }

    /// Replaces the view of the policy by the reason for which the answer is refused.
    fn explain_refusal(&self, refused: &Refused, verdict: Verdict, view: &mut ExplainView) {
        let verdict = verdict_name(verdict).to_owned();
        if view.policy.as_ref().is_some_and(|policy| policy.verdict == verdict) {
            return;
        }
        let decided_by = match &refused.root {
            Root::Cid(cid) => self.parts().decide.as_ref().and_then(|decide| decide(cid, &refused.path)),
            Root::Name(_) => None,
        };
        let generation = self.parts().gateway.policy().generation();
        view.policy = Some(PolicyView { verdict, refused: Some(refused.to_string()), decided_by, generation });
    }

    /// Adds the target of a path, the decision of the policy, and what is stored locally.
    async fn explain_content(&self, key: &str, path: ContentPath, view: &mut ExplainView) {
        let names = &self.parts().names;
        if let Root::Name(name) = &path.root {
            view.names = names.explain(name).iter().map(step_view).collect();
        }
        let known = names.cache_only();
        let mut target = match Target::of(path, &*known, &**self.parts().gateway.policy()).await {
            Ok(target) => target,
            // The note on the answer says so.
            Err(Problem::Name(NameError::Offline { .. })) if self.parts().bridge.is_some() => return,
            Err(problem) => return view.notes.push(problem.to_string()),
        };
        let resolution = Resolution {
            root: target.root,
            segments: target.segments.clone(),
            ttl: Duration::ZERO,
            stale: None,
            hops: Vec::new(),
        };
        view.resolved = Some(path_of(&resolution));
        view.root = Some(target.root.to_string());
        view.packed = self.packed_file(&target.root);
        match self.parts().gateway.plain_file(&target.root) {
            Ok(Some(plain_file)) => target.root = plain_file,
            Ok(None) if zstd_file_of(&target.root).is_some() => {
                let note = "the packed file is not pinned here: its plain content is read from its zstd file";
                return view.notes.push(note.to_owned());
            }
            Ok(None) => {}
            Err(problem) => return view.notes.push(problem.to_string()),
        }
        self.explain_local_content(key, &target, view).await;
        view.network = self.explain_network(&target.root).await;
    }

    /// The packed file of which a CID is the plain file, the zstd file or the packed CID.
    fn packed_file(&self, cid: &Cid) -> Option<PackedFileView> {
        let store = self.store();
        let plain = BlockKey::of(cid).and_then(|key| store.plain_file(&key)).unwrap_or(*cid);
        let zstd_file = store.zstd_file(&plain)?;
        let (plain, zstd, packed) = (plain.to_string(), zstd_file.to_string(), packed_cid(&zstd_file).to_string());
        Some(PackedFileView { plain, zstd, packed })
    }

    /// The decision of the policy about a path and the blocks along it.
    fn verdicts(&self, target: &Target, cids: &[Cid]) -> PolicyView {
        let policy = self.parts().gateway.policy();
        let path = target.segments.join("/");
        let of_path = Some((policy.check_path(&target.root, &path), &target.root, path.as_str()));
        let of_blocks = cids.iter().map(|cid| (policy.check(cid), cid, ""));
        let refused = of_path.into_iter().chain(of_blocks).find(|(verdict, _, _)| *verdict != Verdict::Allow);
        let shown = |cid: &Cid, path: &str| if path.is_empty() { cid.to_string() } else { format!("{cid}/{path}") };
        PolicyView {
            verdict: verdict_name(refused.map_or(Verdict::Allow, |(verdict, _, _)| verdict)).to_owned(),
            refused: refused.map(|(_, cid, path)| shown(cid, path)),
            decided_by: refused.and_then(|(_, cid, path)| self.parts().decide.as_ref()?(cid, path)),
            generation: policy.generation(),
        }
    }
}

fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Gone => "gone",
        Verdict::Legal => "legal",
        Verdict::Unlisted => "unlisted",
    }
}
