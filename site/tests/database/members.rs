//! Which gateways are members of a site.

use crate::support::{Postgres, until};
use futures::FutureExt as _;
use futures::future::ready;
use site::database::{Database, Identity, Member};
use site::members::{MemberOptions, Members, Reach};
use std::time::Duration;

const SITE: &str = "members";
/// The peer ID of a gateway that does not listen for peers.
const OFFLINE: &str = "offline";

async fn join(server: &Postgres, peer_id: &str, lease: Duration) -> Members {
    drop(server.open(SITE).await);
    let database = Database::new(&server.options(SITE)).expect("the settings are valid");
    let me = Identity { peer_id: peer_id.to_owned(), host: format!("host of {peer_id}"), version: "1".to_owned() };
    let options = MemberOptions { lease, interval: Duration::from_millis(50) };
    let addresses = if peer_id == OFFLINE { vec![] } else { vec![format!("/dns4/{peer_id}/tcp/4001")] };
    let reach = Reach {
        addresses: Box::new(move || ready(addresses.clone()).boxed()),
        on_members: Box::new(move |members| assert!(members.iter().all(|member| member.is_alive))),
    };
    Members::join(database, me, reach, &options).expect("joins")
}

const LONG: Duration = Duration::from_secs(600);

async fn listed(members: &Members) -> Vec<(String, bool)> {
    let listed = members.list().await.unwrap_or_default();
    listed.into_iter().map(|Member { peer_id, is_alive, .. }| (peer_id, is_alive)).collect()
}

/// Keys that a member provides.
fn provided(members: &Members) -> usize {
    let share = members.share_of_keys();
    (0..1000_u32).filter(|key| share.has(&key.to_be_bytes())).count()
}

fn rows(rows: &[(&str, bool)]) -> Vec<(String, bool)> {
    rows.iter().map(|(peer_id, is_alive)| ((*peer_id).to_owned(), *is_alive)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn members_know_each_other_and_who_has_stopped() {
    let server = Postgres::start().await;
    let (a, b) = (join(&server, "a", LONG).await, join(&server, "b", LONG).await);
    until("both are listed", async || listed(&a).await == rows(&[("a", true), ("b", true)])).await;
    let row = a.list().await.expect("is read").remove(1);
    assert_eq!((row.host.as_str(), row.version.as_str()), ("host of b", "1"));
    assert!(row.seen_ago < LONG && row.started.elapsed().is_ok_and(|age| age < LONG), "{row:?}");
    assert_eq!((provided(&a), provided(&b)), (1000, 1000), "two provide all");
    // It is killed, and its lease ends.
    let c = join(&server, "c", Duration::from_millis(300)).await;
    until("it is known", async || provided(&a) < 1000 && provided(&c) < 1000).await;
    until("each key has two", async || provided(&a) + provided(&b) + provided(&c) == 2000).await;
    drop(c);
    until("its lease has ended", async || listed(&a).await == rows(&[("a", true), ("b", true), ("c", false)])).await;
    until("the others provide its keys", async || (provided(&a), provided(&b)) == (1000, 1000)).await;
    // It is started again, and stopped.
    let again = join(&server, "c", LONG).await;
    until("it is back", async || listed(&a).await.last() == Some(&("c".to_owned(), true))).await;
    again.leave().await;
    assert_eq!(listed(&a).await, rows(&[("a", true), ("b", true)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_waits_for_the_database() {
    let mut server = Postgres::start().await;
    let a = join(&server, "a", LONG).await;
    until("it is listed", async || listed(&a).await == rows(&[("a", true)])).await;
    server.stop();
    assert!(a.list().await.is_err());
    assert_eq!(provided(&a), 1000);
    server.restart().await;
    until("it is listed again", async || listed(&a).await == rows(&[("a", true)])).await;
    let before = a.list().await.expect("is read")[0].seen_ago;
    let renewed = async || a.list().await.is_ok_and(|listed| listed[0].seen_ago < before);
    until("it renews its lease", renewed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_agree_on_the_owner_of_a_root_which_can_be_reached() {
    let server = Postgres::start().await;
    let names = ["a", "b", "c", OFFLINE];
    let mut members = Vec::new();
    for name in names {
        members.push(join(&server, name, LONG).await);
    }
    until("all know all", async || members.iter().all(|members| members.count_alive() == Some(names.len()))).await;
    let owners = (0..300_u32).map(|key| {
        let owners = names.iter().zip(&members).map(|(name, members)| {
            let owner = members.owner(&key.to_be_bytes());
            owner.iter().for_each(|owner| assert_eq!(owner.addresses, [format!("/dns4/{}/tcp/4001", owner.peer_id)]));
            // It is the owner itself.
            owner.map_or((*name).to_owned(), |owner| owner.peer_id)
        });
        let owners = owners.collect::<Vec<_>>();
        assert!(owners.iter().all(|owner| *owner == owners[0]), "{owners:?}");
        owners[0].clone()
    });
    let owners = owners.collect::<Vec<_>>();
    for name in &names[..3] {
        let owned = owners.iter().filter(|owner| owner == name).count();
        assert!((60..140).contains(&owned), "{name} owns {owned} of 300; the standard deviation is 8");
    }
    assert!(!owners.contains(&OFFLINE.to_owned()));
}
