//! Sets `SOURCE_COMMIT`, the commit that the program is built from.
//!
//! Outside of a Git checkout, as in a container build, the environment may set it; otherwise it stays unset.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=SOURCE_COMMIT");
    if std::env::var("SOURCE_COMMIT").is_ok_and(|commit| !commit.is_empty()) {
        return;
    }
    // The commit has the suffix "-dirty" for changed files, so any change of a source reruns this script.
    for folder in [
        "src",
        "../admin/console",
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
    // Git changes these files with every commit and every switch of branches, also in a linked worktree.
    for file in ["logs/HEAD", "HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]).filter(|path| Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    if let Some(commit) = git(&["describe", "--always", "--exclude=*", "--abbrev=12", "--dirty"]) {
        println!("cargo:rustc-env=SOURCE_COMMIT={commit}");
    }
}

/// The output line of a Git command; `None` without Git or without a checkout.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    let line = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!line.is_empty()).then_some(line)
}
