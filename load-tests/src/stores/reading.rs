//! Reading: a large file from its beginning to its end by one process, and single blocks in random order through a server.
//!
//! Before each, the operating system is told to forget the store's files, so that what is read comes from the disk; what a store
//! keeps in memory by itself is its own, and Causeway's memory tier is as small as it can be. A store that dies with its process
//! is filled through the network first, and only its server is asked.

use super::Options;
use super::adding;
use super::data::{BLOCK_BYTES, Had, Maker, Set, Stretch, size};
use super::figures::{Cost, Reading, Reads};
use super::store::{Node, Participant};
use crate::archive::{self, importer};
use crate::folder::forget;
use crate::median::median_duration;
use crate::sample;
use crate::servers::{self, Server};
use crate::timed;
use anyhow::{Context, Result, ensure};
use content::{Block, Cid, codec};
use std::path::Path;
use std::time::{Duration, Instant};

/// Of the large file.
const BLOCKS: usize = 512;
const SMALL_BYTES: usize = 1 << 10;
const SMALL_FILES: usize = 2000;
/// What the large file is called, after all the small ones.
const LARGE: &str = "zzz";

/// What is read, for people.
pub fn about(options: &Options) -> String {
    let (blocks, small) = (options.count(BLOCKS), options.count(SMALL_FILES));
    format!("one file of {blocks} blocks of {}, and {small} files of {}", size(BLOCK_BYTES), size(SMALL_BYTES))
}

/// Bytes of the large file.
pub fn large_bytes(options: &Options) -> u64 {
    (options.count(BLOCKS) * BLOCK_BYTES) as u64
}

/// Content to be read: the folder, and every block of it with its bytes.
struct Content {
    set: Set,
    blocks: Vec<(Cid, Stretch)>,
    small: Vec<(Cid, Stretch)>,
}

impl Content {
    fn make(options: &Options, dir: &Path) -> Result<Self> {
        // No question of adding has this seed.
        let mut maker = Maker::new(dir, (1 << 28) + options.seed);
        let mut stretches = |bytes: usize, count: usize| -> Result<Vec<(Cid, Stretch)>> {
            let stretch = |_| maker.stretch(bytes);
            let all = (0..options.count(count)).map(stretch);
            all.map(|stretch| Ok((cid(&stretch.content())?, stretch))).collect()
        };
        let (blocks, small) = (stretches(BLOCK_BYTES, BLOCKS)?, stretches(SMALL_BYTES, SMALL_FILES)?);
        let files: Vec<Vec<Stretch>> = small.iter().map(|(_, stretch)| vec![*stretch]).collect();
        let set = maker.folder("reading", &files, &mut Had::new())?;
        let large: Vec<u8> = blocks.iter().flat_map(|(_, stretch)| stretch.content()).collect();
        std::fs::write(set.folder.join(LARGE), large)?;
        Ok(Self { set, blocks, small })
    }
}

/// What a leaf of these bytes is called.
fn cid(bytes: &[u8]) -> Result<Cid> {
    let part = archive::file(&importer()?, bytes, &mut |_: Block| Ok(()))?;
    ensure!(part.cid.codec() == codec::RAW, "a block is longer than a leaf");
    Ok(part.cid)
}

/// Every store, one after the other.
pub async fn measure(options: &Options, participants: &[Participant]) -> Result<Vec<Reading>> {
    eprintln!("reading");
    let dir = servers::folder("data")?;
    let content = Content::make(options, dir.path())?;
    let mut all = Vec::new();
    for participant in participants {
        let reading = if participant.forgets() {
            forgetful(options, participants, *participant, &content).await
        } else {
            lasting(options, *participant, &content).await
        };
        all.push(reading.with_context(|| participant.name)?);
    }
    Ok(all)
}

async fn lasting(options: &Options, participant: Participant, content: &Content) -> Result<Reading> {
    let store = participant.fresh(options)?;
    let (_, root) = adding::add(&store, &content.set)?;
    let mut whole = Vec::new();
    for _ in 0..options.run.rounds() {
        forget(store.path())?;
        let ran = timed::run_unheard(&mut store.cat(&format!("/ipfs/{root}/{LARGE}")))?;
        eprintln!("  {} whole: {:.0} ms", participant.name, ran.wall.as_secs_f64() * 1e3);
        whole.push(Cost::of(&ran, 0));
    }
    let path = store.path().to_owned();
    forget(&path)?;
    let node = store.serve().await?;
    let blocks = random(options, participant, &node, &content.blocks).await?;
    forget(&path)?;
    let small = random(options, participant, &node, &content.small).await?;
    Ok(Reading { whole, blocks: Some(blocks), small: Some(small), notes: Vec::new() })
}

