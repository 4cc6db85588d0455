//! Tests of the traversal: the blocks are those of an archive, in an order that the asker can verify; budgets, limits and
//! malicious DAGs.

use super::*;
use crate::dag::message::TransferId;
use crate::dag::test_support::{
    Import, PATHS, TestSource, expected, links, names, noise, profile, raw, scopes, site, text,
};
use content::BlockKey;
use content::importer::Profile;
use content::scope::{DagScope, ScopeOptions};
use content::stored::Stored;
use proptest::prelude::*;
use std::sync::Arc;

const FREE: TurnLimits = TurnLimits { wire_bytes: 256 * 1024, budget_bytes: u64::MAX };

fn request(root: Cid, path: &str, scope: ScopeOptions) -> Request {
    let (path, held) = (names(path), Vec::new());
    Request {
        transfer: TransferId(0),
        root,
        path,
        scope,
        held,
        budget_bytes: u64::MAX,
        packed: false,
        fragments: false,
    }
}

fn all(root: Cid) -> Request {
    request(root, "", ScopeOptions { scope: DagScope::All, entity_bytes: None, duplicates: false })
}

/// All answers, and the end.
async fn run(source: &TestSource, request: &Request) -> (Vec<Answer>, EndStatus) {
    let mut traversal = Traversal::new(request);
    let mut answers = Vec::new();
    for _ in 0..100_000 {
        let result = traversal.turn(source, FREE).await;
        answers.extend(result.answers);
        match result.end {
            TurnEnd::More => {}
            TurnEnd::Ended(status) => return (answers, status),
            TurnEnd::Budget(_) => panic!("the budget has no end"),
        }
    }
    panic!("the traversal does not end");
}

/// The verified block of an answer.
fn block(answer: &Answer) -> Option<Block> {
    match answer {
        Answer::Block { cid, data } => Some(Block::verify(*cid, data.clone()).expect("matches")),
        Answer::Packed(packed) => {
            Some(Block::verify(packed.cid, packed.stored.block().expect("unpacks")).expect("matches"))
        }
        Answer::Absent(_) | Answer::End(_) | Answer::Fragment(_) => None,
    }
}

fn cids(answers: &[Answer]) -> Vec<Cid> {
    answers.iter().filter_map(block).map(|block| *block.cid()).collect()
}

fn sorted(mut cids: Vec<Cid>) -> Vec<Cid> {
    cids.sort();
    cids
}

/// Checks that each block was named by the request or by an earlier block.
fn assert_named(root: Cid, answers: &[Answer]) {
    let mut named: HashSet<Cid> = [root].into();
    for block in answers.iter().filter_map(block) {
        assert!(named.contains(block.cid()), "{} has not been named", block.cid());
        name_links(&block, &mut named);
    }
}

fn name_links(block: &Block, named: &mut HashSet<Cid>) {
    for link in content::dag::links(block).unwrap_or_default() {
        named.insert(link);
        if let Some(inlined) = Block::inline(&link) {
            name_links(&inlined, named);
        }
    }
}

#[tokio::test]
async fn every_path_scope_and_range_has_the_blocks_of_an_archive() {
    for v0 in [false, true] {
        let (source, root) = site(v0);
        for path in PATHS {
            for scope in scopes() {
                let wanted = expected(&source, root, path, scope).await;
                let wanted: Vec<Cid> = wanted.iter().map(|block| *block.cid()).collect();
                for packed in [false, true] {
                    let request = Request { packed, ..request(root, path, scope) };
                    let (answers, status) = run(&source, &request).await;
                    assert_eq!(status, EndStatus::Complete, "{path} {scope:?}");
                    assert_eq!(sorted(cids(&answers)), sorted(wanted.clone()), "{path} {scope:?} {packed}");
                    assert_named(root, &answers);
                }
            }
        }
    }
}

