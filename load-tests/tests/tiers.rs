//! The benchmark of the local tiers works: every server starts, responds with the right bytes under load, every store
//! is written to, and both files of results are written.

mod quick_run;

use quick_run::{QuickRun, quick_run};

const ROWS: [&str; 13] = [
    "hot-4k",
    "tls-4k",
    "hot-664k",
    "hot-1m",
    "page-in-500",
    "revalidate-304",
    "disk-664k",
    "flood",
    "memory",
    "zstd-text",
    "write",
    "add",
    "load",
];

#[test]
fn a_quick_table_is_measured_and_written() {
    let QuickRun { stdout, text, results } = quick_run("tiers", true, &[]);
    let rows = results["rows"].as_array().expect("rows are a list");
    let names: Vec<&str> = rows.iter().filter_map(|row| row["row"].as_str()).collect();
    assert_eq!(names, ROWS, "{text}");
    for row in rows {
        let cases = row["cases"].as_array().expect("a row that was measured has cases");
        assert!(!cases.is_empty(), "{row}");
        for case in cases {
            for series in case["series"].as_array().expect("series are a list") {
                assert!(series["median"].as_f64().is_some_and(|median| median > 0.0), "{series} in {case}");
            }
            let measures = case["measures"].as_array().expect("measures are a list");
            assert!(measures.iter().all(|measure| measure["measured"].is_number()), "{case}");
        }
    }
    assert!(stdout.contains("| case | measured | bar | aim |"), "{stdout}");
}
