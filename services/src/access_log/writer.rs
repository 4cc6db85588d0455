//! [`AccessLogWriter`]: the bounded queue of access log lines, and the thread that writes them.
//!
//! Goals: a request never waits for the disk, also if it is full, slow or gone: its line is queued under a short lock,
//! and dropped and counted when the queue is full or writing fails; lines are written whole, in their order; a file is
//! opened again after a rotation ([`AccessLogWriter::reopen`]).
//!
//! Non-goals: durability: lines of the last moment are lost with the machine, as in nginx with a buffer.

use config::Log;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The maximum size of queued lines, in bytes. As much again may be in the hands of the writing thread.
pub const QUEUE_BYTES_MAX: usize = 4 << 20;
/// Lines are written at once when there are so many bytes.
const BATCH_BYTES: usize = 64 << 10;
/// How long fewer lines are collected.
const BATCH_TIME: Duration = Duration::from_millis(100);
/// Read by the owner and their group, because lines have personal data.
const FILE_MODE: u32 = 0o640;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

p2p_bridge::metrics! {
    struct Families {
        dropped: Family<ReasonLabel, Counter> = "causeway_access_log_dropped",
            "Access log lines that were dropped, by reason: the queue was full (queue), or writing failed (write)";
    }
}

/// Metrics of the access log.
#[derive(Debug, Clone, Default)]
pub struct AccessLogMetrics {
    /// Lines that were dropped because the queue was full.
    pub queue: Counter,
    /// Lines that were dropped because writing failed.
    pub write: Counter,
}

impl AccessLogMetrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let Families { dropped } = Families::registered(registry);
        let of = |reason| dropped.get_or_create_owned(&ReasonLabel { reason });
        Self { queue: of("queue"), write: of("write") }
    }
}

