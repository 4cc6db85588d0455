//! A gateway of a site is killed under load, behind HAProxy: what the clients see of it.
//!
//! Goals: an open loop, so that requests that were due during a stall count; the shipped configuration of HAProxy;
//! figures for each second, as seen from the kill.
//!
//! How a figure is judged: any response with a status of 5xx counts, of a running gateway or of HAProxy. A response
//! that the killed gateway had begun is cut off, which no proxy can repair; such requests are counted beside the
//! others. The 99th percentile is back after the last second, as counted from the kill, in which it is more than
//! twice the median of the seconds before, by more than 10 ms, and more than in any of these seconds.

use super::Options;
use super::gateways::{Site, total};
use super::haproxy::HaProxy;
use crate::comparison::{Case, Measure, Series, System, Turn};
use crate::random::SplitMix;
use crate::report::millis;
use crate::stats::{Latency, median_duration};
use crate::tiers::world::{Content, File};
use crate::trace::replay::{Outcome, Record, Schedule, Scheduled, Target, replay};
use crate::zipf::Zipf;
use anyhow::{Context, Result, ensure};
use std::time::{Duration, Instant};

const GATEWAYS: usize = 3;
/// The one that is killed.
const KILLED: usize = 1;
const FILES: usize = 300;
const FILE_BYTES: u64 = 16 << 10;
const SEED: u64 = 23;
const CONNECTIONS: usize = 64;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// For HAProxy to find the gateways, and each to have served a request.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Of the beginning, which are not what is compared with.
const WARM_UP_SECONDS: u64 = 2;
/// What the 99th percentile may be above what it was, if twice as much is less.
const SLACK: Duration = Duration::from_millis(10);

pub async fn measure(options: &Options) -> Result<Vec<Case>> {
    let content = Content::make(SEED, std::iter::repeat_n(FILE_BYTES, FILES))?;
    let trusting = [("CAUSEWAY_HTTP_TRUSTED_PROXIES", "127.0.0.1")];
    let mut site = Site::start(options, GATEWAYS, &[], &trusting).await?;
    site.gateways[0].import(&content.archive())?;
    let urls: Vec<String> =
        site.gateways.iter().map(|gateway| gateway.server.url.trim_start_matches("http://").to_owned()).collect();
    let proxy = HaProxy::start(&urls.iter().map(String::as_str).collect::<Vec<_>>()).await?;
    warm_up(&proxy, &content, &site).await?;
    let (rate, seconds) = (options.rate(), options.kill_seconds());
    let schedule = Schedule {
        authority: proxy.authority.clone(),
        targets: content.files.iter().map(target).collect(),
        requests: requests(rate, seconds),
        connections: CONNECTIONS,
        timeout: REQUEST_TIMEOUT,
    };
    let begun = Instant::now();
    let (killed, records) = tokio::join!(kill_after(&mut site, Duration::from_secs(seconds) / 2), replay(schedule));
    let (killed, records) = (killed?.saturating_duration_since(begun), records?);
    eprintln!("  killed after {:.2} s", killed.as_secs_f64());
    Ok(vec![case(&Judged::of(&records, killed), rate, seconds)])
}

fn target(File { path, object }: &File) -> Target {
    Target { path: path.clone(), bytes: object.bytes, seed: object.seed }
}

