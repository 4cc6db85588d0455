//! Transfers with simulated peers: honest ones in any order, and ones that send too much or other blocks.

use super::*;
use crate::dag::client::fixture::{LEAF_BYTES, Site, answer};
use crate::dag::message::BUDGET_BYTES_MAX;
use content::{BlockSource as _, hashes};
use proptest::prelude::*;
use std::collections::{HashSet, VecDeque};

/// The asker's side, without streams.
struct Asker {
    transfer: Transfer,
    /// The blocks that were verified.
    received: HashSet<Cid>,
    absent: HashSet<Cid>,
    dropped: HashSet<Cid>,
    /// The bytes of the budget that are buffered.
    buffered: VecDeque<u64>,
}

impl Asker {
    fn new(request: &Request) -> Self {
        let transfer = Transfer::new(request);
        let (received, absent, dropped) = Default::default();
        Self { transfer, received, absent, dropped, buffered: VecDeque::new() }
    }

    fn take(&mut self, answer: Answer) -> Result<(), Violation> {
        match self.transfer.arrived(answer, None)? {
            Arrival::Verify(verify) => self.verify(*verify),
            Arrival::Nothing | Arrival::End(_) => {}
            Arrival::Absent(cid) => _ = self.absent.insert(cid),
        }
        Ok(())
    }

    fn verify(&mut self, mut verify: Verify) {
        let cid = verify.cid;
        let block = match verify.take_payload() {
            Payload::Plain(data) => Block::verify(cid, data).expect("is valid"),
            Payload::Packed(stored) => Block::verify_stored(cid, stored).expect("is valid"),
        };
        let children = children(&verify, &block);
        let expanded = self.transfer.verified(&verify, &block, &children).expect("is small");
        self.transfer.delivered(&verify);
        assert!(self.received.insert(cid), "{cid} is verified once");
        self.buffered.push_back(verify.budget_bytes);
        self.absent.extend(expanded.absent);
        self.dropped.extend(expanded.dropped);
        expanded.verify.into_iter().for_each(|verify| self.verify(verify));
    }

    /// A reader takes a block.
    fn read(&mut self) {
        if let Some(bytes) = self.buffered.pop_front() {
            self.transfer.release(bytes);
        }
    }
}

fn other(n: u8) -> Block {
    Block::of(content::codec::RAW, hashes::SHA2_256, 32, vec![n; 99].into()).expect("a block")
}

fn cids(blocks: &[Block]) -> HashSet<Cid> {
    blocks.iter().map(|block| *block.cid()).collect()
}

fn key(cid: &Cid) -> BlockKey {
    BlockKey::of(cid).expect("a key")
}

#[test]
fn the_blocks_of_a_path_and_its_file_are_verified_and_no_others() {
    let site = Site::new(40);
    let request = site.request(BUDGET_BYTES_MAX);
    let (blocks, mut asker) = (site.blocks_of(&request), Asker::new(&request));
    // Three directories, the root of the file, two levels below it, and the leaves.
    assert!(blocks.len() > 3 + 1 + 8 + 40, "{}", blocks.len());
    assert_eq!(asker.transfer.expected_bytes(), None);
    for block in &blocks {
        asker.take(answer(block)).expect("is honest");
    }
    assert_eq!(asker.received, cids(&blocks));
    assert_eq!(asker.transfer.expected_bytes(), Some(site.file_bytes as u64));
    assert_eq!(asker.transfer.blocks(), blocks.len() as u64);
    asker.take(Answer::End(EndStatus::Complete)).expect("is honest");
    assert_eq!(asker.transfer.end(EndStatus::Complete), Ok(()));
}

