//! Pseudo-random content without repetitions, which is reproducible from its seed, so that gigabytes are compared
//! without being stored.

use std::io::Read;

/// An endless stream of bytes that is determined by its seed.
pub struct Noise {
    state: u64,
    word: [u8; 8],
    used: usize,
}

impl Noise {
    /// Streams with different seeds share no blocks.
    pub fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0xD134_2543_DE82_EF95), word: [0; 8], used: 8 }
    }

    /// The first `len` bytes of a seed's stream.
    pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        Self::new(seed).fill(&mut bytes);
        bytes
    }

    /// Fills a buffer with the next bytes.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        let (rest, buffer) = buffer.split_at_mut(buffer.len().min(8 - self.used));
        rest.copy_from_slice(&self.word[self.used..self.used + rest.len()]);
        self.used += rest.len();
        let mut words = buffer.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.next_word());
        }
        let tail = words.into_remainder();
        if !tail.is_empty() {
            self.word = self.next_word();
            self.used = tail.len();
            tail.copy_from_slice(&self.word[..tail.len()]);
        }
    }

    /// SplitMix64: <https://doi.org/10.1145/2660193.2660195>.
    fn next_word(&mut self) -> [u8; 8] {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (word ^ (word >> 31)).to_le_bytes()
    }
}

impl Read for Noise {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.fill(buffer);
        Ok(buffer.len())
    }
}

#[test]
fn noise_does_not_depend_on_the_read_sizes() {
    let whole = Noise::bytes(7, 1000);
    let mut noise = Noise::new(7);
    let mut pieces = Vec::new();
    for len in [1, 8, 3, 0, 17, 100, 7, 864] {
        let mut piece = vec![0; len];
        noise.fill(&mut piece);
        pieces.extend(piece);
    }
    assert_eq!(pieces, whole);
    assert_ne!(Noise::bytes(8, 1000), whole);
}
