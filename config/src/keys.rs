//! The list of keys and of their environment variables, taken from the serialised defaults, so that neither list can
//! miss a setting.

use crate::schema::Config;
use toml::{Table, Value};

/// The prefix of all environment variables of Causeway.
pub const PREFIX: &str = "CAUSEWAY_";

/// The defaults as a tree, which the layers override.
pub(crate) fn default_tree() -> Table {
    Table::try_from(Config::default()).unwrap_or_default()
}

/// Every key, dotted ("http.listen"), with its default.
pub fn all() -> Vec<(String, Value)> {
    let mut keys = Vec::new();
    collect("", &default_tree(), &mut keys);
    keys
}

/// The keys whose values differ between two configurations.
pub fn changed(before: &Config, after: &Config) -> Vec<String> {
    let keys = |config: &Config| {
        let mut keys = Vec::new();
        collect("", &Table::try_from(config).unwrap_or_default(), &mut keys);
        keys
    };
    let differs = |(a, b): &((String, Value), (String, Value))| a.1 != b.1;
    let mut changed: Vec<String> =
        keys(before).into_iter().zip(keys(after)).filter(differs).map(|(a, _)| a.0).collect();
    // Serialised secrets are masked, so the trees do not show a changed one.
    let secrets = [
        ("admin.token", before.admin.token != after.admin.token),
        ("telemetry.otlp_headers", before.telemetry.otlp_headers != after.telemetry.otlp_headers),
        ("site.database", before.site.database != after.site.database),
    ];
    for (key, _) in secrets.into_iter().filter(|(_, differs)| *differs) {
        if !changed.iter().any(|known| known == key) {
            changed.push(key.to_owned());
        }
    }
    changed
}

fn collect(prefix: &str, table: &Table, keys: &mut Vec<(String, Value)>) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        match value {
            Value::Table(section) => collect(&key, section, keys),
            leaf => keys.push((key, leaf.clone())),
        }
    }
}

/// The environment variable of a key: "http.listen" is `CAUSEWAY_HTTP_LISTEN`.
pub fn variable(key: &str) -> String {
    format!("{PREFIX}{}", key.replace('.', "_").to_ascii_uppercase())
}

/// Replaces the value of a dotted key that exists in the tree.
pub(crate) fn set(tree: &mut Table, key: &str, value: Value) {
    let mut table = tree;
    let mut names = key.split('.').peekable();
    while let Some(name) = names.next() {
        if names.peek().is_none() {
            table.insert(name.to_owned(), value);
            return;
        }
        let Some(Value::Table(section)) = table.get_mut(name) else { return };
        table = section;
    }
}

/// The candidate that is the fewest edits away.
pub(crate) fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    candidates.min_by_key(|candidate| distance(name, candidate))
}

/// Levenshtein's distance, row by row.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, y) in b.chars().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_key_has_a_variable_of_its_own() {
        let keys = all();
        assert!(keys.len() > 20, "{keys:?}");
        let variables: HashSet<String> = keys.iter().map(|(key, _)| variable(key)).collect();
        assert_eq!(variables.len(), keys.len());
        assert!(variables.contains("CAUSEWAY_HTTP_STALL_TIMEOUT_SECONDS"), "{variables:?}");
    }

    #[test]
    fn the_nearest_name_is_the_fewest_edits_away() {
        let names = ["http.listen", "admin.listen", "p2p.listen"];
        for (typed, expected) in
            [("http.listn", "http.listen"), ("p2p.listens", "p2p.listen"), ("listen", "p2p.listen")]
        {
            assert_eq!(nearest(typed, names.into_iter()), Some(expected), "{typed}");
        }
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
