//! The figures as tables, and as JSON.

use super::adding::Question;
use super::data::Set;
use super::figures::{Answer, Figures, Measure, Reading, Reads};
use super::pictures;
use crate::report::{Picture, Report, Table, number};
use crate::stats::Latency;
use serde_json::{Value, json};
use std::time::Duration;

/// What Causeway's stores are compared with in a word: Kubo's default, told to sync.
const RIVAL: &str = "kubo-flatfs";

pub fn describe(report: &mut Report, figures: &Figures, pictures: Vec<Picture>) {
    let [causeway, kubo, file_system, seed, rounds] =
        ["causeway", "kubo", "folders", "seed", "rounds"].map(|key| report.fact(key));
    report.paragraph(format!(
        "{} {causeway}; {kubo}. Directories are on {file_system}. Seed {seed}.\nMedians of {rounds} rounds in rotated \
         order.",
        report.measured(),
    ));
    report.paragraph(
        "All stores are given the same directories of incompressible bytes, by `add` of the binary, one process for \
         each directory, offline, with\nCIDv1, raw leaves and blocks of 256 KiB; the CIDs are compared. The start of \
         a process, measured by itself, is subtracted. The content is\nsynced when the process ends, except for \
         `kubo-flatfs-unsynced`: that is how Kubo ships flatfs; for `kubo-flatfs`, `sync` is set.\nCPU is that of the \
         process. Written are the bytes that the kernel wrote for it, by the kernel's count.",
    );
    for note in figures.notes.iter().chain(figures.readings.iter().flat_map(|reading| &reading.notes)) {
        report.item(format!("{note}."));
    }
    in_short(report, figures);
    let mut pictures = pictures.into_iter().peekable();
    let mut section = |report: &mut Report, title: &str, name: &str| {
        report.section(title);
        if let Some(picture) = pictures.next_if(|picture| picture.name == name) {
            report.plot(picture);
        }
    };
    for question in Question::ALL {
        let mut answers = pictures::answers(figures, question).peekable();
        if answers.peek().is_some() {
            section(report, title(question), question.name());
            answers.for_each(|answer| answer_tables(report, figures, answer));
        }
    }
    section(report, "What does it cost to read?", "reading");
    reading_table(report, figures);
}

fn title(question: Question) -> &'static str {
    match question {
        Question::Size => "Does the size of a file matter, below a block and above?",
        Question::Repeat => "Does it cost less to add the same again?",
        Question::Share => "Do files share what they have in common?",
        Question::Diversity => "Does it matter how many different blocks a file has?",
    }
}

/// One line for each store, and one for each of Causeway's beside Kubo's default.
fn in_short(report: &mut Report, figures: &Figures) {
    report.section("In short");
    let columns = in_short_columns(figures);
    let headings = ["store"].into_iter().chain(columns.iter().map(|(heading, _)| heading.as_str()));
    let mut table = Table::new("lr", headings);
    for (store, name) in figures.names.iter().enumerate() {
        table.row([name.clone()].into_iter().chain(columns.iter().map(|(_, values)| number(values[store]))));
    }
    report.table(&table);
    let Some(rival) = figures.names.iter().position(|name| name == RIVAL) else { return };
    for (store, name) in figures.names.iter().enumerate().filter(|(_, name)| name.starts_with("causeway")) {
        let ratios = ratios(figures, store, rival).into_iter().filter(|(_, ratio)| ratio.is_finite());
        let ratios: Vec<String> = ratios.map(|(what, ratio)| format!("{what} {} ×", number(ratio))).collect();
        report.item(format!("`{name}`, how many times as fast as `{RIVAL}`: {}.", ratios.join(", ")));
    }
}

