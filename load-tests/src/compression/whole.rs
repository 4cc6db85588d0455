//! The paper's method: a file is compressed as a whole and then added, unless its format is known to be compressed.
//!
//! The paper compresses inside of the importing process; here the file is compressed first, in one thread as there, and
//! the result is added by the same importer as in the store's method. A client is sent the compressed file.

use super::blocks::adding;
use super::corpora::Corpus;
use super::{Method, Options, Took};
use crate::directory::temp_dir;
use crate::timed;
use anyhow::Result;
use std::borrow::Cow;
use std::time::Instant;

/// "Well-known compressed file format such as zip, jpeg, mp3, mp4": the offset of a signature, and the signature. PNG
/// and gzip are as well known.
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
    let mut rounds = Vec::new();
    let mut bytes = 0;
    for _ in 0..options.rounds(level) {
        let (cpu, begun) = (timed::own_cpu()?, Instant::now());
        let packed = corpus.files.iter().map(|file| packed(&file.bytes, level)).collect::<Result<Vec<_>>>()?;
        let (wall, cpu) = (begun.elapsed(), timed::own_cpu()?.saturating_sub(cpu));
        let (directory, data) = (temp_dir("corpus")?, temp_dir("store")?);
        for (file, packed) in corpus.files.iter().zip(&packed) {
            std::fs::write(directory.path().join(&file.name), packed)?;
        }
        bytes = packed.iter().map(|packed| packed.len() as u64).sum();
        let ran = timed::settled(adding(&options.causeway, directory.path()).arg("--data-dir").arg(data.path()))?;
        rounds.push(Took { wall: wall + ran.wall, cpu: cpu + ran.cpu });
    }
    let name = format!("whole files, level {level}");
    Ok(Method { name, stored_bytes: bytes, sent_bytes: bytes, added: Took::median(&rounds) })
}

fn packed(file: &[u8], level: u8) -> Result<Cow<'_, [u8]>> {
    Ok(if is_compressed(file) { file.into() } else { zstd::bulk::compress(file, i32::from(level))?.into() })
}

fn is_compressed(file: &[u8]) -> bool {
    COMPRESSED.iter().any(|(at, signature)| file.get(*at..).is_some_and(|rest| rest.starts_with(signature)))
}

#[test]
fn compressed_formats_are_known_by_their_signatures() {
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
