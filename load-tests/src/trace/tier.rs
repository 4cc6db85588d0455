//! Which tier of the gateway answered: what it says in a response's head, and what its metrics say of all.

use crate::servers::scrape;
use anyhow::Result;
use hyper::HeaderMap;

/// How far the gateway had to go for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    Ram,
    Disk,
    Network,
}

impl Tier {
    pub const ALL: [Self; 3] = [Self::Ram, Self::Disk, Self::Network];

    /// As the gateway names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ram => "ram",
            Self::Disk => "disk",
            Self::Network => "network",
        }
    }

    /// What `Server-Timing` (<https://www.w3.org/TR/server-timing/>) says: `tier;desc="ram"`, among others. It is known when the
    /// head is sent: the rest of an object of many blocks may come from farther away.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let values = headers.get_all("server-timing").iter().filter_map(|value| value.to_str().ok());
        let mut metrics = values.flat_map(|value| value.split(',')).map(str::trim);
        let name = metrics.find_map(|metric| metric.strip_prefix("tier;desc="))?.trim_matches('"');
        Self::ALL.into_iter().find(|tier| tier.name() == name)
    }
}

/// Bytes of the blocks that each tier gave so far, by `/metrics` of the operator's listener.
pub async fn bytes_given(admin: &str) -> Result<[u64; 3]> {
    let metrics = scrape(admin).await?;
    Ok(Tier::ALL.map(|tier| bytes_of(&metrics, tier)))
}

/// A tier that was not asked yet may be missing.
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
        assert_eq!(Tier::ALL.map(|tier| bytes_of(metrics, tier)), [42, 7, 0]);
    }
}
