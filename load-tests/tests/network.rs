//! The network benchmark works: every kind of source and client starts behind its link, responds with the right bytes,
//! and both files of results are written. Rows that need a browser, much memory or much time are left to `make
//! bench-network`.

mod quick_run;

use quick_run::{QuickRun, quick_run};

const ROWS: [&str; 6] = ["cold-tcp", "ours-quic", "used-quic", "page-tcp", "loopback-quic", "dht-far"];

#[test]
fn a_quick_table_is_measured_and_written() {
    let args = ["--delay-ms", "5", "--rows", &ROWS.join(",")];
    let QuickRun { stdout, text, results } = quick_run("network", true, &args);
    let rows = results["rows"].as_array().expect("rows are a list");
    let names: Vec<&str> = rows.iter().filter_map(|row| row["row"].as_str()).collect();
    assert_eq!(names, ROWS, "{text}");
    for row in rows {
        let measured = &row["cases"][0]["measures"][0]["measured"];
        assert!(measured.as_f64().is_some_and(|measured| measured > 0.0), "{row}");
    }
    assert!(stdout.contains("| case | measured | bar | aim |"), "{stdout}");
}
