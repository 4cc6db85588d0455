//! The paper's way: a file is compressed as a whole and then added, unless its format is known to be compressed.
//!
//! The paper compresses inside of the importing process; here the file is compressed first, in one thread as there, and the result
//! is added by the same importer as in the store's way. A client is sent the compressed file.

use super::blocks::{adding, middle};
use super::corpora::Corpus;
use super::{Method, Options, Took};
use crate::median::median_duration;
use crate::servers;
use crate::timed;
use anyhow::Result;
use std::borrow::Cow;
use std::time::Instant;

/// "Well-known compressed file format such as zip, jpeg, mp3, mp4": where a signature is, and what it is. PNG and gzip are as
/// well known.
const COMPRESSED: [(usize, &[u8]); 7] = [
    (0, b"PK\x03\x04"),
    (0, b"\xff\xd8\xff"),
    (0, b"ID3"),
    (0, b"\xff\xfb"),
    (4, b"ftyp"),
    (0, b"\x89PNG\r\n\x1a\n"),
    (0, b"\x1f\x8b"),
];

/// Compresses files and adds them.
pub fn measure(options: &Options, corpus: &Corpus, level: u8) -> Result<Method> {
    let mut compressing = Vec::new();
    let mut runs = Vec::new();
    let mut bytes = 0;
    for _ in 0..options.rounds(level) {
        let (cpu, begun) = (timed::own_cpu()?, Instant::now());
        let packed = corpus.files.iter().map(|file| packed(&file.bytes, level)).collect::<Result<Vec<_>>>()?;
        compressing.push(Took { wall: begun.elapsed(), cpu: timed::own_cpu()?.saturating_sub(cpu) });
        let [folder, data] = ["corpus", "store"].map(servers::folder);
        let (folder, data) = (folder?, data?);
        for (file, packed) in corpus.files.iter().zip(&packed) {
            std::fs::write(folder.path().join(&file.name), packed)?;
        }
        bytes = packed.iter().map(|packed| packed.len() as u64).sum();
        let mut add = adding(&options.causeway, folder.path());
        runs.push(timed::settled(add.arg("--data-dir").arg(data.path()))?);
    }
    let adding = middle(&runs);
    let compressing = |of: fn(&Took) -> std::time::Duration| median_duration(compressing.iter().map(of));
    let added =
        Took { wall: adding.wall + compressing(|took| took.wall), cpu: adding.cpu + compressing(|took| took.cpu) };
    Ok(Method { stored_bytes: bytes, sent_bytes: bytes, added })
}

fn packed(file: &[u8], level: u8) -> Result<Cow<'_, [u8]>> {
    Ok(if is_compressed(file) { file.into() } else { zstd::bulk::compress(file, i32::from(level))?.into() })
}

fn is_compressed(file: &[u8]) -> bool {
    COMPRESSED.iter().any(|(at, signature)| file.get(*at..).is_some_and(|rest| rest.starts_with(signature)))
}

#[test]
fn what_is_compressed_is_told_by_its_signature() {
    let table: [(&[u8], bool); 6] = [
        (b"PK\x03\x04...", true),
        (b"\x00\x00\x00\x20ftypisom", true),
        (b"\x1f\x8b\x08", true),
        (b"ftypisom", false),
        (b"text", false),
        (b"", false),
    ];
    for (file, expected) in table {
        assert_eq!(is_compressed(file), expected, "{file:?}");
        let same = packed(file, 3).expect("memory does not fail") == file;
        assert_eq!(same, expected, "{file:?}");
    }
}
