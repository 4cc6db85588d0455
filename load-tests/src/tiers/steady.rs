//! The load of the largest public gateway, in an open loop: so many requests a second whatever the server does, over
//! persistent connections ([`crate::trace::replay`]).

use super::Options;
use super::world::{Content, File, World};
use crate::comparison::{Case, Measure, Series, System, Turn};
use crate::random::SplitMix;
use crate::report::millis;
use crate::servers::Server;
use crate::timed;
use crate::trace::figures::Replayed;
use crate::trace::replay::{Schedule, Scheduled, Target, replay};
use crate::zipf::Zipf;
use anyhow::{Context, Result, ensure};
use std::time::Duration;

/// Names of sizes, their bytes, and how many of a thousand requests are for one of them: 73 KB on average.
const SIZES: [(&str, u64, u64); 6] = [
    ("1 KiB", 1 << 10, 50),
    ("4 KiB", 4 << 10, 190),
    ("16 KiB", 16 << 10, 346),
    ("64 KiB", 64 << 10, 294),
    ("256 KiB", 256 << 10, 100),
    ("1 MiB", 1 << 20, 20),
];
/// Of each size.
const FILES: usize = 100;
/// For a response.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// The least share of the rate that counts as sustained: responses in flight when the last request is sent arrive
/// later.
const SUSTAINED: f64 = 0.99;

/// Causeway under the load, and nginx as a check of what the generator and the machine can do.
pub async fn load(options: &Options) -> Result<Vec<Case>> {
    let files = if options.run.quick { 5 } else { FILES };
    let sizes = SIZES.iter().flat_map(|(_, bytes, _)| std::iter::repeat_n(*bytes, files));
    let content = Content::make(options.seed, sizes)?;
    let world = World::start(options, &content).await?;
    world.warm(&content).await?;
    let requests = draw_requests(options.seed, files, options.load_rate, Duration::from_secs(options.load_seconds));
    let ours = Sent::measure(options, &world.causeway.server, System::Causeway, &content, requests.clone()).await?;
    let theirs = Sent::measure(options, &world.nginx, System::NginxCache, &content, requests).await?;

    let series = [&ours, &theirs].map(|sent| Series { system: sent.system, turns: vec![sent.turn()] }).to_vec();
    let (rate, seconds) = (options.load_rate, options.load_seconds);
    let name = format!("{rate:.0} requests/s at 73 KB mean, open loop, warm, {seconds} s");
    let p99 = ours.replayed.all.last_byte.p99.as_secs_f64() * 1e3;
    let sizes = SIZES.map(|(name, _, share)| format!("{name} {:.1} %", share as f64 / 10.0));
    let sustained = format!("sustained ({SUSTAINED})");
    let case = Case::new(name, "requests/s", series)
        .measure(Measure::higher(ours.sustained(), "of the rate sustained").bar(sustained, SUSTAINED))
        .measure(Measure::higher(ours.complete(), "of the requests answered").bar("all", 1.0))
        .measure(Measure::lower(p99, "ms, 99th percentile").bar("< 50 ms", 50.0).aim("< 10 ms", 10.0))
        .note(format!("sizes: {}; {files} files of each, by Zipf", sizes.join(", ")))
        .note(ours.note())
        .note(theirs.note());
    Ok(vec![case])
}

/// A load that was sent to a server.
struct Sent {
    system: System,
    replayed: Replayed,
    /// CPU time of the server, and of this process.
    cpu: [Duration; 2],
}

impl Sent {
    async fn measure(
        options: &Options,
        server: &Server,
        system: System,
        content: &Content,
        requests: Vec<Scheduled>,
    ) -> Result<Self> {
        let authority = server.url.strip_prefix("http://").with_context(|| server.url.clone())?.to_owned();
        let target =
            |File { path, object }: &File| Target { path: path.clone(), bytes: object.bytes, seed: object.seed };
        let targets = content.files.iter().map(target).collect();
        let connections = options.load_connections;
        let schedule = Schedule { authority, targets, requests, connections, timeout: REQUEST_TIMEOUT };
        let used = || Ok::<_, anyhow::Error>([server.process.cpu(), timed::own_cpu()?]);
        let before = used()?;
        let replayed = Replayed::of(&replay(schedule).await?);
        let after = used()?;
        ensure!(replayed.all.count > 0, "{system}: there was no response");
        let cpu = [0, 1].map(|process| after[process].saturating_sub(before[process]));
        let sent = Self { system, replayed, cpu };
        eprintln!("  {}", sent.note());
        Ok(sent)
    }

