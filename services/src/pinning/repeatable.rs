//! [`RepeatableImport`]: an import that may run again, also while a run before it is paused and has not ended.
//!
//! Goals: however often an import runs, its owner has one request for each of its roots; a run from which another one
//! has taken over changes no pin any more, neither its own nor those of the other one.
//!
//! Non-goals: which run has the import ([`Fence`] asks); what becomes of a run that is killed.
//!
//! *Why this is right.* The ID of a request is derived from the idempotency key of the import, so that a further run
//! decides to record the same requests, and finds those that are there ([`Pins::record_all`](super::Pins::record_all)):
//! the decision is made on the state of the log to which its changes are appended. All requests of a run are one entry
//! of the log. So a run that fails has recorded none, and withdraws none that another run has found.
//!
//! - A run is killed before its entry is appended: the next run records all requests.
//! - It is killed after that, or the answer of the log is lost: the next run finds all requests.
//! - It is paused before it reads the position of the log, or before it asks the fence: the fence says no.
//! - It is paused after both, before its entry is appended. If the next run appends first, the position is another one,
//!   and the fence is asked again. If the next run appends later, it finds what this one has appended.
//!
//! By the last item, an entry of a paused run precedes all entries of the next run and what follows them: a pin that
//! the owner removes after the next run does not return. What is left: a run that is paused between the fence and its
//! append for as long as the next run takes to fail without an entry, in a site that appends nothing meanwhile, leaves
//! the pins of an import that is said to have failed. The owner can remove them.

use cache::StoreError;
use content::Cid;
use futures::future::BoxFuture;
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::sync::Arc;

/// Asks whether a run still has its import. An answer is true at a time after the question.
pub type Fence = Arc<dyn Fn() -> BoxFuture<'static, Result<bool, StoreError>> + Send + Sync>;

/// A run of an import that may run again. Clones are the same run.
#[derive(Clone)]
pub struct RepeatableImport {
    /// The idempotency key: the same for all runs of the import, and of no other one. The IDs of requests are as
    /// unguessable as it is.
    pub key: Arc<str>,
    /// Whether this run still has the import.
    pub fence: Fence,
}

impl fmt::Debug for RepeatableImport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RepeatableImport").field("key", &self.key).finish_non_exhaustive()
    }
}

impl RepeatableImport {
    /// The ID of the request of an owner for a root of this import.
    pub fn request_id(&self, owner: &str, root: &Cid) -> Arc<str> {
        let (mut hash, root) = (Sha256::new(), root.to_bytes());
        for part in [&b"causeway: a request of an import"[..], self.key.as_bytes(), owner.as_bytes(), &root[..]] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let mut id = [0_u8; 16];
        id.iter_mut().zip(hash.finalize()).for_each(|(to, byte)| *to = byte);
        format!("{:032x}", u128::from_be_bytes(id)).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    #[test]
    fn requests_of_an_import_have_ids_of_their_own() {
        let roots = ["bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy", "bafkqaaa"]
            .map(|root| root.parse::<Cid>().expect("a CID"));
        let import = |key: &str| RepeatableImport { key: key.into(), fence: Arc::new(|| async { Ok(true) }.boxed()) };
        let mut ids: Vec<_> = Vec::new();
        for (key, owner) in [("a", "b"), ("ab", ""), ("", "ab"), ("b", "a")] {
            for root in &roots {
                let id = import(key).request_id(owner, root);
                assert_eq!(id, import(key).request_id(owner, root), "it is that of all runs");
                assert!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{id}");
                ids.push(id);
            }
        }
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 8);
    }
}
