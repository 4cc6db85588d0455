//! Imports that run again at another service of a site, while an earlier run was killed, is paused or goes on.

use crate::pinning::adopt::{AdoptError, Adopted, Adoption};
use crate::pinning::index::{PinOutcome, StoredRequest};
use crate::pinning::repeatable::{Fence, RepeatableImport};
use crate::pinning::tests::shared::{Fault, Site};
use crate::pinning::tests::*;
use crate::pinning::{Meta, QuotaUsage};
use cache::{Addition, BlockStore};
use futures::FutureExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The latest entries that the log keeps: all of them, none.
const ENTRIES_BYTES_MAX: [usize; 2] = [1 << 20, 0];

/// An import of two DAGs, which is the same for all services. Its requests have metadata, so that none equals another.
#[derive(Clone)]
struct Import {
    store: Arc<dyn BlockStore>,
    dags: Vec<Vec<Block>>,
    /// For whom there is just enough room.
    owner: Owner,
}

impl Import {
    fn new(site: &Site) -> Self {
        let dags = vec![dag("first", 0..2), dag("second", 2..4)];
        let bytes_max = dags.iter().map(|blocks| bytes_of(blocks)).sum();
        let owner = Owner { pins_max: Some(2), bytes_max: Some(bytes_max), ..owner("alice") };
        Self { store: Arc::clone(&site.world.store), dags, owner }
    }

    fn usage(&self) -> QuotaUsage {
        QuotaUsage { pins: 2, bytes: self.owner.bytes_max.expect("is limited") }
    }

    /// A run of it at a service, from its blocks to its pins.
    async fn run(&self, pins: &Arc<Pins>, fence: Fence) -> Result<Vec<Adopted>, AdoptError> {
        let addition = Addition::begin(&*self.store).await.expect("begins");
        for block in self.dags.iter().flatten() {
            addition.put(block).await.expect("stores");
        }
        let roots: Vec<Cid> = self.dags.iter().map(|blocks| *blocks[0].cid()).collect();
        let meta: Meta = [("a".to_owned(), "b".to_owned())].into();
        let import = RepeatableImport { key: "upload".into(), fence };
        let (owner, import) = (&self.owner, Some(&import));
        pins.adopt(addition, &roots, Adoption { owner, name: Some("name"), meta: &meta, renames: false, import }).await
    }
}

/// A fence with the same answer each time.
fn always(answer: bool) -> Fence {
    Arc::new(move || async move { Ok(answer) }.boxed())
}

fn ids(adopted: &[Adopted]) -> Vec<Arc<str>> {
    adopted.iter().map(|adopted| Arc::clone(&adopted.request.id)).collect()
}

fn ids_of(entries: &[StoredRequest]) -> Vec<Arc<str>> {
    entries.iter().map(|entry| Arc::clone(&entry.id)).collect()
}

#[tokio::test]
async fn a_run_after_one_that_was_killed_finds_its_requests() {
    for bytes_max in ENTRIES_BYTES_MAX {
        let site = Site::new(2, bytes_max).await;
        let import = Import::new(&site);
        let [one, other] = [&site.services[0], &site.services[1]];
        let first = import.run(one, always(true)).await.expect("is pinned");
        // The quota is used up, and the other service has not been told.
        let second = import.run(other, always(true)).await.expect("is pinned");
        assert_eq!((ids(&second), other.used("alice")), (ids(&first), import.usage()));
        // Nothing is to be changed any more, so that this is no matter of the fence.
        assert_eq!(ids(&import.run(one, always(false)).await.expect("is pinned")), ids(&first));
        assert_eq!(ids_of(&site.agrees().await), ids(&first));
    }
}

#[tokio::test]
async fn a_run_whose_answer_is_lost_is_found_or_repeated() {
    for fault in [Fault::AnswerIsLost, Fault::Fails] {
        let site = Site::new(2, 1 << 20).await;
        let import = Import::new(&site);
        site.connections[0].fail(fault);
        let first = import.run(&site.services[0], always(true)).await;
        assert!(matches!(first, Err(AdoptError::Pins(PinsError::Store(_)))), "{fault:?}: {first:?}");
        let second = import.run(&site.services[1], always(true)).await.expect("is pinned");
        assert_eq!(ids_of(&site.agrees().await), ids(&second), "{fault:?}");
    }
}

