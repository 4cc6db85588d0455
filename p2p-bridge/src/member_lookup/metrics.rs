//! Metrics of look-ups between the gateways of a site.

use crate::metrics::seconds;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

crate::label_values! {
    /// How a look-up ended.
    pub enum LookupResult {
        /// The block was stored at the gateway, or in the shared storage.
        Stored = "stored",
        /// The gateway was asked to fetch the block if necessary, and returned it.
        Fetched = "fetched",
        /// The block is not stored, and was not to be fetched.
        NotStored = "not_stored",
        /// The gateway searched the network, which made no progress.
        NotFound = "not_found",
        /// The gateway had too many look-ups in progress.
        Busy = "busy",
        /// The gateway could not say whether there is such a block.
        Failed = "failed",
        /// The gateway could not be asked, or did not answer in time.
        Unavailable = "unavailable",
        /// The gateway sent a block that does not match its hash, or no message of the protocol.
        Invalid = "invalid",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: LookupResult,
}

crate::metrics! {
    /// Handles to the metrics. Clones share them.
    #[derive(Debug, Clone)]
    pub struct Metrics {
        asked: Family<ResultLabel, Counter> = "causeway_site_lookups",
            "Blocks that this gateway asked other gateways of the site for, by result";
        pub received_bytes: Counter = "causeway_site_lookup_received" in Bytes,
            "Bytes of blocks received from other gateways of the site";
        pub seconds: Histogram = "causeway_site_lookup_duration" in Seconds,
            "Time from asking another gateway of the site for a block until its answer", seconds();
        served: Family<ResultLabel, Counter> = "causeway_site_lookups_served",
            "Blocks that other gateways of the site asked this one for, by result";
        pub serving: Gauge = "causeway_site_lookups_serving",
            "Look-ups of other gateways of the site in progress";
    }
}

impl Metrics {
    /// Creates the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::registered(registry);
        for result in LookupResult::ALL {
            _ = metrics.asked.get_or_create(&ResultLabel { result }).inc_by(0);
            _ = metrics.served.get_or_create(&ResultLabel { result }).inc_by(0);
        }
        metrics
    }

    /// Counts a look-up of this gateway.
    pub fn asked(&self, result: LookupResult) {
        self.asked.get_or_create(&ResultLabel { result }).inc();
    }

    /// Counts a look-up of another gateway.
    pub fn served(&self, result: LookupResult) {
        self.served.get_or_create(&ResultLabel { result }).inc();
    }

    /// The number of look-ups of this gateway that ended so.
    #[cfg(test)]
    pub fn count_asked(&self, result: LookupResult) -> u64 {
        self.asked.get_or_create(&ResultLabel { result }).get()
    }

    /// The number of look-ups of other gateways that ended so.
    #[cfg(test)]
    pub fn count_served(&self, result: LookupResult) -> u64 {
        self.served.get_or_create(&ResultLabel { result }).get()
    }
}
