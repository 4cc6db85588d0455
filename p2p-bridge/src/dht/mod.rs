//! Being a good and safe server of the DHT: what is kept for others, from whom, and who hears of it.
//!
//! Goals: only records that hold are kept and handed out; what is kept is bounded in bytes and shared out fairly, so that
//! nobody's junk displaces other people's records; it outlives a restart and a crash; the public and the local DHT do not
//! hear of each other. Non-goals: searching and announcing, which are the swarm task's; the queries themselves and the
//! routing tables, which are libp2p's.
//!
//! | module | concern |
//! |---|---|
//! | [`behaviour`] | libp2p's Kademlia behind the wall between the scopes |
//! | [`store`] | the record store: what may enter it, what is answered from it |
//! | [`providers`] | who has what: bounded, fair between networks and between peers |
//! | [`values`] | IPNS records and public keys, checked |
//! | [`metrics`] | what an operator reads of all that |
//! | [`kept`] | the file that outlives a restart |

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

/// Where a key lies in the key space of the DHT: its SHA-256.
pub type Digest = [u8; 32];

/// The place of a key in the key space.
pub fn digest(bytes: &[u8]) -> Digest {
    let mut digest = [0; 32];
    digest.copy_from_slice(KBucketKey::new(bytes).hashed_bytes());
    digest
}

/// A moment, in seconds since the Unix epoch: what is kept is compared with moments before the last restart.
pub type Moment = u32;

/// The moment of a wall clock, which may be before the epoch or after the year 2106 if it is wrong.
pub fn moment(now: SystemTime) -> Moment {
    Moment::try_from(epoch::seconds(now)).unwrap_or(Moment::MAX)
}

/// The network that a peer speaks from: 24 bits of an IPv4 address, 48 bits of an IPv6 one. Peer ids cost nothing, but
/// networks do, so that records are shared out between networks first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Network(pub u64);

impl Network {
    /// Marks the numbers of IPv6 networks, which take 48 bits.
    const V6: u64 = 1 << 48;
    /// The node itself.
    pub const OURS: Self = Self(u64::MAX);

    /// The network of a connection's remote address. Everybody whose address has no IP shares one.
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
    fn neighbours_share_a_network() {
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
