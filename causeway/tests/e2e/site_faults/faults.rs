//! [`Fleet`]: the gateways of a site with its engines, and the schedule of faults.

use super::clients::{Endpoint, Reach, SOURCE_CONTENTS, Shared, content};
use super::engines::Engines;
use super::ledger::Ledger;
use super::{Dice, TIMEOUT};
use crate::site::upload;
use crate::support::causeway::{Causeway, Launch};
use crate::support::eventually;
use futures::future::join_all;
use nix::sys::signal::Signal;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::{Instant, sleep, sleep_until};

pub const GATEWAYS: usize = 3;
/// Changes that are acknowledged between two faults.
const PROGRESS: u64 = 3;

/// What happens to the site.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// A gateway is killed, and started again.
    Kill,
    /// The same, and its disk is lost.
    KillAndLoseDisk,
    /// A gateway is paused for a moment.
    Pause,
    /// A gateway evicts what it has cached.
    Collect,
    /// The primary of the database is lost, and its standby takes over.
    Promote,
    /// The primary of the database is killed, and started again.
    KillDatabase,
    /// Requests to the storage fail, break off, and are slow.
    StorageErrors,
    /// The storage cannot be reached for a moment.
    StorageLost,
    /// The storage cannot be reached for this long.
    StorageAway(Duration),
    /// The database cannot be reached for this long.
    DatabaseAway(Duration),
}

/// The faults of ten rounds, in an order that the seed determines: four kills and one promotion.
const DECK: [Fault; 10] = [
    Fault::Kill,
    Fault::Kill,
    Fault::Kill,
    Fault::KillAndLoseDisk,
    Fault::Pause,
    Fault::Collect,
    Fault::Promote,
    Fault::KillDatabase,
    Fault::StorageErrors,
    Fault::StorageLost,
];

/// The gateways of a site, its engines, and the peer from which its pins are fetched.
pub struct Fleet {
    // Before their folders and engines.
    nodes: Vec<Option<Causeway>>,
    source: Option<Causeway>,
    /// A gateway that is paused, and until when.
    paused: Option<(usize, Instant)>,
    pub engines: Engines,
    shared: Arc<Shared>,
    dice: Dice,
    dirs: Vec<TempDir>,
    _source_dir: TempDir,
}

impl Fleet {
    /// Starts a peer and the gateways.
    pub async fn start(engines: Engines, ledger: Arc<Ledger>, seed: u64, pins_again: bool) -> Self {
        let folder = || TempDir::new().expect("the temporary folder is writable");
        let source_dir = folder();
        let source = Launch::new(source_dir.path()).set("CAUSEWAY_HTTP_WELCOME_SITE", false).start().await;
        let mut sources = Vec::new();
        for number in SOURCE_CONTENTS {
            let (cid, _) = upload(&source, &content(number)).await.expect("is stored");
            sources.push(cid);
        }
        let shared = Arc::new(Shared::new(ledger, GATEWAYS, sources, pins_again));
        let source = Some(source);
        let nodes = (0..GATEWAYS).map(|_| None).collect();
        let dirs = (0..GATEWAYS).map(|_| folder()).collect();
        let dice = Dice::new(seed);
        let mut fleet = Self { nodes, source, paused: None, engines, shared, dice, dirs, _source_dir: source_dir };
        fleet.start_all().await;
        fleet.ledger().note("the gateways run");
        fleet
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub fn ledger(&self) -> &Ledger {
        &self.shared.ledger
    }

    /// Where the gateways answer.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let running = self.nodes.iter().enumerate();
        running.filter_map(|(number, node)| Some(Endpoint::of(number, node.as_ref()?))).collect()
    }

    /// A gateway with little room for a cache, so that it asks the storage.
    fn launch(&self, gateway: usize) -> Launch {
        let launch = Launch::new(self.dirs[gateway].path())
            .set("CAUSEWAY_P2P_DIAL_PRIVATE", true)
            .set("CAUSEWAY_HTTP_WELCOME_SITE", false)
            .set("CAUSEWAY_CACHE_RAM_BYTES_MAX", 1 << 20)
            .set("CAUSEWAY_SITE_CACHE_BYTES_MAX", 1_500_000);
        let launch = self.engines.gateway(launch);
        match &self.source {
            Some(source) => launch.peering(source.tcp()),
            None => launch,
        }
    }

    async fn start_all(&mut self) {
        let launches: Vec<Launch> = (0..GATEWAYS).map(|gateway| self.launch(gateway)).collect();
        let started = join_all(launches.iter().map(Launch::start)).await;
        for (gateway, node) in started.into_iter().enumerate() {
            self.add(gateway, node);
        }
    }

    fn add(&mut self, gateway: usize, node: Causeway) {
        self.shared.set(gateway, Reach::Running(Endpoint::of(gateway, &node)));
        self.nodes[gateway] = Some(node);
    }

    /// Stops the gateways and the peer, and removes what the gateways have on their disks.
    pub async fn stop_all(&mut self) {
        for node in self.nodes.iter_mut().filter_map(Option::take).chain(self.source.take()) {
            node.stop().await;
        }
        for dir in &self.dirs {
            std::fs::remove_dir_all(dir.path().join("data")).expect("is removed");
        }
    }

