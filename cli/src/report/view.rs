//! [`ReportView`]: the report as JSON, and as tables.

use super::summary::{Summary, TIERS, TierSummary};
use crate::output::{count, table};
use crate::values::{latency, share};
use api::text::size;
use serde::Serialize;
use services::access_log::record::{ContentTier, rfc3339};
use std::fmt::Write as _;

/// The maximum number of intervals of the request rate, and of points of a distribution.
const INTERVALS_MAX: usize = 300;
const POINTS_MAX: usize = 200;
/// Ranks of the popularity for each power of ten.
const RANKS_PER_DECADE: f64 = 10.0;
/// The latency that the paper names: "76 % of requests are delivered in less than 250 ms".
const FAST_SECONDS: f64 = 0.25;

/// The report.
#[derive(Debug, Serialize)]
pub(super) struct ReportView {
    pub lines: LinesView,
    pub from: String,
    pub to: String,
    pub requests: u64,
    pub bytes: u64,
    pub clients: DistinctView,
    pub statuses: Vec<ShareView>,
    pub tiers: Vec<TierView>,
    /// The share of requests with content whose first byte was sent within 250 ms.
    pub fast_share: Option<f64>,
    pub rate: RateView,
    pub sizes: DistributionView,
    pub roots: RootsView,
    pub referrers: ReferrersView,
    pub user_agents: Vec<ShareView>,
}

#[derive(Debug, Serialize)]
pub(super) struct LinesView {
    pub read: u64,
    /// Lines of the log that are no requests.
    pub other: u64,
    /// Lines that cannot be read.
    pub skipped: u64,
    pub first_skipped: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct DistinctView {
    pub distinct: u64,
    pub exact: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct ShareView {
    pub name: String,
    pub requests: u64,
    pub share: f64,
}

/// A column of Table 5, and the distribution of its latency.
#[derive(Debug, Serialize)]
pub(super) struct TierView {
    pub tier: &'static str,
    pub requests: u64,
    pub requests_share: f64,
    pub bytes: u64,
    pub bytes_share: f64,
    pub first_byte_median_seconds: Option<f64>,
    pub first_byte_p95_seconds: Option<f64>,
    /// Seconds to the first byte, and the share of requests up to that.
    pub first_byte_distribution: Vec<(f64, f64)>,
}

#[derive(Debug, Serialize)]
pub(super) struct RateView {
    pub interval_seconds: i64,
    pub mean_per_second: f64,
    pub peak_per_second: f64,
    pub peak_at: String,
    pub intervals: Vec<IntervalView>,
}

#[derive(Debug, Serialize)]
pub(super) struct IntervalView {
    pub from: String,
    #[serde(skip)]
    pub seconds: i64,
    pub requests: u64,
    pub ram: u64,
    pub disk: u64,
    /// Only if the log has requests of the tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<u64>,
    pub network: u64,
}

/// Sizes of responses.
#[derive(Debug, Serialize)]
pub(super) struct DistributionView {
    pub median_bytes: Option<f64>,
    pub p95_bytes: Option<f64>,
    /// The share above 100 kB.
    pub large_share: Option<f64>,
    pub distribution: Vec<(f64, f64)>,
}

#[derive(Debug, Serialize)]
pub(super) struct RootsView {
    pub distinct: u64,
    pub exact: bool,
    pub requests: u64,
    /// By how much counts may be too low.
    pub count_error_max: u64,
    /// The share of requests for the most popular hundredth of the roots.
    pub top_percent_share: Option<f64>,
    pub top: Vec<ShareView>,
    /// Ranks, the most popular one first, and the requests of the root at each.
    pub popularity: Vec<(u64, u64)>,
}

#[derive(Debug, Serialize)]
pub(super) struct ReferrersView {
    /// Requests without a referrer, from pages of the gateway itself, and from other sites.
    pub none: u64,
    pub same_site: u64,
    pub others: u64,
    pub count_error_max: u64,
    pub top: Vec<ShareView>,
}

fn part(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { part as f64 / all as f64 }
}

fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

fn shares<'a>(items: impl IntoIterator<Item = (&'a str, u64)>, all: u64) -> Vec<ShareView> {
    let view = |(name, requests): (&str, u64)| ShareView {
        name: name.to_owned(),
        requests,
        share: rounded(part(requests, all)),
    };
    items.into_iter().map(view).collect()
}

