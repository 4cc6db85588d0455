//! Tests of the ledger: shares over peers and protocols, limits, and totals that are right after any history. What it
//! does for a single protocol is tested with the Bitswap server.

use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

const SERVICES: [Service; Service::COUNT] = [Service::Bitswap, Service::Dag];

/// Takes the next turn of either protocol, for a peer that keeps waiting.
fn turn(ledger: &mut Ledger) -> Option<(Service, Turn)> {
    for service in SERVICES {
        if let Some(turn) = ledger.next_turn(service, LOOKUPS_PER_PEER) {
            ledger.set_waiting(turn.peer, service, true);
            return Some((service, turn));
        }
    }
    None
}

/// Completes a turn with a block of so many bytes, which is sent.
fn serve(ledger: &mut Ledger, (service, turn): (Service, Turn), bytes: usize) {
    ledger.looked_up(turn.peer, turn.lookups, 1, bytes);
    ledger.queued(turn.peer, service, bytes);
    ledger.sent(turn.peer, service, bytes);
}

#[test]
fn protocols_take_turns_and_a_peer_with_two_has_no_more_than_a_peer_with_one() {
    let (both, bitswap, dag) = (PeerId::random(), PeerId::random(), PeerId::random());
    let mut ledger = Ledger::default();
    for (peer, services) in [(both, &SERVICES[..]), (bitswap, &SERVICES[..1]), (dag, &SERVICES[1..])] {
        services.iter().for_each(|service| ledger.set_waiting(peer, *service, true));
    }
    let mut served: HashMap<(PeerId, Service), usize> = HashMap::new();
    for _ in 0..600 {
        let next = turn(&mut ledger).expect("all wait");
        *served.entry((next.1.peer, next.0)).or_default() += 1;
        serve(&mut ledger, next, QUANTUM);
    }
    let of = |peer, service| served.get(&(peer, service)).copied().unwrap_or_default();
    assert_eq!([of(bitswap, Service::Bitswap), of(dag, Service::Dag)], [200; 2]);
    assert_eq!(SERVICES.map(|service| of(both, service)), [100; 2]);
}

#[test]
fn bytes_of_one_protocol_are_owed_in_the_other() {
    let (greedy, modest) = (PeerId::random(), PeerId::random());
    let mut ledger = Ledger::default();
    SERVICES.iter().for_each(|service| ledger.set_waiting(greedy, *service, true));
    ledger.set_waiting(modest, Service::Bitswap, true);
    let mut served: HashMap<PeerId, usize> = HashMap::new();
    for _ in 0..1_000 {
        let next = turn(&mut ledger).expect("all wait");
        let bytes = if next.0 == Service::Dag { 2 << 20 } else { 64 << 10 };
        *served.entry(next.1.peer).or_default() += bytes;
        serve(&mut ledger, next, bytes);
    }
    let (greedy, modest) = (served[&greedy], served[&modest]);
    assert!(greedy < 5 * modest, "{greedy} against {modest}, which asks for a quarter of a turn at most");
}

#[test]
fn only_a_peer_that_is_alone_has_several_look_ups_in_a_turn() {
    let (first, second) = (PeerId::random(), PeerId::random());
    let mut ledger = Ledger::default();
    ledger.set_waiting(first, Service::Dag, true);
    // The initial allowance has room for two.
    let alone = ledger.next_turn(Service::Dag, 4).expect("waits");
    assert_eq!(alone, Turn { peer: first, lookups: 2 });
    ledger.set_waiting(first, Service::Dag, true);
    assert_eq!(ledger.next_turn(Service::Dag, 4), None, "the allowance is used up");
    ledger.looked_up(first, 2, 2, 0);
    ledger.queued(first, Service::Dag, ALLOWANCE_MIN - 1);
    ledger.sent(first, Service::Dag, ALLOWANCE_MIN - 1);
    for _ in 0..5 {
        ledger.queued(first, Service::Dag, ALLOWANCE_MAX);
        ledger.sent(first, Service::Dag, ALLOWANCE_MAX);
    }
    assert_eq!(ledger.next_turn(Service::Dag, 4).map(|turn| turn.lookups), Some(4));
    ledger.set_waiting(first, Service::Dag, false);
    ledger.looked_up(first, 4, 4, 0);
    ledger.set_waiting(second, Service::Bitswap, true);
    ledger.set_waiting(first, Service::Dag, true);
    assert_eq!(ledger.next_turn(Service::Dag, 4), None, "it is the turn of the other");
    assert!(ledger.is_turn_of(Service::Bitswap) && !ledger.is_turn_of(Service::Dag));
    assert_eq!(ledger.next_turn(Service::Bitswap, 4), Some(Turn { peer: second, lookups: 1 }));
}

#[test]
fn a_throttled_peer_has_one_look_up_over_all_protocols() {
    let peer = PeerId::random();
    let mut ledger = Ledger::default();
    ledger.throttle(peer, true);
    SERVICES.iter().for_each(|service| ledger.set_waiting(peer, *service, true));
    let (_, first) = turn(&mut ledger).expect("waits");
    assert_eq!((first.lookups, turn(&mut ledger)), (1, None));
    ledger.looked_up(peer, 1, 1, 0);
    assert!(turn(&mut ledger).is_some());
    ledger.throttle(peer, false);
    assert!(turn(&mut ledger).is_some());
}

