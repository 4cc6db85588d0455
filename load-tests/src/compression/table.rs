//! The figures as tables and plots.

use super::estimate::Estimated;
use super::{Figures, LEVELS, Method, Row, Took};
use crate::plot::{Axis, Marks, Panel, Plot, Scale};
use crate::report::{Picture, Report, Table, number, percent};
use anyhow::Result;

pub fn describe(report: &mut Report, figures: &Figures) -> Result<()> {
    let [causeway, seed, rounds] = ["causeway", "seed", "rounds"].map(|key| report.fact(key));
    let (measured, [default, pinned]) = (report.measured(), LEVELS);
    report.paragraph(format!(
        "{measured} {causeway}; zstd. Seed {seed}.\nMedians of {rounds} rounds; of level {pinned} there is one."
    ));
    report.paragraph(format!(
        "*Blocks* is the store's method: each block of 256 KiB is a zstd frame of its own if that saves space, and \
         the CID is that of the plain content.\nLevel {default} is the default; {pinned} stands for \
         `cache.zstd_pinned_level`, which does the same later. *Whole files* is the method of the paper\n\"IPFSz\": \
         the file is compressed before it is chunked, in one thread, unless its format is known to be compressed; the \
         CID is another one.\nRatios are to the plain bytes: smaller is better. Sent is the body of a response to a \
         client that accepts zstd.",
    ));
    figures.notes.iter().for_each(|note| report.item(format!("{note}.")));

    report.section("Bytes stored and sent");
    let title = "Bytes on disk";
    let stored = |row: &Row, method: &Method| method.stored_bytes as f64 / row.bytes as f64 * 100.0;
    let percents = Axis::new("% of the bytes", Scale::Linear);
    report.plot(picture("stored", title, "Lower is smaller; 100 % is not compressed", percents, figures, stored)?);
    report.table(&bytes(figures));

    report.section("Time to add");
    report.paragraph(
        "Milliseconds for each megabyte (and of CPU), the start of the process included. Hashing alone does not store \
         anything.",
    );
    let cpu = |row: &Row, method: &Method| millis_per_megabyte(method.added.cpu, row);
    let millis = Axis::new("ms a megabyte", Scale::Log);
    report.plot(picture("cpu", "CPU time to add", "Lower is less. Logarithmic scale", millis, figures, cpu)?);
    report.table(&times(figures));

    report.section("What the estimate misses");
    report.paragraph(format!(
        "Before a block is compressed, a sample of it is. Missed are blocks that are stored raw although a frame \
         would have saved space, and what of the\ndata that would have saved. The last columns are CPU milliseconds \
         for each megabyte at level {default}: with the sample, and of compressing every block.",
    ));
    report.table(&estimates(figures));

    report.section("The data");
    let mut data = Table::new("lrrl", ["data", "files", "bytes", "what it is"]);
    for Row { name, about, files, bytes, .. } in &figures.rows {
        data.row([name, files.to_string().as_str(), &bytes.to_string(), about]);
    }
    report.table(&data);
    Ok(())
}

/// What all methods are called.
fn names(figures: &Figures) -> impl Iterator<Item = &str> {
    figures.rows.first().into_iter().flat_map(|row| &row.methods).map(|method| method.name.as_str())
}

fn millis_per_megabyte(time: std::time::Duration, row: &Row) -> f64 {
    time.as_secs_f64() * 1e9 / row.bytes as f64
}

fn bytes(figures: &Figures) -> Table {
    let headings = names(figures).flat_map(|name| [format!("{name}: stored"), "sent".to_owned()]);
    let mut table = Table::new("lr", ["data".to_owned()].into_iter().chain(headings));
    for row in &figures.rows {
        let share = |bytes: u64| percent(bytes as f64 / row.bytes.max(1) as f64);
        let cells = row.methods.iter().flat_map(|method| [share(method.stored_bytes), share(method.sent_bytes)]);
        table.row([row.name.to_owned()].into_iter().chain(cells));
    }
    table
}

