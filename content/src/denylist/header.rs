//! [`Header`]: the header of a list, up to a line `---`.
//!
//! It is YAML, of which a subset is parsed: `name: text` lines, texts that continue in indented lines, and the map of
//! hints. Anything else is ignored, as the specification requires for unknown fields.

use super::rule::status_of;
use crate::policy::Verdict;

/// The maximum length of a header, in bytes.
pub const HEADER_BYTES_MAX: usize = 1024 * 1024;
/// The maximum number of hints in a header. Further ones are ignored.
const HINTS_MAX: usize = 256;
/// The maximum length of a text, in characters. Longer ones are truncated.
const TEXT_MAX: usize = 4096;

/// The header of a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Header {
    /// The name of the list.
    pub name: Option<String>,
    /// The description of the list.
    pub description: Option<String>,
    /// The author of the list.
    pub author: Option<String>,
    /// The default hints for rules.
    pub hints: Vec<(String, String)>,
}

/// Why a list cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The version is not 1; the rules of a later version may have another meaning. The message does not quote the
    /// list, because the response may be something else.
    #[error("the version of the list's format is not 1, the only supported version")]
    Version,
}

impl Header {
    /// Parses the lines before `---`.
    ///
    /// # Errors
    /// [`HeaderError`] if the list has another version.
    pub fn parse<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Self, HeaderError> {
        let mut header = Self::default();
        // The field to which indented lines belong.
        let mut field = String::new();
        for line in lines {
            let line = line.trim_end();
            if line.trim_start().is_empty() || line.trim_start().starts_with('#') {
                continue;
            }
            if line.starts_with([' ', '\t']) {
                header.continue_field(&field, line.trim_start());
                continue;
            }
            let Some((name, value)) = line.split_once(':') else { continue };
            field = name.trim().to_owned();
            let value = scalar(value);
            if field == "version" && !matches!(value.as_str(), "" | "1") {
                return Err(HeaderError::Version);
            }
            if let Some(text) = header.text(&field) {
                // The indicator of a YAML block scalar, whose text follows in the next lines.
                *text = Some(if matches!(value.as_str(), ">" | "|" | ">-" | "|-") { String::new() } else { value });
            }
        }
        Ok(header)
    }

    /// How content is denied by default, if the hints have a status.
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

    fn continue_field(&mut self, field: &str, line: &str) {
        if field == "hints" {
            let hint = line.split_once(':').map(|(name, value)| (name.trim().to_owned(), scalar(value)));
            self.hints.extend(hint.filter(|_| self.hints.len() < HINTS_MAX));
            return;
        }
        if let Some(Some(text)) = self.text(field)
            && text.len() < TEXT_MAX
        {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(line);
        }
    }
}

/// A scalar without quotes and comment.
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
