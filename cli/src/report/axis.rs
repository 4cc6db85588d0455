//! [`Axis`]: the scale of a chart, its ticks and their labels.

use services::access_log::record::rfc3339;

/// Ticks that fit beside each other.
const TICKS_MAX: f64 = 7.0;

/// How values lie on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// From 0.
    Linear,
    /// By powers of ten. Smaller values than the smallest one above 0 are shown as that.
    Log,
    /// Seconds since the Unix epoch.
    Time,
    /// Shares from 0 to 1.
    Share,
}

/// An axis with its range. Its positions are values, or their logarithms.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    scale: Scale,
    /// The first and the last position.
    pub range: (f64, f64),
    /// Positions.
    pub ticks: Vec<f64>,
}

impl Axis {
    /// An axis with room for all values.
    pub fn over(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let is_shown = |value: &f64| value.is_finite() && (scale != Scale::Log || *value > 0.0);
        let shown = values.filter(is_shown);
        let (least, most) =
            shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)));
        let (range, ticks) = match scale {
            Scale::Linear => linear(most),
            Scale::Share => ((0.0, 1.0), (0..=5).map(|fifth| f64::from(fifth) / 5.0).collect()),
            Scale::Log => log(least, most),
            Scale::Time => time(least, most),
        };
        Self { scale, range, ticks }
    }

    /// The position of a value.
    pub fn position(&self, value: f64) -> f64 {
        let position = if self.scale == Scale::Log { value.max(f64::MIN_POSITIVE).log10() } else { value };
        position.clamp(self.range.0, self.range.1)
    }

    /// The label of a tick.
    pub fn label(&self, position: f64) -> String {
        match self.scale {
            Scale::Linear => short(position),
            Scale::Share => format!("{:.0} %", position * 100.0),
            Scale::Log => short(10_f64.powf(position)),
            Scale::Time => {
                let at = rfc3339((position * 1e6) as i64);
                let (date, clock) = (at.get(5..10).unwrap_or_default(), at.get(11..16).unwrap_or_default());
                // Days if the axis has several.
                if self.range.1 - self.range.0 > 2.0 * 86_400.0 { date.to_owned() } else { clock.to_owned() }
            }
        }
    }
}

/// From 0 to the first tick that nothing is above.
fn linear(most: f64) -> ((f64, f64), Vec<f64>) {
    let most = if most > 0.0 && most.is_finite() { most } else { 1.0 };
    let raw = most / TICKS_MAX;
    let power = 10_f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power).into_iter().find(|step| *step >= raw).unwrap_or(raw);
    let steps = (most / step).ceil();
    ((0.0, steps * step), (0..=steps as usize).map(|count| count as f64 * step).collect())
}

/// Whole powers of ten, of which some are left out if there are many.
fn log(least: f64, most: f64) -> ((f64, f64), Vec<f64>) {
    let (least, most) = if least.is_finite() { (least, most) } else { (1.0, 10.0) };
    let first = least.log10().floor();
    let last = most.log10().ceil().max(first + 1.0);
    let step = ((last - first) / (2.0 * TICKS_MAX)).ceil().max(1.0);
    let count = ((last - first) / step).ceil() as usize;
    let ticks: Vec<f64> = (0..=count).map(|tick| first + tick as f64 * step).collect();
    ((first, ticks.last().copied().unwrap_or(last)), ticks)
}

/// Round times within the range.
fn time(least: f64, most: f64) -> ((f64, f64), Vec<f64>) {
    let (least, most) = if least.is_finite() { (least, most.max(least + 60.0)) } else { (0.0, 60.0) };
    let raw = (most - least) / TICKS_MAX;
    let steps = [10.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 10_800.0, 21_600.0, 43_200.0, 86_400.0];
    // Beyond days, a whole number of them.
    let step = steps.into_iter().find(|step| *step >= raw).unwrap_or((raw / 86_400.0).ceil() * 86_400.0);
    let first = (least / step).ceil();
    let count = ((most / step).floor() - first).clamp(0.0, 2.0 * TICKS_MAX) as usize;
    ((least, most), (0..=count).map(|tick| (first + tick as f64) * step).filter(|tick| *tick <= most).collect())
}

/// A round number without more digits than it needs.
fn short(value: f64) -> String {
    let size = value.abs();
    let (divided, unit) = match size {
        _ if size >= 1e12 => (value / 1e12, "T"),
        _ if size >= 1e9 => (value / 1e9, "G"),
        _ if size >= 1e6 => (value / 1e6, "M"),
        _ if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let size = divided.abs();
    let digits = if size >= 100.0 || size == 0.0 { 0 } else { (2 - size.log10().floor() as i32).clamp(0, 9) as usize };
    let text = format!("{divided:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale, values: &[f64]) -> Vec<String> {
        let axis = Axis::over(scale, values.iter().copied());
        axis.ticks.iter().map(|tick| axis.label(*tick)).collect()
    }

    #[test]
    fn ticks_are_round() {
        let day = 1_795_651_200.0;
        let table: [(Scale, &[f64], &[&str]); 8] = [
            (Scale::Linear, &[0.0, 93.0], &["0", "20", "40", "60", "80", "100"]),
            (Scale::Linear, &[], &["0", "0.2", "0.4", "0.6", "0.8", "1"]),
            (Scale::Share, &[0.3], &["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]),
            (Scale::Log, &[0.002, 0.0, 4.0], &["0.001", "0.01", "0.1", "1", "10"]),
            (Scale::Log, &[1.0, 274_000.0], &["1", "10", "100", "1000", "10k", "100k", "1M"]),
            (Scale::Log, &[], &["1", "10"]),
            (Scale::Time, &[day, day + 86_399.0], &["00:00", "06:00", "12:00", "18:00"]),
            (
                Scale::Time,
                &[day, day + 3.0 * 86_400.0],
                &["11-26", "11-26", "11-27", "11-27", "11-28", "11-28", "11-29"],
            ),
        ];
        for (scale, values, expected) in table {
            assert_eq!(labels(scale, values), expected, "{values:?}");
        }
    }

    #[test]
    fn values_lie_within_the_range() {
        for scale in [Scale::Linear, Scale::Log, Scale::Time, Scale::Share] {
            for values in [vec![], vec![0.0], vec![f64::NAN, 1.0], vec![1e-9, 1e18], vec![5.0, 5.0]] {
                let axis = Axis::over(scale, values.iter().copied());
                assert!(axis.range.0 < axis.range.1 && axis.ticks.len() < 20, "{scale:?} {values:?}: {axis:?}");
                for value in values.into_iter().filter(|value| value.is_finite()) {
                    let position = axis.position(value);
                    assert!((axis.range.0..=axis.range.1).contains(&position), "{scale:?} {value}");
                }
            }
        }
    }
}
