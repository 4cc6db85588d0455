//! [`DnsHook`]: the operator's program that sets TXT records for dns-01.
//!
//! It runs without a shell as `PROGRAM present NAME VALUE` and `PROGRAM cleanup NAME VALUE`, one at a time, with the
//! environment of the gateway but for `CAUSEWAY_*`, which has secrets of its own. It is stopped with its children after
//! [`TIMEOUT`].

use rustix::process::{Pid, Signal, kill_process_group};
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// How long a run may take. Some DNS providers need minutes until all of their servers have a record.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The interval at which a run is checked for its end.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How many bytes of the error output are reported.
const OUTPUT_BYTES_MAX: u64 = 2048;
/// How long the end of the error output is awaited after that of the program: a child of it may keep it open.
const OUTPUT_WAIT: Duration = Duration::from_secs(5);

/// What the program is run for.
#[derive(Debug, Clone, Copy)]
pub(super) enum HookAction {
    /// Sets the record.
    Present,
    /// Removes the record.
    Cleanup,
}

/// The program.
#[derive(Debug)]
pub(super) struct DnsHook {
    program: PathBuf,
    timeout: Duration,
    /// One run at a time: programs for DNS zones often read and write a whole zone.
    running: Mutex<()>,
}

impl DnsHook {
    /// The hook with this program.
    pub fn new(program: PathBuf) -> Self {
        Self { program, timeout: TIMEOUT, running: Mutex::default() }
    }

    /// Runs the program.
    ///
    /// # Errors
    /// A sentence about the cause, when it cannot be run, fails or takes too long.
    pub async fn run(&self, action: HookAction, record: &str, value: &str) -> Result<(), String> {
        let _running = self.running.lock().await;
        let action = match action {
            HookAction::Present => "present",
            HookAction::Cleanup => "cleanup",
        };
        let mut command = Command::new(&self.program);
        command.args([action, record, value]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // A group of its own, so that its children end with it.
        command.process_group(0);
        let own = std::env::vars_os().map(|(name, _)| name);
        own.filter(|name| name.to_string_lossy().starts_with("CAUSEWAY_"))
            .for_each(|name| _ = command.env_remove(name));
        let timeout = self.timeout;
        let run = tokio::task::spawn_blocking(move || run(command, timeout)).await;
        let result = run.unwrap_or_else(|_| Err("it panicked".to_owned()));
        result.map_err(|error| format!("http.acme_dns_hook {} {action}: {error}", self.program.display()))
    }
}

/// Checks that a program can be executed. A name without a folder is searched in `PATH` when it is run.
///
/// # Errors
/// A sentence about the cause.
pub(super) fn check(program: &Path) -> Result<(), String> {
    if program.as_os_str().is_empty() || program.components().count() == 1 {
        return Ok(());
    }
    let found = fs::metadata(program).map_err(|error| format!("{} cannot be used: {error}", program.display()))?;
    match found.is_file() && found.permissions().mode() & 0o111 != 0 {
        true => Ok(()),
        false => Err(format!("{} is not an executable file", program.display())),
    }
}

fn run(mut command: Command, timeout: Duration) -> Result<(), String> {
    let mut child = command.spawn().map_err(|error| format!("it cannot be run: {error}"))?;
    let output = error_output(&mut child);
    let Some(status) = wait(&mut child, timeout) else {
        return Err(format!("it did not end within {} seconds and was stopped", timeout.as_secs()));
    };
    match status.success() {
        true => Ok(()),
        false => {
            let output = output.and_then(|output| output.recv_timeout(OUTPUT_WAIT).ok()).unwrap_or_default();
            let line = output.split_whitespace().collect::<Vec<_>>().join(" ");
            Err(format!("{status}{}{line}", if line.is_empty() { "" } else { ": " }))
        }
    }
}

/// Waits for the end of a program; `None` if it took too long and was stopped.
fn wait(child: &mut Child, timeout: Duration) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if begun.elapsed() < timeout => std::thread::sleep(POLL_INTERVAL),
            // It cannot be waited for, or its time is over.
            _ => break,
        }
    }
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    group.into_iter().for_each(|group| _ = kill_process_group(group, Signal::KILL));
    _ = child.kill();
    _ = child.wait();
    None
}

