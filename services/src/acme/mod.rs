//! [`Acme`]: certificates of the public listener from an authority that speaks ACME (RFC 8555).
//!
//! Goals: an operator sets names, and they have certificates that are renewed for ever; an authority that fails, limits
//! or disappears is never an outage, but a metric, an alert and a line in the log: the certificates in use stay, and
//! nothing else waits for them. A restart needs no authority. Without `http.acme_directory` nothing is contacted.
//!
//! Non-goals: certificates of the admin listener (files), revocation, external account binding, and hosts that share
//! certificates: each host has an account of its own.
//!
//! | module | concern | I/O |
//! |---|---|---|
//! | [`schedule`] | when each certificate is ordered: renewal, ARI, back-off | none |
//! | [`on_demand`] | which names of handshakes are admitted, and how many | none |
//! | [`challenges`] | which challenge is chosen, and the pending answers over HTTP and TLS | none |
//! | [`certificate`] | a key and a chain as the TLS listener uses them | none |
//! | [`store`] | the account and the certificates in the data folder | files |
//! | `order` | one order, from the account to the certificate | network |
//! | `client` | the HTTP client of the authority, renewal information | network |
//! | `hook` | the operator's program for dns-01 | a process |
//! | [`metrics`] | metrics | |
//!
//! **One certificate for each name.** A host with subdomains has three: its name and two wildcards. So a failing
//! DNS hook does not keep the host itself from its certificate, certificates on demand are nothing special, and a
//! certificate is found by its name alone. Its key and chain are one file, so that both always fit together.
//!
//! **One task** ([`Acme::run`]) begins the orders that the [`Schedule`] says are due, [`ORDERS_MAX`] at a time, of
//! which those on demand may be all but one. An order ends in the schedule again: as renewal at two thirds of the
//! lifetime with jitter or as the authority suggests (ARI, RFC 9773), or as a repetition with back-off. A failed order
//! tries the next of `http.acme_challenges`.
//!
//! **A handshake** asks for the certificate of its name ([`Acme::certificate`]), which is a look-up in memory. With
//! `http.acme_on_demand` a handshake for another name ([`Acme::obtain`]) has an order begun, if the name is a public
//! domain that is not one of the gateway's own, its DNSLink resolves (the name resolver asks the policy), and the rates
//! of all, of its registered domain and of its client have a permit. The handshake waits for [`HANDSHAKE_WAIT`]; the
//! order goes on without it. A handshake over QUIC does not wait ([`Acme::request`]). A refused or failed name is
//! cached. Certificates on demand are renewed while they are used, and the least recently used ones make room for
//! others.
//!
//! The library is instant-acme. ARCHITECTURE.md has the reason.

pub mod certificate;
pub mod challenges;
mod client;
mod hook;
pub mod metrics;
pub mod on_demand;
mod order;
pub mod schedule;
pub mod store;
#[cfg(test)]
mod tests;

pub use self::challenges::Challenges;
pub use self::metrics::AcmeMetrics;

use self::certificate::AcmeCertificate;
use self::hook::DnsHook;
use self::metrics::OrderResult;
use self::on_demand::{Admission, Demand, name_on_demand, registered_domain};
use self::order::{OrderFailure, Orders};
use self::schedule::{DAY, Due, FailureKind, HOUR, Schedule};
use self::store::Store;
use crate::limiter::{ClientKey, Limiter};
use config::{ConfigError, Loaded};
use content::names::{Domain, Name};
use content::{NameError, NameResolver};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use p2p_bridge::{back_off, epoch};
use rustls::sign::CertifiedKey;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// The maximum number of orders and inquiries at a time.
pub const ORDERS_MAX: usize = 4;
/// How long a handshake waits for a certificate on demand. Clients retry.
pub const HANDSHAKE_WAIT: Duration = Duration::from_secs(8);
/// The maximum number of look-ups of DNSLinks for handshakes at a time, in total and of one client.
const LOOKUPS_MAX: usize = 16;
const CLIENT_LOOKUPS_MAX: usize = 4;
/// How long a DNSLink is looked up: less than a handshake waits, so that the result is recorded.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a name without a DNSLink is refused, and a name whose order failed.
const NO_DNSLINK_SECONDS: i64 = 60;
const FAILED_SECONDS: i64 = 15 * 60;
/// A certificate on demand is renewed if it was used in this time before, and replaced by another one if it was not.
const RENEWED_IF_USED: i64 = 30 * DAY;
const REPLACED_IF_UNUSED: i64 = DAY;
/// The interval at which unused certificates are looked for.
const SWEEP: i64 = HOUR;
/// The longest sleep: clocks are set.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// The maximum length of the reason that is kept of a failed order, in bytes.
const FAILURE_BYTES_MAX: usize = 1024;
/// The interval of inquiries after a failed one, in seconds.
const INQUIRY_AFTER_FAILURE: i64 = 6 * HOUR;