#[test]
fn wants_are_covered_until_they_are_past() {
    let site = Site::new(40);
    let request = site.request(BUDGET_BYTES_MAX);
    let (blocks, mut asker) = (site.blocks_of(&request), Asker::new(&request));
    let leaf = blocks.last().expect("a leaf").cid();
    let ahead = ReadAhead::of_file(site.file, 0, site.file_bytes as u64);
    let prospect = |asker: &Asker, cid: &Cid, ahead: Option<&ReadAhead>| asker.transfer.prospect(&key(cid), ahead);
    assert_eq!(prospect(&asker, &site.root, Some(&site.ahead())), Prospect::Named);
    // The client does not know yet that the path leads to the file.
    assert_eq!(prospect(&asker, leaf, Some(&ahead)), Prospect::None);
    for block in &blocks[..3] {
        asker.take(answer(block)).expect("is honest");
    }
    assert_eq!(prospect(&asker, &site.root, None), Prospect::None, "it has arrived");
    assert_eq!(prospect(&asker, &site.file, None), Prospect::Named);
    assert_eq!(prospect(&asker, leaf, Some(&ahead)), Prospect::Covered);
    assert_eq!(prospect(&asker, other(1).cid(), None), Prospect::None);
    asker.take(Answer::Absent(site.file)).expect("is honest");
    assert_eq!(asker.absent, [site.file].into());
    assert_eq!(prospect(&asker, &site.file, Some(&ahead)), Prospect::None);
    asker.transfer.stop();
    assert_eq!(prospect(&asker, leaf, Some(&ahead)), Prospect::None);
}

#[test]
fn a_request_covers_what_begins_within_its_path_scope_and_range() {
    let site = Site::new(40);
    let range = |from, to| Some(EntityBytes::new(from, to).expect("a range"));
    let entity = |entity_bytes| ScopeOptions { scope: DagScope::Entity, entity_bytes, duplicates: false };
    let file = |entity_bytes| ScopeOptions { scope: DagScope::File, entity_bytes, duplicates: false };
    let block = ScopeOptions { scope: DagScope::Block, ..ScopeOptions::default() };
    let all = ScopeOptions::default();
    let table = [
        (all, entity(None), true),
        (all, all, true),
        (entity(None), all, false),
        (entity(None), entity(range(5, Some(9))), true),
        (entity(range(0, None)), entity(None), true),
        (entity(range(1, None)), entity(None), false),
        (entity(range(10, Some(19))), entity(range(12, Some(19))), true),
        (entity(range(10, Some(19))), entity(range(12, Some(20))), true),
        (entity(range(10, Some(19))), entity(range(19, None)), true),
        (entity(range(10, Some(19))), entity(range(20, None)), false),
        (entity(range(10, Some(19))), entity(range(9, Some(11))), false),
        (entity(range(10, Some(19))), entity(range(-5, None)), false),
        (entity(range(-10, None)), entity(range(-5, None)), true),
        (entity(range(-5, None)), entity(range(-10, None)), false),
        (entity(range(10, Some(19))), block, true),
        (block, entity(None), false),
        (all, file(None), true),
        (entity(range(10, Some(19))), file(range(12, Some(20))), true),
        (file(None), file(range(5, Some(9))), true),
        (file(range(10, Some(19))), file(range(20, None)), false),
        // It may be a directory, which is to be listed.
        (file(None), entity(None), false),
        (file(None), block, true),
        (block, file(None), false),
    ];
    for (requested, wanted, expected) in table {
        let transfer =
            Transfer::new(&Request { root: site.file, path: Vec::new(), scope: requested, ..site.request(1 << 20) });
        let covers = transfer.covers(&ReadAhead::below(site.file, wanted));
        assert_eq!(covers, expected, "{requested:?} {wanted:?}");
    }
    let request = site.request(BUDGET_BYTES_MAX);
    let transfer = Transfer::new(&request);
    assert!(transfer.covers(&site.ahead()));
    let shorter = ReadAhead { path: vec!["pages".to_owned()], ..ReadAhead::below(site.root, block) };
    assert!(transfer.covers(&shorter), "the blocks on the way are sent");
    assert!(!transfer.covers(&ReadAhead { scope: entity(None), ..shorter }), "what is below them is not");
    assert!(!transfer.covers(&ReadAhead { path: vec!["other".to_owned()], ..site.ahead() }));
    assert!(!transfer.covers(&ReadAhead::below(site.file, entity(None))), "it is not known to be the file");
}

