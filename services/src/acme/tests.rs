//! Certificates on demand that are stored, without an authority: nothing here runs an order.

use super::certificate::tests::pem;
use super::*;
use config::Flags;
use content::ipns::Record;
use content::names::Key;
use content::{Cid, Resolution};
use futures::future::{BoxFuture, ready};
use prometheus_client::registry::Registry;
use tempfile::TempDir;

const DIRECTORY: &str = "https://ca.example/directory";

/// A resolver for which every domain but `none.example` has a DNSLink.
struct Links;

impl NameResolver for Links {
    fn resolve(&self, name: &Name) -> BoxFuture<'static, Result<Resolution, NameError>> {
        let root = Cid::try_from("bafkqaaa").expect("a CID");
        let found = Resolution { root, segments: vec![], ttl: Duration::from_secs(1), stale: None, hops: vec![] };
        let has_link = name.to_string() != "none.example";
        ready(if has_link { Ok(found) } else { Err(NameError::Offline { name: name.clone() }) }).boxed()
    }

    fn record(&self, key: &Key) -> BoxFuture<'static, Result<Record, NameError>> {
        ready(Err(NameError::Offline { name: Name::Key(*key) })).boxed()
    }
}

fn client(last: u8) -> IpAddr {
    [192, 0, 2, last].into()
}

/// A folder with stored certificates, valid until the end of a year, that were used this many days ago.
fn folder(stored: &[(&str, i32, i64)]) -> TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let store = Store::new(dir.path(), DIRECTORY);
    store.create().expect("creates");
    for (name, until, days) in stored {
        store.save(name, pem(name, *until).as_bytes()).expect("writes");
        store.touch(name, epoch::signed_now() - days * DAY).expect("is recorded");
    }
    dir
}

fn open(dir: &TempDir, on_demand_max: u64) -> Arc<Acme> {
    let mut loaded = config::load(&Flags::default(), []).expect("the defaults are valid");
    loaded.config.data_dir = dir.path().to_owned();
    let http = &mut loaded.config.http;
    http.acme_directory = DIRECTORY.to_owned();
    http.acme_names = vec!["gateway.example".to_owned()];
    http.acme_on_demand = on_demand_max > 0;
    http.acme_on_demand_max = on_demand_max;
    let metrics = AcmeMetrics::register(&mut Registry::default());
    Acme::open(&loaded, Arc::new(Links), metrics).expect("opens").expect("is turned on")
}

fn stored(dir: &TempDir) -> Vec<String> {
    let found = Store::new(dir.path(), DIRECTORY).load().expect("reads");
    let mut names: Vec<String> = found.into_iter().map(|(name, _)| name).collect();
    names.sort();
    names
}

#[tokio::test]
async fn the_least_recently_used_certificate_on_demand_makes_room_if_it_was_not_used_for_a_day() {
    let dir = folder(&[("new.example", 2099, 0), ("old.example", 2099, 3), ("gateway.example", 2099, 9)]);
    let acme = open(&dir, 2);
    assert!(acme.certificate("old.example").is_some() && acme.certificate("other.example").is_none());
    // That was a use of it.
    assert_eq!(acme.admit("a.example", client(1)).await, Err(Demand::Full));
    let acme = open(&dir, 2);
    assert_eq!(acme.admit("a.example", client(1)).await.as_deref(), Ok("a.example"));
    // It is ordered already, and there is no room for another one.
    assert_eq!(acme.admit("A.example", client(2)).await.as_deref(), Ok("a.example"));
    assert_eq!(acme.admit("b.example", client(2)).await, Err(Demand::Full));
    let issued = AcmeCertificate::parse("a.example", pem("a.example", 2099).as_bytes(), epoch::signed_now());
    acme.issued("a.example", issued.expect("is valid"), pem("a.example", 2099)).await;
    assert!(acme.certificate("a.example").is_some() && acme.certificate("old.example").is_none());
    assert_eq!(stored(&dir), ["a.example", "gateway.example", "new.example"]);
}

#[tokio::test]
async fn names_are_refused_for_a_time_and_failed_ones_at_least_as_long_as_the_authority_asks() {
    let dir = folder(&[]);
    let acme = open(&dir, 10);
    assert_eq!(acme.missing(), ["gateway.example"]);
    assert_eq!(acme.admit("none.example", client(1)).await, Err(Demand::NoDnsLink));
    assert_eq!(acme.admit("none.example", client(1)).await, Err(Demand::Cached));
    assert_eq!(acme.admit("localhost", client(1)).await, Err(Demand::InvalidName));
    assert!(acme.admit("a.example", client(1)).await.is_ok());
    let retry_after = Some(Duration::from_secs(7200));
    let failure = OrderFailure { kind: FailureKind::RateLimited, reason: "why".to_owned(), retry_after };
    acme.failed("a.example", failure);
    // One that fails leaves no plan, a configured one does.
    assert!(!acme.schedule().has("a.example") && acme.schedule().has("gateway.example"));
    // The next handshake does not wait.
    assert_eq!(acme.obtain("a.example", client(1)).now_or_never().map(|found| found.is_none()), Some(true));
    let refused =
        [0, 7000, 7300].map(|seconds| acme.admission().is_refused("a.example", epoch::signed_now() + seconds));
    assert_eq!(refused, [true, true, false]);
}

#[tokio::test]
async fn expired_certificates_on_demand_and_those_above_the_limit_are_removed_and_configured_ones_stay() {
    let names = [("a.example", 2099, 0), ("b.example", 2099, 1), ("c.example", 2099, 2)];
    let dir = folder(&[&names[..], &[("expired.example", 2021, 0), ("gateway.example", 2021, 0)]].concat());
    let acme = open(&dir, 2);
    assert!(acme.certificate("expired.example").is_none() && acme.certificate("gateway.example").is_some());
    acme.sweep(epoch::signed_now()).await;
    assert_eq!(stored(&dir), ["a.example", "b.example", "gateway.example"]);
    // Without certificates on demand, stored ones are neither used nor removed.
    let dir = folder(&names);
    let acme = open(&dir, 0);
    acme.sweep(epoch::signed_now()).await;
    assert!(acme.certificate("a.example").is_none() && acme.obtain("a.example", client(1)).await.is_none());
    assert_eq!(stored(&dir).len(), 3);
}

#[tokio::test]
async fn the_state_of_a_configured_name_has_why_its_order_failed_until_one_succeeds() {
    let dir = folder(&[("a.example", 2099, 0)]);
    let acme = open(&dir, 10);
    let status = || {
        let [status] = &acme.statuses()[..] else { panic!("only configured names: {:?}", acme.statuses()) };
        status.clone()
    };
    let missing = NameStatus { name: "gateway.example".to_owned(), expires_at: None, is_overdue: true, failure: None };
    assert_eq!(status(), missing);
    let failure = |name| {
        let reason = "ä".repeat(FAILURE_BYTES_MAX);
        acme.failed(name, OrderFailure { kind: FailureKind::Rejected, reason, retry_after: None });
    };
    failure("a.example");
    assert_eq!(status(), missing);
    failure("gateway.example");
    assert_eq!(status().failure, Some("ä".repeat(FAILURE_BYTES_MAX / 2)), "within bounds");
    let issued =
        AcmeCertificate::parse("gateway.example", pem("gateway.example", 2099).as_bytes(), epoch::signed_now());
    acme.issued("gateway.example", issued.expect("is valid"), pem("gateway.example", 2099)).await;
    assert!(status().failure.is_none() && status().expires_at > Some(epoch::signed_now()), "{:?}", status());
}
