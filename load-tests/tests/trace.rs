//! The replay works: both nodes start with their part of the content, every response has the right bytes and a tier,
//! and both files of results are written.

mod quick_run;

use quick_run::{QuickRun, quick_run};

#[test]
fn a_quick_replay_runs_and_writes_its_results() {
    let QuickRun { stdout, text, results } = quick_run("trace", false, &[]);
    let causeway = &results["causeway"];
    assert!(causeway["due"].as_u64().is_some_and(|due| due > 500), "{text}");
    assert_eq!(causeway["all"]["count"], causeway["due"], "{text}");
    assert_eq!(causeway["untold"], 0, "{text}");
    for tier in ["ram", "disk", "network"] {
        assert!(causeway["tiers"][tier]["count"].as_u64().is_some_and(|count| count > 0), "{tier} in {text}");
    }
    assert!(stdout.contains("| nginx cache | paper |"), "{stdout}");
}
