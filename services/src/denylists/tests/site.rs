//! Gateways of a site: each has a store, lists and a data directory of its own, and all have one log.

use super::*;
use crate::control_log::{ControlLog, ControlLogError, PendingDeletions, TokenRecords, put_token};
use crate::denylists::lists::SITE;
use crate::denylists::site_rules;
use crate::denylists::takedown::{CHANGES_MAX, ControlError};
use crate::test_log::Connection;
use cache::{MetadataStore, StoreError};
use std::sync::atomic::Ordering;

/// A gateway, and its connection to the log.
struct Gateway {
    dir: TempDir,
    connection: Arc<Connection>,
    site: Arc<ControlLog>,
    world: World,
}

impl Gateway {
    async fn start(log: &MetadataStore) -> Self {
        Self::start_in(TempDir::new().expect("a folder"), log, &PolicySettings::default()).await
    }

    async fn start_in(dir: TempDir, log: &MetadataStore, settings: &PolicySettings) -> Self {
        let connection = Connection::new(log);
        let site = ControlLog::open(Arc::clone(&connection) as _, dir.path()).await.expect("opens");
        let lists = Lists::open_in_site(settings, dir.path(), Arc::clone(&site)).await.expect("opens");
        Self { connection, site, world: world_of(lists).await, dir }
    }

    async fn catch_up(&self) {
        self.world.control.catch_up(&self.site).await.expect("catches up");
    }

    async fn take_down(&self, text: &str, deep: bool) {
        self.world.control.add(order(text, deep, false)).await.expect("is in force");
    }

    /// The rules that the API lists, without their hints.
    async fn rules(&self, after: u64, max: usize) -> Vec<(u64, String)> {
        let rules = self.world.control.lists.local_rules(after, max).await.expect("reads");
        rules.into_iter().map(|rule| (rule.line, rule.item)).collect()
    }
}

fn shared_log() -> MetadataStore {
    MetadataStore::memory().shared(1 << 20)
}

#[tokio::test]
async fn a_take_down_is_in_force_at_all_gateways_until_it_is_removed() {
    let log = shared_log();
    let (one, other) = (Gateway::start(&log).await, Gateway::start(&log).await);
    let (root, leaves) = (one.world.root, one.world.leaves.clone());
    one.take_down(&format!("/ipfs/{}", leaves[0]), false).await;
    one.take_down(&format!("/ipfs/{root}/1.txt"), false).await;
    other.take_down("/ipns/bad.example", false).await;
    for gateway in [&one, &other] {
        gateway.catch_up().await;
        assert_eq!(gateway.world.verdict(&leaves[0]), Verdict::Legal);
        assert!(!gateway.world.holds(&leaves[0]).await, "it is deleted");
        // A path withholds no block.
        assert!(gateway.world.holds(&root).await && gateway.world.holds(&leaves[1]).await);
        assert_eq!(gateway.rules(0, 9).await.len(), 3);
    }
    // The links of what one gateway has deleted are kept at the other, for a deep take-down there.
    one.take_down(&format!("/ipfs/{root}"), false).await;
    other.catch_up().await;
    assert!(!other.world.holds(&root).await && other.world.holds(&leaves[1]).await);
    other.take_down(&format!("/ipfs/{root}"), true).await;
    one.catch_up().await;
    for gateway in [&one, &other] {
        for leaf in &leaves {
            assert!(gateway.world.verdict(leaf) == Verdict::Legal && !gateway.world.holds(leaf).await);
        }
    }
    // A removal concerns what the deep one has added as well.
    let removed = one.world.control.remove(order(&format!("/ipfs/{root}"), false, false).rule).await;
    assert_eq!(removed.expect("is removed"), 3, "that of the root, and those of two leaves");
    other.catch_up().await;
    for gateway in [&one, &other] {
        assert_eq!(gateway.world.verdict(&leaves[1]), Verdict::Allow);
        assert_eq!(gateway.world.verdict(&leaves[0]), Verdict::Legal, "it has a rule of its own");
        assert_eq!(gateway.rules(0, 9).await.len(), 3);
    }
}

