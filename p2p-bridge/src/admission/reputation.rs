//! Reputation of peers: offences lead to throttling and temporary bans.
//!
//! A state machine; the caller passes the time in. Each offence adds points, which halve once a minute, so that
//! occasional mistakes expire and repeated ones do not. Banned peers are neither asked, answered nor connected. Peer
//! IDs are free, so an address with several banned peers is banned too.
//!
//! Bounded: the records with the fewest points are evicted first.

use crate::recent::{Recent, recent};
use libp2p::PeerId;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The half-life of points.
const HALF_LIFE: Duration = Duration::from_secs(60);
/// A peer with this many points is throttled.
const THROTTLED_AT: f64 = 40.0;
/// A peer with this many points is banned.
const BANNED_AT: f64 = 100.0;
/// The maximum number of peers with points.
const RECORDS_MAX: usize = 4_096;
/// The maximum number of banned peers, and of banned addresses.
const BANS_MAX: usize = 4_096;
/// The number of banned peers after which their address is banned.
const PEERS_BEFORE_ADDRESS: usize = 3;
/// Records with fewer points are removed.
const POINTS_MIN: f64 = 1.0;

crate::label_values! {
    /// Misbehaviour of a peer.
    pub enum Offence {
        /// It sent an invalid block.
        InvalidBlock = "lie",
        /// It violated a protocol.
        Protocol = "protocol",
        /// It exceeded a limit of requests.
        Flood = "flood",
        /// It sent nothing of an outstanding block until the want failed, stopped in the middle of a message, or did
        /// not read the responses to its wants.
        Stall = "stall",
    }
}

impl Offence {
    /// Invalid blocks are rarely a mistake, but a block may arrive on a connection without the request for it.
    fn points(self) -> f64 {
        match self {
            Self::InvalidBlock => 35.0,
            Self::Protocol => 25.0,
            Self::Flood => 10.0,
            Self::Stall => 30.0,
        }
    }
}

/// The standing of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// No restrictions.
    Good,
    /// Served and asked with lower priority.
    Throttled,
    /// Not connected.
    Banned,
}

#[derive(Debug, Clone, Copy)]
struct Record {
    points: f64,
    at: Instant,
}

impl Record {
    fn points(&self, now: Instant) -> f64 {
        let halvings = now.saturating_duration_since(self.at).as_secs_f64() / HALF_LIFE.as_secs_f64();
        self.points * 0.5_f64.powf(halvings)
    }
}

#[derive(Debug, Default)]
struct Address {
    peers: HashSet<PeerId>,
    until: Option<Instant>,
}

/// The offences and bans of peers.
#[derive(Debug)]
pub struct Reputation {
    ban: Duration,
    records: HashMap<PeerId, Record>,
    banned: Recent<PeerId, Instant>,
    addresses: HashMap<IpAddr, Address>,
}

impl Reputation {
    /// No records. `ban` is the duration of bans; zero disables them.
    pub fn new(ban: Duration) -> Self {
        Self { ban, records: HashMap::new(), banned: recent(BANS_MAX), addresses: HashMap::new() }
    }

    /// Records an offence of a peer, from `ip` if known, and returns its standing.
    pub fn record(&mut self, peer: PeerId, ip: Option<IpAddr>, offence: Offence, now: Instant) -> Standing {
        if self.is_banned(&peer, now) {
            return Standing::Banned;
        }
        self.evict(now);
        let record = self.records.entry(peer).or_insert(Record { points: 0.0, at: now });
        *record = Record { points: record.points(now) + offence.points(), at: now };
        if record.points < BANNED_AT || self.ban.is_zero() {
            return if record.points < THROTTLED_AT { Standing::Good } else { Standing::Throttled };
        }
        self.records.remove(&peer);
        self.banned.insert(peer, now + self.ban);
        if let Some(ip) = ip.map(|ip| ip.to_canonical()).filter(|ip| !ip.is_loopback()) {
            let address = self.addresses.entry(ip).or_default();
            address.peers.insert(peer);
            address.until = (address.peers.len() >= PEERS_BEFORE_ADDRESS).then(|| now + self.ban);
        }
        Standing::Banned
    }

    /// The standing of a peer.
    pub fn standing(&self, peer: &PeerId, now: Instant) -> Standing {
        if self.is_banned(peer, now) {
            return Standing::Banned;
        }
        match self.records.get(peer) {
            Some(record) if record.points(now) >= THROTTLED_AT => Standing::Throttled,
            _ => Standing::Good,
        }
    }

    /// Whether a peer is banned.
    pub fn is_banned(&self, peer: &PeerId, now: Instant) -> bool {
        self.banned.peek(peer).is_some_and(|until| now < *until)
    }

