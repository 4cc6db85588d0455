//! [`Target`]: a destination of published records.

use crate::bridge::Bridge;
use crate::scope::Scope;
use content::ipns::Record;
use content::names::Key;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::Arc;

/// A destination of published records: a DHT, or the delegated routers. A put waits while no peer is available, and is
/// cancelled if a newer record is to be put.
pub trait Target: Send + Sync {
    /// Its stable short name, for metrics and files.
    fn name(&self) -> String;

    /// Puts a record. Returns how many peers or routers accepted it, at least one, or why none did.
    fn put(&self, key: Key, record: Record) -> BoxFuture<'static, Result<usize, String>>;

    /// Whether a put would start now: it would not wait for a first peer.
    fn is_ready(&self) -> BoxFuture<'static, bool>;
}

struct Dht {
    bridge: Bridge,
    scope: Scope,
}

impl Target for Dht {
    fn name(&self) -> String {
        self.scope.label().to_owned()
    }

    fn put(&self, key: Key, record: Record) -> BoxFuture<'static, Result<usize, String>> {
        let (bridge, scope) = (self.bridge.clone(), self.scope);
        async move { bridge.put_record(scope, &key, &record).await.map_err(|error| error.to_string()) }.boxed()
    }

    fn is_ready(&self) -> BoxFuture<'static, bool> {
        let (bridge, scope) = (self.bridge.clone(), self.scope);
        async move { bridge.has_dht_peers(scope).await }.boxed()
    }
}

/// All configured routers as one target: each forwards a record to the same networks.
struct Routers {
    bridge: Bridge,
}

impl Target for Routers {
    fn name(&self) -> String {
        "routers".to_owned()
    }

    fn put(&self, key: Key, record: Record) -> BoxFuture<'static, Result<usize, String>> {
        let bridge = self.bridge.clone();
        async move {
            match bridge.publish_through_routers(&key, record.bytes().clone()).await {
                0 => Err("no router accepted the record".to_owned()),
                routers => Ok(routers),
            }
        }
        .boxed()
    }

    fn is_ready(&self) -> BoxFuture<'static, bool> {
        futures::future::ready(true).boxed()
    }
}

/// All targets of a node: the DHTs of both scopes, and the routers if any are configured.
pub fn targets(bridge: &Bridge) -> Vec<Arc<dyn Target>> {
    let dht = |scope| Arc::new(Dht { bridge: bridge.clone(), scope }) as Arc<dyn Target>;
    let mut targets: Vec<_> = Scope::ALL.map(dht).into();
    if bridge.has_routers() {
        targets.push(Arc::new(Routers { bridge: bridge.clone() }));
    }
    targets
}
