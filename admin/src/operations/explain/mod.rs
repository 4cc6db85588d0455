//! `GET /api/v1/explain`: what would be answered to a request, and why; what is kept of it, and where; who has it.
//!
//! | module | concern |
//! |---|---|
//! | `request` | where a request leads, by the code that requests go through |
//! | `answered` | what it is answered with, to the last byte |
//! | `holdings` | what is here of a path, in which tier |
//! | `network` | what is known of those who have it, and how the search for them went |
//!
//! Goals: nothing here decides anything by itself. A request is led, its path read, its name resolved, its path walked,
//! and its answer made by the functions that do so for clients, in a gateway of the same parts that asks nobody
//! ([`gateway::pipeline::Gateway::looking`]). With `fetch=true` the real one is asked as well, and what that took is
//! told.
//!
//! Bounds: so many blocks are counted below what a path leads to, and for so long; so much is read of an answer, and
//! for so long.

mod answered;
mod holdings;
mod network;
mod request;

use self::answered::{Answered, REDIRECTS_MAX, Unknown};
use self::request::Asked;
use crate::http::answer::{Answer, json};
use crate::http::extract::Authenticated;
use crate::http::parameters::{Parameters, wrong};
use crate::http::refusals::WrongRequest;
use crate::operations::Operations;
use crate::operations::names::{path_of, step_view};
use api::explain::{ExplainView, FetchedView, PolicyView};
use api::text::seconds;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use content::path::Root;
use content::{Cid, ContentPath, NameError, Resolution, Verdict};
use gateway::errors::Problem;
use gateway::request::route::Route;
use gateway::resolve::Target;
use services::denylists::Refused;
use std::time::{Duration, Instant};

/// How long a fetch may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest path or address that is explained, in bytes.
const ASKED_BYTES_MAX: usize = 8192;

/// Says what would be answered to a request for a path or an address, and why: the route, the name, the policy, what is
/// here and in which tier, and who is known to have the rest. Asks nobody, unless `fetch` is `true`: then it is asked
/// for, and what that took is told.
#[utoipa::path(get, path = "/api/v1/explain", tag = "operations", security(("bearer" = ["operate"])),
    params(("path" = Option<String>, Query, description = "A path as a client would ask it: /ipfs/… or /ipns/…"),
        ("url" = Option<String>, Query, description = "An address as a client would ask it, for its host: http://HOST/…"),
        ("fetch" = Option<bool>, Query, description = "Whether it is fetched if it is not here")),
    responses((status = 200, description = "What would be answered, and why", body = ExplainView), WrongRequest))]
pub async fn explain(State(operations): State<Operations>, Authenticated(bearer): Authenticated, uri: Uri) -> Answer {
    let parameters = Parameters::of(&uri, &["path", "url", "fetch"])?;
    let fetch = match parameters.get("fetch").as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(wrong("fetch is \"true\" or \"false\"")),
    };
    let asked = match (parameters.get("path"), parameters.get("url")) {
        (Some(path), None) if path.len() <= ASKED_BYTES_MAX => Asked::of_path(&path)?,
        (None, Some(url)) if url.len() <= ASKED_BYTES_MAX => Asked::of_url(&url)?,
        (Some(_), None) | (None, Some(_)) => return Err(wrong(format!("it has more than {ASKED_BYTES_MAX} bytes"))),
        _ => return Err(wrong("name one of \"path\" and \"url\"")),
    };
    let _place = operations.begin(&bearer)?;
    Ok(json(StatusCode::OK, &operations.explain_all(asked, fetch).await))
}

impl Operations {
    /// Explains a request, and then the one that its answer redirects to, as a client would go on.
    async fn explain_all(&self, asked: Asked, fetch: bool) -> ExplainView {
        let (mut views, mut next) = (Vec::new(), Some(asked));
        while let Some(asked) = next.take() {
            let view = self.explain(&asked, fetch).await;
            let location = view.answer.as_ref().and_then(|answer| answer.location.as_deref());
            next = location.filter(|_| views.len() < REDIRECTS_MAX).and_then(|location| asked.redirected(location));
            views.push(view);
        }
        let chain = |then: Option<ExplainView>, view| Some(ExplainView { then: then.map(Box::new), ..view });
        views.into_iter().rev().fold(None, chain).unwrap_or_default()
    }

