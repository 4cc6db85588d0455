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
        self.control.add_rules(&[rule(name)]).await
    }

    async fn remove(&self, name: &str) -> Result<u64, ControlLogError> {
        let meant = Rule::parse(&rule(name)).expect("parses").expect("a rule");
        self.control.remove_rules(Arc::new(move |rule| rule.target == meant.target)).await
    }

    async fn put_token(&self, id: &str) -> Result<(), ControlLogError> {
        self.control.change_tokens(|_| Ok((vec![put_token(id, b"{}".to_vec())], ()))).await
    }

    async fn catch_up(&self) {
        self.control.catch_up().await.expect("catches up");
    }
}

fn rule(name: &str) -> String {
    format!("/ipns/{name}.example")
}

fn rules(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| rule(name)).collect()
}

#[tokio::test]
async fn members_obey_each_other() {
    for entries_bytes_max in ENTRIES_BYTES_MAX {
        let log = MetadataStore::memory().shared(entries_bytes_max);
        let (one, other) = (Member::start(&log).await, Member::start(&log).await);
        one.add("a").await.expect("adds");
        one.put_token("t1").await.expect("creates");
        // It has not heard of these, and nevertheless adds its own after them.
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
        other
            .control
            .change_tokens(|_| Ok::<_, ControlLogError>((vec![remove_token("t1")], ())))
            .await
            .expect("revokes");
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
async fn what_is_known_stays_while_the_log_is_away() {
    let log = MetadataStore::memory().shared(1 << 20);
    let member = Member::start(&log).await;
    member.add("a").await.expect("adds");
    member.put_token("t1").await.expect("creates");
    member.connection.is_away.store(true, Ordering::Relaxed);
    let is_away = |error| matches!(error, ControlLogError::Log(StoreError::Unavailable { .. }));
    assert!(member.add("b").await.is_err_and(is_away) && member.remove("a").await.is_err_and(is_away));
    assert!(member.put_token("t2").await.is_err_and(is_away) && member.control.catch_up().await.is_err_and(is_away));
    assert_eq!((member.rules(), member.tokens()), (rules(&["a"]), vec!["t1".to_owned()]));
    member.connection.is_away.store(false, Ordering::Relaxed);
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

/// A disk that cannot be written: the rules are not in the copy, the tokens hold, and all is made up for.
#[tokio::test]
async fn a_copy_that_cannot_be_written_is_written_later() {
    let log = MetadataStore::memory().shared(1 << 20);
    let (member, other) = (Member::start(&log).await, Member::start(&log).await);
    let folder = rules_path(member.dir.path()).parent().expect("a folder").to_owned();
    fs::remove_dir_all(&folder).expect("is removed");
    fs::write(&folder, "no folder").expect("writes");
    let is_of_copy = |error| matches!(error, ControlLogError::Copy { .. });
    assert!(member.add("a").await.is_err_and(is_of_copy));
    member.put_token("t1").await.expect("needs no disk");
    other.add("b").await.expect("adds");
    other.control.change_tokens(|_| Ok::<_, ControlLogError>((vec![remove_token("t1")], ()))).await.expect("revokes");
    assert!(member.control.catch_up().await.is_err_and(is_of_copy));
    assert_eq!(member.tokens(), Vec::<String>::new(), "a revocation is obeyed");
    fs::remove_file(&folder).expect("is removed");
    member.catch_up().await;
    assert_eq!(member.rules(), rules(&["a", "b"]));
    member.add("c").await.expect("adds");
    assert_eq!(member.rules(), rules(&["a", "b", "c"]));
}

/// The member is behind, and learns of rules that it cannot write when it changes tokens.
#[tokio::test]
async fn tokens_are_changed_without_space_on_the_disk() {
    for entries_bytes_max in ENTRIES_BYTES_MAX {
        let log = MetadataStore::memory().shared(entries_bytes_max);
        let (member, other) = (Member::start(&log).await, Member::start(&log).await);
        let folder = rules_path(member.dir.path()).parent().expect("a folder").to_owned();
        fs::remove_dir_all(&folder).expect("is removed");
        fs::write(&folder, "no folder").expect("writes");
        other.add("a").await.expect("adds");
        member.put_token("t1").await.expect("needs no disk");
        fs::remove_file(&folder).expect("is removed");
        member.catch_up().await;
        assert_eq!((member.rules(), member.tokens()), (rules(&["a"]), vec!["t1".to_owned()]));
    }
}

#[tokio::test]
async fn a_start_replaces_a_copy_that_differs_and_ignores_unknown_records() {
    let log = MetadataStore::memory().shared(1 << 20);
    let member = Member::start(&log).await;
    member.control.add_rules(&rules(&["a", "b"])).await.expect("adds");
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
    assert!(command.take_arrived().is_empty());
}

/// Only what others have added is to be deleted: the member that adds a rule deletes what it names itself.
#[tokio::test]
async fn only_rules_of_others_arrive() {
    let cid = "bafybeihrw75yfhdx5qsqgesdnxejtjybscwuclpusvxkuttep6h7pkgmze";
    for entries_bytes_max in ENTRIES_BYTES_MAX {
        let log = MetadataStore::memory().shared(entries_bytes_max);
        let (one, other) = (Member::start(&log).await, Member::start(&log).await);
        one.control.add_rules(&[format!("/ipfs/{cid}")]).await.expect("adds");
        other.catch_up().await;
        assert!(one.control.take_arrived().is_empty());
        let arrived = other.control.take_arrived();
        let roots: Vec<String> = arrived.single.iter().chain(arrived.many.iter()).map(|cid| cid.to_string()).collect();
        assert_eq!(roots, [cid], "{entries_bytes_max}");
        assert!(other.control.take_arrived().is_empty());
    }
}
