//! [`Members`]: this gateway as a member of its site, and the others.
//!
//! Goals: a gateway that has stopped is known as such within 15 seconds; every key of the site is provided to the network
//! by two gateways, however many there are, and by all while the members are not known; each root has one owner, which
//! the others ask for its blocks.
//!
//! Non-goals: what must not be done by two gateways at a time, which the database decides
//! ([`crate::database::DatabaseClaims`]): two gateways may for a moment have different members in mind.

use crate::database::{Database, DatabaseError, DatabaseMembers, Identity, Member, Renewed};
use crate::engine_state::EngineState;
use cache::StoreError;
use content::hashes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

/// Gateways that provide a key.
const PROVIDERS: usize = 2;
/// A list of members that is older is not used.
const LIST_AGE_MAX: Duration = Duration::from_secs(600);
/// How long members are listed after their lease has ended.
const LISTED_AFTER: Duration = Duration::from_secs(86_400);
/// Addresses of a gateway that others are told.
const ADDRESSES_MAX: usize = 32;
/// How long the end of a process waits for the end of its lease.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// How often leases are renewed, and how long they last.
#[derive(Debug, Clone)]
pub struct MemberOptions {
    /// A lease.
    pub lease: Duration,
    /// The time between two renewals.
    pub interval: Duration,
}

impl Default for MemberOptions {
    fn default() -> Self {
        Self { lease: Duration::from_secs(15), interval: Duration::from_secs(5) }
    }
}

/// Finds out at which addresses the others can reach this gateway, as multiaddrs.
pub type AddressLookup = Box<dyn Fn() -> BoxFuture<'static, Vec<String>> + Send + Sync>;
/// Is told of the running gateways whenever they were read.
pub type OnMembers = Box<dyn Fn(&[Member]) + Send + Sync>;

/// What members have to do with the network.
pub struct Reach {
    /// Where this gateway is reached. Without an address it owns no root.
    pub addresses: AddressLookup,
    /// What is done with the running gateways.
    pub on_members: OnMembers,
}

/// The members of a site. The lease of this gateway is renewed until this is dropped or [left](Members::leave).
#[derive(Debug)]
pub struct Members {
    table: Arc<DatabaseMembers>,
    known: Arc<Mutex<Known>>,
    database: EngineState,
    renewing: JoinHandle<()>,
}

/// The latest list.
#[derive(Debug, Default)]
struct Known {
    alive: Arc<[Member]>,
    read: Option<Instant>,
}

impl Known {
    /// The running gateways; none if they were not read lately.
    fn current(&self) -> Arc<[Member]> {
        match self.read {
            Some(read) if read.elapsed() < LIST_AGE_MAX => Arc::clone(&self.alive),
            _ => Arc::default(),
        }
    }
}

impl Members {
    /// Makes this gateway a member, in a database whose log was opened. If the database cannot be reached, the lease
    /// begins when it can be again. Call it in a Tokio runtime.
    ///
    /// # Errors
    /// [`DatabaseError::Settings`].
    pub fn join(
        database: Database,
        me: Identity,
        reach: Reach,
        options: &MemberOptions,
    ) -> Result<Self, DatabaseError> {
        let (table, known) = (Arc::new(DatabaseMembers::new(database, me)?), Arc::<Mutex<Known>>::default());
        let renewal = Renewal {
            table: Arc::clone(&table),
            known: Arc::clone(&known),
            database: EngineState::default(),
            reach,
            options: options.clone(),
        };
        let database = renewal.database.clone();
        Ok(Self { table, known, database, renewing: tokio::spawn(renewal.run()) })
    }

    /// All members, also those that have stopped lately.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`].
    pub async fn list(&self) -> Result<Vec<Member>, StoreError> {
        Ok(self.table.list().await?)
    }

    /// The peer ID of this gateway.
    pub fn peer_id(&self) -> &str {
        self.table.peer_id()
    }

    /// The state of the database, as the renewals of the lease find out.
    pub fn database(&self) -> &EngineState {
        &self.database
    }

    /// The number of gateways that run, this one included; `None` if it was not read lately.
    pub fn count_alive(&self) -> Option<usize> {
        Some(self.known().current().len()).filter(|gateways| *gateways > 0)
    }

