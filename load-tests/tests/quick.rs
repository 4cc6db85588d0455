//! The comparison still works: every server starts, answers the right bytes, and both files of results are written.

mod quick_run;

use quick_run::{QuickRun, quick_run};

#[test]
fn a_quick_comparison_runs_and_writes_its_results() {
    let QuickRun { said, text, results } = quick_run("compare", true, &[]);
    for (kind, rows) in [("hot", 6), ("cold", 5)] {
        assert_eq!(results[kind].as_array().map(Vec::len), Some(rows), "{kind} in {text}");
    }
    assert!(said.contains("| 4 KiB | nginx |"), "{said}");
}
