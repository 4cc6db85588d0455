//! [`Progress`]: a progress line on standard error, if that is a terminal.
//!
//! Goals: one format for all commands; scripts and logs never get it; the next output begins on an empty line; drawing
//! has no measurable cost.
//!
//! Non-goals: several lines, colours, and the width of the terminal: lines are short.

use api::text::size;
use std::io::{self, IsTerminal as _, Write};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, ReadBuf};

/// The minimum time between two redraws.
const REDRAW_INTERVAL: Duration = Duration::from_millis(200);
/// Carriage return, and ECMA-48 "erase in line".
const CLEAR: &str = "\r\u{1b}[K";
/// The width of a bar, in characters.
const BAR: u64 = 20;

/// A line that is redrawn. Dropping it clears the line.
pub struct Progress {
    /// `None` without a terminal.
    terminal: Option<Box<dyn Write + Send>>,
    begun: Instant,
    drawn: Option<Instant>,
    /// The line is not empty.
    visible: bool,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// A progress line on standard error, if that is a terminal. Starts the clock.
    pub fn new() -> Self {
        let is_terminal = io::stderr().is_terminal();
        Self::to(is_terminal.then(|| Box::new(io::stderr()) as _))
    }

    fn to(terminal: Option<Box<dyn Write + Send>>) -> Self {
        Self { terminal, begun: Instant::now(), drawn: None, visible: false }
    }

    /// Whether there is a terminal.
    pub fn is_shown(&self) -> bool {
        self.terminal.is_some()
    }

    /// The time since [`Progress::new`].
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Draws a line, unless the last was drawn less than [`REDRAW_INTERVAL`] ago.
    pub fn show(&mut self, line: impl FnOnce(Duration) -> String) {
        if self.drawn.is_none_or(|drawn| drawn.elapsed() >= REDRAW_INTERVAL) {
            self.show_now(line);
        }
    }

    /// Draws a line, whenever the last was drawn.
    pub fn show_now(&mut self, line: impl FnOnce(Duration) -> String) {
        let elapsed = self.elapsed();
        if let Some(terminal) = &mut self.terminal {
            self.drawn = Some(Instant::now());
            self.visible = true;
            _ = write!(terminal, "{CLEAR}{}", line(elapsed)).and_then(|()| terminal.flush());
        }
    }

    /// Clears the line, so that other output can take its place. The next line is drawn below that.
    pub fn hide(&mut self) {
        if let (true, Some(terminal)) = (std::mem::take(&mut self.visible), &mut self.terminal) {
            _ = terminal.write_all(CLEAR.as_bytes()).and_then(|()| terminal.flush());
        }
    }

