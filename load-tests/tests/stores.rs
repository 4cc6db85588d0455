//! The datastore benchmark works: every store of this Causeway and every one of Kubo's takes part, has the same CIDs,
//! is read from, and all files of results are written.

mod quick_run;

use quick_run::{QuickRun, quick_run};

const KUBO: [&str; 4] = ["kubo-flatfs", "kubo-flatfs-unsynced", "kubo-pebble", "kubo-leveldb"];

#[test]
fn a_quick_benchmark_is_measured_and_written() {
    let QuickRun { stdout, text, results } = quick_run("stores", true, &[]);
    let stores = results["stores"].as_array().expect("stores are a list");
    let stores: Vec<&str> = stores.iter().filter_map(|store| store.as_str()).collect();
    assert!(stores.contains(&"causeway-rocksdb"), "{text}");
    assert!(KUBO.iter().all(|store| stores.contains(store)), "{text}");
    for question in ["size", "repeat", "share", "diversity"] {
        let adding = results["adding"].as_array().expect("answers are a list");
        let answer = adding.iter().find(|answer| answer["question"] == question).expect("every question is asked");
        for set in answer["sets"].as_array().expect("directories are a list") {
            for store in &stores {
                let rounds = set["stores"][store]["rounds"].as_array().expect("rounds are a list");
                assert!(rounds.iter().all(|cost| cost["wall_seconds"].as_f64() > Some(0.0)), "{store}: {set}");
            }
        }
    }
    for store in KUBO {
        let reading = &results["reading"][store];
        assert!(reading["blocks"]["median_seconds"].as_f64() > Some(0.0), "{store}: {reading}");
        assert!(reading["whole_megabytes_per_second"].as_f64() > Some(0.0), "{store}: {reading}");
    }
    assert!(stdout.contains("-stores-size.svg)") && stdout.contains("## In short"), "{stdout}");
}
