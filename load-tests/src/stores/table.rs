//! The figures as [`results`].

use super::adding::Question;
use super::figures::{Answer, Cost, Figures, Measure, Reads};
use super::{Options, pictures, reading};
use crate::results::{self, Picture, number};
use anyhow::Result;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

/// Of the files.
const KIND: &str = "stores";
/// What Causeway's stores are compared with in a word: the one that Kubo uses unless it is told otherwise, told to sync.
const RIVAL: &str = "kubo-flatfs";

/// Writes all files and returns the path of the Markdown one.
pub fn write(options: &Options, machine: &Value, figures: &Figures) -> Result<PathBuf> {
    let large_bytes = reading::large_bytes(options);
    let pictures = pictures::all(figures, large_bytes)?;
    results::write_pictures(&options.run.out, machine, KIND, &pictures)?;
    let markdown = markdown(machine, figures, large_bytes, &pictures)?;
    results::write(&options.run.out, machine, KIND, &markdown, &as_json(machine, figures, large_bytes))
}

fn markdown(machine: &Value, figures: &Figures, large_bytes: u64, pictures: &[Picture]) -> Result<String> {
    let mut out = String::new();
    let say = |key| results::say(machine, key);
    results::heading(&mut out, machine, "Datastores: Causeway's beside Kubo's")?;
    writeln!(
        out,
        "{}. {}; {}. Folders lie on {}. Seed {}.\nMedians of {} rounds in rotated order.\n",
        results::measured(machine),
        say("causeway"),
        say("kubo"),
        say("folders"),
        say("seed"),
        say("rounds"),
    )?;
    writeln!(
        out,
        "Everybody adds the same folders of made-up bytes that do not shrink, by `add` of the binary, one process for each \
         folder, offline, with\nCIDv1, raw leaves and blocks of 256 KiB; the CIDs are compared. The start of a process, measured by \
         itself, is taken off. What is added is\nsynced when the process ends, except for `kubo-flatfs-unsynced`: that is how Kubo \
         ships flatfs, which `kubo-flatfs` has set to sync.\nCPU is that of the process. Written is what it made the kernel write, \
         by the kernel's count.\n"
    )?;
    for note in figures.notes.iter().chain(figures.readings.iter().flat_map(|reading| &reading.notes)) {
        writeln!(out, "- {note}.")?;
    }
    in_short(&mut out, figures, large_bytes)?;
    for question in Question::ALL {
        let mut answers = pictures::answers(figures, question).peekable();
        if answers.peek().is_some() {
            writeln!(out, "\n## {}\n", asked(question))?;
            show(&mut out, machine, pictures, question.name())?;
            answers.try_for_each(|answer| answer_tables(&mut out, figures, answer))?;
        }
    }
    writeln!(out, "\n## What does it take to read?\n")?;
    show(&mut out, machine, pictures, "reading")?;
    reading_table(&mut out, figures, large_bytes)?;
    Ok(out)
}

fn show(out: &mut String, machine: &Value, pictures: &[Picture], name: &str) -> Result<()> {
    let picture = pictures.iter().find(|picture| picture.name == name);
    picture.map_or(Ok(()), |picture| results::show_picture(out, machine, KIND, picture))
}

fn asked(question: Question) -> &'static str {
    match question {
        Question::Size => "Does the size of a file matter, below a block and above?",
        Question::Repeat => "Does it cost less to add the same again?",
        Question::Share => "Do files share what they have in common?",
        Question::Diversity => "Does it matter how many different blocks a file has?",
    }
}

/// One line for each store, and one for each of Causeway's beside Kubo's default.
fn in_short(out: &mut String, figures: &Figures, large_bytes: u64) -> Result<()> {
    writeln!(out, "\n## In short\n")?;
    let columns = in_short_columns(figures, large_bytes);
    let heads: Vec<&str> = columns.iter().map(|(head, _)| head.as_str()).collect();
    writeln!(out, "| store | {} |\n|---|{}", heads.join(" | "), "--:|".repeat(columns.len()))?;
    for (store, name) in figures.names.iter().enumerate() {
        let cells: Vec<String> = columns.iter().map(|(_, values)| cell(values[store])).collect();
        writeln!(out, "| {name} | {} |", cells.join(" | "))?;
    }
    let Some(rival) = figures.names.iter().position(|name| name == RIVAL) else { return Ok(()) };
    writeln!(out)?;
    for (store, name) in figures.names.iter().enumerate().filter(|(_, name)| name.starts_with("causeway")) {
        let ratios: Vec<String> = ratios(figures, large_bytes, store, rival)
            .into_iter()
            .filter(|(_, ratio)| ratio.is_finite())
            .map(|(what, ratio)| format!("{what} {} ×", number(ratio)))
            .collect();
        writeln!(out, "- `{name}`, how many times as fast as `{RIVAL}`: {}.", ratios.join(", "))?;
    }
    Ok(())
}

