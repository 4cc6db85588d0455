//! The replay still works: both nodes start with their part of the content, every request is answered with the right bytes,
//! the answers say which tier they came from, and both files of results are written.

use std::path::Path;
use std::process::Command;

#[test]
fn a_quick_replay_runs_and_writes_its_results() {
    let ours = Path::new(env!("CARGO_BIN_EXE_causeway-load-tests"));
    let causeway = ours.with_file_name("causeway");
    assert!(causeway.exists(), "{} is missing. Run `make build` first.", causeway.display());
    let out = tempfile::TempDir::new().expect("the temporary folder is writable");
    let run = Command::new(ours)
        .args(["trace", "--quick", "--causeway"])
        .arg(causeway)
        .arg("--out")
        .arg(out.path())
        .output()
        .expect("the replay starts");
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{said}{}", String::from_utf8_lossy(&run.stderr));

    let mut files = std::fs::read_dir(out.path()).expect("the folder is there").flatten().map(|entry| entry.path());
    let json = files.find(|path| path.extension().is_some_and(|extension| extension == "json"));
    let text = std::fs::read_to_string(json.expect("there is a JSON file")).expect("it can be read");
    let results: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    let causeway = &results["causeway"];
    assert!(causeway["due"].as_u64().is_some_and(|due| due > 500), "{text}");
    assert_eq!(causeway["all"]["count"], causeway["due"], "{text}");
    assert_eq!(causeway["untold"], 0, "{text}");
    for tier in ["ram", "disk", "network"] {
        assert!(causeway["tiers"][tier]["count"].as_u64().is_some_and(|count| count > 0), "{tier} in {text}");
    }
    assert!(said.contains("| nginx cache | paper |"), "{said}");
}
