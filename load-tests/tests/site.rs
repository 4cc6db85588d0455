//! The benchmark of a site works: PostgreSQL, HAProxy and all nodes start, respond with the right bytes over their
//! links, and both files of results are written. What a figure is depends on the machine; that it is measured does not.
//! The rows `capacity`, which needs control groups, and `rows`, which takes longer than the others, are left to
//! `make bench-site`.

mod quick_run;

use quick_run::{QuickRun, quick_run};

/// Rows, and how many figures of each are judged.
const ROWS: [(&str, usize); 4] = [("second-read", 8), ("one-fetch", 2), ("kill", 2), ("hot", 1)];

#[test]
fn a_quick_table_is_measured_and_written() {
    let names = ROWS.map(|(name, _)| name).join(",");
    let args = ["--client-delay-ms", "2", "--between-delay-ms", "5", "--rows", &names];
    let QuickRun { stdout, text, results } = quick_run("site", true, &args);
    let rows = results["rows"].as_array().expect("rows are a list");
    assert_eq!(rows.len(), ROWS.len(), "{text}");
    for (row, (name, judged)) in rows.iter().zip(ROWS) {
        assert_eq!(row["row"], name);
        let cases = row["cases"].as_array().expect("a row that was measured has cases");
        let measures = cases.iter().flat_map(|case| case["measures"].as_array().into_iter().flatten());
        let with_bar = measures.filter(|measure| measure["bar"]["met"].is_boolean()).count();
        assert_eq!(with_bar, judged, "{row}");
        for series in cases.iter().flat_map(|case| case["series"].as_array().into_iter().flatten()) {
            assert!(series["median"].as_f64().is_some_and(|median| median > 0.0), "{series} in {row}");
        }
    }
    assert!(stdout.contains("| case | measured | bar | aim |"), "{stdout}");
}