/// Heads, and the figures of all stores.
fn in_short_columns(figures: &Figures, large_bytes: u64) -> Vec<(String, Vec<f64>)> {
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
    let reads = |of: &dyn Fn(&super::figures::Reading) -> f64| figures.readings.iter().map(of).collect();
    columns.push(("read whole, MB/s".to_owned(), reads(&|reading| reading.whole_rate(large_bytes))));
    columns.push(("read 256 KiB, ms".to_owned(), reads(&|reading| millis_of(reading.blocks))));
    columns
}

/// How many times as fast one store is as another.
fn ratios(figures: &Figures, large_bytes: u64, store: usize, rival: usize) -> Vec<(String, f64)> {
    let mut all = Vec::new();
    for answer in pictures::answers(figures, Question::Size) {
        for (set, about) in answer.sets.iter().enumerate() {
            let figure = |store| figures.figure(answer, store, set, Measure::FileMillis);
            all.push((about.label.clone(), figure(rival) / figure(store)));
        }
    }
    let [ours, theirs] = [store, rival].map(|store| &figures.readings[store]);
    all.push(("reading whole".to_owned(), ours.whole_rate(large_bytes) / theirs.whole_rate(large_bytes)));
    all.push(("reading 256 KiB".to_owned(), millis_of(theirs.blocks) / millis_of(ours.blocks)));
    all.push(("reading 1 KiB".to_owned(), millis_of(theirs.small) / millis_of(ours.small)));
    all
}

fn millis_of(reads: Option<Reads>) -> f64 {
    reads.map_or(f64::NAN, |reads| reads.median.as_secs_f64() * 1e3)
}

fn answer_tables(out: &mut String, figures: &Figures, answer: &Answer) -> Result<()> {
    if !answer.heading.is_empty() {
        writeln!(out, "{}:\n", answer.heading)?;
    }
    let pair = |store, set, [one, other]: [Measure; 2]| {
        format!(
            "{} ({})",
            cell(figures.figure(answer, store, set, one)),
            cell(figures.figure(answer, store, set, other))
        )
    };
    let times = [Measure::FileMillis, Measure::FileCpuMillis];
    table(out, figures, answer, "ms a file (of CPU)", &|store, set| pair(store, set, times))?;
    if matches!(answer.question, Question::Size | Question::Share) {
        let bytes = [Measure::Grown, Measure::Written];
        table(out, figures, answer, "× the new bytes on disk (written)", &|store, set| pair(store, set, bytes))?;
    }
    Ok(())
}

fn table(
    out: &mut String,
    figures: &Figures,
    answer: &Answer,
    head: &str,
    cell: &dyn Fn(usize, usize) -> String,
) -> Result<()> {
    let labels: Vec<&str> = answer.sets.iter().map(|set| set.label.as_str()).collect();
    writeln!(out, "| {head} | {} |\n|---|{}", labels.join(" | "), "--:|".repeat(labels.len()))?;
    for (store, name) in figures.names.iter().enumerate() {
        let cells: Vec<String> = (0..answer.sets.len()).map(|set| cell(store, set)).collect();
        writeln!(out, "| {name} | {} |", cells.join(" | "))?;
    }
    Ok(writeln!(out)?)
}

fn reading_table(out: &mut String, figures: &Figures, large_bytes: u64) -> Result<()> {
    writeln!(
        out,
        "There is {}. The large one is read by a process of its own, its start included; blocks are asked for over HTTP,\none after \
         the other in random order, with `?format=raw`, and checked. CPU of a block is the server's.\n",
        figures.read
    )?;
    writeln!(
        out,
        "| store | whole, MB/s | CPU ms/MB | 256 KiB, median | p99 | CPU µs | 1 KiB, median | p99 | CPU µs |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|"
    )?;
    for (name, reading) in figures.names.iter().zip(&figures.readings) {
        let [blocks, small] = [reading.blocks, reading.small].map(reads_cells);
        let (rate, cpu) = (cell(reading.whole_rate(large_bytes)), cell(reading.whole_cpu(large_bytes)));
        writeln!(out, "| {name} | {rate} | {cpu} | {blocks} | {small} |")?;
    }
    Ok(())
}

fn reads_cells(reads: Option<Reads>) -> String {
    let Some(Reads { median, p99, cpu_microseconds, .. }) = reads else { return "– | – | –".to_owned() };
    let millis = |duration: Duration| format!("{:.3} ms", duration.as_secs_f64() * 1e3);
    format!("{} | {} | {cpu_microseconds:.0}", millis(median), millis(p99))
}