/// Checks whether the file of the settings can be used, without creating it.
///
/// # Errors
/// Why it cannot.
pub fn check(log: &Log) -> Result<(), String> {
    let path = &log.access_file;
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    if path.exists() {
        return append_to(path, false).map(drop).map_err(|error| unusable(path, &error));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match folder.is_dir() {
        true => Ok(()),
        false => Err(format!("{} is not a folder: create it", folder.display())),
    }
}

fn unusable(path: &Path, error: &io::Error) -> String {
    format!("{} cannot be written: {error}", path.display())
}

/// Writes lines of the access log. Dropping it ends its thread after the queued lines.
pub struct AccessLogWriter {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<Queue>,
    /// Something is to be done.
    wake: Condvar,
    /// The thread has ended.
    end: Condvar,
    metrics: AccessLogMetrics,
}

#[derive(Default)]
struct Queue {
    lines: Vec<u8>,
    reopen: bool,
    stop: bool,
    ended: bool,
}

impl AccessLogWriter {
    /// Opens the file of the settings, or standard error if they name none, and starts the thread.
    ///
    /// # Errors
    /// Why the file cannot be written, or the thread cannot be started.
    pub fn start(log: &Log, metrics: AccessLogMetrics) -> Result<Arc<Self>, String> {
        let target = match log.access_file.as_os_str().is_empty() {
            true => Target::StandardError,
            false => {
                let path = log.access_file.clone();
                let file = append_to(&path, true).map_err(|error| unusable(&path, &error))?;
                Target::File { file, path }
            }
        };
        Self::start_with(Output { target, torn: false, failing: false }, metrics)
    }

    fn start_with(output: Output, metrics: AccessLogMetrics) -> Result<Arc<Self>, String> {
        let shared = Shared { queue: Mutex::default(), wake: Condvar::new(), end: Condvar::new(), metrics };
        let shared = Arc::new(shared);
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("access-log".to_owned());
        let started = thread.spawn(move || of_thread.run(output));
        started.map_err(|error| format!("a thread cannot be started: {error}"))?;
        Ok(Arc::new(Self { shared }))
    }

    /// Queues a line, which ends in a line break. Never waits for the disk.
    pub fn write(&self, line: &str) {
        let mut queue = self.shared.queue();
        let before = queue.lines.len();
        if queue.ended || before + line.len() > QUEUE_BYTES_MAX {
            drop(queue);
            self.shared.metrics.queue.inc();
            return;
        }
        queue.lines.extend_from_slice(line.as_bytes());
        let after = queue.lines.len();
        drop(queue);
        if before == 0 || (before < BATCH_BYTES && after >= BATCH_BYTES) {
            self.shared.wake.notify_one();
        }
    }

    /// Has the file opened again after the lines that are queued, since logrotate has renamed it.
    pub fn reopen(&self) {
        self.shared.queue().reopen = true;
        self.shared.wake.notify_one();
    }

    /// Writes the queued lines and ends. Waits for so long at most; returns whether all were handled in time.
    pub fn close(&self, timeout: Duration) -> bool {
        let mut queue = self.shared.queue();
        queue.stop = true;
        self.shared.wake.notify_one();
        let until = Instant::now() + timeout;
        while !queue.ended {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            queue = self.shared.end.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Drop for AccessLogWriter {
    fn drop(&mut self) {
        self.shared.queue().stop = true;
        self.shared.wake.notify_one();
    }
}

impl std::fmt::Debug for AccessLogWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AccessLogWriter").finish_non_exhaustive()
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, mut output: Output) {
        let mut batch = Vec::new();
        loop {
            let (reopen, stop) = self.take(&mut batch);
            let lost = output.write(&batch);
            self.metrics.write.inc_by(lost);
            batch.clear();
            // Memory of a burst is released.
            batch.shrink_to(4 * BATCH_BYTES);
            if reopen {
                output.reopen();
            }
            if stop {
                let mut queue = self.queue();
                if queue.lines.is_empty() {
                    queue.ended = true;
                    self.end.notify_all();
                    return;
                }
            }
        }
    }

    /// Waits for lines or another task, and swaps the queued lines with an empty batch. Returns whether the file is to
    /// be opened again, and whether the thread is to end.
    fn take(&self, batch: &mut Vec<u8>) -> (bool, bool) {
        let mut queue = self.queue();
        while queue.lines.is_empty() && !queue.reopen && !queue.stop {
            queue = self.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        let until = Instant::now() + BATCH_TIME;
        while queue.lines.len() < BATCH_BYTES && !queue.reopen && !queue.stop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            queue = self.wake.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        std::mem::swap(&mut queue.lines, batch);
        (std::mem::take(&mut queue.reopen), queue.stop)
    }
}

enum Target {
    StandardError,
    File {
        file: File,
        path: PathBuf,
    },
    #[cfg(test)]
    Test(Box<dyn io::Write + Send>),
}

/// What lines are written to.
struct Output {
    target: Target,
    /// Whether the last line is incomplete, because the disk was full.
    torn: bool,
    /// Whether the last write failed.
    failing: bool,
}

impl Output {
    /// Writes lines, and returns how many were lost.
    fn write(&mut self, lines: &[u8]) -> u64 {
        if lines.is_empty() {
            return 0;
        }
        let mut rest = lines;
        let result = self.end_torn_line().and_then(|()| self.write_all(&mut rest));
        let lost = rest.iter().filter(|byte| **byte == b'\n').count() as u64;
        match result {
            Ok(()) if self.failing => tracing::info!("the access log is written again"),
            Err(ref error) if !self.failing => {
                tracing::warn!(%error, "the access log cannot be written: lines are dropped until it can");
            }
            _ => {}
        }
        self.failing = result.is_err();
        lost
    }

    /// So that the next line does not continue one that was cut.
    fn end_torn_line(&mut self) -> io::Result<()> {
        if self.torn {
            self.write_all(&mut &b"\n"[..])?;
            self.torn = false;
        }
        Ok(())
    }

    fn write_all(&mut self, rest: &mut &[u8]) -> io::Result<()> {
        while !rest.is_empty() {
            match self.target.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => {
                    self.torn = rest.get(written.saturating_sub(1)) != Some(&b'\n');
                    *rest = rest.get(written..).unwrap_or_default();
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Opens the file again by its name. If that fails, the open file stays in use.
    fn reopen(&mut self) {
        let Target::File { file, path } = &mut self.target else { return };
        match append_to(path, true) {
            Ok(reopened) => {
                *file = reopened;
                self.torn = false;
                tracing::info!(file = %path.display(), "the access log was opened again");
            }
            Err(error) => tracing::warn!(
                file = %path.display(), %error, "the access log cannot be opened again: the open file stays in use"
            ),
        }
    }
}

impl Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            // Whole lines under one lock, so that they do not mix with those of the log.
            Self::StandardError => io::stderr().lock().write_all(bytes).map(|()| bytes.len()),
            Self::File { file, .. } => file.write(bytes),
            #[cfg(test)]
            Self::Test(output) => output.write(bytes),
        }
    }
}

/// Opens a file for appending. A pipe without a reader is an error and does not block.
fn append_to(path: &Path, create: bool) -> io::Result<File> {
    let nonblock = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let mut options = OpenOptions::new();
    let file = options.append(true).create(create).mode(FILE_MODE).custom_flags(nonblock).open(path)?;
    // Writing waits, on a thread of its own.
    fcntl_setfl(&file, fcntl_getfl(&file)?.difference(OFlags::NONBLOCK))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn log_to(path: &Path) -> Log {
        Log { access_file: path.to_owned(), ..Log::default() }
    }

    fn writer_to(output: impl io::Write + Send + 'static) -> (Arc<AccessLogWriter>, AccessLogMetrics) {
        let metrics = AccessLogMetrics::default();
        let output = Output { target: Target::Test(Box::new(output)), torn: false, failing: false };
        (AccessLogWriter::start_with(output, metrics.clone()).expect("starts"), metrics)
    }

    #[test]
    fn queued_lines_are_written_in_order_when_it_is_closed() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("access.log");
        std::fs::write(&path, "former\n").expect("writes");
        let metrics = AccessLogMetrics::default();
        let writer = AccessLogWriter::start(&log_to(&path), metrics.clone()).expect("starts");
        let lines: Vec<String> = (0..20_000).map(|number| format!("line {number}\n")).collect();
        lines.iter().for_each(|line| writer.write(line));
        assert!(writer.close(PATIENCE));
        let written = std::fs::read_to_string(&path).expect("reads");
        assert!(written == format!("former\n{}", lines.concat()), "{} bytes", written.len());
        assert_eq!((metrics.queue.get(), metrics.write.get()), (0, 0));
        writer.write("late\n");
        assert_eq!(metrics.queue.get(), 1, "a line after the end is dropped and counted");
        assert!(writer.close(PATIENCE), "closing twice is no error");
    }

    #[test]
    fn the_file_is_opened_again_after_a_rotation() {
        let dir = tempfile::tempdir().expect("a folder");
        let (path, rotated) = (dir.path().join("access.log"), dir.path().join("access.log.1"));
        let writer = AccessLogWriter::start(&log_to(&path), AccessLogMetrics::default()).expect("starts");
        writer.write("before\n");
        std::fs::rename(&path, &rotated).expect("renames");
        writer.reopen();
        let begun = Instant::now();
        while !path.exists() {
            assert!(begun.elapsed() < PATIENCE, "it is not opened again");
            std::thread::sleep(Duration::from_millis(5));
        }
        writer.write("after\n");
        // A file that cannot be opened again stays in use.
        std::fs::rename(&path, dir.path().join("access.log.2")).expect("renames");
        std::fs::create_dir(&path).expect("a folder in its place");
        writer.reopen();
        writer.write("last\n");
        assert!(writer.close(PATIENCE));
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).expect("reads");
        assert_eq!((read("access.log.1").as_str(), read("access.log.2").as_str()), ("before\n", "after\nlast\n"));
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&rotated).expect("exists").permissions());
        assert_eq!(mode & 0o137, 0, "others cannot read it: {mode:o}");
    }

    /// Blocks until it is told to go on.
    struct Stuck(mpsc::Receiver<()>);

    impl io::Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            _ = self.0.recv();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_disk_that_hangs_blocks_nobody_and_the_queue_is_bounded() {
        let (go_on, stuck) = mpsc::channel();
        let (writer, metrics) = writer_to(Stuck(stuck));
        let line = format!("{}\n", "x".repeat(1023));
        let lines = 3 * QUEUE_BYTES_MAX / line.len();
        (0..lines).for_each(|_| writer.write(&line));
        let dropped = metrics.queue.get() as usize;
        let room = QUEUE_BYTES_MAX / line.len();
        assert!(dropped >= lines - 2 * room && dropped < lines, "{dropped} of {lines} were dropped");
        assert!(writer.shared.queue().lines.len() <= QUEUE_BYTES_MAX);
        assert!(!writer.close(Duration::from_millis(20)), "it does not wait for longer");
        drop(go_on);
        assert!(writer.close(PATIENCE));
    }

    /// Has room for so many bytes, shared with the test.
    struct Full(Arc<Mutex<(usize, Vec<u8>)>>);

    impl io::Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut state = self.0.lock().expect("is sound");
            let (room, written) = &mut *state;
            let taken = bytes.len().min(*room);
            if taken == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            *room -= taken;
            written.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_dropped_while_the_disk_is_full_and_a_cut_line_is_ended() {
        let state = Arc::new(Mutex::new((12, Vec::new())));
        let mut output =
            Output { target: Target::Test(Box::new(Full(Arc::clone(&state)))), torn: false, failing: false };
        assert_eq!(output.write(b"line 1\nline 2\nline 3\n"), 2);
        assert_eq!(output.write(b"line 4\n"), 1);
        state.lock().expect("is sound").0 = 100;
        assert_eq!(output.write(b"line 5\n"), 0);
        let written = String::from_utf8(state.lock().expect("is sound").1.clone()).expect("text");
        assert_eq!(written, "line 1\nline \nline 5\n");
    }

    #[test]
    fn files_that_cannot_be_written_are_reported() {
        let dir = tempfile::tempdir().expect("a folder");
        let fifo = dir.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().is_ok_and(|status| status.success()));
        let table = [
            (dir.path().to_owned(), false),
            (dir.path().join("missing/access.log"), false),
            // Nobody reads it.
            (fifo, false),
            (dir.path().join("access.log"), true),
            ("/dev/null".into(), true),
        ];
        for (path, good) in table {
            let checked = check(&log_to(&path));
            assert_eq!(checked.is_ok(), good, "{}: {checked:?}", path.display());
            assert!(!dir.path().join("access.log").exists(), "a check creates nothing");
        }
        let missing = dir.path().join("missing/access.log");
        let refused = AccessLogWriter::start(&log_to(&missing), AccessLogMetrics::default());
        assert!(refused.is_err_and(|reason| reason.contains("access.log cannot be written: No such file")));
        assert!(check(&Log::default()).is_ok());
    }
}
