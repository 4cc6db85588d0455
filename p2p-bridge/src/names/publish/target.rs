//! [`Target`]: somewhere a record can be put.

use crate::bridge::Bridge;
use crate::scope::Scope;
use content::ipns::Record;
use content::names::Key;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::Arc;

/// Somewhere a record can be put: a DHT, or a router that passes it on. It waits while nobody is there to take it, and is
/// dropped if another record is to be put.
pub trait Target: Send + Sync {
    /// What it is called, in metrics and files: short and always the same.
    fn name(&self) -> String;

    /// Puts a record. Returns how many took it, which is one at least, or why none did.
    fn put(&self, key: Key, record: Record) -> BoxFuture<'static, Result<usize, String>>;
}

struct Dht {
    bridge: Bridge,
    scope: Scope,
}

impl Target for Dht {
    fn name(&self) -> String {
        match self.scope {
            Scope::Wan => "wan".to_owned(),
            Scope::Lan => "lan".to_owned(),
        }
    }

    fn put(&self, key: Key, record: Record) -> BoxFuture<'static, Result<usize, String>> {
        let (bridge, scope) = (self.bridge.clone(), self.scope);
        async move { bridge.put_record(scope, &key, &record).await.map_err(|error| error.to_string()) }.boxed()
    }
}

/// The routers that are configured, all at once: what one of them takes it passes on to the same networks as the others.
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
                0 => Err("no router took the record".to_owned()),
                routers => Ok(routers),
            }
        }
        .boxed()
    }
}

/// Everything that records can be put into over a network: the DHTs of both scopes, and the routers if there are any.
pub fn targets(bridge: &Bridge) -> Vec<Arc<dyn Target>> {
    let dht = |scope| Arc::new(Dht { bridge: bridge.clone(), scope }) as Arc<dyn Target>;
    let mut targets: Vec<_> = Scope::ALL.map(dht).into();
    if bridge.has_routers() {
        targets.push(Arc::new(Routers { bridge: bridge.clone() }));
    }
    targets
}
