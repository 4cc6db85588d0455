//! Durations of successful dials: smoothed estimates that decide when a dial is overdue and the next one is hedged.
//!
//! There is one estimate per kind of path: distance of the address (loopback, private, public) and transport (QUIC,
//! TCP, circuit relay), because a handshake takes one round trip with one and five with another ([`SmoothedTime`]). A
//! sample is the whole dial, up to the authenticated connection. A dial is never retransmitted, so every sample is
//! unambiguous.
//!
//! Peers choose how slow they are, so a sample is clamped to [`SAMPLE_MAX`] and the deadline has a ceiling.

use crate::counted::Via;
use crate::scope::is_public;
use crate::smoothed_time::SmoothedTime;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use std::net::IpAddr;
use std::time::Duration;

/// The deadline before the first sample: one round trip and a handshake across a continent.
pub const INITIAL: Duration = Duration::from_millis(250);
/// The shortest deadline: shorter ones measure the local scheduler.
pub const FLOOR: Duration = Duration::from_millis(50);
/// The longest deadline: the time that other Bitswap clients wait before they search.
pub const CEILING: Duration = Duration::from_secs(1);
/// The maximum value of a sample.
const SAMPLE_MAX: Duration = Duration::from_secs(2);
/// Kinds of paths: three distances times three transports.
const KINDS: usize = 9;

/// The estimates of all kinds of paths.
#[derive(Debug, Default)]
pub struct DialTimes {
    kinds: [Option<SmoothedTime>; KINDS],
}

impl DialTimes {
    /// Adds a sample: a dial of this address succeeded.
    pub fn succeeded(&mut self, address: &Multiaddr, took: Duration) {
        let Some(estimate) = self.kinds.get_mut(kind(address)) else { return };
        *estimate = Some(SmoothedTime::after(*estimate, took.min(SAMPLE_MAX)));
    }

    /// The maximum normal duration of a dial of these addresses: the longest of theirs.
    pub fn deadline<'a>(&self, addresses: impl IntoIterator<Item = &'a Multiaddr>) -> Duration {
        let deadlines = addresses.into_iter().map(|address| {
            let estimate = self.kinds.get(kind(address)).copied().flatten();
            estimate.map_or(INITIAL, |estimate| estimate.limit(1.0).clamp(FLOOR, CEILING))
        });
        deadlines.max().unwrap_or(INITIAL)
    }
}

fn kind(address: &Multiaddr) -> usize {
    let distance = match address.iter().next() {
        Some(Protocol::Ip4(ip)) => distance(ip.into()),
        Some(Protocol::Ip6(ip)) => distance(IpAddr::V6(ip).to_canonical()),
        _ => 2,
    };
    let carrier = match Via::of(address) {
        Via::Quic => 0,
        Via::Tcp | Via::WebSocket => 1,
        Via::Circuit => 2,
    };
    distance * 3 + carrier
}

fn distance(ip: IpAddr) -> usize {
    if ip.is_loopback() { 0 } else { 1 + usize::from(is_public(ip)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(text: &str) -> Multiaddr {
        text.parse().expect("an address")
    }

    #[test]
    fn deadlines_follow_the_samples_of_the_same_kind() {
        let mut times = DialTimes::default();
        let (near, far) = (address("/ip4/127.0.0.1/tcp/1"), address("/ip4/8.8.8.8/tcp/1"));
        assert_eq!(times.deadline([&near]), INITIAL);
        assert_eq!(times.deadline([]), INITIAL);
        for _ in 0..50 {
            times.succeeded(&near, Duration::from_millis(4));
            times.succeeded(&far, Duration::from_millis(400));
        }
        assert_eq!(times.deadline([&near]), FLOOR);
        let deadline = times.deadline([&far]).as_millis();
        assert!((400..410).contains(&deadline), "constant samples have hardly any deviation: {deadline}");
        assert_eq!(times.deadline([&near, &far]).as_millis(), deadline, "the longest of all");
        for other in ["/ip4/8.8.8.8/udp/1/quic-v1", "/ip4/10.0.0.1/tcp/1", "/dns4/example.org/tcp/1"] {
            let expected = if other.starts_with("/dns4") { times.deadline([&far]) } else { INITIAL };
            assert_eq!(times.deadline([&address(other)]), expected, "{other}");
        }
        times.succeeded(&far, Duration::from_millis(1200));
        assert!(times.deadline([&far]) > Duration::from_millis(900), "one late sample raises the deviation");
    }

    proptest! {
        /// A deadline is always between floor and ceiling, and converges when all samples agree.
        #[test]
        fn deadlines_are_bounded_and_settle(
            samples in prop::collection::vec(0_u64..100_000, 0..40), steady in 60_u64..900,
        ) {
            let (mut times, way) = (DialTimes::default(), address("/ip6/2600::1/udp/4001/quic-v1"));
            for sample in samples {
                times.succeeded(&way, Duration::from_millis(sample));
                let deadline = times.deadline([&way]);
                prop_assert!((FLOOR..=CEILING).contains(&deadline));
            }
            for _ in 0..100 {
                times.succeeded(&way, Duration::from_millis(steady));
            }
            let off = times.deadline([&way]).as_secs_f64() - steady as f64 / 1e3;
            prop_assert!(off.abs() < 0.01, "{off}");
        }
    }
}