/// Reads the error output in a thread, up to a limit; the rest is discarded, so that the program can go on.
fn error_output(child: &mut Child) -> Option<mpsc::Receiver<String>> {
    let mut stderr = child.stderr.take()?;
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        _ = stderr.by_ref().take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
        _ = std::io::copy(&mut stderr, &mut std::io::sink());
        _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    Some(receiver)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn hook(dir: &Path, script: &str, timeout: Duration) -> DnsHook {
        let program = dir.join("hook");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("writes");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("sets");
        DnsHook { timeout, ..DnsHook::new(program) }
    }

    #[tokio::test]
    async fn arguments_are_passed_without_a_shell_and_failures_are_reported() {
        let dir = tempfile::tempdir().expect("a folder");
        let log = dir.path().join("log");
        let script = format!(
            "echo \"$#:$1:$2:$3\" >> {}; [ \"$1\" = present ] || {{ echo no such zone >&2; exit 3; }}",
            log.display()
        );
        let hook = hook(dir.path(), &script, PATIENCE);
        hook.run(HookAction::Present, "_acme-challenge.a.example", "$(id) ; x").await.expect("succeeds");
        let error = hook.run(HookAction::Cleanup, "_acme-challenge.a.example", "v").await.expect_err("fails");
        assert!(error.contains("cleanup: exit status: 3: no such zone"), "{error}");
        let lines = fs::read_to_string(log).expect("reads");
        assert_eq!(lines, "3:present:_acme-challenge.a.example:$(id) ; x\n3:cleanup:_acme-challenge.a.example:v\n");
        let missing = DnsHook::new(dir.path().join("missing"));
        let error = missing.run(HookAction::Present, "a", "b").await.expect_err("fails");
        assert!(error.contains("it cannot be run"), "{error}");
    }

    #[test]
    fn a_program_must_be_executable() {
        let dir = tempfile::tempdir().expect("a folder");
        let hook = hook(dir.path(), "true", PATIENCE);
        let text = dir.path().join("text");
        fs::write(&text, "").expect("writes");
        let table = [
            (Path::new(""), true),
            (Path::new("acme-dns-hook"), true),
            (&hook.program, true),
            (&text, false),
            (dir.path(), false),
            (Path::new("/nowhere/hook"), false),
        ];
        for (program, valid) in table {
            assert_eq!(check(program).is_ok(), valid, "{}", program.display());
        }
    }

    #[tokio::test]
    async fn a_program_that_does_not_end_is_stopped_with_its_children() {
        let dir = tempfile::tempdir().expect("a folder");
        let pid = dir.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; wait", pid.display());
        let hook = hook(dir.path(), &script, Duration::from_secs(2));
        let error = hook.run(HookAction::Present, "a", "b").await.expect_err("is stopped");
        assert!(error.contains("did not end within 2 seconds"), "{error}");
        let child = fs::read_to_string(pid).expect("it ran");
        let state = || fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or_default();
        let begun = Instant::now();
        // Gone, or a zombie that its new parent has not waited for.
        while !state().is_empty() && !state().contains(") Z ") {
            assert!(begun.elapsed() < PATIENCE, "{}", state());
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    #[tokio::test]
    async fn much_error_output_neither_blocks_the_program_nor_is_kept() {
        let dir = tempfile::tempdir().expect("a folder");
        let hook = hook(dir.path(), "head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 1", PATIENCE);
        let error = hook.run(HookAction::Present, "a", "b").await.expect_err("fails");
        assert!(error.contains("xxx") && error.len() < 4096, "{}", error.len());
    }
}