/// A gateway that has not received a removal adds the rule again, and one that has read a rule without putting it in
/// force deletes what it names.
#[tokio::test]
async fn a_take_down_is_decided_on_the_latest_rules() {
    let log = shared_log();
    let (one, other) = (Gateway::start(&log).await, Gateway::start(&log).await);
    let leaves = one.world.leaves.clone();
    let rules = leaves.iter().map(|leaf| format!("/ipfs/{leaf}")).collect::<Vec<_>>();
    one.take_down(&rules[0], false).await;
    other.catch_up().await;
    one.world.control.remove(order(&rules[0], false, false).rule).await.expect("is removed");
    other.take_down(&rules[0], false).await;
    one.take_down(&rules[1], false).await;
    other.site.catch_up().await.expect("catches up");
    other.take_down(&rules[1], false).await;
    assert!(!other.world.holds(&leaves[1]).await);
    for gateway in [&one, &other] {
        gateway.catch_up().await;
        assert!(leaves[..2].iter().all(|leaf| gateway.world.verdict(leaf) == Verdict::Legal));
    }
}

#[tokio::test]
async fn an_exception_of_another_gateway_deletes_nothing() {
    let log = shared_log();
    let (one, other) = (Gateway::start(&log).await, Gateway::start(&log).await);
    let leaf = one.world.leaves[0];
    let lines = [format!("/ipfs/{leaf}"), format!("!/ipfs/{leaf}")].map(|line| vec![line]);
    for lines in lines {
        one.world.control.lists.add(lines).await.expect("adds");
    }
    other.catch_up().await;
    assert!(other.world.holds(&leaf).await && other.world.verdict(&leaf) == Verdict::Allow);
}

/// A gateway that was down reads what was changed meanwhile when it starts, and then deletes what is withheld.
#[tokio::test]
async fn a_start_puts_the_rules_of_the_site_in_force() {
    let log = shared_log();
    let (one, other) = (Gateway::start(&log).await, Gateway::start(&log).await);
    let leaves = one.world.leaves.clone();
    one.take_down(&format!("/ipfs/{}", leaves[0]), false).await;
    other.catch_up().await;
    let Gateway { dir, .. } = other;
    one.world.control.remove(order(&format!("/ipfs/{}", leaves[0]), false, false).rule).await.expect("is removed");
    one.take_down(&format!("/ipfs/{}", leaves[1]), false).await;
    let other = Gateway::start_in(dir, &log, &PolicySettings::default()).await;
    let verdicts = leaves.iter().map(|leaf| other.world.verdict(leaf)).collect::<Vec<_>>();
    assert_eq!(verdicts, [Verdict::Allow, Verdict::Legal, Verdict::Allow]);
    other.catch_up().await;
    assert!(other.world.holds(&leaves[0]).await && !other.world.holds(&leaves[1]).await);
    // A command has the last copy, if the settings have a site.
    for (is_in_site, expected) in [(true, Verdict::Legal), (false, Verdict::Allow)] {
        let lists = Lists::open_read_only(&PolicySettings::default(), other.dir.path(), is_in_site).await;
        assert_eq!(lists.expect("opens").running().check(&leaves[1]), expected, "{is_in_site}");
    }
}

#[tokio::test]
async fn without_the_database_rules_stay_in_force_and_changes_are_refused() {
    let log = shared_log();
    let gateway = Gateway::start(&log).await;
    let started = Instant::now();
    let leaves = gateway.world.leaves.clone();
    gateway.take_down(&format!("/ipfs/{}", leaves[0]), false).await;
    gateway.connection.is_unreachable.store(true, Ordering::Relaxed);
    let control = &gateway.world.control;
    let is_unreachable =
        |error: ControlError| matches!(error, ControlError::Site(ControlLogError::Log(StoreError::Unavailable { .. })));
    let added = control.add(order(&format!("/ipfs/{}", leaves[1]), false, false)).await;
    assert!(added.is_err_and(is_unreachable));
    let removed = control.remove(order(&format!("/ipfs/{}", leaves[0]), false, false).rule).await;
    assert!(removed.is_err_and(is_unreachable));
    control.catch_up(&gateway.site).await.expect_err("it cannot be asked");
    let passed = started.elapsed();
    assert!(gateway.site.age_in_force() >= passed, "the rules are those of the start");
    assert_eq!(gateway.world.verdict(&leaves[0]), Verdict::Legal);
    assert!(gateway.world.verdict(&leaves[1]) == Verdict::Allow && gateway.world.holds(&leaves[1]).await);
    gateway.connection.is_unreachable.store(false, Ordering::Relaxed);
    gateway.take_down(&format!("/ipfs/{}", leaves[1]), false).await;
    assert_eq!(gateway.world.verdict(&leaves[1]), Verdict::Legal);
    let asked = Instant::now();
    gateway.catch_up().await;
    let age = gateway.site.age_in_force();
    assert!(age <= asked.elapsed(), "they are current: {age:?}");
}

