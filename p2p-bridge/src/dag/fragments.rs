//! Long answers in fragments, which any streams of a transfer carry: [`split`] cuts a message, [`Reassembly`] puts it
//! together again.
//!
//! Goals: nothing is copied when a message is cut, and once when it is put together; memory only for bytes that were
//! received; bounded whatever a server sends.

use super::message::{ANSWER_BYTES_MAX, Answer, BUDGET_BYTES_MAX, FRAGMENT_BYTES, Fragment, encode_fragment};
use bytes::{Bytes, BytesMut};
use prost::encoding;
use std::collections::HashMap;

/// The maximum number of messages of a transfer that are incomplete.
pub const INCOMPLETE_MAX: usize = 256;
/// The maximum of the bytes of incomplete messages of a transfer: no more can be under way.
pub const INCOMPLETE_BYTES_MAX: usize = BUDGET_BYTES_MAX as usize + ANSWER_BYTES_MAX;

/// The fragments of an answer, each with the length before it, as parts to be written in order; `None` if the answer is
/// short enough for one message.
pub fn split(answer: &Answer, message: u64) -> Option<Vec<Vec<Bytes>>> {
    let mut parts = answer.encode();
    // The length before the message is not a part of it.
    let length = encoding::decode_varint(parts.first_mut()?).ok().and_then(|length| usize::try_from(length).ok())?;
    if length <= FRAGMENT_BYTES {
        return None;
    }
    let cut = |offset: usize| {
        let end = length.min(offset + FRAGMENT_BYTES);
        encode_fragment(message, length, offset, slices(&parts, offset, end))
    };
    Some((0..length).step_by(FRAGMENT_BYTES).map(cut).collect())
}

/// The bytes from `start` to `end` of the concatenation of parts.
fn slices(parts: &[Bytes], start: usize, end: usize) -> Vec<Bytes> {
    let (mut out, mut offset) = (Vec::new(), 0);
    for part in parts {
        let from = start.clamp(offset, offset + part.len()) - offset;
        let to = end.clamp(offset, offset + part.len()) - offset;
        if from < to {
            out.push(part.slice(from..to));
        }
        offset += part.len();
    }
    out
}

/// Fragments that no message of the transfer has, or too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the fragments of a message overlap, disagree, or are too many")]
pub struct FragmentError;

/// A message that is incomplete, with what its fragments hold.
#[derive(Debug)]
struct Incomplete<P> {
    length: usize,
    fragments: Vec<Option<(Bytes, P)>>,
    missing: usize,
}

/// The incomplete messages of a transfer. `P` is what is held for a fragment until its message is complete, such as its
/// memory.
#[derive(Debug)]
pub struct Reassembly<P> {
    incomplete: HashMap<u64, Incomplete<P>>,
    bytes: usize,
}

impl<P> Default for Reassembly<P> {
    fn default() -> Self {
        Self { incomplete: HashMap::new(), bytes: 0 }
    }
}

impl<P> Reassembly<P> {
    /// Adds a decoded fragment. Returns the message once it is complete, to be decoded as an [`Answer`], and what was
    /// held for its fragments.
    ///
    /// # Errors
    /// [`FragmentError`], which no honest server causes.
    pub fn push(&mut self, fragment: Fragment, held: P) -> Result<Option<(Bytes, Vec<P>)>, FragmentError> {
        let Fragment { message, length, offset, data } = fragment;
        if self.bytes + data.len() > INCOMPLETE_BYTES_MAX
            || self.incomplete.len() >= INCOMPLETE_MAX && !self.incomplete.contains_key(&message)
        {
            return Err(FragmentError);
        }
        let count = length.div_ceil(FRAGMENT_BYTES);
        let incomplete = self.incomplete.entry(message).or_insert_with(|| Incomplete {
            length,
            fragments: (0..count).map(|_| None).collect(),
            missing: count,
        });
        let at = incomplete.fragments.get_mut(offset / FRAGMENT_BYTES).filter(|at| at.is_none());
        let at = at.filter(|_| incomplete.length == length).ok_or(FragmentError)?;
        self.bytes += data.len();
        *at = Some((data, held));
        incomplete.missing -= 1;
        if incomplete.missing > 0 {
            return Ok(None);
        }
        Ok(self.incomplete.remove(&message).map(|complete| self.complete(complete)))
    }

    fn complete(&mut self, complete: Incomplete<P>) -> (Bytes, Vec<P>) {
        self.bytes -= complete.length;
        let mut message = BytesMut::with_capacity(complete.length);
        let mut all = Vec::with_capacity(complete.fragments.len());
        for (data, held) in complete.fragments.into_iter().flatten() {
            message.extend_from_slice(&data);
            all.push(held);
        }
        (message.freeze(), all)
    }

    /// The bytes of incomplete messages.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dag::message::Packed;
    use content::stored::{CompressionOptions, Encoder};
    use content::{Block, MAX_BLOCK_BYTES, codec, hashes};
    use proptest::prelude::*;

    fn block(bytes: usize, seed: u64) -> Block {
        let data = crate::dag::test_support::noise(seed, bytes);
        Block::of(codec::RAW, hashes::SHA2_256, 32, data.into()).expect("a block")
    }

