//! The table as [`results`].

use super::figures::{Case, Measure, Series};
use super::{Measured, Options, Outcome, picture};
use crate::goals::Goal;
use crate::results::{self, number};
use anyhow::Result;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

/// Of the files.
const KIND: &str = "tiers";

/// Writes all files and returns the path of the Markdown one.
pub fn write(options: &Options, machine: &Value, outcomes: &[Outcome]) -> Result<PathBuf> {
    let mut markdown = markdown(machine, outcomes)?;
    if let Some(picture) = picture::bars(outcomes)? {
        markdown.push('\n');
        results::show_picture(&mut markdown, machine, KIND, &picture)?;
        results::write_pictures(&options.run.out, machine, KIND, &[picture])?;
    }
    results::write(&options.run.out, machine, KIND, &markdown, &as_json(machine, outcomes))
}

fn markdown(machine: &Value, outcomes: &[Outcome]) -> Result<String> {
    let mut out = String::new();
    let say = |key| results::say(machine, key);
    results::heading(&mut out, machine, "What is held here: Causeway beside nginx and Kubo")?;
    writeln!(
        out,
        "{}. Load generator and servers shared the\nmachine, all on loopback, so that ratios hold better than figures. {}; {}; {}; \
         {}. Medians of {} rounds in\nrotated order (of one where requests are sent in an open loop). Folders lie on {}. Seed {}.\n",
        results::measured(machine),
        say("causeway"),
        say("kubo"),
        say("nginx"),
        say("load_generator"),
        say("rounds"),
        say("folders"),
        say("seed"),
    )?;
    writeln!(out, "| case | measured | bar | aim |\n|---|--:|---|---|")?;
    for (name, outcome) in outcomes {
        match outcome {
            Ok(Measured::Cases(cases)) => cases.iter().try_for_each(|case| verdicts(&mut out, case))?,
            Ok(Measured::Unavailable(_)) => writeln!(out, "| {} | not available | | |", name.name())?,
            Err(_) => writeln!(out, "| {} | failed | | |", name.name())?,
        }
    }
    writeln!(
        out,
        "\n## Figures\n\nCPU is the server's own, user and kernel: for each request, or for each block of 256 KiB that is written.\n"
    )?;
    writeln!(out, "| case | who | unit | median | CPU µs | p50 | p99 | rounds |\n|---|---|---|--:|--:|--:|--:|---|")?;
    for case in outcomes.iter().flat_map(|(_, outcome)| cases(outcome)) {
        case.series.iter().try_for_each(|series| figures(&mut out, case, series))?;
    }
    writeln!(out, "\n## Remarks\n")?;
    for (name, outcome) in outcomes {
        let name = name.name();
        match outcome {
            Ok(Measured::Cases(cases)) => {
                let notes = cases.iter().flat_map(|case| &case.notes);
                notes.into_iter().try_for_each(|note| writeln!(out, "- `{name}`: {note}"))?;
            }
            Ok(Measured::Unavailable(why)) => writeln!(out, "- `{name}` is not available: {why}")?,
            Err(error) => writeln!(out, "- `{name}` failed: {}", format!("{error:#}").replace('\n', " "))?,
        }
    }
    Ok(out)
}

/// What an outcome has to show.
pub fn cases(outcome: &Result<Measured>) -> &[Case] {
    match outcome {
        Ok(Measured::Cases(cases)) => cases,
        Ok(Measured::Unavailable(_)) | Err(_) => &[],
    }
}

fn verdicts(out: &mut String, case: &Case) -> Result<()> {
    for measure in &case.measures {
        let verdict = |goal: &Option<Goal>| {
            goal.as_ref().map_or_else(|| "–".to_owned(), |goal| goal.verdict(measure.meets(goal)))
        };
        let Measure { value, unit, bar, aim, .. } = measure;
        writeln!(out, "| {} | {} {unit} | {} | {} |", case.case, number(*value), verdict(bar), verdict(aim))?;
    }
    Ok(())
}

fn figures(out: &mut String, case: &Case, series: &Series) -> Result<()> {
    let rounds: Vec<String> = series.turns.iter().map(|turn| number(turn.rate)).collect();
    let [p50, p99] = series.latency().map_or_else(Default::default, |latency| latency.map(millis));
    let (who, rate, cpu) = (series.who, number(series.rate()), number(series.cpu_microseconds()));
    let (case, unit, rounds) = (&case.case, case.unit, rounds.join(", "));
    Ok(writeln!(out, "| {case} | {who} | {unit} | {rate} | {cpu} | {p50} | {p99} | {rounds} |")?)
}

