//! [`LocalAnswer`]: the answer to a request, head and body, made from locally stored blocks by the code that serves
//! requests. `explain` and the checks of denylists ([`services::denylists`]) use it.
//!
//! The head alone does not show whether the answer is aborted later. So the body is read to its end as far as it is
//! stored locally, within [`BODY_BYTES_MAX`] and [`BODY_READ_TIMEOUT`], and discarded.

use crate::operations::Operations;
use crate::operations::explain::request::{self, ExplainedRequest};
use api::explain::AnswerView;
use content::{NameError, Verdict};
use futures::StreamExt as _;
use gateway::body::Content;
use gateway::errors::Problem;
use gateway::pipeline::Gateway;
use gateway::respond::Draft;
use http::request::Parts;
use services::denylists::Refused;
use services::denylists::takedown::Predicted;
use services::subject::Subject;
use std::time::Duration;

/// The maximum number of bytes of a body that are read.
const BODY_BYTES_MAX: u64 = 256 << 20;
/// The maximum time for which a body is read.
const BODY_READ_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of redirects that are followed.
pub(super) const REDIRECTS_MAX: usize = 5;
/// The timeout of a check, including the resolution of a name.
const CHECK_TIMEOUT: Duration = Duration::from_secs(15);

/// The answer to a request, made from locally stored blocks.
pub(super) struct LocalAnswer {
    /// The head, and the error with which the body is aborted.
    pub view: AnswerView,
    /// The content that the policy withholds, at which the request fails or the body is aborted.
    pub refused: Option<(Refused, Verdict)>,
    /// Why a part of the answer is unknown.
    pub unknown: Option<UnknownReason>,
}

/// Why an answer cannot be determined locally.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UnknownReason {
    /// A block that the head depends on is not stored locally.
    Head,
    /// The resolution of the name is not cached.
    Name,
    /// A block of the body is not stored locally.
    Body,
    /// The body is too long to be read to its end.
    Length,
}

impl UnknownReason {
    pub(super) fn message(self) -> &'static str {
        match self {
            Self::Head => "a block that the status depends on is not stored locally",
            Self::Name => "the resolution of the name is not cached",
            Self::Body => "a block of the body is not stored locally",
            Self::Length => "the body is too long to be read to its end",
        }
    }
}

impl LocalAnswer {
    /// Answers a request from locally stored blocks.
    pub(super) async fn here(gateway: &Gateway, request: &ExplainedRequest) -> Self {
        let head = request.head(true);
        match gateway.preview(&head, &request.client()).await {
            Ok(draft) => match request::problem_of(&draft) {
                Some(problem) => Self::with_problem(&problem, request::answer_of(Ok(draft), &head)),
                None => Self::to_the_end(draft, &head).await,
            },
            Err(problem) => Self::with_problem(&problem, request::problem_view(&problem, &head)),
        }
    }

    fn with_problem(problem: &Problem, view: AnswerView) -> Self {
        let unknown = match problem {
            Problem::Name(NameError::Offline { .. }) => Some(UnknownReason::Name),
            problem if request::is_missing_blocks(problem) => Some(UnknownReason::Head),
            _ => None,
        };
        Self { view, refused: problem.refused(), unknown }
    }

    async fn to_the_end(mut draft: Draft, head: &Parts) -> Self {
        let body = std::mem::replace(draft.body_mut(), Content::Empty);
        let length = body.length();
        let mut view = request::answer_of(Ok(draft), head);
        view.bytes = length;
        match read_to_end(body).await {
            BodyEnd::Complete => Self { view, refused: None, unknown: None },
            BodyEnd::LimitReached => Self { view, refused: None, unknown: Some(UnknownReason::Length) },
            BodyEnd::Failed(problem) if request::is_missing_blocks(&problem) => {
                Self { view, refused: None, unknown: Some(UnknownReason::Body) }
            }
            BodyEnd::Failed(problem) => {
                view.breaks_off = Some(problem.to_string());
                Self { view, refused: problem.refused(), unknown: None }
            }
        }
    }

    /// Whether the status is known.
    pub(super) fn has_head(&self) -> bool {
        !matches!(self.unknown, Some(UnknownReason::Head | UnknownReason::Name))
    }
}

/// How a body ends.
enum BodyEnd {
    Complete,
    Failed(Box<Problem>),
    LimitReached,
}

async fn read_to_end(mut body: Content) -> BodyEnd {
    let reading = async {
        let mut bytes = 0;
        while let Some(next) = body.next().await {
            match next {
                Ok(chunk) => bytes += chunk.len() as u64,
                Err(problem) => return BodyEnd::Failed(Box::new(problem)),
            }
            if bytes > BODY_BYTES_MAX {
                return BodyEnd::LimitReached;
            }
            tokio::task::consume_budget().await;
        }
        BodyEnd::Complete
    };
    tokio::time::timeout(BODY_READ_TIMEOUT, reading).await.unwrap_or(BodyEnd::LimitReached)
}

impl Operations {
    /// Predicts the answer to a request for a subject from locally stored blocks, and resolves names.
    pub async fn predict(&self, subject: &Subject) -> Predicted {
        let predicting = tokio::time::timeout(CHECK_TIMEOUT, self.predict_without_timeout(subject)).await;
        predicting
            .unwrap_or_else(|_| Predicted { unknown: Some("the check timed out".to_owned()), ..Predicted::default() })
    }

    async fn predict_without_timeout(&self, subject: &Subject) -> Predicted {
        let Ok(mut request) = ExplainedRequest::of_path(&subject.request_path()) else { return Predicted::default() };
        for _ in 0..REDIRECTS_MAX {
            let answer = LocalAnswer::here(&self.inner.resolving_gateway, &request).await;
            if let Some(next) = answer.view.location.as_deref().and_then(|location| request.redirected(location)) {
                request = next;
                continue;
            }
            let status = answer.has_head().then_some(answer.view.status);
            let unknown = answer.unknown.map(|unknown| unknown.message().to_owned());
            return Predicted { status, refused: answer.refused, unknown };
        }
        Predicted {
            unknown: Some(format!("the answer redirects more than {REDIRECTS_MAX} times")),
            ..Predicted::default()
        }
    }
}