/// A gateway acknowledges no rule that it would not read.
#[tokio::test]
async fn a_take_down_that_would_exceed_the_size_of_a_list_is_refused() {
    let log = shared_log();
    let settings = PolicySettings { list_bytes_max: 600, ..PolicySettings::default() };
    let gateway = Gateway::start_in(TempDir::new().expect("a folder"), &log, &settings).await;
    let other = Gateway::start(&log).await;
    let control = &gateway.world.control;
    let name = |n: usize| content::Name::parse(&format!("n{n}.example")).expect("a name");
    let add = async |n: usize| control.add(order(&format!("/ipns/{}", name(n)), false, false)).await;
    let verdict = |n: usize| control.lists.running().check_name(&name(n), "");
    let mut count = 0;
    let refused = loop {
        assert!(count < 99, "the list grows without limit");
        match add(count).await {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, ControlError::Site(ControlLogError::ListFull { .. })), "{refused}");
    assert!(refused.to_string().contains("policy.list_bytes_max"), "{refused}");
    assert!((2..20).contains(&count) && (0..count).all(|n| verdict(n) == Verdict::Legal));
    assert_eq!(verdict(count), Verdict::Allow);
    other.catch_up().await;
    for gateway in [&gateway, &other] {
        assert_eq!(gateway.rules(0, 99).await.len(), count, "nothing was appended");
    }
    assert!(!gateway.world.control.lists.entry(SITE).expect("a list").state().cut_off);
    // An exception takes as much space.
    let exception = NewRule {
        line: format!("!/ipns/{} reason={}", name(count), "x".repeat(99)),
        ..order("/ipns/x.example", false, false)
    };
    assert!(control.lists.add(vec![exception.line]).await.is_err());
    control.remove(order(&format!("/ipns/{}", name(0)), false, false).rule).await.expect("is removed");
    add(count).await.expect("there is space");
    assert_eq!((verdict(0), verdict(count)), (Verdict::Allow, Verdict::Legal));
}

/// A rule that others have added, and that this gateway does not read, is not acknowledged by it.
#[tokio::test]
async fn a_repeated_take_down_beyond_the_size_of_a_list_is_refused() {
    let log = shared_log();
    let other = Gateway::start(&log).await;
    let name = |n: usize| content::Name::parse(&format!("n{n}.example")).expect("a name");
    for n in 0..40 {
        other.take_down(&format!("/ipns/{}", name(n)), false).await;
    }
    let settings = PolicySettings { list_bytes_max: 600, ..PolicySettings::default() };
    let gateway = Gateway::start_in(TempDir::new().expect("a folder"), &log, &settings).await;
    let control = &gateway.world.control;
    let verdict = |n: usize| control.lists.running().check_name(&name(n), "");
    assert_eq!((verdict(0), verdict(39)), (Verdict::Legal, Verdict::Allow));
    let refused = control.add(order(&format!("/ipns/{}", name(39)), false, false)).await;
    assert!(matches!(refused, Err(ControlError::Site(ControlLogError::ListFull { .. }))), "{refused:?}");
}

