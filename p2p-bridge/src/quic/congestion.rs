//! Congestion control: quinn's Cubic with a larger first window and a slow start that ends by delay.
//!
//! - The initial window is 32 packets, which Chromium uses as well, instead of 10 ([RFC 9002], section 7.2): a transfer
//!   reaches its rate two round trips earlier. It is paced, and sent after the handshake has validated the address.
//!   Listeners use it too, because it is they who send content, and a peer cannot be known before its first request.
//! - [HyStart++]: slow start ends when round trips become longer, before the queue on the path overflows and a whole
//!   window's worth of packets has to be repeated.
//!
//! Slow start is ours. After it, and after the first loss, all decisions are quinn's. Its Cubic has no way to begin
//! congestion avoidance without a loss, so when slow start ends by delay, it is told of one with a window that is larger
//! by as much as it reduces it. It then aims at that larger window first, where RFC 9438 (section 4.10) would aim at the
//! present one. That undoes the end of a slow start that was too early.
//!
//! [RFC 9002]: https://www.rfc-editor.org/rfc/rfc9002#section-7.2
//! [HyStart++]: https://www.rfc-editor.org/rfc/rfc9406

use quinn::congestion::{Controller, ControllerFactory, Cubic, CubicConfig};
use quinn_proto::RttEstimator;
use std::any::Any;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The initial window, in bytes: 32 packets of QUIC's minimum size.
const INITIAL_WINDOW_BYTES: u64 = 32 * 1200;
/// By how much Cubic reduces the window at a loss.
const BETA: f64 = 0.7;

// The constants of RFC 9406, section 4.3.
const RTT_THRESHOLD_MIN: Duration = Duration::from_millis(4);
const RTT_THRESHOLD_MAX: Duration = Duration::from_millis(16);
const RTT_DIVISOR: u32 = 8;
const ROUND_SAMPLES: u32 = 8;
const CONSERVATIVE_GROWTH_DIVISOR: u64 = 4;
const CONSERVATIVE_ROUNDS: u32 = 5;

/// Makes a [`HyStartCubic`] for each connection.
#[derive(Debug, Clone, Copy, Default)]
pub struct HyStartCubicConfig;

impl ControllerFactory for HyStartCubicConfig {
    fn build(self: Arc<Self>, _: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(HyStartCubic::new(current_mtu))
    }
}

/// The congestion controller of one connection. See the module's documentation.
#[derive(Debug, Clone)]
pub struct HyStartCubic {
    phase: Phase,
    mtu: u16,
    last_sent: u64,
    /// When the first packet was acknowledged.
    first_acked_at: Option<Instant>,
    /// When everything that had been sent was acknowledged, the last time.
    acknowledged_at: Option<Instant>,
}

#[derive(Debug, Clone)]
enum Phase {
    SlowStart(SlowStart),
    Avoidance(Cubic),
}

impl HyStartCubic {
    fn new(mtu: u16) -> Self {
        let phase = Phase::SlowStart(SlowStart::default());
        Self { phase, mtu, last_sent: 0, first_acked_at: None, acknowledged_at: None }
    }

    /// When everything that had been sent was acknowledged, the last time.
    pub fn acknowledged_at(&self) -> Option<Instant> {
        self.acknowledged_at
    }

    fn cubic(&self, window: u64, now: Instant) -> Cubic {
        let mut config = CubicConfig::default();
        config.initial_window(window);
        Cubic::new(Arc::new(config), now, self.mtu)
    }

    /// Begins congestion avoidance with an unchanged window. The newest packet that is acknowledged was sent at `sent`:
    /// losses of later ones, which are on their way, reduce the window.
    fn leave_slow_start(&mut self, window: u64, sent: Instant) {
        let before_loss = (window as f64 / BETA) as u64;
        let mut cubic = self.cubic(before_loss, sent);
        cubic.on_congestion_event(sent, sent, false, 0);
        self.phase = Phase::Avoidance(cubic);
    }
}

