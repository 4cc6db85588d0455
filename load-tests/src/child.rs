//! A child process: its output, and the CPU time and memory that it uses.

use anyhow::{Context, Result, bail, ensure};
use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// For a server to be ready.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running child. Dropping it kills it.
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

    /// The peak of resident memory, in bytes: VmHWM of proc(5).
    pub fn resident_peak(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        resident_peak(&status).with_context(|| format!("no VmHWM in {status}"))
    }

    /// Datagrams that were dropped because its sockets' buffers were full.
    pub fn datagrams_dropped(&self) -> u64 {
        datagrams_dropped(self.child.id())
    }

    /// CPU time used so far, in user and kernel mode, by the process and its living children: nginx works in children.
    pub fn cpu(&self) -> Duration {
        let id = self.child.id();
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let stats = all.filter_map(|entry| Stat::read(&entry.path()));
        stats.filter(|stat| stat.id == id || stat.parent == id).map(|stat| stat.cpu).sum()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.terminate();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    /// SIGTERM before SIGKILL: nginx killed outright leaves its workers behind.
    fn terminate(&mut self) {
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(20) {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Fields of /proc/ID/stat, proc(5).
struct Stat {
    id: u32,
    parent: u32,
    cpu: Duration,
}

impl Stat {
    fn read(process: &Path) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(process.join("stat")).ok()?)
    }

    /// The second field is a name in parentheses that may contain anything; fields are counted after it.
    fn parse(text: &str) -> Option<Self> {
        let (id, rest) = (text.split(' ').next()?.parse().ok()?, text.rsplit_once(')')?.1);
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        // Linux counts in hundredths of a second whatever its own clock does: USER_HZ.
        Some(Self { id, parent: fields.get(1)?.parse().ok()?, cpu: Duration::from_millis(ticks * 10) })
    }
}

/// Datagrams that the kernel dropped because a process's sockets were full: the last column of /proc/net/udp, proc(5).
pub fn datagrams_dropped(process: u32) -> u64 {
    let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let links = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let inodes: HashSet<String> = links.filter_map(|link| Some(inode(link.to_str()?)?.to_owned())).collect();
    let tables = ["/proc/net/udp", "/proc/net/udp6"].map(|table| std::fs::read_to_string(table).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines()).filter_map(|line| dropped(line, &inodes)).sum()
}

fn inode(link: &str) -> Option<&str> {
    link.strip_prefix("socket:[")?.strip_suffix(']')
}

fn dropped(line: &str, inodes: &HashSet<String>) -> Option<u64> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    inodes.contains(*fields.get(9)?).then(|| fields.last()?.parse().ok())?
}

#[test]
fn drops_are_counted_for_a_process_s_own_sockets() {
    let line =
        " 6: 0100007F:A2 00000000:0000 07 00000000:00000000 00:00000000 00000000  0  0 4711 2 0000000000000000 42";
    let inodes = |inode: &str| HashSet::from([inode.to_owned()]);
    assert_eq!(dropped(line, &inodes("4711")), Some(42));
    assert_eq!(dropped(line, &inodes("42")), None);
    assert_eq!(inode("socket:[4711]"), Some("4711"));
    assert_eq!(inode("/dev/null"), None);
}

fn resident_peak(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? * 1024)
}

#[test]
fn the_peak_of_memory_is_read() {
    assert_eq!(resident_peak("Name:\ta\nVmHWM:\t   1234 kB\nVmRSS:\t 5 kB\n"), Some(1234 * 1024));
    assert_eq!(resident_peak("Name:\ta\n"), None);
}

#[test]
fn stat_is_read_behind_a_confusing_name() {
    let text = "77 (a) b (c)) S 5 77 77 0 -1 4194560 1 0 0 0 30 12 9 9 20 0 1 0 100 0 0";
    let stat = Stat::parse(text).expect("it is well-formed");
    assert_eq!((stat.id, stat.parent, stat.cpu), (77, 5, Duration::from_millis(420)));
}