    /// The rate of complete responses as a share of the rate at which requests were due.
    fn sustained(&self) -> f64 {
        (self.replayed.answered_per_second / self.replayed.due_per_second).min(1.0)
    }

    /// The share of the requests that were answered with the right bytes.
    fn complete(&self) -> f64 {
        self.replayed.all.count as f64 / self.replayed.due.max(1) as f64
    }

    fn turn(&self) -> Turn {
        let Replayed { all, answered_per_second, .. } = &self.replayed;
        Turn {
            value: *answered_per_second,
            cpu_microseconds: self.cpu[0].as_secs_f64() * 1e6 / all.count.max(1) as f64,
            latency: Some(all.last_byte),
        }
    }

    fn note(&self) -> String {
        let Replayed { due, due_per_second, late, latest, statuses, wrong, failed, unsent, .. } = self.replayed;
        format!(
            "{}: {due} due at {due_per_second:.0}/s, {:.2} % answered, {:.3} of the rate sustained; {statuses} other \
             statuses, {wrong} wrong, {failed} failed, {unsent} unsent; {late} sent more than 10 ms late, at most {}; \
             CPU of the generator {:.1} s, of the server {:.1} s",
            self.system,
            self.complete() * 100.0,
            self.sustained(),
            millis(latest),
            self.cpu[1].as_secs_f64(),
            self.cpu[0].as_secs_f64(),
        )
    }
}

/// A Poisson process: a size by its share, and one of its files by Zipf.
fn draw_requests(seed: u64, files: usize, per_second: f64, duration: Duration) -> Vec<Scheduled> {
    let (zipf, mut random) = (Zipf::new(files), SplitMix::new(seed));
    let (mut due, mut requests) = (0.0, Vec::new());
    loop {
        due -= (1.0 - random.unit()).ln() / per_second;
        if due >= duration.as_secs_f64() {
            return requests;
        }
        let target = size(random.unit()) * files + zipf.draw(&mut random);
        requests.push(Scheduled { due: Duration::from_secs_f64(due), target: target as u32 });
    }
}

/// The index of the size that a number of at least 0 and below 1 stands for.
fn size(unit: f64) -> usize {
    let upto = |index: usize| SIZES[..=index].iter().map(|(.., share)| *share as f64).sum::<f64>() / 1000.0;
    (0..SIZES.len()).find(|index| unit < upto(*index)).unwrap_or(SIZES.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_mean_of_the_public_gateway() {
        let shares: u64 = SIZES.iter().map(|(.., share)| share).sum();
        let mean = SIZES.iter().map(|(_, bytes, share)| bytes * share).sum::<u64>() / shares;
        assert_eq!(shares, 1000);
        assert!((72_500..73_500).contains(&mean), "{mean}");
    }

    #[test]
    fn requests_come_at_the_rate_and_with_the_mean() {
        let requests = draw_requests(1, 100, 7100.0, Duration::from_secs(10));
        assert!((70_000..72_000).contains(&requests.len()), "{}", requests.len());
        assert!(requests.is_sorted_by_key(|request| request.due));
        let bytes = |request: &Scheduled| SIZES[request.target as usize / 100].1 as f64;
        let mean = requests.iter().map(bytes).sum::<f64>() / requests.len() as f64;
        assert!((71_000.0..75_000.0).contains(&mean), "{mean}");
        assert_eq!([size(0.0), size(0.0499), size(0.05), size(0.9999)], [0, 0, 1, 5]);
    }
}