fn rfc3339_of_seconds(seconds: i64) -> String {
    rfc3339(seconds.saturating_mul(1_000_000))
}

impl ReportView {
    /// The report of what was counted, with so many entries in each list.
    pub fn of(summary: &Summary, top: usize) -> Self {
        let (from, to) = summary.from_to.unwrap_or_default();
        let (distinct_clients, exact_clients) = summary.clients.estimate();
        let names: Vec<(String, u64)> =
            summary.statuses.iter().map(|(class, requests)| (format!("{class}xx"), *requests)).collect();
        let second = |us: f64| us / 1e6;
        Self {
            lines: LinesView {
                read: summary.lines(),
                other: summary.other_lines,
                skipped: summary.skipped_lines,
                first_skipped: summary.first_skipped.clone(),
            },
            from: rfc3339(from),
            to: rfc3339(to),
            requests: summary.requests,
            bytes: summary.bytes,
            clients: DistinctView { distinct: distinct_clients, exact: exact_clients },
            statuses: shares(names.iter().map(|(name, requests)| (&**name, *requests)), summary.requests),
            tiers: tiers(&summary.tiers, second),
            fast_share: summary.latency.share_up_to(FAST_SECONDS * 1e6).map(rounded),
            rate: RateView::of(summary, second((to - from) as f64)),
            sizes: DistributionView {
                median_bytes: summary.sizes.quantile(0.5).map(f64::round),
                p95_bytes: summary.sizes.quantile(0.95).map(f64::round),
                large_share: summary.sizes.share_up_to(100_000.0).map(|small| rounded(1.0 - small)),
                distribution: points(summary.sizes.distribution(POINTS_MAX), |bytes| bytes.round()),
            },
            roots: RootsView::of(summary, top),
            referrers: ReferrersView {
                none: summary.referrers.none,
                same_site: summary.referrers.same_site,
                others: summary.referrers.others.total(),
                count_error_max: summary.referrers.others.error_max(),
                top: shares(summary.referrers.others.top(top), summary.referrers.others.total()),
            },
            user_agents: shares(summary.agents.top(top), summary.requests),
        }
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let Self { lines, rate, sizes, roots, referrers, .. } = self;
        let mut text = String::new();
        let skipped = match (&lines.first_skipped, lines.skipped) {
            (Some(first), skipped) => format!("; {skipped} unreadable, the first at {first}"),
            _ => String::new(),
        };
        // Writing to a string does not fail.
        _ = writeln!(text, "lines        {}, {} of other messages{skipped}", lines.read, lines.other);
        _ = writeln!(text, "time         {} to {}", self.from, self.to);
        _ = writeln!(
            text,
            "requests     {}; {:.2}/s on average, {:.2}/s at most ({} s from {})",
            self.requests, rate.mean_per_second, rate.peak_per_second, rate.interval_seconds, rate.peak_at
        );
        _ = writeln!(text, "clients      {} (addresses with user agents)", about(&self.clients));
        _ = writeln!(text, "sent         {}", size(self.bytes));
        let statuses: Vec<String> = self
            .statuses
            .iter()
            .map(|class| format!("{} {}", class.name, share(class.requests, self.requests)))
            .collect();
        _ = writeln!(text, "status       {}", statuses.join(", "));
        text.push_str(&self.table_5());
        if let (Some(median), Some(p95), Some(large)) = (sizes.median_bytes, sizes.p95_bytes, sizes.large_share) {
            _ = writeln!(
                text,
                "\nsizes        median {}, 95 % up to {}, {:.1} % over 100 kB",
                size(median as u64),
                size(p95 as u64),
                large * 100.0
            );
        }
        text.push_str(&self.roots_text());
        let from_others = share(referrers.others, self.requests);
        _ = writeln!(
            text,
            "\nreferred     {from_others} of all requests by other sites, {} by pages of the gateway itself",
            share(referrers.same_site, self.requests)
        );
        text.push_str(&list("REFERRER", &referrers.top));
        text.push('\n');
        text.push_str(&list("USER AGENT", &self.user_agents));
        text.push_str(&uncertainty(roots.count_error_max, "roots"));
        text.push_str(&uncertainty(referrers.count_error_max, "referrers"));
        text
    }