    /// Whether an address is banned.
    pub fn is_address_banned(&self, ip: IpAddr, now: Instant) -> bool {
        self.addresses.get(&ip.to_canonical()).and_then(|address| address.until).is_some_and(|until| now < until)
    }

    /// The number of banned peers.
    pub fn banned(&self) -> usize {
        self.banned.len()
    }

    /// Removes expired state. Called regularly.
    pub fn sweep(&mut self, now: Instant) {
        self.banned.retain(|_, until| now < *until);
        self.records.retain(|_, record| record.points(now) >= POINTS_MIN);
        let banned = &self.banned;
        self.addresses.retain(|_, address| {
            address.peers.retain(|peer| banned.contains_key(peer));
            !address.peers.is_empty() || address.until.is_some_and(|until| now < until)
        });
    }

    fn evict(&mut self, now: Instant) {
        if self.records.len() >= RECORDS_MAX || self.banned.len() >= BANS_MAX {
            self.sweep(now);
        }
        if self.records.len() >= RECORDS_MAX
            && let Some(least) = self
                .records
                .iter()
                .min_by(|(_, a), (_, b)| a.points(now).total_cmp(&b.points(now)))
                .map(|(peer, _)| *peer)
        {
            self.records.remove(&least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAN: Duration = Duration::from_secs(600);

    #[test]
    fn repeated_offences_lead_to_bans_and_single_ones_expire() {
        let start = Instant::now();
        // An offence, the interval of its repetitions, and the standing after each.
        let table: [(Offence, u64, &[Standing]); 5] = [
            (Offence::InvalidBlock, 0, &[Standing::Good, Standing::Throttled, Standing::Banned]),
            (
                Offence::Protocol,
                1,
                &[Standing::Good, Standing::Throttled, Standing::Throttled, Standing::Throttled, Standing::Banned],
            ),
            (Offence::Stall, 60, &[Standing::Good, Standing::Throttled, Standing::Throttled, Standing::Throttled]),
            (Offence::Stall, 300, &[Standing::Good; 12]),
            (Offence::Flood, 120, &[Standing::Good; 12]),
        ];
        for (offence, seconds, expected) in table {
            let mut reputation = Reputation::new(BAN);
            let peer = PeerId::random();
            for (n, standing) in expected.iter().enumerate() {
                let now = start + Duration::from_secs(seconds * n as u64);
                assert_eq!(reputation.record(peer, None, offence, now), *standing, "{offence:?} {n}");
                assert_eq!(reputation.standing(&peer, now), *standing, "{offence:?} {n}");
            }
        }
    }

    fn ban(reputation: &mut Reputation, ip: Option<IpAddr>, now: Instant) -> PeerId {
        let peer = PeerId::random();
        while reputation.record(peer, ip, Offence::InvalidBlock, now) != Standing::Banned {}
        peer
    }

    #[test]
    fn bans_expire_and_include_addresses_of_several_banned_peers() {
        let now = Instant::now();
        let ip: IpAddr = "198.51.100.1".parse().expect("ip");
        let mut reputation = Reputation::new(BAN);
        let first = ban(&mut reputation, Some(ip), now);
        ban(&mut reputation, Some(ip), now);
        assert!(!reputation.is_address_banned(ip, now));
        ban(&mut reputation, Some("::ffff:198.51.100.1".parse().expect("ip")), now);
        assert!(reputation.is_address_banned(ip, now) && reputation.is_banned(&first, now));
        let later = now + BAN;
        assert!(!reputation.is_address_banned(ip, later) && !reputation.is_banned(&first, later));
        reputation.sweep(later);
        assert!(reputation.banned.is_empty() && reputation.addresses.is_empty() && reputation.records.is_empty());
        let own: IpAddr = "127.0.0.1".parse().expect("ip");
        for _ in 0..5 {
            ban(&mut reputation, Some(own), now);
        }
        assert!(!reputation.is_address_banned(own, now), "tests use it for all peers");
    }

    #[test]
    fn memory_is_bounded_with_many_offenders() {
        let now = Instant::now();
        let mut reputation = Reputation::new(BAN);
        let known = PeerId::random();
        reputation.record(known, None, Offence::InvalidBlock, now);
        for _ in 0..2 * RECORDS_MAX {
            reputation.record(PeerId::random(), None, Offence::Stall, now);
        }
        assert!(reputation.records.len() <= RECORDS_MAX);
        assert!(reputation.records.contains_key(&known), "the worst are kept");
        for _ in 0..BANS_MAX + 100 {
            ban(&mut reputation, None, now);
        }
        assert!(reputation.banned.len() <= BANS_MAX);
    }
}
