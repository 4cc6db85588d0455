//! [`Outbox`]: the answers of a transfer that wait for one of its streams.
//!
//! Any stream takes the next answers, so that a stream that is blocked by its window delays only what it has taken. Long
//! answers are cut into fragments, if the asker accepts them, so that several streams carry one. The end of the transfer
//! is taken last, by the first stream, after the other streams have written what they took.
//!
//! A message that does not fit into what is left of a stream's first window would wait for a round trip. So while other
//! streams have room in theirs, it is left to them: an answer arrives as early as the windows of all streams permit.
//!
//! Bounded by the allowance of the peer ([`crate::fairness`]), in which an answer counts until it is written.

use crate::dag::fragments::split;
use crate::dag::message::{ANSWER_OVERHEAD_BYTES, Answer, EndStatus, FRAGMENT_BYTES};
use bytes::Bytes;
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// A stream takes answers until they have this many bytes.
const BATCH_BYTES: usize = 64 * 1024;
/// The maximum length of a message, if long answers are cut.
const CUT_BYTES_MAX: usize = FRAGMENT_BYTES + ANSWER_OVERHEAD_BYTES as usize;
/// What answers may take of a stream's first window, in bytes: that of yamux, without what negotiating the protocol and
/// the end of the transfer take. Those of QUIC are larger.
const FIRST_WINDOW_BYTES: usize = 256 * 1024 - 128;
/// How long after the request a stream whose first window is used up expects other streams, which are opened with it.
const JOINING: Duration = Duration::from_millis(20);

/// What is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Written {
    /// What it counts in the allowance, in bytes.
    pub wire_bytes: usize,
    /// Plain blocks.
    pub plain: Blocks,
    /// Packed blocks.
    pub packed: Blocks,
}

/// Blocks in one form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Blocks {
    /// The number of blocks.
    pub count: u64,
    /// Their bytes, as they are sent.
    pub bytes: u64,
}

impl Blocks {
    fn one(bytes: usize) -> Self {
        Self { count: 1, bytes: bytes as u64 }
    }

    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.bytes += other.bytes;
    }
}

impl Written {
    fn of(answer: &Answer) -> Self {
        let written = Self { wire_bytes: answer.wire_bytes(), ..Self::default() };
        match answer {
            Answer::Block { data, .. } => Self { plain: Blocks::one(data.len()), ..written },
            Answer::Packed(packed) => Self { packed: Blocks::one(packed.wire_bytes()), ..written },
            Answer::Absent(_) | Answer::End(_) | Answer::Fragment(_) => written,
        }
    }

    fn add(&mut self, other: Self) {
        self.wire_bytes += other.wire_bytes;
        self.plain.add(other.plain);
        self.packed.add(other.packed);
    }
}

/// A message that one stream writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// A whole answer.
    Answer(Answer),
    /// A fragment of one, and what it counts.
    Fragment(Vec<Bytes>, Written),
}

impl Piece {
    /// The parts of the message, to be written in order.
    pub fn encode(&self) -> Vec<Bytes> {
        match self {
            Self::Answer(answer) => answer.encode(),
            Self::Fragment(parts, _) => parts.clone(),
        }
    }

    fn written(&self) -> Written {
        match self {
            Self::Answer(answer) => Written::of(answer),
            Self::Fragment(_, written) => *written,
        }
    }

    /// Its length with all fields, in bytes; for an answer an upper bound.
    fn bytes(&self) -> usize {
        match self {
            Self::Answer(answer) => answer.wire_bytes(),
            Self::Fragment(parts, _) => parts.iter().map(Bytes::len).sum(),
        }
    }
}

/// The fragments of an answer. The block counts with the first, and all together count as much as the answer.
fn fragments(answer: &Answer, cut: Vec<Vec<Bytes>>) -> Vec<Piece> {
    let mut whole = Written::of(answer);
    let bytes = |parts: &Vec<Bytes>| parts.iter().map(Bytes::len).sum::<usize>();
    let further: Vec<usize> = cut.iter().skip(1).map(bytes).collect();
    whole.wire_bytes = whole.wire_bytes.saturating_sub(further.iter().sum());
    let others = further.into_iter().map(|wire_bytes| Written { wire_bytes, ..Written::default() });
    let counts = std::iter::once(whole).chain(others);
    cut.into_iter().zip(counts).map(|(parts, written)| Piece::Fragment(parts, written)).collect()
}

