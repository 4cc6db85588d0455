//! [`Summary`]: what is counted of the records of access logs.

use super::agents;
use super::sketch::{Distinct, FrequentItems, Quantiles};
use services::access_log::record::{AccessRecord, ContentTier};
use std::collections::BTreeMap;

/// Counters of roots, and of referring sites and user agents.
const ROOTS: usize = 1 << 19;
const REFERRERS: usize = 1 << 16;
const AGENTS: usize = 256;
/// The maximum number of intervals of the request rate. With more, intervals become longer.
const INTERVALS_MAX: usize = 4096;
/// The lengths of intervals in seconds; after the last one, they double.
const INTERVAL_SECONDS: [i64; 6] = [60, 300, 900, 3600, 6 * 3600, 24 * 3600];
/// The name of the referrer of requests from pages of the gateway itself, in anonymised logs.
pub(super) const SAME_SITE: &str = "same-site";

/// The rows of Table 5: the tiers of content.
pub(super) const TIERS: usize = ContentTier::ALL.len();

/// Requests with content of one tier.
#[derive(Default)]
pub(super) struct TierSummary {
    pub requests: u64,
    pub bytes: u64,
    /// The time to the first byte, in microseconds; to the end of the response if the log lacks it.
    pub latency: Quantiles,
}

/// Requests over time.
pub(super) struct Rate {
    pub interval_seconds: i64,
    /// By the start of each interval, in seconds since the Unix epoch: all requests, and those of each tier.
    pub intervals: BTreeMap<i64, [u64; 1 + TIERS]>,
}

/// Where requests are referred from.
pub(super) struct Referrers {
    pub none: u64,
    pub same_site: u64,
    pub others: FrequentItems,
}

/// The counts of all records.
pub(super) struct Summary {
    lines: u64,
    pub other_lines: u64,
    pub skipped_lines: u64,
    /// Where the first skipped line is, and why it was skipped.
    pub first_skipped: Option<String>,
    pub requests: u64,
    pub bytes: u64,
    /// The first and the last time, in microseconds since the Unix epoch.
    pub from_to: Option<(i64, i64)>,
    /// By the first digit of the status.
    pub statuses: BTreeMap<u16, u64>,
    pub tiers: [TierSummary; TIERS],
    /// Of requests with content.
    pub latency: Quantiles,
    /// Bytes of complete responses with content.
    pub sizes: Quantiles,
    pub rate: Rate,
    pub roots: FrequentItems,
    pub distinct_roots: Distinct,
    /// Addresses with user agents.
    pub clients: Distinct,
    pub referrers: Referrers,
    pub agents: FrequentItems,
}

impl Default for Summary {
    fn default() -> Self {
        Self {
            lines: 0,
            other_lines: 0,
            skipped_lines: 0,
            first_skipped: None,
            requests: 0,
            bytes: 0,
            from_to: None,
            statuses: BTreeMap::new(),
            tiers: Default::default(),
            latency: Quantiles::default(),
            sizes: Quantiles::default(),
            rate: Rate::default(),
            roots: FrequentItems::new(ROOTS),
            distinct_roots: Distinct::default(),
            clients: Distinct::default(),
            referrers: Referrers { none: 0, same_site: 0, others: FrequentItems::new(REFERRERS) },
            agents: FrequentItems::new(AGENTS),
        }
    }
}

impl Summary {
    /// Adds a request; `root` is that of its content.
    pub fn add(&mut self, record: &AccessRecord<'_>, root: Option<&str>) {
        self.lines += 1;
        self.requests += 1;
        self.bytes = self.bytes.saturating_add(record.bytes);
        let at = record.received_us;
        self.from_to = Some(self.from_to.map_or((at, at), |(from, to)| (from.min(at), to.max(at))));
        *self.statuses.entry(record.status / 100).or_default() += 1;
        self.rate.add(at, record.tier);
        if let Some(tier) = record.tier {
            self.add_content(record, tier);
        }
        if let Some(root) = root {
            self.roots.add(root);
            self.distinct_roots.add(root);
        }
        if !record.client.is_empty() {
            self.clients.add((&record.client, &record.user_agent));
        }
        self.referrers.add(&record.referer, &record.host);
        self.agents.add(agents::family(&record.user_agent));
    }

    fn add_content(&mut self, record: &AccessRecord<'_>, tier: ContentTier) {
        let of_tier = &mut self.tiers[tier as usize];
        of_tier.requests += 1;
        of_tier.bytes = of_tier.bytes.saturating_add(record.bytes);
        if let Some(latency) = record.first_byte_us.or(record.duration_us) {
            of_tier.latency.add(latency);
            self.latency.add(latency);
        }
        // Not those of HEAD and 304.
        if record.complete != Some(false) && record.bytes > 0 {
            self.sizes.add(record.bytes);
        }
    }

