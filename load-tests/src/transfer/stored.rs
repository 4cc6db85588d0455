//! Blocks that are sent as they are stored: text on a slow link and on a long one, what does not shrink, and the
//! processor time of the receiver.
//!
//! Plain is what the same nodes do without the protocol: the blocks are sent by Bitswap, and the receiver compresses
//! them again.

use super::Bench;
use super::held::Held;
use crate::comparison::{Case, Measure, System, Turn, rounds};
use crate::compression::synthetic;
use crate::http::get;
use crate::network::bulk::whole;
use crate::network::world::{self, Remote};
use crate::relay::Link;
use crate::report::number;
use crate::sample;
use crate::servers::{Kubo, Transport};
use crate::stats::median;
use anyhow::{Result, ensure};
use std::time::Instant;

/// The text.
const TEXT_BYTES: usize = 128 << 20;
/// A medium of each kind.
const MEDIA_BYTES: usize = 16 << 20;
const BLOCK_BYTES: usize = 256 << 10;
/// The level of the paper's method.
const LEVEL: i32 = 3;
/// The least of the stored bytes that has to pass a link: small differences of the two formats are no short cut.
const LEAST_SHARE: f64 = 0.9;

/// Text on a link that is full: the time and the bytes of what is stored.
pub async fn slow(bench: &Bench, transport: Transport) -> Result<Vec<Case>> {
    bench.features.require_dag("1.10 × (plain time × stored share); 1.03 × the stored bytes through the link")?;
    let options = &bench.options;
    let content = bench.texts.of(options.size(TEXT_BYTES));
    let held = Held::new(&options.binaries.causeway, &content)?;
    let source = held.behind(options, bench.slow_link()).await?;
    let mut passed = Vec::new();
    let series = rounds(options.run.rounds(), &[System::Http, System::Causeway], async |system, _| {
        let before = source.passed(system, transport);
        if system == System::Http {
            let seconds = whole(&source.url(), &held.path, &content).await?;
            source.check(system, transport, before, content.len())?;
            return Ok(seconds);
        }
        let client = world::client(system, options, &[source.multiaddr(transport)]).await?;
        let seconds = whole(&client.url, &held.path, &content).await?;
        let down = source.check(system, transport, before, least(&held))?.down;
        passed.push(down as f64 / held.stored_bytes as f64);
        Ok(seconds)
    });
    let name = format!("{} of text on 20 Mbit/s, {}", mebibytes(&content), transport.name());
    let case = Case::new(name, "s", series.await?);
    let ratio = case.value(System::Causeway) / (case.value(System::Http) * held.share());
    let time = Measure::lower(ratio, "× (plain time × stored share)").bar("1.10 ×", 1.10);
    let bytes = Measure::lower(median(passed.into_iter()), "× the stored bytes through the link").bar("1.03 ×", 1.03);
    Ok(vec![case.measure(time).measure(bytes).note(stored(&held)).note("HTTP is plain, without Accept-Encoding")])
}

/// Text on a link that is long and has no limit, beside Kubo, and Kubo with whole files as zstd, whose client
/// decompresses what it received.
pub async fn far(bench: &Bench) -> Result<Vec<Case>> {
    bench.features.require_dag("7.9 × Kubo; 1.5 × Kubo with whole files as zstd")?;
    let (options, transport, link) = (&bench.options, Transport::Tcp, Link::delay(bench.far_delay));
    let content = bench.texts.of(options.size(TEXT_BYTES));
    let held = Held::new(&options.binaries.causeway, &content)?;
    let source = held.behind(options, link).await?;
    let kubo = Remote::<Kubo>::start(options, link).await?;
    let plain = kubo.node.add(&content)?;
    let packed = zstd::bulk::compress(&content, LEVEL)?;
    let (packed_path, packed_bytes) = (kubo.node.add(&packed)?, packed.len());
    let systems = [System::Http, System::Kubo, System::KuboZstd, System::Causeway];
    let series = rounds(options.run.rounds(), &systems, async |system, _| match system {
        System::Kubo | System::KuboZstd => {
            let before = kubo.passed(system, transport);
            let client = world::client(System::Kubo, options, &[kubo.multiaddr(transport)]).await?;
            let (seconds, bytes) = if system == System::Kubo {
                (whole(&client.url, &plain, &content).await?, content.len())
            } else {
                (unpacked(&client.at(&packed_path), &content).await?, packed_bytes)
            };
            kubo.check(system, transport, before, bytes)?;
            Ok(seconds)
        }
        System::Http => whole(&source.url(), &held.path, &content).await,
        client => {
            let before = source.passed(client, transport);
            let server = world::client(client, options, &[source.multiaddr(transport)]).await?;
            let seconds = whole(&server.url, &held.path, &content).await?;
            source.check(client, transport, before, least(&held))?;
            Ok(seconds)
        }
    });
    let round_trip = link.round_trip().as_millis();
    let name = format!("{} of text, a round trip of {round_trip} ms, {}", mebibytes(&content), transport.name());
    let case = Case::new(name, "s", series.await?);
    let faster = |rival: System| {
        Measure::higher(case.value(rival) / case.value(System::Causeway), format!("× as fast as {rival}"))
    };
    let [plain, packed] = [faster(System::Kubo).bar("7.9 ×", 7.9), faster(System::KuboZstd).bar("1.5 ×", 1.5)];
    let whole_share = packed_bytes as f64 / content.len() as f64;
    let note = format!("the whole file as zstd has {whole_share:.3} × its bytes; its time is with decompression");
    Ok(vec![case.measure(plain).measure(packed).note(stored(&held)).note(note)])
}

