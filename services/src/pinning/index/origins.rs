//! The peers that pending requests name as origins: when one of them connects, its requests are due.
//!
//! Only the peers are indexed here, so that a connection of any other peer costs one look-up.

use crate::pinning::index::{Index, StoredRequest};
use crate::pinning::request::origin_peer;
use content::Cid;
use libp2p::PeerId;

/// The maximum number of indexed origins, of 88 bytes each. The requests of further ones are retried after their
/// back-off only.
const INDEXED_MAX: usize = 65_536;
/// The maximum number of those of one owner's requests.
const INDEXED_OF_OWNER_MAX: usize = INDEXED_MAX / 4;
/// The maximum number of requests that are due when a peer connects; the others are retried after their back-off.
const DUE_MAX: usize = 1_024;

impl Index {
    /// Indexes the origins of a pending request, or removes them.
    pub(super) fn index_origins(&mut self, entry: &StoredRequest, more: bool) {
        let Some(rows) = self.owners.get_mut(&entry.owner) else { return };
        for peer in entry.origins.iter().filter_map(origin_peer) {
            let origin = (peer, entry.created_ms);
            if !more {
                rows.origins -= usize::from(self.origin_peers.remove(&origin));
            } else if self.origin_peers.len() < INDEXED_MAX && rows.origins < INDEXED_OF_OWNER_MAX {
                rows.origins += usize::from(self.origin_peers.insert(origin));
            }
        }
    }

    /// Whether a pending request names a peer as an origin.
    pub fn awaits(&self, peer: &PeerId) -> bool {
        self.requests_from(peer).next().is_some()
    }

    /// An origin has connected: the roots of its pending requests become due, each at most once per first back-off,
    /// also if the origin reconnects again and again. A root that a worker fetches is due again if that attempt fails.
    pub fn origin_connected(&mut self, peer: &PeerId) {
        let roots: Vec<Cid> = self.requests_from(peer).take(DUE_MAX).map(|entry| entry.root).collect();
        let now_ms = self.clock.now_ms();
        for cid in roots {
            match self.roots.get_mut(&cid) {
                Some(root) if root.active => root.origin_connected = true,
                _ => self.schedule_early(&cid, now_ms),
            }
        }
    }

