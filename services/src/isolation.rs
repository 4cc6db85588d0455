//! [`Isolation`]: whether a gateway of a site is cut off from it, and therefore refuses content (`site.isolated`).
//!
//! Goals: content that was taken down elsewhere is not served for longer than an operator allows; the public listener,
//! the peers and `/readyz` go by the same state; a request reads it without waiting.
//!
//! Non-goals: finding out about the rules ([`crate::denylists::Control::follow_site`]); answers that have begun.

use crate::health::Degraded;
use std::fmt;
use std::time::Duration;

/// Returns for how long the rules in force may have been out of date.
type Age = Box<dyn Fn() -> Duration + Send + Sync>;

/// Refuses content while the rules in force may be older than the operator allows.
pub struct Isolation {
    after: Duration,
    age: Age,
}

impl Isolation {
    /// Content is refused once the rules in force are older than `after`. `age` is asked for each request.
    pub fn new(after: Duration, age: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { after, age: Box::new(age) }
    }

    /// The age of the rules if content is refused because of it; `None` if content is served.
    pub fn refusal(&self) -> Option<Duration> {
        Some((self.age)()).filter(|age| *age > self.after)
    }

    /// For [`crate::health::Health::watch`].
    pub fn degraded(&self) -> Option<Degraded> {
        let seconds = self.refusal()?.as_secs();
        let message = format!(
            "the rules of the site could not be read for {seconds} seconds, so content is answered with 503 \
             (site.isolated = \"refuse\"): check the database of site.database, and the disk of data_dir, to which \
             they are copied; the gateway serves again by itself"
        );
        Some(Degraded { part: "site", reason: "isolated", message })
    }
}

impl fmt::Debug for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Isolation").field("after", &self.after).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_refused_once_the_rules_are_older_than_allowed() {
        let table = [(0, None), (60, None), (61, Some(61)), (3600, Some(3600))];
        for (age, expected) in table {
            let isolation = Isolation::new(Duration::from_secs(60), move || Duration::from_secs(age));
            assert_eq!(isolation.refusal(), expected.map(Duration::from_secs), "{age}");
            let degraded = isolation.degraded();
            assert_eq!(degraded.is_some(), expected.is_some(), "{age}");
            assert!(degraded.is_none_or(|degraded| degraded.message.contains(&format!("{age} seconds"))));
        }
    }
}
