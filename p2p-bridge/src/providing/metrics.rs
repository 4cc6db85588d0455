//! Metrics of announcing: whether all keys are announced in time.

use super::sweep::{Counts, Status};
use crate::metrics::DhtLabel;
use crate::scope::Scope;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

crate::metrics! {
    /// Handles to the metrics. Cloning shares them.
    #[derive(Debug, Clone)]
    pub struct Metrics {
        keys: Family<DhtLabel, Gauge> = "causeway_provide_keys",
            "Keys to announce, as of the last read of the key source";
        waiting: Family<DhtLabel, Gauge> = "causeway_provide_waiting", "New keys not yet announced";
        slots_done: Family<DhtLabel, Gauge> = "causeway_provide_slots_done",
            "Slots of the key space that are not due";
        slots: Gauge = "causeway_provide_slots", "Slots that the key space is divided into";
        lag: Family<DhtLabel, Gauge> = "causeway_provide_lag" in Seconds,
            "How long the most overdue slot has been due";
        last_catch_up: Family<DhtLabel, Gauge> = "causeway_provide_last_catch_up" in Seconds,
            "Duration of the last run that announced all due slots";
        announced: Family<DhtLabel, Counter> = "causeway_provide_announced", "Keys announced";
        records: Family<DhtLabel, Counter> = "causeway_provide_records", "Provider records that peers accepted";
        failures: Family<DhtLabel, Counter> = "causeway_provide_failures",
            "Batches of records that peers did not accept";
        walks: Family<DhtLabel, Counter> = "causeway_provide_walks", "DHT walks to find the closest peers of keys";
    }
}

impl Metrics {
    /// Creates the metrics and adds them to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let m = Self::registered(registry);
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
