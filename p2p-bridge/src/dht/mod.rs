//! The DHT server: records stored for other peers, with limits and verification.
//!
//! Goals: only verified records are stored and served; storage is bounded in bytes and shared fairly, so that junk of
//! one peer does not evict records of others; records survive restarts and crashes; the public and the local DHT are
//! separate. Non-goals: look-ups and announcements, which the swarm task does; queries and routing tables, which libp2p
//! has.
//!
//! | module | concern |
//! |---|---|
//! | [`behaviour`] | libp2p's Kademlia, restricted to one scope |
//! | [`store`] | the record store: what is accepted and served |
//! | [`providers`] | provider records: bounded, and fair between networks and between peers |
//! | [`values`] | IPNS records and public keys, verified |
//! | [`metrics`] | metrics of the above |
//! | [`kept`] | persistence across restarts |

pub mod behaviour;
pub mod kept;
pub mod metrics;
pub mod providers;
pub mod store;
pub mod values;

use crate::epoch;
use libp2p::Multiaddr;
use libp2p::kad::KBucketKey;
use libp2p::multiaddr::Protocol;
use std::net::IpAddr;
use std::time::SystemTime;

/// The position of a key in the key space of the DHT: its SHA-256.
pub type Digest = [u8; 32];

/// The position of a key in the key space.
pub fn digest(bytes: &[u8]) -> Digest {
    let mut digest = [0; 32];
    digest.copy_from_slice(KBucketKey::new(bytes).hashed_bytes());
    digest
}

/// Seconds since the Unix epoch, so that they can be compared across restarts.
pub type Moment = u32;

/// The moment of a wall clock, clamped if the clock is before the epoch or after the year 2106.
pub fn moment(now: SystemTime) -> Moment {
    Moment::try_from(epoch::seconds(now)).unwrap_or(Moment::MAX)
}

/// The network of a peer: 24 bits of an IPv4 address, 48 bits of an IPv6 one. Peer IDs are free to create, networks are
/// not, so storage is shared between networks first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Network(pub u64);

impl Network {
    /// Marks IPv6 networks, which take 48 bits.
    const V6: u64 = 1 << 48;
    /// The node itself.
    pub const OURS: Self = Self(u64::MAX);

    /// The network of a connection's remote address. All addresses without an IP share one network.
    pub fn of(remote: &Multiaddr) -> Self {
        let ip = match remote.iter().next() {
            Some(Protocol::Ip4(ip)) => IpAddr::V4(ip),
            Some(Protocol::Ip6(ip)) => ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4),
            _ => return Self::default(),
        };
        Self(match ip {
            IpAddr::V4(ip) => u64::from(u32::from(ip) >> 8),
            IpAddr::V6(ip) => Self::V6 | (u128::from(ip) >> 80) as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_prefix_share_a_network() {
        let table = [
            ("/ip4/198.51.100.1/tcp/1", "/ip4/198.51.100.200/udp/2/quic-v1", true),
            ("/ip4/198.51.100.1/tcp/1", "/ip4/198.51.101.1/tcp/1", false),
            ("/ip4/198.51.100.1/tcp/1", "/ip6/::ffff:198.51.100.9/tcp/1", true),
            ("/ip6/2001:db8:1:2::3/tcp/1", "/ip6/2001:db8:1:ffff::3/tcp/1", true),
            ("/ip6/2001:db8:1::/tcp/1", "/ip6/2001:db8:2::/tcp/1", false),
            ("/ip4/0.0.0.1/tcp/1", "/ip6/::1/tcp/1", false),
        ];
        for (one, other, same) in table {
            let network = |text: &str| Network::of(&text.parse().expect("address"));
            assert_eq!(network(one) == network(other), same, "{one} {other}");
        }
    }
}
