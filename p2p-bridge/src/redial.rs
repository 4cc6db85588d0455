//! Which peers to redial, and when: peerings always, bootstrap peers while no other peer is known.
//!
//! A state machine; the caller passes the time in. The back-off doubles from one second to one minute.

use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};
use std::collections::HashMap;
use std::time::{Duration, Instant};

const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A connection that lasts this long resets the back-off.
const LASTING: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Target {
    addresses: Vec<Multiaddr>,
    connected: Option<Instant>,
    next: Instant,
    wait: Duration,
}

/// A set of peers to keep connected.
#[derive(Debug, Default)]
pub struct Redial {
    targets: HashMap<PeerId, Target>,
}

/// The peer ID at the end of a multiaddr.
pub fn peer_of(address: &Multiaddr) -> Option<PeerId> {
    match address.iter().last() {
        Some(Protocol::P2p(peer)) => Some(peer),
        _ => None,
    }
}

impl Redial {
    /// Targets from multiaddrs that end in `/p2p/ID`; others are ignored (the configuration rejects them).
    pub fn new(addresses: &[Multiaddr], now: Instant) -> Self {
        let mut targets: HashMap<PeerId, Target> = HashMap::new();
        for address in addresses {
            let Some(peer) = peer_of(address) else { continue };
            let target = targets.entry(peer).or_insert_with(|| Target {
                addresses: Vec::new(),
                connected: None,
                next: now,
                wait: FIRST_WAIT,
            });
            target.addresses.push(address.clone());
        }
        Self { targets }
    }

    /// All targets.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.targets.keys().copied()
    }

    /// Whether there are no targets.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// Whether there are targets, and none of them is connected.
    pub fn has_none_connected(&self) -> bool {
        !self.targets.is_empty() && self.targets.values().all(|target| target.connected.is_none())
    }

    /// A peer is connected.
    pub fn connected(&mut self, peer: &PeerId, now: Instant) {
        if let Some(target) = self.targets.get_mut(peer) {
            target.connected.get_or_insert(now);
        }
    }

    /// The last connection to a peer was closed. If it had lasted, the peer is redialled immediately and the back-off
    /// is reset; otherwise the back-off continues as after a failed dial.
    pub fn disconnected(&mut self, peer: &PeerId, now: Instant) {
        let Some(target) = self.targets.get_mut(peer) else { return };
        let Some(since) = target.connected.take() else { return };
        if now.saturating_duration_since(since) >= LASTING {
            target.wait = FIRST_WAIT;
            target.next = now;
        }
    }

    /// Peers to dial now.
    pub fn due(&mut self, now: Instant) -> Vec<(PeerId, Vec<Multiaddr>)> {
        self.due_if(now, |_| true)
    }

    /// Peers to dial now, among those for which `wanted` is true.
    pub fn due_if(
        &mut self,
        now: Instant,
        mut wanted: impl FnMut(&[Multiaddr]) -> bool,
    ) -> Vec<(PeerId, Vec<Multiaddr>)> {
        let mut due = Vec::new();
        for (peer, target) in &mut self.targets {
            if target.connected.is_none() && target.next <= now && wanted(&target.addresses) {
                due.push((*peer, target.addresses.clone()));
                target.next = now + target.wait;
                target.wait = (target.wait * 2).min(LONGEST_WAIT);
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_redialled_with_back_off() {
        let peer = PeerId::random();
        let addresses: Vec<Multiaddr> =
            [4001, 4002].map(|port| format!("/ip4/127.0.0.1/tcp/{port}/p2p/{peer}").parse().expect("address")).into();
        let start = Instant::now();
        let mut redial = Redial::new(&addresses, start);
        assert_eq!(redial.due_if(start, |_| false), vec![], "it is not wanted");
        assert_eq!(redial.due(start), vec![(peer, addresses)], "both addresses in one dial");
        let mut dials = 0;
        for second in 1..=300 {
            dials += redial.due(start + Duration::from_secs(second)).len();
        }
        assert!((5..=12).contains(&dials), "{dials}");
        assert!(redial.has_none_connected() && !Redial::default().has_none_connected());
        redial.connected(&peer, start + Duration::from_secs(300));
        assert!(!redial.has_none_connected());
        assert!(redial.due(start + Duration::from_secs(1_000)).is_empty());
        let left = start + Duration::from_secs(2_000);
        redial.disconnected(&peer, left);
        assert_eq!(redial.due(left).len(), 1);
        assert_eq!(redial.due(left + FIRST_WAIT).len(), 1, "the back-off is reset");
        // A peer that closes connections immediately is dialled no sooner than an unreachable one.
        let mut dials = 0;
        for second in 0..300 {
            let now = left + Duration::from_secs(10 + second);
            for (peer, _) in redial.due(now) {
                dials += 1;
                redial.connected(&peer, now);
                redial.disconnected(&peer, now);
            }
        }
        assert!((4..=12).contains(&dials), "{dials}");
    }
}
