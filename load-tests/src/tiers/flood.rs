//! Hits during a flood of misses: several clients request content that no peer has, as fast as they are let, while an
//! open loop requests a file that is in memory.
//!
//! The flood is sent from addresses of its own, so that the limits of one client do not end it. A client that is
//! rejected pauses for a moment, because otherwise the generator takes the processor that it shares with the server.
//! For the same reason the flood, and the DHT nodes that answer its searches, run on threads of a lower priority: on
//! the machines that they stand for, they would not delay the client whose hits are measured. A nice value does not
//! suffice for that: a thread that is scheduled keeps its processor until the end of its slice, which the kernel may
//! notice only at the next tick (4 ms at 250 Hz), and most of the longest waits of the server's threads were for these.
//! A thread of the policy `SCHED_IDLE` is preempted at once.

use super::Options;
use super::world::Content;
use crate::comparison::{self, Case, Measure, System, Turn};
use crate::network::dht::Dht;
use crate::relay::Link;
use crate::report::{millis, number};
use crate::sample;
use crate::servers::{Causeway, Setup};
use crate::stats::Latency;
use crate::trace::figures::Replayed;
use crate::trace::replay::{Schedule, Scheduled, Target, replay};
use anyhow::{Context, Result, ensure};
use content::hashes::SHA2_256;
use content::{Block, codec};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinSet;

/// Of the hit, and how often it is requested per second.
const HIT_BYTES: u64 = 4096;
const HITS_PER_SECOND: u32 = 500;
const CONNECTIONS: usize = 32;
/// Nodes of the DHT in which the misses are searched.
const DHT_NODES: usize = 5;
/// Clients that flood, and the requests that each has under way: more than `http.client_misses_max`.
const FLOODERS: u8 = 8;
const MISSES: usize = 160;
/// After a rejection; each request of a client pauses for another multiple of it, up to twice as long, because clients
/// keep no common time.
const PAUSE: Duration = Duration::from_millis(250);
/// How long the gateway searches for a miss, in seconds: short, so that many searches begin.
const SEARCH_SECONDS: &str = "2";
/// The first requests of a client are spread over this time.
const SPREAD: Duration = Duration::from_secs(2);
/// Between the begin of the flood and the first measured hit, at least.
const RISE: Duration = Duration::from_secs(3);
/// The flood has few of the processors beside other load, so that its first search may end later.
const RISE_MAX: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(20);
/// What is added to the nice value of the flood's threads.
const NICE: i32 = 10;

/// The 99th percentile of hits with and without the flood, by turns.
pub async fn misses(options: &Options) -> Result<Vec<Case>> {
    let content = Content::make(options.seed, std::iter::once(HIT_BYTES))?;
    let others = Others::start()?;
    let link = Link::delay(Duration::from_millis(10));
    let dht = others.handle().spawn(Dht::start(DHT_NODES, link)).await??;
    let archive = content.archive();
    let bootstrap = dht.addresses.first().map(String::as_str);
    let settings = [("CAUSEWAY_HTTP_STALL_TIMEOUT_SECONDS", SEARCH_SECONDS)];
    let (archive, flags) = (Some(archive.as_path()), options.flags.get());
    let setup = Setup { archive, bootstrap, flags, settings: &settings, ..Setup::default() };
    let causeway = Causeway::start(&options.binaries.causeway, setup).await?;
    let (mut quiet, mut flooded) = (Vec::new(), Vec::new());
    let (mut searched, mut rejected, mut flooded_cpu) = (0, 0, Duration::ZERO);
    let systems = [System::Causeway, System::Flooded];
    let series = comparison::rounds(options.run.rounds(), &systems, async |system, round| {
        if system == System::Causeway {
            let latency = hits(options, &causeway, &content).await?;
            quiet.push(latency);
            return Ok(turn(latency));
        }
        let cpu = causeway.server.process.cpu();
        let flood = Flood::start(others.handle(), &causeway.server.url, options.seed << 8 | round as u64)?;
        flood.rise().await?;
        let latency = hits(options, &causeway, &content).await?;
        let [answered, refused] = flood.end();
        flooded_cpu += causeway.server.process.cpu().saturating_sub(cpu);
        (searched, rejected) = (searched + answered, rejected + refused);
        flooded.push(latency);
        Ok(turn(latency))
    })
    .await?;
    let case = Case::new(
        format!("hits of 4 KiB, {HITS_PER_SECOND} a second, with and without a flood of misses"),
        "ms, 99th percentile",
        series,
    );
    let ratio = case.value(System::Flooded) / case.value(System::Causeway);
    let note = format!(
        "{FLOODERS} clients with {MISSES} requests each; {} of them were searched for {SEARCH_SECONDS} s in vain, {} \
         rejected at once; {:.1} ms of the server's CPU for each search, hits included; medians of hits: {} quiet, {} \
         flooded",
        number(searched as f64),
        number(rejected as f64),
        flooded_cpu.as_secs_f64() * 1e3 / searched as f64,
        medians(&quiet),
        medians(&flooded),
    );
    Ok(vec![case.measure(Measure::lower(ratio, "× the quiet 99th percentile").bar("< 2 ×", 2.0)).note(note)])
}

