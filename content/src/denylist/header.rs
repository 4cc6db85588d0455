//! [`Header`]: what stands before the rules, up to a line `---`.
//!
//! It is YAML, of which only what lists use is read: `name: text` lines, texts that go on in indented lines, and the map of
//! hints. Whatever else stands there is passed over, as the specification asks of fields that are not known.

use super::rule::status_of;
use crate::policy::Verdict;

/// The longest header, in bytes.
pub const HEADER_BYTES_MAX: usize = 1024 * 1024;
/// Hints of a header that are kept.
const HINTS_MAX: usize = 256;
/// How much of a text is kept, in characters.
const TEXT_MAX: usize = 4096;

/// What a list says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Header {
    /// What it is called.
    pub name: Option<String>,
    /// What it is for.
    pub description: Option<String>,
    /// Who makes it.
    pub author: Option<String>,
    /// What holds for every rule that says nothing else.
    pub hints: Vec<(String, String)>,
}

/// Why a list is not read at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// A later version of the format may mean something else by the same rules.
    /// What the list says is not repeated: who sent it may have sent something else.
    #[error("the list is of another version of the format than version 1, which alone is understood")]
    Version,
}

impl Header {
    /// Reads the lines before `---`.
    ///
    /// # Errors
    /// [`HeaderError`] if the list is of another version.
    pub fn parse<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Self, HeaderError> {
        let mut header = Self::default();
        // The field that indented lines belong to.
        let mut open = String::new();
        for line in lines {
            let line = line.trim_end();
            if line.trim_start().is_empty() || line.trim_start().starts_with('#') {
                continue;
            }
            if line.starts_with([' ', '\t']) {
                header.go_on(&open, line.trim_start());
                continue;
            }
            let Some((name, value)) = line.split_once(':') else { continue };
            open = name.trim().to_owned();
            let value = scalar(value);
            if open == "version" && !matches!(value.as_str(), "" | "1") {
                return Err(HeaderError::Version);
            }
            if let Some(text) = header.text(&open) {
                // A text in the lines below begins with a sign of how to join them.
                *text = Some(if matches!(value.as_str(), ">" | "|" | ">-" | "|-") { String::new() } else { value });
            }
        }
        Ok(header)
    }

    /// How content is refused, if the hints say so.
    pub fn status(&self) -> Option<Verdict> {
        status_of(self.hints.iter().map(|(name, value)| (name.as_str(), value.as_str())))
    }

    fn text(&mut self, name: &str) -> Option<&mut Option<String>> {
        match name {
            "name" => Some(&mut self.name),
            "description" => Some(&mut self.description),
            "author" => Some(&mut self.author),
            _ => None,
        }
    }

    fn go_on(&mut self, open: &str, line: &str) {
        if open == "hints" {
            let hint = line.split_once(':').map(|(name, value)| (name.trim().to_owned(), scalar(value)));
            self.hints.extend(hint.filter(|_| self.hints.len() < HINTS_MAX));
            return;
        }
        if let Some(Some(text)) = self.text(open)
            && text.len() < TEXT_MAX
        {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(line);
        }
    }
}

/// A value, without its quotes or what is remarked after it.
fn scalar(value: &str) -> String {
    let value = value.trim();
    for quote in ['"', '\''] {
        if let Some(inner) = value.strip_prefix(quote).and_then(|rest| rest.split(quote).next()) {
            return inner.chars().take(TEXT_MAX).collect();
        }
    }
    let value = value.split(" #").next().unwrap_or_default().trim_end();
    value.chars().take(TEXT_MAX).collect()
}