#[test]
fn what_is_withdrawn_costs_nothing_and_what_is_dropped_costs_the_allowance() {
    let peer = PeerId::random();
    let mut ledger = Ledger::default();
    for _ in 0..2 {
        ledger.queued(peer, Service::Dag, ALLOWANCE_MIN);
        ledger.sent(peer, Service::Dag, ALLOWANCE_MIN);
    }
    let raised = ledger.allowance(&peer);
    assert!(raised > ALLOWANCE_MIN);
    ledger.queued(peer, Service::Dag, 1_000);
    ledger.queued(peer, Service::Bitswap, 500);
    ledger.withdrawn(peer, Service::Dag, usize::MAX);
    assert_eq!((ledger.allowance(&peer), ledger.in_flight_to(&peer)), (raised, 500));
    ledger.lost(peer, Service::Bitswap);
    assert_eq!((ledger.allowance(&peer), ledger.in_flight_bytes(), ledger.len()), (ALLOWANCE_MIN, 0, 0));
}

/// A step of a history, for a peer and a protocol.
#[derive(Debug, Clone, Copy)]
enum Step {
    Wait(bool),
    Turn,
    Found(usize),
    Sent(usize),
    Withdrawn(usize),
    Dropped(usize),
    Lost,
    Throttle(bool),
    Disconnect,
}

fn steps() -> impl Strategy<Value = Vec<(usize, Service, Step)>> {
    let step = prop_oneof![
        4 => any::<bool>().prop_map(Step::Wait),
        8 => Just(Step::Turn),
        8 => (0..3_usize << 20).prop_map(Step::Found),
        8 => (0..3_usize << 20).prop_map(Step::Sent),
        2 => (0..3_usize << 20).prop_map(Step::Withdrawn),
        1 => (0..3_usize << 20).prop_map(Step::Dropped),
        1 => Just(Step::Lost),
        1 => any::<bool>().prop_map(Step::Throttle),
        1 => Just(Step::Disconnect),
    ];
    prop::collection::vec((0..4_usize, prop::sample::select(&SERVICES[..]), step), 0..300)
}

proptest! {
    #[test]
    fn totals_and_limits_hold_after_any_history(steps in steps()) {
        let peers: Vec<PeerId> = (0..4).map(|_| PeerId::random()).collect();
        let mut ledger = Ledger::default();
        let mut running: Vec<(Service, Turn)> = Vec::new();
        for (peer, service, step) in steps {
            let peer = peers[peer];
            match step {
                Step::Wait(waiting) => ledger.set_waiting(peer, service, waiting),
                Step::Turn => {
                    if let Some(turn) = ledger.next_turn(service, 4) {
                        ledger.set_waiting(turn.peer, service, !running.len().is_multiple_of(3));
                        running.push((service, turn));
                    }
                }
                Step::Found(bytes) => {
                    if let Some((service, turn)) = running.pop()
                        && ledger.looked_up(turn.peer, turn.lookups, 1, bytes)
                    {
                        ledger.queued(turn.peer, service, bytes);
                    }
                }
                Step::Sent(bytes) => ledger.sent(peer, service, bytes),
                Step::Withdrawn(bytes) => ledger.withdrawn(peer, service, bytes),
                Step::Dropped(bytes) => ledger.dropped(peer, service, bytes),
                Step::Lost => ledger.lost(peer, service),
                Step::Throttle(throttled) => ledger.throttle(peer, throttled),
                Step::Disconnect => ledger.disconnected(peer),
            }
            let sum: usize = ledger.accounts.values().map(Account::in_flight_bytes).sum();
            prop_assert_eq!(sum, ledger.in_flight_bytes);
            prop_assert_eq!(ledger.lookups, running.iter().map(|(_, turn)| turn.lookups).sum::<usize>());
            prop_assert!(ledger.lookups <= LOOKUPS_MAX);
            for account in ledger.accounts.values() {
                prop_assert!((ALLOWANCE_MIN..=ALLOWANCE_MAX).contains(&account.allowance));
                prop_assert!(account.lookups <= LOOKUPS_PER_PEER);
            }
            // Each peer has at most one turn, and no peer that may look up is left out.
            let turns: HashSet<_> = ledger.turns.iter().collect();
            prop_assert_eq!(turns.len(), ledger.turns.len());
            for (peer, account) in &ledger.accounts {
                prop_assert!(!account.may_look_up() || turns.contains(peer));
            }
        }
        for (_, turn) in running {
            ledger.looked_up(turn.peer, turn.lookups, 0, 0);
        }
        peers.iter().for_each(|peer| ledger.disconnected(*peer));
        prop_assert_eq!((ledger.lookups, ledger.in_flight_bytes, ledger.len()), (0, 0, 0));
    }
}
