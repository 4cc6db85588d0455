//! The comparison still works: every server starts, answers the right bytes, and both files of results are written.

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn a_quick_comparison_runs_and_writes_its_results() {
    let ours = Path::new(env!("CARGO_BIN_EXE_causeway-load-tests"));
    let causeway = ours.with_file_name("causeway");
    assert!(causeway.exists(), "{} is missing. Run `make build` first.", causeway.display());
    let kubo = Command::new(root().join("scripts/kubo")).output().expect("scripts/kubo runs");
    assert!(kubo.status.success(), "Kubo is missing. Run `make kubo`: {}", String::from_utf8_lossy(&kubo.stderr));

    let out = tempfile::TempDir::new().expect("the temporary folder is writable");
    let run = Command::new(ours)
        .args(["compare", "--quick", "--kubo", String::from_utf8_lossy(&kubo.stdout).trim(), "--causeway"])
        .arg(causeway)
        .arg("--out")
        .arg(out.path())
        .output()
        .expect("the comparison starts");
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stderr));

    let mut files = std::fs::read_dir(out.path()).expect("the folder is there").flatten().map(|entry| entry.path());
    let json = files.find(|path| path.extension().is_some_and(|extension| extension == "json"));
    let text = std::fs::read_to_string(json.expect("there is a JSON file")).expect("it can be read");
    let results: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    for (kind, rows) in [("hot", 6), ("cold", 5)] {
        assert_eq!(results[kind].as_array().map(Vec::len), Some(rows), "{kind} in {text}");
    }
    assert!(said.contains("| 4 KiB | nginx |"), "{said}");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
