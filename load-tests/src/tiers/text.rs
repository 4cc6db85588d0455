//! Text to clients that accept compression: zstd frames as they are stored, against a file that was compressed before
//! and nginx's gzip_static.

use super::Options;
use super::under_load::{Target, rounds};
use super::world::Content;
use crate::comparison::{Case, Measure, System};
use crate::http::Client;
use crate::sample;
use crate::servers;
use crate::timed;
use crate::wrk::Paths;
use anyhow::{Result, ensure};
use std::process::Command;

/// The published median object: several blocks.
const BYTES: usize = 664_000;
const CONNECTIONS: usize = 32;

/// One text, hot.
pub async fn zstd(options: &Options) -> Result<Vec<Case>> {
    let text = sample::text(BYTES, options.seed);
    let (content, path) = Content::one(&text)?;
    let file = content.directory().join("text.txt");
    std::fs::write(&file, &text)?;
    timed::run(Command::new("gzip").args(["-9", "--keep"]).arg(&file))?;
    let causeway = content.causeway(options, &[]).await?.server;
    let nginx = servers::nginx(&causeway.url, content.directory()).await?;

    let client = Client::new()?;
    let [zstd, gzip] = ["zstd", "gzip"].map(|coding| vec![format!("Accept-Encoding: {coding}")]);
    let path = format!("{path}?filename=text.txt");
    // The first response may have filled a cache.
    client.request(&causeway.at(&path), &zstd).await?;
    let ours = client.request(&causeway.at(&path), &zstd).await?.of_status(200)?;
    ensure!(ours.decoded()? == text, "Causeway: wrong bytes as {}", ours.coding());
    let theirs = client.request(&nginx.at("/files/text.txt"), &gzip).await?;
    ensure!(theirs.coding() == "gzip", "nginx: {} instead of gzip", theirs.coding());
    let theirs = theirs.of_content(&std::fs::read(file.with_added_extension("gz"))?)?;

    let (our_bytes, their_bytes, coding) = (ours.body.len(), theirs.body.len(), ours.coding());
    let (our_path, their_path) = (Paths::One(&path), Paths::One("/files/text.txt"));
    let targets = [
        Target { headers: zstd, ..Target::new(System::Causeway, &causeway, our_path, Some(our_bytes as u64)) },
        Target { headers: gzip, ..Target::new(System::NginxStatic, &nginx, their_path, Some(their_bytes as u64)) },
    ];
    let series = rounds(options, CONNECTIONS, &targets).await?;
    let name = format!("hot text of 664 KB: {coding}, against nginx with gzip_static");
    let case = Case::new(name, "requests/s", series);
    let requests = case.against(System::NginxStatic).bar("1.0 × requests", 1.0);
    let ratio = our_bytes as f64 / their_bytes as f64;
    let bytes = Measure::lower(ratio, "× the bytes of nginx's gzip").bar("fewer bytes", 1.0);
    let note = format!(
        "Causeway was sent `Accept-Encoding: zstd` and responded with {coding}, {our_bytes} bytes; nginx with gzip \
         (-9), {their_bytes} bytes; the text has {BYTES}"
    );
    Ok(vec![case.measure(requests).measure(bytes).note(note)])
}
