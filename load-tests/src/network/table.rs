//! The table as [`results`].

use super::figures::{Row, Series, Who};
use super::{Options, Outcome};
use crate::goals::Goal;
use crate::median::median;
use crate::results::{self, number};
use anyhow::Result;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;

/// Participants that have a column.
const COLUMNS: [Who; 5] = [Who::Http, Who::Ceiling, Who::Kubo, Who::OneSource, Who::Causeway];

/// Writes both files and returns the path of the Markdown one.
pub fn write(options: &Options, machine: &Value, outcomes: &[Outcome]) -> Result<PathBuf> {
    results::write(&options.run.out, machine, "network", &markdown(machine, outcomes)?, &as_json(machine, outcomes))
}

fn markdown(machine: &Value, outcomes: &[Outcome]) -> Result<String> {
    let mut out = String::new();
    let say = |key| results::say(machine, key);
    results::heading(&mut out, machine, "Misses over a long link")?;
    writeln!(
        out,
        "{}. {}; {}.\nA relay adds {} ms each way; everything shares the machine. Medians of {} rounds (five times as many where a \
         row is cheap), in rotated order.\n",
        results::measured(machine),
        say("causeway"),
        say("kubo"),
        say("delay_ms"),
        say("rounds")
    )?;
    let columns = COLUMNS.map(|who| who.to_string()).join(" | ");
    writeln!(out, "| case | unit | {columns} | measured | bar | aim |")?;
    writeln!(out, "|---|---|{}--:|---|---|", "--:|".repeat(COLUMNS.len()))?;
    for (name, outcome) in outcomes {
        match outcome {
            Ok(row) => line(&mut out, row)?,
            Err(_) => writeln!(out, "| {} |{} failed | | |", name.name(), " |".repeat(COLUMNS.len() + 1))?,
        }
    }
    writeln!(out, "\n## Rounds and remarks\n")?;
    for (name, outcome) in outcomes {
        match outcome {
            Ok(row) => remarks(&mut out, &name.name(), row)?,
            Err(error) => writeln!(out, "- `{}` failed: {}", name.name(), format!("{error:#}").replace('\n', " "))?,
        }
    }
    Ok(out)
}

fn line(out: &mut String, row: &Row) -> Result<()> {
    let median_of = |who: &Who| {
        let series = row.series.iter().find(|series| series.who == *who);
        series.map_or_else(String::new, |series| number(median(series.rounds.iter().copied())))
    };
    let medians = COLUMNS.each_ref().map(median_of).join(" | ");
    let goal = |goal: &Goal| goal.verdict(row.meets(goal));
    let (bar, aim) = (goal(&row.bar), goal(&row.aim));
    let (measured, unit) = (number(row.measured), row.measured_unit);
    Ok(writeln!(out, "| {} | {} | {medians} | {measured} {unit} | {bar} | {aim} |", row.case, row.unit)?)
}

fn remarks(out: &mut String, name: &str, row: &Row) -> Result<()> {
    let rounds = |series: &Series| {
        let figures: Vec<String> = series.rounds.iter().map(|figure| number(*figure)).collect();
        format!("{} {}", series.who, figures.join(", "))
    };
    let rounds: Vec<String> = row.series.iter().map(rounds).collect();
    writeln!(out, "- `{name}` ({}): {}", row.unit, rounds.join("; "))?;
    for note in &row.notes {
        writeln!(out, "  - {note}")?;
    }
    Ok(())
}

fn as_json(machine: &Value, outcomes: &[Outcome]) -> Value {
    let series = |series: &Series| {
        json!({
            "who": series.who.to_string(),
            "median": median(series.rounds.iter().copied()),
            "rounds": series.rounds,
        })
    };
    let row = |(name, outcome): &Outcome| match outcome {
        Ok(row) => json!({
            "row": name.name(),
            "case": row.case,
            "unit": row.unit,
            "series": row.series.iter().map(series).collect::<Vec<_>>(),
            "measured": row.measured,
            "measured_unit": row.measured_unit,
            "bar": { "text": row.bar.text, "limit": row.bar.limit, "met": row.meets(&row.bar) },
            "aim": { "text": row.aim.text, "limit": row.aim.limit, "met": row.meets(&row.aim) },
            "notes": row.notes,
        }),
        Err(error) => json!({ "row": name.name(), "error": format!("{error:#}") }),
    };
    json!({ "machine": machine, "rows": outcomes.iter().map(row).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::super::RowName;
    use super::*;

    #[test]
    fn a_row_says_which_goals_it_meets_and_a_failure_why() {
        let row = Row {
            case: "a case".to_owned(),
            unit: "s",
            series: vec![Series { who: Who::Causeway, rounds: vec![2.0, 1.0, 9.0] }],
            measured: 2.0,
            measured_unit: "s",
            higher_is_better: false,
            bar: Goal::new("2.5 s", 2.5),
            aim: Goal::new("1 s", 1.0),
            notes: vec!["a remark".to_owned()],
        };
        let outcomes = [(RowName::PageTcp, Ok(row)), (RowName::RangeTcp, Err(anyhow::anyhow!("no\nway")))];
        let text = markdown(&json!({ "date": "today" }), &outcomes).expect("strings grow");
        for part in [
            "| a case | s |  |  |  |  | 2.00 | 2.00 s | 2.5 s: met | 1 s: **missed** |",
            "- `page-tcp` (s): Causeway 2.00, 1.00, 9.00\n  - a remark\n",
            "- `range-tcp` failed: no way\n",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
        let json = as_json(&json!({}), &outcomes);
        assert_eq!((&json["rows"][0]["bar"]["met"], &json["rows"][0]["aim"]["met"]), (&json!(true), &json!(false)));
        assert_eq!(json["rows"][1]["error"], "no\nway");
    }
}
