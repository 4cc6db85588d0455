//! Metrics of announcing: whether all keys are announced in time.

use super::sweep::{Counts, Status};
use crate::metrics::DhtLabel;
use crate::scope::Scope;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// Handles to the metrics. Cloning shares them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    keys: Family<DhtLabel, Gauge>,
    waiting: Family<DhtLabel, Gauge>,
    slots_done: Family<DhtLabel, Gauge>,
    slots: Gauge,
    lag: Family<DhtLabel, Gauge>,
    last_catch_up: Family<DhtLabel, Gauge>,
    announced: Family<DhtLabel, Counter>,
    records: Family<DhtLabel, Counter>,
    failures: Family<DhtLabel, Counter>,
    walks: Family<DhtLabel, Counter>,
}

impl Metrics {
    /// Creates the metrics and adds them to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let m = Self::default();
        let add = registry;
        add.register(
            "causeway_provide_keys",
            "Keys to announce, as of the last read of the key source",
            m.keys.clone(),
        );
        add.register("causeway_provide_waiting", "New keys not yet announced", m.waiting.clone());
        add.register("causeway_provide_slots_done", "Slots of the key space that are not due", m.slots_done.clone());
        add.register("causeway_provide_slots", "Slots that the key space is divided into", m.slots.clone());
        add.register_with_unit(
            "causeway_provide_lag",
            "How long the most overdue slot has been due",
            Unit::Seconds,
            m.lag.clone(),
        );
        add.register_with_unit(
            "causeway_provide_last_catch_up",
            "Duration of the last run that announced all due slots",
            Unit::Seconds,
            m.last_catch_up.clone(),
        );
        add.register("causeway_provide_announced", "Keys announced", m.announced.clone());
        add.register("causeway_provide_records", "Provider records that peers accepted", m.records.clone());
        add.register("causeway_provide_failures", "Batches of records that peers did not accept", m.failures.clone());
        add.register("causeway_provide_walks", "DHT walks to find the closest peers of keys", m.walks.clone());
        m.slots.set(i64::from(super::keyspace::SLOTS));
        for scope in Scope::ALL {
            m.count(scope, Counts::default());
            m.set(scope, Status::default());
        }
        m
    }

    /// Adds to the counters.
    pub fn count(&self, scope: Scope, counts: Counts) {
        let label = DhtLabel { dht: scope };
        let all = [
            (&self.announced, counts.keys),
            (&self.records, counts.records),
            (&self.failures, counts.failures),
            (&self.walks, counts.walks),
        ];
        all.into_iter().for_each(|(family, count)| _ = family.get_or_create(&label).inc_by(count));
    }

    /// Sets the gauges from the status of a sweep.
    pub fn set(&self, scope: Scope, status: Status) {
        let label = DhtLabel { dht: scope };
        let all = [
            (&self.keys, status.keys),
            (&self.waiting, status.waiting as u64),
            (&self.slots_done, status.slots_done as u64),
            (&self.lag, status.lag),
            (&self.last_catch_up, status.last_catch_up),
        ];
        for (family, value) in all {
            family.get_or_create(&label).set(i64::try_from(value).unwrap_or(i64::MAX));
        }
    }
}
