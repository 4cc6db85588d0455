//! Quotas.

use crate::pinning::tests::*;
use crate::pinning::{Meta, QuotaUsage, RemainingQuota};

#[tokio::test]
async fn the_pins_of_a_token_are_limited() {
    let world = World::new();
    let pins = world.start().await;
    let poor = Owner { pins_max: Some(2), ..owner("poor") };
    let dags: Vec<_> = (0..4).map(|number| dag(&format!("dag {number}"), 0..1)).collect();
    let first = pins.request(&poor, wanted(&dags[0])).await.expect("is asked for");
    pins.request(&poor, wanted(&dags[1])).await.expect("is asked for");
    assert_eq!(pins.room(&poor), RemainingQuota { pins: Some(0), bytes: None });
    let third = pins.request(&poor, wanted(&dags[2])).await;
    assert!(matches!(third, Err(PinsError::Quota(_))), "{third:?}");
    pins.request(&owner("other"), wanted(&dags[2])).await.expect("others have their own");
    // A replacement frees a pin.
    let next = pins.replace(&poor, &first.id, wanted(&dags[3])).await.expect("replaces");
    pins.remove("poor", &next.id).await.expect("removes");
    pins.request(&poor, wanted(&dags[2])).await.expect("there is room again");
}

#[tokio::test]
async fn the_bytes_of_a_token_are_limited() {
    let world = World::new();
    let (small, large) = (dag("small", 0..3), dag("large", 0..40));
    world.upstream.has(&small);
    world.upstream.has(&large);
    let pins = world.start().await;
    let most = bytes_of(&small) + bytes_of(&large) / 2;
    let poor = Owner { bytes_max: Some(most), ..owner("poor") };
    let kept = pin(&pins, &poor, wanted(&small)).await;
    assert_eq!(pins.used("poor"), QuotaUsage { pins: 1, bytes: bytes_of(&small) });
    let beyond = pins.request(&poor, wanted(&large)).await.expect("its size is not known yet");
    let beyond = becomes(&pins, &beyond, Status::Failed).await;
    assert!(beyond.details.is_some_and(|details| details.contains(&most.to_string())));
    until("the rest is gone", async || (world.pinned().await == [*small[0].cid()]).then_some(())).await;
    assert_eq!(pins.used("poor"), QuotaUsage { pins: 2, bytes: bytes_of(&small) });
    // Another owner may have it, and then its size is known.
    pin(&pins, &owner("rich"), wanted(&large)).await;
    let known = pins.request(&poor, wanted(&large)).await;
    assert!(matches!(known, Err(PinsError::Quota(_))), "{known:?}");
    assert_eq!(pins.room(&poor).bytes, Some(most - bytes_of(&small)));
    pins.remove("poor", &kept.id).await.expect("removes");
    assert_eq!(pins.used("poor").bytes, 0);
}

#[tokio::test]
async fn a_shared_root_fails_for_an_owner_that_exceeds_its_quota() {
    let mut world = World::new();
    world.upstream = Upstream::new(0);
    let blocks = dag("one", 0..40);
    world.upstream.has(&blocks);
    let pins = world.start().await;
    let poor = Owner { bytes_max: Some(bytes_of(&blocks) - 1), ..owner("poor") };
    let lost = pins.request(&poor, wanted(&blocks)).await.expect("is asked for");
    let had = pins.request(&owner("rich"), wanted(&blocks)).await.expect("is asked for");
    world.upstream.permits.add_permits(1000);
    becomes(&pins, &lost, Status::Failed).await;
    becomes(&pins, &had, Status::Pinned).await;
    assert_eq!(world.pinned().await, [*blocks[0].cid()]);
    assert_eq!(world.upstream.asked(), 41);
}

#[tokio::test]
async fn the_requests_of_the_service_are_limited() {
    let mut world = World::new();
    world.options.pins_max = 2;
    let pins = world.start().await;
    let alice = owner("alice");
    for number in 0..2 {
        pins.request(&alice, wanted(&dag(&format!("dag {number}"), 0..1))).await.expect("is asked for");
    }
    let further = pins.request(&owner("other"), wanted(&dag("one more", 0..1))).await;
    assert!(matches!(further, Err(PinsError::Full(_))), "{further:?}");
}

#[tokio::test]
async fn parameters_that_exceed_their_limits_are_rejected() {
    let world = World::new();
    let pins = world.start().await;
    let plain = wanted(&dag("one", 0..1));
    let origin = |port: usize| {
        format!("/ip4/127.0.0.1/tcp/{port}/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN")
            .parse()
            .expect("an address")
    };
    let many: Meta = (0..1001).map(|number| (number.to_string(), String::new())).collect();
    let table = [
        (PinParameters { name: Some("ü".repeat(256)), ..plain.clone() }, "255 characters"),
        (PinParameters { origins: (1..22).map(origin).collect(), ..plain.clone() }, "20 origins"),
        (
            PinParameters { origins: vec!["/ip4/127.0.0.1/tcp/1".parse().expect("an address")], ..plain.clone() },
            "/p2p/",
        ),
        (PinParameters { meta: many, ..plain.clone() }, "1000 keys"),
        (PinParameters { meta: [("k".to_owned(), "v".repeat(17_000))].into(), ..plain.clone() }, "16384 bytes"),
    ];
    for (wanted, words) in table {
        match pins.request(&owner("alice"), wanted).await {
            Err(PinsError::Invalid(told)) => assert!(told.contains(words), "{told}"),
            other => panic!("{words}: {other:?}"),
        }
    }
    let name = Some("ü".repeat(255));
    let origins = (1..21).map(origin).collect();
    let meta = (0..1000).map(|number| (number.to_string(), "v".to_owned())).collect();
    let request =
        pins.request(&owner("alice"), PinParameters { name, origins, meta, ..plain }).await.expect("is asked for");
    assert_eq!((request.origins.len(), request.meta.len()), (20, 1000));
}