    /// The fragments of an answer, decoded.
    fn fragments(answer: &Answer, message: u64) -> Vec<Fragment> {
        let cut = split(answer, message).expect("is long");
        let decode = |parts: &Vec<Bytes>| {
            let mut frame = Bytes::from(parts.concat());
            let length = encoding::decode_varint(&mut frame).expect("a length");
            assert_eq!(length, frame.len() as u64);
            let Ok(Answer::Fragment(fragment)) = Answer::decode(frame) else { panic!("a fragment") };
            fragment
        };
        cut.iter().map(decode).collect()
    }

    #[test]
    fn short_answers_are_not_cut_and_long_ones_fit_into_the_windows_of_new_streams() {
        assert_eq!(split(&Answer::plain(&block(FRAGMENT_BYTES - 100, 1)), 1), None);
        let leaf = split(&Answer::plain(&block(256 * 1024, 1)), u64::MAX).expect("is long");
        assert_eq!(leaf.len(), 5);
        let bytes = |parts: &Vec<Bytes>| parts.iter().map(Bytes::len).sum::<usize>();
        // With the longest head, and what the server sends to negotiate the protocol.
        let negotiation = "/multistream/1.0.0\n/causeway/dag/1.0.0\n".len() + 2;
        assert!(4 * leaf.iter().map(bytes).max().expect("some") + negotiation <= 256 * 1024);
    }

    #[test]
    fn the_data_of_a_block_is_not_copied() {
        let block = block(200_000, 1);
        let range = block.data().as_ptr_range();
        let cut = split(&Answer::plain(&block), 1).expect("is long");
        let shared = cut.iter().flatten().filter(|part| range.contains(&part.as_ptr())).map(Bytes::len).sum::<usize>();
        assert_eq!(shared, 200_000);
    }

    #[test]
    fn fragments_that_overlap_or_disagree_are_errors() {
        let fragments = fragments(&Answer::plain(&block(150_000, 1)), 1);
        let mut reassembly = Reassembly::default();
        assert_eq!(reassembly.push(fragments[0].clone(), ()), Ok(None));
        assert_eq!(reassembly.push(fragments[0].clone(), ()), Err(FragmentError));
        let other = Fragment { length: fragments[1].length + 1, ..fragments[1].clone() };
        assert_eq!(reassembly.push(other, ()), Err(FragmentError));
        let beyond = Fragment { offset: 9 * FRAGMENT_BYTES, ..fragments[1].clone() };
        assert_eq!(reassembly.push(beyond, ()), Err(FragmentError));
    }

    #[test]
    fn incomplete_messages_are_limited_in_number_and_bytes() {
        let small = fragments(&Answer::plain(&block(FRAGMENT_BYTES + 1, 1)), 0).pop().expect("the last");
        let mut reassembly = Reassembly::default();
        for message in 0..INCOMPLETE_MAX as u64 {
            assert_eq!(reassembly.push(Fragment { message, ..small.clone() }, ()), Ok(None));
        }
        let next = Fragment { message: u64::MAX, ..small };
        assert_eq!(reassembly.push(next, ()), Err(FragmentError));
        let large = fragments(&Answer::plain(&block(MAX_BLOCK_BYTES, 1)), 0);
        let mut reassembly = Reassembly::default();
        let mut messages = 0..;
        let ended = std::iter::from_fn(|| {
            let message = messages.next()?;
            let all = large[1..].iter().map(|fragment| Fragment { message, ..fragment.clone() });
            Some(all.map(|fragment| reassembly.push(fragment, ())).collect::<Result<Vec<_>, _>>())
        });
        let whole = ended.take_while(Result::is_ok).count();
        assert_eq!(whole, INCOMPLETE_BYTES_MAX / (MAX_BLOCK_BYTES - FRAGMENT_BYTES));
        assert!(reassembly.bytes() <= INCOMPLETE_BYTES_MAX);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn messages_are_put_together_whatever_the_order_of_their_fragments(
            lengths in prop::collection::vec(FRAGMENT_BYTES + 1..400_000, 1..6),
            packed in any::<bool>(),
            order in any::<u64>(),
        ) {
            let answers: Vec<Answer> = lengths.iter().zip(0..).map(|(bytes, seed)| {
                let block = block(*bytes, seed);
                let text = crate::dag::test_support::text(seed, 8 * bytes.min(&200_000));
                let text = Block::of(codec::RAW, hashes::SHA2_256, 32, text.into()).expect("a block");
                let stored = Encoder::new(CompressionOptions::default()).expect("zstd").encode(&text);
                let packed = Packed::new(*text.cid(), stored).filter(|found| packed && found.wire_bytes() > 80_000);
                packed.map_or_else(|| Answer::plain(&block), Answer::Packed)
            }).collect();
            let mut all: Vec<Fragment> =
                answers.iter().zip(0..).flat_map(|(answer, number)| fragments(answer, number)).collect();
            all.sort_by_key(|fragment| {
                (fragment.message ^ fragment.offset as u64 ^ order).wrapping_mul(0x9e37_79b9_7f4a_7c15)
            });
            let mut reassembly = Reassembly::default();
            let mut found = HashMap::new();
            for fragment in all {
                let (message, offset) = (fragment.message, fragment.offset);
                if let Some((bytes, held)) = reassembly.push(fragment, offset).expect("is honest") {
                    prop_assert!(held.iter().enumerate().all(|(at, offset)| *offset == at * FRAGMENT_BYTES));
                    found.insert(message, Answer::decode(bytes).expect("an answer"));
                }
            }
            prop_assert_eq!(reassembly.bytes(), 0);
            for (answer, number) in answers.into_iter().zip(0..) {
                prop_assert_eq!(found.remove(&number), Some(answer));
            }
        }
    }
}
