//! The pins of all tokens, for the operator (`admin::pins::overview`).

use crate::options::RequestOptions;
use crate::output::{count, print_line, print_view, table};
use crate::pin::LsArgs;
use crate::pin::show::status_name;
use crate::remote::address::{query, segment};
use crate::remote::{Remote, connect};
use crate::store_cli::printable;
use crate::values::moment;
use api::pins::{OwnedPinView, OwnedPinsView, OwnerView, OwnersView};
use api::text::size;
use config::Loaded;
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Pins per request.
const PAGE: usize = 1000;

/// Lists pins.
///
/// # Errors
/// When the gateway cannot be reached or rejects the request.
pub async fn ls(loaded: &Loaded, args: &LsArgs) -> anyhow::Result<()> {
    let remote = connect(loaded, &args.node).await?;
    let mut filter = crate::pin::filter(args);
    filter.extend(args.owner.clone().map(|owner| ("owner", owner)));
    let mut all = OwnedPinsView { count: 0, by_status: BTreeMap::new(), pins: Vec::new() };
    let mut left = args.limit.unwrap_or(usize::MAX);
    while left > 0 {
        let limit = PAGE.min(left);
        let mut parameters = filter.clone();
        parameters.push(("limit", limit.to_string()));
        parameters.extend(all.pins.last().map(|last| ("older_than", last.requestid.clone())));
        let page: OwnedPinsView = remote.get(&format!("/api/v1/pins{}", query(&parameters))).await?;
        if all.pins.is_empty() {
            all.by_status = page.by_status;
        }
        left = if page.pins.len() < limit { 0 } else { left - page.pins.len() };
        all.pins.extend(page.pins);
    }
    all.count = all.pins.len() as u64;
    print_view(args.json, &all, |all| rows(&all.pins))
}

/// A token's name, or its ID if it was revoked.
fn owner(name: Option<&str>, id: &str) -> String {
    name.map_or_else(|| format!("{id} (revoked)"), |name| printable(name).into_owned())
}

fn rows(pins: &[OwnedPinView]) -> String {
    let row = |pin: &OwnedPinView| {
        let stored = if pin.blocks > 0 {
            format!("{}, {}", count(pin.blocks, "block"), size(pin.bytes))
        } else {
            "-".to_owned()
        };
        let name = printable(pin.name.as_deref().unwrap_or_default()).into_owned();
        let (cid, id, owner) = (pin.cid.clone(), pin.requestid.clone(), owner(pin.owner_name.as_deref(), &pin.owner));
        [cid, status_name(pin.status).to_owned(), stored, moment(pin.created_at), owner, id, name]
    };
    match pins {
        [] => "no pins\n".to_owned(),
        pins => table(["CID", "STATUS", "STORED", "CREATED", "OWNER", "ID", "NAME"], pins.iter().map(row)),
    }
}

/// Removes a pin.
///
/// # Errors
/// When the gateway cannot be reached or rejects the request.
pub async fn rm(remote: &Remote, id: &str, as_json: bool) -> anyhow::Result<()> {
    remote.remove(&format!("/api/v1/pins/{}", segment(id))).await?;
    print_line(&if as_json { json!({ "requestid": id }).to_string() } else { format!("removed {id}") })
}

/// Prints the number of pins of each owner.
///
/// # Errors
/// When the gateway cannot be reached or rejects the request.
pub async fn owners(loaded: &Loaded, options: &RequestOptions) -> anyhow::Result<()> {
    let owners: OwnersView = connect(loaded, &options.node).await?.get("/api/v1/pins/owners").await?;
    print_view(options.json, &owners, owners_text)
}

fn owners_text(owners: &OwnersView) -> String {
    let row = |owner: &OwnerView| {
        [self::owner(owner.owner_name.as_deref(), &owner.owner), owner.pins.to_string(), size(owner.bytes)]
    };
    let mut text = table(["OWNER", "PINS", "BYTES"], owners.owners.iter().map(row));
    let OwnersView { pending, pinned, failed, queued_roots, active_roots, .. } = owners;
    _ = writeln!(text, "{pinned} pinned, {pending} pending, {failed} failed");
    _ = writeln!(text, "DAGs being fetched: {active_roots}; queued: {queued_roots}");
    text
}
