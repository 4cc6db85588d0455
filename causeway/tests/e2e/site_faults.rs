//! Faults of a site with the real binary: three gateways, a PostgreSQL server with a standby that takes over, and a
//! bucket of a real S3 server behind a relay, or a shared folder.
//!
//! Clients upload, pin, replace, unpin and read at any gateway. Meanwhile gateways are killed, lose their disks or are
//! paused for longer than their leases, the database is killed or fails over, and the storage refuses, breaks off, is
//! slow or cannot be reached.
//!
//! | module | concern |
//! |---|---|
//! | [`ledger`] | what the clients were told, what was done to the site, and which answers must not be |
//! | [`clients`] | what the clients do |
//! | [`engines`] | the database and the storage, and their faults |
//! | [`faults`] | the gateways, and the schedule of faults |
//! | [`verdict`] | what has to hold in the end |
//!
//! Goals: no pin that was acknowledged is lost, none that was acknowledged as removed is listed, and no byte is wrong;
//! after the faults all gateways list the same pins, and serve them without what they had in memory and on their own
//! disks; the storage and its index are the same after reconciling; no answer is an error other than 503 with
//! `Retry-After`. What becomes of a change whose answer was lost is not known until it is read.
//!
//! Non-goals: the same interleaving for the same seed. The seed determines the faults and what the clients attempt, and
//! the scheduling of the processes the rest.
//!
//! `CAUSEWAY_CRASH_ROUNDS` is the number of faults (`make test-long`), and `CAUSEWAY_FAULTS_SEED` repeats a seed. Even
//! ones have a bucket, and odd ones a folder.

mod clients;
mod engines;
mod faults;
mod ledger;
mod verdict;

use self::clients::Clients;
use self::engines::Engines;
use self::faults::{Fault, Fleet};
use self::ledger::{Ledger, Shown};
use crate::support::noise::Noise;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a test waits for anything that takes no lease and no back-off.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The number of faults of the short form: one of each kind, and kills.
const ROUNDS: u64 = 10;

/// A source of pseudo-random decisions.
struct Dice(Noise);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(Noise::new(seed))
    }

    /// A number below a limit, which is not zero.
    fn below(&mut self, limit: u64) -> u64 {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        u64::from_le_bytes(bytes) % limit
    }

    /// A time in milliseconds, below a limit.
    fn millis_below(&mut self, limit: u64) -> Duration {
        Duration::from_millis(self.below(limit))
    }
}

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

fn new_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::from(now.subsec_nanos()) % 1_000_000
}

#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_pin_is_lost_whatever_fails() {
    let rounds = number_of("CAUSEWAY_CRASH_ROUNDS").unwrap_or(ROUNDS);
    run(rounds, rounds > ROUNDS, async |fleet: &mut Fleet| {
        fleet.pause_for(Duration::from_secs(35)).await;
        fleet.shuffled_faults(rounds).await;
    })
    .await;
}

/// A gateway is paused for a minute, then the database cannot be reached for five minutes, then the storage.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes fifteen minutes; make test-long runs it"]
async fn nothing_is_lost_in_long_outages() {
    run(3, true, async |fleet: &mut Fleet| {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        fleet.pause_for(minutes(1)).await;
        fleet.end_pause().await;
        for fault in [Fault::DatabaseAway(minutes(5)), Fault::StorageAway(minutes(5))] {
            fleet.round(fault).await;
        }
    })
    .await;
}

/// Starts a site and its clients, lets faults happen, and checks what is left. In the long form, clients pin again what
/// they have unpinned, and removals that were interrupted are waited for, which takes minutes.
async fn run(rounds: u64, is_long: bool, faults: impl AsyncFnOnce(&mut Fleet)) {
    let seed = number_of("CAUSEWAY_FAULTS_SEED").unwrap_or_else(new_seed);
    println!("CAUSEWAY_FAULTS_SEED={seed} CAUSEWAY_CRASH_ROUNDS={rounds}");
    let ledger = Arc::new(Ledger::new(seed));
    let _shown = Shown(Arc::clone(&ledger));
    let engines = Engines::start(seed.is_multiple_of(2)).await;
    let mut fleet = Fleet::start(engines, Arc::clone(&ledger), seed, is_long).await;
    let clients = Clients::start(&fleet, seed);
    faults(&mut fleet).await;
    fleet.end_pause().await;
    clients.stop().await;
    ledger.check();
    ledger.note("the clients have ended");
    verdict::check(fleet, is_long).await;
    ledger.check();
}
