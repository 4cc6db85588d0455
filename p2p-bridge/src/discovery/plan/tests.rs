use super::*;
use proptest::prelude::*;
use std::collections::HashSet;
use std::time::Duration;

/// When dials of these tests become overdue.
const DEADLINE: Duration = Duration::from_millis(100);
const NO_LIMIT: usize = usize::MAX;

fn provider(network: u8, port: u16) -> Provider {
    let address = format!("/ip4/198.51.{network}.1/tcp/{port}").parse().expect("an address");
    Provider { peer: PeerId::random(), addresses: vec![address] }
}

fn direct(_: &Provider) -> Rank {
    Rank::Direct
}

/// All providers to dial now.
fn dials(plan: &mut Plan, members: usize, now: Instant) -> Vec<PeerId> {
    let next = || {
        let (provider, rank) = plan.next(members, NO_LIMIT, now)?;
        plan.began(&provider, rank, Vec::new(), now + DEADLINE, now);
        Some(provider.peer)
    };
    std::iter::from_fn(next).collect()
}

/// A plan with queued providers of one network.
fn plan_of(count: u16) -> (Plan, Vec<PeerId>) {
    let mut plan = Plan::default();
    let all: Vec<Provider> = (0..count).map(|port| provider(1, port + 1)).collect();
    let peers = all.iter().map(|provider| provider.peer).collect();
    all.into_iter().for_each(|provider| plan.add(provider, direct));
    (plan, peers)
}

#[test]
fn the_window_doubles_with_each_missed_deadline() {
    let start = Instant::now();
    let (mut plan, peers) = plan_of(200);
    assert_eq!(dials(&mut plan, 0, start), peers[..8]);
    assert_eq!(dials(&mut plan, 0, start + DEADLINE / 2), [], "nothing is overdue");
    assert_eq!(dials(&mut plan, 0, start + DEADLINE), peers[8..24], "the whole window is overdue");
    assert_eq!(dials(&mut plan, 0, start + DEADLINE * 2), peers[24..56]);
    assert_eq!(
        dials(&mut plan, 0, start + DEADLINE * 3),
        peers[56..120],
        "a hundred dead providers cost three deadlines"
    );
    assert_eq!(dials(&mut plan, 0, start + DEADLINE * 4).len(), WINDOW_MAX, "the window is bounded");
}

#[test]
fn a_failed_dial_is_replaced_and_a_success_stops_the_rest() {
    let start = Instant::now();
    let (mut plan, peers) = plan_of(100);
    dials(&mut plan, 0, start);
    plan.ended(&peers[1], false, &[]);
    assert_eq!(dials(&mut plan, 0, start), peers[8..9], "a refusal does not widen the window");
    plan.ended(&peers[2], true, &[]);
    assert_eq!(dials(&mut plan, 1, start), [], "one member that serves is enough");
    assert_eq!(dials(&mut plan, MEMBERS_ENOUGH, start + DEADLINE * 9), []);
    let now = start + DEADLINE * 9;
    assert_eq!(dials(&mut plan, 1, now).len(), SERVED_PENDING_MAX - 7, "few more while a member serves");
}

#[test]
fn the_best_rank_is_first_and_then_the_network_with_the_fewest_failures() {
    let now = Instant::now();
    let mut plan = Plan::default();
    let [dead, relayed, quic, plain, known] = [0; 5].map(|_| provider(1, 1));
    let ranks = [
        (&dead, Rank::Unreachable),
        (&relayed, Rank::Indirect),
        (&quic, Rank::Quic),
        (&plain, Rank::Direct),
        (&known, Rank::SeenAlive),
    ];
    for (provider, rank) in ranks {
        plan.add(provider.clone(), |_| rank);
    }
    assert_eq!(dials(&mut plan, 0, now), [&known, &quic, &plain, &relayed, &dead].map(|provider| provider.peer));

    let (mut plan, peers) = plan_of(20);
    let elsewhere = provider(2, 1);
    assert_eq!(dials(&mut plan, 0, now), peers[..8]);
    plan.add(elsewhere.clone(), direct);
    plan.ended(&peers[0], false, &[]);
    assert_eq!(dials(&mut plan, 0, now), [elsewhere.peer], "the last added, from a network without failures");
}

