//! The lifecycle of requests.

use crate::pinning::Progress;
use crate::pinning::adopt::{AdoptError, Adoption};
use crate::pinning::service::FollowUp;
use crate::pinning::tests::*;
use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};

#[tokio::test]
async fn a_dag_is_fetched_pinned_and_unpinned() {
    let dir = tempfile::tempdir().expect("a directory");
    for world in [World::new(), World::on_disk(dir.path())] {
        let blocks = dag("one", 0..40);
        world.upstream.has(&blocks);
        let pins = world.start().await;
        let alice = owner("alice");
        let asked = pins.request(&alice, named(&blocks, "mine")).await.expect("is asked for");
        assert!(matches!(asked.status, Status::Queued | Status::Pinning));
        assert!(asked.id.len() == 32 && asked.id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{}", asked.id);
        let request = becomes(&pins, &asked, Status::Pinned).await;
        assert_eq!(request.progress, Progress { blocks: 41, bytes: bytes_of(&blocks) });
        assert_eq!((request.name.as_deref(), request.created), (Some("mine"), asked.created));
        assert_eq!(world.pinned().await, [*blocks[0].cid()]);
        assert!(world.holds(&blocks[40]).await);
        pins.remove("alice", &request.id).await.expect("removes");
        assert!(pins.get("alice", &request.id).is_none());
        assert_eq!(world.pinned().await, []);
        assert!(!world.holds(&blocks[40]).await && !world.holds(&blocks[0]).await);
        let again = pins.remove("alice", &request.id).await;
        assert!(matches!(again, Err(PinsError::NotFound)));
        pins.stop().await;
    }
}

#[tokio::test]
async fn a_root_of_several_requests_is_fetched_once_and_stays_until_the_last_is_removed() {
    let world = World::new();
    let blocks = dag("one", 0..10);
    world.upstream.has(&blocks);
    let pins = world.start().await;
    let (one, other) = (owner("one"), owner("other"));
    let mut requests = Vec::new();
    for owner in [&one, &one, &other] {
        requests.push(pins.request(owner, wanted(&blocks)).await.expect("is asked for"));
    }
    for request in &requests {
        becomes(&pins, request, Status::Pinned).await;
    }
    assert_eq!(world.upstream.asked(), 11, "each block once");
    assert_eq!(pins.used("one").bytes, bytes_of(&blocks), "a DAG counts once");
    // Requests of other owners cannot be changed.
    assert!(matches!(pins.remove("other", &requests[0].id).await, Err(PinsError::NotFound)));
    assert!(pins.get("other", &requests[0].id).is_none());
    for (request, left) in requests.iter().zip([1, 1, 0]) {
        pins.remove(&request.owner, &request.id).await.expect("removes");
        assert_eq!(world.pinned().await.len(), left);
    }
    assert!(!world.holds(&blocks[0]).await);
    assert_eq!(pins.used("one"), crate::pinning::QuotaUsage::default());
}

#[tokio::test]
async fn a_block_of_two_dags_stays_until_both_are_unpinned() {
    let world = World::new();
    let (first, second) = (dag("first", 0..4), dag("second", 3..6));
    let shared = leaf(3);
    world.upstream.has(&first);
    world.upstream.has(&second);
    let pins = world.start().await;
    let alice = owner("alice");
    let one = pin(&pins, &alice, wanted(&first)).await;
    let other = pin(&pins, &alice, wanted(&second)).await;
    pins.remove("alice", &one.id).await.expect("removes");
    assert!(world.holds(&shared).await && !world.holds(&first[0]).await);
    pins.remove("alice", &other.id).await.expect("removes");
    assert!(!world.holds(&shared).await);
}

#[tokio::test]
async fn permanent_failures_are_immediate_and_leave_nothing() {
    let mut world = World::new();
    let denied = leaf(1);
    world.policy = Arc::new(DenyList::new([*denied.cid()]));
    let unknown = Block::of(0x0300, hashes::SHA2_256, 32, Bytes::from_static(b"what is it")).expect("a block");
    let broken = Block::of(codec::DAG_PB, hashes::SHA2_256, 32, Bytes::from_static(b"\xff\xff\xff")).expect("a block");
    let table = [
        (vec![denied.clone()], "is not served here"),
        (vec![node("denied", std::slice::from_ref(&denied)), denied], "is not served here"),
        (vec![node("unknown", std::slice::from_ref(&unknown)), leaf(7), unknown], "codec 0x300"),
        (vec![node("broken", std::slice::from_ref(&broken)), broken], "malformed"),
    ];
    let pins = world.start().await;
    let alice = owner("alice");
    for (blocks, words) in table {
        world.upstream.has(&blocks);
        let request = pins.request(&alice, wanted(&blocks)).await.expect("is asked for");
        let request = becomes(&pins, &request, Status::Failed).await;
        let details = request.details.as_deref().unwrap_or_default();
        assert!(details.contains(words), "{details}");
        assert_eq!(request.progress, Progress::default());
        until("the partial pin is gone", async || world.pinned().await.is_empty().then_some(())).await;
        pins.remove("alice", &request.id).await.expect("removes");
    }
}

#[tokio::test]
async fn a_pin_is_fetched_without_its_back_off_when_an_origin_connects() {
    let mut world = World::new();
    world.options.retry_first = Duration::from_hours(1);
    let (blocks, other) = (dag("one", 0..5), dag("other", 5..7));
    let [origin, another] = [(); 2].map(|()| PeerId::random());
    let from = |blocks: &[Block], peer: PeerId| PinParameters {
        origins: vec![Multiaddr::empty().with(Protocol::P2p(peer))],
        ..wanted(blocks)
    };
    let pins = world.start().await;
    let alice = owner("alice");
    let waiting = pins.request(&alice, from(&blocks, origin)).await.expect("is asked for");
    let still = pins.request(&alice, from(&other, another)).await.expect("is asked for");
    let has_failed = |request: &PinRequest| {
        pins.get("alice", &request.id).filter(|now| now.attempts == 1 && now.status == Status::Queued)
    };
    until("both were tried", async || has_failed(&waiting).and(has_failed(&still))).await;
    world.upstream.has(&blocks);
    world.upstream.has(&other);
    pins.origin_connected(&PeerId::random());
    pins.origin_connected(&origin);
    becomes(&pins, &waiting, Status::Pinned).await;
    assert!(has_failed(&still).is_some(), "its origin has not connected");
}

#[tokio::test]
async fn missing_blocks_are_retried_until_they_arrive() {
    let world = World::new();
    let blocks = dag("one", 0..5);
    world.upstream.has(&blocks[..5]);
    let pins = world.start().await;
    let request = pins.request(&owner("alice"), wanted(&blocks)).await.expect("is asked for");
    let waiting = until("it was tried twice", async || {
        pins.get("alice", &request.id).filter(|now| now.attempts >= 2 && now.status == Status::Queued)
    });
    let waiting = waiting.await;
    assert!(waiting.details.is_some_and(|details| details.contains("is not stored locally")));
    assert!(waiting.next_attempt.is_some() && waiting.progress.blocks > 0);
    world.upstream.has(&blocks);
    let pinned = becomes(&pins, &request, Status::Pinned).await;
    assert_eq!((pinned.attempts, pinned.details, pinned.progress.blocks), (0, None, 6));
}

#[tokio::test]
async fn requests_fail_when_retries_are_exhausted() {
    let mut world = World::new();
    world.options.give_up = Duration::from_millis(100);
    let blocks = dag("one", 0..5);
    world.upstream.has(&blocks[..3]);
    let pins = world.start().await;
    let request = pins.request(&owner("alice"), wanted(&blocks)).await.expect("is asked for");
    let failed = becomes(&pins, &request, Status::Failed).await;
    assert!(failed.details.is_some_and(|details| details.starts_with("given up after")));
    until("the partial pin is gone", async || world.pinned().await.is_empty().then_some(())).await;
    // A new request is tried again; the failed one stays failed.
    world.upstream.has(&blocks);
    pin(&pins, &owner("alice"), wanted(&blocks)).await;
    assert_eq!(pins.get("alice", &request.id).map(|request| request.status), Some(Status::Failed));
}

#[tokio::test]
async fn a_failed_or_waiting_request_is_retried_at_once() {
    let mut world = World::new();
    (world.options.give_up, world.options.retry_first) = (Duration::from_millis(100), Duration::from_millis(10));
    let blocks = dag("one", 0..5);
    world.upstream.has(&blocks[..3]);
    let pins = world.start().await;
    let alice = owner("alice");
    let request = pins.request(&alice, wanted(&blocks)).await.expect("is asked for");
    becomes(&pins, &request, Status::Failed).await;
    until("the partial pin is gone", async || world.pinned().await.is_empty().then_some(())).await;
    // Still without success.
    let retried = pins.retry(&request.id).await.expect("is retried");
    assert!(matches!(retried.status, Status::Queued | Status::Pinning) && retried.id == request.id, "{retried:?}");
    becomes(&pins, &request, Status::Failed).await;
    until("the partial pin is gone", async || world.pinned().await.is_empty().then_some(())).await;
    world.upstream.has(&blocks);
    pins.retry(&request.id).await.expect("is retried");
    let pinned = becomes(&pins, &request, Status::Pinned).await;
    assert_eq!((pinned.details, pinned.progress.blocks), (None, 6));
    assert!(matches!(pins.retry(&request.id).await, Err(PinsError::Invalid(_))), "it is complete");
    assert!(matches!(pins.retry("nothing").await, Err(PinsError::NotFound)));
    // The outcome is on the disk.
    pins.stop().await;
    drop(pins);
    let pins = world.start().await;
    assert_eq!(pins.get("alice", &request.id).map(|request| request.status), Some(Status::Pinned));
}

#[tokio::test]
async fn a_retry_ends_a_back_off() {
    let mut world = World::new();
    world.options.retry_first = Duration::from_hours(1);
    let blocks = dag("one", 0..5);
    let pins = world.start().await;
    let request = pins.request(&owner("alice"), wanted(&blocks)).await.expect("is asked for");
    let waits = || pins.get("alice", &request.id).filter(|now| now.attempts == 1 && now.status == Status::Queued);
    until("it was tried", async || waits()).await;
    world.upstream.has(&blocks);
    pins.retry(&request.id).await.expect("is retried");
    becomes(&pins, &request, Status::Pinned).await;
}

#[tokio::test]
async fn removing_a_request_during_its_fetch_cancels_the_worker() {
    let mut world = World::new();
    world.upstream = Upstream::new(3);
    let blocks = dag("one", 0..50);
    world.upstream.has(&blocks);
    let pins = world.start().await;
    let request = pins.request(&owner("alice"), wanted(&blocks)).await.expect("is asked for");
    until("some came", async || pins.get("alice", &request.id).filter(|now| now.progress.blocks == 3)).await;
    assert_eq!(pins.get("alice", &request.id).map(|now| now.status), Some(Status::Pinning));
    pins.remove("alice", &request.id).await.expect("removes");
    until("the partial pin is gone", async || world.pinned().await.is_empty().then_some(())).await;
    assert!(!world.holds(&blocks[0]).await);
    // The next request starts again.
    world.upstream.permits.add_permits(1000);
    pin(&pins, &owner("alice"), wanted(&blocks)).await;
}

#[tokio::test]
async fn concurrent_fetches_are_limited_and_owners_take_turns() {
    let mut world = World::new();
    world.options.workers_max = 4;
    world.upstream = Upstream::new(0);
    let pins = world.start().await;
    let (busy, modest) = (owner("busy"), owner("modest"));
    let dags: Vec<_> = (0..20).map(|number| vec![leaf(number)]).collect();
    dags.iter().for_each(|blocks| world.upstream.has(blocks));
    let mut requests = Vec::new();
    for blocks in &dags[..19] {
        requests.push(pins.request(&busy, wanted(blocks)).await.expect("is asked for"));
    }
    let status = |request: &PinRequest| pins.get(&request.owner, &request.id).map(|now| now.status);
    let fetched = || requests.iter().filter(|request| status(request) == Some(Status::Pinning)).count();
    until("all workers are busy", async || (fetched() == 4).then_some(())).await;
    let late = pins.request(&modest, wanted(&dags[19])).await.expect("is asked for");
    assert_eq!(status(&late), Some(Status::Queued));
    // When one of four is done, the other owner has its turn.
    world.upstream.permits.add_permits(1);
    until("it is fetched", async || (status(&late) == Some(Status::Pinning)).then_some(())).await;
    assert_eq!(fetched(), 3);
    world.upstream.permits.add_permits(1000);
    for request in requests.iter().chain([&late]) {
        becomes(&pins, request, Status::Pinned).await;
    }
}

#[tokio::test]
async fn a_replacement_releases_the_former_pin_when_it_is_complete() {
    let mut world = World::new();
    let (former, next) = (dag("former", 0..5), dag("next", 3..8));
    world.upstream.has(&former);
    world.upstream.has(&next);
    let pins = world.start().await;
    let alice = owner("alice");
    let old = pin(&pins, &alice, wanted(&former)).await;
    pins.stop().await;
    world.upstream = Upstream::new(0);
    world.upstream.has(&next);
    let pins = world.start().await;
    let missing = pins.replace(&alice, "nothing", wanted(&next)).await;
    assert!(matches!(missing, Err(PinsError::NotFound)));
    let others = pins.replace(&owner("other"), &old.id, wanted(&next)).await;
    assert!(matches!(others, Err(PinsError::NotFound)));
    let new = pins.replace(&alice, &old.id, wanted(&next)).await.expect("replaces");
    assert_ne!(new.id, old.id);
    assert!(pins.get("alice", &old.id).is_none());
    assert!(world.holds(&former[1]).await, "the former pin stays until then");
    world.upstream.permits.add_permits(1000);
    becomes(&pins, &new, Status::Pinned).await;
    assert_eq!(world.upstream.asked(), 4, "the two common blocks are not fetched again");
    until("the former pin is gone", async || (world.pinned().await == [*next[0].cid()]).then_some(())).await;
    assert!(!world.holds(&former[1]).await && world.holds(&leaf(3)).await);
    // The same DAG again: another request, the same pin.
    let same = pins.replace(&alice, &new.id, named(&next, "name")).await.expect("replaces");
    assert_eq!((same.status, same.name.as_deref()), (Status::Pinned, Some("name")));
    assert_eq!(world.pinned().await, [*next[0].cid()]);
}

#[tokio::test]
async fn uploads_are_recorded_if_they_are_in_the_store() {
    let world = World::new();
    let blocks = dag("upload", 0..5);
    let pins = world.start().await;
    let alice = owner("alice");
    let root = *blocks[0].cid();
    let early = pins.record(&alice, root, None, Default::default()).await;
    assert!(matches!(early, Err(PinsError::NotPinned { .. })));
    let protection = pins.protect(root).await;
    let supply = futures::stream::iter(blocks.clone().into_iter().map(Ok::<_, SourceError>));
    world.store.pin_recursive(root, None, supply).await.expect("pins");
    // Another owner had requested the same, and only the store has it now.
    let other = pins.request(&owner("other"), wanted(&blocks)).await.expect("is asked for");
    becomes(&pins, &other, Status::Pinned).await;
    pins.remove("other", &other.id).await.expect("removes");
    assert_eq!(world.pinned().await, [root], "it is protected");
    let recorded = pins.record(&alice, root, Some("upload".to_owned()), Default::default()).await.expect("records");
    drop(protection);
    assert_eq!((recorded.status, recorded.progress.bytes), (Status::Pinned, bytes_of(&blocks)));
    assert_eq!(world.upstream.asked(), 0);
    pins.remove("alice", &recorded.id).await.expect("removes");
    assert_eq!(world.pinned().await, []);
}

#[tokio::test]
async fn the_pin_of_a_rejected_upload_is_removed() {
    let world = World::new();
    let blocks = dag("upload", 0..5);
    let pins = world.start().await;
    let root = *blocks[0].cid();
    let supply = || futures::stream::iter(blocks.clone().into_iter().map(Ok::<_, SourceError>));
    world.store.pin_recursive(root, None, supply()).await.expect("pins");
    let poor = Owner { bytes_max: Some(3), ..owner("poor") };
    let refused = pins.record(&poor, root, None, Default::default()).await;
    assert!(matches!(refused, Err(PinsError::Quota(_))), "{refused:?}");
    let (early, late) = (pins.protect(root).await, pins.protect(root).await);
    pins.remove_unneeded(root).await.expect("waits");
    drop(early);
    assert_eq!(world.pinned().await, [root], "it is protected");
    drop(late);
    until("it is let go", async || world.pinned().await.is_empty().then_some(())).await;
    until("its removal has ended", async || (!pins.index().is_removing(&root)).then_some(())).await;
    world.store.pin_recursive(root, None, supply()).await.expect("pins");
    pins.remove_unneeded(root).await.expect("lets go");
    assert_eq!(world.pinned().await, []);
    // A requested pin is not removed.
    world.store.pin_recursive(root, None, supply()).await.expect("pins");
    pins.record(&owner("rich"), root, None, Default::default()).await.expect("records");
    pins.remove_unneeded(root).await.expect("does nothing");
    assert_eq!(world.pinned().await, [root]);
}

#[tokio::test]
async fn a_take_down_fails_the_requests_of_all_owners() {
    let world = World::new();
    let blocks = dag("one", 0..5);
    world.upstream.has(&blocks);
    let pins = world.start().await;
    let one = pin(&pins, &owner("one"), wanted(&blocks)).await;
    let other = pin(&pins, &owner("other"), wanted(&blocks)).await;
    assert_eq!(pins.take_down(blocks[0].cid(), "taken down").await.expect("takes down"), 2);
    for request in [one, other] {
        let now = pins.get(&request.owner, &request.id).expect("is there");
        assert_eq!((now.status, now.details.as_deref()), (Status::Failed, Some("taken down")));
    }
    assert_eq!(world.pinned().await, []);
}

#[tokio::test]
async fn roots_with_identity_hashes_are_pinned() {
    let world = World::new();
    let pins = world.start().await;
    let inline = Block::of(codec::RAW, hashes::IDENTITY, 4, Bytes::from_static(b"abcd"));
    let cid: Cid = match inline {
        Ok(block) => *block.cid(),
        Err(_) => "bafkqabdbmjrwi".parse().expect("a CID"),
    };
    let request = pin(&pins, &owner("alice"), PinParameters::new(cid)).await;
    assert_eq!(request.progress.blocks, 0);
    pins.remove("alice", &request.id).await.expect("removes");
    assert_eq!(world.pinned().await, []);
}

#[tokio::test]
async fn while_a_pin_is_removed_other_changes_proceed_and_its_root_waits() {
    let world = World::new();
    let (first, second) = (dag("first", 0..4), dag("second", 4..8));
    world.upstream.has(&first);
    world.upstream.has(&second);
    let pins = world.start().await;
    let (one, other) = (owner("one"), owner("other"));
    let root = *first[0].cid();
    let request = pin(&pins, &one, wanted(&first)).await;
    until("its worker has ended", async || (pins.index().counts().active_roots == 0).then_some(())).await;
    // What a removal does under the lock. The store's part follows below.
    pins.index_mut().remove(&request.id).expect("is there");
    let number = pins.index_mut().begin_removal(&root).expect("may begin");
    pin(&pins, &other, wanted(&second)).await;
    let again = pins.request(&other, wanted(&first)).await.expect("is accepted");
    assert_eq!(again.status, Status::Queued, "it was complete, and is about to be removed");
    let asked = world.upstream.asked();
    let mut protecting = Box::pin(pins.protect(root));
    assert!(futures::poll!(&mut protecting).is_pending());
    assert_eq!((world.upstream.asked(), world.pinned().await.len()), (asked, 2));
    pins.follow_up(FollowUp::Remove(root, number)).await;
    let _protection = protecting.await;
    becomes(&pins, &again, Status::Pinned).await;
    assert_eq!(world.upstream.asked(), asked + 5, "all of it was gone, and is fetched again");
}

/// Two owners pin and unpin the same two DAGs; whatever the order, what is said to be pinned is.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn pins_and_unpins_of_one_root_agree_in_any_order() {
    let world = World::new();
    let dags = [dag("first", 0..4), dag("second", 2..6)];
    dags.iter().for_each(|blocks| world.upstream.has(blocks));
    let pins = world.start().await;
    let tasks = (0..6).map(|task| {
        let (pins, dags) = (Arc::clone(&pins), dags.clone());
        tokio::spawn(async move {
            let owner = owner(&format!("owner {}", task % 3));
            for round in 0..40 {
                let blocks = &dags[(task + round) % 2];
                let request = pins.request(&owner, wanted(blocks)).await.expect("is accepted");
                if round % 3 != 0 {
                    let settled = pins.settled(&owner.id, &request.id, |_| ()).await.expect("stays");
                    assert_eq!(settled.status, Status::Pinned);
                    let held = pins.store.pin(blocks[0].cid()).await.expect("reads").expect("is pinned");
                    assert_eq!(held.state, cache::PinState::Complete);
                }
                pins.remove(&owner.id, &request.id).await.expect("removes");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("ends");
    }
    until("nothing is pinned, and nothing is known of either root", async || {
        let unknown = dags.iter().all(|blocks| pins.index().root(blocks[0].cid()).is_none());
        (unknown && world.pinned().await.is_empty()).then_some(())
    })
    .await;
    pins.stop().await;
}

#[tokio::test]
async fn a_client_that_waits_for_a_pin_sees_its_progress_and_its_end() {
    let mut world = World::new();
    world.upstream = Upstream::new(0);
    let blocks = dag("one", 0..3);
    world.upstream.has(&blocks);
    let pins = world.start().await;
    let client = owner("client");
    let request = pins.request(&client, wanted(&blocks)).await.expect("is accepted");
    let mut seen = Vec::new();
    {
        let mut waiting = Box::pin(pins.settled("client", &request.id, |request| seen.push(request.progress.blocks)));
        assert!(futures::poll!(&mut waiting).is_pending());
        world.upstream.permits.add_permits(2);
        until("two blocks are stored", async || {
            assert!(futures::poll!(&mut waiting).is_pending());
            pins.get("client", &request.id).filter(|request| request.progress.blocks == 2)
        })
        .await;
        world.upstream.permits.add_permits(2);
        assert_eq!(waiting.await.expect("stays").status, Status::Pinned);
    }
    assert_eq!((seen.first(), seen.last()), (Some(&0), Some(&4)));
    assert!(seen.is_sorted(), "{seen:?}");
    // One that is removed meanwhile has an end as well.
    let missing = dag("missing", 10..12);
    let request = pins.request(&client, wanted(&missing)).await.expect("is accepted");
    let mut waiting = Box::pin(pins.settled("client", &request.id, |_| ()));
    assert!(futures::poll!(&mut waiting).is_pending());
    pins.remove("client", &request.id).await.expect("removes");
    assert!(matches!(waiting.await, Err(PinsError::NotFound)));
}

/// Blocks that an upload has stored and not pinned yet.
async fn addition<'a>(world: &World, blocks: impl IntoIterator<Item = &'a Block>) -> cache::Addition {
    let addition = cache::Addition::begin(&*world.store).await.expect("begins");
    for block in blocks {
        addition.put(block).await.expect("stores");
    }
    addition
}

#[tokio::test]
async fn an_addition_of_which_one_root_is_refused_leaves_nothing() {
    let world = World::new();
    let (first, second) = (dag("first", 0..4), dag("second", 4..8));
    let pins = world.start().await;
    let poor = Owner { pins_max: Some(1), ..owner("poor") };
    let roots = [*first[0].cid(), *second[0].cid()];
    let addition = async || addition(&world, first.iter().chain(&second)).await;
    let adoption =
        Adoption { owner: &poor, name: Some("both"), meta: &Default::default(), renames: false, import: None };
    let refused = pins.adopt(addition().await, &roots, adoption).await;
    assert!(matches!(refused, Err(AdoptError::Pins(PinsError::Quota(_)))), "{refused:?}");
    assert_eq!((pins.used("poor").pins, world.pinned().await.len()), (0, 0));
    let rich = owner("rich");
    let adopted = pins.adopt(addition().await, &roots, Adoption { owner: &rich, ..adoption }).await.expect("adopts");
    assert_eq!((adopted.len(), world.pinned().await.len()), (2, 2));
    let again = pins.adopt(addition().await, &roots, Adoption { owner: &rich, ..adoption }).await.expect("adopts");
    let ids = |adopted: &[crate::pinning::adopt::Adopted]| -> Vec<_> {
        adopted.iter().map(|adopted| Arc::clone(&adopted.request.id)).collect()
    };
    assert_eq!(ids(&again), ids(&adopted), "the same again changes nothing");
}

#[tokio::test]
async fn a_failed_addition_keeps_the_pins_that_its_owner_had() {
    let world = World::new();
    let (first, second) = (dag("first", 0..4), dag("second", 4..8));
    let pins = world.start().await;
    let poor = Owner { pins_max: Some(1), ..owner("poor") };
    let roots = [*first[0].cid(), *second[0].cid()];
    let adoption = Adoption { owner: &poor, name: Some("old"), meta: &Default::default(), renames: true, import: None };
    pins.adopt(addition(&world, &first).await, &roots[..1], adoption).await.expect("adopts");
    // One root is pinned under another name, the other exceeds the quota.
    let both = || addition(&world, first.iter().chain(&second));
    let refused = pins.adopt(both().await, &roots, Adoption { name: Some("new"), ..adoption }).await;
    assert!(matches!(refused, Err(AdoptError::Pins(PinsError::Quota(_)))), "{refused:?}");
    let kept = pins.of_root("poor", &roots[0]);
    assert_eq!((kept.len(), kept[0].status, world.pinned().await), (1, Status::Pinned, vec![roots[0]]));
    // The same for one that was still being fetched.
    let patient = Owner { pins_max: Some(1), ..owner("patient") };
    let third = dag("third", 8..12);
    let queued = pins.request(&patient, wanted(&third)).await.expect("is accepted");
    let both = addition(&world, third.iter().chain(&second)).await;
    let refused = pins.adopt(both, &[*third[0].cid(), roots[1]], Adoption { owner: &patient, ..adoption }).await;
    assert!(matches!(refused, Err(AdoptError::Pins(PinsError::Quota(_)))), "{refused:?}");
    assert_eq!(pins.of_root("patient", third[0].cid()).len(), 1);
    assert!(world.pinned().await.contains(third[0].cid()) && !world.pinned().await.contains(&roots[1]));
    _ = queued;
}

#[tokio::test]
async fn blocks_that_are_sent_complete_the_requests_that_exist() {
    let world = World::new();
    let (first, second) = (dag("first", 0..4), dag("second", 4..8));
    let pins = world.start().await;
    let roots = [*first[0].cid(), *second[0].cid()];
    let refused = pins.supply(addition(&world, &first).await, &roots[..1]).await;
    assert!(matches!(refused, Err(AdoptError::Pins(PinsError::NotFound))), "{refused:?}");
    assert_eq!(world.pinned().await, [], "no one has requested it");
    let mut asked = Vec::new();
    for owner_name in ["alice", "bob"] {
        asked.push(pins.request(&owner(owner_name), named(&first, "mine")).await.expect("is accepted"));
    }
    let supplied = pins.supply(addition(&world, &first).await, &roots[..1]).await.expect("is pinned");
    assert_eq!((supplied.len(), supplied[0].root), (1, roots[0]));
    for request in asked {
        let now = pins.get(&request.owner, &request.id).expect("it stays");
        assert_eq!((now.status, now.name.as_deref(), now.progress.blocks), (Status::Pinned, Some("mine"), 5));
    }
    // The same again changes nothing.
    pins.supply(addition(&world, &first).await, &roots[..1]).await.expect("is pinned");
    assert_eq!(pins.of_root("alice", &roots[0]).len(), 1);
    // Of two roots one is not requested, and then by one whose quota it exceeds.
    let both = async || addition(&world, first.iter().chain(&second)).await;
    let refused = pins.supply(both().await, &roots).await;
    assert!(matches!(refused, Err(AdoptError::Pins(PinsError::NotFound))), "{refused:?}");
    let poor = Owner { bytes_max: Some(10), ..owner("poor") };
    let queued = pins.request(&poor, wanted(&second)).await.expect("is accepted");
    let refused = pins.supply(both().await, &roots).await;
    assert!(matches!(refused, Err(AdoptError::Pins(PinsError::Quota(_)))), "{refused:?}");
    assert_eq!(pins.get("poor", &queued.id).expect("it stays").status, Status::Failed);
    let only_the_first = async || (world.pinned().await == [roots[0]]).then_some(());
    until("the pin that nothing needs is removed", only_the_first).await;
}

#[tokio::test]
async fn a_pin_whose_last_request_goes_while_it_is_protected_goes_with_the_protection() {
    let world = World::new();
    let blocks = dag("one", 0..4);
    world.upstream.has(&blocks);
    let pins = world.start().await;
    let request = pin(&pins, &owner("client"), wanted(&blocks)).await;
    let protection = pins.protect(*blocks[0].cid()).await;
    pins.remove("client", &request.id).await.expect("removes");
    assert_eq!(world.pinned().await.len(), 1);
    drop(protection);
    until("it is removed", async || world.pinned().await.is_empty().then_some(())).await;
}
