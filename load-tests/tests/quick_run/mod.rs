//! A quick benchmark, started from the command line.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The output of a run.
pub struct QuickRun {
    /// Standard output.
    pub stdout: String,
    /// The JSON file, as text and parsed.
    pub text: String,
    pub results: Value,
}

/// Runs a benchmark, beside a real Kubo if it `needs_kubo`, with the binaries that were built with this test.
pub fn quick_run(kind: &str, needs_kubo: bool, args: &[&str]) -> QuickRun {
    let ours = Path::new(env!("CARGO_BIN_EXE_causeway-load-tests"));
    let causeway = ours.with_file_name("causeway");
    assert!(causeway.exists(), "{} is missing. Run `make build` first.", causeway.display());
    let kubo = if needs_kubo { vec!["--kubo".to_owned(), kubo()] } else { Vec::new() };
    let out = tempfile::TempDir::new().expect("the temporary directory is writable");
    let run = Command::new(ours)
        .args([kind, "--quick"])
        .args(args)
        .args(kubo)
        .arg("--causeway")
        .arg(causeway)
        .arg("--out")
        .arg(out.path())
        .output()
        .expect("the benchmark starts");
    let stdout = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{stdout}{}", String::from_utf8_lossy(&run.stderr));

    let files = std::fs::read_dir(out.path()).expect("the directory exists").flatten().map(|entry| entry.path());
    let files: Vec<PathBuf> = files.collect();
    let with = |extension: &str| files.iter().find(|path| path.extension().is_some_and(|it| it == extension));
    assert!(with("md").is_some(), "there is a Markdown file in {files:?}");
    let text = std::fs::read_to_string(with("json").expect("there is a JSON file")).expect("it can be read");
    let results = serde_json::from_str(&text).expect("it is JSON");
    QuickRun { stdout, text, results }
}

/// The path of the real Kubo.
fn kubo() -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/kubo");
    let kubo = Command::new(script).output().expect("scripts/kubo runs");
    assert!(kubo.status.success(), "Kubo is missing. Run `make kubo`: {}", String::from_utf8_lossy(&kubo.stderr));
    String::from_utf8_lossy(&kubo.stdout).trim().to_owned()
}
