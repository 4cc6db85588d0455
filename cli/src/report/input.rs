//! Access log files: plain, gzip or zstd by their extension, or standard input, line by line.
//!
//! Goal: memory does not grow with a line.

use anyhow::ensure;
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, stdin};
use std::path::Path;

/// The maximum length of a line, in bytes: more than the gateway writes.
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;
const BUFFER_BYTES: usize = 256 << 10;
/// The maximum window of a zstd file, as a power of two: 8 MiB, that of `zstd` without `--long` or `--ultra`.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// A line, without its line break.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// The whole line.
    Whole(&'a [u8]),
    /// A line that is longer than [`LINE_BYTES_MAX`].
    TooLong,
}

/// Reads a file and calls `each` with its lines.
///
/// # Errors
/// When it cannot be read, or those of `each`.
pub(super) fn for_each_line(path: &Path, each: &mut dyn FnMut(Line<'_>) -> anyhow::Result<()>) -> anyhow::Result<()> {
    if path == Path::new("-") {
        return lines_of(BufReader::with_capacity(BUFFER_BYTES, stdin().lock()), each);
    }
    let file = File::open(path)?;
    ensure!(!file.metadata()?.is_dir(), "it is a folder");
    let file = BufReader::with_capacity(BUFFER_BYTES, file);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("gz") => lines_of(buffered(MultiGzDecoder::new(file)), each),
        Some("zst") => {
            let mut decoder = zstd::Decoder::with_buffer(file)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
            lines_of(buffered(decoder), each)
        }
        _ => lines_of(file, each),
    }
}

fn buffered(reader: impl Read) -> impl BufRead {
    BufReader::with_capacity(BUFFER_BYTES, reader)
}

fn lines_of(mut reader: impl BufRead, each: &mut dyn FnMut(Line<'_>) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let (mut line, mut too_long, mut begun) = (Vec::new(), false, false);
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            break;
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let part = &buffer[..end.unwrap_or(buffer.len())];
        let taken = part.len() + usize::from(end.is_some());
        begun = true;
        if line.len() + part.len() > LINE_BYTES_MAX {
            too_long = true;
            line.clear();
        }
        match (end, too_long) {
            (Some(_), true) => each(Line::TooLong)?,
            // Most lines lie in the buffer as a whole.
            (Some(_), false) if line.is_empty() => each(Line::Whole(part))?,
            (Some(_), false) => {
                line.extend_from_slice(part);
                each(Line::Whole(&line))?;
            }
            (None, false) => line.extend_from_slice(part),
            (None, true) => {}
        }
        if end.is_some() {
            line.clear();
            (too_long, begun) = (false, false);
        }
        reader.consume(taken);
    }
    match (begun, too_long) {
        (true, true) => each(Line::TooLong),
        (true, false) => each(Line::Whole(&line)),
        (false, _) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn lines(path: &Path) -> anyhow::Result<Vec<String>> {
        let mut lines = Vec::new();
        for_each_line(path, &mut |line| {
            lines.push(match line {
                Line::Whole(bytes) => String::from_utf8_lossy(bytes).into_owned(),
                Line::TooLong => "too long".to_owned(),
            });
            Ok(())
        })?;
        Ok(lines)
    }

    #[test]
    fn lines_are_read_from_plain_and_compressed_files() {
        let dir = tempfile::tempdir().expect("a folder");
        let long = "x".repeat(3 * LINE_BYTES_MAX + 5);
        let longest = "y".repeat(LINE_BYTES_MAX);
        let text = format!("one\n\n{long}\ntwo\n{longest}\n{longest}z\nlast without a break");
        let expected = ["one", "", "too long", "two", &longest, "too long", "last without a break"];
        let gz = {
            // Two members, as after appending to a compressed file.
            let member = |part: &str| {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(part.as_bytes()).expect("compresses");
                encoder.finish().expect("ends")
            };
            [member(&text[..100]), member(&text[100..])].concat()
        };
        let zst = zstd::encode_all(text.as_bytes(), 1).expect("compresses");
        for (name, bytes) in [("a.log", text.clone().into_bytes()), ("a.gz", gz.clone()), ("a.zst", zst.clone())] {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).expect("writes");
            assert_eq!(lines(&path).expect("reads"), expected, "{name}");
        }
        for (name, bytes) in [("cut.gz", &gz[..gz.len() / 2]), ("cut.zst", &zst[..zst.len() / 2]), ("no.zst", b"no")] {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).expect("writes");
            assert!(lines(&path).is_err(), "{name}");
        }
        assert!(lines(dir.path()).is_err() && lines(&dir.path().join("missing")).is_err());
        std::fs::write(dir.path().join("empty"), "").expect("writes");
        assert!(lines(&dir.path().join("empty")).expect("reads").is_empty());
    }
}
