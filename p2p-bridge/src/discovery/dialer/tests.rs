//! Table tests, and searches among simulated providers: silent, refusing, slow and live ones.

use super::super::plan::Plan;
use super::*;
use crate::discovery::dial_times;
use libp2p::multiaddr::Protocol;
use proptest::prelude::*;
use std::collections::HashSet;

const MS: Duration = Duration::from_millis(1);
/// The interval of the swarm task's tick.
const PACE: Duration = Duration::from_millis(20);

fn address(text: &str) -> Multiaddr {
    text.parse().expect("an address")
}

/// The n-th provider, on its own host.
fn provider(n: u16) -> Provider {
    let address = address(&format!("/ip4/8.{}.{}.1/tcp/4001", n / 250, n % 250));
    Provider { peer: PeerId::random(), addresses: vec![address] }
}

/// Dials a provider as the swarm task does.
fn dial(dialer: &mut Dialer, provider: &Provider, id: usize, now: Instant) -> Start {
    let start = dialer.start(provider, now);
    if let Start::Dial { addresses, deadline, .. } = &start {
        dialer.dialling(provider.peer, Some(ConnectionId::new_unchecked(id)), addresses.clone(), *deadline, now);
    }
    start
}

#[test]
fn ranks_follow_the_state_of_a_peer_and_its_addresses() {
    let (mut dialer, now) = (Dialer::new(64), Instant::now());
    let (peer, relay) = (PeerId::random(), PeerId::random());
    let quic = address("/ip4/8.8.8.8/udp/4001/quic-v1");
    let tcp = address("/ip4/8.8.8.8/tcp/4001");
    let circuit = tcp.clone().with(Protocol::P2p(relay)).with(Protocol::P2pCircuit);
    let of = |addresses: &[&Multiaddr]| Provider { peer, addresses: addresses.iter().map(|a| (*a).clone()).collect() };
    let table = [
        (of(&[&tcp, &quic]), Rank::Quic),
        (of(&[&circuit, &tcp]), Rank::Direct),
        (of(&[&circuit]), Rank::Indirect),
        (of(&[]), Rank::Indirect),
    ];
    for (provider, expected) in table {
        assert_eq!(dialer.rank(&provider, now), expected, "{provider:?}");
    }
    dialer.failed(&peer, ConnectionId::new_unchecked(1), Failure::Addresses(std::slice::from_ref(&quic)), now);
    assert_eq!(dialer.rank(&of(&[&quic, &tcp]), now), Rank::Direct, "only the reachable address counts");
    assert_eq!(dialer.rank(&of(&[&quic]), now), Rank::Unreachable);
    dialer.connected(peer, None, &[], now + MS);
    assert_eq!(dialer.rank(&of(&[&quic]), now + MS), Rank::SeenAlive);
}

#[test]
fn a_dial_tries_the_best_addresses_and_returns_the_rest() {
    let (mut dialer, now, peer) = (Dialer::new(64), Instant::now(), PeerId::random());
    let many: Vec<Multiaddr> = (1..=10).map(|n| address(&format!("/ip4/8.8.{n}.8/tcp/1"))).collect();
    let quic = address("/ip4/8.8.8.8/udp/1/quic-v1");
    dialer.failed(&peer, ConnectionId::new_unchecked(1), Failure::Addresses(&many[..2]), now);
    let all = Provider { peer, addresses: many.iter().cloned().chain([quic.clone()]).collect() };
    let Start::Dial { addresses, rest, .. } = dial(&mut dialer, &all, 2, now) else { panic!("within the budget") };
    assert_eq!(addresses[0], quic);
    assert_eq!(addresses[1..], many[2..9]);
    assert_eq!(rest, [&many[9], &many[0], &many[1]].map(Clone::clone), "unreachable addresses last");
    assert_eq!(
        dialer.start(&all, now),
        Start::Dial { addresses: vec![many[9].clone()], rest: many[..2].to_vec(), deadline: now + dial_times::INITIAL }
    );
    let same = Provider { peer, addresses: addresses[..3].to_vec() };
    assert_eq!(dialer.start(&same, now), Start::UnderWay { deadline: now + dial_times::INITIAL });
    let nowhere = Provider { peer: PeerId::random(), addresses: Vec::new() };
    assert!(matches!(dialer.start(&nowhere, now), Start::LookUp { .. }));
}

