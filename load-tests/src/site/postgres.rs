//! A PostgreSQL server with a cluster of its own, of the version that is installed.
//!
//! Goals: a server as operators run it: commits are synced. It ends with the benchmark, and so does its folder.
//!
//! Non-goals: standbys, other machines.

use crate::child::Process;
use crate::directory::temp_dir;
use crate::servers::free_port;
use crate::timed;
use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::cmp::Ordering;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// The user and the group of the server if this program is run by root, whom PostgreSQL refuses.
const UNPRIVILEGED: u32 = 65534;
/// Eleven connections for each gateway, and more gateways than a machine can run.
const SETTINGS: &str = "fsync = on\nshared_buffers = '64MB'\nmax_connections = 400\nlogging_collector = off\n";

/// A running server.
pub struct Postgres {
    /// With a user that needs no password.
    pub url: String,
    process: Process,
    /// Deleted when the server has ended: fields are dropped in this order.
    _dir: TempDir,
}

impl Postgres {
    pub async fn start() -> Result<Self> {
        Self::start_with("").await
    }

    /// The same with more settings, as lines of its configuration.
    pub async fn start_with(settings: &str) -> Result<Self> {
        let dir = temp_dir("postgres")?;
        if is_root()? {
            std::os::unix::fs::chown(dir.path(), Some(UNPRIVILEGED), Some(UNPRIVILEGED))?;
        }
        let data = dir.path().join("data");
        let mut init = program("initdb")?;
        init.args(["--no-sync", "--auth=trust", "--username=causeway", "--encoding=UTF8", "--no-locale", "-D"]);
        timed::run(init.arg(&data)).context("PostgreSQL; `scripts/install-missing bench` installs it")?;
        let main = data.join("postgresql.conf");
        let text = fs::read_to_string(&main)?;
        fs::write(&main, format!("{text}\n{SETTINGS}{settings}"))?;
        let port = free_port()?;
        let mut server = program("postgres")?;
        server.arg("-D").arg(&data).args(["-h", "127.0.0.1", "-p", &port.to_string(), "-k"]).arg(dir.path());
        let mut process = Process::spawn("postgres", &mut server, dir.path())?;
        process.wait_for("database system is ready to accept connections").await?;
        let url = format!("postgresql://causeway@127.0.0.1:{port}/postgres");
        Ok(Self { url, process, _dir: dir })
    }

    /// Runs a script of `psql`, to its first error, and returns the rows that its statements have returned.
    pub fn script(&self, script: &str) -> Result<String> {
        let dir = temp_dir("script")?;
        let file = dir.path().join("script.sql");
        fs::write(&file, script)?;
        let mut psql = Command::new(path("psql"));
        psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1", "--file"]);
        Ok(timed::run(psql.arg(&file).arg("--dbname").arg(&self.url))?.stdout)
    }

    /// What is installed.
    pub fn version() -> String {
        crate::machine::first_line(&path("postgres").to_string_lossy(), &["--version"])
    }
}

impl Drop for Postgres {
    /// It ends although gateways are connected; SIGTERM would wait for them.
    fn drop(&mut self) {
        if let (Ok(()), Ok(id)) = (self.process.check_running(), i32::try_from(self.process.id())) {
            let _ = kill(Pid::from_raw(id), Signal::SIGINT);
        }
    }
}

/// A program of the server, as a user that may run it.
fn program(name: &str) -> Result<Command> {
    let mut command = Command::new(path(name));
    if is_root()? {
        command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
    }
    Ok(command)
}

/// A program of the latest PostgreSQL that is installed. Debian has them outside of `PATH`.
fn path(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("bin").join(name)).filter(|path| path.exists());
    latest(found.collect()).unwrap_or_else(|| name.into())
}

/// The path with the highest version in `…/VERSION/bin/NAME`.
fn latest(mut found: Vec<PathBuf>) -> Option<PathBuf> {
    let version = |path: &PathBuf| path.iter().rev().nth(2).and_then(|version| version.to_str()?.parse::<f32>().ok());
    found.sort_by(|one, other| version(one).partial_cmp(&version(other)).unwrap_or(Ordering::Equal));
    found.pop()
}

fn is_root() -> Result<bool> {
    Ok(fs::metadata("/proc/self")?.uid() == 0)
}

#[test]
fn the_latest_version_is_used() {
    let paths = ["9.6", "17", "15"].map(|version| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin/initdb")));
    assert_eq!(latest(paths.to_vec()), Some(paths[1].clone()));
    assert_eq!(latest(Vec::new()), None);
}
