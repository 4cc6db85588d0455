//! [`check`]: what has to hold when the faults have ended.

use super::clients::{Endpoint, content, new_http};
use super::faults::Fleet;
use super::ledger::{Expected, Pin};
use crate::support::causeway::TOKEN;
use crate::support::{assert_same_bytes, eventually};
use cache::PinState;
use futures::future::join_all;
use futures::stream::{self, StreamExt as _};
use reqwest::Client;
use serde_json::Value;
use site::blocks::{BlockIndex as _, Listed, ObjectId};
use site::database::{DatabaseIndex, IndexOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::sleep;

/// How long is waited for what takes leases of 30 s, back-offs of a minute and more, or a removal that is taken over
/// after a minute.
const SETTLED_WITHIN: Duration = Duration::from_secs(240);
/// The time between two attempts to have pins tried that wait for their back-off to end.
const RETRY_EVERY: Duration = Duration::from_secs(2);
/// Slots of the storage that are reconciled at the same time.
const SLOTS_AT_ONCE: usize = 8;

/// Pins by the numbers of their requests: their names, CIDs and statuses.
type Pins = BTreeMap<String, [String; 3]>;

/// Waits until the site has settled, and checks it.
pub async fn check(mut fleet: Fleet, is_long: bool) {
    let http = new_http();
    let pins = settled(&http, &fleet.endpoints()).await;
    check_acknowledged(&fleet.ledger().pins(), &pins);
    fleet.ledger().note("all gateways list the same pins, which are complete; they lose their disks now");
    fleet.start_without_disks().await;
    let again = settled(&http, &fleet.endpoints()).await;
    assert_eq!(pins, again, "as before");
    let contents: BTreeMap<String, u64> =
        fleet.ledger().pins().into_iter().map(|pin| (pin.name, pin.content)).collect();
    fleet.ledger().note("gateways without disks list the same pins");
    let reading = fleet.endpoints().into_iter().map(|endpoint| read_all(&http, endpoint, &pins, &contents));
    join_all(reading.collect::<Vec<_>>()).await;
    fleet.ledger().note("each gateway has served all pins");
    if is_long {
        until_removals_end(&fleet).await;
    }
    fleet.stop_all().await;
    let roots = pins.values().map(|[_, cid, _]| cid.clone()).collect();
    check_storage(&fleet, &roots, is_long).await;
    fleet.ledger().note("the storage has what the index has");
}

/// Waits until all gateways list the same pins, and all of them are complete.
async fn settled(http: &Client, endpoints: &[Endpoint]) -> Pins {
    eventually("all gateways list the same pins, which are complete", SETTLED_WITHIN, async || {
        let listed = join_all(endpoints.iter().map(|endpoint| listed(http, endpoint))).await;
        let listed = listed.into_iter().collect::<Result<Vec<Pins>, String>>()?;
        let waiting: Vec<_> = listed[0].iter().filter(|(_, [_, _, status])| status != "pinned").collect();
        if waiting.is_empty() && listed.iter().all(|other| *other == listed[0]) {
            return Ok(listed[0].clone());
        }
        for (id, _) in &waiting {
            let url = format!("{}/api/v1/pins/{id}/retry", endpoints[0].admin);
            _ = http.post(url).bearer_auth(TOKEN).send().await;
        }
        sleep(RETRY_EVERY).await;
        let counts: Vec<usize> = listed.iter().map(Pins::len).collect();
        Err(format!("they list {counts:?}; waiting: {waiting:?}"))
    })
    .await
}

async fn listed(http: &Client, endpoint: &Endpoint) -> Result<Pins, String> {
    let answer = endpoint.listed(http).await?;
    let results = answer["results"].as_array().ok_or_else(|| answer.to_string())?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let pin =
        |pin: &Value| (text(&pin["requestid"]), [&pin["pin"]["name"], &pin["pin"]["cid"], &pin["status"]].map(text));
    let pins: Pins = results.iter().map(pin).collect();
    if answer["count"] == pins.len() { Ok(pins) } else { Err(format!("{} of {}", pins.len(), answer["count"])) }
}

/// What was acknowledged is listed, what was acknowledged as removed is not, and nothing is that no client has asked for.
fn check_acknowledged(expected: &[Pin], listed: &Pins) {
    let by_name: BTreeMap<&str, (&str, &str)> =
        listed.iter().map(|(id, [name, cid, _])| (name.as_str(), (id.as_str(), cid.as_str()))).collect();
    assert_eq!(by_name.len(), listed.len(), "no request was carried out twice");
    for pin in expected {
        let found = by_name.get(pin.name.as_str()).copied();
        let known = pin.known.as_ref().map(|(id, cid)| (id.as_str(), cid.as_str()));
        match pin.expected {
            Expected::Kept => assert_eq!(found, known, "{} was acknowledged", pin.name),
            Expected::Removed => assert_eq!(found, None, "{} was acknowledged as removed", pin.name),
            Expected::Either => assert!(found.is_none() || known.is_none() || found == known, "{pin:?}: {found:?}"),
        }
    }
    let names: BTreeSet<&str> = expected.iter().map(|pin| pin.name.as_str()).collect();
    assert!(by_name.keys().all(|name| names.contains(name)), "{by_name:?}");
    let kept = expected.iter().filter(|pin| pin.expected == Expected::Kept).count();
    println!("{} pins are listed, of which {kept} were acknowledged", listed.len());
    assert!(kept > 0, "the clients have pins");
}

/// Waits until what gateways that were killed had begun to remove has been removed by others.
async fn until_removals_end(fleet: &Fleet) {
    let removals = "SELECT encode(key, 'escape') FROM SITE.record WHERE encode(key, 'escape') LIKE 'orphan/%'";
    eventually("removals end", SETTLED_WITHIN, async || {
        let left = fleet.engines.sql(removals).await;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
}

/// Reads the content of every pin at a gateway, byte by byte.
async fn read_all(http: &Client, endpoint: Endpoint, pins: &Pins, contents: &BTreeMap<String, u64>) {
    for [name, cid, _] in pins.values() {
        let response = http.get(format!("{}/ipfs/{cid}", endpoint.public)).send().await.expect("is answered");
        let status = response.status();
        let body = response.bytes().await.expect("is whole");
        assert_eq!(status, 200, "{name} at gateway {}: {}", endpoint.gateway, String::from_utf8_lossy(&body));
        assert_same_bytes(name, &body, &content(contents[name]));
    }
}

/// After reconciling, the storage has the objects that the index has, and no others, and none of them was missing. In the
/// long form, in which removals are complete, the pins are those that are listed, and those of uploads that were not
/// acknowledged.
async fn check_storage(fleet: &Fleet, roots: &BTreeSet<String>, is_long: bool) {
    let settings = fleet.engines.settings();
    let engines = site::open(&settings).await.expect("the site is there");
    let (blocks, objects) = (engines.blocks.with_pending_age(Duration::ZERO), engines.uploads.objects);
    let index = DatabaseIndex::new(engines.database, IndexOptions::default());
    while blocks.release_members().await.expect("releases") {}
    while blocks.sweep().await.expect("sweeps") > 0 {}
    blocks.evict(0, usize::MAX).await.expect("evicts");
    let reconcile = async |slot: u8| {
        let found = blocks.reconcile(slot, u64::MAX).await.expect("reconciles");
        assert_eq!((found.lost, found.foreign), (0, 0), "slot {slot}: no object of the index is missing");
        let stored = index.objects_of_slot(slot, Listed::Stored, None, 100_000).await.expect("is read");
        (found.orphans, stored)
    };
    let slots: Vec<_> = stream::iter(0..=u8::MAX).map(reconcile).buffer_unordered(SLOTS_AT_ONCE).collect().await;
    let orphans: u64 = slots.iter().map(|(orphans, _)| orphans).sum();
    let of_index: BTreeSet<ObjectId> = slots.into_iter().flat_map(|(_, stored)| stored).collect();
    let listed: Vec<_> = objects.list("v1/").collect().await;
    let name = |listed: Result<objects::ListedObject, _>| listed.expect("is listed").name;
    let of_block = |name: String| ObjectId::of_name(&name).ok_or(name);
    let in_storage: Result<BTreeSet<ObjectId>, String> = listed.into_iter().map(name).map(of_block).collect();
    assert_eq!(in_storage, Ok(of_index.clone()), "the storage has what the index has");
    let figures = blocks.figures().await.expect("counts");
    assert_eq!((figures.pending_objects, figures.cached_blocks), (0, 0));
    let pins = blocks.pins(None, 100_000).await.expect("are listed");
    let (needed, others): (Vec<_>, Vec<_>) = pins.iter().partition(|pin| roots.contains(&pin.root.to_string()));
    assert_eq!(needed.len(), roots.len(), "{roots:?} of {needed:?}");
    assert!(needed.iter().all(|pin| pin.state == PinState::Complete), "{needed:?}");
    println!(
        "{} objects of {} pins, {orphans} orphans, {} pins without a request",
        of_index.len(),
        pins.len(),
        others.len()
    );
    // A gateway that was killed has left what it had uploaded and not acknowledged.
    let most = fleet.ledger().unacknowledged_uploads();
    assert!(!is_long || others.len() <= most, "{others:?}, of at most {most}");
}
