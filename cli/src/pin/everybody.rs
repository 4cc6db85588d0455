//! The pins of all tokens, for the operator (`admin::pins::overview`).

use crate::output::{count, print_line, print_view, table};
use crate::pin::LsArgs;
use crate::pin::show::word;
use crate::place::Asking;
use crate::remote::address::{query, segment};
use crate::remote::{Remote, running};
use crate::store_cli::printable;
use crate::values::moment;
use api::pins::{OwnedPinView, OwnedPinsView, OwnerView, OwnersView};
use api::text::size;
use config::Loaded;
use serde_json::json;
use std::fmt::Write as _;

/// Pins that are asked for at a time.
const PAGE: usize = 1000;

/// Lists pins.
///
/// # Errors
/// What was answered instead.
pub async fn ls(loaded: &Loaded, args: &LsArgs) -> anyhow::Result<()> {
    let remote = running(loaded, &args.node).await?;
    let mut filter = crate::pin::filter(args);
    filter.extend(args.owner.clone().map(|owner| ("owner", owner)));
    let mut all = OwnedPinsView { count: 0, pins: Vec::new() };
    let mut left = args.limit.unwrap_or(usize::MAX);
    while left > 0 {
        let limit = PAGE.min(left);
        let mut parameters = filter.clone();
        parameters.push(("limit", limit.to_string()));
        parameters.extend(all.pins.last().map(|last| ("older_than", last.requestid.clone())));
        let page: OwnedPinsView = remote.get(&format!("/api/v1/pins{}", query(&parameters))).await?;
        left = if page.pins.len() < limit { 0 } else { left - page.pins.len() };
        all.pins.extend(page.pins);
    }
    all.count = all.pins.len() as u64;
    print_view(args.json, &all, |all| rows(&all.pins))
}

/// A token by its name, or by its identifier if it was revoked.
fn owner(name: Option<&str>, id: &str) -> String {
    name.map_or_else(|| format!("{id} (revoked)"), |name| printable(name).into_owned())
}

fn rows(pins: &[OwnedPinView]) -> String {
    let row = |pin: &OwnedPinView| {
        let here = if pin.blocks > 0 {
            format!("{}, {}", count(pin.blocks, "block"), size(pin.bytes))
        } else {
            "-".to_owned()
        };
        let name = printable(pin.name.as_deref().unwrap_or_default()).into_owned();
        let (cid, id, owner) = (pin.cid.clone(), pin.requestid.clone(), owner(pin.owner_name.as_deref(), &pin.owner));
        [cid, word(pin.status).to_owned(), here, moment(pin.created_at), owner, id, name]
    };
    match pins {
        [] => "there are none\n".to_owned(),
        pins => table(["CID", "STATUS", "HERE", "CREATED", "OWNER", "ID", "NAME"], pins.iter().map(row)),
    }
}

/// Removes a pin.
///
/// # Errors
/// What was answered instead.
pub async fn rm(remote: &Remote, id: &str, as_json: bool) -> anyhow::Result<()> {
    remote.remove(&format!("/api/v1/pins/{}", segment(id))).await?;
    print_line(&if as_json { json!({ "requestid": id }).to_string() } else { format!("removed {id}") })
}

/// Says who has how much.
///
/// # Errors
/// What was answered instead.
pub async fn owners(loaded: &Loaded, asking: &Asking) -> anyhow::Result<()> {
    let owners: OwnersView = running(loaded, &asking.node).await?.get("/api/v1/pins/owners").await?;
    print_view(asking.json, &owners, owners_text)
}

fn owners_text(owners: &OwnersView) -> String {
    let row = |owner: &OwnerView| {
        [self::owner(owner.owner_name.as_deref(), &owner.owner), owner.pins.to_string(), size(owner.bytes)]
    };
    let mut text = table(["OWNER", "PINS", "BYTES"], owners.owners.iter().map(row));
    let OwnersView { pending, pinned, failed, queued_roots, active_roots, .. } = owners;
    _ = writeln!(text, "{pinned} are here, {pending} are not yet, {failed} failed");
    _ = writeln!(text, "DAGs that are being fetched: {active_roots}; that wait for their turn: {queued_roots}");
    text
}