#[tokio::test]
async fn compressed_blocks_are_sent_as_they_are_stored_if_the_asker_accepts_that() {
    for v0 in [false, true] {
        let (source, root) = site(v0);
        let packed_count =
            |answers: &[Answer]| answers.iter().filter(|answer| matches!(answer, Answer::Packed(_))).count();
        let request = all(root);
        let (plain, _) = run(&source, &request).await;
        assert_eq!(packed_count(&plain), 0);
        let (packed, _) = run(&source, &Request { packed: true, ..request }).await;
        // 74 chunks of text, and no chunk of noise.
        assert!(packed_count(&packed) >= 74, "{}", packed_count(&packed));
        let wire = |answers: &[Answer]| answers.iter().map(Answer::wire_bytes).sum::<usize>();
        assert!(wire(&packed) < wire(&plain) * 2 / 3);
        let budget = |answers: &[Answer]| answers.iter().map(Answer::budget_bytes).sum::<u64>();
        assert_eq!(budget(&packed), budget(&plain), "the budget counts unpacked bytes");
    }
}

#[tokio::test]
async fn leaves_are_in_the_order_of_the_file_and_inner_nodes_come_first() {
    let source = TestSource::default();
    // An inner node has 2.5 MiB, more than a block.
    let profile =
        Profile { chunking: "size-65536".parse().expect("a chunking"), file_links_max: 40, ..Profile::UNIXFS_V1_2025 };
    let file = Import::new(&source, profile).file(&noise(1, 24 << 20));
    let (answers, _) = run(&source, &all(file.cid)).await;
    let found = cids(&answers);
    let archive: Vec<Cid> =
        expected(&source, file.cid, "", ScopeOptions::default()).await.iter().map(|block| *block.cid()).collect();
    let leaves = |cids: &[Cid]| cids.iter().filter(|cid| cid.codec() == codec::RAW).copied().collect::<Vec<_>>();
    assert!(leaves(&found) == leaves(&archive));
    let inner: Vec<usize> = (0..found.len()).filter(|at| found[*at].codec() == codec::DAG_PB).collect();
    assert_eq!(inner.len(), 11, "a root and ten nodes");
    assert_eq!(inner[..7], [0, 1, 2, 3, 4, 5, 6], "those within the window of 16 MiB precede all leaves");
    // The last node is small enough to be a leaf.
    for (number, at) in inner.iter().enumerate().take(10).skip(7) {
        let leaves_before = at - number;
        let first_leaf_of_it = (number - 1) * 40;
        let ahead = first_leaf_of_it - leaves_before;
        assert!((240..=256).contains(&ahead), "node {number} is {ahead} leaves ahead");
    }
}

#[tokio::test]
async fn never_more_than_the_budget_is_sent_and_credit_continues_the_transfer() {
    let (source, root) = site(false);
    let (unlimited, _) = run(&source, &all(root)).await;
    for step in [600_u64, 5_000, 30_000] {
        let mut traversal = Traversal::new(&all(root));
        let (mut budget, mut needed, mut granted, mut answers) = (0_u64, 0, 0_u64, Vec::new());
        let status = loop {
            if budget < needed || budget == 0 {
                budget += step;
                granted += step;
                continue;
            }
            let reads = source.reads();
            let result = traversal.turn(&*source, TurnLimits { budget_bytes: budget, ..FREE }).await;
            let spent: u64 = result.answers.iter().map(Answer::budget_bytes).sum();
            assert!(spent <= budget);
            budget -= spent;
            answers.extend(result.answers);
            match result.end {
                TurnEnd::More => {}
                TurnEnd::Budget(bytes) => {
                    assert!(bytes > budget && source.reads() - reads <= result.reads);
                    needed = bytes;
                }
                TurnEnd::Ended(status) => break status,
            }
        };
        assert_eq!((status, sorted(cids(&answers))), (EndStatus::Complete, sorted(cids(&unlimited))));
        assert!(answers.iter().map(Answer::budget_bytes).sum::<u64>() <= granted);
        assert_named(root, &answers);
    }
}

