use super::*;

fn address(text: &str) -> Multiaddr {
    text.parse().expect("address")
}

fn store() -> (Store, PeerId) {
    let local = PeerId::random();
    (Store::new(local, RecordStoreLimits::default(), 1_000), local)
}

#[test]
fn keys_have_a_length_limit_and_providers_need_an_address() {
    let (mut store, _) = store();
    let home = || vec![address("/ip4/192.0.2.1/tcp/1")];
    // The length of a key, addresses, and whether the record is stored.
    let table = [(0, home(), false), (1, home(), true), (80, home(), true), (81, home(), false), (34, vec![], false)];
    for (bytes, addresses, kept) in table {
        let key = RecordKey::from(vec![7; bytes]);
        let outcome = store.put_provider(&key, PeerId::random(), Network(1), addresses);
        assert_eq!(outcome.is_ok(), kept, "{bytes}");
        assert_eq!(store.providers(&key).len(), usize::from(kept));
    }
}

#[test]
fn own_records_come_first_and_do_not_count_as_those_of_others() {
    let (mut store, local) = store();
    let key = RecordKey::new(b"key");
    for _ in 0..30 {
        let home = vec![address("/ip4/192.0.2.1/tcp/1")];
        store.put_provider(&key, PeerId::random(), Network(1), home).expect("good");
    }
    store.add_provider(ProviderRecord::new(key.clone(), local, vec![])).expect("below the limit");
    let providers = store.providers(&key);
    assert_eq!((providers.len(), providers[0].provider), (PER_KEY_MAX, local));
    assert_eq!(store.provided().count(), 1);
    assert_eq!(store.provider_records(), PER_KEY_MAX, "own records do not count");
    store.remove_provider(&key, &local);
    assert_eq!((store.provided().count(), store.providers(&key).len()), (0, PER_KEY_MAX));
}

#[test]
fn own_keys_are_bounded() {
    let local = PeerId::random();
    let mut store = Store::new(local, RecordStoreLimits { own_keys: 2, ..RecordStoreLimits::default() }, 0);
    let mut add = |n: u8| store.add_provider(ProviderRecord::new(RecordKey::new(&[n]), local, vec![])).is_ok();
    assert_eq!([add(1), add(2), add(3), add(1)], [true, true, false, true]);
}

#[test]
fn ticks_advance_the_clock() {
    let (mut store, _) = store();
    let key = RecordKey::new(b"key");
    store.put_provider(&key, PeerId::random(), Network(1), vec![address("/ip4/192.0.2.1/tcp/1")]).expect("good");
    assert!(store.take_changed() && !store.take_changed());
    store.tick(1_000 + 48 * 3600 - 1);
    assert_eq!(store.providers(&key).len(), 1);
    store.tick(1_000 + 48 * 3600);
    assert_eq!((store.providers(&key).len(), store.provider_records()), (0, 0));
    assert!(store.take_changed(), "expired records are not saved");
}

#[test]
fn withheld_content_is_neither_stored_nor_served() {
    use content::denylist::{List, Matcher, Source};
    use content::{Block, Verdict, codec, hashes};
    let block = |text: &'static str| Block::of(codec::RAW, hashes::SHA2_256, 32, text.into()).expect("a block");
    let (bad, good) = (block("bad"), block("good"));
    let key = |block: &Block| RecordKey::from(block.cid().hash().to_bytes());
    let home = || vec![address("/ip4/192.0.2.1/tcp/1")];
    let (mut store, local) = store();
    for block in [&bad, &good] {
        store.put_provider(&key(block), PeerId::random(), Network(1), home()).expect("good");
        store.add_provider(ProviderRecord::new(key(block), local, vec![])).expect("below the limit");
    }
    let list = List::parse(format!("/ipfs/{}\n", bad.cid()).as_bytes()).expect("a list");
    let matcher = Matcher::new([Source { id: "list".into(), list, status: Verdict::Gone }]);
    // As after a restart, with records stored before.
    let mut store = store.with_policy(NetworkPolicy(std::sync::Arc::new(matcher)));
    assert_eq!((store.providers(&key(&bad)).len(), store.providers(&key(&good)).len()), (0, 2));
    let rejection = store.put_provider(&key(&bad), PeerId::random(), Network(1), home());
    assert!(matches!(rejection, Err(Rejection::Withheld)), "{rejection:?}");
    store.put_provider(&key(&good), PeerId::random(), Network(1), home()).expect("good");
}
