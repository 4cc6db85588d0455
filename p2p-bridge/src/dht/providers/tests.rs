use super::*;
use proptest::prelude::*;

const TTL: Moment = 1_000;

fn peer(n: u8) -> PeerId {
    let digest = multihash::Multihash::wrap(0x12, &[n; 32]).expect("a SHA-256 has 32 bytes");
    PeerId::from_multihash(digest).expect("a SHA-256 names a peer")
}

fn key(n: u16) -> Digest {
    super::super::digest(&n.to_le_bytes())
}

fn address(n: u8) -> Multiaddr {
    format!("/ip4/192.0.2.{n}/tcp/4001").parse().expect("address")
}

fn of(providers: &Providers, n: u16, now: Moment) -> Vec<PeerId> {
    providers.of(&key(n), now).map(|provider| provider.peer).collect()
}

/// Invariants of the table.
fn check(providers: &Providers) {
    let all: Vec<_> = providers.all().map(|(key, holder, received)| (*key, holder, received)).collect();
    assert_eq!(all.len(), providers.len());
    assert!(providers.units <= providers.units_max, "{} units", providers.units);
    let mut counts: HashMap<u32, u32> = HashMap::new();
    all.iter().for_each(|(_, holder, _)| *counts.entry(*holder).or_default() += 1);
    assert_eq!(counts.len(), providers.holders.len(), "every peer has records");
    let mut weights: HashMap<Network, u32> = HashMap::new();
    for (id, holder) in &providers.holders {
        assert_eq!(counts.get(id), Some(&holder.count));
        assert_eq!(providers.ids.get(&holder.peer), Some(id));
        assert!(providers.peers.contains(&(holder.network, holder.count, *id)));
        *weights.entry(holder.network).or_default() += holder.units();
        let mut chain = Vec::new();
        let mut next = holder.records.head;
        while next != NIL {
            chain.push(next);
            next = providers.records[next as usize].links[BY_PEER].next;
        }
        assert_eq!(chain.len(), holder.count as usize);
        assert_eq!(chain.last().copied().unwrap_or(NIL), holder.records.tail);
    }
    assert_eq!((providers.peers.len(), providers.ids.len()), (providers.holders.len(), providers.holders.len()));
    assert_eq!(weights.values().sum::<u32>(), providers.units);
    assert_eq!(weights, providers.weights);
    assert_eq!(providers.networks, weights.iter().map(|(network, weight)| (*weight, *network)).collect());
    for key in providers.keys.keys() {
        let siblings: Vec<u32> = providers.siblings(key).collect();
        assert!((1..=PER_KEY_MAX).contains(&siblings.len()));
        let distinct: BTreeSet<u32> = siblings.iter().map(|id| providers.records[*id as usize].holder).collect();
        assert_eq!(distinct.len(), siblings.len(), "one record of a peer for a key");
    }
    assert_eq!(providers.keys.keys().map(|key| providers.siblings(key).count()).sum::<usize>(), all.len());
}

#[derive(Debug, Clone)]
enum Step {
    Add { key: u16, peer: u8, network: u8, addresses: u8 },
    Remove { key: u16, peer: u8 },
    Wait(Moment),
    Sweep(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..40_u16, 0..30_u8, 0..5_u8, 0..4_u8)
            .prop_map(|(key, peer, network, addresses)| Step::Add { key, peer, network, addresses }),
        1 => (0..40_u16, 0..30_u8).prop_map(|(key, peer)| Step::Remove { key, peer }),
        1 => (0..TTL / 2).prop_map(Step::Wait),
        1 => (0..20_usize).prop_map(Step::Sweep),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn all_lists_and_weights_agree_after_any_steps(
        steps in prop::collection::vec(step(), 0..300), room in 10..200_u32,
    ) {
        let mut providers = Providers::new(room, TTL);
        let mut now = 1_000_000;
        for step in steps {
            match step {
                Step::Add { key: n, peer: who, network, addresses } => {
                    let addresses = (0..addresses).map(address).collect();
                    let before = of(&providers, n, now).contains(&peer(who));
                    let added = providers.add(key(n), peer(who), Network(network.into()), addresses, now);
                    prop_assert!(!before || added == Added::Renewed);
                }
                Step::Remove { key: n, peer: who } => {
                    providers.remove(&key(n), &peer(who));
                    prop_assert!(!of(&providers, n, now).contains(&peer(who)));
                }
                Step::Wait(seconds) => now += seconds,
                Step::Sweep(at_most) => prop_assert!(providers.sweep(now, at_most) <= at_most),
            }
            check(&providers);
        }
        now += TTL;
        prop_assert_eq!((0..40).map(|n| of(&providers, n, now).len()).sum::<usize>(), 0, "expired");
        providers.sweep(now, usize::MAX);
        prop_assert!(providers.is_empty() && providers.units() == 0);
        check(&providers);
    }