/// Messages that one stream writes together.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// The messages, in order.
    pub pieces: Vec<Piece>,
}

impl Batch {
    /// What is written with it.
    pub fn written(&self) -> Written {
        self.pieces.iter().fold(Written::default(), |mut sum, piece| {
            sum.add(piece.written());
            sum
        })
    }
}

/// What a stream does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// It writes answers, and then calls [`Outbox::written`] or [`Outbox::put_back`].
    Write(Batch),
    /// It writes the end of the transfer, and closes. Only for the first stream.
    End(EndStatus),
    /// It closes.
    Close,
}

/// The outbox of a transfer.
#[derive(Debug)]
pub struct Outbox {
    /// Whether long answers are cut into fragments.
    cuts: bool,
    since: Instant,
    state: Mutex<State>,
    changed: Notify,
    cancelled: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    pieces: VecDeque<Piece>,
    /// The number of the next message that is cut.
    message_next: u64,
    /// The number of batches that were taken and are not written.
    writing: usize,
    /// The number of streams whose first windows have room for any message.
    roomy: usize,
    end: Option<EndStatus>,
}

impl Outbox {
    /// An empty outbox, which cuts long answers into fragments if the asker accepts them.
    pub fn new(cuts: bool) -> Self {
        Self {
            cuts,
            since: Instant::now(),
            state: Mutex::default(),
            changed: Notify::new(),
            cancelled: CancellationToken::new(),
        }
    }

    /// A new stream of the transfer. Its first one writes the end.
    pub fn stream(&self, is_first: bool) -> OutboxStream<'_> {
        self.state().roomy += 1;
        OutboxStream { outbox: self, is_first, room: FIRST_WINDOW_BYTES, is_roomy: true }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is complete before the lock is released.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds answers.
    pub fn push(&self, answers: Vec<Answer>) {
        let mut state = self.state();
        for answer in answers {
            match split(&answer, state.message_next).filter(|_| self.cuts) {
                Some(cut) => {
                    state.message_next += 1;
                    state.pieces.extend(fragments(&answer, cut));
                }
                None => state.pieces.push_back(Piece::Answer(answer)),
            }
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Nothing follows the answers so far.
    pub fn end(&self, status: EndStatus) {
        self.state().end.get_or_insert(status);
        self.changed.notify_waiters();
    }

    /// Drops all answers, and makes all streams end.
    pub fn cancel(&self) {
        self.cancelled.cancel();
        self.state().pieces.clear();
        self.changed.notify_waiters();
    }

    /// Completes when the transfer is cancelled.
    pub async fn cancelled(&self) {
        self.cancelled.cancelled().await;
    }

    /// A batch was written.
    pub fn written(&self) {
        self.state().writing -= 1;
        self.changed.notify_waiters();
    }

    /// A batch was not written, because the stream broke. Another stream writes it.
    pub fn put_back(&self, batch: Batch) {
        let mut state = self.state();
        state.writing -= 1;
        for piece in batch.pieces.into_iter().rev() {
            state.pieces.push_front(piece);
        }
        drop(state);
        self.changed.notify_waiters();
    }
}

/// A stream that takes answers from an outbox.
#[derive(Debug)]
pub struct OutboxStream<'a> {
    outbox: &'a Outbox,
    is_first: bool,
    /// What is left of its first window, in bytes.
    room: usize,
    /// Whether it counts in [`State::roomy`].
    is_roomy: bool,
}

impl OutboxStream<'_> {
    /// What the stream does next; waits until there is something. The first stream waits for the others at the end.
    pub async fn next(&mut self) -> Next {
        loop {
            let mut changed = pin!(self.outbox.changed.notified());
            changed.as_mut().enable();
            match self.try_next() {
                Ok(next) => return next,
                Err(None) => changed.await,
                Err(Some(until)) => tokio::select! {
                    () = changed => {}
                    () = sleep_until(until) => {}
                },
            }
        }
    }

    /// What it does next, or until when it waits for changes at most.
    fn try_next(&mut self) -> Result<Next, Option<Instant>> {
        let outbox = self.outbox;
        let mut state = outbox.state();
        if outbox.cancelled.is_cancelled() {
            return Ok(Next::Close);
        }
        if let Some(piece) = state.pieces.front() {
            if outbox.cuts && piece.bytes() > self.room {
                self.waits_for_others(&state)?;
            }
            state.writing += 1;
            return Ok(Next::Write(self.take_batch(&mut state)));
        }
        let status = state.end.ok_or(None)?;
        match (self.is_first, state.writing) {
            (true, 0) => Ok(Next::End(status)),
            (true, _) => Err(None),
            // What another stream has taken may be put back.
            (false, 0) => Ok(Next::Close),
            (false, _) => Err(None),
        }
    }

