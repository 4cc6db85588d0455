//! Metrics of ACME.

use super::on_demand::Demand;
use super::schedule::FailureKind;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

p2p_bridge::label_values! {
    /// The result of an order.
    pub enum OrderResult {
        /// A certificate was issued.
        Issued = "issued",
        /// The challenge failed, or the authority rejected the order.
        Rejected = "rejected",
        /// The authority did not answer, or had an error.
        Unreachable = "unreachable",
        /// A limit of the authority is reached.
        RateLimited = "rate_limited",
    }
}

impl From<FailureKind> for OrderResult {
    fn from(kind: FailureKind) -> Self {
        match kind {
            FailureKind::Unreachable => Self::Unreachable,
            FailureKind::RateLimited => Self::RateLimited,
            FailureKind::Rejected => Self::Rejected,
        }
    }
}

p2p_bridge::label_values! {
    /// Whether an order is for a name that a client asked for, and not for a configured one.
    enum OnDemand {
        Yes = "true",
        No = "false",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OrderLabel {
    result: OrderResult,
    on_demand: OnDemand,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DemandLabel {
    result: Demand,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NameLabel {
    name: String,
}

p2p_bridge::metrics! {
    /// Metrics of ACME.
    #[derive(Debug)]
    pub struct AcmeMetrics {
        orders: Family<OrderLabel, Counter> = "causeway_acme_orders",
            "Orders of certificates by ACME, by result, and by whether they are on demand";
        demands: Family<DemandLabel, Counter> = "causeway_acme_on_demand",
            "TLS handshakes for names without a certificate, by what became of them";
        expiry: Family<NameLabel, Gauge> = "causeway_acme_certificate_expiry_timestamp_seconds",
            "When the certificate of a configured name expires, as a Unix timestamp; 0 while it has none";
        pub overdue: Gauge = "causeway_acme_certificates_overdue",
            "Configured names without a certificate, or whose certificate should have been renewed long ago";
        pub on_demand: Gauge = "causeway_acme_on_demand_certificates", "Stored certificates on demand";
        pub last_failure: Gauge = "causeway_acme_last_failure_timestamp_seconds",
            "When the last order of a configured name failed, as a Unix timestamp; 0 if none has";
    }
}

impl AcmeMetrics {
    /// Creates the metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::registered(registry);
        // A counter that is missing until its first event looks like a broken one.
        for result in OrderResult::ALL {
            for on_demand in OnDemand::ALL {
                metrics.orders.get_or_create(&OrderLabel { result, on_demand }).inc_by(0);
            }
        }
        for result in Demand::ALL {
            metrics.demands.get_or_create(&DemandLabel { result }).inc_by(0);
        }
        metrics
    }

    /// Counts an order.
    pub(super) fn order(&self, result: OrderResult, is_on_demand: bool) {
        let on_demand = if is_on_demand { OnDemand::Yes } else { OnDemand::No };
        self.orders.get_or_create(&OrderLabel { result, on_demand }).inc();
    }

    /// Counts a name that a client asked for.
    pub(super) fn demand(&self, result: Demand) {
        self.demands.get_or_create(&DemandLabel { result }).inc();
    }

    /// Sets the expiry of a configured name's certificate.
    pub(super) fn set_expiry(&self, name: &str, expiry: i64) {
        self.expiry.get_or_create(&NameLabel { name: name.to_owned() }).set(expiry);
    }
}