/// Certificates by ACME.
pub struct Acme {
    /// The configured names.
    names: HashSet<String>,
    /// Host names whose certificates and subdomains are never obtained on demand.
    hosts: Vec<String>,
    /// The maximum number of certificates on demand; `None` if they are off.
    on_demand_max: Option<usize>,
    orders: Orders,
    resolver: Arc<dyn NameResolver>,
    certificates: RwLock<HashMap<String, Arc<AcmeCertificate>>>,
    schedule: Mutex<Schedule>,
    admission: Mutex<Admission>,
    lookups: Arc<Limiter>,
    /// The same, of one registered domain.
    domain_lookups: Arc<Limiter>,
    /// Issued certificates and their keys that could not be stored yet, in PEM format.
    unsaved: Mutex<HashMap<String, String>>,
    /// Why the last order of a configured name failed, until one succeeds.
    failures: Mutex<HashMap<String, String>>,
    /// Wakes the task.
    changed: Notify,
    /// Notified when an order has ended.
    settled: Notify,
    metrics: AcmeMetrics,
}

/// The certificate of a configured name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameStatus {
    /// The name.
    pub name: String,
    /// When it expires, in seconds since 1970; `None` while there is none.
    pub expires_at: Option<i64>,
    /// Whether there is none, or it should have been renewed long ago.
    pub is_overdue: bool,
    /// Why the last order failed, if it did.
    pub failure: Option<String>,
}

/// Checks that the files of `http.acme_ca` and `http.acme_dns_hook` can be used.
///
/// # Errors
/// [`ConfigError`] about the first that cannot.
pub fn check(loaded: &Loaded) -> Result<(), ConfigError> {
    let http = &loaded.config.http;
    if http.acme_directory.is_empty() {
        return Ok(());
    }
    hook::check(&http.acme_dns_hook).map_err(|reason| loaded.error("http.acme_dns_hook", reason))?;
    client::build(&http.acme_ca).map(drop).map_err(|reason| ca_error(loaded, &reason))
}

fn ca_error(loaded: &Loaded, reason: &str) -> ConfigError {
    let path = loaded.config.http.acme_ca.display();
    loaded.error("http.acme_ca", format!("{path} is not a readable PEM file with certificates: {reason}"))
}

