//! What peers did wrong, and what follows from it: nothing, less of our attention, or none for a while.
//!
//! A state machine that is handed the clock. Every offence adds points, which halve once a minute, so that the odd mistake of
//! an honest peer is forgotten and a habit is not. Who is banned is neither asked, answered nor connected with. A peer id costs
//! nothing, so an address from which several banned peers came is banned with them.
//!
//! Bounded: the records that have lost most of their points go first.

use libp2p::PeerId;
use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Points halve in this time.
const HALF_LIFE: Duration = Duration::from_secs(60);
/// From here on a peer gets less of our attention.
const THROTTLED_AT: f64 = 40.0;
/// From here on it gets none.
const BANNED_AT: f64 = 100.0;
/// Peers whose offences are remembered.
const RECORDS_MAX: usize = 4_096;
/// Peers, and addresses, that can be banned at a time.
const BANS_MAX: usize = 4_096;
/// Banned peers from one address until the address is banned itself.
const PEERS_BEFORE_ADDRESS: usize = 3;
/// Points that are as good as none.
const FORGOTTEN_BELOW: f64 = 1.0;

/// What a peer did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Offence {
    /// It sent bytes that are not what it was asked for.
    Lie,
    /// It broke a protocol.
    Protocol,
    /// It asked for more than anybody may.
    Flood,
    /// It owed a block and sent nothing until whoever waited gave up, stopped in the middle of a message, or did not take in
    /// the answers that it had asked for.
    Stall,
}

impl Offence {
    /// Every offence.
    pub const ALL: [Self; 4] = [Self::Lie, Self::Protocol, Self::Flood, Self::Stall];

    /// A lie is rarely a mistake; but a block may come by a connection on which it was not asked for.
    fn points(self) -> f64 {
        match self {
            Self::Lie => 35.0,
            Self::Protocol => 25.0,
            Self::Flood => 10.0,
            Self::Stall => 30.0,
        }
    }
}

/// What a peer is to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// As good as any.
    Good,
    /// Served last, and asked last.
    Throttled,
    /// Not spoken to.
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

/// What is known of every peer that did anything wrong.
#[derive(Debug)]
pub struct Reputation {
    ban: Duration,
    records: HashMap<PeerId, Record>,
    banned: HashMap<PeerId, Instant>,
    addresses: HashMap<IpAddr, Address>,
}

impl Reputation {
    /// Nobody has done anything yet. Bans last for `ban`; nobody is banned if that is zero.
    pub fn new(ban: Duration) -> Self {
        Self { ban, records: HashMap::new(), banned: HashMap::new(), addresses: HashMap::new() }
    }

    /// A peer did something wrong, from `ip` if that is known; what it is to us from now on.
    pub fn record(&mut self, peer: PeerId, ip: Option<IpAddr>, offence: Offence, now: Instant) -> Standing {
        if self.is_banned(&peer, now) {
            return Standing::Banned;
        }
        self.make_room(now);
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

    /// What a peer is to us.
    pub fn standing(&self, peer: &PeerId, now: Instant) -> Standing {
        if self.is_banned(peer, now) {
            return Standing::Banned;
        }
        match self.records.get(peer) {
            Some(record) if record.points(now) >= THROTTLED_AT => Standing::Throttled,
            _ => Standing::Good,
        }
    }

    /// Whether a peer is not spoken to.
    pub fn is_banned(&self, peer: &PeerId, now: Instant) -> bool {
        self.banned.get(peer).is_some_and(|until| now < *until)
    }

    /// Whether nobody at an address is spoken to.
    pub fn is_address_banned(&self, ip: IpAddr, now: Instant) -> bool {
        self.addresses.get(&ip.to_canonical()).and_then(|address| address.until).is_some_and(|until| now < until)
    }

    /// How many peers are banned.
    pub fn banned(&self) -> usize {
        self.banned.len()
    }

    /// Forgets what is over. Call it now and then.
    pub fn sweep(&mut self, now: Instant) {
        self.banned.retain(|_, until| now < *until);
        self.records.retain(|_, record| record.points(now) >= FORGOTTEN_BELOW);
        let banned = &self.banned;
        self.addresses.retain(|_, address| {
            address.peers.retain(|peer| banned.contains_key(peer));
            !address.peers.is_empty() || address.until.is_some_and(|until| now < until)
        });
    }

    fn make_room(&mut self, now: Instant) {
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
        if self.banned.len() >= BANS_MAX
            && let Some(soonest) = self.banned.iter().min_by_key(|(_, until)| **until).map(|(peer, _)| *peer)
        {
            self.banned.remove(&soonest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAN: Duration = Duration::from_secs(600);

    #[test]
    fn habits_are_banned_and_mistakes_forgotten() {
        let start = Instant::now();
        // What is done, how long apart, and what the peer is after each time.
        let table: [(Offence, u64, &[Standing]); 5] = [
            (Offence::Lie, 0, &[Standing::Good, Standing::Throttled, Standing::Banned]),
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
        while reputation.record(peer, ip, Offence::Lie, now) != Standing::Banned {}
        peer
    }

    #[test]
    fn a_ban_ends_and_an_address_falls_with_its_peers() {
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
        assert!(!reputation.is_address_banned(own, now), "every peer of a test comes from there");
    }

    #[test]
    fn a_crowd_of_offenders_costs_bounded_memory() {
        let now = Instant::now();
        let mut reputation = Reputation::new(BAN);
        let known = PeerId::random();
        reputation.record(known, None, Offence::Lie, now);
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
