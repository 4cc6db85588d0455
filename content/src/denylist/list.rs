//! [`List`]: one list as it is now, and [`ListBuilder`], which reads it as it grows.

use super::header::{Header, HeaderError};
use super::keys::{self, Function, Key};
use super::parser::{Parser, Read};
use super::rule::{PathPattern, Rule, RuleError, Target};
use super::runs::{Keys, Layers, Mark, Path, Paths, below, match_path};
use crate::hashes;
use crate::policy::Verdict;

/// Lines that are no rules and are reported one by one; the others are counted.
const REPORTED_MAX: usize = 100;
/// Functions that double hashes may be of: each is computed for every check.
const FUNCTIONS_MAX: usize = 4;

/// What no rule has in its path: stands for whatever else there may be.
pub(super) const BEYOND: char = '\0';

/// A line that is no rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    /// Its number, from 1 on.
    pub line: u64,
    /// What is wrong with it.
    pub error: RuleError,
}

/// One list, as it was at some moment. Clones share the memory.
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
    /// A list of these rules, each on the line of its place.
    pub fn of(rules: impl IntoIterator<Item = Rule>) -> Self {
        let mut builder = ListBuilder::default();
        for (rule, line) in rules.into_iter().zip(1..) {
            builder.gathered.add(line, Ok(rule));
        }
        builder.list()
    }

    /// Reads a whole list.
    ///
    /// # Errors
    /// [`HeaderError`] when it is not to be read at all.
    pub fn parse(text: &[u8]) -> Result<Self, HeaderError> {
        let mut builder = ListBuilder::default();
        builder.push(text)?;
        Ok(builder.list())
    }

    /// What it says of itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// How many rules it has.
    pub fn rules(&self) -> u64 {
        self.rules
    }

    /// How many of its lines are no rules,
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// and the first of these.
    pub fn reported(&self) -> &[Reported] {
        &self.reported
    }

    /// How its rules refuse content that say nothing else, if it says so.
    pub fn status(&self) -> Option<Verdict> {
        self.status
    }

    /// What its rules take, in bytes.
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

    /// The rule about a key itself.
    pub(super) fn find(&self, key: Key) -> Option<Mark> {
        // A list that only grew has its last lines in its last run, but one run may have any.
        self.keys.iter().filter_map(|run| run.find(key)).reduce(Mark::later)
    }

    /// The rule about a path below a root.
    pub(super) fn find_path(&self, root: Key, path: &str) -> Option<Mark> {
        self.paths.iter().filter_map(|run| match_path(run.of_root(root), path)).reduce(Mark::later)
    }

    /// Whether some path below a path is one that content might be refused for: shown, until it is. Of what begins with
    /// something, that something is shown, and with [`BEYOND`] behind it, for it alone may be excepted.
    pub(super) fn any_below(&self, root: Key, path: &str, mut is_refused: impl FnMut(&str) -> bool) -> bool {
        let rules = self.paths.iter().flat_map(|run| below(run.of_root(root), path));
        let mut rules = rules.filter(|rule| !rule.mark.allows());
        rules.any(|rule| is_refused(&rule.text) || rule.prefix && is_refused(&format!("{}{BEYOND}", rule.text)))
    }
}

/// Reads a list, and goes on when more of it is there.
#[derive(Debug, Default)]
pub struct ListBuilder {
    parser: Parser,
    gathered: Gathered,
}

/// What was read.
#[derive(Debug, Default, Clone)]
struct Gathered {
    list: List,
    keys: Vec<(Key, Mark)>,
    paths: Vec<Path>,
}

impl ListBuilder {
    /// Takes more of the list.
    ///
    /// # Errors
    /// [`HeaderError`] when it is not to be read at all.
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), HeaderError> {
        let Self { parser, gathered } = self;
        parser.push(bytes, &mut |line, read| gathered.add(line, read))?;
        if let Some(header) = parser.header() {
            gathered.list.status = header.status();
            if gathered.list.header != *header {
                gathered.list.header = header.clone();
            }
        }
        Ok(())
    }

    /// Whether what was read may be a list at all, and not a page that says that there is none.
    pub fn is_list(&self) -> bool {
        self.parser.is_list()
    }

    /// The list as it is now. A last line that has not ended counts as it is, and is read again when it has.
    pub fn list(&mut self) -> List {
        self.gathered.settle();
        let Some((line, read)) = self.parser.last() else { return self.gathered.list.clone() };
        let mut gathered = Gathered { list: self.gathered.list.clone(), ..Gathered::default() };
        gathered.add(line, read);
        gathered.settle();
        gathered.list
    }
}

impl Gathered {
    fn add(&mut self, line: u64, read: Read) {
        let added = read.and_then(|rule| self.add_rule(line, &rule));
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
        let mark = Mark::new(line, rule.allows, rule.status());
        match &rule.target {
            Target::Content { hash, path } => self.add_path(keys::of_block(hash), path, mark),
            Target::Name { name, path } => self.add_path(keys::of_name(name), path, mark),
            Target::Double { hash, other } => {
                for hash in [Some(hash), other.as_ref()].into_iter().flatten() {
                    let function = (hash.code(), hash.digest().len());
                    if !self.list.functions.contains(&function) {
                        if self.list.functions.len() == FUNCTIONS_MAX {
                            return Err(RuleError::Functions { max: FUNCTIONS_MAX });
                        }
                        self.list.functions.push(function);
                        // The older form is asked for first.
                        self.list.functions.sort_unstable_by_key(|function| *function != (hashes::SHA2_256, 32));
                    }
                    self.keys.push((keys::of_double(hash), mark));
                }
            }
        }
        Ok(())
    }

    fn add_path(&mut self, key: Key, path: &PathPattern, mark: Mark) {
        if path.text.is_empty() {
            // The root itself, as a block too.
            self.keys.push((key, mark));
        }
        if path.prefix || !path.text.is_empty() {
            let text = path.text.as_str().into();
            self.paths.push(Path { key, text, prefix: path.prefix, mark });
        }
    }

    fn settle(&mut self) {
        self.list.keys.add(std::mem::take(&mut self.keys));
        self.list.paths.add(std::mem::take(&mut self.paths));
    }
}
