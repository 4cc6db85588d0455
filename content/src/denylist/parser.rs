//! [`Parser`]: incremental parsing of a list.
//!
//! Goals: takes the memory of one line for lists of any size; continues where the list ended when it grows.

use super::header::{HEADER_BYTES_MAX, Header, HeaderError};
use super::rule::{Rule, RuleError};

/// The maximum length of a line, in bytes (<https://specs.ipfs.tech/compact-denylist-format/#file-syntax>).
pub const LINE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The result of parsing a line.
pub type ParsedLine = Result<Rule, RuleError>;

/// An incremental parser.
#[derive(Debug, Default)]
pub struct Parser {
    /// The incomplete last line.
    partial: Vec<u8>,
    /// Whether the current line is too long and is being skipped.
    skips: bool,
    /// The number of complete lines.
    lines: u64,
    /// The lines that may be a header, until that is decided.
    header_candidate: Option<Vec<u8>>,
    /// Whether it is decided if there is a header.
    decided: bool,
    header: Option<Header>,
}

impl Parser {
    /// Parses further bytes, and calls `show` for each rule or invalid line, with its line number, starting at 1.
    ///
    /// # Errors
    /// [`HeaderError`] when the list cannot be read.
    pub fn push(&mut self, bytes: &[u8], show: &mut dyn FnMut(u64, ParsedLine)) -> Result<(), HeaderError> {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.extend(&rest[..end]);
            rest = &rest[end + 1..];
            let line = std::mem::take(&mut self.partial);
            self.lines += 1;
            if std::mem::take(&mut self.skips) {
                show(self.lines, Err(RuleError::TooLong { max: LINE_BYTES_MAX }));
                // An empty line keeps the line numbers of the header candidate right.
                self.header_candidate.iter_mut().for_each(|header_candidate| header_candidate.push(b'\n'));
                if !self.decided {
                    self.header_candidate.get_or_insert_with(|| vec![b'\n']);
                }
            } else {
                self.line(&line, show)?;
            }
            // Reuse the buffer.
            self.partial = line;
            self.partial.clear();
        }
        self.extend(rest);
        Ok(())
    }

    /// The last line, if it is incomplete. It may be continued later.
    pub fn last(&self) -> Option<(u64, ParsedLine)> {
        let is_rule = self.decided || begins_rule(&self.partial);
        let partial = Some(&self.partial).filter(|partial| is_rule && !partial.is_empty() && !self.skips)?;
        parse_line(partial).map(|parsed| (self.lines + 1, parsed))
    }

    /// The header, when it is complete.
    pub fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    /// Whether the bytes so far look like a list: there is a header or a rule, or nothing but comments.
    pub fn is_list(&self) -> bool {
        let header_candidate = self.header_candidate.as_deref().unwrap_or_default();
        let has_content = |line: &[u8]| !trimmed(line).is_empty() && !trimmed(line).starts_with(b"#");
        let lines = header_candidate.split(|byte| *byte == b'\n').chain([&self.partial[..]]);
        self.decided || self.last().is_some() || !lines.into_iter().any(has_content)
    }

    /// The number of complete lines.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    fn extend(&mut self, bytes: &[u8]) {
        if self.skips || self.partial.len() + bytes.len() > LINE_BYTES_MAX {
            self.skips = true;
            self.partial = Vec::new();
        } else {
            self.partial.extend_from_slice(bytes);
        }
    }

    fn line(&mut self, line: &[u8], show: &mut dyn FnMut(u64, ParsedLine)) -> Result<(), HeaderError> {
        if self.decided {
            if let Some(parsed) = parse_line(line) {
                show(self.lines, parsed);
            }
            return Ok(());
        }
        if trimmed(line) == b"---" {
            self.decided = true;
            let header_candidate = self.header_candidate.take().unwrap_or_default();
            let text = String::from_utf8_lossy(&header_candidate);
            self.header = Some(Header::parse(text.lines())?);
            return Ok(());
        }
        let header_candidate = self.header_candidate.get_or_insert_default();
        header_candidate.extend_from_slice(line);
        header_candidate.push(b'\n');
        // A list that begins with a rule, or whose header would be too long, has no header.
        if begins_rule(line) || header_candidate.len() > HEADER_BYTES_MAX {
            self.decided = true;
            let header_candidate = self.header_candidate.take().unwrap_or_default();
            let first = self.lines - header_candidate.iter().filter(|byte| **byte == b'\n').count() as u64;
            for (line, number) in header_candidate
                .strip_suffix(b"\n")
                .unwrap_or(&header_candidate)
                .split(|byte| *byte == b'\n')
                .zip(first + 1..)
            {
                if let Some(parsed) = parse_line(line) {
                    show(number, parsed);
                }
            }
        }
        Ok(())
    }
}

/// Whether a line is a rule, and not part of a header.
fn begins_rule(line: &[u8]) -> bool {
    let line = trimmed(line);
    line.starts_with(b"/") || [b"!/", b"+/", b"-/"].iter().any(|sign| line.starts_with(*sign))
}

/// A line without white space around it, and without a byte order mark.
fn trimmed(line: &[u8]) -> &[u8] {
    line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii()
}

fn parse_line(line: &[u8]) -> Option<ParsedLine> {
    match str::from_utf8(trimmed(line)) {
        Ok(line) => Rule::parse(line).transpose(),
        Err(_) => Some(Err(RuleError::NotText)),
    }
}