#[tokio::test]
async fn nothing_is_read_without_budget() {
    let (source, root) = site(false);
    let mut traversal = Traversal::new(&all(root));
    for budget_bytes in [0, ANSWER_OVERHEAD_BYTES] {
        let result = traversal.turn(&*source, TurnLimits { budget_bytes, ..FREE }).await;
        assert_eq!((result.answers, result.end), (vec![], TurnEnd::Budget(ANSWER_OVERHEAD_BYTES + 1)));
    }
    assert_eq!(source.reads(), 0);
}

#[tokio::test]
async fn inner_nodes_in_memory_are_not_read_for_their_stored_form_and_leaves_are() {
    let source = TestSource::default();
    let profile =
        Profile { chunking: "size-65536".parse().expect("a chunking"), file_links_max: 40, ..Profile::UNIXFS_V1_2025 };
    let file = Import::new(&source, profile).file(&text(1, 10 << 20));
    let request = Request { packed: true, ..all(file.cid) };
    let (cold, _) = run(&source, &request).await;
    let inner: Vec<Cid> = cids(&cold).into_iter().filter(|cid| cid.codec() != codec::RAW).skip(1).collect();
    assert_eq!(inner.len(), 4);
    cids(&cold).iter().for_each(|cid| source.heat(cid));
    let reads = source.reads();
    let (hot, _) = run(&source, &request).await;
    assert_eq!(sorted(cids(&hot)), sorted(cids(&cold)));
    assert_eq!(source.reads() - reads, cold.len() - inner.len());
    let is_packed_leaf =
        |answer: &&Answer| matches!(answer, Answer::Packed(packed) if packed.cid.codec() == codec::RAW);
    assert_eq!(hot.iter().filter(is_packed_leaf).count(), cold.len() - inner.len() - 1);
}

#[tokio::test]
async fn what_was_read_and_not_sent_is_reported() {
    for packed in [false, true] {
        let source = TestSource::default();
        let leaves: Vec<Block> = (0..3).map(|n| raw(noise(n, 100_000))).collect();
        let root = links(&leaves.iter().map(|leaf| *leaf.cid()).collect::<Vec<_>>());
        leaves.iter().chain([&root]).for_each(|block| source.insert(block));
        let mut traversal = Traversal::new(&Request { packed, ..all(*root.cid()) });
        // The links do not declare sizes.
        let result = traversal.turn(&source, TurnLimits { budget_bytes: 150_000, ..FREE }).await;
        assert_eq!((result.answers.len(), result.unsent_bytes), (2, 100_000), "{packed}");
        let result = traversal.turn(&source, TurnLimits { budget_bytes: 1_000_000, ..FREE }).await;
        assert_eq!((result.answers.len(), result.unsent_bytes), (2, 0), "{packed}");
    }
}

#[tokio::test]
async fn the_end_needs_no_budget() {
    let source = TestSource::default();
    let block = raw(noise(1, 1_000));
    source.insert(&block);
    let mut traversal = Traversal::new(&all(*block.cid()));
    let budget_bytes = 1_000 + ANSWER_OVERHEAD_BYTES;
    let first = traversal.turn(&source, TurnLimits { wire_bytes: 1, budget_bytes }).await;
    assert_eq!((first.answers.len(), first.end), (1, TurnEnd::More));
    let last = traversal.turn(&source, TurnLimits { budget_bytes: 0, ..FREE }).await;
    assert_eq!((last.answers, last.end), (vec![], TurnEnd::Ended(EndStatus::Complete)));
}

#[tokio::test]
async fn absent_blocks_are_reported_and_the_rest_is_sent() {
    let (source, root) = site(false);
    let (whole, _) = run(&source, &all(root)).await;
    for packed in [false, true] {
        for (at, answer) in whole.iter().enumerate().step_by(7) {
            let cid = *block(answer).expect("a block").cid();
            source.withhold(&cid);
            let (answers, status) = run(&source, &Request { packed, ..all(root) }).await;
            source.withheld.lock().expect("no panic").clear();
            assert_eq!(status, EndStatus::Complete);
            let absent: Vec<&Answer> = answers.iter().filter(|answer| matches!(answer, Answer::Absent(_))).collect();
            assert_eq!(absent, [&Answer::Absent(cid)], "{at}");
            let found = cids(&answers);
            assert!(!found.contains(&cid) && found.len() < whole.len());
            assert_named(root, &answers);
        }
    }
    source.withhold(&root);
    let (answers, status) = run(&source, &all(root)).await;
    assert_eq!((answers, status), (vec![Answer::Absent(root)], EndStatus::Complete));
}

