//! Gateways of a site: one database server, a folder as their storage, and a data folder for each.

use super::Options;
use super::postgres::Postgres;
use crate::directory::temp_dir;
use crate::servers::{Causeway, Setup, scrape};
use anyhow::{Result, ensure};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// For all gateways to know each other: they look every few seconds.
const MEMBERS_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What the gateways of a site share.
pub struct Shared {
    settings: [(&'static str, String); 4],
    storage: TempDir,
}

impl Shared {
    /// A site of its own on the database server.
    pub fn new(name: &str, database: &Postgres) -> Result<Self> {
        let storage = temp_dir("storage")?;
        let settings = [
            ("CAUSEWAY_SITE_NAME", name.to_owned()),
            ("CAUSEWAY_SITE_DATABASE", database.url.clone()),
            ("CAUSEWAY_SITE_STORE", format!("file://{}", storage.path().display())),
            // All addresses here are those of the loopback.
            ("CAUSEWAY_P2P_DIAL_PRIVATE", "true".to_owned()),
        ];
        Ok(Self { settings, storage })
    }

    /// The folder that is the storage.
    pub fn storage(&self) -> &Path {
        self.storage.path()
    }

    /// Starts a gateway of the site, with more settings.
    pub async fn start(&self, options: &Options, setup: Setup<'_>) -> Result<Causeway> {
        let own = self.settings.iter().map(|(variable, value)| (*variable, value.as_str()));
        let settings: Vec<(&str, &str)> = own.chain(setup.settings.iter().copied()).collect();
        let flags = [setup.flags, options.flags.get()].concat();
        Causeway::start(&options.binaries.causeway, Setup { flags, settings: &settings, ..setup }).await
    }
}

/// A site without links.
pub struct Site {
    // Before what they use: fields are dropped in this order.
    pub gateways: Vec<Causeway>,
    _shared: Shared,
    _database: Postgres,
}

impl Site {
    /// Starts so many gateways with the same flags and settings, and waits until they know each other.
    pub async fn start(options: &Options, count: usize, flags: &[&str], settings: &[(&str, &str)]) -> Result<Self> {
        let database = Postgres::start().await?;
        let shared = Shared::new("bench", &database)?;
        let mut gateways = Vec::new();
        for _ in 0..count {
            let setup = Setup { flags: flags.to_vec(), settings, ..Setup::default() };
            gateways.push(shared.start(options, setup).await?);
        }
        wait_for_members(gateways.iter(), count).await?;
        Ok(Self { gateways, _shared: shared, _database: database })
    }
}

/// Waits until each gateway knows that there are so many.
pub async fn wait_for_members(gateways: impl Iterator<Item = &Causeway>, count: usize) -> Result<()> {
    let begun = Instant::now();
    for gateway in gateways {
        while gateway.metric("causeway_site_gateways").await? < count as f64 {
            ensure!(begun.elapsed() < MEMBERS_TIMEOUT, "{count} gateways of a site do not find each other");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
    Ok(())
}

/// The sum of a metric over all of its labels.
pub async fn total(gateway: &Causeway, metric: &str) -> Result<f64> {
    Ok(sum(&scrape(&gateway.admin).await?, metric))
}

fn sum(exposition: &str, metric: &str) -> f64 {
    let samples = exposition.lines().filter_map(|line| {
        let rest = line.strip_prefix(metric)?;
        rest.starts_with(['{', ' ']).then(|| rest.rsplit(' ').next()?.parse::<f64>().ok())?
    });
    samples.sum()
}

#[test]
fn metrics_are_added_up_over_their_labels() {
    let text = "# TYPE a counter\na_total{b=\"x y\"} 3\na_total{b=\"z\"} 4\na_total_of_others 5\nc 6\n";
    assert_eq!((sum(text, "a_total"), sum(text, "c"), sum(text, "d")), (7.0, 6.0, 0.0));
}
