//! [`RulesCopy`]: the denylist of the site in a file of the data directory; [`PendingDeletions`], the blocks that it
//! newly names; and [`CopyFailure`], the back-off after it could not be written.

use crate::line_file;
use content::cid_list::CidList;
use content::denylist::{Rule, Target};
use content::{Cid, cid, codec};
use p2p_bridge::{back_off, durable};
use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher as _;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The beginning of the file.
const HEADER: &str = "version: 1\n\
    name: Rules of the site\n\
    description: A copy of the rules of all gateways of the site. Changes of this file are overwritten.\n\
    ---\n";
/// The maximum number of blocks that wait to be deleted. Others are withheld all the same.
const PENDING_MAX: usize = 1_000_000;
/// The back-off after the first failure to write the copy, and the maximum.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Why the copy could not be written.
#[derive(Debug, Clone, thiserror::Error)]
#[error(
    "writing {path} failed, so the latest rules of the site are not in force at this gateway yet: {reason}",
    path = path.display()
)]
pub struct CopyError {
    /// The file.
    path: PathBuf,
    /// The error of the file system.
    reason: Arc<io::Error>,
}

/// The latest of consecutive failures to write the copy, and when it is tried again.
#[derive(Debug)]
pub(super) struct CopyFailure {
    pub error: CopyError,
    /// The number of those before.
    former: u32,
    retry_at: Instant,
}

impl CopyFailure {
    /// A failure after others, if there are any.
    pub fn after(others: Option<&Self>, error: CopyError, now: Instant) -> Self {
        let former = others.map_or(0, |last| last.former.saturating_add(1));
        Self { error, former, retry_at: now + back_off::exponential(RETRY_FIRST, RETRY_MAX, former) }
    }

    /// Whether the back-off is over.
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.retry_at
    }
}

/// The size of lines in the file, in bytes.
pub(super) fn bytes_of(lines: &[String]) -> u64 {
    lines.iter().map(|line| line.len() as u64 + 1).sum()
}

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
    pub fn append(&self, lines: &[String]) -> Result<(), CopyError> {
        line_file::append(&self.path, lines).map_err(|error| self.error(error))
    }

    /// The size of the file with lines of so many bytes.
    pub fn size(lines_bytes: u64) -> u64 {
        lines_bytes.saturating_add(HEADER.len() as u64)
    }

    /// Replaces the lines, atomically and durably, unless they are the same. Returns the blocks that the new ones name.
    pub fn replace(&self, lines: &str) -> Result<PendingDeletions, CopyError> {
        let text = format!("{HEADER}{lines}");
        let former = match fs::read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read.map_err(|error| self.error(error))?,
        };
        if former == text.as_bytes() {
            return Ok(PendingDeletions::default());
        }
        let create_folder = || self.path.parent().map_or(Ok(()), durable::create_folder);
        let written = create_folder().and_then(|()| durable::write(&self.path, text.as_bytes()));
        written.map_err(|error| self.error(error))?;
        // Hashes of lines take less memory. Two lines with the same one only leave a withheld block on the disk.
        let hasher = RandomState::new();
        let known: HashSet<u64> = former.split(|byte| *byte == b'\n').map(|line| hasher.hash_one(line)).collect();
        let mut pending = PendingDeletions::default();
        let is_new = |line: &&str| !known.contains(&hasher.hash_one(line.as_bytes()));
        lines.lines().filter(is_new).for_each(|line| pending.add(line));
        Ok(pending)
    }

    fn error(&self, error: io::Error) -> CopyError {
        CopyError { path: self.path.clone(), reason: Arc::new(error) }
    }
}

/// The roots that rules of other gateways name, in which blocks are to be deleted that the policy withholds.
#[derive(Debug, Default)]
pub struct PendingDeletions {
    /// Those of rules that were received one by one, whose links are kept.
    pub single: CidList,
    /// Those of many rules.
    pub many: CidList,
}

impl PendingDeletions {
    /// Adds those of the lines of an entry. Only a deep take-down appends several lines at once.
    pub(super) fn add_entry(&mut self, lines: &[String]) {
        match lines {
            [line] if self.single.len() < PENDING_MAX => root_of(line).iter().for_each(|root| self.single.push(root)),
            lines => lines.iter().for_each(|line| self.add(line)),
        }
    }

    fn add(&mut self, line: &str) {
        if self.many.len() < PENDING_MAX {
            root_of(line).iter().for_each(|root| self.many.push(root));
        }
    }

    /// Adds others.
    pub(super) fn extend(&mut self, others: Self) {
        if self.is_empty() {
            *self = others;
            return;
        }
        let others = others.single.iter().chain(others.many.iter());
        others.take(PENDING_MAX.saturating_sub(self.many.len())).for_each(|root| self.many.push(&root));
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

    fn many(pending: &PendingDeletions) -> Vec<Cid> {
        pending.many.iter().collect()
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
    fn rules_that_are_received_one_by_one_are_distinguished_from_many() {
        let (a, b, c) = (cid_of("a"), cid_of("b"), cid_of("c"));
        let received = || {
            let mut pending = PendingDeletions::default();
            pending.add_entry(&[format!("/ipfs/{a}")]);
            pending.add_entry(&[format!("/ipfs/{b}"), format!("/ipfs/{c}")]);
            pending
        };
        let single = |pending: &PendingDeletions| pending.single.iter().collect::<Vec<_>>();
        assert_eq!((single(&received()), many(&received())), (vec![a], vec![b, c]));
        let mut all = PendingDeletions::default();
        all.extend(received());
        assert_eq!((single(&all), many(&all)), (vec![a], vec![b, c]));
        all.extend(received());
        assert_eq!((single(&all), many(&all)), (vec![a], vec![b, c, a, b, c]));
    }

    #[test]
    fn the_back_off_after_failures_doubles_up_to_a_minute() {
        let copy = RulesCopy::at("site.deny".into());
        let (now, mut waits, mut last) = (Instant::now(), Vec::new(), None);
        for _ in 0..8 {
            let error = copy.error(io::Error::from(io::ErrorKind::StorageFull));
            let failure = CopyFailure::after(last.as_ref(), error, now);
            waits.push(failure.retry_at.duration_since(now).as_secs());
            last = Some(failure);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
        let last = last.expect("failures");
        assert!(!last.is_due(now + Duration::from_secs(59)) && last.is_due(now + Duration::from_secs(60)));
    }
}
