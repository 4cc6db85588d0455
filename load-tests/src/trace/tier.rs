//! Which tier of the gateway served a response: by the response's head, and by the metrics of all responses.

use crate::comparison::named;
use crate::servers::scrape;
use anyhow::Result;
use hyper::HeaderMap;
use serde::Serialize;

named! {
    /// How far the gateway had to go for a response. Names are the gateway's.
    pub enum Tier {
        Ram = "ram",
        Disk = "disk",
        Network = "network",
    }
}

/// A figure for each tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ByTier<T> {
    pub ram: T,
    pub disk: T,
    pub network: T,
}

impl Tier {
    pub const ALL: [Self; 3] = [Self::Ram, Self::Disk, Self::Network];

    /// The metric of `Server-Timing` (<https://www.w3.org/TR/server-timing/>): `tier;desc="ram"`, among others. It is
    /// known when the head is sent: the rest of an object of many blocks may come from farther away.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let values = headers.get_all("server-timing").iter().filter_map(|value| value.to_str().ok());
        let mut metrics = values.flat_map(|value| value.split(',')).map(str::trim);
        let name = metrics.find_map(|metric| metric.strip_prefix("tier;desc="))?.trim_matches('"');
        Self::ALL.into_iter().find(|tier| tier.name() == name)
    }
}

impl<T> ByTier<T> {
    pub fn from_fn(mut of: impl FnMut(Tier) -> T) -> Self {
        Self { ram: of(Tier::Ram), disk: of(Tier::Disk), network: of(Tier::Network) }
    }

    pub fn of(&self, tier: Tier) -> &T {
        match tier {
            Tier::Ram => &self.ram,
            Tier::Disk => &self.disk,
            Tier::Network => &self.network,
        }
    }

    pub fn of_mut(&mut self, tier: Tier) -> &mut T {
        match tier {
            Tier::Ram => &mut self.ram,
            Tier::Disk => &mut self.disk,
            Tier::Network => &mut self.network,
        }
    }

    /// In [`Tier::ALL`]'s order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        [&self.ram, &self.disk, &self.network].into_iter()
    }
}

impl ByTier<u64> {
    /// Since an earlier reading of counters.
    pub fn since(&self, before: Self) -> Self {
        Self::from_fn(|tier| self.of(tier).saturating_sub(*before.of(tier)))
    }

    pub fn sum(&self) -> u64 {
        self.iter().sum()
    }
}

/// Bytes of the blocks that each tier has served, by the metrics of the admin listener.
pub async fn bytes_served(admin: &str) -> Result<ByTier<u64>> {
    let metrics = scrape(admin).await?;
    Ok(ByTier::from_fn(|tier| bytes_of(&metrics, tier)))
}

/// A tier that has served nothing yet may be missing.
fn bytes_of(metrics: &str, tier: Tier) -> u64 {
    let name = format!("causeway_tier_bytes_total{{tier=\"{}\"}} ", tier.name());
    metrics.lines().find_map(|line| line.strip_prefix(name.as_str())?.trim().parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tier_is_found_among_other_timings() {
        let table: [(&[&str], Option<Tier>); 6] = [
            (&["tier;desc=\"ram\"", "total;dur=0.031"], Some(Tier::Ram)),
            (&["total;dur=0.031, tier;desc=disk"], Some(Tier::Disk)),
            (&["tier;desc=\"network\""], Some(Tier::Network)),
            (&["tier;desc=\"moon\""], None),
            (&["total;dur=1"], None),
            (&[], None),
        ];
        for (values, expected) in table {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("server-timing", value.parse().expect("it is a header's value"));
            }
            assert_eq!(Tier::from_headers(&headers), expected, "{values:?}");
        }
    }

    #[test]
    fn bytes_are_read_from_an_exposition() {
        let metrics = "# TYPE causeway_tier_bytes counter\ncauseway_tier_bytes_total{tier=\"ram\"} 42\n\
                       causeway_tier_bytes_total{tier=\"disk\"} 7\n";
        let bytes = ByTier::from_fn(|tier| bytes_of(metrics, tier));
        assert_eq!(bytes, ByTier { ram: 42, disk: 7, network: 0 });
    }
}
