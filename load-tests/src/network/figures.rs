//! What a row of the table is made of, whichever row it is.

use crate::goals::Goal;
use crate::median::median;
use crate::rounds::rotated;
use anyhow::Result;
use std::fmt;

/// Who takes part in a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Plain HTTP from the source, over the same relay: the limit.
    Http,
    /// The source, asked for every block at once.
    Ceiling,
    /// Kubo as a client.
    Kubo,
    /// Causeway.
    Causeway,
    /// Causeway with one source where another series has several.
    OneSource,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "HTTP",
            Self::Ceiling => "ceiling",
            Self::Kubo => "Kubo",
            Self::Causeway => "Causeway",
            Self::OneSource => "one source",
        })
    }
}

/// One participant's figure of each round, in order.
#[derive(Debug, Clone)]
pub struct Series {
    pub who: Who,
    pub rounds: Vec<f64>,
}

/// A row that was measured.
#[derive(Debug, Clone)]
pub struct Row {
    pub case: String,
    /// Of the series.
    pub unit: &'static str,
    pub series: Vec<Series>,
    /// What the goals are about, and its unit.
    pub measured: f64,
    pub measured_unit: &'static str,
    pub higher_is_better: bool,
    pub bar: Goal,
    pub aim: Goal,
    pub notes: Vec<String>,
}

impl Row {
    pub fn meets(&self, goal: &Goal) -> bool {
        if self.higher_is_better { self.measured >= goal.limit } else { self.measured <= goal.limit }
    }
}

/// The series of several participants.
#[derive(Debug, Clone)]
pub struct Rounds(pub Vec<Series>);

impl Rounds {
    /// Everybody once a round; each round begins with another one.
    pub async fn measure(
        count: usize,
        who: &[Who],
        mut once: impl AsyncFnMut(Who, usize) -> Result<f64>,
    ) -> Result<Self> {
        let mut all: Vec<Series> = who.iter().map(|who| Series { who: *who, rounds: Vec::new() }).collect();
        for (round, index) in rotated(count, who.len()) {
            let series = &mut all[index];
            let figure = once(series.who, round).await?;
            eprintln!("  round {}: {} {figure:.3}", round + 1, series.who);
            series.rounds.push(figure);
        }
        Ok(Self(all))
    }

    /// Somebody's median.
    pub fn of(&self, who: Who) -> f64 {
        let series = self.0.iter().find(|series| series.who == who);
        median(series.iter().flat_map(|series| series.rounds.iter().copied()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn everybody_has_a_turn_in_rotated_order() {
        let mut order = Vec::new();
        let once = async |who, round| {
            order.push(who);
            Ok(round as f64)
        };
        let rounds = Rounds::measure(3, &[Who::Kubo, Who::Causeway], once).await.expect("nothing fails");
        use Who::{Causeway, Kubo};
        assert_eq!(order, [Kubo, Causeway, Causeway, Kubo, Kubo, Causeway]);
        assert_eq!(rounds.of(Kubo), 1.0);
        assert!(rounds.of(Who::Http).is_nan());
    }
}