/// The seconds until a file that was compressed as a whole has been received and decompressed.
async fn unpacked(url: &str, content: &[u8]) -> Result<f64> {
    let response = get(url).await?;
    let begun = Instant::now();
    let plain = zstd::decode_all(&response.body[..])?;
    let seconds = (response.complete + begun.elapsed()).as_secs_f64();
    ensure!(plain == content, "{url}: wrong bytes");
    Ok(seconds)
}

/// Media, and noise, on a link that is full: they cost no more than plain blocks.
pub async fn media(bench: &Bench) -> Result<Vec<Case>> {
    bench.features.require_plain("1.02 × the time and 1.001 × the bytes of plain blocks")?;
    let bytes = bench.options.size(MEDIA_BYTES);
    let mut cases = Vec::new();
    for (kind, content) in [
        ("WAV", synthetic::wav(bytes, 1)),
        ("JPEG-like", synthetic::jpeg_like(bytes, bytes, 1).concat()),
        ("MP4-like", synthetic::mp4_like(bytes, 1)),
        ("noise", sample::bytes(bytes, 1)),
    ] {
        cases.push(medium(bench, kind, &content).await?);
    }
    Ok(cases)
}

async fn medium(bench: &Bench, kind: &str, content: &[u8]) -> Result<Case> {
    let (options, transport) = (&bench.options, Transport::Tcp);
    let held = Held::new(&options.binaries.causeway, content)?;
    let source = held.behind(options, bench.slow_link()).await?;
    let (mut plain, mut stored_form) = (Vec::new(), Vec::new());
    let series = rounds(options.run.rounds(), &[System::Plain, System::Causeway], async |system, _| {
        let before = source.passed(system, transport);
        let client = world::client(system, options, &[source.multiaddr(transport)]).await?;
        let seconds = whole(&client.url, &held.path, content).await?;
        let down = source.check(system, transport, before, least(&held))?.down as f64;
        let bytes = if system == System::Plain { &mut plain } else { &mut stored_form };
        bytes.push(down);
        Ok(seconds)
    });
    let name = format!("{} of {kind} on 20 Mbit/s, {}", mebibytes(content), transport.name());
    let case = Case::new(name, "s", series.await?);
    let time = case.value(System::Causeway) / case.value(System::Plain);
    let bytes = median(stored_form.into_iter()) / median(plain.into_iter());
    let case = case
        .measure(Measure::lower(time, "× the time of plain blocks").bar("1.02 ×", 1.02))
        .measure(Measure::lower(bytes, "× the bytes of plain blocks").bar("1.001 ×", 1.001));
    Ok(case.note(format!("{kind}: {}", stored(&held))))
}

/// Text without a link: the rate, and what the receiver's processor does.
pub async fn loopback(bench: &Bench) -> Result<Vec<Case>> {
    bench.features.require_plain("1.0 × the rate and 0.8 × the receiver's CPU time of plain blocks")?;
    let options = &bench.options;
    let content = bench.texts.of(options.size(TEXT_BYTES));
    let held = Held::new(&options.binaries.causeway, &content)?;
    let source = held.served(options).await?;
    let address = source.multiaddr()?;
    // The source reads the blocks from the disk once.
    whole(&source.server.url, &held.path, &content).await?;
    let series = rounds(options.run.rounds(), &[System::Plain, System::Causeway], async |system, _| {
        let client = world::client(system, options, std::slice::from_ref(&address)).await?;
        let before = client.process.settled_cpu().await?;
        let value = content.len() as f64 / 1e6 / whole(&client.url, &held.path, &content).await?;
        // Blocks are compressed and written after they are served.
        let cpu = client.process.settled_cpu().await?.saturating_sub(before).as_secs_f64();
        let blocks = content.len().div_ceil(BLOCK_BYTES) as f64;
        Ok(Turn { value, cpu_microseconds: cpu * 1e6 / blocks, latency: None })
    });
    let name = format!("{} of text on loopback, TCP", mebibytes(&content));
    let case = Case::new(name, "MB/s", series.await?);
    let rate = case.against(System::Plain).bar("1.0 × plain", 1.0);
    let cpu = case.cpu_against(System::Plain).bar("0.8 × plain, compressed again", 0.8);
    Ok(vec![case.measure(rate).measure(cpu).note(stored(&held)).note("the CPU time is the receiver's, until it rests")])
}

fn least(held: &Held) -> usize {
    (held.stored_bytes as f64 * LEAST_SHARE) as usize
}

fn mebibytes(content: &[u8]) -> String {
    format!("{} MiB", number(content.len() as f64 / f64::from(1 << 20)))
}

fn stored(held: &Held) -> String {
    format!("the blocks are stored in {:.3} × the bytes", held.share())
}
