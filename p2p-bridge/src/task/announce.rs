//! Announcing what is provided ([`crate::providing`]).

use super::Task;
use crate::scope::Scope;
use libp2p::kad::RecordKey;
use std::time::Instant;

impl Task {
    pub(super) fn announce(&mut self) {
        let now = Instant::now();
        for scope in Scope::ALL {
            let Some(providing) = self.providing.get_mut(&scope) else { continue };
            let external: Vec<_> = self.swarm.external_addresses().cloned().collect();
            let dht = self.swarm.behaviour_mut().dht(scope);
            let reachable = dht.trusts_listeners() || external.iter().any(|address| dht.admits(address));
            let deaf = !reachable || dht.kbuckets().all(|bucket| bucket.is_empty());
            while let Some(key) = providing.next(deaf, now) {
                match dht.start_providing(key.clone()) {
                    Ok(query) => _ = self.announcing.insert((scope, query), key),
                    Err(error) => {
                        tracing::warn!(%error, "cannot announce any more content at the moment");
                        providing.finished(&key, false, now);
                    }
                }
            }
        }
    }

    pub(super) fn on_announced(&mut self, scope: Scope, key: &RecordKey, succeeded: bool) {
        if let Some(providing) = self.providing.get_mut(&scope) {
            providing.finished(key, succeeded, Instant::now());
        }
        self.announce();
    }
}
