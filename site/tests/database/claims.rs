//! Claims of several gateways.

use crate::support::Postgres;
use content::{Block, Cid, codec, hashes};
use services::pinning::coordination::{Claim, Claimed, Claims};
use site::database::{ClaimOptions, Database, DatabaseClaims};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(600);
const SHORT: Duration = Duration::from_millis(200);

fn root(content: &'static [u8]) -> Cid {
    *Block::of(codec::RAW, hashes::SHA2_256, 32, bytes::Bytes::from_static(content)).expect("a block").cid()
}

/// A site with its tables.
async fn site(server: &Postgres) -> Database {
    drop(server.open("claims").await);
    Database::new(&server.options("claims")).expect("the settings are valid")
}

fn member(database: &Database, lease: Duration) -> DatabaseClaims {
    DatabaseClaims::new(database.clone(), &ClaimOptions { lease }).expect("has random numbers")
}

async fn granted(claims: &DatabaseClaims, root: &Cid) -> Option<Claim> {
    match claims.claim(root).await.expect("is asked") {
        Claimed::Granted(claim) => Some(claim),
        Claimed::Held { .. } => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_members_gets_a_claim_until_it_releases_it() {
    let server = Postgres::start().await;
    let database = site(&server).await;
    let members: Vec<_> = (0..6).map(|_| member(&database, LONG)).collect();
    for content in [&b"one"[..], b"two", b"three"] {
        let root = root(content);
        let claimed = futures::future::join_all(members.iter().map(|member| granted(member, &root))).await;
        let winners: Vec<usize> = (0..6).filter(|index| claimed[*index].is_some()).collect();
        assert_eq!(winners.len(), 1, "{winners:?}");
        let claim = claimed[winners[0]].clone().expect("is granted");
        let other = &members[(winners[0] + 1) % 6];
        let Claimed::Held { retry_after } = other.claim(&root).await.expect("is asked") else { panic!("is held") };
        assert!(retry_after <= LONG && retry_after > LONG / 2, "{retry_after:?}");
        // What others hold is neither renewed nor released.
        assert_eq!(other.renew(&claim).await.expect("is asked"), None);
        other.release(claim.clone()).await;
        assert!(granted(other, &root).await.is_none());
        // An answer that was lost is asked for again.
        let again = granted(&members[winners[0]], &root).await.expect("is its own");
        assert!(again.term > claim.term);
        assert_eq!(members[winners[0]].renew(&claim).await.expect("is asked"), None, "the former one is void");
        members[winners[0]].release(again).await;
        assert!(granted(other, &root).await.is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_not_renewed_is_taken_over_with_a_higher_term() {
    let server = Postgres::start().await;
    let database = site(&server).await;
    let (paused, other) = (member(&database, SHORT), member(&database, LONG));
    let root = root(b"root");
    let asked = Instant::now();
    let first = granted(&paused, &root).await.expect("is free");
    assert!(first.lease_end.expect("it ends") >= asked + SHORT);
    let taken = loop {
        match other.claim(&root).await.expect("is asked") {
            Claimed::Granted(claim) => break claim,
            Claimed::Held { retry_after } => {
                assert!(retry_after <= SHORT);
                tokio::time::sleep(retry_after).await;
            }
        }
    };
    assert!(!first.is_valid(Instant::now()), "it had ended for its member as well");
    assert!(taken.term > first.term);
    assert_eq!(paused.renew(&first).await.expect("is asked"), None);
    paused.release(first).await;
    assert!(granted(&paused, &root).await.is_none());
    let renewed = other.renew(&taken).await.expect("is asked").expect("is its own");
    assert_eq!(renewed.term, taken.term);
    assert!(renewed.lease_end > taken.lease_end);
}

/// The clock of this process does not matter: a lease that no other took over can be renewed late.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_has_ended_can_be_renewed_if_no_other_has_it() {
    let server = Postgres::start().await;
    let claims = member(&site(&server).await, SHORT);
    let claim = granted(&claims, &root(b"root")).await.expect("is free");
    tokio::time::sleep(claim.lease_end.expect("it ends").saturating_duration_since(Instant::now())).await;
    assert!(!claim.is_valid(Instant::now()));
    assert!(claims.renew(&claim).await.expect("is asked").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_database_nothing_is_claimed() {
    let mut server = Postgres::start().await;
    let claims = member(&site(&server).await, LONG);
    let claim = granted(&claims, &root(b"root")).await.expect("is free");
    server.stop();
    assert!(claims.claim(&root(b"other")).await.is_err());
    assert!(claims.renew(&claim).await.is_err());
    // It ends with its lease.
    claims.release(claim.clone()).await;
    server.restart().await;
    crate::support::until("it is connected again", async || claims.renew(&claim).await.is_ok()).await;
    assert!(claims.renew(&claim).await.expect("is asked").is_some());
}
