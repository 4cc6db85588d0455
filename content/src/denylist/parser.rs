//! [`Parser`]: bytes as they come, cut into lines and read.
//!
//! Goals: a list of any size in the memory of one line; reading goes on where the list ended when more of it comes.

use super::header::{HEADER_BYTES_MAX, Header, HeaderError};
use super::rule::{Rule, RuleError};

/// The longest line, in bytes (<https://specs.ipfs.tech/compact-denylist-format/#file-syntax>).
pub const LINE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// What a line was.
pub type Read = Result<Rule, RuleError>;

/// Reads a list.
#[derive(Debug, Default)]
pub struct Parser {
    /// The line that has not ended yet.
    partial: Vec<u8>,
    /// The line is too long: the rest of it is passed over.
    skips: bool,
    /// The lines so far that ended.
    lines: u64,
    /// The lines that may be a header, until that is decided.
    held: Option<Vec<u8>>,
    /// Whether it is decided.
    decided: bool,
    header: Option<Header>,
}

impl Parser {
    /// Takes more of the list, and shows each rule, or why there is none, with the number of its line, from 1 on.
    ///
    /// # Errors
    /// [`HeaderError`] when the list is not to be read at all.
    pub fn push(&mut self, bytes: &[u8], show: &mut dyn FnMut(u64, Read)) -> Result<(), HeaderError> {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.extend(&rest[..end]);
            rest = &rest[end + 1..];
            let line = std::mem::take(&mut self.partial);
            self.lines += 1;
            if std::mem::take(&mut self.skips) {
                show(self.lines, Err(RuleError::TooLong { max: LINE_BYTES_MAX }));
                // The lines that are held keep their numbers.
                self.held.iter_mut().for_each(|held| held.push(b'\n'));
                if !self.decided {
                    self.held.get_or_insert_with(|| vec![b'\n']);
                }
            } else {
                self.line(&line, show)?;
            }
            // The buffer is used again.
            self.partial = line;
            self.partial.clear();
        }
        self.extend(rest);
        Ok(())
    }

    /// The last line, if the list ends without ending it. More of it may come.
    pub fn last(&self) -> Option<(u64, Read)> {
        let is_rule = self.decided || begins_rule(&self.partial);
        let partial = Some(&self.partial).filter(|partial| is_rule && !partial.is_empty() && !self.skips)?;
        read(partial).map(|read| (self.lines + 1, read))
    }

    /// What the list says of itself, as soon as that is read.
    pub fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    /// Whether what was read may be a list: there was a header or a rule, or nothing but remarks.
    pub fn is_list(&self) -> bool {
        let held = self.held.as_deref().unwrap_or_default();
        let says_something = |line: &[u8]| !trimmed(line).is_empty() && !trimmed(line).starts_with(b"#");
        let lines = held.split(|byte| *byte == b'\n').chain([&self.partial[..]]);
        self.decided || self.last().is_some() || !lines.into_iter().any(says_something)
    }

    /// How many lines ended.
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

    fn line(&mut self, line: &[u8], show: &mut dyn FnMut(u64, Read)) -> Result<(), HeaderError> {
        if self.decided {
            if let Some(read) = read(line) {
                show(self.lines, read);
            }
            return Ok(());
        }
        if trimmed(line) == b"---" {
            self.decided = true;
            let held = self.held.take().unwrap_or_default();
            let text = String::from_utf8_lossy(&held);
            self.header = Some(Header::parse(text.lines())?);
            return Ok(());
        }
        let held = self.held.get_or_insert_default();
        held.extend_from_slice(line);
        held.push(b'\n');
        // Who begins with rules has no header, and neither has who would have one that long.
        if begins_rule(line) || held.len() > HEADER_BYTES_MAX {
            self.decided = true;
            let held = self.held.take().unwrap_or_default();
            let first = self.lines - held.iter().filter(|byte| **byte == b'\n').count() as u64;
            for (line, number) in
                held.strip_suffix(b"\n").unwrap_or(&held).split(|byte| *byte == b'\n').zip(first + 1..)
            {
                if let Some(read) = read(line) {
                    show(number, read);
                }
            }
        }
        Ok(())
    }
}

/// Whether a line is no part of a header.
fn begins_rule(line: &[u8]) -> bool {
    let line = trimmed(line);
    line.starts_with(b"/") || [b"!/", b"+/", b"-/"].iter().any(|sign| line.starts_with(*sign))
}

/// A line without what editors put around it: white space, and a mark of the encoding before the first.
fn trimmed(line: &[u8]) -> &[u8] {
    line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii()
}

fn read(line: &[u8]) -> Option<Read> {
    match str::from_utf8(trimmed(line)) {
        Ok(line) => Rule::parse(line).transpose(),
        Err(_) => Some(Err(RuleError::NotText)),
    }
}