#[tokio::test]
async fn a_run_of_which_one_root_is_refused_records_none() {
    let site = Site::new(2, 1 << 20).await;
    let import = Import::new(&site);
    let [one, other] = [&site.services[0], &site.services[1]];
    let poor = Import { owner: Owner { pins_max: Some(1), ..import.owner.clone() }, ..import.clone() };
    let refused = poor.run(one, always(true)).await;
    assert!(matches!(refused, Err(AdoptError::Pins(PinsError::Quota(_)))), "{refused:?}");
    assert_eq!((site.agrees().await, site.world.pinned().await), (Vec::new(), Vec::new()));
    // Requests that another run has recorded are not withdrawn when one fails.
    let pinned = import.run(other, always(true)).await.expect("is pinned");
    poor.run(one, always(true)).await.expect("it has nothing to record");
    assert_eq!(ids_of(&site.agrees().await), ids(&pinned));
}

#[tokio::test]
async fn requests_that_have_failed_since_are_pinned_again() {
    let site = Site::new(2, 1 << 20).await;
    let import = Import::new(&site);
    let [one, other] = [&site.services[0], &site.services[1]];
    let first = import.run(one, always(true)).await.expect("is pinned");
    assert_eq!(one.take_down(import.dags[0][0].cid(), "taken down").await.expect("fails it"), 1);
    site.settles().await;
    let second = import.run(other, always(true)).await.expect("is pinned");
    assert_eq!(ids(&second), ids(&first));
    let entries = site.agrees().await;
    assert!(entries.iter().all(|entry| entry.outcome == PinOutcome::Pinned), "{entries:?}");
    assert_eq!((entries.len(), one.used("alice")), (2, import.usage()));
}

#[tokio::test]
async fn a_run_that_was_taken_over_records_nothing() {
    let site = Site::new(2, 1 << 20).await;
    let import = Import::new(&site);
    let [one, other] = [&site.services[0], &site.services[1]];
    // Before the other run has recorded its requests.
    let late = import.run(one, always(false)).await;
    assert!(matches!(late, Err(AdoptError::Pins(PinsError::TakenOver))), "{late:?}");
    assert_eq!((site.agrees().await, site.world.pinned().await), (Vec::new(), Vec::new()));
    // After the owner has removed them.
    let pinned = import.run(other, always(true)).await.expect("is pinned");
    for id in ids(&pinned) {
        other.remove("alice", &id).await.expect("removes");
    }
    let late = import.run(one, always(false)).await;
    assert!(matches!(late, Err(AdoptError::Pins(PinsError::TakenOver))), "{late:?}");
    assert_eq!((site.agrees().await, site.world.pinned().await), (Vec::new(), Vec::new()));
}

/// What happens while a run is paused between its question to the fence and its append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meanwhile {
    /// Another service runs the import.
    Runs,
    /// The same, and its owner removes the pins.
    RunsAndIsRemoved,
}

#[tokio::test]
async fn a_run_that_is_paused_before_its_append_changes_nothing_afterwards() {
    for bytes_max in ENTRIES_BYTES_MAX {
        for meanwhile in [Meanwhile::Runs, Meanwhile::RunsAndIsRemoved] {
            let site = Site::new(2, bytes_max).await;
            let import = Import::new(&site);
            let asked = Arc::new(AtomicUsize::new(0));
            let (paused, other, count) = (import.clone(), Arc::clone(&site.services[1]), Arc::clone(&asked));
            let fence: Fence = Arc::new(move || {
                let (paused, other) = (paused.clone(), Arc::clone(&other));
                // It still has the import when it asks for the first time.
                let is_first = count.fetch_add(1, Ordering::Relaxed) == 0;
                async move {
                    if is_first {
                        let pinned = paused.run(&other, always(true)).await.expect("is pinned");
                        for id in ids(&pinned).into_iter().filter(|_| meanwhile == Meanwhile::RunsAndIsRemoved) {
                            other.remove("alice", &id).await.expect("removes");
                        }
                    }
                    Ok(is_first)
                }
                .boxed()
            });
            let late = import.run(&site.services[0], fence).await;
            let entries = site.agrees().await;
            match meanwhile {
                // There is nothing left to record.
                Meanwhile::Runs => {
                    assert_eq!(ids_of(&entries), ids(&late.expect("finds the requests")), "{bytes_max}");
                    assert_eq!(asked.load(Ordering::Relaxed), 1);
                }
                Meanwhile::RunsAndIsRemoved => {
                    let late = late.expect_err("was taken over");
                    let is_expected =
                        |error: &PinsError| matches!(error, PinsError::TakenOver | PinsError::NotPinned { .. });
                    assert!(matches!(&late, AdoptError::Pins(error) if is_expected(error)), "{late}");
                    assert_eq!((entries, site.world.pinned().await), (Vec::new(), Vec::new()), "{late}");
                }
            }
        }
    }
}
