use super::*;
use crate::dht::store::RecordStoreLimits;
use content::ipns::{Draft, Record};
use libp2p::identity::Keypair;
use libp2p::kad::RecordKey;
use libp2p::kad::store::RecordStore;
use proptest::prelude::*;
use std::time::{Duration, UNIX_EPOCH};

const NOW: Moment = 1_800_000_000;

fn empty(now: Moment) -> Store {
    Store::new(PeerId::random(), RecordStoreLimits::default(), now)
}

/// A store with `records` provider records of `peers` peers, and a value record.
fn filled(records: u16, peers: u16) -> Store {
    let mut store = empty(NOW);
    let peers: Vec<(PeerId, Vec<Multiaddr>)> = (0..peers.max(1))
        .map(|n| (PeerId::random(), vec![format!("/ip4/192.0.2.1/tcp/{}", n + 1).parse().expect("address")]))
        .collect();
    for n in 0..records {
        let (peer, addresses) = &peers[usize::from(n) % peers.len()];
        let key = RecordKey::new(&n.to_le_bytes());
        store.put_provider(&key, *peer, Network(n.into()), addresses.clone()).expect("good");
    }
    let keypair = Keypair::generate_ed25519();
    let end_of_life = UNIX_EPOCH + Duration::from_secs(u64::from(NOW) + 100_000);
    let draft = Draft { value: "/ipfs/bafkqaaa".to_owned(), sequence: 1, end_of_life, ttl: Duration::ZERO };
    let record = Record::sign(&keypair, &draft).expect("signs");
    let key = content::names::Key::from(keypair.public().to_peer_id()).routing_key();
    store.put_value(&key.into(), record.bytes().to_vec(), Network(3)).expect("good");
    store
}

fn file(store: &Store) -> Vec<u8> {
    let mut bytes = encode(store);
    bytes.extend(digest(&bytes));
    bytes
}

/// The providers of keys, with their addresses.
type Answers = Vec<(Vec<PeerId>, Vec<Multiaddr>)>;

/// All that a store serves; the order of values is arbitrary.
fn content(store: &Store) -> (Answers, Vec<Vec<u8>>) {
    let keys = (0..300_u16).map(|n| RecordKey::new(&n.to_le_bytes()));
    let providers = keys.map(|key| {
        let found = store.providers(&key);
        (found.iter().map(|record| record.provider).collect(), found.into_iter().flat_map(|r| r.addresses).collect())
    });
    let mut values: Vec<Vec<u8>> = store.records().map(|record| record.value.clone()).collect();
    values.sort();
    (providers.collect(), values)
}

#[test]
fn records_survive_a_restart_with_their_expiry() {
    let directory = tempfile::tempdir().expect("directory");
    let path = path(directory.path(), Scope::Wan);
    let before = filled(200, 30);
    save(&path, encode(&before));
    let mut after = empty(NOW + 60);
    load(&path, &mut after);
    assert_eq!(content(&after), content(&before));
    assert_eq!((after.provider_records(), after.value_records()), (200, 1));
    let mut late = empty(NOW + 48 * 3600);
    load(&path, &mut late);
    assert_eq!((late.provider_records(), late.value_records()), (0, 0));
    let mut early = empty(NOW - 3_600);
    load(&path, &mut early);
    early.tick(NOW + 47 * 3600);
    assert_eq!(early.provider_records(), 0, "a wrong clock does not extend the lifetime");
}

#[test]
fn a_missing_file_is_an_empty_store() {
    let mut store = empty(NOW);
    load(Path::new("/nowhere/at/all"), &mut store);
    assert_eq!(store.provider_records(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_encoded_is_decoded(records in 0..300_u16, peers in 1..40_u16) {
        let before = filled(records, peers);
        let mut after = empty(NOW);
        prop_assert_eq!(decode(&file(&before), &mut after), Ok(usize::from(records) + 1));
        prop_assert_eq!(content(&after), content(&before));
    }

    #[test]
    fn a_corrupt_file_loses_only_its_records(
        at in any::<prop::sample::Index>(), flip in 1..=255_u8, cut in any::<prop::sample::Index>(),
    ) {
        let good = file(&filled(50, 5));
        let mut flipped = good.clone();
        let at = at.index(good.len());
        flipped[at] ^= flip;
        for bad in [&flipped[..], &good[..cut.index(good.len())]] {
            let mut store = empty(NOW);
            prop_assert_eq!(decode(bad, &mut store), Err(Corrupt));
            prop_assert_eq!(store.provider_records(), 0);
        }
    }

    #[test]
    fn an_arbitrary_body_with_a_valid_hash_is_safe(
        body in prop::collection::vec(any::<u8>(), 0..400), counts in any::<[u8; 3]>(),
    ) {
        let mut forged = Vec::new();
        for count in counts {
            forged.extend(u32::from(count % 4).to_le_bytes());
            forged.extend(&body);
        }
        let mut store = empty(NOW);
        let _ = decode_body(&mut Reader(&forged), &mut store);
        prop_assert_eq!(store.value_records(), 0);
        prop_assert!(store.bytes() <= RecordStoreLimits::default().provider_bytes);
    }
}
