//! The records of the control log.
//!
//! | key | content |
//! |---|---|
//! | `rule/` and 16 hexadecimal digits, a number | a line of the denylist, in the order of the numbers |
//! | `token/` and the ID of a token | the token, as [`crate::access::token_store::StoredToken`] in JSON |
//!
//! Records with other keys are ignored: a newer release may write them.

use cache::metadata_store::Change;
use content::denylist::Rule;
use std::collections::BTreeMap;

const RULE: &str = "rule/";
const TOKEN: &str = "token/";
/// The number of digits of a line's number.
const DIGITS: usize = 16;

/// Tokens as JSON, by their IDs.
pub type TokenRecords = BTreeMap<String, Vec<u8>>;

/// What a key names.
#[derive(Debug, PartialEq, Eq)]
enum Key {
    Rule(u64),
    Token(String),
}

impl Key {
    fn parse(key: &[u8]) -> Option<Self> {
        let key = str::from_utf8(key).ok()?;
        if let Some(id) = key.strip_prefix(TOKEN) {
            return Some(Self::Token(id.to_owned()));
        }
        let digits = key.strip_prefix(RULE).filter(|digits| digits.len() == DIGITS)?;
        u64::from_str_radix(digits, 16).ok().map(Self::Rule)
    }
}

/// The key of a line.
pub(super) fn rule_key(number: u64) -> Vec<u8> {
    format!("{RULE}{number:016x}").into_bytes()
}

/// The change that creates or replaces a token.
pub fn put_token(id: &str, json: Vec<u8>) -> Change {
    Change::Put(format!("{TOKEN}{id}").into_bytes(), json)
}

/// The change that removes a token.
pub fn remove_token(id: &str) -> Change {
    Change::Delete(format!("{TOKEN}{id}").into_bytes())
}

/// The rule of a record; `None` if it is no line, or the line is no rule.
pub(super) fn rule_of(key: &[u8], content: &[u8]) -> Option<Rule> {
    matches!(Key::parse(key), Some(Key::Rule(_))).then_some(())?;
    Rule::parse(line(content)?.trim()).ok()?
}

/// The line of a record. What could be more than one is none.
fn line(content: &[u8]) -> Option<&str> {
    str::from_utf8(content).ok().filter(|line| !line.contains(['\n', '\r']))
}

/// All records, as they are read.
#[derive(Debug, Default)]
pub(super) struct Records {
    keeps_lines: bool,
    /// The lines, each with its end.
    lines: String,
    /// The number of the next line; [`u64::MAX`] if none is left, because another program has written the last one.
    pub rule_next: u64,
    /// The tokens.
    pub tokens: TokenRecords,
}

impl Records {
    pub fn new(keeps_lines: bool) -> Self {
        Self { keeps_lines, ..Self::default() }
    }

    /// Adds the next record in the order of keys.
    pub fn add(&mut self, key: &[u8], content: &[u8]) {
        match Key::parse(key) {
            Some(Key::Rule(number)) => {
                self.rule_next = self.rule_next.max(number.saturating_add(1));
                if let Some(line) = line(content).filter(|_| self.keeps_lines) {
                    self.lines.push_str(line);
                    self.lines.push('\n');
                }
            }
            Some(Key::Token(id)) => _ = self.tokens.insert(id, content.to_owned()),
            None => {}
        }
    }

    pub fn take_lines(&mut self) -> String {
        std::mem::take(&mut self.lines)
    }
}

/// A change of a token.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TokenChange {
    id: String,
    /// `None`: it is removed.
    json: Option<Vec<u8>>,
}

impl TokenChange {
    pub fn apply(self, tokens: &mut TokenRecords) {
        match self.json {
            Some(json) => _ = tokens.insert(self.id, json),
            None => _ = tokens.remove(&self.id),
        }
    }
}

/// The changes of an entry that only adds lines at the end.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Batch {
    pub lines: Vec<String>,
    /// The number of the next line.
    pub rule_next: u64,
    pub tokens: Vec<TokenChange>,
}

impl Batch {
    /// `None` if the entry removes or replaces lines. `rule_next` is the number after that of the last known line.
    pub fn of(changes: Vec<Change>, rule_next: u64) -> Option<Self> {
        let mut batch = Self { rule_next, ..Self::default() };
        for change in changes {
            let (key, content) = match change {
                Change::Put(key, content) => (key, Some(content)),
                Change::Delete(key) => (key, None),
            };
            match Key::parse(&key) {
                Some(Key::Rule(number)) => batch.add_line(number, &content?)?,
                Some(Key::Token(id)) => batch.tokens.push(TokenChange { id, json: content }),
                None => {}
            }
        }
        Some(batch)
    }

    fn add_line(&mut self, number: u64, content: &[u8]) -> Option<()> {
        if number < self.rule_next {
            return None;
        }
        self.rule_next = number.checked_add(1)?;
        self.lines.extend(line(content).map(str::to_owned));
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(number: u64, line: &str) -> Change {
        Change::Put(rule_key(number), line.into())
    }

    #[test]
    fn entries_that_only_add_lines_are_distinguished() {
        let text = |batch: Option<Batch>| batch.map(|batch| (batch.lines.join(","), batch.rule_next));
        let added = |lines: &str, next| Some((lines.to_owned(), next));
        let table = [
            ("nothing", vec![], added("", 5)),
            ("lines", vec![put(5, "a"), put(6, "b")], added("a,b", 7)),
            ("a gap", vec![put(9, "a")], added("a", 10)),
            ("a number that is known", vec![put(4, "a")], None),
            ("the same number twice", vec![put(5, "a"), put(5, "b")], None),
            ("a removal", vec![put(5, "a"), Change::Delete(rule_key(2))], None),
            ("more than a line", vec![put(5, "a\nb"), put(6, "c")], added("c", 7)),
            ("keys of a newer release", vec![Change::Delete(b"rule/1".to_vec()), put_token("x", vec![])], added("", 5)),
            ("the last number", vec![put(u64::MAX, "a")], None),
        ];
        for (what, changes, expected) in table {
            assert_eq!(text(Batch::of(changes, 5)), expected, "{what}");
        }
        let changes =
            vec![put_token("one", b"1".to_vec()), remove_token("two"), Change::Put(b"new/1".to_vec(), vec![])];
        let mut tokens = TokenRecords::from([("two".to_owned(), b"2".to_vec())]);
        let batch = Batch::of(changes, 0).expect("no lines");
        batch.tokens.into_iter().for_each(|change| change.apply(&mut tokens));
        assert_eq!(tokens, TokenRecords::from([("one".to_owned(), b"1".to_vec())]));
    }

    #[test]
    fn keys_are_parsed() {
        let table: [(&[u8], Option<Key>); 7] = [
            (b"rule/000000000000001f", Some(Key::Rule(31))),
            (b"rule/1f", None),
            (b"rule/00000000000000zz", None),
            (b"token/abc", Some(Key::Token("abc".to_owned()))),
            (b"other/abc", None),
            (b"\xff", None),
            (b"", None),
        ];
        for (key, expected) in table {
            assert_eq!(Key::parse(key), expected, "{key:?}");
        }
        assert_eq!(Key::parse(&rule_key(31)), Some(Key::Rule(31)));
    }
}