    /// The gateway that owns a root: of those with addresses the one with the highest rendezvous weight, SHA-256 of the
    /// peer ID and the key, a binary multihash. `None` if it is this one, or if the gateways are not known.
    pub fn owner(&self, key: &[u8]) -> Option<Member> {
        let alive = self.known().current();
        let reachable = alive.iter().filter(|member| !member.addresses.is_empty());
        let owner = reachable.max_by_key(|member| weight(&member.peer_id, key))?;
        Some(owner).filter(|owner| owner.peer_id != self.table.peer_id()).cloned()
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides which keys this gateway provides to the network, with the members that are known now.
    pub fn share_of_keys(&self) -> KeyShare {
        let me = self.table.peer_id();
        let alive = self.known().current();
        let others = alive.iter().map(|member| &member.peer_id).filter(|peer_id| *peer_id != me).cloned().collect();
        KeyShare { me: me.to_owned(), others }
    }

    /// Ends the lease. It ends by itself if the database does not answer.
    pub fn leave(&self) -> BoxFuture<'_, ()> {
        async move {
            self.renewing.abort();
            if let Ok(Err(error)) = timeout(LEAVE_TIMEOUT, self.table.leave()).await {
                tracing::debug!(%error, "the lease of this gateway ends by itself");
            }
        }
        .boxed()
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

/// The renewals of the lease of a gateway.
struct Renewal {
    table: Arc<DatabaseMembers>,
    known: Arc<Mutex<Known>>,
    database: EngineState,
    reach: Reach,
    options: MemberOptions,
}

impl Renewal {
    async fn run(self) {
        let mut ticks = interval(self.options.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_first = true;
        loop {
            ticks.tick().await;
            match self.database.observe(self.renew(is_first)).await {
                Ok(alive) => {
                    is_first = false;
                    (self.reach.on_members)(&alive);
                    let read = Some(Instant::now());
                    *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Known { alive, read };
                }
                Err(error) => tracing::debug!(%error, "the lease of this gateway could not be renewed"),
            }
        }
    }

    async fn renew(&self, is_first: bool) -> Result<Arc<[Member]>, DatabaseError> {
        let mut addresses = (self.reach.addresses)().await;
        addresses.truncate(ADDRESSES_MAX);
        // The first one replaces the row of the process before.
        if self.table.renew(self.options.lease, &addresses).await? == Renewed::Other && !is_first {
            tracing::warn!(
                peer_id = self.table.peer_id(),
                "another gateway of the site has the same peer ID: give each a data_dir of its own, and do not copy one"
            );
        }
        self.table.remove_old(LISTED_AFTER).await?;
        Ok(self.table.list().await?.into_iter().filter(|member| member.is_alive).collect())
    }
}

/// The keys that a gateway provides: those for which it has one of the two highest rendezvous weights, SHA-256 of the
/// peer ID and the key.
#[derive(Debug, Clone)]
pub struct KeyShare {
    me: String,
    /// Without this gateway.
    others: Vec<String>,
}

impl KeyShare {
    /// Whether this gateway provides the key, a binary multihash.
    pub fn has(&self, key: &[u8]) -> bool {
        if self.others.len() < PROVIDERS {
            return true;
        }
        let mine = weight(&self.me, key);
        self.others.iter().filter(|other| weight(other, key) > mine).take(PROVIDERS).count() < PROVIDERS
    }
}

fn weight(peer_id: &str, key: &[u8]) -> [u8; 32] {
    let hash = hashes::digest(hashes::SHA2_256, 32, &[peer_id.as_bytes(), key].concat());
    hash.ok().and_then(|hash| hash.digest().try_into().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn share(me: usize, members: usize) -> KeyShare {
        let name = |member: usize| format!("member {member}");
        KeyShare { me: name(me), others: (0..members).filter(|member| *member != me).map(name).collect() }
    }

    proptest! {
        #[test]
        fn each_key_has_two_providers(members in 1..9_usize, key: [u8; 34]) {
            let providers: Vec<usize> = (0..members).filter(|member| share(*member, members).has(&key)).collect();
            prop_assert_eq!(providers.len(), members.min(PROVIDERS));
            // One that joins takes over from one of them at most.
            let after: Vec<usize> = (0..=members).filter(|member| share(*member, members + 1).has(&key)).collect();
            let kept = providers.iter().filter(|member| after.contains(member)).count();
            prop_assert!(kept + 1 >= providers.len(), "{:?} before, {:?} after", providers, after);
        }
    }

    #[test]
    fn keys_are_shared_evenly() {
        let counts = (0..8).map(|member| {
            let share = share(member, 8);
            (0..4000_u32).filter(|key| share.has(&key.to_be_bytes())).count()
        });
        // A quarter of them each; the standard deviation is 27.
        assert!(counts.clone().all(|count| (850..1150).contains(&count)), "{:?}", counts.collect::<Vec<_>>());
    }
}
