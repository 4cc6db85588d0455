//! Sample data of several kinds, deterministic for a seed.

/// A pseudo-random number generator (xorshift).
pub(in super::super) struct Random(u64);

impl Random {
    pub(in super::super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A word of a vocabulary of 4,000, with decreasing frequency.
    fn word(&mut self) -> String {
        let rank = self.below(4_000) * self.below(4_000) / 4_000;
        let mut letters = Self::new(rank + 1);
        (0..2 + letters.below(9))
            .map(|_| char::from(b"etaoinshrdlucmfwypvbgkjqxz"[letters.below(26) as usize]))
            .collect()
    }
}

fn grown(seed: u64, length: usize, mut more: impl FnMut(&mut Random) -> String) -> Vec<u8> {
    let (mut random, mut out) = (Random::new(seed), Vec::new());
    while out.len() < length {
        out.extend_from_slice(more(&mut random).as_bytes());
    }
    out.truncate(length);
    out
}

/// Bytes that do not compress.
pub(in super::super) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    std::iter::repeat_with(|| random.next() as u8).take(length).collect()
}

pub(in super::super) fn text(seed: u64, length: usize) -> Vec<u8> {
    grown(seed, length, |random| match random.below(14) {
        0 => format!("{}.\n", random.word()),
        1 => format!("{}, ", random.word()),
        _ => format!("{} ", random.word()),
    })
}

pub(in super::super) fn json(seed: u64, length: usize) -> Vec<u8> {
    grown(seed, length, |random| {
        let (id, name, price) = (random.below(1_000_000_000), random.word(), random.below(100_000));
        let (day, tag, other) = (random.below(28) + 1, random.word(), random.word());
        format!(
            "{{\"id\":{id},\"name\":\"{name}\",\"price\":{}.{:02},\
             \"sold\":\"2024-05-{day:02}\",\"tags\":[\"{tag}\",\"{other}\"]}},",
            price / 100,
            price % 100
        )
    })
}

pub(in super::super) fn csv(seed: u64, length: usize) -> Vec<u8> {
    let mut time = 1_600_000_000;
    grown(seed, length, |random| {
        time += random.below(120);
        let price = 20_000 + random.below(40_000);
        format!("{time},{price}.{:02},{}.{:06}\n", random.below(100), random.below(20), random.below(1_000_000))
    })
}

pub(in super::super) fn html(seed: u64, length: usize) -> Vec<u8> {
    grown(seed, length, |random| {
        let words = (0..10 + random.below(20)).map(|_| random.word()).collect::<Vec<_>>().join(" ");
        let (class, target) = (random.word(), random.word());
        format!(
            "<div class=\"{class}\">\n  <p>{words} <a href=\"/wiki/{target}\" \
             title=\"{target}\">{target}</a>.</p>\n</div>\n"
        )
    })
}

/// Compressible data, incompressible data, or both.
pub(in super::super) fn mixed(seed: u64, length: usize) -> Vec<u8> {
    match seed % 3 {
        0 => noise(seed, length),
        1 => text(seed, length),
        _ => [text(seed, length / 2), noise(seed, length - length / 2)].concat(),
    }
}

/// Runs of 100 `true` values that make up `percent` of the whole.
pub(in super::super) fn runs(percent: usize, length: usize) -> Vec<bool> {
    (0..length).map(|at| at / 100 % 100 < percent).collect()
}
