//! Synthetic content.

use crate::random::SplitMix;
use crate::zipf::Zipf;

/// Words of a synthetic language.
const WORDS: usize = 4096;

/// Text that compresses as prose does: words of a synthetic language, by Zipf's law, in lines of some ten words.
pub fn text(len: usize, seed: u64) -> Vec<u8> {
    let mut random = SplitMix::new(seed);
    let letter = |random: &mut SplitMix| b"etaoinshrdlucmfw"[(random.word() % 16) as usize];
    let word = |random: &mut SplitMix| -> Vec<u8> { (0..2 + random.word() % 8).map(|_| letter(random)).collect() };
    let words: Vec<Vec<u8>> = (0..WORDS).map(|_| word(&mut random)).collect();
    let zipf = Zipf::new(WORDS);
    let mut text = Vec::with_capacity(len + 16);
    while text.len() < len {
        text.extend_from_slice(&words[zipf.draw(&mut random)]);
        text.push(if random.word().is_multiple_of(10) { b'\n' } else { b' ' });
    }
    text.truncate(len);
    text
}

/// Bytes that do not repeat, others for every seed.
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut random = SplitMix::new(seed);
    let mut bytes = Vec::with_capacity(len.next_multiple_of(8));
    while bytes.len() < len {
        bytes.extend_from_slice(&random.word().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Puts things into an order from the seed (Fisher and Yates).
pub fn shuffle<T>(things: &mut [T], seed: u64) {
    let mut random = SplitMix::new(seed);
    for last in (1..things.len()).rev() {
        things.swap(last, (random.unit() * (last + 1) as f64) as usize);
    }
}

#[test]
fn the_order_is_the_seed_s_and_nothing_is_lost() {
    let shuffled = |seed| {
        let mut things: Vec<usize> = (0..100).collect();
        shuffle(&mut things, seed);
        things
    };
    assert_eq!(shuffled(1), shuffled(1));
    assert_ne!(shuffled(1), shuffled(2));
    let mut sorted = shuffled(1);
    sorted.sort();
    assert!(sorted.into_iter().eq(0..100));
}

#[test]
fn content_has_the_seed_s_bytes_and_the_length() {
    assert_eq!(bytes(13, 7), bytes(16, 7)[..13]);
    assert_ne!(bytes(16, 7), bytes(16, 8));
    assert!(bytes(0, 7).is_empty());
}

#[test]
fn units_fill_their_range_evenly() {
    let mut random = SplitMix::new(7);
    let mut tenths = [0_u32; 10];
    for _ in 0..100_000 {
        tenths[(random.unit() * 10.0) as usize] += 1;
    }
    assert!(tenths.iter().all(|count| (9_500..10_500).contains(count)), "{tenths:?}");
}

#[test]
fn text_is_made_of_words_and_compresses_as_such() {
    let content = text(100_000, 7);
    assert_eq!(content.len(), 100_000);
    assert_eq!(content[..50_000], text(50_000, 7));
    assert_ne!(content, text(100_000, 8));
    assert!(content.iter().all(|byte| byte.is_ascii_lowercase() || b" \n".contains(byte)));
    let packed = zstd::encode_all(content.as_slice(), 3).expect("memory does not fail").len();
    assert!((20_000..50_000).contains(&packed), "{packed}");
}
