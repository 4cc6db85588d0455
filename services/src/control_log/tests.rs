//! Several members of a site, with one log in memory and files of their own.

use super::*;
use crate::test_log::{Connection, Fault};
use cache::MetadataStore;
use std::fs;
use std::sync::atomic::Ordering;
use tempfile::TempDir;

/// The latest entries that the log keeps: all of them, or none, so that all records are read again.
const ENTRIES_BYTES_MAX: [usize; 2] = [1 << 20, 0];

struct Member {
    dir: TempDir,
    connection: Arc<Connection>,
    control: Arc<ControlLog>,
}

impl Member {
    async fn start(log: &MetadataStore) -> Self {
        let (dir, connection) = (TempDir::new().expect("a folder"), Connection::new(log));
        let control = ControlLog::open(Arc::clone(&connection) as _, dir.path()).await.expect("opens");
        Self { dir, connection, control }
    }

    /// The lines of its copy, after the header.
    fn rules(&self) -> Vec<String> {
        let text = fs::read_to_string(rules_path(self.dir.path())).expect("reads");
        let (_, lines) = text.split_once("---\n").expect("a header");
        lines.lines().map(str::to_owned).collect()
    }

    fn tokens(&self) -> Vec<String> {
        self.control.tokens().keys().cloned().collect()
    }

    async fn add(&self, name: &str) -> Result<(), ControlLogError> {
        self.control.add_rules(&[rule(name)], u64::MAX).await
    }

    async fn remove(&self, name: &str) -> Result<u64, ControlLogError> {
        let meant = Rule::parse(&rule(name)).expect("parses").expect("a rule");
        self.control.remove_rules(Arc::new(move |rule| rule.target == meant.target)).await
    }

    async fn put_token(&self, id: &str) -> Result<(), ControlLogError> {
        self.control.change_tokens(|_| Ok((vec![put_token(id, b"{}".to_vec())], ()))).await
    }

    async fn revoke_token(&self, id: &str) -> Result<(), ControlLogError> {
        self.control.change_tokens(|_| Ok((vec![remove_token(id)], ()))).await
    }

    async fn catch_up(&self) {
        self.control.catch_up().await.expect("catches up");
    }

    /// Polls the log, so many seconds after now.
    async fn poll_after(&self, seconds: u64) -> Result<(), ControlLogError> {
        self.control.poll(Instant::now() + Duration::from_secs(seconds)).await
    }

    /// How often all records were read.
    fn reads(&self) -> usize {
        self.connection.reads.load(Ordering::Relaxed)
    }

    /// The folder of the copy becomes a file, so that the copy cannot be written.
    fn lose_folder(&self) -> PathBuf {
        let folder = rules_path(self.dir.path()).parent().expect("a folder").to_owned();
        fs::remove_dir_all(&folder).expect("is removed");
        fs::write(&folder, "no folder").expect("writes");
        folder
    }
}

fn is_of_copy(error: ControlLogError) -> bool {
    matches!(error, ControlLogError::Copy(_))
}

fn rule(name: &str) -> String {
    format!("/ipns/{name}.example")
}

fn rules(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| rule(name)).collect()
}

#[tokio::test]
async fn changes_of_each_member_are_those_of_all() {
    for entries_bytes_max in ENTRIES_BYTES_MAX {
        let log = MetadataStore::memory().shared(entries_bytes_max);
        let (one, other) = (Member::start(&log).await, Member::start(&log).await);
        one.add("a").await.expect("adds");
        one.put_token("t1").await.expect("creates");
        // It has not received these, and nevertheless adds its own after them.
        other.add("b").await.expect("adds");
        other.put_token("t2").await.expect("creates");
        one.add("c").await.expect("adds");
        other.catch_up().await;
        for member in [&one, &other] {
            assert_eq!(member.rules(), rules(&["a", "b", "c"]), "{entries_bytes_max}");
            assert_eq!(member.tokens(), ["t1", "t2"]);
        }
        assert_eq!(other.remove("a").await.expect("removes"), 1);
        assert_eq!(one.remove("a").await.expect("removes"), 0);
        other.revoke_token("t1").await.expect("revokes");
        one.catch_up().await;
        one.add("d").await.expect("adds");
        let third = Member::start(&log).await;
        other.catch_up().await;
        for member in [&one, &other, &third] {
            assert_eq!(member.rules(), rules(&["b", "c", "d"]), "{entries_bytes_max}");
            assert_eq!(member.tokens(), ["t2"]);
        }
    }
}

