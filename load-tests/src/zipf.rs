//! Zipf's law.

use crate::random::SplitMix;

/// Draws items, of which the one of rank k (from 1) has a probability in proportion to 1 / k.
#[derive(Debug, Clone)]
pub struct Zipf {
    /// Sums of 1 / k up to each rank.
    sums: Vec<f64>,
}

impl Zipf {
    /// At least one item.
    pub fn new(items: usize) -> Self {
        let sum = |sum: &mut f64, rank: usize| {
            *sum += 1.0 / rank as f64;
            Some(*sum)
        };
        Self { sums: (1..=items.max(1)).scan(0.0, sum).collect() }
    }

    /// The next one, counted from 0: the most popular.
    pub fn draw(&self, random: &mut SplitMix) -> usize {
        let all = self.sums.last().copied().unwrap_or_default();
        let point = random.unit() * all;
        // Rounding may lead to the end, behind the last one.
        self.sums.partition_point(|sum| *sum <= point).min(self.sums.len() - 1)
    }
}

#[test]
fn ranks_come_in_proportion_and_from_the_seed() {
    let zipf = Zipf::new(1000);
    let draw = |seed| {
        let mut random = SplitMix::new(seed);
        (0..100_000).map(|_| zipf.draw(&mut random)).collect::<Vec<usize>>()
    };
    let drawn = draw(1);
    let count = |rank| drawn.iter().filter(|index| **index + 1 == rank).count() as f64;
    assert!(drawn.iter().all(|index| *index < 1000));
    assert!((1.9..2.1).contains(&(count(1) / count(2))), "{} and {}", count(1), count(2));
    assert!((8.5..11.5).contains(&(count(1) / count(10))), "{} and {}", count(1), count(10));
    // The sum of 1/k up to 1,000 is 7.485.
    assert!((count(1) / 100_000.0 - 1.0 / 7.485).abs() < 0.005, "{}", count(1));
    assert_eq!(drawn, draw(1));
    assert_ne!(drawn, draw(2));
    assert_eq!(Zipf::new(0).draw(&mut SplitMix::new(1)), 0);
}
