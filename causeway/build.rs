//! Tells the program which commit it is built from, as `SOURCE_COMMIT`.
//!
//! Where the sources are no Git checkout, as in a container's build, the environment may say so; otherwise nothing is told.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=SOURCE_COMMIT");
    if std::env::var("SOURCE_COMMIT").is_ok_and(|commit| !commit.is_empty()) {
        return;
    }
    // Whether files were changed is told as well, so that it has to be looked at again when any source changes.
    for folder in [
        "src",
        "../admin/src",
        "../api/src",
        "../cache/src",
        "../cli/src",
        "../config",
        "../content/src",
        "../gateway/src",
        "../p2p-bridge/src",
        "../services/src",
        "../Cargo.lock",
    ] {
        println!("cargo:rerun-if-changed={folder}");
    }
    // What changes with every commit and every switch to another branch, wherever it lies in a linked worktree.
    for file in ["logs/HEAD", "HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    if let Some(commit) = git(&["describe", "--always", "--exclude=*", "--abbrev=12", "--dirty"]) {
        println!("cargo:rustc-env=SOURCE_COMMIT={commit}");
    }
}

/// The only line that Git prints, or `None` when there is no Git or no checkout.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    let line = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!line.is_empty()).then_some(line)
}
