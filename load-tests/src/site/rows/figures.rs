//! What is measured of sites with more and more rows, as cases: each has a series for each site, and says whether the
//! quantity is flat.

use super::filling::Rows;
use crate::comparison::{Case, Measure, Series, System, Turn, named};
use std::time::Duration;

/// What is flat takes at most so many times as much with all rows as with a hundredth of them.
const FLAT: (&str, f64) = ("flat: 1.5 ×", 1.5);
const MEBIBYTE: f64 = 1_048_576.0;

named! {
    /// A quantity, in the order of the report.
    pub enum Quantity {
        Start = "start of a gateway, until it is ready",
        StartMemory = "memory of a gateway that has started",
        StartPeak = "peak of its memory while it starts",
        WorkMemory = "memory of a gateway after all of the following",
        FirstPage = "100 pins of all owners, the newest",
        MiddlePage = "100 pins of all owners, from the middle",
        LastPage = "100 pins of all owners, the oldest",
        OwnFirstPage = "100 pins of a token by the Pinning Service API, the newest",
        OwnMiddlePage = "100 pins of a token by the Pinning Service API, from the middle",
        OwnLastPage = "100 pins of a token by the Pinning Service API, the oldest",
        LookUp = "256 random blocks are looked up",
        Amounts = "how much the site has",
        Pin = "a new pin of one block that a peer has, until it is pinned",
        Removal = "a pin of 250 blocks is removed, until the response",
        Release = "a pin of 250 blocks is removed, until its blocks are not pinned any more",
        Slot = "one of 256 slots of the storage is compared with the index, for each object in it",
    }
}

/// A site that was measured.
pub struct Site {
    pub system: System,
    pub rows: Rows,
    /// Of all tables, with their indexes.
    pub table_bytes: u64,
}

/// All quantities of all sites.
#[derive(Default)]
pub struct Figures {
    sites: Vec<Site>,
    measured: Vec<(Quantity, &'static str, Vec<Series>)>,
}

impl Figures {
    pub fn add(&mut self, site: Site) {
        self.sites.push(site);
    }

    pub fn time(&mut self, quantity: Quantity, system: System, turn: usize, took: Duration) {
        self.push(quantity, "ms", system, turn, took.as_secs_f64() * 1e3);
    }

    /// The time of so many, as that of each.
    pub fn time_of_each(&mut self, quantity: Quantity, system: System, turn: usize, took: Duration, count: u64) {
        self.push(quantity, "µs", system, turn, took.as_secs_f64() * 1e6 / count as f64);
    }

    pub fn memory(&mut self, quantity: Quantity, system: System, turn: usize, bytes: u64) {
        self.push(quantity, "MiB", system, turn, bytes as f64 / MEBIBYTE);
    }

    fn push(&mut self, quantity: Quantity, unit: &'static str, system: System, turn: usize, value: f64) {
        let at = self.measured.iter().position(|(known, ..)| *known == quantity).unwrap_or_else(|| {
            self.measured.push((quantity, unit, Vec::new()));
            self.measured.len() - 1
        });
        let all = &mut self.measured[at].2;
        let at = all.iter().position(|series| series.system == system).unwrap_or_else(|| {
            eprintln!("  {}, in {unit}:", quantity.name());
            all.push(Series::new(system));
            all.len() - 1
        });
        all[at].push(turn, Turn::from(value));
    }

    /// A case for each quantity, in their order.
    pub fn cases(mut self) -> Vec<Case> {
        self.measured.sort_by_key(|(quantity, ..)| *quantity as usize);
        let notes: Vec<String> = self.sites.iter().map(Site::note).collect();
        let measured = std::mem::take(&mut self.measured);
        let mut cases: Vec<Case> = measured.into_iter().map(|(of, unit, series)| self.case(of, unit, series)).collect();
        if let Some(first) = cases.first_mut() {
            first.notes.extend(notes);
        }
        cases
    }

    fn case(&self, quantity: Quantity, unit: &'static str, series: Vec<Series>) -> Case {
        let case = Case::new(quantity.name(), unit, series);
        let ratio = case.value(System::RowsAll) / case.value(System::RowsHundredth);
        let (text, limit) = FLAT;
        let case = case.measure(Measure::lower(ratio, "× that with a hundredth of the rows").bar(text, limit));
        match quantity {
            Quantity::StartMemory | Quantity::WorkMemory => {
                let bytes = self.bytes_of_a_pin(&case);
                case.measure(Measure::lower(bytes, "bytes for each pin more"))
            }
            _ => case,
        }
    }

    /// What each pin takes, by the difference between most and fewest.
    fn bytes_of_a_pin(&self, case: &Case) -> f64 {
        let pins = |system| self.sites.iter().find(|site| site.system == system).map_or(f64::NAN, Site::pins);
        let (most, fewest) = (System::RowsAll, System::RowsHundredth);
        (case.value(most) - case.value(fewest)) * MEBIBYTE / (pins(most) - pins(fewest))
    }
}

impl Site {
    fn pins(&self) -> f64 {
        self.rows.pins() as f64
    }

    fn note(&self) -> String {
        let (blocks, pins) = (self.rows.blocks, self.rows.pins());
        let mebibytes = self.table_bytes as f64 / MEBIBYTE;
        format!("{}: {blocks} blocks, {pins} pins, tables of {mebibytes:.0} MiB with their indexes", self.system)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_is_not_flat_and_each_pin_takes_its_bytes() {
        let mut figures = Figures::default();
        let sites = [(System::RowsHundredth, 25_000_u64, 10_u64), (System::RowsAll, 2_500_000, 20)];
        for (system, blocks, size) in sites {
            figures.memory(Quantity::StartMemory, system, 0, size << 20);
            figures.time(Quantity::Start, system, 0, Duration::from_millis(1_000 + size));
            figures.add(Site { system, rows: Rows::of(blocks), table_bytes: 5 << 20 });
        }
        let cases = figures.cases();
        assert_eq!(cases.iter().map(|case| case.unit).collect::<Vec<_>>(), ["ms", "MiB"], "in their order");
        let met = |case: &Case| case.measures[0].bar.as_ref().map(|bar| bar.met);
        assert_eq!((met(&cases[0]), met(&cases[1])), (Some(true), Some(false)));
        assert_eq!(cases[1].measures[1].value.round(), (10.0 * MEBIBYTE / 9_900.0).round());
        assert_eq!(cases[0].notes[1], "all rows: 2500000 blocks, 10000 pins, tables of 5 MiB with their indexes");
    }
}