fn times(figures: &Figures) -> Table {
    let mut table = Table::new("lr", ["data", "hashing alone"].into_iter().chain(names(figures)));
    for row in &figures.rows {
        let all = [&row.hashing].into_iter().chain(row.methods.iter().map(|method| &method.added));
        let cells = all.map(|Took { wall, cpu }| {
            let [wall, cpu] = [wall, cpu].map(|time| number(millis_per_megabyte(*time, row)));
            format!("{wall} ({cpu})")
        });
        table.row([row.name.to_owned()].into_iter().chain(cells));
    }
    table
}

fn estimates(figures: &Figures) -> Table {
    let headings = ["data", "blocks", "frames", "missed", "of the bytes", "with the sample", "every block"];
    let mut table = Table::new("lr", headings);
    for row in &figures.rows {
        let Estimated { blocks, framed, missed, missed_bytes, encoding, compressing } = row.estimated;
        let missed_share = percent(missed_bytes as f64 / row.bytes.max(1) as f64);
        let [encoding, compressing] = [encoding, compressing].map(|time| number(millis_per_megabyte(time, row)));
        let counts = [blocks, framed, missed].map(|count| count.to_string());
        table.row([row.name.to_owned()].into_iter().chain(counts).chain([missed_share, encoding, compressing]));
    }
    table
}

/// Bars for each kind of data, in three panels.
fn picture(
    name: &'static str,
    title: &str,
    subtitle: &str,
    y: Axis,
    figures: &Figures,
    of: impl Fn(&Row, &Method) -> f64,
) -> Result<Picture> {
    let legend: Vec<&str> = names(figures).collect();
    let panel = |rows: &[Row]| {
        let of_method = |method: usize| rows.iter().map(|row| of(row, &row.methods[method])).collect();
        let x = Axis::new("", Scale::names(rows.iter().map(|row| row.name)));
        Panel::new("", x, y.clone(), Marks::Bars((0..legend.len()).map(of_method).collect()))
    };
    let panels = figures.rows.chunks(figures.rows.len().div_ceil(3).max(1)).map(panel).collect();
    Plot::new(title, subtitle, &legend, panels).picture(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    fn figures() -> Figures {
        let took = |millis| Took { wall: Duration::from_millis(millis * 2), cpu: Duration::from_millis(millis) };
        let method = |name: &str, stored_bytes| {
            let sent_bytes = stored_bytes + 1_000;
            Method { name: name.to_owned(), stored_bytes, sent_bytes, added: took(30) }
        };
        let row = |name| Row {
            name,
            about: "words".to_owned(),
            files: 2,
            bytes: 1_000_000,
            hashing: took(5),
            methods: vec![method("blocks, level 3", 300_000), method("whole files, level 19", 200_000)],
            estimated: Estimated { blocks: 4, framed: 3, missed: 1, missed_bytes: 20_000, ..Estimated::default() },
        };
        Figures { rows: vec![row("text"), row("CSV")], notes: vec!["`licences` is left out".to_owned()] }
    }

    #[test]
    fn every_method_has_its_columns() {
        let mut report = Report::new(json!({ "date": "today" }), "compression", "A title");
        describe(&mut report, &figures()).expect("it can be drawn");
        for part in [
            "- `licences` is left out.\n",
            "![Bytes on disk](today-compression-stored.svg)\n",
            "| text | 30.0 % | 30.1 % | 20.0 % | 20.1 % |\n",
            "| CSV | 10.0 (5.00) | 60.0 (30.0) | 60.0 (30.0) |\n",
            "| text | 4 | 3 | 1 | 2.0 % | 0.000 | 0.000 |\n",
            "| text | 2 | 1000000 | words |\n",
        ] {
            assert!(report.markdown().contains(part), "{part:?} in {}", report.markdown());
        }
        let y = Axis::new("", Scale::Linear);
        let svg = picture("stored", "", "", y, &figures(), |_, _| 1.0).expect("it can be drawn").svg;
        assert!(svg.contains("whole files, level 19") && svg.contains("CSV"), "{svg}");
    }

    #[test]
    fn json_has_the_same() {
        let json = serde_json::to_value(figures()).expect("it can be serialised");
        let method = &json["rows"][1]["methods"][1];
        assert_eq!((&method["method"], &method["stored_bytes"]), (&json!("whole files, level 19"), &json!(200_000)));
        assert_eq!(json["rows"][0]["estimate"]["missed"], 1);
        assert_eq!(json["rows"][0]["hashing"]["wall_seconds"], 0.01);
    }
}
