//! The benchmark of transfers between Causeways works: the sources start behind their links and respond with the right
//! bytes, what this binary does not support is said and fails nothing, and both files of results are written. Rows that
//! need a browser, and the other transport of some, are left to `make bench-transfer`.

mod quick_run;

use quick_run::{QuickRun, quick_run};

const ROWS: [&str; 14] = [
    "ours-tcp",
    "small-quic",
    "page-tcp",
    "deep-quic",
    "text-tcp",
    "text-far",
    "media",
    "text-loopback",
    "upload",
    "space",
    "packed-read",
    "packed-add",
    "car",
    "used-tcp",
];
/// Rows that need what older binaries do not have.
const OPTIONAL: [&str; 7] = ["text-tcp", "text-far", "media", "text-loopback", "upload", "packed-read", "packed-add"];

#[test]
fn a_quick_table_is_measured_and_written() {
    let args = ["--delay-ms", "5", "--far-delay-ms", "20", "--rows", &ROWS.join(",")];
    let QuickRun { stdout, text, results } = quick_run("transfer", true, &args);
    let rows = results["rows"].as_array().expect("rows are a list");
    let names: Vec<&str> = rows.iter().filter_map(|row| row["row"].as_str()).collect();
    assert_eq!(names, ROWS, "{text}");
    for row in rows {
        if row["unsupported"].is_object() {
            assert!(row["row"].as_str().is_some_and(|name| OPTIONAL.contains(&name)), "{row}");
            assert!(row["unsupported"]["bar"].as_str().is_some_and(|bar| !bar.is_empty()), "{row}");
            continue;
        }
        let cases = row["cases"].as_array().expect("a row that was measured has cases");
        let measures = cases.iter().flat_map(|case| case["measures"].as_array().into_iter().flatten());
        for measure in measures {
            assert!(measure["measured"].as_f64().is_some_and(|measured| measured > 0.0), "{measure} in {row}");
            assert!(measure["bar"]["met"].is_boolean(), "{measure} in {row}");
        }
    }
    assert!(stdout.contains("| case | measured | bar | aim |"), "{stdout}");
}
