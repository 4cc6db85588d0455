//! Reports: Markdown for people, JSON for comparisons over time, and plots as SVG beside them.

use anyhow::Result;
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::fmt::{Display, Write as _};
use std::path::Path;
use std::time::Duration;

/// A report that is being written.
#[derive(Debug)]
pub struct Report {
    machine: Value,
    /// Of the files, without an extension.
    name: String,
    markdown: String,
    plots: Vec<(String, String)>,
}

/// A plot that belongs to a report.
#[derive(Debug)]
pub struct Picture {
    /// Of the file, after the report's name.
    pub name: &'static str,
    /// The alternative text.
    pub alt: String,
    pub svg: String,
}

/// A Markdown table.
#[derive(Debug)]
pub struct Table(String);

impl Report {
    /// Starts with the title, and a warning if the run was a quick one. Files are named by the machine's date and the
    /// kind.
    pub fn new(machine: Value, kind: &str, title: &str) -> Self {
        let name = format!("{}-{kind}", machine["date"].as_str().unwrap_or("undated"));
        let mut report = Self { machine, name, markdown: String::new(), plots: Vec::new() };
        report.paragraph(format!("# {title}, {}", report.fact("date")));
        if report.machine["quick"] == true {
            report.paragraph("A quick run, which shows that everything works. Its figures mean nothing.");
        }
        report
    }

    /// A fact about the machine or the run.
    pub fn fact(&self, key: &str) -> String {
        self.machine[key].as_str().map_or_else(|| self.machine[key].to_string(), str::to_owned)
    }

    /// By which command the figures were measured, and on what: the beginning of a paragraph.
    pub fn measured(&self) -> String {
        let [command, commit, cores, cpu, memory, kernel] =
            ["command", "commit", "cores", "cpu", "memory_gib", "kernel"].map(|key| self.fact(key));
        format!("Measured by `{command}` at commit {commit}: {cores} cores of {cpu}, {memory} GiB, {kernel}.")
    }

    pub fn section(&mut self, title: &str) {
        self.paragraph(format!("## {title}"));
    }

    pub fn paragraph(&mut self, text: impl Display) {
        if !self.markdown.is_empty() {
            self.markdown.push('\n');
        }
        self.line(text);
    }

    /// An item of a list.
    pub fn item(&mut self, text: impl Display) {
        let continues = self.markdown.lines().last().is_some_and(|line| line.starts_with("- "));
        let text = format!("- {}", text.to_string().replace('\n', " "));
        if continues { self.line(text) } else { self.paragraph(text) }
    }

    pub fn table(&mut self, table: &Table) {
        self.paragraph(table.0.trim_end());
    }

    pub fn plot(&mut self, picture: Picture) {
        let file = format!("{}-{}.svg", self.name, picture.name);
        self.paragraph(format!("![{}]({file})", picture.alt));
        self.plots.push((file, picture.svg));
    }

    pub fn markdown(&self) -> &str {
        &self.markdown
    }

    /// Writes all files into a directory, and the Markdown to standard output.
    pub fn write(&self, dir: &Path, results: &impl Serialize) -> Result<()> {
        #[derive(Serialize)]
        struct Document<'a, T> {
            machine: &'a Value,
            #[serde(flatten)]
            results: &'a T,
        }
        std::fs::create_dir_all(dir)?;
        let json = serde_json::to_string_pretty(&Document { machine: &self.machine, results })? + "\n";
        std::fs::write(dir.join(format!("{}.json", self.name)), json)?;
        for (file, svg) in &self.plots {
            std::fs::write(dir.join(file), svg)?;
        }
        let file = dir.join(format!("{}.md", self.name));
        std::fs::write(&file, &self.markdown)?;
        println!("{}\nWritten to {} and .json beside it.", self.markdown(), file.display());
        Ok(())
    }

    fn line(&mut self, text: impl Display) {
        // Writing to a string does not fail.
        let _ = writeln!(self.markdown, "{text}");
    }
}

impl Table {
    /// Each column is aligned to the left ("l") or to the right ("r"); the last letter stands for all further columns.
    pub fn new<T: Display>(alignment: &str, headings: impl IntoIterator<Item = T>) -> Self {
        let headings: Vec<T> = headings.into_iter().collect();
        let columns = headings.len();
        let mut table = Self(String::new());
        table.row(headings);
        let last = alignment.chars().last();
        let alignments = alignment.chars().chain(std::iter::repeat_with(|| last).flatten()).take(columns);
        let rule: String = alignments.map(|side| if side == 'r' { "--:|" } else { "---|" }).collect();
        table.0 += &format!("|{rule}\n");
        table
    }

    pub fn row<T: Display>(&mut self, cells: impl IntoIterator<Item = T>) {
        let cells: Vec<String> = cells.into_iter().map(|cell| cell.to_string()).collect();
        self.0 += &format!("| {} |\n", cells.join(" | "));
    }
}

/// Three significant digits, more or less; a dash for what is not a number.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => "–".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

pub fn millis(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1e3)
}

/// Serialises a duration as a number of seconds.
pub fn seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn blocks_are_separated_and_lists_are_not() {
        let mut report = Report::new(json!({ "date": "today", "quick": true }), "kind", "A title");
        report.item("one");
        report.item("t\nwo");
        let mut table = Table::new("lr", ["a", "b", "c"]);
        table.row([number(1.0), number(123.4), number(f64::NAN)]);
        report.table(&table);
        report.plot(Picture { name: "plot", alt: "a plot".to_owned(), svg: String::new() });
        let expected = "# A title, today\n\n\
                        A quick run, which shows that everything works. Its figures mean nothing.\n\n\
                        - one\n- t wo\n\n| a | b | c |\n|---|--:|--:|\n| 1.00 | 123 | – |\n\n\
                        ![a plot](today-kind-plot.svg)\n";
        assert_eq!(report.markdown(), expected);
    }

    #[test]
    fn the_files_of_a_report_are_written() {
        let dir = tempfile::TempDir::new().expect("the temporary directory is writable");
        let mut report = Report::new(json!({ "date": "today" }), "kind", "A title");
        report.plot(Picture { name: "plot", alt: String::new(), svg: "<svg/>".to_owned() });
        report.write(dir.path(), &json!({ "rows": [1] })).expect("there is space");
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).expect("it was written");
        let document: Value = serde_json::from_str(&read("today-kind.json")).expect("it is JSON");
        assert_eq!(document, json!({ "machine": { "date": "today" }, "rows": [1] }));
        assert_eq!(
            (read("today-kind.md").as_str(), read("today-kind-plot.svg").as_str()),
            (report.markdown(), "<svg/>")
        );
    }
}
