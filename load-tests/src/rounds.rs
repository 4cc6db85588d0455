//! Whose turn it is.

/// Everybody once a round; each round begins with another one. Yields the round and the participant's index.
pub fn rotated(rounds: usize, participants: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rounds).flat_map(move |round| (0..participants).map(move |turn| (round, (round + turn) % participants)))
}

#[test]
fn each_round_begins_with_another_one() {
    let turns: Vec<(usize, usize)> = rotated(3, 2).collect();
    assert_eq!(turns, [(0, 0), (0, 1), (1, 1), (1, 0), (2, 0), (2, 1)]);
    assert_eq!(rotated(3, 0).count(), 0);
}
