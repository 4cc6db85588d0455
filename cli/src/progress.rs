//! [`Progress`]: how far a command has come, in one line on standard error, if somebody sits there.
//!
//! Goals: one look for all commands; scripts and logs never see it; what comes next, perhaps an error, begins on an empty line;
//! drawing costs nothing that is worth measuring.
//!
//! Non-goals: several lines, colours, and how wide the terminal is: lines are short.

use api::text::size;
use std::io::{self, IsTerminal as _, Write};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, ReadBuf};

/// How often it is drawn at most.
const GLANCE: Duration = Duration::from_millis(200);
/// To the start of the line, and away with what is on it (ECMA-48: erase in line).
const CLEAR: &str = "\r\u{1b}[K";
/// How wide a bar is, in characters.
const BAR: u64 = 20;

/// A line that is drawn again and again. Dropping it takes it away.
pub struct Progress {
    /// Nobody, if there is no terminal.
    watcher: Option<Box<dyn Write + Send>>,
    begun: Instant,
    drawn: Option<Instant>,
    /// Something stands on the line.
    stands: bool,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// For whoever sits before standard error. Time is measured from here.
    pub fn new() -> Self {
        let terminal = io::stderr().is_terminal();
        Self::to(terminal.then(|| Box::new(io::stderr()) as _))
    }

    fn to(watcher: Option<Box<dyn Write + Send>>) -> Self {
        Self { watcher, begun: Instant::now(), drawn: None, stands: false }
    }

    /// Whether anybody watches.
    pub fn is_watched(&self) -> bool {
        self.watcher.is_some()
    }

    /// How long it has taken until now.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Draws a line, unless one was drawn a moment ago.
    pub fn show(&mut self, line: impl FnOnce(Duration) -> String) {
        if self.drawn.is_none_or(|drawn| drawn.elapsed() >= GLANCE) {
            self.show_now(line);
        }
    }

    /// Draws a line in any case.
    pub fn show_now(&mut self, line: impl FnOnce(Duration) -> String) {
        let elapsed = self.elapsed();
        if let Some(watcher) = &mut self.watcher {
            self.drawn = Some(Instant::now());
            self.stands = true;
            _ = write!(watcher, "{CLEAR}{}", line(elapsed)).and_then(|()| watcher.flush());
        }
    }

    /// Takes the line away, so that something can be printed in its place. The next one is drawn below that.
    pub fn hide(&mut self) {
        if let (true, Some(watcher)) = (std::mem::take(&mut self.stands), &mut self.watcher) {
            _ = watcher.write_all(CLEAR.as_bytes()).and_then(|()| watcher.flush());
        }
    }

    /// Draws a last line and leaves it there.
    pub fn leave(mut self, line: impl FnOnce(Duration) -> String) {
        self.show_now(line);
        if let (true, Some(watcher)) = (std::mem::take(&mut self.stands), &mut self.watcher) {
            _ = watcher.write_all(b"\n");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.hide();
    }
}

/// Something that is read, and shown as it is.
pub struct Watched<R> {
    reader: R,
    progress: Progress,
    done: u64,
    total: Option<u64>,
}

impl<R> Watched<R> {
    /// Shows what is read, out of so many bytes if that is known.
    pub fn new(reader: R, total: Option<u64>) -> Self {
        Self { reader, progress: Progress::new(), done: 0, total }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Watched<R> {
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

/// So many bytes in such a time, perhaps out of so many: with a bar if that is known.
pub fn bytes(done: u64, total: Option<u64>, time: Duration) -> String {
    let rate = done as f64 / time.as_secs_f64().max(0.001);
    let so_far = format!("{}, {}/s", size(done), size(rate as u64));
    match total {
        Some(total) if total > 0 && done <= total => {
            format!("{} {so_far}{}", bar(done, total), left(done, total, time))
        }
        _ => so_far,
    }
}

/// How far something is: `[=====>              ]  27 %`.
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

/// How long it takes if it goes on like this, once that can be told.
fn left(done: u64, total: u64, time: Duration) -> String {
    if done == 0 || time < Duration::from_secs(1) {
        return String::new();
    }
    let seconds = time.as_secs_f64() * (total - done) as f64 / done as f64;
    format!(", {} left", brief(seconds as u64))
}

/// A time, as short as it can be said.
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

    /// What was drawn.
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
    fn what_was_drawn_is_taken_away_again() {
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
    fn nobody_is_shown_nothing() {
        let mut progress = Progress::to(None);
        progress.show(|_| panic!("nobody would see it"));
        progress.leave(|_| panic!("nobody would see it"));
    }

    #[test]
    fn bars_say_how_far_it_is() {
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
    fn progress_is_bytes_and_bytes_a_second() {
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