impl Controller for HyStartCubic {
    fn on_sent(&mut self, _: Instant, _: u64, last_packet_number: u64) {
        self.last_sent = last_packet_number;
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.first_acked_at.get_or_insert(now);
        match &mut self.phase {
            Phase::SlowStart(start) => start.on_ack(now, sent, bytes, app_limited),
            Phase::Avoidance(cubic) => cubic.on_ack(now, sent, bytes, app_limited, rtt),
        }
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest_acked: Option<u64>) {
        if in_flight == 0 {
            self.acknowledged_at = Some(now);
        }
        match &mut self.phase {
            Phase::SlowStart(start) => {
                if largest_acked.is_some_and(|number| start.on_end_acks(number, self.last_sent)) {
                    let (window, sent) = (start.window, start.newest_acked.unwrap_or(now));
                    self.leave_slow_start(window, sent);
                }
            }
            Phase::Avoidance(cubic) => cubic.on_end_acks(now, in_flight, app_limited, largest_acked),
        }
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost_bytes: u64) {
        if let Phase::SlowStart(start) = &self.phase {
            // What was sent before the peer has answered is lost when it does not listen yet, or when a hole is punched.
            if !is_persistent && self.first_acked_at.is_none_or(|first| sent < first) {
                return;
            }
            self.phase = Phase::Avoidance(self.cubic(start.window, now));
        }
        if let Phase::Avoidance(cubic) = &mut self.phase {
            cubic.on_congestion_event(now, sent, is_persistent, lost_bytes);
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu;
        if let Phase::Avoidance(cubic) = &mut self.phase {
            cubic.on_mtu_update(new_mtu);
        }
    }

    fn window(&self) -> u64 {
        match &self.phase {
            Phase::SlowStart(start) => start.window,
            Phase::Avoidance(cubic) => cubic.window(),
        }
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        INITIAL_WINDOW_BYTES
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// HyStart++. A round lasts until the last packet is acknowledged that was sent before it.
#[derive(Debug, Clone)]
struct SlowStart {
    window: u64,
    /// The packet whose acknowledgement ends the round.
    round_end: u64,
    /// The shortest round trip of the last round.
    last_rtt: Option<Duration>,
    /// The shortest round trip of this round, and the number of samples: each packet is one, because peers acknowledge
    /// many packets at once.
    rtt: Option<Duration>,
    samples: u32,
    conservative: Option<Conservative>,
    /// When the newest packet was sent that is acknowledged.
    newest_acked: Option<Instant>,
}

/// Conservative slow start: whether round trips have become longer for good is observed while the window grows slowly.
#[derive(Debug, Clone, Copy)]
struct Conservative {
    /// The shortest round trip of the round in which it began.
    rtt: Duration,
    rounds: u32,
}

impl Default for SlowStart {
    fn default() -> Self {
        Self {
            window: INITIAL_WINDOW_BYTES,
            round_end: 0,
            last_rtt: None,
            rtt: None,
            samples: 0,
            conservative: None,
            newest_acked: None,
        }
    }
}

impl SlowStart {
    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool) {
        let rtt = now.saturating_duration_since(sent);
        self.newest_acked = self.newest_acked.max(Some(sent));
        self.rtt = Some(self.rtt.map_or(rtt, |shortest| shortest.min(rtt)));
        self.samples = self.samples.saturating_add(1);
        if !app_limited {
            let divisor = if self.conservative.is_some() { CONSERVATIVE_GROWTH_DIVISOR } else { 1 };
            self.window = self.window.saturating_add(bytes / divisor);
        }
    }

    /// Takes note of acknowledged packets. Returns whether slow start ends.
    fn on_end_acks(&mut self, largest_acked: u64, last_sent: u64) -> bool {
        self.compare_rounds();
        if largest_acked < self.round_end {
            return false;
        }
        self.round_end = last_sent;
        self.last_rtt = self.rtt.take();
        self.samples = 0;
        let Some(conservative) = &mut self.conservative else { return false };
        conservative.rounds += 1;
        conservative.rounds >= CONSERVATIVE_ROUNDS
    }

    fn compare_rounds(&mut self) {
        let Some(rtt) = self.rtt.filter(|_| self.samples >= ROUND_SAMPLES) else { return };
        match (&self.conservative, self.last_rtt) {
            (Some(conservative), _) if rtt < conservative.rtt => self.conservative = None,
            (None, Some(last)) => {
                let threshold = (last / RTT_DIVISOR).clamp(RTT_THRESHOLD_MIN, RTT_THRESHOLD_MAX);
                if rtt >= last + threshold {
                    self.conservative = Some(Conservative { rtt, rounds: 0 });
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKET: u64 = 1200;

    /// A connection whose packets are all sent at the beginning of a round and acknowledged at its end.
    struct Link {
        controller: HyStartCubic,
        now: Instant,
        sent: u64,
    }

    impl Link {
        fn new() -> Self {
            Self { controller: HyStartCubic::new(1200), now: Instant::now(), sent: 0 }
        }

        /// A round trip in which the window is used up. Returns the window after it.
        fn round(&mut self, rtt_ms: u64, app_limited: bool) -> u64 {
            let began = self.now;
            let packets = self.controller.window() / PACKET;
            for _ in 0..packets {
                self.sent += 1;
                self.controller.on_sent(began, PACKET, self.sent);
            }
            self.now += Duration::from_millis(rtt_ms);
            for _ in 0..packets {
                self.controller.first_acked_at.get_or_insert(self.now);
                if let Phase::SlowStart(start) = &mut self.controller.phase {
                    start.on_ack(self.now, began, PACKET, app_limited);
                }
            }
            self.controller.on_end_acks(self.now, 0, app_limited, Some(self.sent));
            self.controller.window()
        }

        fn in_slow_start(&self) -> bool {
            matches!(self.controller.phase, Phase::SlowStart(_))
        }
    }

    #[test]
    fn the_window_doubles_while_round_trips_stay_short() {
        let mut link = Link::new();
        let mut window = link.controller.window();
        assert_eq!(window, INITIAL_WINDOW_BYTES);
        for round in 0..6 {
            let grown = link.round(50, false);
            assert_eq!(grown, window * 2, "round {round}");
            window = grown;
        }
    }

    #[test]
    fn the_window_does_not_grow_while_the_application_is_the_limit() {
        let mut link = Link::new();
        assert_eq!(link.round(50, true), INITIAL_WINDOW_BYTES);
    }

    #[test]
    fn slow_start_ends_when_round_trips_stay_longer() {
        let mut link = Link::new();
        link.round(50, false);
        link.round(50, false);
        // The queue on the path grows.
        link.round(60, false);
        let before = link.controller.window();
        let after = link.round(70, false);
        assert!(after < before * 3 / 2, "it grows slowly: {before} {after}");
        for _ in 0..CONSERVATIVE_ROUNDS {
            link.round(70, false);
        }
        assert!(!link.in_slow_start());
    }

    #[test]
    fn a_longer_round_trip_that_passes_does_not_end_slow_start() {
        let mut link = Link::new();
        link.round(50, false);
        link.round(60, false);
        link.round(50, false);
        let before = link.controller.window();
        assert_eq!(link.round(50, false), before * 2);
        assert!(link.in_slow_start());
    }

    #[test]
    fn congestion_avoidance_begins_with_the_same_window() {
        for window in [INITIAL_WINDOW_BYTES, 1 << 20, 10 << 20] {
            let mut controller = HyStartCubic::new(1200);
            controller.leave_slow_start(window, Instant::now());
            assert!(controller.window().abs_diff(window) <= 1, "{window} {}", controller.window());
        }
    }

    #[test]
    fn packets_that_are_lost_on_their_way_when_slow_start_ends_reduce_the_window() {
        let mut link = Link::new();
        link.round(50, false);
        link.round(50, false);
        while link.in_slow_start() {
            link.round(70, false);
        }
        let (before, acked) = (link.controller.window(), link.now - Duration::from_millis(70));
        link.controller.on_congestion_event(link.now, acked, false, PACKET);
        assert_eq!(link.controller.window(), before, "as new as what is acknowledged");
        link.controller.on_congestion_event(link.now, acked + Duration::from_millis(1), false, PACKET);
        assert!(link.controller.window() < before);
    }

    #[test]
    fn a_loss_ends_slow_start_with_a_smaller_window() {
        let mut link = Link::new();
        let before = link.round(50, false);
        link.controller.on_congestion_event(link.now, link.now, false, PACKET);
        assert!(!link.in_slow_start());
        assert!(link.controller.window() < before);
    }

    #[test]
    fn a_loss_of_what_was_sent_before_the_peer_has_answered_ends_nothing() {
        let (mut link, start) = (Link::new(), Instant::now());
        link.controller.on_congestion_event(start, start, false, PACKET);
        let before = link.round(50, false);
        link.controller.on_congestion_event(link.now, start, false, PACKET);
        assert!(link.in_slow_start());
        assert_eq!(link.controller.window(), before);
    }

    #[test]
    fn persistent_congestion_leaves_two_packets() {
        let mut link = Link::new();
        link.round(50, false);
        link.controller.on_congestion_event(link.now, link.now, true, PACKET);
        assert_eq!(link.controller.window(), 2 * PACKET);
    }

    #[test]
    fn when_everything_was_acknowledged_is_known() {
        let (mut controller, start) = (HyStartCubic::new(1200), Instant::now());
        assert_eq!(controller.acknowledged_at(), None);
        controller.on_end_acks(start, PACKET, true, Some(1));
        assert_eq!(controller.acknowledged_at(), None);
        controller.on_end_acks(start, 0, true, Some(2));
        controller.on_end_acks(start + Duration::from_secs(1), PACKET, true, Some(3));
        assert_eq!(controller.acknowledged_at(), Some(start));
    }
}