    /// Waits while other streams have room in their first windows, or may have soon.
    fn waits_for_others(&self, state: &State) -> Result<(), Option<Instant>> {
        if state.roomy > 0 {
            return Err(None);
        }
        let joined = self.outbox.since + JOINING;
        if Instant::now() < joined { Err(Some(joined)) } else { Ok(()) }
    }

    fn take_batch(&mut self, state: &mut State) -> Batch {
        let bytes_max = if self.room > 0 && self.outbox.cuts { self.room.min(BATCH_BYTES) } else { BATCH_BYTES };
        let (mut batch, mut bytes) = (Batch::default(), 0);
        while let Some(piece) = state.pieces.front() {
            let more = piece.bytes();
            if !batch.pieces.is_empty() && bytes + more > bytes_max {
                break;
            }
            bytes += more;
            batch.pieces.extend(state.pieces.pop_front());
        }
        self.room = self.room.saturating_sub(bytes);
        if self.room < CUT_BYTES_MAX {
            self.is_not_roomy(state);
        }
        batch
    }

    /// It is not roomy any more: others need not wait for it.
    fn is_not_roomy(&mut self, state: &mut State) {
        if std::mem::take(&mut self.is_roomy) {
            state.roomy -= 1;
            if state.roomy == 0 {
                self.outbox.changed.notify_waiters();
            }
        }
    }
}