#[tokio::test]
async fn held_subtrees_are_not_sent() {
    let (source, root) = site(true);
    let (whole, _) = run(&source, &all(root)).await;
    let entity = ScopeOptions { scope: DagScope::All, entity_bytes: None, duplicates: false };
    let below = expected(&source, root, "many", entity).await;
    let held: HashSet<Cid> = below[1..].iter().map(|block| *block.cid()).collect();
    // By a CID of the other version.
    let many = Cid::new_v1(codec::DAG_PB, *below[1].cid().hash());
    let request = Request { held: vec![many], ..all(root) };
    let (answers, status) = run(&source, &request).await;
    let rest: Vec<Cid> = cids(&whole).into_iter().filter(|cid| !held.contains(cid)).collect();
    assert_eq!((sorted(cids(&answers)), status), (sorted(rest.clone()), EndStatus::Complete));
    // The same while it is under way.
    let mut traversal = Traversal::new(&all(root));
    let first = traversal.turn(&*source, TurnLimits { wire_bytes: 1, ..FREE }).await;
    traversal.skip(below[1].cid());
    let mut answers = first.answers;
    loop {
        let result = traversal.turn(&*source, FREE).await;
        answers.extend(result.answers);
        if result.end != TurnEnd::More {
            break;
        }
    }
    assert_eq!(sorted(cids(&answers)), sorted(rest));
    // Reports beyond the limit are ignored.
    (0..2 * HELD_MAX as u64).for_each(|n| traversal.skip(raw(n.to_be_bytes().to_vec()).cid()));
    assert_eq!(traversal.held.len(), HELD_MAX);
}

#[tokio::test]
async fn a_path_that_does_not_continue_is_proved_and_ends() {
    let (source, root) = site(false);
    for path in ["missing", "a/b/missing", "text.txt/below", "many/missing", "a/b/c/page.html/x"] {
        let (answers, status) = run(&source, &request(root, path, ScopeOptions::default())).await;
        assert_eq!(status, EndStatus::Complete);
        let proof = cids(&answers);
        assert!(!proof.is_empty() && proof.len() < 8, "{path}: {}", proof.len());
        assert_named(root, &answers);
    }
}

#[tokio::test]
async fn turns_are_bounded_in_bytes() {
    let source = TestSource::default();
    // The links of a document declare no sizes.
    let leaves: Vec<Block> = (0..40).map(|n| raw(noise(n, 1 << 20))).collect();
    leaves.iter().for_each(|leaf| source.insert(leaf));
    let root = links(&leaves.iter().map(|leaf| *leaf.cid()).collect::<Vec<_>>());
    source.insert(&root);
    let mut traversal = Traversal::new(&all(*root.cid()));
    let mut sent = 0;
    loop {
        let result = traversal.turn(&source, FREE).await;
        let bytes: usize = result.answers.iter().map(Answer::wire_bytes).sum();
        assert!(bytes <= FREE.wire_bytes + (1 << 20) + 256, "{bytes}");
        sent += result.answers.len();
        if result.end != TurnEnd::More {
            assert_eq!(result.end, TurnEnd::Ended(EndStatus::Complete));
            break;
        }
    }
    assert_eq!(sent, 41);
}