/// Headings, and the figures of all stores.
fn in_short_columns(figures: &Figures) -> Vec<(String, Vec<f64>)> {
    let stores = || 0..figures.names.len();
    let of =
        |answer: &Answer, set, measure| stores().map(|store| figures.figure(answer, store, set, measure)).collect();
    let mut columns: Vec<(String, Vec<f64>)> =
        vec![("start, ms".to_owned(), stores().map(|store| figures.start_millis(store)).collect())];
    let last = |answer: &Answer| answer.sets.len() - 1;
    let share = |answer: &Answer, set: usize, of_set: usize| -> Vec<f64> {
        let figure = |store, set| figures.figure(answer, store, set, Measure::FileMillis);
        stores().map(|store| figure(store, set) / figure(store, of_set)).collect()
    };
    for answer in &figures.questions {
        let (first, end) = (&answer.sets[0].label, &answer.sets[last(answer)].label);
        match answer.question {
            Question::Size => columns.extend([
                (format!("{first}, ms a file"), of(answer, 0, Measure::FileMillis)),
                (format!("{end}, MB/s"), of(answer, last(answer), Measure::Rate)),
                (format!("{first}, × on disk"), of(answer, 0, Measure::Grown)),
            ]),
            Question::Repeat => columns.push((format!("again, {}", answer.heading), share(answer, 1, 0))),
            Question::Share => columns.push((end.clone(), share(answer, last(answer), 0))),
            Question::Diversity => {}
        }
    }
    let readings = |of: fn(&Figures, &Reading) -> f64| figures.readings.iter().map(|one| of(figures, one)).collect();
    let whole = readings(|figures, reading| reading.whole_rate(figures.large_bytes));
    columns.push(("read whole, MB/s".to_owned(), whole));
    columns.push(("read 256 KiB, ms".to_owned(), readings(|_, reading| millis_of(reading.blocks))));
    columns
}

/// How many times as fast one store is as another.
fn ratios(figures: &Figures, store: usize, rival: usize) -> Vec<(String, f64)> {
    let mut all = Vec::new();
    for answer in pictures::answers(figures, Question::Size) {
        for (set, about) in answer.sets.iter().enumerate() {
            let figure = |store| figures.figure(answer, store, set, Measure::FileMillis);
            all.push((about.label.clone(), figure(rival) / figure(store)));
        }
    }
    let [ours, theirs] = [store, rival].map(|store| &figures.readings[store]);
    all.push((
        "reading whole".to_owned(),
        ours.whole_rate(figures.large_bytes) / theirs.whole_rate(figures.large_bytes),
    ));
    all.push(("reading 256 KiB".to_owned(), millis_of(theirs.blocks) / millis_of(ours.blocks)));
    all.push(("reading 1 KiB".to_owned(), millis_of(theirs.small) / millis_of(ours.small)));
    all
}

fn millis_of(reads: Option<Reads>) -> f64 {
    reads.map_or(f64::NAN, |reads| reads.latency.median.as_secs_f64() * 1e3)
}

fn answer_tables(report: &mut Report, figures: &Figures, answer: &Answer) {
    if !answer.heading.is_empty() {
        report.paragraph(format!("{}:", answer.heading));
    }
    let mut pairs = |heading: &str, [one, other]: [Measure; 2]| {
        let labels = answer.sets.iter().map(|set| set.label.as_str());
        let mut table = Table::new("lr", [heading].into_iter().chain(labels));
        for (store, name) in figures.names.iter().enumerate() {
            let figure = |set, measure| number(figures.figure(answer, store, set, measure));
            let cells = (0..answer.sets.len()).map(|set| format!("{} ({})", figure(set, one), figure(set, other)));
            table.row([name.clone()].into_iter().chain(cells));
        }
        report.table(&table);
    };
    pairs("ms a file (of CPU)", [Measure::FileMillis, Measure::FileCpuMillis]);
    if matches!(answer.question, Question::Size | Question::Share) {
        pairs("× the new bytes on disk (written)", [Measure::Grown, Measure::Written]);
    }
}

fn reading_table(report: &mut Report, figures: &Figures) {
    report.paragraph(format!(
        "The content is {}. The large one is read by a process of its own, its start included; blocks are requested \
         over HTTP,\none after the other in random order, with `?format=raw`, and compared. CPU of a block is the \
         server's.",
        figures.read
    ));
    let headings =
        ["store", "whole, MB/s", "CPU ms/MB", "256 KiB, median", "p99", "CPU µs", "1 KiB, median", "p99", "CPU µs"];
    let mut table = Table::new("lr", headings);
    for (name, reading) in figures.names.iter().zip(&figures.readings) {
        let [blocks, small] = [reading.blocks, reading.small].map(reads_cells);
        let whole = [reading.whole_rate(figures.large_bytes), reading.whole_cpu(figures.large_bytes)].map(number);
        table.row([name.clone()].into_iter().chain(whole).chain(blocks).chain(small));
    }
    report.table(&table);
}

