//! [`Schedule`]: when each certificate is ordered, without I/O and without a clock: the caller passes the time, in
//! seconds since 1970, and random fractions.
//!
//! A certificate is renewed at a random time around two thirds of its lifetime, or within the window that its authority
//! suggests (ARI, RFC 9773). A failed order is repeated with back-off, and never before the time that the authority
//! asks for (`Retry-After`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// An hour and a day, in seconds.
pub(super) const HOUR: i64 = 3600;
pub(super) const DAY: i64 = 24 * HOUR;

/// A renewal is due between these fractions of the lifetime: around two thirds, so that certificates of one start do
/// not stay together.
const RENEWAL: (f64, f64) = (0.63, 0.70);
/// Whatever its authority suggests, a certificate is renewed at this fraction of its lifetime at the latest, which
/// leaves time for failures, and not before it is so old: a wrong suggestion must not cause one order after another.
const RENEWAL_LATEST: f64 = 0.72;
const RENEWAL_EARLIEST: f64 = 0.1;
const RENEWAL_EARLIEST_MAX: i64 = HOUR;
/// From this fraction on a certificate that is not renewed yet is overdue.
const OVERDUE: f64 = 0.75;

/// The first back-off and the longest, by the kind of failure. Authorities allow about five failed validations of a
/// name in an hour.
const UNREACHABLE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(3600));
const REJECTED: (Duration, Duration) = (Duration::from_secs(240), Duration::from_secs(6 * 3600));
const RATE_LIMITED: (Duration, Duration) = (Duration::from_secs(600), Duration::from_secs(6 * 3600));
/// The longest `Retry-After` that is honoured: an order a day does no harm.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 3600);

/// When a certificate is valid, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first second.
    pub not_before: i64,
    /// The last second.
    pub not_after: i64,
}

impl Validity {
    /// The time at which this fraction of the lifetime has passed.
    fn at(self, fraction: f64) -> i64 {
        let lifetime = self.not_after.saturating_sub(self.not_before).max(0);
        // The product is at most the lifetime.
        self.not_before.saturating_add((lifetime as f64 * fraction) as i64)
    }

    /// Whether the certificate should have been renewed long ago.
    pub fn is_overdue(self, now: i64) -> bool {
        now >= self.at(OVERDUE)
    }

    /// Whether it is no longer valid.
    pub fn is_over(self, now: i64) -> bool {
        now > self.not_after
    }
}

/// When an authority suggests to renew a certificate, in seconds since 1970 (RFC 9773, section 4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Its begin.
    pub start: i64,
    /// Its end.
    pub end: i64,
}

/// When to renew a certificate; `random` is between 0 and 1.
pub fn renewal_at(validity: Validity, window: Option<Window>, random: f64) -> i64 {
    let Some(Window { start, end }) = window.filter(|window| window.start < window.end) else {
        return validity.at(RENEWAL.0 + (RENEWAL.1 - RENEWAL.0) * random);
    };
    let length = i128::from(end) - i128::from(start);
    let chosen = i128::from(start) + (length as f64 * random) as i128;
    let chosen = i64::try_from(chosen).unwrap_or(end);
    let earliest = validity.at(RENEWAL_EARLIEST).min(validity.not_before.saturating_add(RENEWAL_EARLIEST_MAX));
    chosen.clamp(earliest, validity.at(RENEWAL_LATEST).max(earliest))
}

/// What kind of failure an order ended in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// The authority does not answer, or has an error of its own, such as nonces that it rejects.
    Unreachable,
    /// A limit of the authority is reached.
    RateLimited,
    /// The challenge failed, or the authority rejects the order.
    Rejected,
}

/// The back-off after `former` earlier failures, without jitter.
fn back_off(kind: FailureKind, former: u32) -> Duration {
    let (first, max) = match kind {
        FailureKind::Unreachable => UNREACHABLE,
        FailureKind::Rejected => REJECTED,
        FailureKind::RateLimited => RATE_LIMITED,
    };
    p2p_bridge::back_off::exponential(first, max, former)
}

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// An order, after this number of failed ones.
    Order {
        /// The failures since the last success.
        failures: u32,
        /// Whether the authority has suggested when to renew, so that it knows which certificate is replaced.
        is_suggested: bool,
    },
    /// The question when to renew (ARI).
    Inquiry,
}