#[test]
fn overdue_dials_are_aborted_for_queued_providers() {
    let start = Instant::now();
    let (mut plan, peers) = plan_of(20);
    for peer in &peers[..8] {
        let (provider, rank) = plan.next(0, 8, start).expect("within the budget");
        assert_eq!(provider.peer, *peer);
        plan.began(&provider, rank, Vec::new(), start + DEADLINE, start);
    }
    assert_eq!(plan.next(0, 8, start + DEADLINE), None);
    assert_eq!(plan.displaced(0, 8, start + DEADLINE), [], "they may still succeed");
    assert_eq!(plan.displaced(0, 8, start + PATIENCE).len(), 8);
    assert_eq!(plan.displaced(0, 9, start + PATIENCE), [], "within the budget");
    assert_eq!(plan.displaced(1, 8, start + PATIENCE), [], "a member serves");
    plan.ended(&peers[3], false, &[]);
    assert_eq!(plan.next(0, 8, start + PATIENCE).map(|(provider, _)| provider.peer), Some(peers[8]));
}

#[test]
fn a_bounded_number_of_unreachable_providers_is_dialled_last() {
    let start = Instant::now();
    let mut plan = Plan::default();
    for port in 0..100 {
        plan.add(provider(1, port), |_| Rank::Unreachable);
    }
    assert_eq!(dials(&mut plan, 0, start).len(), UNREACHABLE_WINDOW);
    let served = dials(&mut plan, 1, start + DEADLINE).len();
    assert_eq!(served, 1, "one at a time while a member serves, which may not have all blocks");
    let later = (1..20).map(|n| dials(&mut plan, 0, start + DEADLINE * n).len()).sum::<usize>();
    assert_eq!(UNREACHABLE_WINDOW + served + later, UNREACHABLE_MAX);
    assert!(!plan.is_waiting(), "providers that will not be dialled do not prolong the search");
    plan.add(provider(1, 1), direct);
    assert!(plan.is_waiting());
    assert_eq!(dials(&mut plan, 0, start + DEADLINE * 30).len(), 1);
}

#[test]
fn late_addresses_are_dialled_within_the_maximum_attempts() {
    let now = Instant::now();
    let mut plan = Plan::default();
    let address = |port: u16| format!("/ip4/192.0.2.1/tcp/{port}").parse::<Multiaddr>().expect("an address");
    let peer = PeerId::random();
    for known in [vec![address(1)], vec![address(1), address(2)], vec![address(2)]] {
        plan.add(Provider { peer, addresses: known }, direct);
    }
    let next = |plan: &mut Plan| plan.next(0, NO_LIMIT, now).map(|(provider, _)| provider.addresses);
    assert_eq!(next(&mut plan), Some(vec![address(1), address(2)]), "merged, and dialled once");
    let wrong = Provider { peer, addresses: vec![address(1), address(2)] };
    plan.began(&wrong, Rank::Direct, vec![address(9)], now + DEADLINE, now);
    plan.add(wrong.clone(), direct);
    assert_eq!(next(&mut plan), None);
    plan.add(Provider { peer, addresses: vec![address(2), address(3)] }, direct);
    assert_eq!(next(&mut plan), Some(vec![address(3)]), "the right address is found while dials of wrong ones hang");
    plan.ended(&peer, false, &[]);
    assert_eq!(next(&mut plan), Some(vec![address(9)]), "the addresses that the first dial did not try");
    plan.add(Provider { peer, addresses: vec![address(4)] }, direct);
    assert_eq!(next(&mut plan), None, "three attempts");

    let usurped = Provider { peer: PeerId::random(), addresses: vec![address(5), address(6)] };
    plan.add(usurped.clone(), direct);
    assert_eq!(next(&mut plan), Some(usurped.addresses.clone()));
    plan.began(&usurped, Rank::Direct, Vec::new(), now + DEADLINE, now);
    plan.ended(&usurped.peer, false, &usurped.addresses[1..]);
    assert_eq!(
        next(&mut plan),
        Some(vec![address(6)]),
        "another peer at one address does not hide the other addresses"
    );

    let (turned_away, other) = (provider(1, 1), provider(2, 2));
    plan.add(turned_away.clone(), direct);
    plan.add(other, direct);
    let (first, rank) = plan.next(0, NO_LIMIT, now).expect("one waits");
    assert_eq!(first, turned_away);
    plan.postpone(first, rank);
    for _ in 0..2 {
        assert!(plan.next(0, NO_LIMIT, now).is_some(), "a postponed provider is dialled later");
    }
}

#[test]
fn a_flood_of_records_evicts_only_its_own_network() {
    let mut plan = Plan::default();
    let honest: Vec<Provider> = (0..20).map(|network| provider(100 + network, 1)).collect();
    let flood = |plan: &mut Plan| (0..5_000).for_each(|port| plan.add(provider(1, port), direct));
    plan.add(honest[0].clone(), direct);
    flood(&mut plan);
    assert_eq!(plan.waiting.len(), WAITING_MAX);
    honest.iter().for_each(|provider| plan.add(provider.clone(), direct));
    flood(&mut plan);
    let waiting: HashSet<PeerId> = plan.waiting.iter().map(|candidate| candidate.provider.peer).collect();
    assert!(honest.iter().all(|provider| waiting.contains(&provider.peer)));
}