fn reads_cells(reads: Option<Reads>) -> [String; 3] {
    let Some(Reads { latency: Latency { median, p99 }, cpu_microseconds, .. }) = reads else {
        return ["–"; 3].map(str::to_owned);
    };
    let millis = |duration: Duration| format!("{:.3} ms", duration.as_secs_f64() * 1e3);
    [millis(median), millis(p99), format!("{cpu_microseconds:.0}")]
}

/// The figures as JSON.
pub fn results(figures: &Figures) -> Value {
    let answer = |answer: &Answer| {
        let sets = (0..answer.sets.len()).map(|set| set_results(figures, answer, set)).collect::<Value>();
        json!({ "question": answer.question.name(), "heading": answer.heading, "sets": sets })
    };
    let reading = |store: usize| {
        let mut reading = json!(figures.readings[store]);
        reading["large_bytes"] = json!(figures.large_bytes);
        reading["whole_megabytes_per_second"] = json!(figures.readings[store].whole_rate(figures.large_bytes));
        reading
    };
    json!({
        "notes": figures.notes,
        "stores": figures.names,
        "starts": by_store(figures, |store| json!(figures.starts[store])),
        "adding": figures.questions.iter().map(answer).collect::<Value>(),
        "reading": by_store(figures, reading),
    })
}

/// A figure for each store, by its name.
fn by_store(figures: &Figures, of: impl Fn(usize) -> Value) -> Value {
    figures.names.iter().enumerate().map(|(store, name)| (name.clone(), of(store))).collect()
}

fn set_results(figures: &Figures, answer: &Answer, set: usize) -> Value {
    let Set { label, files, bytes, new_bytes, .. } = &answer.sets[set];
    let stores = by_store(figures, |store| {
        let figure = |measure| figures.figure(answer, store, set, measure);
        json!({
            "millis_a_file": figure(Measure::FileMillis),
            "cpu_millis_a_file": figure(Measure::FileCpuMillis),
            "megabytes_per_second": figure(Measure::Rate),
            "written_for_each_new": figure(Measure::Written),
            "on_disk_for_each_new": figure(Measure::Grown),
            "rounds": answer.costs[store][set],
        })
    });
    json!({ "label": label, "files": files, "bytes": bytes, "new_bytes": new_bytes, "stores": stores })
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::figures;
    use super::*;

    fn described(figures: &Figures, pictures: Vec<Picture>) -> String {
        let mut report = Report::new(json!({ "date": "today" }), "stores", "A title");
        describe(&mut report, figures, pictures);
        report.markdown().to_owned()
    }

    #[test]
    fn a_table_tells_the_question_and_which_stores_take_no_part() {
        let text = described(&figures(), pictures::all(&figures()).expect("they can be drawn"));
        for part in [
            "- Causeway memory is left out: it is not supported.\n",
            "## Does it cost less to add the same again?\n\n![Adding the same again](today-stores-repeat.svg)\n",
            "| ms a file (of CPU) | first | second |\n|---|--:|--:|\n| Causeway flat | 10.0 (5.00) | 3.00 (1.50) |\n",
            "| × the new bytes on disk (written) | first | second |\n|---|--:|--:|\n| Causeway flat | 2.00 (3.00) | – \
             (–) |\n",
            "| Kubo pebble | 2.10 | 238 | 1.000 ms | 4.000 ms | 70 | – | – | – |\n",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
    }

    #[test]
    fn causeway_is_compared_with_kubo_s_default() {
        let mut figures = figures();
        figures.names = vec!["causeway-rocksdb".to_owned(), RIVAL.to_owned()];
        let line = "- `causeway-rocksdb`, how many times as fast as `kubo-flatfs`: first 2.00 ×, second 2.00 ×, \
                    reading whole 1.00 ×, reading 256 KiB 1.00 ×.\n";
        let text = described(&figures, Vec::new());
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn json_has_the_same() {
        let figures = figures();
        let json = results(&figures);
        let first = &json["adding"][0]["sets"][0]["stores"]["Causeway flat"];
        assert_eq!((&first["millis_a_file"], &first["rounds"][0]["written_bytes"]), (&json!(10.0), &json!(3_000_000)));
        assert_eq!(json["reading"]["Kubo pebble"]["blocks"]["count"], 9);
        assert_eq!(json["reading"]["Kubo pebble"]["blocks"]["median_seconds"], 0.001);
        assert_eq!(json["adding"][3]["question"], "diversity");
    }
}
