//! Exponential back-off, with or without jitter.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

/// Jitter multiplies a back-off by a number of 64ths in this range: by three to five quarters.
const JITTER: (u32, u32) = (48, 80);

/// The back-off after `former` earlier ones: `first`, doubled for each of them, and at most `max`.
pub fn exponential(first: Duration, max: Duration, former: u32) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(former)).min(max)
}

/// A back-off with jitter, so that retries of many clients or requests spread out.
pub fn with_jitter(back_off: Duration) -> Duration {
    let (least, most) = JITTER;
    let random = RandomState::new().hash_one(()) % u64::from(most - least + 1);
    back_off.saturating_mul(least + u32::try_from(random).unwrap_or_default()) / 64
}

/// The longest result of [`with_jitter`].
pub fn with_jitter_max(back_off: Duration) -> Duration {
    back_off.saturating_mul(JITTER.1) / 64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_offs_double_up_to_a_maximum() {
        let table = [(0, 30), (1, 60), (2, 120), (6, 1920), (7, 3600), (30, 3600), (u32::MAX, 3600)];
        for (former, seconds) in table {
            let back_off = exponential(Duration::from_secs(30), Duration::from_secs(3600), former);
            assert_eq!(back_off, Duration::from_secs(seconds), "{former}");
        }
    }

    #[test]
    fn jitter_is_up_to_a_quarter() {
        let back_off = Duration::from_secs(64);
        let waits: Vec<u64> = (0..10_000).map(|_| with_jitter(back_off).as_secs()).collect();
        assert_eq!((waits.iter().min(), waits.iter().max()), (Some(&48), Some(&80)));
        assert_eq!(with_jitter_max(back_off), Duration::from_secs(80));
    }
}
