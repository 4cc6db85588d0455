//! Progress lines on standard error, if that is a terminal: scripts and logs never get them. Dropping a line clears it.
//!
//! Other output is printed within [`ProgressBar::suspend`], so that it begins on an empty line.

use api::text::size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// The maximum number of redraws per second.
const REDRAWS: u8 = 5;
/// A line of text.
const TEXT: &str = "{msg}";
/// A number of bytes and their rate.
const BYTES: &str = "{binary_bytes}, {binary_bytes_per_sec}{msg}";
/// The same with the part of the total, and the estimated remaining time.
const PART: &str = "[{bar:20}] {percent:>3} % {binary_bytes}, {binary_bytes_per_sec}, {eta} left{msg}";

/// A line that shows its message.
pub fn text() -> ProgressBar {
    line(None, TEXT)
}

/// A line that shows the number of bytes and their rate; with a bar and the remaining time if the total is known.
pub fn bytes(total: Option<u64>) -> ProgressBar {
    line(total, if total.is_some() { PART } else { BYTES })
}

/// Sets the total of a line that shows bytes.
pub fn set_total(line: &ProgressBar, bytes: u64) {
    line.set_style(style(PART));
    line.set_length(bytes);
}

/// Removes the total of a line that shows bytes.
pub fn unset_total(line: &ProgressBar) {
    line.set_style(style(BYTES));
    line.unset_length();
}

/// An empty line: it is drawn at the first change, so that messages about opening a store come before it.
fn line(total: Option<u64>, template: &str) -> ProgressBar {
    let terminal = ProgressDrawTarget::stderr_with_hz(REDRAWS);
    ProgressBar::with_draw_target(total, terminal).with_style(style(template))
}

fn style(template: &str) -> ProgressStyle {
    // The templates are constant, and a test parses them.
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.progress_chars("=> ")
}

/// A number of bytes and their rate.
pub fn rate(bytes: u64, time: Duration) -> String {
    let rate = bytes as f64 / time.as_secs_f64().max(0.001);
    format!("{}, {}/s", size(bytes), size(rate as u64))
}

/// A duration with its largest unit.
pub fn brief(seconds: u64) -> String {
    match seconds {
        0..=99 => format!("{seconds} s"),
        100..=5_999 => format!("{} min", seconds / 60),
        6_000..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_valid() {
        for template in [TEXT, BYTES, PART] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }

    #[test]
    fn rates_and_durations_are_brief() {
        for (bytes, millis, expected) in
            [(0, 0, "0 B, 0 B/s"), (999, 1_000, "999 B, 999 B/s"), (3 << 20, 2_000, "3.0 MiB, 1.5 MiB/s")]
        {
            assert_eq!(rate(bytes, Duration::from_millis(millis)), expected);
        }
        for (seconds, expected) in [(5, "5 s"), (100, "1 min"), (7_200, "2 h"), (200_000, "2 d")] {
            assert_eq!(brief(seconds), expected);
        }
    }
}
