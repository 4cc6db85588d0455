//! [`Answered`]: what a request is answered with, head and body, by the code that answers requests: for `explain`, and
//! for whether something is withheld ([`services::denylists`]).
//!
//! The head alone would not tell of an answer that breaks off later. So the body is read to its end, as far as that is
//! here, within [`BODY_BYTES_MAX`] and [`BODY_FOR`]; nothing of it is kept.

use crate::operations::Operations;
use crate::operations::explain::request::{self, Asked};
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

/// How much of a body is read.
const BODY_BYTES_MAX: u64 = 256 << 20;
/// For how long.
const BODY_FOR: Duration = Duration::from_secs(5);
/// Redirects that are followed.
pub(super) const REDIRECTS_MAX: usize = 5;
/// How long a check may take, with the look-up of a name.
const CHECK_FOR: Duration = Duration::from_secs(15);

/// What a request is answered with.
pub(super) struct Answered {
    /// The head, and what the body breaks off with.
    pub view: AnswerView,
    /// What is refused of it, and how: all of it, or what the body breaks off at.
    pub refused: Option<(Refused, Verdict)>,
    /// Why not all of it is known.
    pub unknown: Option<Unknown>,
}

/// Why an answer is not known by what is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unknown {
    /// Something that the head depends on is not here.
    Head,
    /// What the name stands for is not known here.
    Name,
    /// A part of the body is not here.
    Body,
    /// The body is too long to be read to its end.
    Length,
}

impl Unknown {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Head => "not all that the answer begins with is held here",
            Self::Name => "what the name stands for is not known here",
            Self::Body => "not all of the answer is held here",
            Self::Length => "the answer is too long to be read to its end",
        }
    }
}

impl Answered {
    /// Answers a request with what is here.
    pub(super) async fn here(gateway: &Gateway, asked: &Asked) -> Self {
        let head = asked.head(true);
        match gateway.preview(&head, &asked.client()).await {
            Ok(draft) => match request::problem_of(&draft) {
                Some(problem) => Self::with_problem(&problem, request::answer_of(Ok(draft), &head)),
                None => Self::to_the_end(draft, &head).await,
            },
            Err(problem) => Self::with_problem(&problem, request::problem_view(&problem, &head)),
        }
    }

    fn with_problem(problem: &Problem, view: AnswerView) -> Self {
        let unknown = match problem {
            Problem::Name(NameError::Offline { .. }) => Some(Unknown::Name),
            problem if request::is_for_want_of_blocks(problem) => Some(Unknown::Head),
            _ => None,
        };
        Self { view, refused: problem.refused(), unknown }
    }

    async fn to_the_end(mut draft: Draft, head: &Parts) -> Self {
        let body = std::mem::replace(draft.body_mut(), Content::Empty);
        let length = body.length();
        let mut view = request::answer_of(Ok(draft), head);
        view.bytes = length;
        match read_out(body).await {
            End::Whole => Self { view, refused: None, unknown: None },
            End::Late => Self { view, refused: None, unknown: Some(Unknown::Length) },
            End::Broken(problem) if request::is_for_want_of_blocks(&problem) => {
                Self { view, refused: None, unknown: Some(Unknown::Body) }
            }
            End::Broken(problem) => {
                view.breaks_off = Some(problem.to_string());
                Self { view, refused: problem.refused(), unknown: None }
            }
        }
    }

    /// Whether the status is known.
    pub(super) fn has_head(&self) -> bool {
        !matches!(self.unknown, Some(Unknown::Head | Unknown::Name))
    }
}

/// How a body ends.
enum End {
    Whole,
    Broken(Box<Problem>),
    Late,
}

async fn read_out(mut body: Content) -> End {
    let reading = async {
        let mut bytes = 0;
        while let Some(next) = body.next().await {
            match next {
                Ok(chunk) => bytes += chunk.len() as u64,
                Err(problem) => return End::Broken(Box::new(problem)),
            }
            if bytes > BODY_BYTES_MAX {
                return End::Late;
            }
            tokio::task::consume_budget().await;
        }
        End::Whole
    };
    tokio::time::timeout(BODY_FOR, reading).await.unwrap_or(End::Late)
}

impl Operations {
    /// Says what a request for something is answered with, with what is held here; names are looked up.
    pub async fn predict(&self, subject: &Subject) -> Predicted {
        let predicting = tokio::time::timeout(CHECK_FOR, self.predict_unhurried(subject)).await;
        predicting
            .unwrap_or_else(|_| Predicted { unknown: Some("it took too long".to_owned()), ..Predicted::default() })
    }

    async fn predict_unhurried(&self, subject: &Subject) -> Predicted {
        let Ok(mut asked) = Asked::of_path(&subject.request_path()) else { return Predicted::default() };
        for _ in 0..REDIRECTS_MAX {
            let answered = Answered::here(&self.inner.resolving, &asked).await;
            if let Some(next) = answered.view.location.as_deref().and_then(|location| asked.redirected(location)) {
                asked = next;
                continue;
            }
            let status = answered.has_head().then_some(answered.view.status);
            let unknown = answered.unknown.map(|unknown| unknown.words().to_owned());
            return Predicted { status, refused: answered.refused, unknown };
        }
        Predicted { unknown: Some("it redirects again and again".to_owned()), ..Predicted::default() }
    }
}
