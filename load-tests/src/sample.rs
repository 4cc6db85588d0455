//! Content that is made up.

/// Bytes that do not repeat, others for every seed: SplitMix64, <https://doi.org/10.1145/2660193.2660195>.
pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (word ^ (word >> 31)).to_le_bytes()
    });
    words.take(len.div_ceil(8)).flatten().take(len).collect()
}

#[test]
fn seeds_and_lengths_are_obeyed() {
    assert_eq!(bytes(13, 7), bytes(16, 7)[..13]);
    assert_ne!(bytes(16, 7), bytes(16, 8));
}