#[tokio::test]
async fn a_block_that_cannot_be_decoded_is_sent_and_ends_the_transfer() {
    let source = TestSource::default();
    let broken = Block::of(codec::DAG_PB, content::hashes::SHA2_256, 32, b"not protobuf".as_slice().into());
    let broken = broken.expect("a block");
    let leaf = raw(b"leaf".to_vec());
    let root = links(&[*broken.cid(), *leaf.cid()]);
    [&broken, &leaf, &root].into_iter().for_each(|block| source.insert(block));
    let (answers, status) = run(&source, &all(*root.cid())).await;
    assert_eq!(status, EndStatus::Failed);
    assert!(cids(&answers).starts_with(&[*root.cid(), *broken.cid()]));
}

#[tokio::test]
async fn malicious_dags_cost_no_more_than_their_blocks() {
    let source = TestSource::default();
    // 2^60 paths to one leaf.
    let mut top = raw(b"leaf".to_vec());
    source.insert(&top);
    for _ in 0..60 {
        top = links(&[*top.cid(); 2]);
        source.insert(&top);
    }
    let (answers, status) = run(&source, &all(*top.cid())).await;
    assert_eq!((answers.len(), status), (61, EndStatus::Complete));
    assert_eq!(source.reads(), 61);
    // A list of one link, repeated.
    let wide = links(&vec![*top.cid(); 20_000]);
    source.insert(&wide);
    let mut traversal = Traversal::new(&all(*wide.cid()));
    let (mut turns, mut sent) = (0, 0);
    loop {
        let result = traversal.turn(&source, FREE).await;
        assert!(result.steps <= STEPS_PER_TURN + WINDOW_CHILDREN);
        (turns, sent) = (turns + 1, sent + result.answers.len());
        if result.end != TurnEnd::More {
            break;
        }
    }
    assert_eq!(sent, 62);
    assert!(turns >= 20_000 / STEPS_PER_TURN, "{turns}");
}

#[tokio::test]
async fn deep_and_wide_directories_take_little_memory() {
    let source = TestSource::default();
    let leaf = |n: u64| raw(n.to_be_bytes().to_vec());
    let mut below = *leaf(0).cid();
    source.insert(&leaf(0));
    for level in 1..=600_u64 {
        let siblings = (0..40).map(|n| leaf(level * 100 + n)).inspect(|leaf| source.insert(leaf));
        let siblings: Vec<Cid> = siblings.map(|leaf| *leaf.cid()).collect();
        let node = links(&[&[below][..], &siblings].concat());
        source.insert(&node);
        below = *node.cid();
    }
    let mut traversal = Traversal::new(&all(below));
    let (mut sent, mut memory_max) = (0, 0);
    loop {
        let result = traversal.turn(&source, FREE).await;
        memory_max = memory_max.max(traversal.memory_bytes());
        sent += result.answers.len();
        if result.end != TurnEnd::More {
            assert_eq!(result.end, TurnEnd::Ended(EndStatus::Complete));
            break;
        }
    }
    assert_eq!(sent, 600 * 41 + 1);
    assert!(memory_max < 6 << 20, "{memory_max}");
    // Deeper than any limit.
    let mut below = *leaf(0).cid();
    for _ in 0..STACK_MAX + 1 {
        let node = links(&[below, *leaf(1).cid()]);
        source.insert(&node);
        below = *node.cid();
    }
    source.insert(&leaf(1));
    assert_eq!(run(&source, &all(below)).await.1, EndStatus::Failed);
}

#[tokio::test]
async fn a_stored_form_that_was_cut_elsewhere_hides_no_links() {
    let source = TestSource::default();
    let file = Import::new(&source, profile(true)).file(&text(1, 100_000));
    let (whole, _) = run(&source, &all(file.cid)).await;
    for answer in &whole {
        let plain = block(answer).expect("a block");
        for cut in [1, 2, 3, 10] {
            let frame = zstd_frame(&plain.data()[cut..]);
            let stored = Stored::from_packed_parts([&plain.data()[..cut], &frame, &[]]).expect("a stored form");
            source.set_stored(plain.cid(), stored);
            let (answers, status) = run(&source, &Request { packed: true, ..all(file.cid) }).await;
            assert_eq!((sorted(cids(&answers)), status), (sorted(cids(&whole)), EndStatus::Complete), "{cut}");
        }
    }
}