#[tokio::test]
async fn additions_at_the_same_time_are_in_one_order() {
    for entries_bytes_max in ENTRIES_BYTES_MAX {
        let log = MetadataStore::memory().shared(entries_bytes_max);
        let members = [Member::start(&log).await, Member::start(&log).await, Member::start(&log).await];
        members[0].connection.interfering.store(3, Ordering::Relaxed);
        let adding = members.iter().enumerate().map(async |(n, member)| {
            for count in 0..10 {
                member.add(&format!("m{n}-{count}")).await.expect("adds");
            }
        });
        futures::future::join_all(adding).await;
        for member in &members {
            member.catch_up().await;
        }
        assert_eq!(members[0].rules().len(), 30);
        assert!(members.iter().all(|member| member.rules() == members[0].rules()), "{entries_bytes_max}");
    }
}

/// A decision is made on what others have appended, also if it is an error.
#[tokio::test]
async fn errors_are_decided_on_the_latest_tokens() {
    let log = MetadataStore::memory().shared(1 << 20);
    let (one, other) = (Member::start(&log).await, Member::start(&log).await);
    one.put_token("t1").await.expect("creates");
    let decide = |tokens: &TokenRecords| match tokens.contains_key("t1") {
        true => Ok((Vec::new(), ())),
        false => Err(ControlLogError::from(StoreError::Closed)),
    };
    other.control.change_tokens(decide).await.expect("it is there");
}

#[tokio::test]
async fn what_is_known_stays_while_the_log_cannot_be_reached() {
    let log = MetadataStore::memory().shared(1 << 20);
    let member = Member::start(&log).await;
    member.add("a").await.expect("adds");
    member.put_token("t1").await.expect("creates");
    member.connection.is_unreachable.store(true, Ordering::Relaxed);
    let is_unreachable = |error| matches!(error, ControlLogError::Log(StoreError::Unavailable { .. }));
    assert!(member.add("b").await.is_err_and(is_unreachable) && member.remove("a").await.is_err_and(is_unreachable));
    assert!(
        member.put_token("t2").await.is_err_and(is_unreachable)
            && member.control.catch_up().await.is_err_and(is_unreachable)
    );
    assert_eq!((member.rules(), member.tokens()), (rules(&["a"]), vec!["t1".to_owned()]));
    member.connection.is_unreachable.store(false, Ordering::Relaxed);
    // One is not appended, and one is although its answer is lost.
    member.connection.fail(Fault::Fails);
    member.add("b").await.expect_err("it fails");
    member.connection.fail(Fault::AnswerIsLost);
    member.add("c").await.expect_err("the answer is lost");
    assert_eq!(member.rules(), rules(&["a"]));
    member.catch_up().await;
    assert_eq!(member.rules(), rules(&["a", "c"]));
}

/// The first entry of a removal is appended, and the second one fails.
#[tokio::test]
async fn a_removal_that_fails_can_be_repeated() {
    let log = MetadataStore::memory().shared(1 << 20);
    let member = Member::start(&log).await;
    member.add("a").await.expect("adds");
    member.add("b").await.expect("adds");
    member.connection.fail(Fault::AnswerIsLost);
    member.remove("a").await.expect_err("the answer is lost");
    member.catch_up().await;
    assert_eq!(member.rules(), rules(&["b"]));
    assert_eq!(member.remove("a").await.expect("is repeated"), 0);
}

/// A disk that cannot be written: the rules are not in the copy, the tokens hold, and the copy is written later.
#[tokio::test]
async fn a_copy_that_cannot_be_written_is_written_later() {
    let log = MetadataStore::memory().shared(1 << 20);
    let (member, other) = (Member::start(&log).await, Member::start(&log).await);
    let folder = member.lose_folder();
    assert!(member.add("a").await.is_err_and(is_of_copy));
    member.put_token("t1").await.expect("needs no disk");
    other.add("b").await.expect("adds");
    other.revoke_token("t1").await.expect("revokes");
    assert!(member.control.catch_up().await.is_err_and(is_of_copy));
    assert!(member.poll_after(0).await.is_err_and(is_of_copy));
    assert_eq!(member.tokens(), Vec::<String>::new(), "a revocation is applied");
    fs::remove_file(&folder).expect("is removed");
    member.catch_up().await;
    assert_eq!(member.rules(), rules(&["a", "b"]));
    member.add("c").await.expect("adds");
    assert_eq!(member.rules(), rules(&["a", "b", "c"]));
}