#[test]
fn only_old_overdue_dials_are_aborted() {
    let (mut dialer, start) = (Dialer::new(8), Instant::now());
    let all: Vec<Provider> = (0..20).map(provider).collect();
    for (n, provider) in all.iter().enumerate().take(6) {
        assert!(matches!(dial(&mut dialer, provider, n, start + MS * n as u32), Start::Dial { .. }), "{n}");
    }
    let full =
        |dialer: &mut Dialer, now| assert_eq!(dial(dialer, &all[7], 7, now), Start::Full, "a quarter is reserved");
    full(&mut dialer, start);
    let now = start + dial_times::CEILING;
    dialer.tick(now);
    full(&mut dialer, now);
    let any_peer = |_: &PeerId| true;
    assert_eq!(dialer.oldest_overdue(now, any_peer), None, "overdue, but not for long");
    let now = start + PATIENCE + MS * 10;
    assert_eq!(dialer.oldest_overdue(now, any_peer), Some(all[0].peer));
    assert_eq!(
        dialer.oldest_overdue(now, |peer| *peer != all[0].peer),
        Some(all[1].peer),
        "the oldest that may be aborted"
    );
    assert!(dialer.abort(&all[1].peer) && !dialer.abort(&all[1].peer), "once");
    assert!(matches!(dial(&mut dialer, &all[6], 6, now), Start::Dial { .. }), "an aborted dial frees its slot");
    assert!(dialer.failed(&all[1].peer, ConnectionId::new_unchecked(1), Failure::Ours, now).is_some());
    full(&mut dialer, now);
}

#[test]
fn other_dials_of_the_peer_do_not_end_those_of_a_search() {
    let (mut dialer, now, provider) = (Dialer::new(8), Instant::now(), provider(1));
    dial(&mut dialer, &provider, 1, now);
    let [own, other] = [1, 2].map(ConnectionId::new_unchecked);
    assert!(dialer.failed(&provider.peer, other, Failure::Ours, now).is_none() && dialer.is_under_way(&provider.peer));
    assert!(dialer.failed(&provider.peer, own, Failure::Ours, now).is_some() && !dialer.is_under_way(&provider.peer));
}

#[test]
fn the_other_addresses_are_tried_after_another_peer_answered() {
    let (mut dialer, now, peer) = (Dialer::new(8), Instant::now(), PeerId::random());
    let [usurped, good] = [1, 2].map(|port| address(&format!("/ip4/8.8.8.8/tcp/{port}")));
    let provider = Provider { peer, addresses: vec![usurped.clone(), good.clone()] };
    dial(&mut dialer, &provider, 1, now);
    let dialled = usurped.clone().with(Protocol::P2p(peer));
    let left = dialer.failed(
        &peer,
        ConnectionId::new_unchecked(1),
        Failure::AnotherPeer { address: &dialled, found: PeerId::random() },
        now,
    );
    assert_eq!(left, Some(vec![good.clone()]));
    let Start::Dial { addresses, rest, .. } = dial(&mut dialer, &provider, 2, now) else { panic!("within the budget") };
    assert_eq!((addresses, rest), (vec![good], vec![usurped]), "the other peer at this address is known");
}

#[test]
fn records_with_a_providers_address_and_other_ids_do_not_delay_its_dials() {
    let (mut dialer, now) = (Dialer::new(64), Instant::now());
    let honest = provider(1);
    let attacker = || Provider { peer: PeerId::random(), addresses: honest.addresses.clone() };
    let attackers: Vec<Provider> = (0..8).map(|_| attacker()).collect();
    let dialled =
        attackers.iter().enumerate().filter(|(id, attacker)| dial(&mut dialer, attacker, *id, now) != Start::Limited);
    assert_eq!(dialled.count(), 4);
    assert_eq!(dialer.start(&honest, now), Start::Limited);
    // The first of these dials reveals the peer at the address.
    let found = Failure::AnotherPeer { address: &honest.addresses[0], found: honest.peer };
    dialer.failed(&attackers[0].peer, ConnectionId::new_unchecked(0), found, now);
    assert!(matches!(dial(&mut dialer, &honest, 9, now), Start::Dial { .. }));
    assert_eq!(dialer.rank(&attacker(), now), Rank::Unreachable, "the address belongs to another peer");
    assert_eq!(dialer.rank(&honest, now), Rank::Direct);
}

/// The result of a dial in the simulation.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fate {
    /// No answer for ten seconds.
    Silent,
    /// Refused after this time.
    Refused(Duration),
    /// Connected after this time.
    Alive(Duration),
}

/// The result of a simulated search.
#[derive(Debug)]
struct Outcome {
    found_after: Option<Duration>,
    dials: usize,
    pending_max: usize,
}