    /// Starts gateways that have nothing, without a peer.
    pub async fn start_without_disks(&mut self) {
        self.stop_all().await;
        self.start_all().await;
    }

    /// Pauses a gateway while the next faults happen.
    pub async fn pause_for(&mut self, length: Duration) {
        self.until_progress().await;
        let gateway = self.any_gateway();
        self.ledger().note(format!("FAULT: gateway {gateway} is paused for {length:?}"));
        self.pause(gateway);
        self.paused = Some((gateway, Instant::now() + length));
    }

    /// Waits until the gateway that is paused has been paused for as long as intended, and resumes it.
    pub async fn end_pause(&mut self) {
        if let Some((gateway, until)) = self.paused.take() {
            sleep_until(until).await;
            self.resume(gateway);
            self.until_progress().await;
        }
    }

    fn pause(&self, gateway: usize) {
        let node = self.nodes[gateway].as_ref().expect("it runs");
        self.shared.set(gateway, Reach::Paused(Endpoint::of(gateway, node)));
        node.process.signal(Signal::SIGSTOP);
    }

    fn resume(&self, gateway: usize) {
        let node = self.nodes[gateway].as_ref().expect("it is paused");
        node.process.signal(Signal::SIGCONT);
        self.shared.set(gateway, Reach::Running(Endpoint::of(gateway, node)));
        self.ledger().note(format!("FAULT ends: gateway {gateway} is resumed"));
    }

    /// Faults in an order that the seed determines.
    pub async fn shuffled_faults(&mut self, rounds: u64) {
        let mut deck = Vec::new();
        for _ in 0..rounds {
            if deck.is_empty() {
                deck.extend(DECK);
            }
            let drawn = self.dice.below(deck.len() as u64);
            self.round(deck.swap_remove(usize::try_from(drawn).expect("fits"))).await;
            if self.paused.is_some_and(|(_, until)| Instant::now() >= until) {
                self.end_pause().await;
            }
        }
    }

    /// A fault, after which changes have to be acknowledged again.
    pub async fn round(&mut self, fault: Fault) {
        sleep(self.dice.millis_below(300)).await;
        self.ledger().note(format!("FAULT: {fault:?}"));
        self.carry_out(fault).await;
        self.ledger().note(format!("FAULT ends: {fault:?}"));
        self.until_progress().await;
        self.ledger().check();
    }

    async fn carry_out(&mut self, fault: Fault) {
        match fault {
            Fault::Kill => self.kill(false).await,
            Fault::KillAndLoseDisk => self.kill(true).await,
            Fault::Pause => {
                let gateway = self.any_gateway();
                self.pause(gateway);
                sleep(self.dice.millis_below(3_000)).await;
                self.resume(gateway);
            }
            Fault::Collect => self.collect().await,
            Fault::Promote => self.engines.promote().await,
            Fault::KillDatabase => {
                let after = self.dice.millis_below(1_500);
                self.engines.restart_database(after).await;
            }
            Fault::StorageErrors => {
                self.engines.disturb_storage(&mut self.dice).await;
                self.engines.slow_storage(&mut self.dice, Duration::from_secs(1)).await;
            }
            Fault::StorageLost => {
                let length = self.dice.millis_below(2_500);
                self.engines.lose_storage(length).await;
            }
            Fault::StorageAway(length) => self.engines.lose_storage(length).await,
            Fault::DatabaseAway(length) => self.engines.lose_database(length).await,
        }
    }

    /// One that is not paused.
    fn any_gateway(&mut self) -> usize {
        let paused = self.paused.map(|(gateway, _)| gateway);
        let mut running: Vec<usize> = (0..GATEWAYS).filter(|gateway| Some(*gateway) != paused).collect();
        let chosen = self.dice.below(running.len() as u64);
        running.swap_remove(usize::try_from(chosen).expect("fits"))
    }

    async fn kill(&mut self, loses_disk: bool) {
        let gateway = self.any_gateway();
        self.ledger().note(format!("FAULT: gateway {gateway} is killed"));
        self.shared.set(gateway, Reach::Down);
        drop(self.nodes[gateway].take());
        if loses_disk {
            std::fs::remove_dir_all(self.dirs[gateway].path().join("data")).expect("is removed");
        }
        sleep(self.dice.millis_below(1_000)).await;
        let node = self.launch(gateway).start().await;
        self.add(gateway, node);
    }

    async fn collect(&mut self) {
        let gateway = self.any_gateway();
        let node = self.nodes[gateway].as_ref().expect("it runs");
        let (status, answer) = node.admin("POST", "/api/v1/store/gc", Some("{}")).await;
        if status != 200 {
            self.ledger().violation(format!("gateway {gateway} does not collect: {status}: {answer}"));
        }
    }

    /// Waits until further changes are acknowledged.
    async fn until_progress(&self) {
        let before = self.ledger().acknowledged();
        eventually("changes are acknowledged again", TIMEOUT, async || {
            let since = self.ledger().acknowledged() - before;
            if since >= PROGRESS { Ok(()) } else { Err(format!("{since} of {PROGRESS}")) }
        })
        .await;
    }
}
