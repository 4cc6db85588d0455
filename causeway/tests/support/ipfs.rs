//! Kubo's commands on a repository of its own, without a daemon.

use super::kubo::{command, configure, ipfs, run};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A repository, and commands on it. Dropping it deletes it.
pub struct Ipfs {
    ipfs: PathBuf,
    repository: TempDir,
}

impl Ipfs {
    /// A new repository with changed settings.
    pub fn new(set: impl FnOnce(&mut Value)) -> Self {
        let repository = TempDir::with_prefix("causeway-ipfs-").expect("the temporary folder is writable");
        let ipfs = ipfs();
        run(command(&ipfs, repository.path()).args(["init", "--profile=test"]));
        configure(&repository.path().join("config"), &[], set);
        Self { ipfs, repository }
    }

    /// Runs a command in a folder, and returns its output.
    pub fn run(&self, folder: &Path, arguments: &[&str]) -> String {
        run(self.command(folder).args(arguments))
    }

    /// [`Ipfs::run`] with standard input.
    pub fn run_with(&self, folder: &Path, arguments: &[&str], input: &[u8]) -> String {
        let mut command = self.command(folder);
        let (output, text) = super::output_of(command.args(arguments), input);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// A command without arguments.
    pub fn command(&self, folder: &Path) -> Command {
        let mut command = command(&self.ipfs, self.repository.path());
        command.current_dir(folder);
        command
    }
}