/// Polling reads all records for the copy after a back-off only, and applies changes of tokens meanwhile.
#[tokio::test]
async fn a_copy_that_cannot_be_written_is_tried_again_after_a_back_off() {
    let log = MetadataStore::memory().shared(1 << 20);
    let (member, other) = (Member::start(&log).await, Member::start(&log).await);
    let folder = member.lose_folder();
    other.add("a").await.expect("adds");
    // Until the back-off is a minute, so that the test may take long.
    for _ in 0..8 {
        assert!(member.poll_after(60).await.is_err_and(is_of_copy));
    }
    let reads = member.reads();
    other.put_token("t1").await.expect("creates");
    other.add("b").await.expect("adds");
    for _ in 0..10 {
        assert!(member.poll_after(0).await.is_err_and(is_of_copy));
        member.put_token("t2").await.expect("needs no disk");
    }
    assert_eq!((member.reads(), member.tokens()), (reads, vec!["t1".to_owned(), "t2".to_owned()]));
    for attempts in 1..3 {
        assert!(member.poll_after(60).await.is_err_and(is_of_copy));
        assert!(member.poll_after(0).await.is_err_and(is_of_copy));
        assert_eq!(member.reads(), reads + attempts, "once after each back-off");
    }
    // A change of rules does not wait for its end.
    assert!(member.add("c").await.is_err_and(is_of_copy));
    fs::remove_file(&folder).expect("is removed");
    member.add("c").await.expect("adds");
    assert_eq!(member.rules(), rules(&["a", "b", "c"]));
    let reads = member.reads();
    other.add("d").await.expect("adds");
    member.poll_after(0).await.expect("is written");
    assert_eq!((member.rules(), member.reads()), (rules(&["a", "b", "c", "d"]), reads));
}

/// The member is behind, and learns of rules that it cannot write when it changes tokens.
#[tokio::test]
async fn tokens_are_changed_without_space_on_the_disk() {
    for entries_bytes_max in ENTRIES_BYTES_MAX {
        let log = MetadataStore::memory().shared(entries_bytes_max);
        let (member, other) = (Member::start(&log).await, Member::start(&log).await);
        let folder = member.lose_folder();
        other.add("a").await.expect("adds");
        member.put_token("t1").await.expect("needs no disk");
        fs::remove_file(&folder).expect("is removed");
        member.catch_up().await;
        assert_eq!((member.rules(), member.tokens()), (rules(&["a"]), vec!["t1".to_owned()]));
    }
}

#[tokio::test]
async fn rules_that_would_not_be_read_are_refused() {
    let log = MetadataStore::memory().shared(1 << 20);
    let (member, other) = (Member::start(&log).await, Member::start(&log).await);
    other.add("a").await.expect("adds");
    member.catch_up().await;
    let size = || fs::metadata(rules_path(member.dir.path())).expect("is there").len();
    let (lines, former) = (rules(&["b", "c"]), size());
    let bytes = former + lines.iter().map(|line| line.len() as u64 + 1).sum::<u64>();
    let refused = member.control.add_rules(&lines, bytes - 1).await;
    let is_full = |error| matches!(error, ControlLogError::ListFull { bytes: found, .. } if found == bytes);
    assert!(refused.is_err_and(is_full));
    // What it has not received counts as well, and nothing was appended.
    other.add("d").await.expect("adds");
    let refused = member.control.add_rules(&lines, bytes).await;
    assert!(refused.is_err_and(|error| matches!(error, ControlLogError::ListFull { .. })));
    assert_eq!((member.rules(), other.rules()), (rules(&["a", "d"]), rules(&["a", "d"])));
    assert_eq!(member.remove("d").await.expect("removes"), 1);
    member.control.add_rules(&lines, bytes).await.expect("there is space");
    assert_eq!((member.rules(), size()), (rules(&["a", "b", "c"]), bytes));
}