/// A store that dies with its process: filled from the first of Causeway's that does not.
async fn forgetful(
    options: &Options,
    participants: &[Participant],
    participant: Participant,
    content: &Content,
) -> Result<Reading> {
    let mut notes = vec![format!(
        "`{}` dies with its process: no other process can read what one has added, and its server was filled through the network",
        participant.name
    )];
    let lasting = participants.iter().find(|one| one.is_causeway() && !one.forgets());
    let Some(lasting) = lasting else {
        notes.push("there was no other store to fill it from".to_owned());
        return Ok(Reading { notes, ..Reading::default() });
    };
    let source = lasting.fresh(options)?;
    let (_, root) = adding::add(&source, &content.set)?;
    let (node, running) = participant.fresh(options)?.serve_behind(&source).await?;
    let client = client()?;
    let files = (0..content.set.files).map(|file| format!("{file:06}")).chain([LARGE.to_owned()]);
    for file in files {
        get(&client, &format!("{}/ipfs/{root}/{file}", node.server().url)).await?;
    }
    drop(running);
    let blocks = random(options, participant, &node, &content.blocks).await?;
    let small = random(options, participant, &node, &content.small).await?;
    Ok(Reading { blocks: Some(blocks), small: Some(small), notes, ..Reading::default() })
}

/// Every block once, in an order from the seed, each of them checked.
async fn random(options: &Options, participant: Participant, node: &Node, blocks: &[(Cid, Stretch)]) -> Result<Reads> {
    let server: &Server = node.server();
    let client = client()?;
    // The connection, and what a server makes when it is first asked.
    let identity = "bafkqac3imvwgy3zao5xxe3de";
    get(&client, &format!("{}/ipfs/{identity}?format=raw", server.url)).await?;
    let mut order: Vec<&(Cid, Stretch)> = blocks.iter().collect();
    sample::shuffle(&mut order, options.seed);
    let mut times = Vec::with_capacity(order.len());
    let cpu = server.process.cpu();
    for (cid, stretch) in order {
        let begun = Instant::now();
        let bytes = get(&client, &format!("{}/ipfs/{cid}?format=raw", server.url)).await?;
        times.push(begun.elapsed());
        ensure!(bytes == stretch.content(), "{}: wrong bytes of {cid}", participant.name);
    }
    let cpu = server.process.cpu().saturating_sub(cpu);
    let reads = reads(times, cpu);
    let micros = |duration: Duration| duration.as_secs_f64() * 1e6;
    eprintln!("  {} random: median {:.0} µs, p99 {:.0} µs", participant.name, micros(reads.median), micros(reads.p99));
    Ok(reads)
}

fn reads(mut times: Vec<Duration>, cpu: Duration) -> Reads {
    times.sort();
    let rank = (times.len() * 99).div_ceil(100).saturating_sub(1);
    Reads {
        count: times.len(),
        p99: times.get(rank).copied().unwrap_or_default(),
        cpu_microseconds: cpu.as_secs_f64() * 1e6 / times.len().max(1) as f64,
        median: median_duration(times.into_iter()),
    }
}

fn client() -> Result<reqwest::Client> {
    Ok(reqwest::Client::builder().no_proxy().build()?)
}

async fn get(client: &reqwest::Client, url: &str) -> Result<bytes::Bytes> {
    let response = client.get(url).send().await?;
    ensure!(response.status() == 200, "{url}: {}", response.status());
    Ok(response.bytes().await?)
}

#[test]
fn reads_are_summed_up() {
    let times = (1..=200).rev().map(Duration::from_millis).collect();
    let reads = reads(times, Duration::from_millis(20));
    assert_eq!((reads.count, reads.median, reads.p99), (200, Duration::from_millis(101), Duration::from_millis(198)));
    assert_eq!(reads.cpu_microseconds, 100.0);
}
