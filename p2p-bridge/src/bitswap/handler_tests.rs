//! Peers that stop: in the middle of what they say, or of what they are told.

use super::*;
use content::{codec, hashes};
use futures::io::Cursor;
use futures::{AsyncReadExt, TryStreamExt};
use std::pin::Pin;

const PATIENCE: Patience = Patience { message: Duration::from_millis(200), stall: Duration::from_millis(50) };

fn answer(n: u8) -> Answer {
    let block = Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::from(vec![n; 1_000])).expect("a block");
    Answer { blocks: vec![block], presences: Vec::new() }
}

/// Takes so many bytes at a time and pauses before each; nothing more when it has taken all that it has room for.
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
async fn a_message_is_written_to_whoever_reads_it_in_time() {
    let parts = vec![Bytes::from(vec![1; 5_000]), Bytes::new(), Bytes::from(vec![2; 5_000])];
    let written =
        |sink: Sink, patience: Patience| write(sink, parts.clone(), patience, Arc::new(Pace::new(Arc::default())));
    // Ten times a pause is longer than one may be, and shorter than the message may take.
    let in_parts = Sink::new(10_000, 1_000, Duration::from_millis(20));
    let lenient = Patience { message: Duration::from_secs(20), stall: Duration::from_millis(150) };
    assert!(written(in_parts, lenient).await.is_ok_and(|sink| sink.room == 0), "all of it");
    let stops = Sink::new(9_999, 10_000, Duration::ZERO);
    let begun = std::time::Instant::now();
    let patience = Patience { message: Duration::from_secs(20), ..PATIENCE };
    assert_eq!(written(stops, patience).await.err(), Some(Unwritten::Late));
    assert!(begun.elapsed() < patience.message, "not waited for as long as a message may take");
    let trickles = Sink::new(10_000, 1, Duration::from_millis(5));
    let patience = Patience { stall: Duration::from_secs(20), ..PATIENCE };
    assert_eq!(written(trickles, patience).await.err(), Some(Unwritten::Slow));
    let breaks = Cursor::new(vec![0; 100].into_boxed_slice());
    assert_eq!(
        write(breaks, parts, PATIENCE, Arc::new(Pace::new(Arc::default()))).await.err(),
        Some(Unwritten::Broken)
    );
}

/// What comes of a lane's message that is not written and of one that waits, and whether it asks for another stream.
fn unwritten(lane: Lane, why: Unwritten, tried_again: bool) -> (Vec<Event>, bool) {
    let mut outgoing = Outgoing::new(lane, &Arc::new(Pace::new(Arc::default())));
    let mut answers = Answers::from([answer(2)]);
    outgoing.current = Some(Command::Answer(answer(1)));
    outgoing.tried_again = tried_again;
    outgoing.state = LaneState::Writing(futures::future::ready(Err(why)).boxed());
    let mut events = VecDeque::new();
    let opens = outgoing.poll(&mut Context::from_waker(futures::task::noop_waker_ref()), &mut answers, &mut events);
    (events.into(), opens)
}

#[test]
fn who_does_not_read_answers_is_reported_and_who_hangs_up_is_not() {
    let cost = answer(1).cost();
    let is_dropped = |event: &Event| matches!(event, Event::Dropped { cost: dropped } if *dropped == cost);
    for tried_again in [false, true] {
        let (events, opens) = unwritten(Lane::Answer(0), Unwritten::Late, tried_again);
        assert!(!opens, "it would not read the second time either");
        assert!(matches!(&events[..], [Event::Stalled, one, two] if is_dropped(one) && is_dropped(two)), "{events:?}");
    }
    let (events, opens) = unwritten(Lane::Answer(0), Unwritten::Broken, false);
    assert!(opens && events.is_empty(), "{events:?}");
    let (events, opens) = unwritten(Lane::Answer(0), Unwritten::Broken, true);
    assert!(!opens && events.len() == 2 && events.iter().all(is_dropped), "{events:?}");
    let (events, _) = unwritten(Lane::Ask, Unwritten::Late, false);
    assert!(matches!(events.last(), Some(Event::Unreachable)), "{events:?}");
    assert!(!events.iter().any(|event| matches!(event, Event::Stalled)), "nobody has to take in questions");
}

#[test]
fn a_stream_that_is_refused_beside_others_leaves_its_answer_to_them() {
    let pace = Arc::new(Pace { earned: AtomicUsize::new(4), ..Pace::new(Arc::default()) });
    let mut lane = Outgoing::new(Lane::Answer(3), &pace);
    let mut answers = Answers::from([answer(2)]);
    lane.current = Some(Command::Answer(answer(1)));
    lane.tried_again = true;
    lane.state = LaneState::Writing(ready(Err(Unwritten::Broken)).boxed());
    let mut events = VecDeque::new();
    let mut cx = Context::from_waker(futures::task::noop_waker_ref());
    assert!(!lane.poll(&mut cx, &mut answers, &mut events) && events.is_empty(), "{events:?}");
    assert_eq!(answers, [answer(1), answer(2)]);
    assert!(!lane.poll(&mut cx, &mut answers, &mut events) && answers.len() == 2, "it takes no other");
}

#[test]
fn streams_are_earned_by_large_messages_that_leave_quickly() {
    let pace = Pace::new(Arc::default());
    let earned = |pace: &Pace| pace.earned.load(Ordering::Relaxed);
    let ms = Duration::from_millis;
    for (bytes, took, expected) in [
        (256 * 1024, ms(50), 2),
        (1_000, ms(1), 2),
        (256 * 1024, ms(499), 3),
        (256 * 1024, ms(1_500), 3),
        (1_000, ms(2_500), 1),
        (256 * 1024, ms(10), 2),
    ] {
        pace.left(bytes, took);
        assert_eq!(earned(&pace), expected, "{bytes} bytes in {took:?}");
    }
    (0..100).for_each(|_| pace.left(256 * 1024, ms(1)));
    assert_eq!(earned(&pace), ANSWER_STREAMS_MAX);
}

#[tokio::test]
async fn there_is_another_stream_only_when_nothing_moves() {
    let mut widening = Widening { since: None };
    let begun = Instant::now();
    assert!(futures::future::poll_fn(|cx| if widening.poll(7, cx) { Poll::Ready(true) } else { Poll::Pending }).await);
    assert!(begun.elapsed() >= STUCK_FOR);
    // Something is taken each time it is looked at.
    let mut taken = 0;
    let moving = futures::future::poll_fn(|cx| {
        taken += 1;
        if widening.poll(taken, cx) { Poll::Ready(()) } else { Poll::Pending }
    });
    assert!(timeout(10 * STUCK_FOR, moving).await.is_err());
    assert!(taken > 2, "it was looked at: {taken}");
}

#[tokio::test]
async fn who_stops_in_the_middle_of_a_message_is_reported_and_the_stream_ends() {
    let budgets = Budgets::new(Memory::impatient(64 << 20), Arc::default());
    let reading = Reading { wants: Arc::default(), budgets };
    let silence = futures::stream::pending::<io::Result<[u8; 1]>>();
    let half_a_message = Cursor::new(vec![100, 1, 2, 3]).chain(silence.into_async_read());
    let events: Vec<Event> = reading.messages(half_a_message).collect().await;
    assert!(matches!(&events[..], [Event::Stalled]), "{events:?}");
}
