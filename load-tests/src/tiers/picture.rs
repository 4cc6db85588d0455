//! The measures beside their bars, as a plot.

use crate::comparison::{Measure, Results};
use crate::plot::ratios::{self, Ratio};
use crate::report::{Picture, number};
use anyhow::Result;

/// Everything that has a bar. None if nothing has.
pub fn bars(results: &Results) -> Result<Option<Picture>> {
    let measures = results.cases().flat_map(|case| case.measures.iter().map(|measure| (&case.case, measure)));
    let ratios: Vec<Ratio> = measures.filter_map(|(case, measure)| ratio(case, measure)).collect();
    if ratios.is_empty() {
        return Ok(None);
    }
    let alt = "Content that is stored locally, beside what is required";
    let svg = ratios::svg(alt, "The line is the bar; longer is better", &ratios)?;
    Ok(Some(Picture { name: "bars", alt: alt.to_owned(), svg }))
}

fn ratio(case: &str, measure: &Measure) -> Option<Ratio> {
    let limit = measure.bar.as_ref()?.limit;
    let (of_bar, sign) = if measure.below { (limit / measure.value, "<") } else { (measure.value / limit, "≥") };
    let value = format!("{} ({sign} {limit})", number(measure.value));
    Some(Ratio { name: format!("{case}, {}", measure.unit), of_bar, value })
}

#[test]
fn what_has_a_bar_is_drawn_beside_it() {
    let measures = [
        Measure::higher(3.0, "× Kubo").bar("1.5 ×", 1.5),
        Measure::lower(0.5, "× bytes").bar("fewer", 1.0),
        Measure::higher(1.0, "× nothing"),
    ];
    let ratios = measures.iter().filter_map(|measure| ratio("a case", measure));
    let found: Vec<(String, f64, String)> = ratios.map(|Ratio { name, of_bar, value }| (name, of_bar, value)).collect();
    let expected = [("a case, × Kubo", 2.0, "3.00 (≥ 1.5)"), ("a case, × bytes", 2.0, "0.500 (< 1)")];
    assert_eq!(found, expected.map(|(name, of_bar, value)| (name.to_owned(), of_bar, value.to_owned())));
    assert!(bars(&Results { rows: Vec::new() }).is_ok_and(|picture| picture.is_none()));
}
