//! The `rabin` chunker of Kubo: ends a chunk where the Rabin fingerprint of the last 16 bytes ends in zeros.
//!
//! The fingerprint is the remainder of the bytes, as a polynomial over GF(2), after division by one of degree 53. Two
//! tables make it a rolling hash: the contribution of a byte that leaves the window, and the reduction of the bits
//! above degree 53. A window begins with the byte 1, so that leading zeros of a chunk count.

/// The size of the window, in bytes.
pub(super) const WINDOW_BYTES: usize = 16;
/// The irreducible polynomial of IPFS.
const POLYNOMIAL: u64 = 0x3d_f305_dfb2_a805;
const DEGREE: u32 = POLYNOMIAL.ilog2();

/// The contribution of a byte that leaves the window.
static LEAVING: [u64; 256] = leaving();
/// The reduction of the byte above the degree, which also clears it.
static REDUCING: [u64; 256] = reducing();

/// The remainder of a polynomial after division by [`POLYNOMIAL`].
const fn remainder(mut value: u64) -> u64 {
    while value >> DEGREE != 0 {
        value ^= POLYNOMIAL << (value.ilog2() - DEGREE);
    }
    value
}

const fn leaving() -> [u64; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let (mut value, mut followers) = (byte as u64, WINDOW_BYTES - 1);
        while followers > 0 {
            value = remainder(value << 8);
            followers -= 1;
        }
        table[byte] = value;
        byte += 1;
    }
    table
}

const fn reducing() -> [u64; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let high = (byte as u64) << DEGREE;
        table[byte] = remainder(high) | high;
        byte += 1;
    }
    table
}

/// Finds the end of a chunk.
#[derive(Debug)]
pub(super) struct Rabin {
    min: usize,
    max: usize,
    /// The bits of the fingerprint that have to be zero.
    mask: u64,
    /// The size of the chunk so far, in bytes.
    bytes: usize,
    window: Window,
}

#[derive(Debug)]
struct Window {
    fingerprint: u64,
    bytes: [u8; WINDOW_BYTES],
    /// The index of the byte that leaves next.
    oldest: usize,
}

impl Window {
    fn new() -> Self {
        let mut window = Self { fingerprint: 0, bytes: [0; WINDOW_BYTES], oldest: 0 };
        window.slide(1);
        window
    }

    #[inline]
    fn slide(&mut self, byte: u8) {
        let leaving = std::mem::replace(&mut self.bytes[self.oldest], byte);
        self.oldest = (self.oldest + 1) % WINDOW_BYTES;
        let kept = self.fingerprint ^ LEAVING[usize::from(leaving)];
        let high = (kept >> (DEGREE - 8)) as u8;
        self.fingerprint = (kept << 8 | u64::from(byte)) ^ REDUCING[usize::from(high)];
    }
}

impl Rabin {
    /// Sizes are in bytes; `min` is at least the window.
    pub(super) fn new(min: usize, average: usize, max: usize) -> Self {
        Self { min, max, mask: (1 << average.ilog2()) - 1, bytes: 0, window: Window::new() }
    }

    pub(super) fn scan(&mut self, bytes: &[u8]) -> Option<usize> {
        // Skip the bytes before the window of the first possible end of a chunk.
        let skipped = (self.min - WINDOW_BYTES).saturating_sub(self.bytes).min(bytes.len());
        self.bytes += skipped;
        for (index, byte) in bytes.iter().enumerate().skip(skipped) {
            self.window.slide(*byte);
            self.bytes += 1;
            let cut = self.bytes >= self.min && self.window.fingerprint & self.mask == 0;
            if cut || self.bytes >= self.max {
                (self.bytes, self.window) = (0, Window::new());
                return Some(index + 1);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rolling_fingerprint_equals_that_of_the_window() {
        let mut window = Window::new();
        let stream: Vec<u8> = (0..200_u32).map(|n| (n * n + 7) as u8).collect();
        stream.iter().for_each(|byte| window.slide(*byte));
        let last = &stream[stream.len() - WINDOW_BYTES..];
        let expected = last.iter().fold(0, |value, byte| remainder(value << 8 | u64::from(*byte)));
        assert_eq!(window.fingerprint, expected);
    }
}