#[test]
fn a_block_that_is_far_away_is_not_waited_for() {
    let site = Site::new(100);
    let request = Request { root: site.file, path: Vec::new(), ..site.request(10 * LEAF_BYTES as u64) };
    let mut asker = Asker::new(&request);
    let far = |from: u64| ReadAhead::of_file(site.file, from, site.file_bytes as u64);
    assert!(asker.transfer.covers(&far(0)));
    assert!(asker.transfer.covers(&far(20 * LEAF_BYTES as u64)));
    assert!(!asker.transfer.covers(&far(30 * LEAF_BYTES as u64)));
    for block in &site.blocks_of(&request)[..30] {
        while asker.transfer.is_blocked() && !asker.buffered.is_empty() {
            asker.read();
            asker.transfer.credit();
        }
        asker.take(answer(block)).expect("is honest");
    }
    assert!(asker.transfer.covers(&far(30 * LEAF_BYTES as u64)));
}

#[test]
fn more_than_the_budget_is_a_violation_and_credit_is_given_as_readers_take_blocks() {
    let site = Site::new(40);
    let request = site.request(8_000);
    let (blocks, mut asker) = (site.blocks_of(&request), Asker::new(&request));
    let mut sent = blocks.iter();
    let (mut allowed, mut used) = (request.budget_bytes, 0);
    // An honest server sends what the budget allows.
    for _ in 0..100 {
        let Some(block) = sent.next() else { break };
        let answer = answer(block);
        while used + answer.budget_bytes() > allowed {
            assert_eq!(asker.transfer.credit(), None, "nothing was taken");
            while !asker.buffered.is_empty() {
                asker.read();
            }
            allowed += asker.transfer.credit().expect("is due");
        }
        used += answer.budget_bytes();
        asker.take(answer).expect("is within the budget");
    }
    assert_eq!(asker.received.len(), blocks.len());

    let mut asker = Asker::new(&request);
    let violation = blocks.iter().find_map(|block| asker.take(answer(block)).err());
    assert_eq!(violation, Some(Violation::OverBudget));
    assert!(asker.transfer.has_ended() && asker.transfer.credit().is_none());
}

#[test]
fn a_transfer_is_full_until_readers_take_what_is_worth_credit() {
    let site = Site::new(60);
    // Twenty blocks or so.
    let mut asker = Asker::new(&site.request(24_000));
    assert!(!asker.transfer.is_full(), "nothing has arrived");
    let mut blocks = site.blocks_of(&site.request(0)).into_iter();
    while !asker.transfer.is_full() {
        asker.take(answer(&blocks.next().expect("more"))).expect("is in the budget");
    }
    assert!(asker.buffered.len() > 15, "{}", asker.buffered.len());
    let leaf = blocks.next().expect("more");
    assert_eq!(asker.transfer.prospect(&key(leaf.cid()), None), Prospect::Named);
    let mut reads = 0;
    while asker.transfer.is_full() {
        asker.read();
        reads += 1;
    }
    assert!((1..=6).contains(&reads), "{reads}");
    assert!(asker.transfer.credit().is_some() && !asker.transfer.is_full());
    // No credit follows.
    asker.transfer.cap();
    while !asker.transfer.is_full() {
        asker.take(answer(&blocks.next().expect("more"))).expect("is in the budget");
    }
    asker.read();
    assert!(asker.transfer.is_full());
}

#[test]
fn a_transfer_with_credit_that_is_due_is_not_blocked() {
    let site = Site::new(1);
    let mut transfer = Transfer::new(&site.request(4 << 20));
    for n in 0..9 {
        let data = Bytes::from(vec![n; 256 * 1024]);
        let block = Block::of(content::codec::RAW, hashes::SHA2_256, 32, data).expect("a block");
        transfer.arrived(Answer::plain(&block), None).expect("is in the budget");
    }
    assert!(transfer.is_blocked());
    transfer.release(1 << 20);
    assert!(!transfer.is_blocked());
    assert_eq!(transfer.credit(), Some(1 << 20));
    // A part that is not worth a message is not given.
    let mut transfer = Transfer::new(&site.request(BUDGET_BYTES_MIN));
    transfer.arrived(Answer::plain(&other(1)), None).expect("is in the budget");
    transfer.release(300);
    assert!(transfer.is_blocked() && transfer.credit().is_none());
}