proptest! {
    /// For any providers and results, dials in progress, total dials and queued providers are bounded, and each address
    /// of a provider is tried once.
    #[test]
    fn any_sequence_stays_within_the_bounds(
        steps in prop::collection::vec((0_u8..6, 0_u16..400, 0_u8..6), 0..1_200),
        pending_max in 1_usize..200,
    ) {
        let peers: Vec<PeerId> = (0..400).map(|_| PeerId::random()).collect();
        let (mut plan, mut now) = (Plan::default(), Instant::now());
        let mut tried: HashMap<PeerId, Vec<Multiaddr>> = HashMap::new();
        let mut total = 0;
        for (step, n, rank) in steps {
            let peer = peers[usize::from(n)];
            match step {
                0..=2 => {
                    let addresses = provider(rank, n % 7 + 1).addresses;
                    let ranks = [Rank::SeenAlive, Rank::Quic, Rank::Direct, Rank::Indirect, Rank::Unreachable];
                    plan.add(Provider { peer, addresses }, |_| ranks[usize::from(rank) % 5]);
                }
                3 => plan.ended(&peer, n % 2 == 0, &[]),
                _ => now += DEADLINE / 2,
            }
            while let Some((provider, rank)) = plan.next(usize::from(rank == 5), pending_max, now) {
                let known = tried.entry(provider.peer).or_default();
                prop_assert!(provider.addresses.iter().all(|address| !known.contains(address)));
                known.extend(provider.addresses.iter().cloned());
                plan.began(&provider, rank, Vec::new(), now + DEADLINE, now);
                total += 1;
            }
            prop_assert!(plan.pending.len() <= pending_max && total <= DIALS_MAX && plan.waiting.len() <= WAITING_MAX);
            prop_assert!(plan.window <= WINDOW_MAX);
        }
        prop_assert!(plan.dialled.values().all(|dialled| dialled.attempts <= ATTEMPTS_MAX));
    }
}

#[test]
fn a_rate_limited_provider_is_dialled_later() {
    let start = Instant::now();
    let mut plan = Plan::default();
    plan.add(provider(1, 1), direct);
    let (limited, rank) = plan.next(0, 8, start).expect("it is next");
    plan.delay(limited.clone(), rank, start);
    assert!(plan.is_waiting(), "the search waits for it");
    assert_eq!(plan.next(0, 8, start + DELAY / 2), None);
    for attempt in 1..ATTEMPTS_MAX {
        let now = start + DELAY * u32::from(attempt);
        assert_eq!(plan.next(0, 8, now).map(|(provider, _)| provider), Some(limited.clone()));
        plan.delay(limited.clone(), rank, now);
    }
    assert!(!plan.is_waiting(), "not forever");
}

#[test]
fn a_rate_limited_provider_that_answered_is_dialled_at_once() {
    let start = Instant::now();
    let mut plan = Plan::default();
    plan.add(provider(1, 1), direct);
    let (limited, rank) = plan.next(0, 8, start).expect("it is next");
    plan.delay(limited.clone(), rank, start);
    let (found_at, elsewhere) = (limited.addresses[0].clone(), "/ip4/192.0.2.99/tcp/9".parse().expect("an address"));
    plan.hasten(&PeerId::random(), &found_at);
    plan.hasten(&limited.peer, &elsewhere);
    assert_eq!(plan.next(0, 8, start), None, "another peer, and another address");
    for _ in 0..2 * ATTEMPTS_MAX {
        plan.hasten(&limited.peer, &found_at);
        assert_eq!(plan.next(0, 8, start), Some((limited.clone(), rank)), "that costs no attempt");
        plan.delay(limited.clone(), rank, start);
    }
}

#[test]
fn a_search_continues_while_a_dial_has_untried_addresses() {
    let start = Instant::now();
    let mut plan = Plan::default();
    plan.add(provider(1, 1), direct);
    let (only, rank) = plan.next(0, 8, start).expect("it is next");
    let left: Multiaddr = "/ip4/192.0.2.9/tcp/9".parse().expect("an address");
    plan.began(&only, rank, vec![left.clone()], start + DEADLINE, start);
    assert!(plan.is_waiting());
    let next = plan.next(0, 8, start + DEADLINE).map(|(provider, _)| provider.addresses);
    assert_eq!(next, Some(vec![left]));
}
