//! Pins as text.

use crate::output::{count, table};
use crate::store_cli::printable;
use api::pins::{PinStatusView, StatusView};
use api::text::size;

/// The name of a status in the Pinning Service API.
pub fn status_name(status: StatusView) -> &'static str {
    match status {
        StatusView::Queued => "queued",
        StatusView::Pinning => "pinning",
        StatusView::Pinned => "pinned",
        StatusView::Failed => "failed",
    }
}

/// The progress of a pin, and the last error.
pub fn details(pin: &PinStatusView) -> String {
    let mut text = amount(pin).unwrap_or_default();
    if let Some(details) = pin.info.get("status_details") {
        text = if text.is_empty() { details.clone() } else { format!("{text}; {details}") };
    }
    if text.is_empty() { status_name(pin.status).to_owned() } else { text }
}

/// The stored blocks and bytes of a pin.
pub fn amount(pin: &PinStatusView) -> Option<String> {
    let number = |key: &str| pin.info.get(key)?.parse::<u64>().ok();
    let (blocks, bytes) = (number("blocks")?, number("bytes")?);
    (blocks > 0).then(|| format!("{}, {}", count(blocks, "block"), size(bytes)))
}

/// A line for a pin that was added or changed.
pub fn line(pin: &PinStatusView) -> String {
    let of = amount(pin).map(|amount| format!(" ({amount})")).unwrap_or_default();
    let id = if pin.requestid.is_empty() { String::new() } else { format!(" {}", pin.requestid) };
    format!("{} {}{of}{id}", status_name(pin.status), pin.pin.cid)
}

/// The end of a CID, for progress lines.
pub fn short(cid: &str) -> String {
    match cid.char_indices().nth_back(7) {
        Some((at, _)) if at > 10 => format!("…{}", &cid[at..]),
        _ => cid.to_owned(),
    }
}

/// All fields of a pin, one on each line.
pub fn describe(pin: &PinStatusView) -> String {
    let PinStatusView { requestid, status, created, pin: of, info, .. } = pin;
    let mut lines =
        vec![("cid", of.cid.clone()), ("id", requestid.clone()), ("status", status_name(*status).to_owned())];
    lines.extend(of.name.clone().map(|name| ("name", name)));
    lines.push(("created", created.clone()));
    lines.extend(amount(pin).map(|amount| ("stored", amount)));
    lines.extend(["zstd", "packed"].into_iter().filter_map(|key| Some((key, info.get(key)?.clone()))));
    lines.extend(info.get("attempts").map(|attempts| ("failed", times(attempts))));
    lines.extend(info.get("status_details").map(|details| ("details", details.clone())));
    lines.extend(of.origins.iter().flatten().map(|origin| ("origin", origin.clone())));
    lines.extend(of.meta.iter().flatten().map(|(key, value)| ("meta", format!("{key}={value}"))));
    lines.iter().map(|(key, value)| format!("{key:8} {}\n", printable(value))).collect()
}

/// A number of attempts in words.
fn times(number: &str) -> String {
    if number == "1" { "once".to_owned() } else { format!("{number} times") }
}

/// A row for each pin.
pub fn rows(pins: &[PinStatusView]) -> String {
    let row = |pin: &PinStatusView| {
        let name = pin.pin.name.as_deref().map(printable).unwrap_or_default();
        let packed = if pin.info.contains_key("zstd") { ", packed" } else { "" };
        let amount = amount(pin).map_or_else(|| "-".to_owned(), |amount| format!("{amount}{packed}"));
        // Cut to seconds, as in other tables.
        let created = format!("{}Z", pin.created.split(['.', 'Z']).next().unwrap_or_default());
        [
            pin.pin.cid.clone(),
            status_name(pin.status).to_owned(),
            amount,
            created,
            pin.requestid.clone(),
            name.into_owned(),
        ]
    };
    if pins.is_empty() {
        return "no pins\n".to_owned();
    }
    table(["CID", "STATUS", "STORED", "CREATED", "ID", "NAME"], pins.iter().map(row))
}
