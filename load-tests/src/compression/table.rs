//! The figures as [`results`].

use super::estimate::Estimated;
use super::{Figures, LEVELS, Method, Options, Row, Took};
use crate::plot::{self, Axis, Marks, Panel, Plot, Scale};
use crate::results::{self, Picture, number};
use anyhow::Result;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Of the files.
const KIND: &str = "compression";

/// Writes all files and returns the path of the Markdown one.
pub fn write(options: &Options, machine: &Value, figures: &Figures) -> Result<PathBuf> {
    let pictures = pictures(figures)?;
    results::write_pictures(&options.run.out, machine, KIND, &pictures)?;
    let markdown = markdown(machine, figures, &pictures)?;
    results::write(&options.run.out, machine, KIND, &markdown, &as_json(machine, figures))
}

/// A line about a row that is done.
pub fn progress(row: &Row) -> String {
    let shares: Vec<String> =
        methods(row).map(|(name, method)| format!("{name} {}", percent(method.stored_bytes, row.bytes))).collect();
    shares.join(", ")
}

/// The methods in the order of all tables and pictures, and what they are called.
fn methods(row: &Row) -> impl Iterator<Item = (String, Method)> {
    let named = |what: &'static str, methods: &[Method]| {
        let all: Vec<_> =
            LEVELS.iter().zip(methods).map(|(level, method)| (format!("{what}, level {level}"), *method)).collect();
        all
    };
    named("blocks", &row.blocks).into_iter().chain(named("whole files", &row.whole))
}

fn markdown(machine: &Value, figures: &Figures, pictures: &[Picture]) -> Result<String> {
    let mut out = String::new();
    let say = |key| results::say(machine, key);
    results::heading(&mut out, machine, "Compression: frames of blocks beside whole files")?;
    writeln!(
        out,
        "{}. {}; zstd. Seed {}.\nMedians of {} rounds; of level {} there is one.\n",
        results::measured(machine),
        say("causeway"),
        say("seed"),
        say("rounds"),
        LEVELS[1],
    )?;
    writeln!(
        out,
        "*Blocks* is what the store does: each block of 256 KiB is a zstd frame of its own if that pays, and the CID is that of the \
         plain content.\nLevel {} is the default; {} stands for `cache.zstd_pinned_level`, which does the same later. *Whole files* \
         is the method of the paper\n\"IPFSz\": the file is compressed before it is cut, in one thread, unless its format is known to \
         be compressed; the CID is another one.\nRatios are to the plain bytes: smaller is better. Sent is the body of an answer to a \
         client that takes zstd.\n",
        LEVELS[0], LEVELS[1],
    )?;
    for note in &figures.notes {
        writeln!(out, "- {note}.")?;
    }
    ratios(&mut out, machine, figures, &pictures[0])?;
    times(&mut out, machine, figures, &pictures[1])?;
    estimates(&mut out, figures)?;
    writeln!(out, "\n## The data\n\n| data | files | bytes | what it is |\n|---|--:|--:|---|")?;
    for Row { name, about, files, bytes, .. } in &figures.rows {
        writeln!(out, "| {name} | {files} | {bytes} | {about} |")?;
    }
    Ok(out)
}

fn ratios(out: &mut String, machine: &Value, figures: &Figures, picture: &Picture) -> Result<()> {
    writeln!(out, "\n## Bytes stored and sent\n")?;
    results::show_picture(out, machine, KIND, picture)?;
    let Some(first) = figures.rows.first() else { return Ok(()) };
    let heads: Vec<String> = methods(first).map(|(name, _)| format!("{name}: stored | sent")).collect();
    writeln!(out, "| data | {} |\n|---|{}", heads.join(" | "), "--:|".repeat(2 * heads.len()))?;
    for row in &figures.rows {
        let cells = methods(row).map(|(_, method)| {
            format!("{} | {}", percent(method.stored_bytes, row.bytes), percent(method.sent_bytes, row.bytes))
        });
        writeln!(out, "| {} | {} |", row.name, cells.collect::<Vec<_>>().join(" | "))?;
    }
    Ok(())
}