/// Another program has written rules with the last numbers. None is overwritten.
#[tokio::test]
async fn no_rule_has_a_number_after_the_last_one() {
    for (last, fits) in [(u64::MAX, 0), (u64::MAX - 1, 0), (u64::MAX - 2, 1)] {
        for entries_bytes_max in ENTRIES_BYTES_MAX {
            let log = MetadataStore::memory().shared(entries_bytes_max);
            let (member, other) = (Member::start(&log).await, Member::start(&log).await);
            log.write_now(vec![Change::Put(rule_key(last), rule("last").into_bytes())]).expect("writes");
            let refused = |added: Result<(), ControlLogError>| {
                assert!(added.is_err_and(|error| matches!(error, ControlLogError::NoNumbersLeft)), "{last}");
            };
            refused(member.control.add_rules(&rules(&["a", "b"]), u64::MAX).await);
            if fits == 1 {
                member.add("a").await.expect("has a number");
            }
            refused(member.add("b").await);
            other.catch_up().await;
            let expected = [vec!["last"], vec!["last", "a"]];
            assert!([&member, &other].iter().all(|member| member.rules() == rules(&expected[fits])), "{last}");
            for name in expected[fits].iter() {
                assert_eq!(member.remove(name).await.expect("removes"), 1);
            }
            member.add("b").await.expect("numbers are left");
            other.catch_up().await;
            assert_eq!(other.rules(), rules(&["b"]));
        }
    }
}

/// A change that holds the lock, because the database does not answer.
#[tokio::test]
async fn changes_that_wait_for_others_are_limited() {
    use futures::FutureExt as _;
    let log = MetadataStore::memory().shared(1 << 20);
    let member = Member::start(&log).await;
    let held = member.control.state.lock().await;
    let mut waiting: Vec<_> = (0..WAITING_MAX).map(|_| Box::pin(member.put_token("t1"))).collect();
    assert!(waiting.iter_mut().all(|change| change.now_or_never().is_none()));
    let rejected = member.put_token("t2").now_or_never().expect("it does not wait");
    assert!(rejected.is_err_and(|error| matches!(error, ControlLogError::Busy) && error.is_unavailable()));
    let rejected = member.add("a").now_or_never().expect("it does not wait");
    assert!(rejected.is_err_and(|error| error.is_unavailable()));
    drop(held);
    for change in waiting {
        change.await.expect("creates");
    }
    assert_eq!(member.tokens(), ["t1"]);
}

#[tokio::test]
async fn a_start_replaces_a_copy_that_differs_and_ignores_unknown_records() {
    let log = MetadataStore::memory().shared(1 << 20);
    let member = Member::start(&log).await;
    member.control.add_rules(&rules(&["a", "b"]), u64::MAX).await.expect("adds");
    log.write_now(vec![Change::Put(b"newer/1".to_vec(), b"x".to_vec())]).expect("writes");
    let Member { dir, connection, control } = member;
    drop(control);
    crate::line_file::append(&rules_path(dir.path()), &rules(&["edited"])).expect("writes");
    let control = ControlLog::open(Arc::clone(&connection) as _, dir.path()).await.expect("opens");
    let member = Member { dir, connection, control };
    assert_eq!(member.rules(), rules(&["a", "b"]));
    member.add("c").await.expect("adds");
    assert_eq!(member.rules(), rules(&["a", "b", "c"]));
    // A command has no copy, and the same tokens.
    let command = ControlLog::open_without_copy(Arc::clone(&member.connection) as _).await.expect("opens");
    command
        .change_tokens(|_| Ok::<_, ControlLogError>((vec![put_token("t", b"{}".to_vec())], ())))
        .await
        .expect("puts");
    member.catch_up().await;
    assert_eq!(member.tokens(), ["t"]);
    assert!(command.take_pending().is_empty());
}

/// Only what others have added is to be deleted: the member that adds a rule deletes what it names itself.
#[tokio::test]
async fn only_what_rules_of_others_name_is_to_be_deleted() {
    let cid = "bafybeihrw75yfhdx5qsqgesdnxejtjybscwuclpusvxkuttep6h7pkgmze";
    for entries_bytes_max in ENTRIES_BYTES_MAX {
        let log = MetadataStore::memory().shared(entries_bytes_max);
        let (one, other) = (Member::start(&log).await, Member::start(&log).await);
        one.control.add_rules(&[format!("/ipfs/{cid}")], u64::MAX).await.expect("adds");
        other.catch_up().await;
        assert!(one.control.take_pending().is_empty());
        let pending = other.control.take_pending();
        let roots: Vec<String> = pending.single.iter().chain(pending.many.iter()).map(|cid| cid.to_string()).collect();
        assert_eq!(roots, [cid], "{entries_bytes_max}");
        assert!(other.control.take_pending().is_empty());
    }
}
