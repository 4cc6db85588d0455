//! A child process: its output, and the CPU time and memory that it uses.

use anyhow::{Context, Result, bail, ensure};
use procfs::process::{FDTarget, Process as Proc, all_processes};
use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// For a server to be ready.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// A process is idle if it uses so little CPU time in such an interval.
const IDLE_INTERVAL: Duration = Duration::from_millis(500);
const IDLE_CPU: Duration = Duration::from_millis(20);
/// For a process to be idle.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);
/// From SIGTERM to SIGKILL.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// A running child. Dropping it ends it.
pub struct Process {
    name: &'static str,
    child: Child,
    output: PathBuf,
}

impl Process {
    /// Starts `command` with both of its outputs in one file in `dir`.
    pub fn spawn(name: &'static str, command: &mut Command, dir: &Path) -> Result<Self> {
        let output = dir.join(format!("{name}.out"));
        let file = File::create(&output).with_context(|| output.display().to_string())?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        Ok(Self { name, child, output })
    }

    /// Waits until its output contains `text`, and returns the output.
    pub async fn wait_for(&mut self, text: &str) -> Result<String> {
        let begun = Instant::now();
        loop {
            let ended = self.child.try_wait()?;
            let output = std::fs::read_to_string(&self.output)?;
            if output.contains(text) {
                return Ok(output);
            }
            if let Some(status) = ended {
                bail!("{} ended with {status}:\n{output}", self.name);
            }
            ensure!(begun.elapsed() < START_TIMEOUT, "{} does not print {text:?}:\n{output}", self.name);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Fails if it has ended, with its output.
    pub fn check_running(&mut self) -> Result<()> {
        let Some(status) = self.child.try_wait()? else { return Ok(()) };
        bail!("{} ended with {status}:\n{}", self.name, std::fs::read_to_string(&self.output)?)
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it at once (SIGKILL), as a machine that loses power does.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Resident memory, in bytes.
    pub fn resident(&self) -> Result<u64> {
        let status = Proc::new(self.child.id().try_into()?)?.status()?;
        Ok(status.vmrss.context("the kernel does not know the resident memory")? * 1024)
    }

    /// The peak of resident memory, in bytes.
    pub fn resident_peak(&self) -> Result<u64> {
        let status = Proc::new(self.child.id().try_into()?)?.status()?;
        Ok(status.vmhwm.context("the kernel does not know the peak")? * 1024)
    }

    /// Datagrams that were dropped because its sockets' buffers were full.
    pub fn datagrams_dropped(&self) -> Result<u64> {
        datagrams_dropped(self.child.id())
    }

    /// Bytes that it has read from files so far, whether from disk or from the page cache: `rchar` in /proc/PID/io,
    /// which does not count what is received from sockets.
    pub fn file_bytes_read(&self) -> Result<u64> {
        Ok(Proc::new(self.child.id().try_into()?)?.io()?.rchar)
    }

    /// CPU time used so far, once the process has nothing more to do: what it writes after an answer belongs to it.
    pub async fn settled_cpu(&self) -> Result<Duration> {
        let (begun, mut before) = (Instant::now(), self.cpu());
        loop {
            tokio::time::sleep(IDLE_INTERVAL).await;
            let now = self.cpu();
            if now.saturating_sub(before) <= IDLE_CPU {
                return Ok(now);
            }
            ensure!(begun.elapsed() < SETTLE_TIMEOUT, "{} does not come to rest", self.name);
            before = now;
        }
    }

    /// CPU time used so far, in user and kernel mode, by the process and its living children: nginx works in children.
    pub fn cpu(&self) -> Duration {
        let id: i32 = self.child.id().try_into().unwrap_or_default();
        let all = all_processes().into_iter().flatten().flatten().filter_map(|process| process.stat().ok());
        let ticks: u64 = all.filter(|stat| stat.pid == id || stat.ppid == id).map(|stat| stat.utime + stat.stime).sum();
        Duration::from_secs_f64(ticks as f64 / procfs::ticks_per_second() as f64)
    }
}

impl Drop for Process {
    /// SIGTERM before SIGKILL: nginx killed outright leaves its workers behind.
    fn drop(&mut self) {
        // The id of a process that has ended may be that of another one.
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let begun = Instant::now();
        while begun.elapsed() < END_TIMEOUT && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Datagrams that the kernel dropped because a process's sockets were full: the last column of /proc/net/udp, proc(5).
pub fn datagrams_dropped(process: u32) -> Result<u64> {
    let descriptors = Proc::new(process.try_into()?)?.fd()?.flatten();
    let sockets: HashSet<String> = descriptors
        .filter_map(|descriptor| match descriptor.target {
            FDTarget::Socket(inode) => Some(inode.to_string()),
            _ => None,
        })
        .collect();
    let tables = ["/proc/net/udp", "/proc/net/udp6"].map(|table| std::fs::read_to_string(table).unwrap_or_default());
    Ok(tables.iter().flat_map(|table| table.lines()).filter_map(|line| dropped(line, &sockets)).sum())
}

fn dropped(line: &str, sockets: &HashSet<String>) -> Option<u64> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    sockets.contains(*fields.get(9)?).then(|| fields.last()?.parse().ok())?
}

#[test]
fn drops_are_counted_for_a_process_s_own_sockets() {
    let line =
        " 6: 0100007F:A2 00000000:0000 07 00000000:00000000 00:00000000 00000000  0  0 4711 2 0000000000000000 42";
    let sockets = |inode: &str| HashSet::from([inode.to_owned()]);
    assert_eq!(dropped(line, &sockets("4711")), Some(42));
    assert_eq!(dropped(line, &sockets("42")), None);
}

#[tokio::test]
async fn a_process_can_be_killed_before_it_is_dropped() {
    let dir = tempfile::TempDir::new().expect("the temporary directory is writable");
    let mut process = Process::spawn("idle", Command::new("sleep").arg("60"), dir.path()).expect("it is installed");
    assert!(Path::new("/proc").join(process.id().to_string()).exists());
    process.check_running().expect("it sleeps");
    process.kill().expect("it is ours");
    assert!(process.check_running().is_err_and(|error| error.to_string().contains("idle ended with")));
}

#[tokio::test]
async fn usage_of_a_process_is_measured_with_its_children() {
    let dir = tempfile::TempDir::new().expect("the temporary directory is writable");
    let mut busy = Command::new("sh");
    busy.args(["-c", "(i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done; echo ready; sleep 60) & wait"]);
    let mut process = Process::spawn("busy", &mut busy, dir.path()).expect("there is a shell");
    process.wait_for("ready").await.expect("it is printed");
    assert!(process.cpu() > Duration::ZERO);
    assert!(process.settled_cpu().await.is_ok_and(|cpu| cpu >= process.cpu().saturating_sub(IDLE_CPU)));
    assert!(process.file_bytes_read().is_ok_and(|bytes| bytes > 0), "its libraries");
    let (resident, peak) = (process.resident().expect("it runs"), process.resident_peak().expect("it runs"));
    assert!(resident > 100_000 && peak >= resident, "{resident} {peak}");
    assert!(process.datagrams_dropped().is_ok_and(|count| count == 0));
}