/// The plan of one certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Plan {
    /// Whether it is on demand: other certificates have precedence.
    is_on_demand: bool,
    validity: Option<Validity>,
    order_at: i64,
    inquiry_at: Option<i64>,
    failures: u32,
    is_suggested: bool,
    is_running: bool,
}

/// The plans of all certificates, by name.
#[derive(Debug, Default)]
pub struct Schedule {
    plans: BTreeMap<Arc<str>, Plan>,
}

impl Schedule {
    /// Adds a name. Without a certificate, an order is due at once.
    pub fn add(&mut self, name: &str, is_on_demand: bool, validity: Option<Validity>, now: i64, random: f64) {
        let order_at = validity.map_or(now, |validity| renewal_at(validity, None, random));
        // Spread, because a start adds all names at once.
        let inquiry_at = validity.map(|_| now.saturating_add((HOUR as f64 * random) as i64));
        let (failures, is_suggested, is_running) = (0, false, false);
        let plan = Plan { is_on_demand, validity, order_at, inquiry_at, failures, is_suggested, is_running };
        self.plans.entry(name.into()).or_insert(plan);
    }

    /// Removes a name.
    pub fn remove(&mut self, name: &str) {
        self.plans.remove(name);
    }

    /// Whether there is a plan for a name.
    pub fn has(&self, name: &str) -> bool {
        self.plans.contains_key(name)
    }

    /// The names on demand.
    pub fn on_demand(&self) -> impl Iterator<Item = &str> {
        self.plans.iter().filter(|(_, plan)| plan.is_on_demand).map(|(name, _)| &**name)
    }

    /// Begins what has been due for longest: hosts, then wildcards, whose DNS hook may be slow, then names on demand,
    /// those only if `on_demand_too`.
    pub fn begin(&mut self, now: i64, on_demand_too: bool) -> Option<(Arc<str>, Due)> {
        let waiting =
            self.plans.iter_mut().filter(|(_, plan)| !plan.is_running && (on_demand_too || !plan.is_on_demand));
        let due = waiting.filter_map(|(name, plan)| {
            let (at, due) = match plan.inquiry_at {
                Some(at) if at < plan.order_at => (at, Due::Inquiry),
                _ => (plan.order_at, Due::Order { failures: plan.failures, is_suggested: plan.is_suggested }),
            };
            (at <= now).then_some(((plan.is_on_demand, name.starts_with("*."), at), name, plan, due))
        });
        let (_, name, plan, due) = due.min_by_key(|(rank, ..)| *rank)?;
        plan.is_running = true;
        Some((Arc::clone(name), due))
    }

    /// When the next order or inquiry is due.
    pub fn wake_at(&self) -> Option<i64> {
        let waiting = self.plans.values().filter(|plan| !plan.is_running);
        waiting.map(|plan| plan.inquiry_at.map_or(plan.order_at, |at| at.min(plan.order_at))).min()
    }

    /// Records an issued certificate.
    pub fn issued(&mut self, name: &str, validity: Validity, now: i64, random: f64) {
        let Some(plan) = self.plans.get_mut(name) else { return };
        plan.validity = Some(validity);
        plan.order_at = renewal_at(validity, None, random);
        plan.inquiry_at = Some(now);
        (plan.failures, plan.is_suggested, plan.is_running) = (0, false, false);
    }

    /// Records a failed order, and returns after how long it is repeated: a back-off with jitter, or longer if the
    /// authority asks for it. Other names do not wait: a limit may be that of one domain, and on demand that is the
    /// domain of anybody.
    pub fn failed(
        &mut self,
        name: &str,
        kind: FailureKind,
        retry_after: Option<Duration>,
        now: i64,
        jitter: impl Fn(Duration) -> Duration,
    ) -> Duration {
        let former = self.plans.get(name).map_or(0, |plan| plan.failures);
        let wait = jitter(back_off(kind, former)).max(retry_after.unwrap_or_default().min(RETRY_AFTER_MAX));
        let again = now.saturating_add(i64::try_from(wait.as_secs()).unwrap_or(DAY));
        if let Some(plan) = self.plans.get_mut(name) {
            (plan.order_at, plan.failures, plan.is_running) = (again, former.saturating_add(1), false);
        }
        wait
    }

