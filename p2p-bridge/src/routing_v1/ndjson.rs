//! [`Lines`]: records from a stream of newline-delimited JSON, decoded as bytes arrive.
//!
//! A state machine without I/O. The length of a line and of the stream are limited; a line without a known record is
//! skipped, and an invalid line ends the stream.

use super::types::{FormatError, PeerRecord};

/// Limits of a stream.
#[derive(Debug, Clone, Copy)]
pub struct NdjsonLimits {
    /// Maximum bytes of one line.
    pub line_bytes_max: usize,
    /// Maximum bytes of all lines.
    pub bytes_max: usize,
}

/// A stream that is being decoded.
#[derive(Debug)]
pub struct Lines {
    limits: NdjsonLimits,
    /// The start of an incomplete line.
    partial: Vec<u8>,
    bytes: usize,
}

impl Lines {
    /// A decoder at the start of a stream.
    pub fn new(limits: NdjsonLimits) -> Self {
        Self { limits, partial: Vec::new(), bytes: 0 }
    }

    /// Decodes the next bytes and calls `found` with each completed record.
    ///
    /// # Errors
    /// [`FormatError`] if the stream must be closed. Records found before are valid.
    pub fn push(&mut self, mut bytes: &[u8], mut found: impl FnMut(PeerRecord)) -> Result<(), FormatError> {
        self.bytes = self.bytes.saturating_add(bytes.len());
        let is_too_long = self.bytes > self.limits.bytes_max;
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            self.extend(&bytes[..end])?;
            let line = std::mem::take(&mut self.partial);
            read(&line, &mut found)?;
            // Reuse the allocation for the next line.
            self.partial = line;
            self.partial.clear();
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes)?;
        if is_too_long { Err(FormatError::TooLong { max: self.limits.bytes_max }) } else { Ok(()) }
    }

    /// Ends the stream: the last line needs no line feed.
    ///
    /// # Errors
    /// [`FormatError::NotJson`] if the last line is incomplete.
    pub fn finish(self, mut found: impl FnMut(PeerRecord)) -> Result<(), FormatError> {
        read(&self.partial, &mut found)
    }

    fn extend(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        let max = self.limits.line_bytes_max;
        if self.partial.len() + bytes.len() > max {
            return Err(FormatError::LineTooLong { max });
        }
        self.partial.extend_from_slice(bytes);
        Ok(())
    }
}

fn read(line: &[u8], found: &mut impl FnMut(PeerRecord)) -> Result<(), FormatError> {
    let line = line.trim_ascii();
    if line.is_empty() {
        return Ok(());
    }
    let value = serde_json::from_slice(line).map_err(|error| FormatError::NotJson(error.to_string()))?;
    if let Some(record) = PeerRecord::from_json(&value) {
        found(record);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use libp2p::PeerId;
    use proptest::prelude::*;

    const LIMITS: NdjsonLimits = NdjsonLimits { line_bytes_max: 200, bytes_max: 1000 };

    fn record() -> PeerRecord {
        PeerRecord::new(PeerId::random(), Vec::new())
    }

    /// Decodes a stream that arrives in pieces.
    fn read_all<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<PeerRecord>, Result<(), FormatError>) {
        let (mut lines, mut records) = (Lines::new(LIMITS), Vec::new());
        for piece in pieces {
            if let Err(error) = lines.push(piece, |record| records.push(record)) {
                return (records, Err(error));
            }
        }
        let end = lines.finish(|record| records.push(record));
        (records, end)
    }

    #[test]
    fn records_before_an_invalid_line_are_found() {
        let good = record();
        let line = good.to_json();
        let table = [
            (format!("{line}\n{line}\n"), 2, Ok(())),
            (format!("\n \r\n{line}\r\n{{\"Schema\":\"else\"}}\n[]\n{line}"), 2, Ok(())),
            (String::new(), 0, Ok(())),
            (format!("{line}\n{}\n", "x".repeat(201)), 1, Err(FormatError::LineTooLong { max: 200 })),
            (format!("{line}\n{}", " ".repeat(201)), 1, Err(FormatError::LineTooLong { max: 200 })),
            (format!("{line}\n").repeat(20), 20, Err(FormatError::TooLong { max: 1000 })),
        ];
        for (text, count, end) in table {
            assert_eq!(read_all([text.as_bytes()]), (vec![good.clone(); count], end), "{text}");
        }
        for broken in [format!("{line}\n{{\"Schema\":"), format!("{line}\n<html>\n{line}\n")] {
            let (records, end) = read_all([broken.as_bytes()]);
            assert!(records == [good.clone()] && matches!(end, Err(FormatError::NotJson(_))), "{end:?}");
        }
    }

    proptest! {
        #[test]
        fn the_pieces_of_a_stream_do_not_matter(
            lines in prop::collection::vec(prop_oneof![Just(None), "[a-z{}\\[\\]\", ]{0,30}".prop_map(Some)], 0..6),
            cuts in prop::collection::vec(1_usize..40, 1..20),
        ) {
            let good = record().to_json();
            let text = lines.iter().map(|line| line.as_ref().unwrap_or(&good).clone() + "\n").collect::<String>();
            let mut rest = text.as_bytes();
            let mut pieces = Vec::new();
            for cut in cuts.iter().cycle().take(2000) {
                let (piece, after) = rest.split_at((*cut).min(rest.len()));
                pieces.push(piece);
                rest = after;
            }
            pieces.push(rest);
            prop_assert_eq!(read_all(pieces), read_all([text.as_bytes()]));
        }

        #[test]
        fn the_buffered_line_is_bounded(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20),
        ) {
            let mut lines = Lines::new(LIMITS);
            for piece in &pieces {
                if lines.push(piece, |_| ()).is_err() {
                    break;
                }
                prop_assert!(lines.partial.len() <= LIMITS.line_bytes_max);
            }
        }
    }
}