    #[test]
    fn a_flood_evicts_only_the_flooders_records(
        honest in prop::collection::vec((0..1_000_u16, 0..6_u8), 1..60),
        flood in prop::collection::vec((0..1_000_u16, 100..200_u8), 0..2_000),
    ) {
        // Six honest networks of one peer each have space for all their records; the flooder has one network and a
        // hundred peer IDs, and sends far more records than fit.
        let mut providers = Providers::new(600, TTL);
        for (n, who) in &honest {
            providers.add(key(*n), peer(*who), Network(u64::from(*who)), vec![address(*who)], 1);
        }
        for (n, who) in &flood {
            providers.add(key(*n), peer(*who), Network(99), vec![address(*who)], 2);
        }
        check(&providers);
        for (n, who) in &honest {
            prop_assert!(of(&providers, *n, 3).contains(&peer(*who)));
        }
    }
}

#[test]
fn renewing_a_record_restarts_its_lifetime_and_moves_it_first() {
    let mut providers = Providers::new(1_000, TTL);
    assert_eq!(providers.add(key(1), peer(1), Network(1), vec![address(1)], 0), Added::New);
    assert_eq!(providers.add(key(1), peer(2), Network(2), vec![], 10), Added::New);
    assert_eq!(of(&providers, 1, 10), [peer(2), peer(1)]);
    assert_eq!(providers.add(key(1), peer(1), Network(1), vec![address(9)], 500), Added::Renewed);
    assert_eq!(of(&providers, 1, 500), [peer(1), peer(2)]);
    assert_eq!(of(&providers, 1, 1_010), [peer(1)], "the other has expired");
    assert_eq!(providers.sweep(1_010, 10), 1);
    let found: Vec<Provider> = providers.of(&key(1), 1_010).collect();
    assert_eq!(found, [Provider { peer: peer(1), addresses: vec![address(9)], received: 500 }]);
}

#[test]
fn a_key_keeps_the_latest_providers_of_several_networks() {
    let mut providers = Providers::new(10_000, TTL);
    for n in 0..30 {
        providers.add(key(1), peer(n), Network(n.into()), vec![], n.into());
    }
    let latest: Vec<PeerId> = (10..30).rev().map(peer).collect();
    assert_eq!(of(&providers, 1, 30), latest);
    for n in 100..200 {
        providers.add(key(1), peer(n), Network(1_000), vec![], n.into());
    }
    // The first new provider evicts the oldest one; each further one evicts a provider of its own network.
    let mut expected = vec![peer(199)];
    expected.extend(&latest[..19]);
    assert_eq!(of(&providers, 1, 200), expected);
    check(&providers);
}

#[test]
fn addresses_of_a_provider_are_bounded() {
    let long: Multiaddr = format!("/dns4/{}/tcp/1", "a".repeat(250)).parse().expect("address");
    let table = [
        (vec![address(1), address(1), address(2)], vec![address(1), address(2)]),
        ((0..100).map(address).collect(), (0..ADDRESSES_MAX as u8).map(address).collect()),
        (vec![long.clone(); 3], vec![long]),
    ];
    for (given, kept) in table {
        assert_eq!(within_limits(given), kept);
    }
    let many = (0..100).map(|n| format!("/dns4/{}{n}/tcp/1", "a".repeat(240)).parse().expect("address"));
    let bytes: usize = within_limits(many).iter().map(|address| address.len()).sum();
    assert!((700..=ADDRESS_BYTES_MAX).contains(&bytes), "{bytes}");
}

#[test]
fn a_sweep_is_bounded() {
    let mut providers = Providers::new(10_000, TTL);
    for n in 0..100 {
        providers.add(key(n), peer(1), Network(1), vec![], 0);
    }
    assert_eq!(providers.sweep(TTL - 1, 1_000), 0);
    assert_eq!(providers.sweep(TTL, 30), 30);
    assert_eq!((providers.len(), providers.sweep(TTL, 1_000)), (70, 70));
}
