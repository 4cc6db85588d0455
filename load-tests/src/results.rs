//! What was measured, to files: Markdown for people, JSON for comparisons over time. What every kind of results has in common.

use anyhow::Result;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Writes both files into `dir`, named by the machine's date and the kind, and returns the path of the Markdown one.
pub fn write(dir: &Path, machine: &Value, kind: &str, markdown: &str, json: &Value) -> Result<PathBuf> {
    std::fs::create_dir_all(dir)?;
    let name = name(machine, kind);
    let file = dir.join(format!("{name}.md"));
    std::fs::write(&file, markdown)?;
    std::fs::write(dir.join(format!("{name}.json")), serde_json::to_string_pretty(json)? + "\n")?;
    Ok(file)
}

/// A picture that belongs to a table.
pub struct Picture {
    /// Of the file, after what the table's is called.
    pub name: &'static str,
    /// What it shows, for those who do not see it.
    pub shows: String,
    pub svg: String,
}

/// Writes pictures into `dir`, beside the table that they belong to.
pub fn write_pictures(dir: &Path, machine: &Value, kind: &str, pictures: &[Picture]) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    for picture in pictures {
        std::fs::write(dir.join(picture_name(machine, kind, picture)), &picture.svg)?;
    }
    Ok(())
}

/// Shows a picture in the table that it lies beside.
pub fn show_picture(out: &mut String, machine: &Value, kind: &str, picture: &Picture) -> Result<()> {
    Ok(writeln!(out, "![{}]({})\n", picture.shows, picture_name(machine, kind, picture))?)
}

fn picture_name(machine: &Value, kind: &str, picture: &Picture) -> String {
    format!("{}-{}.svg", name(machine, kind), picture.name)
}

fn name(machine: &Value, kind: &str) -> String {
    format!("{}-{kind}", machine["date"].as_str().unwrap_or("undated"))
}

/// The title, and a warning if the run was a quick one.
pub fn heading(out: &mut String, machine: &Value, title: &str) -> Result<()> {
    writeln!(out, "# {title}, {}\n", say(machine, "date"))?;
    if machine["quick"] == true {
        writeln!(out, "A quick run, which shows that everything works. Its figures mean nothing.\n")?;
    }
    Ok(())
}

/// By what the figures were measured, and on what: the beginning of a sentence.
pub fn measured(machine: &Value) -> String {
    let fact = |key| say(machine, key);
    let machine = format!("{} cores of {}, {} GiB, {}", fact("cores"), fact("cpu"), fact("memory_gib"), fact("kernel"));
    format!("Measured by `{}` at commit {}: {machine}", fact("command"), fact("commit"))
}

/// One of the machine's facts as text.
pub fn say(machine: &Value, key: &str) -> String {
    machine[key].as_str().map_or_else(|| machine[key].to_string(), str::to_owned)
}

/// Three significant digits, more or less.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}