impl Acme {
    /// Reads the stored certificates, if `http.acme_directory` is set. Nothing is ordered before [`Acme::run`].
    ///
    /// # Errors
    /// [`ConfigError`] about the setting that cannot be used.
    pub fn open(
        loaded: &Loaded,
        resolver: Arc<dyn NameResolver>,
        metrics: AcmeMetrics,
    ) -> Result<Option<Arc<Self>>, ConfigError> {
        let config::Config { data_dir, http, .. } = &loaded.config;
        if http.acme_directory.is_empty() {
            return Ok(None);
        }
        hook::check(&http.acme_dns_hook).map_err(|reason| loaded.error("http.acme_dns_hook", reason))?;
        let store = Store::new(data_dir, &http.acme_directory);
        let unusable = |error: &std::io::Error| {
            loaded.error("data_dir", format!("{} cannot be used: {error}", store.folder().display()))
        };
        store.create().map_err(|error| unusable(&error))?;
        let stored = store.load().map_err(|error| unusable(&error))?;
        let client = client::build(&http.acme_ca).map_err(|reason| ca_error(loaded, &reason))?;
        let hook = (!http.acme_dns_hook.as_os_str().is_empty()).then(|| DnsHook::new(http.acme_dns_hook.clone()));
        let on_demand_max = usize::try_from(http.acme_on_demand_max).unwrap_or(usize::MAX);
        let acme = Self {
            names: http.certificate_names().into_iter().collect(),
            hosts: http.hosts.iter().map(|host| host.name.clone()).collect(),
            on_demand_max: http.acme_on_demand.then_some(on_demand_max),
            orders: Orders {
                directory: http.acme_directory.clone(),
                contact: http.acme_contact.iter().map(|address| format!("mailto:{address}")).collect(),
                preferred: http.acme_challenges.clone(),
                client,
                store,
                challenges: Arc::default(),
                hook,
                account: tokio::sync::Mutex::default(),
            },
            resolver,
            certificates: RwLock::default(),
            schedule: Mutex::default(),
            admission: Mutex::new(Admission::new(http.acme_on_demand_hourly_max)),
            lookups: Arc::new(Limiter::new(LOOKUPS_MAX, CLIENT_LOOKUPS_MAX)),
            domain_lookups: Arc::new(Limiter::new(LOOKUPS_MAX, CLIENT_LOOKUPS_MAX)),
            unsaved: Mutex::default(),
            failures: Mutex::default(),
            changed: Notify::new(),
            settled: Notify::new(),
            metrics,
        };
        acme.plan(stored);
        acme.report();
        Ok(Some(Arc::new(acme)))
    }

    /// Uses the stored certificates, and plans what is due.
    fn plan(&self, stored: Vec<(String, AcmeCertificate)>) {
        let now = epoch::signed_now();
        let mut certificates = self.certificates.write().unwrap_or_else(PoisonError::into_inner);
        let wanted = stored.into_iter().filter(|(name, _)| self.names.contains(name) || self.is_on_demand(name));
        certificates.extend(wanted.map(|(name, found)| (name, Arc::new(found))));
        let mut schedule = self.schedule();
        for name in &self.names {
            let validity = certificates.get(name).map(|certificate| certificate.validity);
            schedule.add(name, false, validity, now, random());
        }
        for (name, certificate) in certificates.iter().filter(|(name, _)| !self.names.contains(*name)) {
            schedule.add(name, true, Some(certificate.validity), now, random());
        }
    }

    /// Whether a name that is not configured may have a certificate.
    fn is_on_demand(&self, name: &str) -> bool {
        self.on_demand_max.is_some() && name_on_demand(name, &self.hosts).is_some_and(|found| found == name)
    }

    /// The pending challenges, which the listeners answer.
    pub fn challenges(&self) -> &Arc<Challenges> {
        &self.orders.challenges
    }

    /// The configured names that have no certificate yet.
    pub fn missing(&self) -> Vec<String> {
        let certificates = self.certificates.read().unwrap_or_else(PoisonError::into_inner);
        let mut missing: Vec<_> = self.names.iter().filter(|name| !certificates.contains_key(*name)).cloned().collect();
        missing.sort();
        missing
    }

    /// The certificates of the configured names, in the order of the names.
    pub fn statuses(&self) -> Vec<NameStatus> {
        let now = epoch::signed_now();
        let certificates = self.certificates.read().unwrap_or_else(PoisonError::into_inner);
        let failures = self.failures();
        let status = |name: &String| {
            let validity = certificates.get(name).map(|certificate| certificate.validity);
            NameStatus {
                name: name.clone(),
                expires_at: validity.map(|validity| validity.not_after),
                is_overdue: validity.is_none_or(|validity| validity.is_overdue(now)),
                failure: failures.get(name).cloned(),
            }
        };
        let mut statuses: Vec<NameStatus> = self.names.iter().map(status).collect();
        statuses.sort_by(|one, other| one.name.cmp(&other.name));
        statuses
    }

    /// The certificate for a host name in lower case: its own, or that of a wildcard.
    pub fn certificate(&self, host: &str) -> Option<Arc<CertifiedKey>> {
        let now = epoch::signed_now();
        let certificates = self.certificates.read().unwrap_or_else(PoisonError::into_inner);
        let own = certificates.get(host).map(|found| (host, found));
        // An expired one on demand is as none: its domain may have left. That of a configured name stays.
        let own = own.filter(|(name, found)| self.names.contains(*name) || !found.validity.is_over(now));
        let of_wildcard = || certificates.get(&format!("*.{}", host.split_once('.')?.1));
        let found = own.map(|(_, found)| found).or_else(of_wildcard)?;
        found.use_at(now);
        Some(Arc::clone(&found.certified))
    }

