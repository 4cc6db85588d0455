//! [`List`]: a snapshot of one list, and [`ListBuilder`], which parses a list incrementally.

use super::header::{Header, HeaderError};
use super::keys::{self, Function, Key};
use super::parser::{ParsedLine, Parser};
use super::rule::{PathPattern, Rule, RuleError, Target};
use super::runs::{Keys, Layers, Path, Paths, RuleInfo, match_path, paths_below};
use crate::hashes;
use crate::policy::Verdict;

/// The maximum number of invalid lines that are reported one by one; further ones are only counted.
const REPORTED_MAX: usize = 100;
/// The maximum number of hash functions for double hashes, each of which is computed for every check.
const FUNCTIONS_MAX: usize = 4;

/// A character that no rule has in its path: stands for any further path.
pub(super) const ANY_FURTHER: char = '\0';

/// An invalid line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    /// The line number, starting at 1.
    pub line: u64,
    /// What is wrong with the line.
    pub error: RuleError,
}

/// A snapshot of one list. Clones share the memory.
#[derive(Debug, Clone, Default)]
pub struct List {
    keys: Layers<Keys>,
    paths: Layers<Paths>,
    functions: Vec<Function>,
    status: Option<Verdict>,
    header: Header,
    rules: u64,
    malformed: u64,
    reported: Vec<Reported>,
}

impl List {
    /// A list with these rules, one for each line.
    pub fn of(rules: impl IntoIterator<Item = Rule>) -> Self {
        let mut builder = ListBuilder::default();
        for (rule, line) in rules.into_iter().zip(1..) {
            builder.parsed.add(line, Ok(rule));
        }
        builder.list()
    }

    /// Parses a whole list.
    ///
    /// # Errors
    /// [`HeaderError`] when the list cannot be read.
    pub fn parse(text: &[u8]) -> Result<Self, HeaderError> {
        let mut builder = ListBuilder::default();
        builder.push(text)?;
        Ok(builder.list())
    }

    /// The header of the list.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The number of rules.
    pub fn rules(&self) -> u64 {
        self.rules
    }

    /// The number of invalid lines.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// The first invalid lines.
    pub fn reported(&self) -> &[Reported] {
        &self.reported
    }

    /// How content is denied by default, if the header has a status.
    pub fn status(&self) -> Option<Verdict> {
        self.status
    }

    /// The size of the rules in memory, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.keys.memory_bytes() + self.paths.memory_bytes()
    }

    pub(super) fn functions(&self) -> &[Function] {
        &self.functions
    }

    pub(super) fn has_paths(&self) -> bool {
        !self.paths.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.paths.is_empty()
    }

    /// The rule for a key.
    pub(super) fn find(&self, key: Key) -> Option<RuleInfo> {
        // The last run of an appended list has its last lines, but after a merge any run may have the latest line.
        self.keys.iter().filter_map(|run| run.find(key)).reduce(RuleInfo::later)
    }

    /// The rule for a path below a root.
    pub(super) fn find_path(&self, root: Key, path: &str) -> Option<RuleInfo> {
        self.paths.iter().filter_map(|run| match_path(run.of_root(root), path)).reduce(RuleInfo::later)
    }

    /// Calls `is_refused` for the paths below `path` that may be denied, until it returns `true`. For a rule with a
    /// prefix it is called with the prefix, and with [`ANY_FURTHER`] after it, because an exception may cover only the
    /// prefix itself.
    pub(super) fn any_below(&self, root: Key, path: &str, mut is_refused: impl FnMut(&str) -> bool) -> bool {
        let rules = self.paths.iter().flat_map(|run| paths_below(run.of_root(root), path));
        let mut rules = rules.filter(|rule| !rule.info.allows());
        rules.any(|rule| is_refused(&rule.text) || rule.prefix && is_refused(&format!("{}{ANY_FURTHER}", rule.text)))
    }
}

/// Parses a list, and continues when the list grows.
#[derive(Debug, Default)]
pub struct ListBuilder {
    parser: Parser,
    parsed: ParsedRules,
}

/// The parsed rules.
#[derive(Debug, Default, Clone)]
struct ParsedRules {
    list: List,
    keys: Vec<(Key, RuleInfo)>,
    paths: Vec<Path>,
}

impl ListBuilder {
    /// Parses further bytes of the list.
    ///
    /// # Errors
    /// [`HeaderError`] when the list cannot be read.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), HeaderError> {
        let Self { parser, parsed } = self;
        parser.push(bytes, &mut |line, parsed_line| parsed.add(line, parsed_line))?;
        if let Some(header) = parser.header() {
            parsed.list.status = header.status();
            if parsed.list.header != *header {
                parsed.list.header = header.clone();
            }
        }
        Ok(())
    }

    /// Whether the bytes so far look like a list, and not like an error page.
    pub fn is_list(&self) -> bool {
        self.parser.is_list()
    }

    /// The list so far. An incomplete last line is included, and parsed again when it is complete.
    pub fn list(&mut self) -> List {
        self.parsed.flush();
        let Some((line, parsed_line)) = self.parser.last() else { return self.parsed.list.clone() };
        let mut parsed = ParsedRules { list: self.parsed.list.clone(), ..ParsedRules::default() };
        parsed.add(line, parsed_line);
        parsed.flush();
        parsed.list
    }
}

impl ParsedRules {
    fn add(&mut self, line: u64, parsed_line: ParsedLine) {
        let added = parsed_line.and_then(|rule| self.add_rule(line, &rule));
        match added {
            Ok(()) => self.list.rules += 1,
            Err(error) => {
                self.list.malformed += 1;
                if self.list.reported.len() < REPORTED_MAX {
                    self.list.reported.push(Reported { line, error });
                }
            }
        }
    }

    fn add_rule(&mut self, line: u64, rule: &Rule) -> Result<(), RuleError> {
        let info = RuleInfo::new(line, rule.allows, rule.status());
        match &rule.target {
            Target::Content { hash, path } => self.add_path(keys::of_block(hash), path, info),
            Target::Name { name, path } => self.add_path(keys::of_name(name), path, info),
            Target::Double { hash, other } => {
                for hash in [Some(hash), other.as_ref()].into_iter().flatten() {
                    let function = (hash.code(), hash.digest().len());
                    if !self.list.functions.contains(&function) {
                        if self.list.functions.len() == FUNCTIONS_MAX {
                            return Err(RuleError::Functions { max: FUNCTIONS_MAX });
                        }
                        self.list.functions.push(function);
                        // SHA2-256 is first, because the legacy form uses it.
                        self.list.functions.sort_unstable_by_key(|function| *function != (hashes::SHA2_256, 32));
                    }
                    self.keys.push((keys::of_double(hash), info));
                }
            }
        }
        Ok(())
    }

    fn add_path(&mut self, key: Key, path: &PathPattern, info: RuleInfo) {
        if path.text.is_empty() {
            // The rule is for the root itself, also as a block.
            self.keys.push((key, info));
        }
        if path.prefix || !path.text.is_empty() {
            let text = path.text.as_str().into();
            self.paths.push(Path { key, text, prefix: path.prefix, info });
        }
    }

    fn flush(&mut self) {
        self.list.keys.add(std::mem::take(&mut self.keys));
        self.list.paths.add(std::mem::take(&mut self.paths));
    }
}