fn cell(value: f64) -> String {
    if value.is_finite() { number(value) } else { "–".to_owned() }
}

fn as_json(machine: &Value, figures: &Figures, large_bytes: u64) -> Value {
    let cost = |cost: &Cost| {
        json!({
            "wall_seconds": cost.wall.as_secs_f64(),
            "cpu_seconds": cost.cpu.as_secs_f64(),
            "written_bytes": cost.written_bytes,
            "grown_bytes": cost.grown_bytes,
        })
    };
    let costs = |costs: &[Cost]| costs.iter().map(cost).collect::<Vec<Value>>();
    let by_store = |of: &dyn Fn(usize) -> Value| -> Value {
        figures.names.iter().enumerate().map(|(store, name)| (name.clone(), of(store))).collect()
    };
    let set = |answer: &Answer, set: usize| {
        let about = &answer.sets[set];
        let figure = |store, measure| figures.figure(answer, store, set, measure);
        json!({
            "label": about.label,
            "files": about.files,
            "bytes": about.bytes,
            "new_bytes": about.new_bytes,
            "stores": by_store(&|store| json!({
                "millis_a_file": figure(store, Measure::FileMillis),
                "cpu_millis_a_file": figure(store, Measure::FileCpuMillis),
                "megabytes_per_second": figure(store, Measure::Rate),
                "written_for_each_new": figure(store, Measure::Written),
                "on_disk_for_each_new": figure(store, Measure::Grown),
                "rounds": costs(&answer.costs[store][set]),
            })),
        })
    };
    let answer = |answer: &Answer| {
        json!({
            "question": answer.question.name(),
            "heading": answer.heading,
            "sets": (0..answer.sets.len()).map(|index| set(answer, index)).collect::<Vec<_>>(),
        })
    };
    let reads = |reads: Option<Reads>| {
        reads.map(|reads| {
            json!({
                "count": reads.count,
                "median_seconds": reads.median.as_secs_f64(),
                "p99_seconds": reads.p99.as_secs_f64(),
                "cpu_microseconds": reads.cpu_microseconds,
            })
        })
    };
    json!({
        "machine": machine,
        "notes": figures.notes,
        "stores": figures.names,
        "starts": by_store(&|store| json!(costs(&figures.starts[store]))),
        "adding": figures.questions.iter().map(answer).collect::<Vec<_>>(),
        "reading": by_store(&|store| {
            let reading = &figures.readings[store];
            json!({
                "large_bytes": large_bytes,
                "whole": costs(&reading.whole),
                "whole_megabytes_per_second": reading.whole_rate(large_bytes),
                "blocks": reads(reading.blocks),
                "small": reads(reading.small),
                "notes": reading.notes,
            })
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::super::figures::tests::figures;
    use super::*;

    #[test]
    fn a_table_tells_what_was_asked_and_who_took_no_part() {
        let machine = json!({ "date": "today" });
        let pictures = pictures::all(&figures(), 1 << 20).expect("they can be drawn");
        let text = markdown(&machine, &figures(), 1 << 20, &pictures).expect("strings grow");
        for part in [
            "- Causeway memory takes no part: it is not there.\n",
            "## Does it cost less to add the same again?\n\n![Adding the same again](today-stores-repeat.svg)\n",
            "| ms a file (of CPU) | first | second |\n|---|--:|--:|\n| Causeway flat | 10.0 (5.00) | 3.00 (1.50) |\n",
            "| × the new bytes on disk (written) | first | second |\n|---|--:|--:|\n| Causeway flat | 2.00 (3.00) | – (–) |\n",
            "| Kubo pebble | 2.10 | 238 | 1.000 ms | 4.000 ms | 70 | – | – | – |\n",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
    }

    #[test]
    fn causeway_is_compared_with_what_kubo_has_by_default() {
        let mut figures = figures();
        figures.names = vec!["causeway-rocksdb".to_owned(), RIVAL.to_owned()];
        let text = markdown(&json!({}), &figures, 1 << 20, &[]).expect("strings grow");
        let line = "- `causeway-rocksdb`, how many times as fast as `kubo-flatfs`: first 2.00 ×, second 2.00 ×, reading whole 1.00 ×, \
                    reading 256 KiB 1.00 ×.\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn json_has_the_same() {
        let json = as_json(&json!({}), &figures(), 1 << 20);
        let first = &json["adding"][0]["sets"][0]["stores"]["Causeway flat"];
        assert_eq!((&first["millis_a_file"], &first["rounds"][0]["written_bytes"]), (&json!(10.0), &json!(3_000_000)));
        assert_eq!(json["reading"]["Kubo pebble"]["blocks"]["count"], 9);
        assert_eq!(json["adding"][3]["question"], "diversity");
    }
}