    fn table_5(&self) -> String {
        let (requests, bytes) = self.with_content();
        if requests == 0 {
            return "\nThe log has no tiers: it is in the combined format, or no request had content.\n".to_owned();
        }
        let time = |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), latency);
        let row = |tier: &TierView| {
            [
                name_of(tier.tier).to_owned(),
                share(tier.requests, requests),
                share(tier.bytes, bytes),
                time(tier.first_byte_median_seconds),
                time(tier.first_byte_p95_seconds),
            ]
        };
        let head = ["CONTENT FROM", "REQUESTS", "BYTES", "FIRST BYTE (MEDIAN)", "95 %"];
        let fast = self.fast_share.map(|fast| format!("{:.1} % of them within 250 ms\n", fast * 100.0));
        format!(
            "\n{}{}, {}; {}",
            table(head, self.tiers.iter().map(row)),
            count(requests, "request"),
            size(bytes),
            fast.unwrap_or_else(|| "no latencies\n".to_owned())
        )
    }

    /// The requests with content, and their bytes.
    pub fn with_content(&self) -> (u64, u64) {
        self.tiers.iter().fold((0, 0), |(requests, bytes), tier| (requests + tier.requests, bytes + tier.bytes))
    }

    fn roots_text(&self) -> String {
        let RootsView { distinct, exact, requests, top_percent_share, top, .. } = &self.roots;
        if *requests == 0 {
            return String::new();
        }
        let distinct = about(&DistinctView { distinct: *distinct, exact: *exact });
        let most = top_percent_share.map_or_else(String::new, |share| {
            format!("; the most popular 1 % have {:.1} % of the requests", share * 100.0)
        });
        format!("\nroots        {distinct}{most}\n{}", list("ROOT", top))
    }
}

/// The name of a tier for people.
pub(super) fn name_of(tier: &str) -> &str {
    if tier == ContentTier::Ram.name() { "memory" } else { tier }
}

fn about(number: &DistinctView) -> String {
    format!("{}{}", if number.exact { "" } else { "about " }, number.distinct)
}

fn list(head: &str, entries: &[ShareView]) -> String {
    if entries.is_empty() {
        return String::new();
    }
    let row =
        |entry: &ShareView| [entry.requests.to_string(), format!("{:.1} %", entry.share * 100.0), entry.name.clone()];
    table(["REQUESTS", "SHARE", head], entries.iter().map(row))
}

fn uncertainty(error_max: u64, what: &str) -> String {
    match error_max {
        0 => String::new(),
        _ => format!("There are more {what} than counters: their counts are too low by at most {error_max}.\n"),
    }
}

fn tiers(summaries: &[TierSummary], second: impl Fn(f64) -> f64) -> Vec<TierView> {
    let (requests, bytes) =
        summaries.iter().fold((0, 0_u64), |sum, tier| (sum.0 + tier.requests, sum.1.saturating_add(tier.bytes)));
    let view = |(tier, summary): (ContentTier, &TierSummary)| {
        let quantile = |share| summary.latency.quantile(share).map(|us| rounded(second(us)));
        TierView {
            tier: tier.name(),
            requests: summary.requests,
            requests_share: rounded(part(summary.requests, requests)),
            bytes: summary.bytes,
            bytes_share: rounded(part(summary.bytes, bytes)),
            first_byte_median_seconds: quantile(0.5),
            first_byte_p95_seconds: quantile(0.95),
            first_byte_distribution: points(summary.latency.distribution(POINTS_MAX), |us| rounded(second(us))),
        }
    };
    // Few gateways belong to a site.
    let is_shown = |(tier, summary): &(ContentTier, &TierSummary)| *tier != ContentTier::Site || summary.requests > 0;
    ContentTier::ALL.into_iter().zip(summaries).filter(is_shown).map(view).collect()
}