fn times(out: &mut String, machine: &Value, figures: &Figures, picture: &Picture) -> Result<()> {
    writeln!(
        out,
        "\n## Time to add\n\nMilliseconds for each megabyte (and of them on a processor), the start of the process included. \
         Hashing alone keeps nothing.\n"
    )?;
    results::show_picture(out, machine, KIND, picture)?;
    let Some(first) = figures.rows.first() else { return Ok(()) };
    let heads: Vec<String> = methods(first).map(|(name, _)| name).collect();
    writeln!(out, "| data | hashing alone | {} |\n|---|{}", heads.join(" | "), "--:|".repeat(heads.len() + 1))?;
    for row in &figures.rows {
        let took = |took: Took| {
            let [wall, cpu] = [took.wall, took.cpu].map(|time| number(time.as_secs_f64() * 1e9 / row.bytes as f64));
            format!("{wall} ({cpu})")
        };
        let cells: Vec<String> =
            [took(row.hashing)].into_iter().chain(methods(row).map(|(_, method)| took(method.added))).collect();
        writeln!(out, "| {} | {} |", row.name, cells.join(" | "))?;
    }
    Ok(())
}

fn estimates(out: &mut String, figures: &Figures) -> Result<()> {
    writeln!(
        out,
        "\n## What the estimate lets go\n\nBefore a block is compressed, a sample of it is. Missed are blocks that a frame would have \
         paid for and that are stored raw, and what of the\ndata that would have saved. The last columns are CPU milliseconds for \
         each megabyte at level {}: with the sample, and of compressing every block.\n",
        LEVELS[0]
    )?;
    writeln!(
        out,
        "| data | blocks | frames | missed | of the bytes | with the sample | every block |\n|---|--:|--:|--:|--:|--:|--:|"
    )?;
    for Row { name, bytes, estimated, .. } in &figures.rows {
        let Estimated { blocks, framed, missed, missed_bytes, encoding, compressing } = estimated;
        let missed_share = percent(*missed_bytes, *bytes);
        let [encoding, compressing] =
            [encoding, compressing].map(|time| number(time.as_secs_f64() * 1e9 / *bytes as f64));
        writeln!(out, "| {name} | {blocks} | {framed} | {missed} | {missed_share} | {encoding} | {compressing} |")?;
    }
    Ok(())
}

fn percent(bytes: u64, of: u64) -> String {
    format!("{:.1} %", bytes as f64 / of.max(1) as f64 * 100.0)
}

fn pictures(figures: &Figures) -> Result<Vec<Picture>> {
    let legend = figures.rows.first().map(|row| methods(row).map(|(name, _)| name).collect()).unwrap_or_default();
    let plot = Plot { title: String::new(), subtitle: String::new(), legend, panels: Vec::new() };
    let bars = |of: &dyn Fn(&Row, Method) -> f64, rows: &[Row]| {
        let by_row: Vec<Vec<f64>> =
            rows.iter().map(|row| methods(row).map(|(_, method)| of(row, method)).collect()).collect();
        Marks::Bars((0..plot.legend.len()).map(|method| by_row.iter().map(|row| row[method]).collect()).collect())
    };
    let panels = |y: &Axis, of: &dyn Fn(&Row, Method) -> f64| {
        let parts = figures.rows.chunks(figures.rows.len().div_ceil(3).max(1));
        let panel = |rows: &[Row]| Panel {
            heading: String::new(),
            x: Axis::new("", Scale::Names(rows.iter().map(|row| row.name.to_owned()).collect())),
            y: y.clone(),
            marks: bars(of, rows),
        };
        parts.map(panel).collect::<Vec<_>>()
    };
    let stored = |row: &Row, method: Method| method.stored_bytes as f64 / row.bytes as f64 * 100.0;
    let cpu = |row: &Row, method: Method| method.added.cpu.as_secs_f64() * 1e9 / row.bytes as f64;
    let picture = |name, title: &str, subtitle: &str, panels| -> Result<Picture> {
        let plot = Plot { title: title.to_owned(), subtitle: subtitle.to_owned(), panels, ..plot.clone() };
        Ok(Picture { name, shows: title.to_owned(), svg: plot::svg(&plot)? })
    };
    Ok(vec![
        picture(
            "stored",
            "What is left of the bytes on disk",
            "Lower is smaller; 100 % is not compressed",
            panels(&Axis::new("% of the bytes", Scale::Linear), &stored),
        )?,
        picture(
            "cpu",
            "Processor time to add",
            "Lower is less. Logarithmic scale",
            panels(&Axis::new("ms a megabyte", Scale::Log), &cpu),
        )?,
    ])
}