#[test]
fn blocks_that_nothing_names_are_not_verified_and_repeated_ones_are_a_violation() {
    let site = Site::new(10);
    let request = site.request(BUDGET_BYTES_MAX);
    let root = site.blocks.peek(&site.root).expect("is stored");
    // Other blocks, which wait for a parent until the end.
    let mut asker = Asker::new(&request);
    for n in 0..UNSOLICITED_MAX + 1 {
        asker.take(Answer::plain(&other(n as u8))).expect("may have a parent");
    }
    assert!(asker.received.is_empty());
    for block in site.blocks_of(&request) {
        asker.take(answer(&block)).expect("is honest");
    }
    assert_eq!(asker.transfer.end(EndStatus::Complete), Err(Violation::Unsolicited));
    // The same block again and again.
    let mut asker = Asker::new(&request);
    let violation = (0..UNSOLICITED_MAX + 2).find_map(|_| asker.take(answer(&root)).err());
    assert_eq!((asker.received.len(), violation), (1, Some(Violation::Unsolicited)));
    // A few are tolerated: a server may skip too late.
    let mut asker = Asker::new(&request);
    asker.take(Answer::Absent(*other(1).cid())).expect("may have a parent");
    for block in site.blocks_of(&request) {
        asker.take(answer(&block)).expect("is honest");
    }
    assert_eq!(asker.transfer.end(EndStatus::Complete), Ok(()));
}

#[test]
fn what_waits_for_its_parent_is_bounded() {
    let site = Site::new(40);
    let blocks = site.blocks_of(&site.request(BUDGET_BYTES_MAX));
    let bytes_of = |block: &Block| answer(block).budget_bytes();
    let total: u64 = blocks.iter().map(bytes_of).sum();
    // All leaves before any other block, and their parents before the directories.
    let request = site.request(total);
    let mut asker = Asker::new(&request);
    for block in blocks[1..].iter().rev() {
        asker.take(answer(block)).expect("is within the budget");
        assert!(asker.transfer.early_bytes <= total / EARLY_PART);
        assert_eq!(asker.transfer.credit(), None, "nothing was named");
    }
    // What was dropped is known when it is named.
    assert_eq!((asker.received.len(), asker.dropped.len()), (0, 0));
    asker.take(answer(&blocks[0])).expect("is within the budget");
    assert!(asker.received.contains(blocks[0].cid()));
    assert!(asker.received.len() + asker.dropped.len() > 1, "the child was kept, or is known to be dropped");
    // Who sends only what nothing names exhausts the budget.
    let mut asker = Asker::new(&site.request(total / 2));
    let violation = blocks[1..].iter().rev().find_map(|block| {
        let violation = asker.take(answer(block)).err();
        asker.transfer.credit();
        violation
    });
    assert_eq!((asker.received.len(), violation), (0, Some(Violation::OverBudget)));
}