fn turn(latency: Latency) -> Turn {
    let value = latency.p99.as_secs_f64() * 1e3;
    Turn { value, cpu_microseconds: f64::NAN, latency: Some(latency) }
}

fn medians(latencies: &[Latency]) -> String {
    latencies.iter().map(|latency| millis(latency.median)).collect::<Vec<_>>().join(", ")
}

/// Requests the file in an open loop.
async fn hits(options: &Options, causeway: &Causeway, content: &Content) -> Result<Latency> {
    let authority = causeway.server.url.strip_prefix("http://").context("no http URL")?.to_owned();
    let file = content.files.first().context("no file was made")?;
    let targets = vec![Target { path: file.path.clone(), bytes: file.object.bytes, seed: file.object.seed }];
    let count = u32::try_from(options.seconds)? * HITS_PER_SECOND;
    let due = |index: u32| Scheduled { due: Duration::from_secs(1) / HITS_PER_SECOND * index, target: 0 };
    let requests = (0..count).map(due).collect();
    let schedule = Schedule { authority, targets, requests, connections: CONNECTIONS, timeout: TIMEOUT };
    let replayed = Replayed::of(&replay(schedule).await?);
    ensure!(replayed.all.count == replayed.due, "{} of {} hits were answered", replayed.all.count, replayed.due);
    Ok(replayed.all.last_byte)
}

/// The threads of the flood and of the DHT, which give way to the client whose hits are measured.
struct Others {
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    handle: Handle,
}

impl Others {
    fn start() -> io::Result<Self> {
        let give_way = || {
            // Without it the figures are worse, and not wrong.
            let _ = rustix::process::nice(NICE);
            let _ = become_idle();
        };
        let runtime =
            Builder::new_multi_thread().enable_all().thread_name("others").on_thread_start(give_way).build()?;
        let handle = runtime.handle().clone();
        Ok(Self { runtime: Some(runtime), handle })
    }

    fn handle(&self) -> &Handle {
        &self.handle
    }
}

/// Gives the calling thread the policy `SCHED_IDLE`.
fn become_idle() -> io::Result<()> {
    // PID/task/TID
    let thread = std::fs::read_link("/proc/thread-self")?;
    let id = thread.file_name().ok_or(io::ErrorKind::NotFound)?;
    Command::new("chrt").args(["--idle", "--pid", "0"]).arg(id).output()?;
    Ok(())
}

impl Drop for Others {
    fn drop(&mut self) {
        // Waiting for the threads is not allowed on a runtime.
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// Requests for content that no peer has. They end when this is dropped.
struct Flood {
    /// Requests that were answered after a search, and those that were rejected.
    counts: Arc<[AtomicU64; 2]>,
    tasks: JoinSet<Result<()>>,
}

impl Flood {
    fn start(threads: &Handle, url: &str, seed: u64) -> Result<Self> {
        let (counts, mut tasks) = (Arc::<[AtomicU64; 2]>::default(), JoinSet::new());
        for flooder in 0..FLOODERS {
            let from = IpAddr::from(Ipv4Addr::new(127, 0, 0, 2 + flooder));
            let client = reqwest::Client::builder().no_proxy().local_address(from).build()?;
            for number in 0..MISSES {
                let (client, url, counts) = (client.clone(), url.to_owned(), Arc::clone(&counts));
                let seed = seed << 32 | u64::from(flooder) << 24 | number as u64;
                let share = number as f64 / MISSES as f64;
                let misses = miss_after_miss(client, url, seed, PAUSE.mul_f64(1.0 + share), counts);
                let spread = async move {
                    tokio::time::sleep(SPREAD.mul_f64(share)).await;
                    misses.await
                };
                tasks.spawn_on(spread, threads);
            }
        }
        Ok(Self { counts, tasks })
    }

    /// Waits until misses are searched for.
    async fn rise(&self) -> Result<()> {
        tokio::time::sleep(RISE).await;
        let searched = async {
            while self.counts[0].load(Ordering::Relaxed) == 0 {
                tokio::time::sleep(RISE / 60).await;
            }
        };
        tokio::time::timeout(RISE_MAX, searched).await.context("no miss was searched for")
    }

    fn end(mut self) -> [u64; 2] {
        self.tasks.abort_all();
        [0, 1].map(|index| self.counts[index].load(Ordering::Relaxed))
    }
}

/// Requests one missing block after the other, with a pause after a rejection.
async fn miss_after_miss(
    client: reqwest::Client,
    url: String,
    seed: u64,
    pause: Duration,
    counts: Arc<[AtomicU64; 2]>,
) -> Result<()> {
    for number in 0_u64.. {
        let block = Block::of(codec::RAW, SHA2_256, 32, sample::bytes(16, seed.wrapping_add(number << 48)).into())?;
        // A broken connection is replaced with a new one.
        match client.get(format!("{url}/ipfs/{}", block.cid())).send().await {
            Ok(response) if response.status().as_u16() != 429 => _ = counts[0].fetch_add(1, Ordering::Relaxed),
            _ => {
                counts[1].fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(pause).await;
            }
        }
    }
    Ok(())
}
