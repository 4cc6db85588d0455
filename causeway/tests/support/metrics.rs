//! One scrape of Causeway's metrics, and what happened between two.

use std::collections::BTreeMap;

/// Counters and gauges by their full sample name with labels, as the exposition format writes them.
#[derive(Debug, Clone)]
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Reads the text of a scrape.
    pub fn parse(text: &str) -> Self {
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        Self(
            samples
                .filter_map(|line| line.rsplit_once(' '))
                .map(|(name, value)| (name.to_owned(), number(value)))
                .collect(),
        )
    }

    /// The differences to an earlier scrape.
    pub fn since(&self, earlier: &Self) -> Self {
        let added = |(name, value): (&String, &f64)| (name.clone(), value - earlier.0.get(name).unwrap_or(&0.0));
        Self(self.0.iter().map(added).collect())
    }

    /// Whether there is a sample of this name.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// A sample, such as `causeway_tier_hits_total{tier="ram"}`. Panics if it is missing, since it was renamed.
    pub fn sample(&self, name: &str) -> u64 {
        let value = self.0.get(name);
        let value = value.unwrap_or_else(|| panic!("no {name} among {:?}", self.0.keys().collect::<Vec<_>>()));
        assert!(*value >= 0.0 && value.fract() == 0.0, "{name} is {value}");
        *value as u64
    }

    /// The hits of a tier: "ram", "disk" or "network".
    pub fn hits(&self, tier: &str) -> u64 {
        self.sample(&format!("causeway_tier_hits_total{{tier=\"{tier}\"}}"))
    }

    /// Hits of (RAM, disk, network).
    pub fn tiers(&self) -> (u64, u64, u64) {
        (self.hits("ram"), self.hits("disk"), self.hits("network"))
    }

    /// Blocks received over Bitswap: "wanted", "duplicate" or "unsolicited".
    pub fn received(&self, kind: &str) -> u64 {
        self.sample(&format!("causeway_bitswap_blocks_total{{kind=\"{kind}\"}}"))
    }
}

fn number(text: &str) -> f64 {
    text.parse().unwrap_or_else(|_| panic!("{text:?} is no number"))
}

#[test]
fn a_scrape_is_parsed() {
    let scrape = |hits: u32| {
        Metrics::parse(&format!(
            "# HELP causeway_tier_hits Blocks.\n# TYPE causeway_tier_hits counter\n\
             causeway_tier_hits_total{{tier=\"ram\"}} {hits}\nload 0.5\n# EOF\n"
        ))
    };
    assert_eq!(scrape(7).since(&scrape(3)).hits("ram"), 4);
}