impl Drop for OutboxStream<'_> {
    fn drop(&mut self) {
        self.is_not_roomy(&mut self.outbox.state());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dag::message::FRAGMENT_BYTES;
    use content::{Block, codec, hashes};
    use futures::FutureExt as _;

    fn answer(n: u8, bytes: usize) -> Answer {
        Answer::plain(&Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::from(vec![n; bytes])).expect("a block"))
    }

    fn next(outbox: &Outbox, is_first: bool) -> Option<Next> {
        outbox.stream(is_first).next().now_or_never()
    }

    fn batch(next: Option<Next>) -> Batch {
        let Some(Next::Write(batch)) = next else { panic!("{next:?}") };
        batch
    }

    #[test]
    fn streams_take_small_answers_together_and_large_ones_alone() {
        let outbox = Outbox::new(false);
        let answers: Vec<Answer> = [1_000, 2_000, 70_000, 100, 40_000, 40_000]
            .into_iter()
            .zip(0..)
            .map(|(bytes, n)| answer(n, bytes))
            .collect();
        outbox.push(answers.clone());
        let mut taken = Vec::new();
        for count in [2, 1, 2, 1] {
            let batch = batch(next(&outbox, taken.len() % 2 == 0));
            assert_eq!(batch.pieces.len(), count);
            taken.extend(batch.pieces);
        }
        assert_eq!(taken, answers.into_iter().map(Piece::Answer).collect::<Vec<_>>());
        assert_eq!(next(&outbox, true), None);
    }

    #[test]
    fn long_answers_are_cut_for_askers_that_accept_it_and_count_as_much() {
        let answers = vec![answer(1, 300_000), answer(2, 100), answer(3, FRAGMENT_BYTES + 1)];
        let whole = answers.iter().fold(Written::default(), |mut sum, answer| {
            sum.add(Written::of(answer));
            sum
        });
        // The last fragment of the first is written with the second answer, both of the third together.
        for (cuts, batches) in [(false, 3), (true, 6)] {
            let outbox = Outbox::new(cuts);
            outbox.push(answers.clone());
            let (mut count, mut written, mut bytes) = (0, Written::default(), 0);
            while let Some(Next::Write(batch)) = next(&outbox, false) {
                written.add(batch.written());
                bytes += batch.pieces.iter().flat_map(Piece::encode).map(|part| part.len()).sum::<usize>();
                count += 1;
                outbox.written();
            }
            assert_eq!((count, written), (batches, whole), "{cuts}");
            assert!((365_381..366_000).contains(&bytes), "{bytes}");
        }
    }

    #[test]
    fn the_end_is_taken_last_and_by_the_first_stream() {
        let outbox = Outbox::new(false);
        outbox.push(vec![answer(1, 10)]);
        let taken = batch(next(&outbox, false));
        outbox.end(EndStatus::Complete);
        outbox.end(EndStatus::Failed);
        assert_eq!((next(&outbox, true), next(&outbox, false)), (None, None), "a batch is being written");
        outbox.put_back(taken);
        let taken = batch(next(&outbox, true));
        assert_eq!(taken.pieces, [Piece::Answer(answer(1, 10))]);
        outbox.written();
        assert_eq!(next(&outbox, false), Some(Next::Close));
        assert_eq!(next(&outbox, true), Some(Next::End(EndStatus::Complete)));
    }

    /// Fragments of 64 KiB.
    fn with_fragments(count: usize) -> Outbox {
        let outbox = Outbox::new(true);
        outbox.push((0..count).map(|_| answer(1, FRAGMENT_BYTES - 100)).collect());
        outbox
    }

    /// How many fragments streams take before they have to wait.
    fn taken(outbox: &Outbox, stream: &mut OutboxStream<'_>) -> usize {
        let mut count = 0;
        while let Some(next) = stream.next().now_or_never() {
            count += batch(Some(next)).pieces.len();
            outbox.written();
        }
        count
    }

    #[tokio::test]
    async fn streams_leave_to_others_what_does_not_fit_into_their_first_windows() {
        let mut outbox = with_fragments(24);
        // Further streams are expected all the time.
        outbox.since += Duration::from_secs(3600);
        let (mut first, mut second) = (outbox.stream(true), outbox.stream(false));
        assert_eq!([taken(&outbox, &mut first), taken(&outbox, &mut second)], [4, 4]);
        let mut third = outbox.stream(false);
        assert_eq!([taken(&outbox, &mut first), taken(&outbox, &mut third)], [0, 4]);
        drop((second, third));
        outbox.stream(false);
        assert_eq!(taken(&outbox, &mut first), 0);
        assert_eq!(outbox.state().roomy, 0);
    }

    #[test]
    fn once_no_stream_is_expected_any_takes_what_is_left() {
        let mut outbox = with_fragments(24);
        outbox.since = Instant::now().checked_sub(JOINING).expect("the machine has run for longer");
        let [mut first, mut second] = [true, false].map(|is_first| outbox.stream(is_first));
        assert_eq!([taken(&outbox, &mut first), taken(&outbox, &mut second)], [4, 20]);
    }

    #[tokio::test]
    async fn a_stream_whose_first_window_is_used_up_goes_on_when_no_other_has_room() {
        let outbox = with_fragments(6);
        let mut first = outbox.stream(true);
        assert_eq!(taken(&outbox, &mut first), 4);
        assert!(matches!(first.next().await, Next::Write(_)), "no other one has joined by then");
        outbox.written();
        let breaks = outbox.stream(false);
        let mut next = pin!(first.next());
        assert!(next.as_mut().now_or_never().is_none());
        drop(breaks);
        assert!(matches!(next.now_or_never(), Some(Next::Write(_))), "it is woken");
    }

    #[test]
    fn answers_that_are_not_cut_are_written_by_any_stream() {
        let outbox = Outbox::new(false);
        outbox.push(vec![answer(1, 300_000), answer(2, 300_000)]);
        let mut only = outbox.stream(true);
        assert_eq!(taken(&outbox, &mut only), 2);
    }

    #[tokio::test]
    async fn waiting_streams_are_woken() {
        let outbox = std::sync::Arc::new(Outbox::new(false));
        let waiting: Vec<_> = [true, false]
            .map(|is_first| {
                let outbox = outbox.clone();
                tokio::spawn(async move { outbox.stream(is_first).next().await })
            })
            .into();
        tokio::task::yield_now().await;
        outbox.end(EndStatus::Busy);
        let mut found = Vec::new();
        for task in waiting {
            found.push(task.await.expect("ends"));
        }
        assert_eq!(found, [Next::End(EndStatus::Busy), Next::Close]);
    }

    #[tokio::test]
    async fn a_cancelled_transfer_writes_nothing_more() {
        let outbox = Outbox::new(false);
        outbox.push(vec![answer(1, 10), answer(2, 70_000)]);
        let taken = batch(next(&outbox, true));
        outbox.cancel();
        outbox.cancelled().await;
        outbox.put_back(taken);
        outbox.push(vec![answer(3, 10)]);
        assert_eq!((next(&outbox, true), next(&outbox, false)), (Some(Next::Close), Some(Next::Close)));
    }
}