fn points(points: Vec<(f64, f64)>, value: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
    points.into_iter().map(|(at, share)| (value(at), rounded(share))).collect()
}

impl RateView {
    fn of(summary: &Summary, seconds: f64) -> Self {
        let rate = summary.rate.with_at_most(INTERVALS_MAX);
        let has_site = summary.tiers[ContentTier::Site as usize].requests > 0;
        let length = rate.interval_seconds as f64;
        let peak = rate.intervals.iter().max_by_key(|(start, counts)| (counts[0], -**start));
        let (peak_at, peak) = peak.map_or((0, 0), |(start, counts)| (*start, counts[0]));
        let interval = |(start, counts): (&i64, &[u64; 1 + TIERS])| {
            let of = |tier: ContentTier| counts[1 + tier as usize];
            IntervalView {
                from: rfc3339_of_seconds(*start),
                seconds: *start,
                requests: counts[0],
                ram: of(ContentTier::Ram),
                disk: of(ContentTier::Disk),
                site: has_site.then(|| of(ContentTier::Site)),
                network: of(ContentTier::Network),
            }
        };
        Self {
            interval_seconds: rate.interval_seconds,
            // A log of a moment has no rate.
            mean_per_second: rounded(summary.requests as f64 / seconds.max(1.0)),
            peak_per_second: rounded(peak as f64 / length),
            peak_at: rfc3339_of_seconds(peak_at),
            intervals: rate.intervals.iter().map(interval).collect(),
        }
    }
}

impl RootsView {
    fn of(summary: &Summary, top: usize) -> Self {
        let (distinct, exact) = summary.distinct_roots.estimate();
        let (counts, requests) = (summary.roots.counts(), summary.roots.total());
        // Counters are exact as long as they suffice.
        let (distinct, exact) =
            if summary.roots.error_max() == 0 { (summary.roots.len() as u64, true) } else { (distinct, exact) };
        let hundredth = usize::try_from(distinct / 100).unwrap_or(usize::MAX);
        let most: u64 = counts.iter().take(hundredth).sum();
        Self {
            distinct,
            exact,
            requests,
            count_error_max: summary.roots.error_max(),
            top_percent_share: (hundredth > 0).then(|| rounded(part(most, requests))),
            top: shares(summary.roots.top(top), requests),
            popularity: ranks(counts.len()).map(|rank| (rank as u64, counts[rank - 1])).collect(),
        }
    }
}

/// Ranks up to the last one, at even distances on a logarithmic scale.
fn ranks(last: usize) -> impl Iterator<Item = usize> {
    let mut before = 0;
    let rank = |step: u32| 10_f64.powf(f64::from(step) / RANKS_PER_DECADE).round() as usize;
    let most = if last == 0 { 0 } else { (last as f64).log10().mul_add(RANKS_PER_DECADE, 2.0) as u32 };
    (0..most).map(move |step| rank(step).min(last)).filter(move |rank| {
        let is_new = *rank > before;
        before = *rank;
        is_new
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_even_distances_and_both_ends() {
        for last in [1, 2, 9, 10, 11, 274_000] {
            let all: Vec<usize> = ranks(last).collect();
            assert!(all.first() == Some(&1) && all.last() == Some(&last), "{last}: {all:?}");
            assert!(all.windows(2).all(|pair| pair[0] < pair[1]) && all.len() < 70);
        }
        assert_eq!(ranks(0).count(), 0);
    }
}
