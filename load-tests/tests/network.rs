//! The network's table still works: every kind of source and client starts behind its relay, answers the right bytes, and
//! both files of results are written. Rows that need a browser, much memory or much time are left to `make bench-network`.

use std::path::{Path, PathBuf};
use std::process::Command;

const ROWS: [&str; 5] = ["cold-tcp", "ours-quic", "used-quic", "page-tcp", "dht-far"];

#[test]
fn a_quick_table_is_measured_and_written() {
    let ours = Path::new(env!("CARGO_BIN_EXE_causeway-load-tests"));
    let causeway = ours.with_file_name("causeway");
    assert!(causeway.exists(), "{} is missing. Run `make build` first.", causeway.display());
    let kubo = Command::new(root().join("scripts/kubo")).output().expect("scripts/kubo runs");
    assert!(kubo.status.success(), "Kubo is missing. Run `make kubo`: {}", String::from_utf8_lossy(&kubo.stderr));

    let out = tempfile::TempDir::new().expect("the temporary folder is writable");
    let run = Command::new(ours)
        .args(["network", "--quick", "--delay-ms", "5", "--rows", &ROWS.join(",")])
        .args(["--kubo", String::from_utf8_lossy(&kubo.stdout).trim(), "--causeway"])
        .arg(causeway)
        .arg("--out")
        .arg(out.path())
        .output()
        .expect("the measurement starts");
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stderr));

    let mut files = std::fs::read_dir(out.path()).expect("the folder is there").flatten().map(|entry| entry.path());
    let json = files.find(|path| path.extension().is_some_and(|extension| extension == "json"));
    let text = std::fs::read_to_string(json.expect("there is a JSON file")).expect("it can be read");
    let results: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    let rows = results["rows"].as_array().expect("rows are a list");
    let names: Vec<&str> = rows.iter().filter_map(|row| row["row"].as_str()).collect();
    assert_eq!(names, ROWS, "{text}");
    for row in rows {
        assert!(row["measured"].as_f64().is_some_and(|measured| measured > 0.0), "{row}");
    }
    assert!(said.contains("| bar | aim |"), "{said}");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
