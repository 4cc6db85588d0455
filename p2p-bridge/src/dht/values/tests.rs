use super::*;
use content::ipns::{Draft, Record};
use libp2p::identity::Keypair;
use proptest::prelude::*;
use std::time::SystemTime;

const NOW: Moment = 1_800_000_000;

fn at(moment: Moment) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(moment.into())
}

fn record(keypair: &Keypair, sequence: u64, lives: Moment) -> (Vec<u8>, Bytes) {
    let draft = Draft {
        value: "/ipfs/bafkqaaa".to_owned(),
        sequence,
        end_of_life: at(NOW + lives),
        ttl: Duration::from_secs(60),
    };
    let record = Record::sign(keypair, &draft).expect("signs");
    (Key::from(keypair.public().to_peer_id()).routing_key(), record.bytes().clone())
}

fn put(values: &mut Values, (key, bytes): &(Vec<u8>, Bytes), now: Moment) -> Result<(), ValueError> {
    values.tick();
    values.put(key, bytes.clone(), Network(1), now, now)
}

#[test]
fn the_newer_record_stays_until_its_end_of_life() {
    let keypair = Keypair::generate_ed25519();
    let (first, second) = (record(&keypair, 1, 3_600), record(&keypair, 2, 1_800));
    let mut values = Values::new(1 << 20);
    put(&mut values, &first, NOW).expect("good");
    put(&mut values, &second, NOW).expect("newer");
    assert!(matches!(put(&mut values, &first, NOW), Err(ValueError::Older)));
    assert_eq!(values.get(&first.0, NOW + 1_800), Some(&second.1));
    assert_eq!(values.get(&first.0, NOW + 1_801), None, "past its end of life");
    put(&mut values, &first, NOW + 1_801).expect("an expired record does not block a new one");
    assert_eq!(values.get(&first.0, NOW + 1_801), Some(&first.1));
    assert!(matches!(put(&mut values, &second, NOW + 7_000), Err(ValueError::Expired)));
}

#[test]
fn a_record_expires_after_its_lifetime_unless_it_is_renewed() {
    let keypair = Keypair::generate_ed25519();
    let long = record(&keypair, 1, 30 * 24 * 3600);
    let mut values = Values::new(1 << 20);
    put(&mut values, &long, NOW).expect("good");
    put(&mut values, &long, NOW + 3_600).expect("the same again");
    assert!(values.get(&long.0, NOW + LIFETIME + 3_599).is_some());
    assert!(values.get(&long.0, NOW + LIFETIME + 3_600).is_none());
    values.sweep(NOW + LIFETIME + 3_599);
    assert_eq!(values.len(), 1);
    values.sweep(NOW + LIFETIME + 3_600);
    assert_eq!((values.len(), values.bytes()), (0, 0));
}

#[test]
fn only_valid_ipns_records_and_public_keys_are_stored() {
    let (keypair, other) = (Keypair::generate_ed25519(), Keypair::generate_ed25519());
    let (name, good) = record(&keypair, 1, 3_600);
    let (_, others) = record(&other, 1, 3_600);
    let mut forged = good.to_vec();
    forged[20] ^= 1;
    let peer = keypair.public().to_peer_id();
    let public = Bytes::from(keypair.public().encode_protobuf());
    let padded = Bytes::from([&public[..], &[0x1a, 1, 0]].concat());
    let pk = |peer: PeerId| [PUBLIC_KEY, &peer.to_bytes()].concat();
    // A key, a value, and whether the record is stored.
    let table = [
        (name.clone(), good.clone(), true),
        (pk(peer), public.clone(), true),
        (name.clone(), others, false),
        (name.clone(), forged.into(), false),
        (name[..name.len() - 1].to_vec(), good.clone(), false),
        (b"/ipns/".to_vec(), good.clone(), false),
        (pk(other.public().to_peer_id()), public.clone(), false),
        (pk(peer), padded, false),
        (b"/x/y".to_vec(), good.clone(), false),
        (peer.to_bytes(), good, false),
    ];
    for (key, value, kept) in table {
        let mut values = Values::new(1 << 20);
        assert_eq!(put(&mut values, &(key.clone(), value), NOW).is_ok(), kept, "{key:?}");
        assert_eq!(values.get(&key, NOW).is_some(), kept);
    }
}

#[test]
fn a_network_that_exhausts_the_space_evicts_only_its_own_records() {
    let honest: Vec<_> = (0..4).map(|_| record(&Keypair::generate_ed25519(), 1, 3_600)).collect();
    let mut values = Values::new(20 * 1_000);
    for (n, (key, bytes)) in honest.iter().enumerate() {
        values.put(key, bytes.clone(), Network(n as u64), NOW, NOW).expect("good");
    }
    for n in 0..60 {
        values.tick();
        let (key, bytes) = record(&Keypair::generate_ed25519(), 1, 3_600);
        values.put(&key, bytes, Network(99), NOW + n, NOW + n).expect("good");
        assert!(values.bytes() <= 20 * 1_000);
    }
    assert!(values.len() < 64);
    for (key, bytes) in &honest {
        assert_eq!(values.get(key, NOW), Some(bytes));
    }
}

#[test]
fn signature_verification_is_rate_limited() {
    let (key, bytes) = record(&Keypair::generate_ed25519(), 1, 3_600);
    let mut forged = bytes.to_vec();
    forged[20] ^= 1;
    let forged = Bytes::from(forged);
    let mut values = Values::new(1 << 20);
    let busy = |outcome| matches!(outcome, Err(ValueError::Busy));
    for n in 0..2 * CHECKS_PER_NETWORK_MAX {
        let outcome = values.put(&key, forged.clone(), Network(1), NOW, NOW);
        assert_eq!(busy(outcome), n >= CHECKS_PER_NETWORK_MAX, "{n}");
    }
    values.put(&key, bytes.clone(), Network(2), NOW, NOW).expect("another network");
    values.put(&key, bytes.clone(), Network(1), NOW, NOW).expect("a copy of a stored record is not verified");
    values.tick();
    assert!(!busy(values.put(&key, forged, Network(1), NOW, NOW)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_unverified_record_is_ever_stored(
        key in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..90),
            prop::collection::vec(any::<u8>(), 0..44).prop_map(|rest| [b"/ipns/", &rest[..]].concat()),
            Just([b"/ipns/", &PeerId::random().to_bytes()[..]].concat()),
            Just([b"/pk/", &PeerId::random().to_bytes()[..]].concat()),
        ],
        value in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let mut values = Values::new(1 << 20);
        prop_assert!(values.put(&key, value.into(), Network(1), NOW, NOW).is_err());
        prop_assert_eq!((values.len(), values.bytes()), (0, 0));
    }

    #[test]
    fn a_changed_record_is_rejected_or_has_the_same_content(at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let keypair = Keypair::generate_ed25519();
        let (key, good) = record(&keypair, 1, 3_600);
        let mut bytes = good.to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        let mut values = Values::new(1 << 20);
        // Bytes that are not signed may change the encoding, never the content.
        if values.put(&key, bytes.into(), Network(1), NOW, NOW).is_ok() {
            let stored = values.get(&key, NOW).expect("kept").clone();
            let kept = Record::verify(&keypair.public().to_peer_id().into(), stored);
            let kept = kept.expect("verified");
            prop_assert_eq!(kept.value(), "/ipfs/bafkqaaa");
        }
    }
}