    async fn explain(&self, asked: &Asked, fetch: bool) -> ExplainView {
        let begun = Instant::now();
        let mut view =
            ExplainView { method: "GET".to_owned(), host: asked.host(), path: asked.path(), ..ExplainView::default() };
        let fetched = if fetch { Some(self.fetch(asked, &mut view).await) } else { None };
        self.explain_route(asked, &mut view).await;
        view.fetched = fetched;
        view.seconds = seconds(begun.elapsed());
        view
    }

    /// Asks for it as a client would, as far as the first bytes of the answer.
    async fn fetch(&self, asked: &Asked, view: &mut ExplainView) -> FetchedView {
        let begun = Instant::now();
        let gateway = &self.parts().gateway;
        let (head, client) = (asked.head(false), asked.client());
        let preview = tokio::time::timeout(PATIENCE, gateway.preview(&head, &client)).await;
        let took = begun.elapsed();
        match preview {
            Ok(outcome) => {
                view.answer = Some(request::answer_of(outcome, &head));
                FetchedView { seconds: seconds(took), in_time: true }
            }
            Err(_) => FetchedView { seconds: seconds(took), in_time: false },
        }
    }

    async fn explain_route(&self, asked: &Asked, view: &mut ExplainView) {
        let looking = &self.inner.looking;
        let (head, client) = (asked.head(true), asked.client());
        let mut ask = match request::ask_of(&head, looking) {
            Ok(ask) => ask,
            Err(problem) => return view.answer = Some(request::problem_view(&problem, &head)),
        };
        // The native one has no name in addresses.
        let format = ask.wanted.format.name();
        view.format = Some(if format.is_empty() { "native" } else { format }.to_owned());
        let route = looking.lead(&client, &mut ask).await;
        view.route = Some(request::route_view(&route, &ask));
        if let Ok(Route::Content(_)) = route {
            match looking.read_path(&ask) {
                Ok(path) => self.explain_content(&ask.path, path, view).await,
                Err(problem) => view.notes.push(problem.to_string()),
            }
        }
        self.answer_here(asked, view).await;
    }

    /// What would be answered with what is here, if it was not asked for already; and whether that would be to the end.
    async fn answer_here(&self, asked: &Asked, view: &mut ExplainView) {
        let Answered { view: answer, refused, unknown } = Answered::here(&self.inner.looking, asked).await;
        match (unknown, &mut view.answer) {
            (Some(Unknown::Name), None) if self.parts().bridge.is_some() => {
                view.notes.push("the name is not known here: fetch=true has it looked up".to_owned());
            }
            (Some(unknown @ Unknown::Head), None) => {
                view.notes.push(format!("{}: fetch=true finds out what it would be", unknown.words()));
            }
            (unknown, told) => {
                view.notes.extend(
                    unknown
                        .filter(|unknown| !matches!(unknown, Unknown::Head | Unknown::Name))
                        .map(|unknown| format!("{}: whether it would break off is not known", unknown.words())),
                );
                match told {
                    Some(told) if told.status == answer.status => told.breaks_off = answer.breaks_off,
                    Some(_) => return,
                    None => view.answer = Some(answer),
                }
            }
        }
        if let Some((refused, verdict)) = refused {
            self.explain_refusal(&refused, verdict, view);
        }
    }

    /// The answer is what counts: what it is refused for is what the policy says.
    fn explain_refusal(&self, refused: &Refused, verdict: Verdict, view: &mut ExplainView) {
        let verdict = verdict_name(verdict).to_owned();
        if view.policy.as_ref().is_some_and(|policy| policy.verdict == verdict) {
            return;
        }
        let decided_by = match refused {
            Refused::Content(cid) => self.parts().decide.as_ref().and_then(|decide| decide(cid, "")),
            Refused::Name(_) => None,
        };
        let refused = match refused {
            Refused::Content(cid) => cid.to_string(),
            Refused::Name(name) => name.to_string(),
        };
        let generation = self.parts().gateway.policy().generation();
        view.policy = Some(PolicyView { verdict, refused: Some(refused), decided_by, generation });
    }

    /// What a path means, whether it may be served, and what is here of it.
    async fn explain_content(&self, key: &str, path: ContentPath, view: &mut ExplainView) {
        let names = &self.parts().names;
        if let Root::Name(name) = &path.root {
            view.names = names.explain(name).iter().map(step_view).collect();
        }
        let known = names.known_only();
        let target = match Target::of(path, &*known, &**self.parts().gateway.policy()).await {
            Ok(target) => target,
            // What the answer is says so.
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
        self.explain_holdings(key, &target, view).await;
        view.network = self.explain_network(&target.root).await;
    }

    /// Whether a path, and the blocks on the way, may be served.
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