proptest! {
    /// In whatever order the blocks of an honest server arrive, all are verified once, those of unknown parents later.
    #[test]
    fn blocks_arrive_in_any_order(
        leaves in 1_usize..60,
        places in prop::collection::vec(0_usize..1_000, 120),
        lacks in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
    ) {
        let site = Site::new(leaves);
        let request = site.request(BUDGET_BYTES_MAX);
        let blocks = site.blocks_of(&request);
        // What is missing has nothing below it.
        let missing: HashSet<Cid> = lacks.iter().map(|at| *at.get(&blocks).cid())
            .filter(|cid| cid.codec() == content::codec::RAW).collect();
        let mut order: Vec<(usize, &Block)> = places.iter().copied().cycle().zip(&blocks).collect();
        order.sort_by_key(|(place, _)| *place);
        let mut asker = Asker::new(&request);
        for (_, block) in order {
            let absent = missing.contains(block.cid());
            asker.take(if absent { Answer::Absent(*block.cid()) } else { answer(block) }).expect("is honest");
        }
        prop_assert_eq!(&asker.received | &missing, cids(&blocks));
        prop_assert_eq!(&asker.absent, &missing);
        prop_assert!(asker.dropped.is_empty());
        prop_assert_eq!(asker.transfer.end(EndStatus::Complete), Ok(()));
    }

    /// Whatever a peer sends, no block is verified that is not of the request, nothing is verified twice, and what is
    /// buffered or waits never exceeds the window.
    #[test]
    fn no_peer_gets_more_than_its_window(
        sends in prop::collection::vec((any::<prop::sample::Index>(), 0_u8..12, any::<bool>()), 1..200),
        window in 3_000_u64..60_000,
    ) {
        let site = Site::new(20);
        let request = site.request(window);
        let blocks = site.blocks_of(&request);
        let mut asker = Asker::new(&request);
        let mut next = 0;
        for (at, kind, reads) in sends {
            let answer = match kind {
                0 => Answer::plain(&other(at.index(200) as u8)),
                1 => Answer::Absent(*at.get(&blocks).cid()),
                2 => answer(at.get(&blocks)),
                3 => Answer::End(EndStatus::Budget),
                _ => {
                    next = (next + 1).min(blocks.len());
                    answer(&blocks[next - 1])
                }
            };
            let result = asker.take(answer);
            let held: u64 = asker.buffered.iter().sum::<u64>() + asker.transfer.early_bytes;
            prop_assert!(held <= window, "{held}");
            if result.is_err() {
                prop_assert!(asker.transfer.has_ended());
                break;
            }
            if reads {
                asker.read();
            }
            asker.transfer.credit();
        }
        prop_assert!(asker.received.is_subset(&cids(&blocks)));
    }
}

#[test]
fn what_another_transfer_brings_is_not_waited_for() {
    let site = Site::new(10);
    let request = Request { root: site.file, path: Vec::new(), ..site.request(BUDGET_BYTES_MAX) };
    let mut asker = Asker::new(&request);
    let until = 5 * LEAF_BYTES as u64;
    asker.transfer.end_at(until, false);
    asker.transfer.end_at(2 * until, false);
    let from = |from: u64| ReadAhead::of_file(site.file, from, site.file_bytes as u64);
    assert!(asker.transfer.covers(&from(until - 1)) && !asker.transfer.covers(&from(until)));
    assert!(!asker.transfer.ends_before(until - 1) && asker.transfer.ends_before(until));
    let blocks = site.blocks_of(&request);
    let before = blocks.iter().position(|block| asker.take(answer(block)).is_err() || asker.transfer.is_needless());
    // Two nodes and five leaves.
    assert_eq!(before, Some(6));
    assert_eq!(asker.transfer.prospect(&key(blocks[7].cid()), None), Prospect::None);
}

#[test]
fn a_peer_gets_credit_for_what_precedes_another_transfer_and_little_more() {
    let site = Site::new(9_000);
    let window = 2 * BUDGET_BYTES_MIN;
    let request = Request { root: site.file, path: Vec::new(), ..site.request(window) };
    let blocks = site.blocks_of(&request);
    let until = 5_000 * LEAF_BYTES as u64;
    for credit_ends in [false, true] {
        let mut asker = Asker::new(&request);
        let (mut budget, mut bytes_until) = (window, None);
        for block in &blocks {
            let answer = Answer::plain(block);
            let bytes = answer.budget_bytes();
            if asker.transfer.received_bytes > window / 2 {
                asker.transfer.end_at(until, credit_ends);
            }
            if asker.transfer.position() >= until {
                bytes_until.get_or_insert(asker.transfer.received_bytes);
            }
            budget += asker.transfer.credit().unwrap_or(0);
            if budget < bytes {
                break;
            }
            budget -= bytes;
            asker.take(answer).expect("is within the budget");
            asker.read();
        }
        assert_eq!(asker.received.len() == blocks.len(), !credit_ends);
        assert_eq!(asker.transfer.is_used_up(), credit_ends);
        let bytes_until = bytes_until.expect("all that precedes it arrives");
        let further = asker.transfer.received_bytes - bytes_until;
        // Leaves that repeat are sent once: what precedes it takes less credit than its bytes, and the rest is left.
        let spared = (until + until / INNER_PART).saturating_sub(bytes_until);
        let little = BUDGET_BYTES_MIN + window / CREDIT_PART + spared;
        assert!(little < window, "{little}");
        assert!(!credit_ends || further <= little, "{further}");
    }
}

