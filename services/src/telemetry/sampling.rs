//! [`Sampler`]: which requests are traced.
//!
//! The decision is that of OpenTelemetry's parent-based sampler, with the ratio of trace identifiers for requests
//! without a parent (<https://opentelemetry.io/docs/specs/otel/trace/sdk/#parentbased>). A request with a parent is
//! traced if the parent is, so that traces are whole.
//!
//! Identifiers need to be unique, not secret. They are keyed hashes of a counter (SipHash with keys of the system's
//! randomness), which costs some nanoseconds and no system call.

use super::context::{SpanId, TraceId, TraceParent};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Decides which requests are traced, and makes identifiers. Clones share the counter.
#[derive(Debug, Clone)]
pub struct Sampler {
    /// A trace without a parent is sampled if the last 56 bits of its identifier are less.
    threshold: u64,
    ids: Arc<Identifiers>,
}

#[derive(Debug, Default)]
struct Identifiers {
    high: RandomState,
    low: RandomState,
    next: AtomicU64,
}

impl Sampler {
    /// Samples this share of the requests without a parent: from 0 for none to 1 for all.
    pub fn new(ratio: f64) -> Self {
        // A float outside the range saturates.
        let threshold = (ratio.clamp(0.0, 1.0) * (1_u64 << 56) as f64) as u64;
        Self { threshold, ids: Arc::default() }
    }

    /// The identifier of a request's trace, if it is sampled.
    pub fn sample(&self, parent: Option<&TraceParent>) -> Option<TraceId> {
        if let Some(parent) = parent {
            return parent.sampled.then_some(parent.trace_id);
        }
        if self.threshold == 0 {
            return None;
        }
        let count = self.ids.next.fetch_add(1, Ordering::Relaxed);
        let low = self.ids.low.hash_one(count);
        if low & ((1 << 56) - 1) >= self.threshold {
            return None;
        }
        // An identifier of zeros is invalid.
        let high = self.ids.high.hash_one(count) | 1;
        TraceId::new((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
    }

    /// The identifier of a new span.
    pub fn span_id(&self) -> SpanId {
        loop {
            let count = self.ids.next.fetch_add(1, Ordering::Relaxed);
            if let Some(id) = SpanId::new(self.ids.high.hash_one(count).to_be_bytes()) {
                return id;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_parent_decides_and_else_the_ratio() {
        let parent = |sampled| {
            let value = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0{}", u8::from(sampled));
            TraceParent::parse(value.as_bytes()).expect("is valid")
        };
        for ratio in [0.0, 0.5, 1.0] {
            let sampler = Sampler::new(ratio);
            let id = sampler.sample(Some(&parent(true))).map(|id| id.to_string());
            assert_eq!(id.as_deref(), Some("4bf92f3577b34da6a3ce929d0e0e4736"), "{ratio}");
            assert_eq!(sampler.sample(Some(&parent(false))), None, "{ratio}");
        }
        // Of 100,000 requests, 1 % are 1,000, and the standard deviation is 31.
        let table = [(0.0, 0..1), (0.01, 800..1_200), (0.5, 49_000..51_000), (1.0, 100_000..100_001)];
        for (ratio, expected) in table {
            let sampler = Sampler::new(ratio);
            let sampled: HashSet<_> = (0..100_000).filter_map(|_| sampler.sample(None)).collect();
            assert!(expected.contains(&sampled.len()), "{ratio}: {}", sampled.len());
        }
    }

    #[test]
    fn identifiers_are_unique_also_between_processes() {
        let samplers = [Sampler::new(1.0), Sampler::new(1.0)];
        let spans: HashSet<_> = samplers.iter().flat_map(|sampler| (0..10_000).map(|_| sampler.span_id())).collect();
        assert_eq!(spans.len(), 20_000);
    }
}
