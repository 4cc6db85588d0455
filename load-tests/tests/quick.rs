//! The comparison still works: every node starts, answers the right bytes, and both files of results are written.

mod quick_run;

use quick_run::{QuickRun, quick_run};

#[test]
fn a_quick_comparison_runs_and_writes_its_results() {
    let QuickRun { said, text, results } = quick_run("compare", true, &[]);
    assert_eq!(results["cold"].as_array().map(Vec::len), Some(5), "{text}");
    assert!(said.contains("| Kubo | QUIC |"), "{said}");
}