    /// Whether the certificate for a host name has expired, so that one from files is better.
    pub fn is_expired(&self, host: &str) -> bool {
        let certificates = self.certificates.read().unwrap_or_else(PoisonError::into_inner);
        let of_wildcard = || certificates.get(&format!("*.{}", host.split_once('.')?.1));
        certificates.get(host).or_else(of_wildcard).is_some_and(|found| found.validity.is_over(epoch::signed_now()))
    }

    /// A certificate for clients that name no host: that of the first configured name that has one.
    pub fn any_certificate(&self) -> Option<Arc<CertifiedKey>> {
        let certificates = self.certificates.read().unwrap_or_else(PoisonError::into_inner);
        let own = self.names.iter().filter(|name| !name.starts_with('*'));
        let found = own.filter_map(|name| certificates.get(name).map(|found| (name, found)));
        found.min_by_key(|(name, _)| *name).map(|(_, found)| Arc::clone(&found.certified))
    }

    /// Whether certificates are obtained on demand.
    pub fn obtains_on_demand(&self) -> bool {
        self.on_demand_max.is_some()
    }

    /// Has a certificate on demand ordered for the host name of a handshake, unless one is ordered already. Returns its
    /// name; `None` if there is none to wait for. This takes as long as the look-up of a DNSLink.
    pub async fn request(&self, host: &str, client: IpAddr) -> Option<String> {
        self.on_demand_max?;
        let refused = |refusal: Demand| {
            self.metrics.demand(refusal);
            tracing::debug!(host, reason = refusal.label(), "no certificate is obtained on demand");
        };
        self.admit(host, client).await.map_err(refused).ok()
    }

    /// Obtains a certificate on demand for the host name of a handshake, and waits for it for a limited time.
    pub async fn obtain(&self, host: &str, client: IpAddr) -> Option<Arc<CertifiedKey>> {
        let name = self.request(host, client).await?;
        let issued = async {
            loop {
                let settled = self.settled.notified();
                let mut settled = std::pin::pin!(settled);
                settled.as_mut().enable();
                if let Some(found) = self.certificate(&name) {
                    return Some(found);
                }
                if !self.schedule().has(&name) {
                    return None;
                }
                settled.await;
            }
        };
        tokio::time::timeout(HANDSHAKE_WAIT, issued).await.ok().flatten()
    }

    /// Has an order begun for a name on demand, unless it is refused or the order is running.
    async fn admit(&self, host: &str, client: IpAddr) -> Result<String, Demand> {
        let name = name_on_demand(host, &self.hosts).ok_or(Demand::InvalidName)?;
        if self.schedule().has(&name) {
            return Ok(name);
        }
        if self.admission().is_refused(&name, epoch::signed_now()) {
            return Err(Demand::Cached);
        }
        let domain = Domain::parse(&name).ok_or(Demand::InvalidName)?;
        // Name servers that do not answer must not keep other domains waiting.
        let of_domain = ClientKey::Token(registered_domain(&name).into());
        let permits = [self.lookups.try_acquire(client), self.domain_lookups.try_acquire(of_domain)];
        if permits.iter().any(Result::is_err) {
            return Err(Demand::RateLimited);
        }
        let resolving = self.resolver.resolve(&Name::Domain(domain));
        let resolved = tokio::time::timeout(LOOKUP_TIMEOUT, resolving).await;
        drop(permits);
        let now = epoch::signed_now();
        match resolved {
            Ok(Ok(_)) => {}
            // Not a fault of the name.
            Ok(Err(NameError::Busy)) => return Err(Demand::RateLimited),
            failed => {
                let error =
                    failed.ok().and_then(Result::err).map_or_else(|| "no answer in time".into(), |e| e.to_string());
                tracing::debug!(name, error, "the DNSLink of a domain does not resolve");
                self.admission().refuse(&name, NO_DNSLINK_SECONDS, now);
                return Err(Demand::NoDnsLink);
            }
        }
        let mut schedule = self.schedule();
        if schedule.has(&name) {
            return Ok(name);
        }
        if !self.has_room(&schedule, now) {
            return Err(Demand::Full);
        }
        if !self.admission().permit(&name, client, Instant::now()) {
            return Err(Demand::RateLimited);
        }
        schedule.add(&name, true, None, now, random());
        drop(schedule);
        self.metrics.demand(Demand::Ordered);
        tracing::info!(name, "a certificate is ordered on demand");
        self.changed.notify_one();
        Ok(name)
    }

