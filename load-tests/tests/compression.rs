//! The compression benchmark works: every kind of data is stored and sent by both methods, is decoded to what it was,
//! and all files of results are written.

mod quick_run;

use quick_run::{QuickRun, quick_run};

#[test]
fn a_quick_benchmark_is_measured_and_written() {
    let QuickRun { stdout, text, results } = quick_run("compression", false, &[]);
    let rows = results["rows"].as_array().expect("rows are a list");
    // Text shrinks by either method, noise by neither.
    for (data, shrinks) in [("text", true), ("CSV", true), ("JSON", true), ("HTML", true), ("random", false)] {
        let row = rows.iter().find(|row| row["data"] == data).expect("every kind is there");
        let bytes = row["bytes"].as_f64().expect("bytes are a number");
        for method in row["methods"].as_array().expect("methods are a list") {
            for what in ["stored_bytes", "sent_bytes"] {
                let share = method[what].as_f64().expect("bytes are a number") / bytes;
                assert!(if shrinks { share < 0.6 } else { (0.99..1.05).contains(&share) }, "{data}: {method}");
            }
        }
    }
    assert!(stdout.contains("-compression-stored.svg)"), "{stdout}");
    assert!(stdout.contains("## What the estimate misses"), "{text}");
}
