//! The marker: an object that says whose objects these are, and in which format.
//!
//! A mount point without its file system looks like an empty folder, and another site's bucket like a bucket. A
//! gateway that starts checks the marker before anything else. It is written once, into a store that has no objects.

use crate::contract::Objects;
use crate::error::ObjectError;
use bytes::Bytes;
use futures::StreamExt as _;

/// The name of the marker.
pub const MARKER_NAME: &str = "causeway-site";
/// The version of the layout of objects that this release reads and writes.
const FORMAT: u32 = 1;

/// Checks that the objects are those of a site, and makes a store without objects the site's.
///
/// An empty store is taken for a new one, which a mount point without its file system looks like as well. A caller
/// that knows that the site has had objects uses [`require_marker`].
///
/// # Errors
/// [`ObjectError::Refused`] if the store is that of another site or of a newer release, or has objects but no marker;
/// the errors of the store.
pub async fn check_marker(objects: &dyn Objects, site: &str) -> Result<(), ObjectError> {
    if let Some(marker) = objects.get(MARKER_NAME).await? {
        return check(&marker, site);
    }
    if let Some(found) = objects.list("").next().await {
        let name = found?.name;
        // Another gateway of the site may have written it since.
        if name != MARKER_NAME {
            return Err(ObjectError::refused(format!(
                "the store has objects, such as {name}, and no {MARKER_NAME}, so it is no site's: use an empty folder \
                 or an unused prefix of a bucket"
            )));
        }
    } else {
        objects.put(MARKER_NAME, Bytes::from(text(site))).await?;
    }
    require_marker(objects, site).await
}

/// Checks that the objects are those of a site, whose marker was written before.
///
/// # Errors
/// As of [`check_marker`], and [`ObjectError::Refused`] if there is no marker.
pub async fn require_marker(objects: &dyn Objects, site: &str) -> Result<(), ObjectError> {
    match objects.get(MARKER_NAME).await? {
        Some(marker) => check(&marker, site),
        None => Err(ObjectError::refused(format!(
            "the store has no {MARKER_NAME}, which was written when the site was started for the first time: is the \
             file system mounted, or the right bucket and prefix configured?"
        ))),
    }
}

fn text(site: &str) -> String {
    format!("format {FORMAT}\nsite {site}\n")
}

fn check(marker: &[u8], site: &str) -> Result<(), ObjectError> {
    let marker = std::str::from_utf8(marker).unwrap_or_default();
    let mut lines = marker.lines();
    let format = lines.next().and_then(|line| line.strip_prefix("format ")).and_then(|format| format.parse().ok());
    let found = lines.next().and_then(|line| line.strip_prefix("site "));
    let refused = |reason: String| Err(ObjectError::refused(reason));
    match (format, found) {
        (Some(FORMAT), Some(found)) if found == site => Ok(()),
        (Some(FORMAT), Some(found)) => refused(format!(
            "the store is that of the site {found:?}, and this gateway is of the site {site:?}: each site needs a \
             folder, or a prefix of a bucket, of its own"
        )),
        (Some(format), _) if format > FORMAT => refused(format!(
            "the store was written by a newer release (format {format}; this release knows {FORMAT}): run that \
             release or a later one"
        )),
        _ => refused(format!("{MARKER_NAME} in the store is damaged: it has to be {:?}", text(site))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_is_of_one_site_and_of_a_known_format() {
        let table = [
            (text("berlin"), None),
            ("format 1\nsite berlin\nmore\n".to_owned(), None),
            (text("paris"), Some("\"paris\"")),
            ("format 2\nwhatever".to_owned(), Some("newer release")),
            ("format 0\nsite berlin\n".to_owned(), Some("damaged")),
            (String::new(), Some("damaged")),
            ("site berlin\nformat 1\n".to_owned(), Some("damaged")),
        ];
        for (marker, expected) in table {
            match (check(marker.as_bytes(), "berlin"), expected) {
                (Ok(()), None) => {}
                (Err(ObjectError::Refused { reason }), Some(words)) => assert!(reason.contains(words), "{reason}"),
                (result, _) => panic!("{marker:?}: {result:?}"),
            }
        }
    }
}
