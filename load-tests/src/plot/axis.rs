//! An axis: the places of values on it, and its ticks.

use super::Scale;

/// Ticks that fit beside each other.
const TICKS_MAX: f64 = 6.0;

/// An axis with its range. Places on it are what the plotting library is given: numbers or their logarithms.
#[derive(Debug, Clone)]
pub struct Ruler {
    scale: Scale,
    /// The first and the last place.
    pub range: (f64, f64),
    /// Places.
    pub ticks: Vec<f64>,
}

impl Ruler {
    /// An axis that has room for all values.
    pub fn over(scale: &Scale, values: impl Iterator<Item = f64>) -> Self {
        let shown = values.filter(|value| place(scale, *value).is_some());
        let (least, most) =
            shown.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| (least.min(value), most.max(value)));
        let (range, ticks) = match scale {
            Scale::Names(names) => {
                let names = names.len() as f64;
                ((-0.5, names - 0.5), (0..names as usize).map(|name| name as f64).collect())
            }
            Scale::Linear => linear(most),
            Scale::Log => log(least, most),
        };
        Self { scale: scale.clone(), range, ticks }
    }

    /// The place of a value, if the axis has one.
    pub fn place(&self, value: f64) -> Option<f64> {
        place(&self.scale, value)
    }

    /// The label of a place.
    pub fn name(&self, place: f64) -> String {
        match &self.scale {
            Scale::Names(names) => names.get(place.round().max(0.0) as usize).cloned().unwrap_or_default(),
            Scale::Linear => short(place),
            Scale::Log => short(10_f64.powf(place)),
        }
    }
}

fn place(scale: &Scale, value: f64) -> Option<f64> {
    match scale {
        Scale::Names(_) | Scale::Linear => Some(value),
        Scale::Log => (value > 0.0).then(|| value.log10()),
    }
    .filter(|place| place.is_finite())
}

/// From 0 to the first tick that nothing is above.
fn linear(most: f64) -> ((f64, f64), Vec<f64>) {
    let most = if most > 0.0 && most.is_finite() { most } else { 1.0 };
    let step = round_step(most / TICKS_MAX);
    let steps = (most / step).ceil();
    ((0.0, steps * step), (0..=steps as usize).map(|count| count as f64 * step).collect())
}

/// The least of 1, 2 and 5 times a power of ten that is not below `step`.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power).into_iter().find(|round| *round >= step).unwrap_or(step)
}

/// Between ticks: of each power of ten 1, 2 and 5, or 1 alone if there are many.
fn log(least: f64, most: f64) -> ((f64, f64), Vec<f64>) {
    let (least, most) = if least.is_finite() { (least, most) } else { (1.0, 10.0) };
    let digits: &[f64] = if (most / least).log10() > 2.2 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let powers = least.log10().floor() as i32..=most.log10().ceil() as i32;
    let all: Vec<f64> = powers.flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powi(power))).collect();
    // Rounding must not leave a value outside.
    let first = all.iter().rposition(|tick| *tick <= least * (1.0 + 1e-9)).unwrap_or(0);
    let last = all.iter().position(|tick| *tick >= most * (1.0 - 1e-9)).unwrap_or(all.len() - 1).max(first + 1);
    let ticks: Vec<f64> = all[first..=last.min(all.len() - 1)].iter().map(|tick| tick.log10()).collect();
    ((ticks[0], ticks[ticks.len() - 1]), ticks)
}

/// A round number without more digits than it needs.
fn short(value: f64) -> String {
    let size = value.abs();
    let digits = if size >= 1000.0 || size == 0.0 { 0 } else { (3 - size.log10().floor() as i32).clamp(0, 9) as usize };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(scale: &Scale, values: &[f64]) -> Vec<String> {
        let ruler = Ruler::over(scale, values.iter().copied());
        ruler.ticks.iter().map(|place| ruler.name(*place)).collect()
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(names(&Scale::Linear, &[3.0, 117.0]), ["0", "20", "40", "60", "80", "100", "120"]);
        assert_eq!(names(&Scale::Linear, &[0.013]), ["0", "0.005", "0.01", "0.015"]);
        assert_eq!(names(&Scale::Linear, &[f64::NAN]), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(names(&Scale::Log, &[0.3, 12.0]), ["0.2", "0.5", "1", "2", "5", "10", "20"]);
        assert_eq!(names(&Scale::Log, &[0.02, 0.0, 1500.0]), ["0.01", "0.1", "1", "10", "100", "1000", "10000"]);
        assert_eq!(names(&Scale::Log, &[]), ["1", "2", "5", "10"]);
        assert_eq!(names(&Scale::Log, &[5.0]), ["5", "10"]);
        let kinds = Scale::Names(vec!["one".to_owned(), "two".to_owned()]);
        assert_eq!(names(&kinds, &[7.0]), ["one", "two"]);
    }

    proptest! {
        #[test]
        fn every_value_has_its_place_within_the_range(values in prop::collection::vec(1e-6_f64..1e9, 1..20)) {
            for scale in [Scale::Linear, Scale::Log] {
                let ruler = Ruler::over(&scale, values.iter().copied());
                prop_assert!(ruler.ticks.len() >= 2 && ruler.ticks.len() < 20);
                for value in &values {
                    let place = ruler.place(*value).expect("it is a number above 0");
                    let slack = (ruler.range.1 - ruler.range.0) * 1e-6;
                    let range = ruler.range.0 - slack..=ruler.range.1 + slack;
                    prop_assert!(range.contains(&place), "{} in {:?}", value, ruler);
                }
            }
        }
    }
}