/// What a deep take-down withholds is deleted, also if not all blocks below can be withheld.
#[tokio::test]
async fn a_deep_take_down_that_does_not_fit_deletes_what_it_withholds() {
    let probe = Gateway::start(&shared_log()).await;
    let (root, leaves) = (probe.world.root, probe.world.leaves.clone());
    probe.take_down(&format!("/ipfs/{root}"), false).await;
    let bytes = fs::metadata(probe.dir.path().join("denylists/site.deny")).expect("is there").len();
    let settings = PolicySettings { list_bytes_max: bytes + 100, ..PolicySettings::default() };
    let gateway = Gateway::start_in(TempDir::new().expect("a folder"), &shared_log(), &settings).await;
    let failed = gateway.world.control.add(order(&format!("/ipfs/{root}"), true, false)).await;
    let error = failed.expect_err("not all is withheld");
    assert!(matches!(error, ControlError::Below { rules: 0, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("is in force") && text.contains("policy.list_bytes_max"), "{text}");
    assert!(gateway.world.verdict(&root) == Verdict::Legal && !gateway.world.holds(&root).await);
    assert!(gateway.world.verdict(&leaves[0]) == Verdict::Allow && gateway.world.holds(&leaves[0]).await);
}

/// While no deletion can be queued, blocks wait in the control log, and the rules are put in force once only.
#[tokio::test]
async fn deletions_that_wait_for_the_queue_change_no_rules() {
    let log = shared_log();
    let (one, other) = (Gateway::start(&log).await, Gateway::start(&log).await);
    let leaf = one.world.leaves[0];
    let (queue, mut queued) = tokio::sync::mpsc::channel(1);
    queue.try_send(PendingDeletions::default()).expect("it is empty");
    let (control, generation) = (&other.world.control, || other.world.control.lists.running().generation());
    let put_token = async |id: &str| {
        let put = |_: &TokenRecords| Ok::<_, ControlLogError>((vec![put_token(id, b"{}".to_vec())], ()));
        one.site.change_tokens(put).await.expect("is appended");
        until("the token", || other.site.tokens().contains_key(id)).await;
    };
    let changing = async {
        one.take_down(&format!("/ipfs/{leaf}"), false).await;
        until("the rule", || other.world.verdict(&leaf) == Verdict::Legal).await;
        let former = generation();
        for id in ["a", "b", "c", "d"] {
            put_token(id).await;
        }
        assert_eq!(generation(), former);
        assert!(queued.recv().await.is_some_and(|first| first.is_empty()));
        put_token("e").await;
        let pending = queued.recv().await.expect("it is queued");
        assert_eq!(pending.single.iter().collect::<Vec<_>>(), [leaf], "its links are to be kept");
        assert_eq!(generation(), former);
    };
    tokio::select! {
        () = site_rules::apply_all(control, &other.site, queue) => unreachable!("it does not end"),
        () = changing => {}
    }
}

/// Many roots are examined a few at a time, so that the rules that follow are read meanwhile.
#[tokio::test]
async fn examining_many_roots_yields() {
    let gateway = Gateway::start(&shared_log()).await;
    let mut pending = PendingDeletions::default();
    for n in 0..20_000_u32 {
        let hash = hashes::digest(hashes::SHA2_256, 32, &n.to_be_bytes()).expect("a hash");
        let list = if n % 2 == 0 { &mut pending.single } else { &mut pending.many };
        list.push(&Cid::new_v1(codec::RAW, hash));
    }
    let mut turns = 0;
    let others = async {
        loop {
            turns += 1;
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = gateway.world.control.delete_pending(&pending) => {}
        () = others => {}
    }
    assert!(turns >= 20, "{turns}");
}

#[tokio::test]
async fn take_downs_that_wait_for_others_are_limited() {
    use futures::FutureExt as _;
    let gateway = Gateway::start(&shared_log()).await;
    let add = || Box::pin(gateway.world.control.add(order("/ipns/bad.example", false, false)));
    let mut waiting: Vec<_> = (0..CHANGES_MAX).map(|_| add()).collect();
    assert!(waiting.iter_mut().all(|change| change.now_or_never().is_none()));
    let rejected = add().now_or_never().expect("it does not wait");
    assert!(rejected.is_err_and(|error| matches!(error, ControlError::Busy)));
    for change in waiting {
        change.await.expect("is in force");
    }
    assert_eq!(gateway.rules(0, 9).await.len(), 1);
}

#[tokio::test]
async fn the_list_of_the_site_takes_precedence_over_the_local_one() {
    let (log, dir) = (shared_log(), TempDir::new().expect("a folder"));
    let name = |n: usize| format!("{n}.example");
    // For each name: the rule of a list of the operator, the local rule, that of the site, that of the settings.
    let table = [
        ["/", "", "", ""],
        ["/", "!", "", ""],
        ["", "/", "!", ""],
        ["", "!", "/", ""],
        ["!", "", "/", ""],
        ["/", "/", "!", ""],
    ];
    let lists = ["own.deny", "denylists/local.deny"];
    fs::create_dir_all(dir.path().join("denylists")).expect("is ours");
    let text = |column: usize| -> Vec<String> {
        let rule = |(n, row): (usize, &[&str; 4])| match row[column] {
            "" => None,
            "!" => Some(format!("!/ipns/{}", name(n))),
            _ => Some(format!("/ipns/{}", name(n))),
        };
        table.iter().enumerate().filter_map(rule).collect()
    };
    for (column, file) in lists.iter().enumerate() {
        fs::write(dir.path().join(file), text(column).join("\n")).expect("writes");
    }
    let own = list(ListSource::File(dir.path().join("own.deny")));
    let leaf = *block("leaf 0").cid();
    let settings = PolicySettings { denylists: vec![own], deny: vec![leaf], ..PolicySettings::default() };
    let gateway = Gateway::start_in(dir, &log, &settings).await;
    let lists = &gateway.world.control.lists;
    lists.add(text(2)).await.expect("adds");
    lists.add(vec![format!("!/ipfs/{leaf}")]).await.expect("adds");
    let decided = (0..table.len()).map(|n| {
        let name = content::Name::parse(&name(n)).expect("a name");
        lists.running().find_name(&name, "").map(|hit| (hit.list.to_string(), hit.verdict == Verdict::Gone))
    });
    let decided: Vec<_> = decided.map(|decided| decided.expect("a rule matches")).collect();
    let own = gateway.dir.path().join("own.deny").display().to_string();
    let expected = [(own.as_str(), true), ("local", false), (SITE, false), (SITE, true), (SITE, true), (SITE, false)];
    assert_eq!(decided, expected.map(|(list, gone)| (list.to_owned(), gone)));
    assert_eq!(gateway.world.verdict(&leaf), Verdict::Gone, "nothing overrides policy.deny");
}

#[tokio::test]
async fn the_rules_of_the_site_are_listed_in_pages_and_local_ones_are_removed_as_well() {
    let log = shared_log();
    let dir = TempDir::new().expect("a folder");
    fs::create_dir_all(dir.path().join("denylists")).expect("is ours");
    let local = dir.path().join("denylists").join("local.deny");
    fs::write(&local, "/ipns/b.example\n/ipns/local.example\n").expect("writes");
    let gateway = Gateway::start_in(dir, &log, &PolicySettings::default()).await;
    let lists = &gateway.world.control.lists;
    lists.add(["a", "b", "c"].map(|name| format!("/ipns/{name}.example reason=x")).to_vec()).await.expect("adds");
    let rule = |line, name: &str| (line, format!("/ipns/{name}.example"));
    let all = [rule(5, "a"), rule(6, "b"), rule(7, "c")];
    assert_eq!(gateway.rules(0, 9).await, all);
    assert_eq!((gateway.rules(0, 2).await, gateway.rules(6, 2).await), (all[..2].to_vec(), all[2..].to_vec()));
    let remove = async |name: &str| {
        let rule = Rule::parse(&format!("/ipns/{name}.example")).expect("parses").expect("a rule");
        lists.remove(rule).await.expect("removes")
    };
    assert_eq!((remove("b").await, remove("local").await, remove("b").await), (2, 1, 0));
    assert_eq!(gateway.rules(0, 9).await, [rule(5, "a"), rule(6, "c")]);
    assert_eq!(fs::read_to_string(local).expect("reads"), "");
}