    /// Records the answer to an inquiry, which is repeated at `next`.
    pub fn inquired(&mut self, name: &str, window: Option<Window>, next: i64, random: f64) {
        let Some(plan) = self.plans.get_mut(name) else { return };
        plan.is_running = false;
        plan.inquiry_at = Some(next);
        if let (Some(validity), Some(_), 0) = (plan.validity, window, plan.failures) {
            plan.order_at = renewal_at(validity, window, random);
            plan.is_suggested = true;
        }
    }

    /// Has failed orders repeated now: the operator may have removed the cause.
    pub fn retry(&mut self, now: i64) {
        let failed = self.plans.values_mut().filter(|plan| plan.failures > 0);
        failed.for_each(|plan| plan.order_at = plan.order_at.min(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALIDITY: Validity = Validity { not_before: 1_000_000, not_after: 1_000_000 + 90 * DAY };

    fn days(at: i64) -> f64 {
        (at - VALIDITY.not_before) as f64 / DAY as f64
    }

    #[test]
    fn certificates_are_renewed_around_two_thirds_of_their_lifetime() {
        for (random, expected) in [(0.0, 56.7), (0.5, 59.85), (1.0, 63.0)] {
            assert!((days(renewal_at(VALIDITY, None, random)) - expected).abs() < 0.01, "{random}");
        }
        // An invalid certificate, and windows that end before they begin, do no harm.
        let reversed = Validity { not_before: 10, not_after: 5 };
        assert_eq!(renewal_at(reversed, None, 0.5), 10);
        assert_eq!(renewal_at(reversed, Some(Window { start: i64::MIN, end: i64::MAX }), 1.0), 10);
        let window = Some(Window { start: 20, end: 20 });
        assert_eq!(renewal_at(VALIDITY, window, 0.5), renewal_at(VALIDITY, None, 0.5));
    }

    #[test]
    fn the_window_of_the_authority_decides_within_bounds() {
        let day = |day: i64| VALIDITY.not_before + day * DAY;
        let table = [
            (day(30), day(32), 0.0, 30.0),
            (day(30), day(32), 0.5, 31.0),
            (day(30), day(32), 1.0, 32.0),
            // In the past: at once, but not before the certificate is an hour old.
            (day(-9), day(-8), 0.5, 1.0 / 24.0),
            // Too late to repeat a failed order.
            (day(88), day(89), 0.5, 64.8),
            (i64::MIN, i64::MAX, 1.0, 64.8),
        ];
        for (start, end, random, expected) in table {
            let found = days(renewal_at(VALIDITY, Some(Window { start, end }), random));
            assert!((found - expected).abs() < 0.01, "{start} {end}: {found}");
        }
        // A certificate of a minute: after a tenth of its lifetime.
        let short = Validity { not_before: 0, not_after: 60 };
        assert_eq!(renewal_at(short, Some(Window { start: -9, end: -8 }), 0.5), 6);
    }

    #[test]
    fn back_offs_depend_on_the_failure_and_honour_retry_after() {
        use FailureKind::{RateLimited, Rejected, Unreachable};
        let table = [
            (Unreachable, 0, None, 5),
            (Unreachable, 3, None, 40),
            (Unreachable, 99, None, 3600),
            (Rejected, 0, None, 240),
            (Rejected, 1, None, 480),
            (Rejected, 99, None, 6 * 3600),
            (RateLimited, 0, None, 600),
            (RateLimited, 0, Some(3000), 3000),
            (RateLimited, 9, Some(1), 6 * 3600),
            (Unreachable, 0, Some(120), 120),
            (RateLimited, 0, Some(u64::MAX), 24 * 3600),
        ];
        for (kind, former, retry_after, expected) in table {
            let mut schedule = Schedule::default();
            schedule.add("a.example", false, None, 0, 0.5);
            for _ in 0..former {
                schedule.failed("a.example", Unreachable, None, 0, |wait| wait);
            }
            let found = schedule.failed("a.example", kind, retry_after.map(Duration::from_secs), 0, |wait| wait);
            assert_eq!(found.as_secs(), expected, "{kind:?} {former} {retry_after:?}");
            assert_eq!(schedule.wake_at(), i64::try_from(expected).ok());
        }
        // At most five orders of a name in an hour, also with the shortest jitter.
        let mut at = 0;
        let orders = (0..20).map_while(|former| {
            let this = at;
            at += back_off(Rejected, former).as_secs() * 3 / 4;
            (this < 3600).then_some(this)
        });
        assert_eq!(orders.count(), 5);
    }

    #[test]
    fn hosts_come_before_wildcards() {
        let mut schedule = Schedule::default();
        for (name, at) in [("*.ipfs.a.example", 90), ("z.example", 100), ("*.ipns.a.example", 80), ("a.example", 99)] {
            schedule.add(name, false, None, at, 0.5);
        }
        let order: Vec<_> =
            std::iter::from_fn(|| schedule.begin(100, true)).map(|(name, _)| name.to_string()).collect();
        assert_eq!(order, ["a.example", "z.example", "*.ipns.a.example", "*.ipfs.a.example"]);
    }

    #[test]
    fn orders_begin_by_precedence_and_end_in_a_plan() {
        let mut schedule = Schedule::default();
        let order = |failures| Due::Order { failures, is_suggested: false };
        schedule.add("demand.example", true, None, 90, 0.5);
        schedule.add("a.example", false, None, 100, 0.5);
        schedule.add("valid.example", false, Some(VALIDITY), 100, 0.0);
        assert_eq!(schedule.begin(99, false), None);
        assert_eq!(schedule.wake_at(), Some(90));
        let begin =
            |schedule: &mut Schedule, now, too| schedule.begin(now, too).map(|(name, due)| (name.to_string(), due));
        let named = |name: &str, due| Some((name.to_owned(), due));
        assert_eq!(begin(&mut schedule, 100, true), named("a.example", order(0)));
        assert_eq!(begin(&mut schedule, 100, true), named("valid.example", Due::Inquiry));
        assert_eq!(begin(&mut schedule, 100, false), None);
        assert_eq!(begin(&mut schedule, 100, true), named("demand.example", order(0)));
        assert_eq!((begin(&mut schedule, 100, true), schedule.wake_at()), (None, None));
        // A success, a failure and the answer to an inquiry.
        schedule.issued("a.example", VALIDITY, 100, 0.5);
        schedule.failed("demand.example", FailureKind::Rejected, None, 100, |wait| wait / 2);
        let window = Window { start: 200, end: 201 };
        schedule.inquired("valid.example", Some(window), 100 + DAY, 0.0);
        assert_eq!(begin(&mut schedule, 100, true), named("a.example", Due::Inquiry));
        assert_eq!(begin(&mut schedule, 219, true), None);
        assert_eq!(begin(&mut schedule, 220, true), named("demand.example", order(1)));
        schedule.remove("demand.example");
        schedule.issued("demand.example", VALIDITY, 100, 0.5);
        assert!(!schedule.has("demand.example"));
        assert_eq!(schedule.wake_at(), Some(100 + DAY));
        // The renewal that the authority has suggested.
        let later = VALIDITY.not_before + DAY;
        schedule.inquired("a.example", None, later + DAY, 0.5);
        assert_eq!(begin(&mut schedule, 100 + DAY, true), named("valid.example", Due::Inquiry));
        schedule.inquired("valid.example", None, later + DAY, 0.5);
        let suggested = Due::Order { failures: 0, is_suggested: true };
        assert_eq!(begin(&mut schedule, later, true), named("valid.example", suggested));
        assert_eq!(begin(&mut schedule, later, true), None);
    }

    #[test]
    fn a_limit_of_the_authority_is_honoured_until_an_operator_retries_and_delays_no_other_name() {
        let mut schedule = Schedule::default();
        for name in ["a.example", "b.example"] {
            schedule.add(name, false, None, 0, 0.5);
        }
        assert!(schedule.begin(0, true).is_some());
        schedule.failed("a.example", FailureKind::RateLimited, Some(Duration::from_secs(900)), 0, |wait| wait);
        assert_eq!(schedule.begin(0, true).map(|(name, _)| name.to_string()).as_deref(), Some("b.example"));
        assert_eq!((schedule.begin(899, true), schedule.wake_at()), (None, Some(900)));
        schedule.retry(10);
        assert!(schedule.begin(10, true).is_some());
        assert_eq!(schedule.begin(10, true), None);
    }

    #[test]
    fn a_certificate_is_overdue_after_three_quarters_of_its_lifetime() {
        for (day, overdue, over) in [(0, false, false), (67, false, false), (68, true, false), (91, true, true)] {
            let now = VALIDITY.not_before + day * DAY;
            assert_eq!((VALIDITY.is_overdue(now), VALIDITY.is_over(now)), (overdue, over), "{day}");
        }
    }
}