    /// Counts a line of the log that is no request.
    pub fn other(&mut self) {
        self.lines += 1;
        self.other_lines += 1;
    }

    /// Counts a line that cannot be read.
    pub fn skip(&mut self, place: &dyn Fn() -> String, why: &str) {
        self.lines += 1;
        self.skipped_lines += 1;
        self.first_skipped.get_or_insert_with(|| format!("{}: {why}", place()));
    }

    /// The number of lines, without empty ones.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Why there is no request, if there is none.
    pub fn why_empty(&self) -> Option<String> {
        if self.requests > 0 {
            return None;
        }
        Some(match (&self.first_skipped, self.other_lines) {
            (Some(skipped), _) => skipped.clone(),
            (None, 0) => "there are no lines".to_owned(),
            (None, _) => "the log has no access log; set log.access = \"log\"".to_owned(),
        })
    }
}

impl Default for Rate {
    fn default() -> Self {
        Self { interval_seconds: INTERVAL_SECONDS[0], intervals: BTreeMap::new() }
    }
}

impl Rate {
    fn add(&mut self, at_us: i64, tier: Option<ContentTier>) {
        let seconds = at_us.div_euclid(1_000_000);
        let counts = self.intervals.entry(self.start_of(seconds)).or_default();
        counts[0] += 1;
        if let Some(tier) = tier {
            counts[1 + tier as usize] += 1;
        }
        while self.intervals.len() > INTERVALS_MAX {
            self.lengthen();
        }
    }

    fn start_of(&self, seconds: i64) -> i64 {
        seconds - seconds.rem_euclid(self.interval_seconds)
    }

    fn lengthen(&mut self) {
        let now = self.interval_seconds;
        self.interval_seconds = INTERVAL_SECONDS.into_iter().find(|length| *length > now).unwrap_or(now * 2);
        for (start, counts) in std::mem::take(&mut self.intervals) {
            let merged = self.intervals.entry(self.start_of(start)).or_default();
            merged.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }

    /// The same with at most so many intervals.
    pub fn with_at_most(&self, intervals: usize) -> Self {
        let mut coarse = Self { interval_seconds: self.interval_seconds, intervals: self.intervals.clone() };
        while coarse.intervals.len() > intervals.max(1) {
            coarse.lengthen();
        }
        coarse
    }
}

impl Referrers {
    fn add(&mut self, referer: &str, host: &str) {
        let site = referer.split_once("://").map_or(referer, |(_, site)| site);
        if site.is_empty() {
            self.none += 1;
        } else if is_same_site(site, host) {
            self.same_site += 1;
        } else {
            self.others.add(site);
        }
    }
}

/// Whether a page of the gateway itself refers to its content: of the same host, or of another subdomain for content.
pub(super) fn is_same_site(site: &str, host: &str) -> bool {
    site == SAME_SITE || (!host.is_empty() && gateway_of(site) == gateway_of(host))
}

/// A host without its port, and without the label of a subdomain for content.
fn gateway_of(host: &str) -> String {
    let host = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let below = [".ipfs.", ".ipns."].into_iter().find_map(|namespace| host.split_once(namespace));
    below.map_or(host, |(_, gateway)| gateway).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_the_gateway_itself_are_no_referrers() {
        let table = [
            ("example.org", "example.org", true),
            ("example.org:8080", "Example.org", true),
            ("a.ipfs.example.org", "b.ipfs.example.org:443", true),
            ("example.org", "b.ipns.example.org", true),
            ("other.org", "example.org", false),
            ("sub.example.org", "example.org", false),
            ("example.org", "", false),
            (SAME_SITE, "", true),
            ("[::1]", "[::1]", true),
        ];
        for (site, host, expected) in table {
            assert_eq!(is_same_site(site, host), expected, "{site} {host}");
        }
    }

    #[test]
    fn intervals_become_longer_when_there_are_many() {
        let mut rate = Rate::default();
        let minutes = INTERVALS_MAX as i64 * 3;
        (0..minutes).for_each(|minute| rate.add(minute * 60_000_000, Some(ContentTier::Disk)));
        assert!(rate.interval_seconds == 300 && rate.intervals.len() <= INTERVALS_MAX);
        let sum = |rate: &Rate, which: usize| rate.intervals.values().map(|counts| counts[which]).sum::<u64>();
        assert_eq!((sum(&rate, 0), sum(&rate, 2), sum(&rate, 1)), (minutes as u64, minutes as u64, 0));
        let coarse = rate.with_at_most(10);
        assert!(coarse.intervals.len() <= 10 && sum(&coarse, 0) == minutes as u64);
        // Times that are far apart.
        let mut rate = Rate::default();
        (0..3 * INTERVALS_MAX as i64).for_each(|number| rate.add(number * 20_000_000_000_000, None));
        assert!(rate.intervals.len() <= INTERVALS_MAX);
        rate.add(i64::MIN, None);
        rate.add(i64::MAX, None);
    }
}
