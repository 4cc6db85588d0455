//! The same answers after a restart without peers: content and records from the disk.

use crate::case::{Case, judge};
use crate::fixtures::KEY_ED25519;
use crate::world::{Peers, address, launch};
use crate::{car, cors, dag, dnslink, ipns, raw, redirects, subdomain, tar, unixfs};
use tempfile::TempDir;

#[tokio::test(flavor = "multi_thread")]
async fn cached_content_needs_no_network() {
    let dir = TempDir::with_prefix("causeway-restart-").expect("the temporary folder is writable");
    let peers = Peers::start().await;
    let launch = launch(dir.path(), &peers);
    let causeway = launch.start().await;
    for (table, cases) in sample() {
        judge(address(&causeway), &format!("{table}, from the network"), cases).await;
    }
    causeway.stop().await;
    let Peers { holder, witness } = peers;
    holder.stop().await;
    witness.stop().await;

    let causeway = launch.start().await;
    for (table, cases) in sample() {
        judge(address(&causeway), &format!("{table}, from the disk"), cases).await;
    }
    // All resolved records are cached, also those without requested content.
    let record = format!("/ipns/{}?format=ipns-record", KEY_ED25519[1]);
    assert_eq!(causeway.get(&record).await.status, 200);
    causeway.stop().await;
}

fn sample() -> Vec<(&'static str, Vec<Case>)> {
    vec![
        ("listings", unixfs::listings()),
        ("caching", unixfs::caching()),
        ("ranges", unixfs::ranges()),
        ("names of files", unixfs::names()),
        ("blocks", raw::blocks()),
        ("codecs", dag::codecs()),
        ("traversal", dag::traversal()),
        ("scopes", car::scopes()),
        ("TAR", tar::archives()),
        ("names", ipns::paths()),
        ("records", ipns::sent_records()),
        ("subdomains", subdomain::content("example.com")),
        ("subdomains of names", subdomain::names("example.com")),
        ("DNSLink", dnslink::cases()),
        ("_redirects", redirects::rules()),
        ("CORS", cors::cases()),
    ]
}
