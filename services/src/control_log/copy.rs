//! [`RulesCopy`]: the denylist of the site in a file of the data directory, and the blocks that it newly names.

use super::ControlLogError;
use crate::line_file;
use content::cid_list::CidList;
use content::denylist::{Rule, Target};
use content::{Cid, cid, codec};
use p2p_bridge::durable;
use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher as _;
use std::io;
use std::path::PathBuf;

/// The beginning of the file.
const HEADER: &str = "version: 1\n\
    name: Rules of the site\n\
    description: A copy of the rules that all gateways of the site obey. Changes of this file are overwritten.\n\
    ---\n";
/// The maximum number of blocks that wait to be deleted. Others are withheld all the same.
const ARRIVED_MAX: usize = 1_000_000;

/// The copy. Its functions block the thread.
#[derive(Debug, Clone)]
pub(super) struct RulesCopy {
    path: PathBuf,
}

impl RulesCopy {
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Appends lines, durably.
    pub fn append(&self, lines: &[String]) -> Result<(), ControlLogError> {
        line_file::append(&self.path, lines).map_err(|said| self.error(said))
    }

    /// Replaces the lines, atomically and durably, unless they are the same. Returns the blocks that the new ones name.
    pub fn replace(&self, lines: &str) -> Result<ArrivedBlocks, ControlLogError> {
        let text = format!("{HEADER}{lines}");
        let former = match fs::read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read.map_err(|said| self.error(said))?,
        };
        if former == text.as_bytes() {
            return Ok(ArrivedBlocks::default());
        }
        let create_folder = || self.path.parent().map_or(Ok(()), durable::create_folder);
        let written = create_folder().and_then(|()| durable::write(&self.path, text.as_bytes()));
        written.map_err(|said| self.error(said))?;
        // Hashes of lines take less memory. Two lines with the same one only leave a withheld block on the disk.
        let hasher = RandomState::new();
        let known: HashSet<u64> = former.split(|byte| *byte == b'\n').map(|line| hasher.hash_one(line)).collect();
        let mut arrived = ArrivedBlocks::default();
        let is_new = |line: &&str| !known.contains(&hasher.hash_one(line.as_bytes()));
        lines.lines().filter(is_new).for_each(|line| arrived.add(line));
        Ok(arrived)
    }

    fn error(&self, said: io::Error) -> ControlLogError {
        ControlLogError::Copy { path: self.path.clone(), said }
    }
}

/// The roots that rules of other gateways name, in which blocks are to be deleted that the policy withholds.
#[derive(Debug, Default)]
pub struct ArrivedBlocks {
    /// Those of rules that came one by one, whose links are kept.
    pub single: CidList,
    /// Those of many rules.
    pub many: CidList,
}

impl ArrivedBlocks {
    /// Adds those of the lines of an entry. Only a deep take-down appends several lines at once.
    pub(super) fn add_entry(&mut self, lines: &[String]) {
        match lines {
            [line] if self.single.len() < ARRIVED_MAX => root_of(line).iter().for_each(|root| self.single.push(root)),
            lines => lines.iter().for_each(|line| self.add(line)),
        }
    }

    fn add(&mut self, line: &str) {
        if self.many.len() < ARRIVED_MAX {
            root_of(line).iter().for_each(|root| self.many.push(root));
        }
    }

    pub(super) fn extend(&mut self, others: &Self) {
        let others = others.single.iter().chain(others.many.iter());
        others.take(ARRIVED_MAX.saturating_sub(self.many.len())).for_each(|root| self.many.push(&root));
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.single.is_empty() && self.many.is_empty()
    }
}

/// The root that a line names, with the codec of its text; `None` for a name, a double hash, or an exception.
fn root_of(line: &str) -> Option<Cid> {
    let rule = Rule::parse(line.trim()).ok()??;
    let Target::Content { hash, .. } = &rule.target else { return None };
    let written = || cid::parse(line.split(['/', ' ']).nth(2)?).ok();
    let root = written().filter(|cid| cid.hash() == hash);
    (!rule.allows).then(|| root.unwrap_or_else(|| Cid::new_v1(codec::DAG_PB, *hash)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::{Block, hashes};

    fn cid_of(text: &str) -> Cid {
        *Block::of(codec::RAW, hashes::SHA2_256, 32, text.to_owned().into()).expect("a block").cid()
    }

    fn many(arrived: &ArrivedBlocks) -> Vec<Cid> {
        arrived.many.iter().collect()
    }

    #[test]
    fn the_copy_is_replaced_and_names_what_is_new() {
        let dir = tempfile::tempdir().expect("a folder");
        let copy = RulesCopy::at(dir.path().join("denylists").join("site.deny"));
        let (a, b, c) = (cid_of("a"), cid_of("b"), cid_of("c"));
        let rule = |cid: &Cid| format!("/ipfs/{cid}");
        let first = copy.replace(&format!("{}\n", rule(&a))).expect("writes");
        assert_eq!(many(&first), [a], "a gateway that is new deletes what all rules name");
        copy.append(&[rule(&b)]).expect("adds");
        let lines = format!("{}\n{}\n", rule(&a), rule(&b));
        assert_eq!(fs::read_to_string(&copy.path).expect("reads"), format!("{HEADER}{lines}"));
        assert!(copy.replace(&lines).expect("reads").is_empty(), "it is the same");
        let changed = format!("{} order=x\n{}\n/ipns/a.example\n", rule(&c), rule(&b));
        assert_eq!(many(&copy.replace(&changed).expect("writes")), [c]);
        assert_eq!(fs::read_to_string(&copy.path).expect("reads"), format!("{HEADER}{changed}"));
        // A power failure.
        copy.append(&["/ipfs/torn".to_owned()]).expect("adds");
        copy.replace("").expect("writes");
        assert_eq!(fs::read_to_string(&copy.path).expect("reads"), HEADER);
    }

    #[test]
    fn the_roots_of_rules_have_the_codec_of_their_text() {
        let (raw, hash) = (cid_of("a"), *cid_of("a").hash());
        let double = format!("//{}", "ab".repeat(32));
        let v0 = Cid::new_v0(hash).expect("SHA-256");
        let table = [
            (format!("/ipfs/{raw} reason=x"), Some(raw)),
            (format!("/ipfs/{v0}/a/b"), Some(v0)),
            (format!("!/ipfs/{raw}"), None),
            ("/ipns/a.example".to_owned(), None),
            (double, None),
            ("# a comment".to_owned(), None),
            ("nonsense".to_owned(), None),
        ];
        for (line, expected) in table {
            assert_eq!(root_of(&line), expected, "{line}");
        }
    }

    #[test]
    fn rules_that_come_one_by_one_are_told_from_many() {
        let (a, b, c) = (cid_of("a"), cid_of("b"), cid_of("c"));
        let mut arrived = ArrivedBlocks::default();
        arrived.add_entry(&[format!("/ipfs/{a}")]);
        arrived.add_entry(&[format!("/ipfs/{b}"), format!("/ipfs/{c}")]);
        assert_eq!((arrived.single.iter().collect::<Vec<_>>(), many(&arrived)), (vec![a], vec![b, c]));
        let mut all = ArrivedBlocks::default();
        all.extend(&arrived);
        assert_eq!((all.single.len(), many(&all)), (0, vec![a, b, c]));
    }
}