/// Requests every file through HAProxy, until all gateways serve.
async fn warm_up(proxy: &HaProxy, content: &Content, site: &Site) -> Result<()> {
    let (client, begun) = (crate::http::Client::new()?, Instant::now());
    loop {
        for file in &content.files {
            let response = client.request(&format!("http://{}{}", proxy.authority, file.path), &[]).await?;
            // Before HAProxy has found a gateway.
            if response.status != 503 {
                response.of_status(200)?.of_content(&file.content()?)?;
            }
        }
        let mut served = Vec::new();
        for gateway in &site.gateways {
            served.push(total(gateway, "causeway_http_requests_total").await?);
        }
        if served.iter().all(|count| *count > 0.0) {
            return Ok(());
        }
        ensure!(begun.elapsed() < READY_TIMEOUT, "not all gateways serve: {served:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Evenly spaced, by Zipf.
fn requests(rate: u64, seconds: u64) -> Vec<Scheduled> {
    let (zipf, mut random) = (Zipf::new(FILES), SplitMix::new(SEED));
    let due = |number| Duration::from_secs_f64(number as f64 / rate as f64);
    (0..rate * seconds).map(|number| Scheduled { due: due(number), target: zipf.draw(&mut random) as u32 }).collect()
}

async fn kill_after(site: &mut Site, wait: Duration) -> Result<Instant> {
    tokio::time::sleep(wait).await;
    site.gateways.get_mut(KILLED).context("no gateway to kill")?.server.process.kill()?;
    Ok(Instant::now())
}

/// What became of the requests.
#[derive(Debug)]
struct Judged {
    server_errors: usize,
    other_statuses: usize,
    /// Without a response, or without all of it.
    broken: usize,
    answered: usize,
    /// Before the kill: the median of the seconds' 99th percentiles.
    p99_before: Duration,
    p99_before_max: Duration,
    /// By second, from the kill.
    p99: Vec<(i64, Duration)>,
    latency: Latency,
}

impl Judged {
    /// Of the records of a replay, with the time of the kill in it.
    fn of(records: &[Record], killed: Duration) -> Self {
        let count = |of: fn(Outcome) -> bool| records.iter().filter(|record| of(record.outcome)).count();
        let second = |record: &Record| {
            let from_kill = record.due.as_secs_f64() - killed.as_secs_f64();
            from_kill.floor() as i64
        };
        let latency = |record: &Record| record.last_byte.saturating_sub(record.due);
        let mut seconds: Vec<i64> = records.iter().map(second).collect();
        seconds.dedup();
        let p99 = |at: i64| Latency::of(records.iter().filter(|record| second(record) == at).map(latency)).p99;
        let p99: Vec<(i64, Duration)> = seconds.into_iter().map(|at| (at, p99(at))).collect();
        let is_before = |at: i64| at < 0 && killed.as_secs_f64() + at as f64 >= WARM_UP_SECONDS as f64;
        let before = || p99.iter().filter(|(at, _)| is_before(*at)).map(|(_, p99)| *p99);
        Self {
            server_errors: count(|outcome| matches!(outcome, Outcome::Status(500..))),
            other_statuses: count(|outcome| matches!(outcome, Outcome::Status(..500))),
            broken: count(|outcome| matches!(outcome, Outcome::Failed | Outcome::Wrong | Outcome::Unsent)),
            answered: count(|outcome| outcome == Outcome::Complete),
            p99_before: median_duration(before()),
            p99_before_max: before().max().unwrap_or_default(),
            p99,
            latency: Latency::of(records.iter().map(latency)),
        }
    }

    /// Whole seconds from the kill until the 99th percentile is back for good; not a number if it is not in the end.
    fn seconds_until_back(&self) -> f64 {
        let limit = (self.p99_before * 2).max(self.p99_before + SLACK).max(self.p99_before_max);
        let after = || self.p99.iter().filter(|(at, _)| *at >= 0);
        let worse = after().filter(|(_, p99)| *p99 > limit).map(|(at, _)| *at).next_back();
        match (worse, after().next_back()) {
            (_, None) => f64::NAN,
            (Some(worse), Some((end, _))) if worse == *end => f64::NAN,
            (worse, _) => worse.map_or(0.0, |at| at as f64 + 1.0),
        }
    }

    fn note(&self) -> String {
        let near = self.p99.iter().filter(|(at, _)| (-5..10).contains(at));
        let near: Vec<String> = near.map(|(at, p99)| format!("{at:+} s: {}", millis(*p99))).collect();
        format!(
            "99th percentile in each second from the kill: {}; the median of the seconds before is {}. A request \
             counts in the second in which it was due",
            near.join(", "),
            millis(self.p99_before)
        )
    }
}

fn case(judged: &Judged, rate: u64, seconds: u64) -> Case {
    let answered = judged.answered as f64 / seconds as f64;
    let mut series = Series::new(System::Causeway);
    series.push(0, Turn { latency: Some(judged.latency), ..Turn::from(answered) });
    let Judged { broken, other_statuses, .. } = judged;
    let name = format!("a gateway of {GATEWAYS} is killed at {rate} requests/s behind HAProxy");
    Case::new(name, "requests/s", vec![series])
        .measure(Measure::lower(judged.server_errors as f64, "responses with 5xx").bar("none", 0.5))
        .measure(
            Measure::lower(judged.seconds_until_back(), "s until the 99th percentile is back").bar("within 1 s", 1.5),
        )
        .note(judged.note())
        .note(format!("{broken} requests without a complete response, {other_statuses} with other statuses"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED_AT: Duration = Duration::from_millis(5_500);

    /// Ten requests a second for ten seconds, whose latency and outcome depend on the time from the kill in seconds.
    fn records(of: impl Fn(f64) -> (u64, Outcome)) -> Vec<Record> {
        let record = |index: usize| {
            let due = Duration::from_millis(index as u64 * 100);
            let (latency, outcome) = of(due.as_secs_f64() - KILLED_AT.as_secs_f64());
            let last_byte = due + Duration::from_millis(latency);
            Record { index, due, sent: due, first_byte: last_byte, last_byte, bytes: 0, outcome, tier: None }
        };
        (0..100).map(record).collect()
    }

    #[test]
    fn seconds_are_counted_from_the_kill() {
        let judged = Judged::of(
            &records(|at| match at {
                // The first seconds, which do not count.
                ..-4.0 => (900, Outcome::Complete),
                ..0.0 => (20, Outcome::Complete),
                ..0.25 => (25, Outcome::Failed),
                ..1.0 => (500, Outcome::Status(503)),
                ..2.0 => (39, Outcome::Complete),
                ..3.0 => (41, Outcome::Complete),
                _ => (20, Outcome::Complete),
            }),
            KILLED_AT,
        );
        assert_eq!(judged.p99_before, Duration::from_millis(20));
        assert_eq!((judged.server_errors, judged.broken, judged.other_statuses), (7, 3, 0));
        // It was back in the second second, and not in the third.
        assert_eq!(judged.seconds_until_back(), 3.0);
        let at = |second: i64| judged.p99.iter().find(|(at, _)| *at == second).map(|(_, p99)| p99.as_millis());
        assert_eq!([-1, 0, 1].map(at), [Some(20), Some(500), Some(39)]);
        let case = case(&judged, 10, 10);
        let met: Vec<_> = case.measures.iter().filter_map(|measure| Some(measure.bar.as_ref()?.met)).collect();
        assert_eq!(met, [false, false]);
    }

    #[test]
    fn what_does_not_come_back_is_no_number() {
        let judged = Judged::of(&records(|at| (if at < 0.0 { 20 } else { 41 }, Outcome::Complete)), KILLED_AT);
        assert!(judged.seconds_until_back().is_nan(), "{judged:?}");
        let judged = Judged::of(&records(|_| (1, Outcome::Status(404))), KILLED_AT);
        assert_eq!((judged.seconds_until_back(), judged.other_statuses), (0.0, 100));
        assert!(Judged::of(&[], KILLED_AT).seconds_until_back().is_nan());
    }

    #[test]
    fn requests_are_evenly_spaced() {
        let requests = requests(100, 2);
        assert_eq!((requests.len(), requests[50].due), (200, Duration::from_millis(500)));
        assert!(requests.iter().all(|request| (request.target as usize) < FILES));
    }
}