fn as_json(machine: &Value, figures: &Figures) -> Value {
    let took = |took: &Took| json!({ "wall_seconds": took.wall.as_secs_f64(), "cpu_seconds": took.cpu.as_secs_f64() });
    let method = |(name, method): (String, Method)| {
        json!({
            "method": name,
            "stored_bytes": method.stored_bytes,
            "sent_bytes": method.sent_bytes,
            "added": took(&method.added),
        })
    };
    let row = |row: &Row| {
        let Estimated { blocks, framed, missed, missed_bytes, encoding, compressing } = row.estimated;
        json!({
            "data": row.name,
            "about": row.about,
            "files": row.files,
            "bytes": row.bytes,
            "hashing": took(&row.hashing),
            "methods": methods(row).map(method).collect::<Vec<_>>(),
            "estimate": {
                "blocks": blocks,
                "framed": framed,
                "missed": missed,
                "missed_bytes": missed_bytes,
                "cpu_seconds": encoding.as_secs_f64(),
                "cpu_seconds_of_every_block": compressing.as_secs_f64(),
            },
        })
    };
    json!({
        "machine": machine,
        "notes": figures.notes,
        "rows": figures.rows.iter().map(row).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn figures() -> Figures {
        let took = |millis| Took { wall: Duration::from_millis(millis * 2), cpu: Duration::from_millis(millis) };
        let method = |stored_bytes| Method { stored_bytes, sent_bytes: stored_bytes + 1_000, added: took(30) };
        let row = |name| Row {
            name,
            about: "words".to_owned(),
            files: 2,
            bytes: 1_000_000,
            hashing: took(5),
            blocks: vec![method(300_000), method(250_000)],
            whole: vec![method(290_000), method(200_000)],
            estimated: Estimated { blocks: 4, framed: 3, missed: 1, missed_bytes: 20_000, ..Estimated::default() },
        };
        Figures { rows: vec![row("text"), row("CSV")], notes: vec!["`licences` is left out".to_owned()] }
    }

    #[test]
    fn every_method_has_its_columns() {
        let pictures = pictures(&figures()).expect("they can be drawn");
        let text = markdown(&json!({ "date": "today" }), &figures(), &pictures).expect("strings grow");
        for part in [
            "- `licences` is left out.\n",
            "![What is left of the bytes on disk](today-compression-stored.svg)\n",
            "| text | 30.0 % | 30.1 % | 25.0 % | 25.1 % | 29.0 % | 29.1 % | 20.0 % | 20.1 % |\n",
            "| CSV | 10.0 (5.00) | 60.0 (30.0) | 60.0 (30.0) | 60.0 (30.0) | 60.0 (30.0) |\n",
            "| text | 4 | 3 | 1 | 2.0 % | 0.000 | 0.000 |\n",
            "| text | 2 | 1000000 | words |\n",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        let svg = &pictures[0].svg;
        assert!(svg.contains("whole files, level 19") && svg.contains("CSV"), "{svg}");
    }

    #[test]
    fn json_has_the_same() {
        let json = as_json(&json!({}), &figures());
        let method = &json["rows"][1]["methods"][3];
        assert_eq!((&method["method"], &method["stored_bytes"]), (&json!("whole files, level 19"), &json!(200_000)));
        assert_eq!(json["rows"][0]["estimate"]["missed"], 1);
    }
}