    /// Draws a last line and leaves it there.
    pub fn leave(mut self, line: impl FnOnce(Duration) -> String) {
        self.show_now(line);
        if let (true, Some(terminal)) = (std::mem::take(&mut self.visible), &mut self.terminal) {
            _ = terminal.write_all(b"\n");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.hide();
    }
}

/// A reader that shows the progress of reading.
pub struct ProgressReader<R> {
    reader: R,
    progress: Progress,
    done: u64,
    total: Option<u64>,
}

impl<R> ProgressReader<R> {
    /// Shows the progress of `reader`, which has `total` bytes if that is known.
    pub fn new(reader: R, total: Option<u64>) -> Self {
        Self { reader, progress: Progress::new(), done: 0, total }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for ProgressReader<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let before = buf.filled().len();
        let polled = Pin::new(&mut this.reader).poll_read(cx, buf);
        this.done += (buf.filled().len() - before) as u64;
        let (done, total) = (this.done, this.total);
        this.progress.show(|time| bytes(done, total, time));
        polled
    }
}

/// A number of bytes and their rate; with a bar and the remaining time if the total is known.
pub fn bytes(done: u64, total: Option<u64>, time: Duration) -> String {
    let rate = done as f64 / time.as_secs_f64().max(0.001);
    let so_far = format!("{}, {}/s", size(done), size(rate as u64));
    match total {
        Some(total) if total > 0 && done <= total => {
            format!("{} {so_far}{}", bar(done, total), remaining(done, total, time))
        }
        _ => so_far,
    }
}

/// A progress bar: `[=====>              ]  27 %`.
pub fn bar(done: u64, total: u64) -> String {
    let of = |whole: u64| {
        let share = u128::from(whole) * u128::from(done.min(total)) / u128::from(total.max(1));
        usize::try_from(share).unwrap_or_default()
    };
    let width = usize::try_from(BAR).unwrap_or_default();
    let mut line = "=".repeat(of(BAR));
    if line.len() < width {
        line.push('>');
    }
    format!("[{line:width$}] {:3} %", of(100))
}

/// The estimated remaining time, once a second has passed.
fn remaining(done: u64, total: u64, time: Duration) -> String {
    if done == 0 || time < Duration::from_secs(1) {
        return String::new();
    }
    let seconds = time.as_secs_f64() * (total - done) as f64 / done as f64;
    format!(", {} left", brief(seconds as u64))
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
    use std::sync::{Arc, Mutex, PoisonError};

    /// A terminal that records the output.
    #[derive(Clone, Default)]
    struct Screen(Arc<Mutex<Vec<u8>>>);

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Screen {
        fn text(&self) -> String {
            String::from_utf8_lossy(&self.0.lock().expect("is sound")).into_owned()
        }
    }

    #[test]
    fn the_line_is_cleared_when_it_is_dropped() {
        let screen = Screen::default();
        let mut progress = Progress::to(Some(Box::new(screen.clone())));
        progress.show(|_| "one".to_owned());
        progress.show(|_| "too soon".to_owned());
        progress.show_now(|_| "two".to_owned());
        progress.hide();
        progress.hide();
        drop(progress);
        assert_eq!(screen.text(), format!("{CLEAR}one{CLEAR}two{CLEAR}"));
    }

    #[test]
    fn a_last_line_stays() {
        let screen = Screen::default();
        Progress::to(Some(Box::new(screen.clone()))).leave(|_| "done".to_owned());
        assert_eq!(screen.text(), format!("{CLEAR}done\n"));
    }

    #[test]
    fn nothing_is_drawn_without_a_terminal() {
        let mut progress = Progress::to(None);
        progress.show(|_| panic!("there is no terminal"));
        progress.leave(|_| panic!("there is no terminal"));
    }

    #[test]
    fn bars_show_the_percentage() {
        let table = [
            (0, 100, "[>                   ]   0 %"),
            (27, 100, "[=====>              ]  27 %"),
            (99, 100, "[===================>]  99 %"),
            (100, 100, "[====================] 100 %"),
            (200, 100, "[====================] 100 %"),
            (0, 0, "[>                   ]   0 %"),
            (u64::MAX, u64::MAX, "[====================] 100 %"),
        ];
        for (done, total, expected) in table {
            assert_eq!(bar(done, total), expected, "{done} of {total}");
        }
    }

    #[test]
    fn progress_is_bytes_rate_and_remaining_time() {
        let table = [
            (0, None, 0, "0 B, 0 B/s"),
            (999, None, 1_000, "999 B, 999 B/s"),
            (3 << 20, None, 2_000, "3.0 MiB, 1.5 MiB/s"),
            (3 << 20, Some(12 << 20), 2_000, "[=====>              ]  25 % 3.0 MiB, 1.5 MiB/s, 6 s left"),
            (3 << 20, Some(1), 2_000, "3.0 MiB, 1.5 MiB/s"),
            (0, Some(1 << 20), 2_000, "[>                   ]   0 % 0 B, 0 B/s"),
        ];
        for (done, total, millis, expected) in table {
            assert_eq!(bytes(done, total, Duration::from_millis(millis)), expected);
        }
        for (seconds, expected) in [(5, "5 s"), (100, "1 min"), (7_200, "2 h"), (200_000, "2 d")] {
            assert_eq!(brief(seconds), expected);
        }
    }
}
