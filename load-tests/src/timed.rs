//! A command that is run to its end: how long it takes, the CPU time that it uses, and the bytes that it writes.

use crate::directory::temp_dir;
use anyhow::{Context, Result, bail, ensure};
use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than any command takes.
const TIMEOUT: Duration = Duration::from_secs(1800);
/// How often the command is polled; it takes seconds.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The unit of written blocks: getrusage(2).
const WRITTEN_UNIT_BYTES: u64 = 512;

/// A command that ended well.
#[derive(Debug, Clone)]
pub struct Ran {
    pub wall: Duration,
    /// In user and kernel mode, with all of its children.
    pub cpu: Duration,
    /// Bytes that the kernel wrote to disk for it, or will write, in whole pages.
    pub written_bytes: u64,
    pub stdout: String,
}

/// Runs a command. Anything but success is an error with the output. No other child of this process may end meanwhile,
/// for the kernel counts the CPU time of all of them together.
pub fn run(command: &mut Command) -> Result<Ran> {
    let dir = temp_dir("command")?;
    run_to(command, &dir.path().join("out"))
}

/// The same for a command whose output is content, which is discarded.
pub fn run_discarding(command: &mut Command) -> Result<Ran> {
    run_to(command, Path::new("/dev/null"))
}

/// Runs a command when the disk is idle.
pub fn settled(command: &mut Command) -> Result<Ran> {
    ensure!(Command::new("sync").status()?.success(), "sync failed");
    run(command)
}

fn run_to(command: &mut Command, out: &Path) -> Result<Ran> {
    let dir = temp_dir("command")?;
    let err = dir.path().join("err");
    command.stdin(Stdio::null()).stdout(File::create(out)?).stderr(File::create(&err)?);
    let (before, begun) = (getrusage(UsageWho::RUSAGE_CHILDREN)?, Instant::now());
    let mut child = command.spawn().with_context(|| format!("starting {command:?}"))?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begun.elapsed() > TIMEOUT {
            child.kill()?;
            child.wait()?;
            bail!("{command:?} does not end");
        }
        std::thread::sleep(POLL_INTERVAL);
    };
    let wall = begun.elapsed();
    let after = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let ran = Ran {
        wall,
        cpu: cpu(&after)?.saturating_sub(cpu(&before)?),
        written_bytes: u64::try_from(after.block_writes() - before.block_writes())? * WRITTEN_UNIT_BYTES,
        stdout: std::fs::read_to_string(out)?,
    };
    if !status.success() {
        bail!("{command:?}: {status}: {}{}", ran.stdout, std::fs::read_to_string(&err)?);
    }
    Ok(ran)
}

/// CPU time of this process so far, without its children.
pub fn own_cpu() -> Result<Duration> {
    cpu(&getrusage(UsageWho::RUSAGE_SELF)?)
}

fn cpu(usage: &Usage) -> Result<Duration> {
    let microseconds = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Ok(Duration::from_micros(u64::try_from(microseconds)?))
}

#[test]
fn output_and_usage_of_a_command_are_returned() {
    let mut busy = Command::new("sh");
    let ran = run(busy.args(["-c", "i=0; while [ $i -lt 100000 ]; do i=$((i + 1)); done; echo $i"])).expect("it ends");
    assert_eq!(ran.stdout, "100000\n");
    assert!(ran.cpu > Duration::ZERO && ran.wall > Duration::ZERO, "{ran:?}");
    let failed = run(Command::new("sh").args(["-c", "echo no way >&2; exit 3"])).expect_err("it fails");
    assert!(failed.to_string().contains("no way"), "{failed}");
    assert!(run(&mut Command::new("/nowhere/at/all")).is_err());
    let discarding = run_discarding(Command::new("echo").arg("hello")).expect("it ends");
    assert_eq!(discarding.stdout, "");
}
