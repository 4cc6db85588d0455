//! Systems that are measured in turn, and how they compare with each other and with goals: what the tables of
//! [`mod@crate::tiers`] and [`mod@crate::network`] are made of.

use crate::report::{Report, Table, millis, number};
use crate::stats::{Latency, median, median_duration, rotated};
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use serde::{Serialize, Serializer};
use std::fmt;
use std::time::Duration;
use tokio::time::timeout;

/// Declares an enum whose variants have names in reports.
macro_rules! named {
    ($(#[$attribute:meta])* pub enum $Name:ident { $($(#[$of_variant:meta])* $Variant:ident = $name:literal,)* }) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $Name {
            $($(#[$of_variant])* $Variant,)*
        }

        impl $Name {
            /// Its name in reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name,)*
                }
            }
        }
    };
}
pub(crate) use named;

/// Declares the rows of a table, in its order: each with its documentation for the command line, and how it is
/// measured.
macro_rules! rows {
    (($options:ident: $Options:ty) -> $Measured:ty; $($(#[$attribute:meta])* $Row:ident => $measure:expr,)*) => {
        /// The rows of the table, in its order.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
        pub enum RowName {
            $($(#[$attribute])* $Row,)*
        }

        impl RowName {
            async fn measure(self, $options: $Options) -> $Measured {
                match self {
                    $(Self::$Row => $measure,)*
                }
            }
        }
    };
}
pub(crate) use rows;

named! {
    /// A system that is measured.
    pub enum System {
        Causeway = "Causeway",
        /// Causeway, with requests for a file by its own CID.
        File = "Causeway, the file",
        /// Causeway, with requests for the same file by a path through a directory.
        ByPath = "Causeway, by path",
        /// Causeway, with requests for it by the directory's subdomain.
        BySubdomain = "Causeway, by subdomain",
        /// Causeway with one source, where it otherwise has several.
        OneSource = "Causeway, one source",
        /// An earlier build of Causeway.
        Earlier = "Causeway, earlier build",
        /// Causeway that receives plain blocks by Bitswap, and compresses them itself.
        Plain = "Causeway, plain",
        /// Causeway's command, where its HTTP interface is measured as well.
        Command = "causeway add",
        /// Causeway with leaves of 1 MiB.
        Wide = "Causeway, 1 MiB leaves",
        /// Causeway while other clients flood it with misses.
        Flooded = "Causeway, flooded with misses",
        /// A Causeway that belongs to no site, where a gateway of a site is measured as well.
        Alone = "Causeway without a site",
        /// A site of one gateway, where sites of several are measured as well.
        SiteOfOne = "site of 1 gateway",
        SiteOfTwo = "site of 2 gateways",
        SiteOfFour = "site of 4 gateways",
        /// A gateway of a site whose database has a hundredth of the rows, where those with more are measured as well.
        RowsHundredth = "a hundredth of the rows",
        RowsTenth = "a tenth of the rows",
        RowsAll = "all rows",
        Kubo = "Kubo",
        /// Kubo with files that are compressed as a whole before they are added: the method of the paper "IPFSz".
        KuboZstd = "Kubo, whole files as zstd",
        Rainbow = "Rainbow",
        /// nginx with `proxy_cache` in front of Kubo.
        NginxCache = "nginx proxy_cache",
        /// nginx that serves files.
        NginxStatic = "nginx static",
        /// Plain HTTP from the source, over the same link: the limit of any fetch.
        Http = "HTTP",
        /// The same over a connection that has carried something before.
        HttpUsed = "HTTP, used connection",
        /// The source's limit: every block requested at once.
        Ceiling = "ceiling",
        /// The disk's limit: a copy that is synced.
        Copy = "synced copy",
        /// The processor's limit: every block hashed, and nothing else.
        Hashing = "hashing alone",
        /// A file that is compressed as a whole.
        WholeFile = "whole file as zstd",
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for System {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// One system's turn in one round.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// In the case's unit.
    pub value: f64,
    /// CPU time of the server, user and kernel, for each request or each block of 256 KiB; not a number if it was not
    /// measured.
    pub cpu_microseconds: f64,
    /// If requests were timed.
    pub latency: Option<Latency>,
}

impl From<f64> for Turn {
    fn from(value: f64) -> Self {
        Self { value, cpu_microseconds: f64::NAN, latency: None }
    }
}

/// One system's turns, in order.
#[derive(Debug, Clone)]
pub struct Series {
    pub system: System,
    pub turns: Vec<Turn>,
}

/// A series as it is reported: medians, and the value of each round.
#[derive(Serialize)]
struct Summary {
    who: System,
    median: f64,
    rounds: Vec<f64>,
    cpu_microseconds: f64,
    #[serde(flatten)]
    latency: Option<Latency>,
}

impl Series {
    pub fn new(system: System) -> Self {
        Self { system, turns: Vec::new() }
    }

    pub fn push(&mut self, round: usize, turn: Turn) {
        eprintln!(
            "  round {}: {} {}, CPU µs {}",
            round + 1,
            self.system,
            number(turn.value),
            number(turn.cpu_microseconds)
        );
        self.turns.push(turn);
    }

    /// The median of the rounds.
    pub fn value(&self) -> f64 {
        median(self.turns.iter().map(|turn| turn.value))
    }

    /// The highest value of any round.
    pub fn highest(&self) -> f64 {
        self.turns.iter().map(|turn| turn.value).fold(f64::NAN, f64::max)
    }

    /// Medians of the rounds' medians and of their 99th percentiles.
    fn latency(&self) -> Option<Latency> {
        let all: Vec<Latency> = self.turns.iter().filter_map(|turn| turn.latency).collect();
        let of = |percentile: fn(&Latency) -> Duration| median_duration(all.iter().map(percentile));
        (!all.is_empty()).then(|| Latency { median: of(|latency| latency.median), p99: of(|latency| latency.p99) })
    }

    /// The median of the CPU times.
    fn cpu_microseconds(&self) -> f64 {
        median(self.turns.iter().map(|turn| turn.cpu_microseconds))
    }

    fn summary(&self) -> Summary {
        Summary {
            who: self.system,
            median: self.value(),
            rounds: self.turns.iter().map(|turn| turn.value).collect(),
            cpu_microseconds: self.cpu_microseconds(),
            latency: self.latency(),
        }
    }
}

impl Serialize for Series {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.summary().serialize(serializer)
    }
}

/// Measures every system once in each round, in rotated order.
pub async fn rounds<T: Into<Turn>>(
    count: usize,
    systems: &[System],
    mut measure: impl AsyncFnMut(System, usize) -> Result<T>,
) -> Result<Vec<Series>> {
    let mut all: Vec<Series> = systems.iter().copied().map(Series::new).collect();
    for (round, index) in rotated(count, systems.len()) {
        let turn = measure(systems[index], round).await.with_context(|| systems[index].to_string())?;
        all[index].push(round, turn.into());
    }
    Ok(all)
}

/// A figure that is judged.
#[derive(Debug, Clone, Serialize)]
pub struct Measure {
    #[serde(rename = "measured")]
    pub value: f64,
    pub unit: String,
    /// Whether the value has to stay below its limits, instead of reaching them.
    pub below: bool,
    /// The requirement.
    pub bar: Option<Goal>,
    /// The target beyond it.
    pub aim: Option<Goal>,
}

/// A limit in words and as a number of the measure's unit.
#[derive(Debug, Clone, Serialize)]
pub struct Goal {
    text: String,
    pub limit: f64,
    pub met: bool,
}

impl Measure {
    /// Higher is better.
    pub fn higher(value: f64, unit: impl Into<String>) -> Self {
        Self { value, unit: unit.into(), below: false, bar: None, aim: None }
    }

    /// Lower is better.
    pub fn lower(value: f64, unit: impl Into<String>) -> Self {
        Self { below: true, ..Self::higher(value, unit) }
    }

    pub fn bar(self, text: impl Into<String>, limit: f64) -> Self {
        Self { bar: Some(self.goal(text, limit)), ..self }
    }

    pub fn aim(self, text: impl Into<String>, limit: f64) -> Self {
        Self { aim: Some(self.goal(text, limit)), ..self }
    }

    /// The value beside its bar and its aim.
    fn verdict(&self) -> String {
        let Self { value, unit, bar, aim, .. } = self;
        let mut text = format!("{} {unit}", number(*value));
        for (what, goal) in [("bar", bar), ("aim", aim)] {
            text += &goal.as_ref().map_or_else(String::new, |goal| format!("; {what} {}", goal.verdict()));
        }
        text
    }

    fn goal(&self, text: impl Into<String>, limit: f64) -> Goal {
        let met = if self.below { self.value < limit } else { self.value >= limit };
        Goal { text: text.into(), limit, met }
    }
}

impl Goal {
    fn verdict(&self) -> String {
        format!("{}: {}", self.text, if self.met { "met" } else { "**missed**" })
    }
}

/// A row cannot be measured, because the binary lacks a feature: no failure.
#[derive(Debug, Clone, Serialize)]
pub struct Unsupported {
    /// What the binary lacks.
    pub feature: String,
    /// What would be required of it, in words.
    pub bar: String,
}

impl Unsupported {
    /// The error of a row that is not measured.
    pub fn error(feature: impl Into<String>, bar: impl Into<String>) -> anyhow::Error {
        Self { feature: feature.into(), bar: bar.into() }.into()
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not supported by this binary", self.feature)
    }
}

impl std::error::Error for Unsupported {}

/// What was measured of one workload.
#[derive(Debug, Clone, Serialize)]
pub struct Case {
    pub case: String,
    /// Of the series.
    pub unit: &'static str,
    pub series: Vec<Series>,
    pub measures: Vec<Measure>,
    pub notes: Vec<String>,
}

impl Case {
    pub fn new(case: impl Into<String>, unit: &'static str, series: Vec<Series>) -> Self {
        Self { case: case.into(), unit, series, measures: Vec::new(), notes: Vec::new() }
    }

    pub fn measure(mut self, measure: Measure) -> Self {
        self.measures.push(measure);
        self
    }

    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    pub fn of(&self, system: System) -> Option<&Series> {
        self.series.iter().find(|series| series.system == system)
    }

    /// The median of a system; not a number if it took no part.
    pub fn value(&self, system: System) -> f64 {
        self.of(system).map_or(f64::NAN, Series::value)
    }

    /// Causeway's median over another system's, where higher is better.
    pub fn against(&self, rival: System) -> Measure {
        Measure::higher(self.value(System::Causeway) / self.value(rival), format!("× {rival}"))
    }

    /// The median of a system's CPU times; not a number if it was not measured.
    pub fn cpu_microseconds(&self, system: System) -> f64 {
        self.of(system).map_or(f64::NAN, Series::cpu_microseconds)
    }

    /// Causeway's CPU time over another system's.
    pub fn cpu_against(&self, rival: System) -> Measure {
        let of = |system| self.cpu_microseconds(system);
        Measure::lower(of(System::Causeway) / of(rival), format!("× the CPU time of {rival}"))
    }
}

/// The rows of a table, each with its outcome.
#[derive(Debug, Serialize)]
pub struct Results {
    pub rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
pub struct Row {
    row: String,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Cases(Vec<Case>),
    Unsupported(Unsupported),
    Error(String),
}

impl Outcome {
    fn of(measured: Result<Vec<Case>>) -> Self {
        match measured {
            Ok(cases) => Self::Cases(cases),
            Err(error) => match error.downcast_ref::<Unsupported>() {
                Some(unsupported) => Self::Unsupported(unsupported.clone()),
                None => Self::Error(format!("{error:#}")),
            },
        }
    }

    /// What is shown while the other rows are measured.
    fn print(&self, row: &str) {
        match self {
            Self::Cases(cases) => {
                for (case, measure) in cases.iter().flat_map(|case| case.measures.iter().map(move |one| (case, one))) {
                    eprintln!("  {}: {}", case.case, measure.verdict());
                }
                eprintln!("{row} done");
            }
            Self::Unsupported(unsupported) => eprintln!("{row}: {unsupported}; bar {}", unsupported.bar),
            Self::Error(error) => eprintln!("{row} failed: {error}"),
        }
    }
}

/// Measures the rows that were chosen, or all of them, one after the other. A failure does not keep the others from
/// being measured.
pub async fn measure<R: ValueEnum + Copy>(
    chosen: &[R],
    row_timeout: Duration,
    row: impl AsyncFn(R) -> Result<Vec<Case>>,
) -> Results {
    let chosen = if chosen.is_empty() { R::value_variants() } else { chosen };
    let mut rows = Vec::new();
    for name in chosen {
        let outcome = timeout(row_timeout, row(*name)).await;
        let outcome = Outcome::of(outcome.with_context(|| format!("not done within {row_timeout:?}")).flatten());
        let row = name.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        outcome.print(&row);
        rows.push(Row { row, outcome });
    }
    Results { rows }
}

impl Results {
    pub fn cases(&self) -> impl Iterator<Item = &Case> {
        self.rows.iter().flat_map(|row| match &row.outcome {
            Outcome::Cases(cases) => cases.as_slice(),
            Outcome::Unsupported(_) | Outcome::Error(_) => &[],
        })
    }

    /// Fails if a row did.
    pub fn check(&self) -> Result<()> {
        let failed = self.rows.iter().filter(|row| matches!(row.outcome, Outcome::Error(_))).count();
        ensure!(failed == 0, "{failed} rows could not be measured");
        Ok(())
    }

    pub fn report(&self, report: &mut Report) {
        report.table(&self.goals());
        report.section("Figures");
        report.paragraph(
            "CPU is the server's own, user and kernel: for each request, or for each block of 256 KiB that is written \
             or fetched.",
        );
        report.table(&self.figures());
        report.section("Remarks");
        for Row { row, outcome } in &self.rows {
            match outcome {
                Outcome::Cases(cases) => {
                    cases.iter().flat_map(|case| &case.notes).for_each(|note| report.item(format!("`{row}`: {note}")));
                }
                Outcome::Unsupported(unsupported) => report.item(format!("`{row}` is not measured: {unsupported}")),
                Outcome::Error(error) => report.item(format!("`{row}` failed: {error}")),
            }
        }
    }

    /// What is judged.
    fn goals(&self) -> Table {
        let mut table = Table::new("lrll", ["case", "measured", "bar", "aim"]);
        for Row { row, outcome } in &self.rows {
            match outcome {
                Outcome::Cases(cases) => {
                    for (case, measure) in
                        cases.iter().flat_map(|case| case.measures.iter().map(move |one| (case, one)))
                    {
                        let Measure { value, unit, bar, aim, .. } = measure;
                        let [bar, aim] =
                            [bar, aim].map(|goal| goal.as_ref().map_or_else(|| "–".to_owned(), Goal::verdict));
                        table.row([case.case.clone(), format!("{} {unit}", number(*value)), bar, aim]);
                    }
                }
                Outcome::Unsupported(Unsupported { bar, .. }) => {
                    table.row([row.as_str(), "not supported by this binary", bar, ""]);
                }
                Outcome::Error(_) => table.row([row.as_str(), "failed", "", ""]),
            }
        }
        table
    }

    /// What every system did.
    fn figures(&self) -> Table {
        let mut table = Table::new("lllrrrrl", ["case", "system", "unit", "median", "CPU µs", "p50", "p99", "rounds"]);
        for (case, series) in self.cases().flat_map(|case| case.series.iter().map(move |series| (case, series))) {
            let Summary { who, median, rounds, cpu_microseconds, latency } = series.summary();
            let [p50, p99] = latency.map_or_else(Default::default, |latency| [latency.median, latency.p99].map(millis));
            let rounds: Vec<String> = rounds.into_iter().map(number).collect();
            let (median, cpu) = (number(median), number(cpu_microseconds));
            table.row([case.case.as_str(), &who.to_string(), case.unit, &median, &cpu, &p50, &p99, &rounds.join(", ")]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn series(system: System, values: &[f64]) -> Series {
        let latency = Latency { median: Duration::from_millis(1), p99: Duration::from_millis(9) };
        let turn = |value: &f64| Turn { value: *value, cpu_microseconds: 12.5, latency: Some(latency) };
        Series { system, turns: values.iter().map(turn).collect() }
    }

    fn results() -> Results {
        let kubo = Series { system: System::Kubo, turns: vec![Turn::from(2.0)] };
        let case = Case::new("a case", "requests/s", vec![series(System::Causeway, &[4.0, 3.0, 2.0]), kubo]);
        let against = case.against(System::Kubo).bar("1.5 ×", 1.5).aim("2 ×", 2.0);
        let case = case.measure(against).measure(Measure::lower(0.5, "× bytes").bar("fewer", 1.0)).note("a remark");
        let row = |row: &str, outcome| Row { row: row.to_owned(), outcome };
        let unsupported = Err(Unsupported::error("`add --packed`", "2 MiB")).context("Causeway");
        let rows = vec![
            row("hot-4k", Outcome::Cases(vec![case])),
            row("load", Outcome::of(Err(anyhow::anyhow!("no\nway")))),
            row("packed", Outcome::of(unsupported)),
        ];
        Results { rows }
    }

    #[test]
    fn ratios_are_of_medians() {
        let all = vec![series(System::Causeway, &[9.0, 3.0, 6.0]), series(System::Kubo, &[2.0])];
        let case = Case::new("a case", "requests/s", all);
        assert_eq!(case.against(System::Kubo).value, 3.0);
        assert!(case.against(System::Copy).value.is_nan() && case.cpu_against(System::Copy).value.is_nan());
        assert_eq!(case.cpu_against(System::Causeway).value, 1.0);
        assert_eq!(case.series[0].highest(), 9.0);
        assert_eq!(Series::new(System::Kubo).latency(), None);
    }

    #[test]
    fn limits_are_reached_or_stayed_below_and_what_is_not_a_number_meets_none() {
        let met = |measure: Measure| [measure.bar, measure.aim].map(|goal| goal.map(|goal| goal.met));
        assert_eq!(met(Measure::higher(1.5, "×").bar("1.5 ×", 1.5).aim("2 ×", 2.0)), [Some(true), Some(false)]);
        assert_eq!(met(Measure::lower(1.0, "×").bar("fewer", 1.0)), [Some(false), None]);
        assert_eq!(met(Measure::lower(0.9, "×").bar("fewer", 1.0)), [Some(true), None]);
        for measure in [Measure::higher(f64::NAN, "×"), Measure::lower(f64::NAN, "×")] {
            assert_eq!(met(measure.bar("1 ×", 1.0)), [Some(false), None]);
        }
    }

    #[tokio::test]
    async fn every_system_has_a_turn_in_rotated_order() {
        use System::{Causeway, Kubo};
        let mut order = Vec::new();
        let measure = async |system, round| {
            order.push(system);
            Ok(round as f64)
        };
        let series = rounds(3, &[Kubo, Causeway], measure).await.expect("nothing fails");
        assert_eq!(order, [Kubo, Causeway, Causeway, Kubo, Kubo, Causeway]);
        assert_eq!(series[0].value(), 1.0);
    }

    #[test]
    fn a_row_says_which_goals_it_meets_and_a_failure_why() {
        let mut report = Report::new(json!({}), "kind", "A title");
        results().report(&mut report);
        for part in [
            "| a case | 1.50 × Kubo | 1.5 ×: met | 2 ×: **missed** |\n",
            "| a case | 0.500 × bytes | fewer: met | – |\n",
            "| load | failed |  |  |\n",
            "| a case | Causeway | requests/s | 3.00 | 12.5 | 1.00 ms | 9.00 ms | 4.00, 3.00, 2.00 |\n",
            "| a case | Kubo | requests/s | 2.00 | – |  |  | 2.00 |\n",
            "| packed | not supported by this binary | 2 MiB |  |\n",
            "- `hot-4k`: a remark\n- `load` failed: no way\n",
            "- `packed` is not measured: `add --packed` is not supported by this binary\n",
        ] {
            assert!(report.markdown().contains(part), "{part:?} in {}", report.markdown());
        }
        assert!(results().check().is_err_and(|error| error.to_string().starts_with("1 rows")));
        let verdict = results().rows.first().and_then(|row| match &row.outcome {
            Outcome::Cases(cases) => Some(cases[0].measures[0].verdict()),
            _ => None,
        });
        assert_eq!(verdict.as_deref(), Some("1.50 × Kubo; bar 1.5 ×: met; aim 2 ×: **missed**"));
    }

    #[test]
    fn json_has_the_same() {
        let json = serde_json::to_value(results()).expect("it can be serialised");
        let case = &json["rows"][0]["cases"][0];
        assert_eq!(
            (&case["measures"][0]["bar"]["met"], &case["measures"][0]["aim"]["met"]),
            (&json!(true), &json!(false))
        );
        assert_eq!(case["measures"][1]["aim"], Value::Null);
        assert_eq!((&case["series"][0]["who"], &case["series"][0]["median"]), (&json!("Causeway"), &json!(3.0)));
        assert_eq!(case["series"][0]["p99_seconds"], json!(0.009));
        assert_eq!(json["rows"][1]["error"], "no\nway");
        assert_eq!(json["rows"][2]["unsupported"]["feature"], "`add --packed`");
    }
}