    /// Whether there is room for another certificate on demand, or one that can be replaced.
    fn has_room(&self, schedule: &Schedule, now: i64) -> bool {
        let certificates = self.certificates.read().unwrap_or_else(PoisonError::into_inner);
        let ordered = schedule.on_demand().filter(|name| !certificates.contains_key(*name)).count();
        let mut replaceable = 0;
        let mut stored = 0;
        for (_, certificate) in certificates.iter().filter(|(name, _)| !self.names.contains(*name)) {
            stored += 1;
            replaceable += usize::from(certificate.used() < now - REPLACED_IF_UNUSED);
        }
        self.on_demand_max.is_some_and(|max| stored + ordered < max.saturating_add(replaceable))
    }

    /// Has failed orders repeated now.
    pub fn retry(&self) {
        self.schedule().retry(epoch::signed_now());
        self.changed.notify_one();
    }

    /// Obtains and renews certificates, for as long as the listeners serve.
    pub fn run(self: Arc<Self>) -> BoxFuture<'static, ()> {
        async move {
            let missing = self.missing();
            if !missing.is_empty() {
                let names = missing.join(", ");
                tracing::info!(
                    names,
                    "certificates are being obtained; until then, TLS handshakes for these names fail"
                );
            }
            let mut running = JoinSet::new();
            let mut sweep_at = epoch::signed_now() + SWEEP;
            loop {
                let now = epoch::signed_now();
                if now >= sweep_at {
                    sweep_at = now + SWEEP;
                    self.sweep(now).await;
                }
                self.save_again().await;
                self.begin_due(&mut running, now);
                self.report();
                let wake_at = self.schedule().wake_at().filter(|_| running.len() < ORDERS_MAX);
                let seconds = wake_at.map_or(i64::MAX, |at| (at - now).max(1));
                let sleep = Duration::from_secs(u64::try_from(seconds).unwrap_or(1)).min(SLEEP_MAX);
                tokio::select! {
                    Some(_) = running.join_next(), if !running.is_empty() => {}
                    () = self.changed.notified() => {}
                    () = tokio::time::sleep(sleep) => {}
                }
            }
        }
        .boxed()
    }

    fn begin_due(self: &Arc<Self>, running: &mut JoinSet<()>, now: i64) {
        while running.len() < ORDERS_MAX {
            // One slot is left for configured names.
            let on_demand_too = running.len() + 1 < ORDERS_MAX;
            let Some((name, due)) = self.schedule().begin(now, on_demand_too) else { return };
            let acme = Arc::clone(self);
            running.spawn(async move {
                let work = async {
                    match due {
                        Due::Order { failures, is_suggested } => acme.order(&name, failures, is_suggested).await,
                        Due::Inquiry => acme.inquire(&name).await,
                    }
                };
                if AssertUnwindSafe(work).catch_unwind().await.is_err() {
                    let reason = "a panic ended the order: this is a bug, please report it with the message above";
                    let failure =
                        OrderFailure { kind: FailureKind::Rejected, reason: reason.into(), retry_after: None };
                    acme.failed(&name, failure);
                }
                acme.settled.notify_waiters();
            });
        }
    }

    /// Orders a certificate, unless it is on demand and not used any more.
    async fn order(&self, name: &str, failures: u32, is_suggested: bool) {
        let present = self.present(name);
        let is_on_demand = !self.names.contains(name);
        if is_on_demand && let Some(certificate) = &present {
            if certificate.used() < epoch::signed_now() - RENEWED_IF_USED {
                tracing::info!(name, "the certificate on demand was not used for a month and is not renewed");
                self.schedule().remove(name);
                return;
            }
            if let Some(domain) = Domain::parse(name)
                && let Err(error) = self.resolver.resolve(&Name::Domain(domain)).await
            {
                let reason = format!("its DNSLink does not resolve: {error}");
                return self.failed(name, OrderFailure { kind: FailureKind::Rejected, reason, retry_after: None });
            }
        }
        let replaced = present.as_deref().filter(|_| is_suggested);
        match self.orders.order(name, failures, replaced).await {
            Ok(pem) => match AcmeCertificate::parse(name, pem.as_bytes(), epoch::signed_now()) {
                Ok(certificate) => self.issued(name, certificate, pem).await,
                Err(error) => {
                    let reason = format!("the certificate of the authority is invalid: {error}");
                    self.failed(name, OrderFailure { kind: FailureKind::Rejected, reason, retry_after: None });
                }
            },
            Err(failure) => self.failed(name, failure),
        }
    }

    fn present(&self, name: &str) -> Option<Arc<AcmeCertificate>> {
        self.certificates.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    async fn issued(&self, name: &str, certificate: AcmeCertificate, pem: String) {
        if let Err(error) = self.save(name, pem.clone()).await {
            let folder = self.orders.store.folder().display();
            tracing::error!(%error, name, %folder, "the certificate is used, but cannot be stored for the next start");
            self.unsaved().insert(name.to_owned(), pem);
        }
        let validity = certificate.validity;
        self.failures().remove(name);
        if let Some(replaced) = self.use_certificate(name, certificate) {
            self.remove_file(&replaced).await;
        }
        self.metrics.order(OrderResult::Issued, !self.names.contains(name));
        self.schedule().issued(name, validity, epoch::signed_now(), random());
        let days = (validity.not_after - epoch::signed_now()) / DAY;
        tracing::info!(name, days, "a certificate was issued");
    }

    /// Stores a certificate and its key.
    async fn save(&self, name: &str, pem: String) -> std::io::Result<()> {
        let (store, file) = (self.orders.store.clone(), name.to_owned());
        tokio::task::spawn_blocking(move || store.save(&file, pem.as_bytes())).await.unwrap_or(Ok(()))
    }

    /// Stores what could not be stored before, such as on a full disk.
    async fn save_again(&self) {
        let unsaved: Vec<(String, String)> =
            self.unsaved().iter().map(|(name, pem)| (name.clone(), pem.clone())).collect();
        for (name, pem) in unsaved {
            if self.save(&name, pem.clone()).await.is_ok() {
                tracing::info!(name, "the certificate is stored now");
                // A later certificate may have taken its place meanwhile.
                let mut unsaved = self.unsaved();
                if unsaved.get(&name) == Some(&pem) {
                    unsaved.remove(&name);
                }
            }
        }
    }

    fn unsaved(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.unsaved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses a certificate; returns the name of the one on demand that made room for it.
    fn use_certificate(&self, name: &str, certificate: AcmeCertificate) -> Option<String> {
        let mut certificates = self.certificates.write().unwrap_or_else(PoisonError::into_inner);
        certificates.insert(name.to_owned(), Arc::new(certificate));
        let on_demand = || certificates.iter().filter(|(name, _)| !self.names.contains(*name));
        if on_demand().count() <= self.on_demand_max? {
            return None;
        }
        let (least, _) = on_demand().min_by_key(|(_, certificate)| certificate.used())?;
        let least = least.clone();
        certificates.remove(&least);
        drop(certificates);
        self.schedule().remove(&least);
        Some(least)
    }

    async fn remove_file(&self, name: &str) {
        self.unsaved().remove(name);
        let (store, file) = (self.orders.store.clone(), name.to_owned());
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || store.remove(&file)).await {
            tracing::warn!(%error, name, "the file of a certificate on demand cannot be removed");
        }
    }

    fn failed(&self, name: &str, failure: OrderFailure) {
        let OrderFailure { kind, reason, retry_after } = failure;
        let now = epoch::signed_now();
        let is_on_demand = !self.names.contains(name);
        self.metrics.order(kind.into(), is_on_demand);
        if !is_on_demand {
            self.metrics.last_failure.set(now);
            let shown = &reason[..reason.floor_char_boundary(FAILURE_BYTES_MAX)];
            self.failures().insert(name.to_owned(), shown.to_owned());
        }
        let mut schedule = self.schedule();
        let wait = schedule.failed(name, kind, retry_after, now, back_off::with_jitter);
        let present = self.present(name);
        if present.is_none() && !self.names.contains(name) {
            // The next handshake asks for it again.
            schedule.remove(name);
            let seconds = i64::try_from(wait.as_secs()).unwrap_or(DAY).max(FAILED_SECONDS);
            self.admission().refuse(name, seconds, now);
            tracing::warn!(name, error = reason, "a certificate on demand could not be obtained");
            return;
        }
        drop(schedule);
        let retry_seconds = wait.as_secs();
        match present {
            None => tracing::warn!(name, error = reason, retry_seconds, "the certificate could not be obtained"),
            Some(present) => {
                let days_left = (present.validity.not_after - now) / DAY;
                tracing::warn!(
                    name,
                    error = reason,
                    retry_seconds,
                    days_left,
                    "the certificate could not be renewed: the present one stays in use"
                );
            }
        }
    }

    /// Asks the authority when to renew a certificate.
    async fn inquire(&self, name: &str) {
        let present = self.present(name);
        let asked = match present.as_ref().and_then(|certificate| certificate.leaf()) {
            Some(leaf) => client::renewal_information(&self.orders.client, &self.orders.directory, leaf).await,
            None => Err("there is no certificate".to_owned()),
        };
        let now = epoch::signed_now();
        let (window, next) = match asked {
            Ok(found) => (found.window, now + found.ask_again),
            Err(error) => {
                tracing::debug!(name, error, "the authority did not say when to renew a certificate");
                (None, now + INQUIRY_AFTER_FAILURE)
            }
        };
        self.schedule().inquired(name, window, next, random());
    }

    /// Records uses of certificates on demand, removes expired ones and those above the limit, and plans the renewal of
    /// those in use.
    async fn sweep(&self, now: i64) {
        let mut on_demand: Vec<_> = {
            let certificates = self.certificates.read().unwrap_or_else(PoisonError::into_inner);
            let on_demand = certificates.iter().filter(|(name, _)| !self.names.contains(*name));
            on_demand.map(|(name, certificate)| (name.clone(), Arc::clone(certificate))).collect()
        };
        on_demand.sort_by_key(|(_, certificate)| std::cmp::Reverse(certificate.used()));
        let mut kept = 0;
        for (name, certificate) in on_demand {
            let has_room = self.on_demand_max.is_some_and(|max| kept < max);
            if certificate.validity.is_over(now) || !has_room {
                self.certificates.write().unwrap_or_else(PoisonError::into_inner).remove(&name);
                self.schedule().remove(&name);
                self.remove_file(&name).await;
                continue;
            }
            kept += 1;
            if certificate.used() >= now - 2 * SWEEP {
                self.schedule().add(&name, true, Some(certificate.validity), now, random());
                let (store, file, used) = (self.orders.store.clone(), name.clone(), certificate.used());
                if let Ok(Err(error)) = tokio::task::spawn_blocking(move || store.touch(&file, used)).await {
                    tracing::debug!(%error, name, "the use of a certificate cannot be recorded");
                }
            }
        }
    }

    /// Updates the metrics.
    fn report(&self) {
        let now = epoch::signed_now();
        let certificates = self.certificates.read().unwrap_or_else(PoisonError::into_inner);
        let mut overdue = 0;
        for name in &self.names {
            let validity = certificates.get(name).map(|certificate| certificate.validity);
            overdue += i64::from(validity.is_none_or(|validity| validity.is_overdue(now)));
            self.metrics.set_expiry(name, validity.map_or(0, |validity| validity.not_after));
        }
        let on_demand = certificates.keys().filter(|name| !self.names.contains(*name)).count();
        self.metrics.overdue.set(overdue);
        self.metrics.on_demand.set(i64::try_from(on_demand).unwrap_or(i64::MAX));
    }

    fn failures(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admission(&self) -> MutexGuard<'_, Admission> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A random number between 0 and 1.
fn random() -> f64 {
    RandomState::new().hash_one(()) as f64 / u64::MAX as f64
}
