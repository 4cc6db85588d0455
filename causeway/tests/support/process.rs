//! A child process whose output is kept in a file, and which does not outlive the test.

use super::eventually;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// The number of lines of output that a failed test shows.
const LINES_SHOWN: usize = 60;

/// A server of the distribution, also in /usr/sbin, which may not be on the PATH.
pub fn system_program(name: &str) -> PathBuf {
    let path = Path::new("/usr/sbin").join(name);
    if path.exists() { path } else { name.into() }
}

/// A running child. Dropping it kills it; a failing test shows the end of its output first.
pub struct Process {
    name: String,
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
}

impl Process {
    /// Starts `command`, with its output going to files in `dir`.
    pub fn spawn(name: &str, command: &mut Command, dir: &Path) -> Self {
        Self::spawn_with_input(name, command, Stdio::null(), dir)
    }

    /// The same with standard input.
    pub fn spawn_with_input(name: &str, command: &mut Command, stdin: Stdio, dir: &Path) -> Self {
        let (stdout, stderr) = (dir.join(format!("{name}.stdout")), dir.join(format!("{name}.stderr")));
        let file = |path: &Path| File::create(path).expect("the test's own folder is writable");
        command.stdin(stdin).stdout(file(&stdout)).stderr(file(&stderr));
        let child = command.spawn().unwrap_or_else(|error| panic!("{name} does not start: {error}"));
        Self { name: name.to_owned(), child, stdout, stderr }
    }

    /// The process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it wrote to standard output so far.
    pub fn stdout(&self) -> String {
        std::fs::read_to_string(&self.stdout).unwrap_or_default()
    }

    /// What it wrote to standard error so far.
    pub fn stderr(&self) -> String {
        std::fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// Waits until its standard output contains `text`; panics if it ends before.
    pub async fn says(&mut self, text: &str, timeout: Duration) -> String {
        let name = self.name.clone();
        eventually(&format!("{name} says {text:?}"), timeout, async || {
            let ended = self.child.try_wait().ok().flatten();
            let printed = self.stdout();
            if let Some(status) = ended {
                panic!("{name} ended with {status} before it printed {text:?}:\n{printed}{}", self.stderr());
            }
            if printed.contains(text) { Ok(printed) } else { Err("still silent") }
        })
        .await
    }

    /// How it ended, if it did.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for its end.
    pub async fn ended(&mut self, timeout: Duration) -> ExitStatus {
        let name = self.name.clone();
        eventually(&format!("{name} ends"), timeout, async || {
            self.child.try_wait().ok().flatten().ok_or("still running")
        })
        .await
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.id()).expect("process ids fit");
        kill(Pid::from_raw(id), signal).expect("the child is there until it is waited for");
    }

    /// Sends SIGTERM and waits for the end.
    pub async fn terminate(&mut self, timeout: Duration) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        let name = self.name.clone();
        eventually(&format!("{name} ends after SIGTERM"), timeout, async || {
            self.child.try_wait().ok().flatten().ok_or("still running")
        })
        .await
    }

    /// The resident memory, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.status_bytes("VmRSS:")
    }

    /// The peak of resident memory since [`Process::reset_resident_peak`], in bytes.
    pub fn resident_peak_bytes(&self) -> u64 {
        self.status_bytes("VmHWM:")
    }

    /// Resets the peak: proc(5), `clear_refs`. Without permission, the peak counts from the start, which can only
    /// make a test stricter.
    pub fn reset_resident_peak(&self) {
        let _ = std::fs::write(format!("/proc/{}/clear_refs", self.id()), "5");
    }

    fn status_bytes(&self, key: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).expect("the process runs");
        let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("Linux reports memory");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number of kB");
        kib * 1024
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            for (stream, text) in [("stdout", self.stdout()), ("stderr", self.stderr())] {
                let lines: Vec<&str> = text.lines().collect();
                let end = &lines[lines.len().saturating_sub(LINES_SHOWN)..];
                eprintln!("---- end of {}'s {stream}\n{}", self.name, end.join("\n"));
            }
        }
    }
}
