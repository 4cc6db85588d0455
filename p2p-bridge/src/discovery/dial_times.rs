//! How long dials take that succeed: the smoothed estimates that say when a dial is overdue and the next one is hedged.
//!
//! One estimate for each kind of way: how far away the address is (loopback, private, public) and what carries the connection
//! (QUIC, TCP, a circuit through a relay), because a handshake takes one round trip of one and five of another. Smoothed mean
//! and mean deviation as TCP keeps them for its retransmission timer (RFC 6298, section 2); a sample is the whole dial, up to
//! the authenticated connection. A dial is never sent twice, so that every sample is unambiguous.
//!
//! Peers choose how slow they are, so a sample counts for [`SAMPLE_MAX`] at most and the deadline has a ceiling.

use crate::counted::Via;
use crate::scope::is_public;
use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use std::net::IpAddr;
use std::time::Duration;

/// The deadline before anything was measured: one round trip and a handshake over a continent.
pub const INITIAL: Duration = Duration::from_millis(250);
/// The shortest deadline: shorter ones measure this machine's scheduler.
pub const FLOOR: Duration = Duration::from_millis(50);
/// The longest deadline: the time that other Bitswap clients wait before they search at all.
pub const CEILING: Duration = Duration::from_secs(1);
/// What one sample counts for at most.
const SAMPLE_MAX: Duration = Duration::from_secs(2);
/// Kinds of ways: three distances times three carriers.
const KINDS: usize = 9;

/// Mean and mean deviation of one kind, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Estimate {
    mean: f64,
    deviation: f64,
}

impl Estimate {
    fn first(sample: f64) -> Self {
        Self { mean: sample, deviation: sample / 2.0 }
    }

    fn add(&mut self, sample: f64) {
        // RFC 6298, (2.3): the deviation first, from the mean before this sample.
        self.deviation = 0.75 * self.deviation + 0.25 * (self.mean - sample).abs();
        self.mean = 0.875 * self.mean + 0.125 * sample;
    }

    fn deadline(&self) -> Duration {
        Duration::from_secs_f64(self.mean + 4.0 * self.deviation).clamp(FLOOR, CEILING)
    }
}

/// The estimates of every kind.
#[derive(Debug, Default)]
pub struct DialTimes {
    kinds: [Option<Estimate>; KINDS],
}

impl DialTimes {
    /// A dial of this address succeeded after this time.
    pub fn succeeded(&mut self, address: &Multiaddr, took: Duration) {
        let sample = took.min(SAMPLE_MAX).as_secs_f64();
        let Some(estimate) = self.kinds.get_mut(kind(address)) else { return };
        match estimate {
            Some(estimate) => estimate.add(sample),
            None => *estimate = Some(Estimate::first(sample)),
        }
    }

    /// How long a dial of these addresses takes at most if the peer is there and the way is usual: the longest of theirs.
    pub fn deadline<'a>(&self, addresses: impl IntoIterator<Item = &'a Multiaddr>) -> Duration {
        let deadlines = addresses.into_iter().map(|address| {
            let estimate = self.kinds.get(kind(address)).copied().flatten();
            estimate.map_or(INITIAL, |estimate| estimate.deadline())
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
    fn deadlines_follow_what_was_measured_of_the_same_kind() {
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
        assert!((400..410).contains(&deadline), "a steady way has hardly any deviation: {deadline}");
        assert_eq!(times.deadline([&near, &far]).as_millis(), deadline, "the longest of all");
        for other in ["/ip4/8.8.8.8/udp/1/quic-v1", "/ip4/10.0.0.1/tcp/1", "/dns4/example.org/tcp/1"] {
            let expected = if other.starts_with("/dns4") { times.deadline([&far]) } else { INITIAL };
            assert_eq!(times.deadline([&address(other)]), expected, "{other}");
        }
        times.succeeded(&far, Duration::from_millis(1200));
        assert!(times.deadline([&far]) > Duration::from_millis(900), "one that is late raises the deviation at once");
    }

    proptest! {
        /// Whatever was measured, a deadline lies between floor and ceiling, and settles where all samples agree.
        #[test]
        fn deadlines_are_bounded_and_settle(samples in prop::collection::vec(0_u64..100_000, 0..40), steady in 60_u64..900) {
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