/// Simulates a search as the swarm task runs it, with all providers added at the start in this order.
fn search(dialer: &mut Dialer, providers: &[(Provider, Fate)], begun: Instant) -> Outcome {
    let mut plan = Plan::default();
    for (provider, _) in providers {
        plan.add(provider.clone(), |provider| dialer.rank(provider, begun));
    }
    let mut ends: Vec<(Instant, PeerId, ConnectionId, Fate)> = Vec::new();
    let (mut dials, mut pending_max, mut now) = (0, 0, begun);
    while now < begun + Duration::from_secs(30) {
        ends.sort_by_key(|(at, ..)| *at);
        while ends.first().is_some_and(|(at, ..)| *at <= now) {
            let (at, peer, id, fate) = ends.remove(0);
            let addresses = providers.iter().find(|(provider, _)| provider.peer == peer).map(|(p, _)| &p.addresses);
            let addresses = addresses.expect("a provider");
            match fate {
                Fate::Alive(took) => {
                    dialer.connected(peer, Some((&addresses[0], took)), &[], at);
                    let found_after = Some(at - begun);
                    // The other dials continue, and fail.
                    for (_, peer, id, _) in ends {
                        let named = providers.iter().find(|(provider, _)| provider.peer == peer);
                        let failure = Failure::Addresses(named.map_or(&[], |(provider, _)| &provider.addresses));
                        dialer.failed(&peer, id, failure, at);
                    }
                    return Outcome { found_after, dials, pending_max };
                }
                _ => assert_eq!(dialer.failed(&peer, id, Failure::Addresses(addresses), at), Some(Vec::new())),
            }
            plan.ended(&peer, false, &[]);
        }
        dialer.tick(now);
        while let Some((provider, rank)) = plan.next(0, dialer.search_max(), now) {
            let id = ConnectionId::new_unchecked(dials);
            match dialer.start(&provider, now) {
                Start::Dial { addresses, rest, deadline } => {
                    dialer.dialling(provider.peer, Some(id), addresses, deadline, now);
                    plan.began(&provider, rank, rest, deadline, now);
                    let fate = providers.iter().find(|(other, _)| other.peer == provider.peer).expect("a provider").1;
                    let takes = match fate {
                        Fate::Silent => Duration::from_secs(10),
                        Fate::Refused(takes) | Fate::Alive(takes) => takes,
                    };
                    ends.push((now + takes, provider.peer, id, fate));
                    dials += 1;
                }
                Start::Limited => {}
                // With one search, its share is less than the whole budget.
                other => panic!("{other:?}"),
            }
            pending_max = pending_max.max(ends.len());
        }
        for peer in plan.displaced(0, dialer.search_max(), now) {
            assert!(dialer.abort(&peer));
            let place = ends.iter().position(|(_, other, ..)| *other == peer).expect("a pending dial");
            let (_, _, id, _) = ends.remove(place);
            assert_eq!(dialer.failed(&peer, id, Failure::Ours, now), Some(Vec::new()));
            plan.ended(&peer, false, &[]);
        }
        now += PACE;
    }
    for (_, peer, id, _) in &ends {
        dialer.failed(peer, *id, Failure::Ours, now);
    }
    Outcome { found_after: None, dials, pending_max }
}

/// One live provider, added last.
fn among(dead: u16, fate: Fate, alive: Duration) -> Vec<(Provider, Fate)> {
    let dead = (0..dead).map(|n| (provider(n), fate));
    dead.chain([(provider(9_999), Fate::Alive(alive))]).collect()
}

#[test]
fn the_live_provider_is_found_among_any_number_of_dead_ones() {
    // The number of dead providers, how their dials end, the dial time of the live provider, and the maximum times
    // until it is connected, in milliseconds: on a fresh node, and on one with statistics of such dials.
    let refused = Fate::Refused(MS * 5);
    let table = [
        (0, Fate::Silent, 5, 5, 5),
        (20, Fate::Silent, 5, 300, 150),
        (50, Fate::Silent, 5, 600, 200),
        (100, Fate::Silent, 5, 800, 260),
        (100, refused, 5, 400, 400),
        (50, Fate::Silent, 300, 900, 1_500),
        (100, Fate::Silent, 900, 1_900, 4_000),
        (240, Fate::Silent, 5, 1_600, 500),
    ];
    for (dead, fate, alive, fresh, learnt) in table {
        let mut dialer = Dialer::new(512);
        for (what, limit) in [("fresh", fresh), ("learnt", learnt)] {
            let outcome = search(&mut dialer, &among(dead, fate, MS * alive), Instant::now());
            let found = outcome.found_after.unwrap_or_else(|| panic!("{dead} {fate:?}, {what}: not found"));
            assert!(found <= MS * limit, "{dead} {fate:?}, alive after {alive} ms, {what}: {found:?}");
            for _ in 0..20 {
                dialer.connected(PeerId::random(), Some((&provider(1).addresses[0], MS * alive)), &[], Instant::now());
            }
            // Only the dial times are still cached.
            let times = std::mem::take(&mut dialer.times);
            dialer = Dialer { times, ..Dialer::new(512) };
        }
    }
}