/// Bytes as one zstd frame of raw blocks.
fn zstd_frame(bytes: &[u8]) -> Vec<u8> {
    content::stored::frame::raw(&Bytes::copy_from_slice(bytes)).concat()
}

#[tokio::test]
async fn packed_leaves_of_files_need_not_be_unpacked() {
    let source = TestSource::default();
    let import = Import::new(&source, profile(true));
    for data in [text(1, 4_096), text(2, 100_000)] {
        let file = import.file(&data);
        let (answers, _) = run(&source, &Request { packed: true, ..all(file.cid) }).await;
        for answer in &answers {
            let Answer::Packed(packed) = answer else { continue };
            let has_links = !content::dag::links(&block(answer).expect("a block")).expect("decodes").is_empty();
            assert_eq!(is_packed_leaf(packed), !has_links);
        }
        assert!(answers.iter().any(|answer| matches!(answer, Answer::Packed(_))));
    }
    let leaf = raw(text(1, 10_000));
    source.insert(&leaf);
    let stored = source.get_stored(leaf.cid()).await.expect("reads").expect("is stored");
    assert!(!is_packed_leaf(&Packed::new(*leaf.cid(), stored).expect("compressed")), "not dag-pb");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Random DAGs of documents and leaves, some of which are absent.
    #[test]
    fn random_dags_are_sent_once_and_in_an_order_that_can_be_verified(
        nodes in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 0..12), 1..40),
        absent in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        budget in 1_000_u64..20_000,
    ) {
        let source = Arc::new(TestSource::default());
        let mut blocks: Vec<Block> = (0..5).map(|n| raw(noise(n, 300 * n as usize))).collect();
        for children in nodes {
            let cids: Vec<Cid> = children.iter().map(|child| *blocks[child.index(blocks.len())].cid()).collect();
            blocks.push(links(&cids));
        }
        blocks.iter().for_each(|block| source.insert(block));
        let root = *blocks.last().expect("not empty").cid();
        let gone: Vec<Cid> = absent.iter().map(|at| *blocks[at.index(blocks.len())].cid()).collect();
        gone.iter().for_each(|cid| source.withhold(cid));
        let reachable = reachable(&source, root, &gone);
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let mut traversal = Traversal::new(&all(root));
        let (mut answers, mut left) = (Vec::new(), budget);
        let status = loop {
            let limits = TurnLimits { budget_bytes: left, ..FREE };
            let result = runtime.block_on(traversal.turn(&*source, limits));
            left -= result.answers.iter().map(Answer::budget_bytes).sum::<u64>();
            answers.extend(result.answers);
            match result.end {
                TurnEnd::More => {}
                TurnEnd::Budget(needed) => left = left.max(needed),
                TurnEnd::Ended(status) => break status,
            }
        };
        prop_assert_eq!(status, EndStatus::Complete);
        prop_assert_eq!(sorted(cids(&answers)), sorted(reachable.0));
        let absent: Vec<Cid> = answers
            .iter()
            .filter_map(|answer| if let Answer::Absent(cid) = answer { Some(*cid) } else { None })
            .collect();
        prop_assert_eq!(sorted(absent), sorted(reachable.1));
        assert_named(root, &answers);
    }
}

/// The blocks that can be reached, and those that are absent.
fn reachable(source: &TestSource, root: Cid, gone: &[Cid]) -> (Vec<Cid>, Vec<Cid>) {
    let (mut found, mut absent, mut seen, mut stack) = (Vec::new(), Vec::new(), HashSet::new(), vec![root]);
    while let Some(cid) = stack.pop() {
        if !seen.insert(BlockKey::of(&cid)) {
            continue;
        }
        if gone.contains(&cid) {
            absent.push(cid);
            continue;
        }
        found.push(cid);
        stack.extend(content::dag::links(&source.blocks.peek(&cid).expect("is stored")).unwrap_or_default());
    }
    (found, absent)
}