#[test]
fn a_peer_gets_credit_for_the_leaf_in_which_its_part_of_a_file_ends() {
    let site = Site::new(1);
    let leaf = content::MAX_BLOCK_BYTES as u64;
    for within in [1, leaf / 16, leaf / 3, leaf - 1] {
        let mut transfer = Transfer::new(&site.request(BUDGET_BYTES_MAX));
        let receive = |transfer: &mut Transfer| {
            assert!(transfer.has_room_for(leaf), "{within}");
            transfer.received_bytes += leaf + ANSWER_OVERHEAD_BYTES;
            transfer.reach(transfer.reached + leaf);
        };
        // Readers take nothing until the window is full.
        while transfer.has_room_for(leaf) {
            receive(&mut transfer);
        }
        transfer.end_at(transfer.reached + within, true);
        assert_eq!(transfer.credit(), None, "nothing was taken");
        transfer.release(transfer.received_bytes);
        assert!(transfer.credit().is_some_and(|credit| credit < 2 * leaf), "{within}");
        receive(&mut transfer);
        transfer.release(leaf);
        assert_eq!(transfer.credit(), None, "another transfer brings what follows");
    }
}

#[test]
fn a_skipped_block_is_dropped_when_it_arrives() {
    let site = Site::new(5);
    let request = Request { root: site.file, path: Vec::new(), ..site.request(BUDGET_BYTES_MAX) };
    let (blocks, mut asker) = (site.blocks_of(&request), Asker::new(&request));
    let (skipped, leaves) = blocks[1..].split_first().expect("leaves");
    asker.transfer.skip(skipped.cid());
    assert!(!asker.transfer.is_needless(), "it is not named");
    asker.take(answer(&blocks[0])).expect("is honest");
    asker.transfer.skip(skipped.cid());
    assert_eq!(asker.transfer.missing(), leaves.len());
    assert_eq!(asker.transfer.prospect(&key(skipped.cid()), None), Prospect::None);
    for block in leaves {
        assert!(!asker.transfer.is_needless());
        asker.take(answer(block)).expect("is honest");
    }
    assert!(asker.transfer.is_needless());
    asker.take(answer(skipped)).expect("is honest");
    assert!(!asker.received.contains(skipped.cid()) && asker.transfer.is_repeat(skipped.cid()));
    assert_eq!((asker.transfer.missing(), asker.transfer.end(EndStatus::Complete)), (0, Ok(())));
}

#[test]
fn a_block_is_brought_until_it_is_delivered() {
    let site = Site::new(3);
    let mut transfer = Transfer::new(&site.request(1_000_000));
    let root = site.blocks.peek(&site.root).expect("is stored");
    let key = root.key().expect("a key");
    assert!(!transfer.is_repeat(&site.root));
    let Ok(Arrival::Verify(verify)) = transfer.arrived(Answer::plain(&root), None) else { panic!("it is named") };
    assert_eq!(transfer.prospect(&key, None), Prospect::Arrived);
    let named = children(&verify, &root);
    transfer.verified(&verify, &root, &named).expect("is small");
    assert_eq!(transfer.prospect(&key, None), Prospect::Arrived, "its reader is about to receive it");
    transfer.delivered(&verify);
    assert_eq!(transfer.prospect(&key, None), Prospect::None);
    assert!(transfer.is_repeat(&site.root) && transfer.missing() == named.len());
}