fn millis(duration: Duration) -> String {
    format!("{:.2} ms", duration.as_secs_f64() * 1e3)
}

fn as_json(machine: &Value, outcomes: &[Outcome]) -> Value {
    let row = |(name, outcome): &Outcome| match outcome {
        Ok(Measured::Cases(cases)) => {
            json!({ "row": name.name(), "cases": cases.iter().map(case_as_json).collect::<Vec<_>>() })
        }
        Ok(Measured::Unavailable(why)) => json!({ "row": name.name(), "unavailable": why }),
        Err(error) => json!({ "row": name.name(), "error": format!("{error:#}") }),
    };
    json!({ "machine": machine, "rows": outcomes.iter().map(row).collect::<Vec<_>>() })
}

fn case_as_json(case: &Case) -> Value {
    let series = |series: &Series| {
        json!({
            "who": series.who.to_string(),
            "median": series.rate(),
            "rounds": series.turns.iter().map(|turn| turn.rate).collect::<Vec<_>>(),
            "cpu_microseconds": series.cpu_microseconds(),
            "p50_seconds": series.latency().map(|[p50, _]| p50.as_secs_f64()),
            "p99_seconds": series.latency().map(|[_, p99]| p99.as_secs_f64()),
        })
    };
    let measure = |measure: &Measure| {
        let goal = |goal: &Option<Goal>| {
            let goal = goal.as_ref();
            goal.map(|goal| json!({ "text": goal.text, "limit": goal.limit, "met": measure.meets(goal) }))
        };
        json!({
            "measured": measure.value,
            "unit": measure.unit,
            "below": measure.below,
            "bar": goal(&measure.bar),
            "aim": goal(&measure.aim),
        })
    };
    json!({
        "case": case.case,
        "unit": case.unit,
        "series": case.series.iter().map(series).collect::<Vec<_>>(),
        "measures": case.measures.iter().map(measure).collect::<Vec<_>>(),
        "notes": case.notes,
    })
}

#[cfg(test)]
mod tests {
    use super::super::RowName;
    use super::super::figures::{Turn, Who};
    use super::*;

    fn outcomes() -> [Outcome; 3] {
        let latency = Some([1, 9].map(Duration::from_millis));
        let turn = |rate| Turn { rate, cpu_microseconds: 12.5, latency };
        let series = vec![
            Series { who: Who::Causeway, turns: [4.0, 3.0, 2.0].map(turn).to_vec() },
            Series { who: Who::Kubo, turns: vec![Turn { latency: None, ..turn(2.0) }] },
        ];
        let mut case = Case::new("a case", "requests/s", series);
        case.measures = vec![
            case.against(Who::Kubo).bar("1.5 ×", 1.5).aim("2 ×", 2.0),
            Measure::below(0.5, "× bytes").bar("fewer", 1.0),
        ];
        case.notes.push("a remark".to_owned());
        [
            (RowName::Hot4k, Ok(Measured::Cases(vec![case]))),
            (RowName::Add, Ok(Measured::Unavailable("no such command".to_owned()))),
            (RowName::Load, Err(anyhow::anyhow!("no\nway"))),
        ]
    }

    #[test]
    fn a_row_says_which_goals_it_meets_and_why_there_are_no_figures() {
        let text = markdown(&json!({ "date": "today" }), &outcomes()).expect("strings grow");
        for part in [
            "| a case | 1.50 × Kubo | 1.5 ×: met | 2 ×: **missed** |\n",
            "| a case | 0.500 × bytes | fewer: met | – |\n",
            "| add | not available | | |\n| load | failed | | |\n",
            "| a case | Causeway | requests/s | 3.00 | 12.5 | 1.00 ms | 9.00 ms | 4.00, 3.00, 2.00 |\n",
            "| a case | Kubo | requests/s | 2.00 | 12.5 |  |  | 2.00 |\n",
            "- `hot-4k`: a remark\n- `add` is not available: no such command\n- `load` failed: no way\n",
        ] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
    }

    #[test]
    fn json_has_the_same() {
        let json = as_json(&json!({}), &outcomes());
        let case = &json["rows"][0]["cases"][0];
        assert_eq!(case["measures"][0]["bar"]["met"], true);
        assert_eq!(case["measures"][0]["aim"]["met"], false);
        assert_eq!(case["measures"][1]["aim"], Value::Null);
        assert_eq!((&case["series"][0]["median"], &case["series"][0]["cpu_microseconds"]), (&json!(3.0), &json!(12.5)));
        assert_eq!(
            (&json["rows"][1]["unavailable"], &json["rows"][2]["error"]),
            (&json!("no such command"), &json!("no\nway"))
        );
    }
}