    fn requests_from(&self, peer: &PeerId) -> impl Iterator<Item = &StoredRequest> {
        let times = self.origin_peers.range((*peer, 0)..=(*peer, u64::MAX));
        times.filter_map(move |(_, at)| self.at(self.times.get(at)?, *at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pinning::index::PinOutcome;
    use crate::pinning::record::Work;
    use crate::pinning::request::PinParameters;
    use content::{Block, codec, hashes};
    use libp2p::Multiaddr;
    use libp2p::multiaddr::Protocol;
    use std::sync::Arc;

    const HOUR_MS: u64 = 3_600_000;

    fn root(number: u64) -> Cid {
        let bytes = bytes::Bytes::from(number.to_string());
        *Block::of(codec::RAW, hashes::SHA2_256, 32, bytes).expect("a block").cid()
    }

    /// A pending request with two addresses of each origin.
    fn request(number: u64, origins: &[PeerId]) -> StoredRequest {
        let address = |peer: &PeerId, port| Multiaddr::empty().with(Protocol::Tcp(port)).with(Protocol::P2p(*peer));
        let origins = origins.iter().flat_map(|peer| [address(peer, 1), address(peer, 2)]).collect();
        StoredRequest {
            id: number.to_string().into(),
            owner: "alice".into(),
            wanted: Arc::new(PinParameters { origins, ..PinParameters::new(root(number)) }),
            created_ms: number,
            outcome: PinOutcome::Pending,
            bytes_max: None,
            keeps: None,
            taken_in: false,
        }
    }

    /// Fails the attempts of all queued roots, so that they wait for an hour.
    fn fail_all(index: &mut Index) {
        let now_ms = index.clock.now_ms();
        while let Some(root) = index.take_next(now_ms, usize::MAX) {
            index.set_work(&root, Work { attempts: 1, due_ms: now_ms + HOUR_MS, ..Work::default() });
            index.end_work(&root);
        }
    }

    fn due(index: &mut Index) -> Vec<Cid> {
        let now_ms = index.clock.now_ms();
        std::iter::from_fn(|| index.take_next(now_ms, usize::MAX)).collect()
    }

    #[test]
    fn requests_are_due_when_an_origin_of_theirs_connects() {
        let [first, second, other] = [(); 3].map(|()| PeerId::random());
        let mut index = Index::default();
        index.insert(request(1, &[first]));
        index.insert(request(2, &[first, second]));
        index.insert(request(3, &[second]));
        index.insert(request(4, &[]));
        fail_all(&mut index);
        index.origin_connected(&other);
        assert!(!index.awaits(&other) && due(&mut index).is_empty());
        index.origin_connected(&first);
        assert!(index.awaits(&first));
        assert_eq!(due(&mut index), [root(1), root(2)]);
    }

    #[test]
    fn only_pending_requests_wait_for_their_origins() {
        let peer = PeerId::random();
        let mut index = Index::default();
        index.insert(request(1, &[peer]));
        index.insert(request(2, &[peer]));
        index.settle("1", PinOutcome::Pinned);
        assert!(index.awaits(&peer));
        index.settle("2", PinOutcome::Failed("no peer has it".into()));
        assert!(!index.awaits(&peer));
        // A complete pin that has lost blocks is fetched again.
        index.settle("1", PinOutcome::Pending);
        assert!(index.awaits(&peer));
        index.remove("1");
        assert!(!index.awaits(&peer) && index.origin_peers.is_empty());
    }

    #[test]
    fn a_failed_attempt_during_which_the_origin_connected_is_repeated_once() {
        let peer = PeerId::random();
        let mut index = Index::default();
        index.insert(request(1, &[peer]));
        let now_ms = index.clock.now_ms();
        assert_eq!(index.take_next(now_ms, 1), Some(root(1)));
        index.origin_connected(&peer);
        for repeated in [vec![root(1)], vec![]] {
            index.set_work(&root(1), Work { attempts: 1, due_ms: now_ms + HOUR_MS, ..Work::default() });
            index.end_work(&root(1));
            assert_eq!(due(&mut index), repeated);
        }
    }

    #[test]
    fn an_origin_that_reconnects_does_not_cancel_the_back_off() {
        let peer = PeerId::random();
        for is_active in [false, true] {
            let mut index = Index { retry_first_ms: HOUR_MS / 2, ..Index::default() };
            index.insert(request(1, &[peer]));
            fail_all(&mut index);
            let began_ms = index.clock.now_ms();
            index.origin_connected(&peer);
            for _ in 0..3 {
                let now_ms = index.clock.now_ms();
                index.origin_connected(&peer);
                while let Some(root) = index.take_next(now_ms, usize::MAX) {
                    if is_active {
                        index.origin_connected(&peer);
                    }
                    index.set_work(&root, Work { attempts: 1, due_ms: now_ms + HOUR_MS, ..Work::default() });
                    index.end_work(&root);
                }
                index.origin_connected(&peer);
                let due_ms = index.next_due_ms(usize::MAX).expect("it is queued");
                assert!(due_ms >= began_ms + HOUR_MS / 2 && due_ms < began_ms + HOUR_MS, "{is_active}: {due_ms}");
            }
        }
    }

    #[test]
    fn the_index_and_the_requests_that_are_due_at_a_time_are_limited() {
        let peer = PeerId::random();
        let mut index = Index::default();
        let mut number = 0;
        let mut insert = |index: &mut Index, owner: &str| {
            number += 1;
            index.insert(StoredRequest { owner: owner.into(), ..request(number, &[peer]) });
        };
        for owner in ["alice", "bob", "carol", "dave", "erin"] {
            (0..=INDEXED_OF_OWNER_MAX).for_each(|_| insert(&mut index, owner));
        }
        let of_owners: Vec<usize> = index.owners.values().map(|rows| rows.origins).collect();
        assert_eq!(of_owners, [[INDEXED_OF_OWNER_MAX; 4].as_slice(), &[0]].concat());
        assert_eq!(index.origin_peers.len(), INDEXED_MAX);
        // A removed request makes room for another one.
        index.remove("1");
        insert(&mut index, "erin");
        assert_eq!((index.owners["erin"].origins, index.origin_peers.len()), (1, INDEXED_MAX));
        let mut index = Index::default();
        for number in 0..=DUE_MAX as u64 {
            index.insert(request(number, &[peer]));
        }
        fail_all(&mut index);
        index.origin_connected(&peer);
        assert_eq!(due(&mut index).len(), DUE_MAX);
    }
}
