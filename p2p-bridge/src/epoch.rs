//! Times as seconds since the Unix epoch, for files and JSON.
//!
//! Times before the epoch count as the epoch.

use std::time::{SystemTime, UNIX_EPOCH};

/// A time in whole seconds since the Unix epoch.
pub fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The current time in whole seconds since the Unix epoch.
pub fn now() -> u64 {
    seconds(SystemTime::now())
}

/// The current time in whole seconds since the Unix epoch, signed as the times of certificates are.
pub fn signed_now() -> i64 {
    i64::try_from(now()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn seconds_are_truncated_and_never_before_the_epoch() {
        let table = [(0, 0), (999, 0), (1_000, 1), (1_799_999_999_999, 1_799_999_999)];
        for (millis, expected) in table {
            assert_eq!(seconds(UNIX_EPOCH + Duration::from_millis(millis)), expected, "{millis}");
        }
        assert_eq!(seconds(UNIX_EPOCH - Duration::from_secs(1)), 0);
        let before = seconds(SystemTime::now());
        assert!((before..=before + 60).contains(&now()));
        assert!((now()..=now() + 60).contains(&u64::try_from(signed_now()).expect("is positive")));
    }
}
