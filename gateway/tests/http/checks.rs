//! How often one request asks the policy, and looks a block up in the local tiers.

use crate::dag::raw;
use crate::site::{Setup, header};
use crate::upstream::FakeNetwork;
use content::{Cid, Policy, Verdict};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Allows everything, and counts the checks of blocks.
#[derive(Default)]
struct CountingPolicy(AtomicU64);

impl Policy for CountingPolicy {
    fn generation(&self) -> u64 {
        0
    }

    fn check(&self, _cid: &Cid) -> Verdict {
        self.0.fetch_add(1, Ordering::SeqCst);
        Verdict::Allow
    }
}

#[tokio::test]
async fn the_policy_is_asked_where_a_block_is_looked_up_and_nowhere_else() {
    let (stored, remote) = (raw("stored"), raw("remote"));
    let network = FakeNetwork::new([&remote], []);
    let policy = Arc::<CountingPolicy>::default();
    let setup = Setup { upstream: Some(network), policy: Arc::clone(&policy) as _, ..Setup::new(&[&stored]) };
    let site = setup.start().await;
    let tag = format!("\"{}\"", stored.cid());
    let table = [
        // Memory, the page cache, the call; the block in memory, on the disk, and when the call has ended.
        ("from the network", &remote, None, "200 network", 6, 1),
        ("from memory", &remote, None, "200 ram", 1, 1),
        ("by the CID alone", &stored, Some(("if-none-match", &*tag)), "304 ram", 1, 0),
    ];
    for (what, block, condition, expected, checks, look_ups) in table {
        let before = (policy.0.load(Ordering::SeqCst), site.look_ups(block));
        let response = site.send("GET", &format!("/ipfs/{}", block.cid()), condition.as_slice()).await;
        let tier = header(&response, "server-timing").trim_start_matches("tier;desc=").trim_matches('"').to_owned();
        assert_eq!(format!("{} {tier}", response.status().as_u16()), expected, "{what}");
        response.bytes().await.expect("a body");
        let after = (policy.0.load(Ordering::SeqCst), site.look_ups(block));
        assert_eq!((after.0 - before.0, after.1 - before.1), (checks, look_ups), "{what}");
    }
}
