//! A flood of misses: requests for content that no peer has, each of which is searched for in the DHT. Cache hits are
//! answered all the while, because the network runs on threads of its own, which have a lower priority.

use crate::support::assert_same_bytes;
use crate::support::causeway::{Causeway, Launch};
use crate::support::kubo::Kubo;
use crate::support::{client, eventually};
use content::hashes::SHA2_256;
use content::{Block, codec};
use procfs::process::Process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinSet;

/// More than `http.client_misses_max`, so that some are rejected.
const FLOODERS: u64 = 160;
const HITS: usize = 300;
/// The searches that must begin while hits are requested.
const SEARCHES: u64 = 100;
const TIMEOUT: Duration = Duration::from_secs(120);
const QUERIES: &str = "causeway_dht_queries_total{dht=\"lan\"}";

#[tokio::test(flavor = "multi_thread")]
async fn hits_are_answered_during_a_flood_of_misses_by_threads_of_a_higher_priority() {
    let kubo = Kubo::start().await;
    let dir = TempDir::new().expect("the temporary folder is writable");
    // A short search, so that many begin.
    let launch = Launch::new(dir.path()).bootstrap(kubo.tcp()).set("CAUSEWAY_HTTP_STALL_TIMEOUT_SECONDS", 1);
    let causeway = launch.start().await;
    let content = b"a file that is in memory".repeat(100);
    let path = format!("/ipfs/{}", kubo.add(&content[..], &["--cid-version=1", "--raw-leaves"]));
    kubo.connect(causeway.tcp()).await;
    eventually("the file is fetched", TIMEOUT, async || {
        let answer = causeway.get(&path).await;
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    })
    .await;

    let (mut flood, answered) = flood(&causeway);
    let started = async |count: u64| {
        eventually("searches begin", TIMEOUT, async || {
            let queries = causeway.metrics().await.sample(QUERIES);
            if queries >= count { Ok(queries) } else { Err(queries) }
        })
        .await
    };
    let before = started(SEARCHES).await;
    let (mut hits, mut queries) = (0, before);
    while hits < HITS || queries < before + SEARCHES {
        let answer = tokio::time::timeout(TIMEOUT, causeway.get(&path)).await.expect("in time");
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_same_bytes(&path, &answer.body, &content);
        hits += 1;
        if hits % 50 == 0 {
            queries = causeway.metrics().await.sample(QUERIES);
        }
    }
    let [searched, rejected] = [0, 1].map(|index| answered[index].load(Ordering::Relaxed));
    assert!(searched > 0 && rejected > 0, "{searched} misses were searched for, {rejected} rejected");
    let ended = flood.try_join_next();
    assert!(ended.is_none(), "a flooder got another answer: {ended:?}");
    assert_priorities(&causeway);
    flood.shutdown().await;
    causeway.stop().await;
    kubo.stop().await;
}

/// Requests missing blocks until it is dropped. Counts those that were answered after a search, and those that were
/// rejected.
fn flood(causeway: &Causeway) -> (JoinSet<()>, Arc<[AtomicU64; 2]>) {
    let (mut flood, counts, client) = (JoinSet::new(), Arc::<[AtomicU64; 2]>::default(), client());
    for flooder in 0..FLOODERS {
        let (client, url, counts) = (client.clone(), causeway.url("/ipfs"), Arc::clone(&counts));
        flood.spawn(async move {
            for number in 0_u64.. {
                let bytes = [flooder.to_be_bytes(), number.to_be_bytes()].concat();
                let block = Block::of(codec::RAW, SHA2_256, 32, bytes.into()).expect("a block");
                let response = client.get(format!("{url}/{}", block.cid())).send().await;
                match response.expect("an answer").status().as_u16() {
                    404 | 504 => _ = counts[0].fetch_add(1, Ordering::Relaxed),
                    429 => {
                        counts[1].fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                    status => panic!("{status} for content that no peer has"),
                }
            }
        });
    }
    (flood, counts)
}

/// The network has done its work on threads of a lower priority, and all other threads have the priority of the
/// process.
fn assert_priorities(causeway: &Causeway) {
    let process = Process::new(i32::try_from(causeway.process.id()).expect("process ids fit")).expect("it runs");
    let tasks = process.tasks().expect("its threads are known");
    let threads: Vec<_> = tasks.filter_map(|task| task.ok()?.stat().ok()).collect();
    let (network, others): (Vec<_>, Vec<_>) = threads.iter().partition(|thread| thread.comm == "network");
    let own = process.stat().expect("it runs").nice;
    assert!(!network.is_empty() && others.iter().any(|thread| thread.comm.starts_with("tokio")), "{threads:?}");
    assert!(network.iter().all(|thread| thread.nice == (own + 10).min(19)), "{own}: {network:?}");
    assert!(network.iter().map(|thread| thread.utime + thread.stime).sum::<u64>() > 0, "{network:?}");
    // libp2p's timer thread is started by the network, and shares its priority.
    let others = others.into_iter().filter(|thread| thread.comm != "futures-timer");
    let lower: Vec<_> = others.filter(|thread| thread.nice != own).collect();
    assert!(lower.is_empty(), "{own}: {lower:?}");
}
