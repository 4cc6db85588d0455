//! Text to clients that take it compressed: zstd frames as they are stored, against a file that was compressed before and
//! nginx's gzip_static.

use super::Options;
use super::figures::{Case, Measure, Who};
use super::under_load::{Participant, rounds};
use super::world::{Answer, Client, Content};
use crate::sample;
use crate::servers;
use crate::wrk::Asked;
use anyhow::{Context, Result, bail, ensure};
use std::process::Command;

/// The published median object: several blocks.
const BYTES: usize = 664_000;
const CONNECTIONS: usize = 32;

/// One text, hot.
pub async fn zstd(options: &Options) -> Result<Vec<Case>> {
    let text = sample::text(BYTES, options.seed);
    let (content, path) = Content::one(&text)?;
    let file = content.folder().join("text.txt");
    std::fs::write(&file, &text)?;
    let gzip = Command::new("gzip").args(["-9", "--keep"]).arg(&file).output().context("gzip does not start")?;
    ensure!(gzip.status.success(), "gzip: {}", String::from_utf8_lossy(&gzip.stderr));
    let causeway = content.causeway(options, &[]).await?.server;
    let nginx = servers::nginx(&causeway.url, content.folder()).await?;

    let client = Client::new()?;
    let [zstd, gzip] = ["zstd", "gzip"].map(|coding| vec![format!("Accept-Encoding: {coding}")]);
    let path = format!("{path}?filename=text.txt");
    // The first answer may have warmed something.
    client.get(&causeway, &path, &zstd).await?;
    let ours = client.get(&causeway, &path, &zstd).await?;
    let coding = coding(&ours).to_owned();
    ensure!(ours.status == 200, "Causeway: {}", ours.status);
    ensure!(decoded(&coding, &ours.body)? == text, "Causeway: wrong bytes as {coding}");
    let theirs = client.get(&nginx, "/files/text.txt", &gzip).await?;
    ensure!(self::coding(&theirs) == "gzip", "nginx: {} in the place of gzip", self::coding(&theirs));
    ensure!(theirs.body == std::fs::read(file.with_added_extension("gz"))?, "nginx: wrong bytes");

    let (our_bytes, their_bytes) = (ours.body.len(), theirs.body.len());
    let participants = [
        Participant {
            who: Who::Causeway,
            server: &causeway,
            asked: Asked::One(&path),
            headers: zstd,
            body_bytes: Some(our_bytes as u64),
        },
        Participant {
            who: Who::NginxStatic,
            server: &nginx,
            asked: Asked::One("/files/text.txt"),
            headers: gzip,
            body_bytes: Some(their_bytes as u64),
        },
    ];
    let series = rounds(options, CONNECTIONS, &participants)?;
    let mut case =
        Case::new(format!("hot text of 664 KB: {coding}, against nginx with gzip_static"), "requests/s", series);
    let bytes = our_bytes as f64 / their_bytes as f64;
    case.measures = vec![
        case.against(Who::NginxStatic).bar("1.0 × requests", 1.0),
        Measure::below(bytes, "× the bytes of nginx's gzip").bar("fewer bytes", 1.0),
    ];
    case.notes.push(format!(
        "Causeway was asked for zstd and answered with {coding}, {our_bytes} bytes; nginx with gzip (-9), {their_bytes} bytes; \
         the text has {BYTES}"
    ));
    Ok(vec![case])
}

fn coding(answer: &Answer) -> &str {
    answer.header("content-encoding").unwrap_or("identity")
}

/// What a body stands for.
fn decoded(coding: &str, body: &[u8]) -> Result<Vec<u8>> {
    match coding {
        "identity" => Ok(body.to_vec()),
        // As many frames as there are.
        "zstd" => Ok(zstd::decode_all(body)?),
        other => bail!("{other} was not asked for"),
    }
}

#[test]
fn bodies_are_decoded_by_what_was_answered() {
    let frame = |text: &[u8]| zstd::encode_all(text, 3).expect("memory does not fail");
    let frames = [frame(b"one "), frame(b"two")].concat();
    assert_eq!(decoded("zstd", &frames).ok().as_deref(), Some(&b"one two"[..]));
    assert_eq!(decoded("identity", b"one").ok().as_deref(), Some(&b"one"[..]));
    assert!(decoded("zstd", &frames[..frames.len() - 1]).is_err(), "cut off");
    assert!(decoded("gzip", b"one").is_err());
}
