//! Peers that stall in the middle of a message, sending or receiving.

use super::*;
use content::{codec, hashes};
use futures::io::Cursor;
use futures::{AsyncReadExt, TryStreamExt};
use std::pin::Pin;

const TIMEOUTS: Timeouts = Timeouts { message: Duration::from_millis(200), stall: Duration::from_millis(50) };

fn answer(n: u8) -> Answer {
    let block = Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::from(vec![n; 1_000])).expect("a block");
    Answer { blocks: vec![block], presences: Vec::new() }
}

/// A sink that accepts a number of bytes at a time, with a pause before each, up to its capacity.
struct Sink {
    room: usize,
    at_a_time: usize,
    pause: Duration,
    pausing: Option<BoxFuture<'static, ()>>,
}

impl Sink {
    fn new(room: usize, at_a_time: usize, pause: Duration) -> Self {
        Self { room, at_a_time, pause, pausing: None }
    }
}

impl AsyncWrite for Sink {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let taken = bytes.len().min(self.at_a_time).min(self.room);
        if taken == 0 {
            return Poll::Pending;
        }
        let pause = self.pause;
        let pausing = self.pausing.get_or_insert_with(|| tokio::time::sleep(pause).boxed());
        futures::ready!(pausing.poll_unpin(cx));
        self.pausing = None;
        self.room -= taken;
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn messages_are_written_within_the_timeouts() {
    let parts = vec![Bytes::from(vec![1; 5_000]), Bytes::new(), Bytes::from(vec![2; 5_000])];
    let written = |sink: Sink, timeouts: Timeouts| {
        write(sink, parts.clone(), timeouts, Arc::new(WriteProgress::new(Arc::default())))
    };
    // Ten pauses are longer than the stall timeout, and shorter than the message timeout.
    let in_parts = Sink::new(10_000, 1_000, Duration::from_millis(20));
    let lenient = Timeouts { message: Duration::from_secs(20), stall: Duration::from_millis(150) };
    assert!(written(in_parts, lenient).await.is_ok_and(|sink| sink.room == 0), "all of it");
    let stops = Sink::new(9_999, 10_000, Duration::ZERO);
    let begun = std::time::Instant::now();
    let timeouts = Timeouts { message: Duration::from_secs(20), ..TIMEOUTS };
    assert_eq!(written(stops, timeouts).await.err(), Some(WriteError::Stalled));
    assert!(begun.elapsed() < timeouts.message, "it ends before the message timeout");
    let trickles = Sink::new(10_000, 1, Duration::from_millis(5));
    let timeouts = Timeouts { stall: Duration::from_secs(20), ..TIMEOUTS };
    assert_eq!(written(trickles, timeouts).await.err(), Some(WriteError::Slow));
    let breaks = Cursor::new(vec![0; 100].into_boxed_slice());
    assert_eq!(
        write(breaks, parts, TIMEOUTS, Arc::new(WriteProgress::new(Arc::default()))).await.err(),
        Some(WriteError::Broken)
    );
}

/// The events of a stream whose message fails while another waits, and whether it opens another stream.
fn unwritten(role: StreamRole, why: WriteError, tried_again: bool) -> (Vec<Event>, bool) {
    let mut outgoing = Outgoing::new(role, &Arc::new(WriteProgress::new(Arc::default())));
    let mut answers = Answers::from([answer(2)]);
    outgoing.current = Some(Command::Answer(answer(1)));
    outgoing.tried_again = tried_again;
    outgoing.state = StreamState::Writing(futures::future::ready(Err(why)).boxed());
    let mut events = VecDeque::new();
    let opens = outgoing.poll(&mut Context::from_waker(futures::task::noop_waker_ref()), &mut answers, &mut events);
    (events.into(), opens)
}

#[test]
fn peers_that_do_not_read_responses_are_reported_and_those_that_disconnect_are_not() {
    let cost = answer(1).cost();
    let is_dropped = |event: &Event| matches!(event, Event::Dropped { cost: dropped } if *dropped == cost);
    for tried_again in [false, true] {
        let (events, opens) = unwritten(StreamRole::Answer(0), WriteError::Stalled, tried_again);
        assert!(!opens, "there is no retry");
        assert!(matches!(&events[..], [Event::Stalled, one, two] if is_dropped(one) && is_dropped(two)), "{events:?}");
    }
    let (events, opens) = unwritten(StreamRole::Answer(0), WriteError::Broken, false);
    assert!(opens && events.is_empty(), "{events:?}");
    let (events, opens) = unwritten(StreamRole::Answer(0), WriteError::Broken, true);
    assert!(!opens && events.len() == 2 && events.iter().all(is_dropped), "{events:?}");
    let (events, _) = unwritten(StreamRole::Ask, WriteError::Stalled, false);
    assert!(matches!(events.last(), Some(Event::Unreachable)), "{events:?}");
    assert!(!events.iter().any(|event| matches!(event, Event::Stalled)), "peers need not read requests");
}

#[test]
fn the_response_of_a_failed_stream_moves_to_the_others() {
    let progress = Arc::new(WriteProgress { streams_max: AtomicUsize::new(4), ..WriteProgress::new(Arc::default()) });
    let mut role = Outgoing::new(StreamRole::Answer(3), &progress);
    let mut answers = Answers::from([answer(2)]);
    role.current = Some(Command::Answer(answer(1)));
    role.tried_again = true;
    role.state = StreamState::Writing(ready(Err(WriteError::Broken)).boxed());
    let mut events = VecDeque::new();
    let mut cx = Context::from_waker(futures::task::noop_waker_ref());
    assert!(!role.poll(&mut cx, &mut answers, &mut events) && events.is_empty(), "{events:?}");
    assert_eq!(answers, [answer(1), answer(2)]);
    assert!(!role.poll(&mut cx, &mut answers, &mut events) && answers.len() == 2, "it takes no other response");
}

#[test]
fn large_messages_written_quickly_allow_more_streams() {
    let progress = WriteProgress::new(Arc::default());
    let streams_max = |progress: &WriteProgress| progress.streams_max.load(Ordering::Relaxed);
    let ms = Duration::from_millis;
    for (bytes, took, expected) in [
        (256 * 1024, ms(50), 2),
        (1_000, ms(1), 2),
        (256 * 1024, ms(499), 3),
        (256 * 1024, ms(1_500), 3),
        (1_000, ms(2_500), 1),
        (256 * 1024, ms(10), 2),
    ] {
        progress.message_written(bytes, took);
        assert_eq!(streams_max(&progress), expected, "{bytes} bytes in {took:?}");
    }
    (0..100).for_each(|_| progress.message_written(256 * 1024, ms(1)));
    assert_eq!(streams_max(&progress), ANSWER_STREAMS_MAX);
}

#[tokio::test]
async fn a_stream_is_added_only_without_progress() {
    let mut widening = Widening { since: None };
    let begun = Instant::now();
    assert!(futures::future::poll_fn(|cx| if widening.poll(7, cx) { Poll::Ready(true) } else { Poll::Pending }).await);
    assert!(begun.elapsed() >= STALLED_FOR);
    // There is progress at each check.
    let mut written = 0;
    let moving = futures::future::poll_fn(|cx| {
        written += 1;
        if widening.poll(written, cx) { Poll::Ready(()) } else { Poll::Pending }
    });
    assert!(timeout(10 * STALLED_FOR, moving).await.is_err());
    assert!(written > 2, "it was checked: {written}");
}

#[tokio::test]
async fn a_peer_that_stalls_within_a_message_is_reported_and_the_stream_ends() {
    let budgets = Budgets::new(Memory::with_short_timeouts(64 << 20), Arc::default());
    let reading = Reading { wants: Arc::default(), budgets };
    let silence = futures::stream::pending::<io::Result<[u8; 1]>>();
    let half_a_message = Cursor::new(vec![100, 1, 2, 3]).chain(silence.into_async_read());
    let events: Vec<Event> = reading.messages(half_a_message).collect().await;
    assert!(matches!(&events[..], [Event::Stalled]), "{events:?}");
}
