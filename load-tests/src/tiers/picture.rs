//! The table's ratios as a picture.

use super::Outcome;
use super::figures::{Case, Measure};
use super::table::cases;
use crate::plot::ratios::{self, Ratio};
use crate::results::{Picture, number};
use anyhow::Result;

/// Everything that has a bar to be met. None if nothing has.
pub fn bars(outcomes: &[Outcome]) -> Result<Option<Picture>> {
    let all = outcomes.iter().flat_map(|(_, outcome)| cases(outcome));
    let ratios: Vec<Ratio> =
        all.flat_map(|case| case.measures.iter().filter_map(|measure| ratio(case, measure))).collect();
    if ratios.is_empty() {
        return Ok(None);
    }
    let shows = "What is held here, beside what it has to reach";
    let svg = ratios::svg(shows, "The line is the bar; longer is better", &ratios)?;
    Ok(Some(Picture { name: "bars", shows: shows.to_owned(), svg }))
}

fn ratio(case: &Case, measure: &Measure) -> Option<Ratio> {
    let limit = measure.bar.as_ref()?.limit;
    let (value, below) = (measure.value, measure.below);
    let of_bar = if below { limit / value } else { value / limit };
    let sign = if below { "<" } else { "≥" };
    Some(Ratio {
        name: format!("{}, {}", case.case, measure.unit),
        of_bar,
        value: format!("{} ({sign} {limit})", number(value)),
    })
}

#[test]
fn what_has_a_bar_is_drawn_beside_it() {
    let mut case = Case::new("a case", "requests/s", Vec::new());
    case.measures = vec![
        Measure::of(3.0, "× Kubo").bar("1.5 ×", 1.5),
        Measure::below(0.5, "× bytes").bar("fewer", 1.0),
        Measure::of(1.0, "× nothing"),
    ];
    let found: Vec<(String, f64, String)> = case
        .measures
        .iter()
        .filter_map(|measure| ratio(&case, measure))
        .map(|Ratio { name, of_bar, value }| (name, of_bar, value))
        .collect();
    let expected = [("a case, × Kubo", 2.0, "3.00 (≥ 1.5)"), ("a case, × bytes", 2.0, "0.500 (< 1)")];
    assert_eq!(found, expected.map(|(name, of_bar, value)| (name.to_owned(), of_bar, value.to_owned())));
    assert!(bars(&[]).is_ok_and(|picture| picture.is_none()));
}
