//! Reading: a large file from its beginning to its end by one process, and single blocks in random order through a
//! server.
//!
//! Before each, the store's files are dropped from the page cache, so that reads come from the disk; a store's own
//! caches remain, and Causeway's memory tier is as small as it can be. A store in memory is filled through the network
//! first, and read through its server only.

use super::Options;
use super::adding;
use super::data::{BLOCK_BYTES, Maker, Set, Stored, Stretch, size};
use super::figures::{Cost, Reading, Reads};
use super::store::Participant;
use crate::archive::{self, importer};
use crate::directory::{drop_page_cache, temp_dir};
use crate::http::Client;
use crate::sample;
use crate::servers::Server;
use crate::stats::Latency;
use crate::timed;
use anyhow::{Context, Result, ensure};
use content::{Block, Cid, codec};
use std::path::Path;

/// Of the large file.
const BLOCKS: usize = 512;
const SMALL_BYTES: usize = 1 << 10;
const SMALL_FILES: usize = 2000;
/// The name of the large file, after all the small ones.
const LARGE: &str = "zzz";

/// The content, for people.
pub fn about(options: &Options) -> String {
    let (blocks, small) = (options.count(BLOCKS), options.count(SMALL_FILES));
    format!("one file of {blocks} blocks of {}, and {small} files of {}", size(BLOCK_BYTES), size(SMALL_BYTES))
}

/// Bytes of the large file.
pub fn large_bytes(options: &Options) -> u64 {
    (options.count(BLOCKS) * BLOCK_BYTES) as u64
}

/// Content to be read: the directory, and every block of it with its bytes.
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
        let set = maker.directory("reading", &files, &mut Stored::new())?;
        let large: Vec<u8> = blocks.iter().flat_map(|(_, stretch)| stretch.content()).collect();
        std::fs::write(set.directory.join(LARGE), large)?;
        Ok(Self { set, blocks, small })
    }
}

/// The CID of a leaf of these bytes.
fn cid(bytes: &[u8]) -> Result<Cid> {
    let part = archive::file(&importer()?, bytes, &mut |_: Block| Ok(()))?;
    ensure!(part.cid.codec() == codec::RAW, "a block is longer than a leaf");
    Ok(part.cid)
}

/// Every store, one after the other.
pub async fn measure(options: &Options, participants: &[Participant]) -> Result<Vec<Reading>> {
    eprintln!("reading");
    let dir = temp_dir("data")?;
    let content = Content::make(options, dir.path())?;
    let mut all = Vec::new();
    for participant in participants {
        let reading = if participant.in_memory() {
            from_memory(options, participants, *participant, &content).await
        } else {
            from_disk(options, *participant, &content).await
        };
        all.push(reading.with_context(|| participant.name)?);
    }
    Ok(all)
}

async fn from_disk(options: &Options, participant: Participant, content: &Content) -> Result<Reading> {
    let store = participant.fresh(options)?;
    let (_, root) = adding::add(&store, &content.set)?;
    let mut whole = Vec::new();
    for _ in 0..options.run.rounds() {
        drop_page_cache(store.path())?;
        let ran = timed::run_discarding(&mut store.cat(&format!("/ipfs/{root}/{LARGE}")))?;
        eprintln!("  {} whole: {:.0} ms", participant.name, ran.wall.as_secs_f64() * 1e3);
        whole.push(Cost::of(&ran, 0));
    }
    let path = store.path().to_owned();
    drop_page_cache(&path)?;
    let node = store.serve().await?;
    let blocks = random(options, participant, &node.server, &content.blocks).await?;
    drop_page_cache(&path)?;
    let small = random(options, participant, &node.server, &content.small).await?;
    Ok(Reading { whole, blocks: Some(blocks), small: Some(small), notes: Vec::new() })
}

/// A store in memory: filled from the first of Causeway's stores on disk.
async fn from_memory(
    options: &Options,
    participants: &[Participant],
    participant: Participant,
    content: &Content,
) -> Result<Reading> {
    let mut notes = vec![format!(
        "`{}` is in memory: no other process can read what one has added, and its server was filled through the \
         network",
        participant.name
    )];
    let on_disk = participants.iter().find(|one| one.is_causeway() && !one.in_memory());
    let Some(on_disk) = on_disk else {
        notes.push("there was no other store to fill it from".to_owned());
        return Ok(Reading { notes, ..Reading::default() });
    };
    let source = on_disk.fresh(options)?;
    let (_, root) = adding::add(&source, &content.set)?;
    let (node, running) = participant.fresh(options)?.serve_behind(&source).await?;
    let client = Client::new()?;
    let files = (0..content.set.files).map(|file| format!("{file:06}")).chain([LARGE.to_owned()]);
    for file in files {
        client.get(&node.server.at(&format!("/ipfs/{root}/{file}"))).await?;
    }
    drop(running);
    let blocks = random(options, participant, &node.server, &content.blocks).await?;
    let small = random(options, participant, &node.server, &content.small).await?;
    Ok(Reading { blocks: Some(blocks), small: Some(small), notes, ..Reading::default() })
}

/// Every block once, in an order from the seed; each is compared.
async fn random(
    options: &Options,
    participant: Participant,
    server: &Server,
    blocks: &[(Cid, Stretch)],
) -> Result<Reads> {
    let client = Client::new()?;
    // The connection, and whatever a server initialises for its first request.
    client.get(&server.at("/ipfs/bafkqac3imvwgy3zao5xxe3de?format=raw")).await?;
    let mut order: Vec<&(Cid, Stretch)> = blocks.iter().collect();
    sample::shuffle(&mut order, options.seed);
    let mut times = Vec::with_capacity(order.len());
    let cpu = server.process.cpu();
    for (cid, stretch) in order {
        let response = client.get(&server.at(&format!("/ipfs/{cid}?format=raw"))).await?;
        times.push(response.complete);
        response.of_content(&stretch.content())?;
    }
    let cpu = server.process.cpu().saturating_sub(cpu);
    let (count, latency) = (times.len(), Latency::of(times.into_iter()));
    eprintln!("  {} random: median {:?}, p99 {:?}", participant.name, latency.median, latency.p99);
    Ok(Reads { count, latency, cpu_microseconds: cpu.as_secs_f64() * 1e6 / count.max(1) as f64 })
}