#[test]
fn dead_providers_are_cached_across_searches() {
    let (mut dialer, start) = (Dialer::new(256), Instant::now());
    let dead: Vec<(Provider, Fate)> = (0..20).map(|n| (provider(n), Fate::Silent)).collect();
    for n in 0..6 {
        let alive = (provider(1_000 + n), Fate::Alive(MS * 5));
        let all: Vec<_> = dead.iter().cloned().chain([alive]).collect();
        let outcome = search(&mut dialer, &all, start + Duration::from_secs(2) * u32::from(n));
        let found = outcome.found_after.expect("found");
        if n > 0 {
            assert!(found <= MS * 5 && outcome.dials <= 5, "search {n}: {outcome:?}");
        }
    }
}

#[test]
fn a_flood_of_dead_providers_costs_bounded_dials() {
    let (mut dialer, mut now) = (Dialer::new(256), Instant::now());
    let honest = (provider(9_999), Fate::Alive(MS * 5));
    for _ in 0..5 {
        let flood: Vec<(Provider, Fate)> = (0..1_000).map(|n| (provider(n), Fate::Silent)).collect();
        let outcome = search(&mut dialer, &flood, now);
        assert!(outcome.found_after.is_none() && outcome.dials <= 256, "{} dials", outcome.dials);
        assert!(outcome.pending_max <= 128, "{} in progress", outcome.pending_max);
        now += Duration::from_secs(40);
    }
    let outcome = search(&mut dialer, &[honest], now);
    assert!(outcome.found_after.is_some_and(|after| after <= MS * 5), "{outcome:?}");
}

#[test]
fn every_pending_connection_takes_a_slot() {
    let (mut dialer, now, peer) = (Dialer::new(4), Instant::now(), PeerId::random());
    let of = |from: u16| {
        let addresses = (from..from + 8).map(|n| address(&format!("/ip4/8.7.{n}.1/tcp/4001"))).collect();
        Provider { peer, addresses }
    };
    for (id, from) in [(1, 0), (2, 8), (3, 16)] {
        assert!(matches!(dial(&mut dialer, &of(from), id, now), Start::Dial { .. }), "{from}");
    }
    assert!(matches!(dial(&mut dialer, &of(24), 4, now), Start::Full), "three quarters of the budget are for searches");
    assert!(matches!(dial(&mut dialer, &provider(1), 5, now), Start::Full));
}

#[test]
fn a_live_address_does_not_return_tokens_of_another_host() {
    let (mut dialer, mut now) = (Dialer::new(64), Instant::now());
    let (victim, own) = (address("/ip4/8.8.8.8/udp/443/quic-v1"), address("/ip4/8.9.9.9/tcp/4001"));
    let mut dials = 0;
    for id in 0..20 {
        let attacker = Provider { peer: PeerId::random(), addresses: vec![victim.clone(), own.clone()] };
        if let Start::Dial { addresses, .. } = dial(&mut dialer, &attacker, id, now) {
            dials += usize::from(addresses.contains(&victim));
            dialer.connected(attacker.peer, Some((&own, MS)), &[], now);
        }
        now += MS;
    }
    assert!(dials <= 4, "{dials} dials of the victim");
}

#[test]
fn dials_of_one_socket_are_rate_limited() {
    let (mut dialer, now) = (Dialer::new(256), Instant::now());
    let victim = address("/ip4/8.8.8.8/tcp/443");
    let records: Vec<(Provider, Fate)> = (0..1_000)
        .map(|_| (Provider { peer: PeerId::random(), addresses: vec![victim.clone()] }, Fate::Refused(MS * 20)))
        .collect();
    let dials: usize = (0..10).map(|n| search(&mut dialer, &records, now + Duration::from_secs(n)).dials).sum();
    assert!(dials <= 8, "{dials} dials of one socket");
}

proptest! {
    /// In any search within the budget a live provider is found in the end, no dial exceeds the budget, and no dial
    /// stays recorded as in progress.
    #[test]
    fn a_live_provider_is_found_among_any(
        fates in prop::collection::vec((0_u8..3, 1_u32..3_000), 0..150),
        alive in 1_u32..900,
        place in 0_usize..150,
        dials_max in 2_usize..300,
    ) {
        let mut dialer = Dialer::new(dials_max);
        let mut all: Vec<(Provider, Fate)> = fates
            .iter()
            .enumerate()
            .map(|(n, (what, takes))| {
                let fate = if *what == 0 { Fate::Refused(MS * *takes) } else { Fate::Silent };
                (provider(n as u16), fate)
            })
            .collect();
        all.insert(place.min(all.len()), (provider(9_999), Fate::Alive(MS * alive)));
        let outcome = search(&mut dialer, &all, Instant::now());
        prop_assert!(outcome.pending_max <= dials_max);
        if dials_max >= 64 {
            prop_assert!(outcome.found_after.is_some(), "{outcome:?}");
        }
        let left: HashSet<&PeerId> = dialer.pending.keys().collect();
        prop_assert!(left.is_empty(), "{left:?}");
    }
}
