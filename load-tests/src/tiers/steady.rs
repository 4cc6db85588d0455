//! The load of the largest public gateway, in an open loop: so many requests a second whatever the server does, over connections
//! that are kept ([`crate::trace::replay`]).

use super::Options;
use super::figures::{Case, Measure, Series, Turn, Who};
use super::world::{Content, World};
use crate::sample::SplitMix;
use crate::servers::Server;
use crate::timed;
use crate::trace::figures::Replayed;
use crate::trace::replay::{Script, Shot, Target, replay};
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
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(20);
/// The least share of the rate that counts as sustained: what is under way when the last request is sent comes later.
const SUSTAINED: f64 = 0.99;

/// Causeway under the load, and nginx as a check of what the generator and the machine can do.
pub async fn load(options: &Options) -> Result<Vec<Case>> {
    let files = options.load_files();
    let sizes = SIZES.iter().flat_map(|(_, bytes, _)| std::iter::repeat_n(*bytes, files));
    let content = Content::make(options.seed, sizes)?;
    let world = World::start(options, &content).await?;
    world.warm(&content).await?;
    let shots = shots(options.seed, files, options.load_rate(), options.load_duration());
    let ours = sent(options, &world.causeway.server, Who::Causeway, &content, shots.clone()).await?;
    let theirs = sent(options, &world.nginx, Who::NginxCache, &content, shots).await?;

    let of = |(who, sent): (Who, &Sent)| Series { who, turns: vec![sent.turn()] };
    let series = [(Who::Causeway, &ours), (Who::NginxCache, &theirs)].map(of).to_vec();
    let (rate, seconds) = (options.load_rate(), options.load_duration().as_secs());
    let name = format!("{rate:.0} requests/s at 73 KB mean, open loop, warm, {seconds} s");
    let mut case = Case::new(name, "requests/s", series);
    let p99 = ours.replayed.all.last_byte.p99.as_secs_f64() * 1e3;
    case.measures = vec![
        Measure::of(ours.sustained(), "of the rate sustained").bar(format!("sustained ({SUSTAINED})"), SUSTAINED),
        Measure::of(ours.answered(), "of the requests answered").bar("all", 1.0),
        Measure::below(p99, "ms, 99th percentile").bar("< 50 ms", 50.0).aim("< 10 ms", 10.0),
    ];
    let sizes = SIZES.map(|(name, _, share)| format!("{name} {:.1} %", share as f64 / 10.0));
    case.notes.push(format!("sizes: {}; {files} files of each, by Zipf", sizes.join(", ")));
    case.notes.extend([(Who::Causeway, ours), (Who::NginxCache, theirs)].map(|(who, sent)| sent.note(who)));
    Ok(vec![case])
}

/// What came of a load.
struct Sent {
    replayed: Replayed,
    /// CPU time that the server used, and this process.
    cpu: [Duration; 2],
}

impl Sent {
    /// The share of the rate at which requests were due, at which they were answered.
    fn sustained(&self) -> f64 {
        (self.replayed.answered_per_second / self.replayed.due_per_second).min(1.0)
    }

    /// The share of the requests that were answered with the right bytes.
    fn answered(&self) -> f64 {
        self.replayed.all.count as f64 / self.replayed.due.max(1) as f64
    }

    fn turn(&self) -> Turn {
        let Replayed { all, answered_per_second, .. } = &self.replayed;
        Turn {
            rate: *answered_per_second,
            cpu_microseconds: self.cpu[0].as_secs_f64() * 1e6 / all.count.max(1) as f64,
            latency: Some([all.last_byte.median, all.last_byte.p99]),
        }
    }

    fn note(&self, who: Who) -> String {
        let Replayed { due, due_per_second, late, latest, statuses, wrong, failed, unsent, .. } = self.replayed;
        format!(
            "{who}: {due} due at {due_per_second:.0}/s, {:.2} % answered, {:.3} of the rate sustained; {statuses} other statuses, \
             {wrong} wrong, {failed} failed, {unsent} unsent; {late} sent more than 10 ms late, at most {:.1} ms; CPU of the generator \
             {:.1} s, of the server {:.1} s",
            self.answered() * 100.0,
            self.sustained(),
            latest.as_secs_f64() * 1e3,
            self.cpu[1].as_secs_f64(),
            self.cpu[0].as_secs_f64(),
        )
    }
}

async fn sent(options: &Options, server: &Server, who: Who, content: &Content, shots: Vec<Shot>) -> Result<Sent> {
    let authority = server.url.strip_prefix("http://").with_context(|| server.url.clone())?.to_owned();
    let target = |file: &super::world::File| Target {
        path: file.path.clone(),
        bytes: file.object.bytes,
        seed: file.object.seed,
    };
    let targets = content.files.iter().map(target).collect();
    let script = Script { authority, targets, shots, connections: options.load_connections, patience: PATIENCE };
    let used = || Ok::<_, anyhow::Error>([server.process.cpu(), timed::own_cpu()?]);
    let before = used()?;
    let replayed = Replayed::of(&replay(script).await?);
    let after = used()?;
    ensure!(replayed.all.count > 0, "{who}: nothing was answered");
    let cpu = [0, 1].map(|whose| after[whose].saturating_sub(before[whose]));
    let sent = Sent { replayed, cpu };
    eprintln!("  {}", sent.note(who));
    Ok(sent)
}

/// Requests that come by chance (a Poisson process): a size by its share, and one of its files by Zipf.
fn shots(seed: u64, files: usize, per_second: f64, duration: Duration) -> Vec<Shot> {
    let (zipf, mut random) = (Zipf::new(files), SplitMix::new(seed));
    let (mut due, mut shots) = (0.0, Vec::new());
    loop {
        due -= (1.0 - random.unit()).ln() / per_second;
        if due >= duration.as_secs_f64() {
            return shots;
        }
        let target = size(random.unit()) * files + zipf.draw(&mut random);
        shots.push(Shot { due: Duration::from_secs_f64(due), target: target as u32 });
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
        let shots = shots(1, 100, 7100.0, Duration::from_secs(10));
        assert!((70_000..72_000).contains(&shots.len()), "{}", shots.len());
        assert!(shots.is_sorted_by_key(|shot| shot.due));
        let bytes = |shot: &Shot| SIZES[shot.target as usize / 100].1 as f64;
        let mean = shots.iter().map(bytes).sum::<f64>() / shots.len() as f64;
        assert!((71_000.0..75_000.0).contains(&mean), "{mean}");
        assert_eq!([size(0.0), size(0.0499), size(0.05), size(0.9999)], [0, 0, 1, 5]);
    }
}
