//! TAR archives: <https://specs.ipfs.tech/http-gateways/path-gateway/#application-x-tar>. They are read by the system's
//! `tar`, as users do.

use crate::case::{Body, Case, get, has, is};
use crate::fixtures::*;
use crate::world::check;
use bytes::Bytes;
use std::path::Path;
use std::process::Command;

#[tokio::test(flavor = "multi_thread")]
async fn archives_can_be_unpacked() {
    check("TAR", archives()).await;
}

pub fn archives() -> Vec<Case> {
    let file = format!("/ipfs/{LISTING_FILE}");
    let dir = format!("/ipfs/{LISTING}");
    let tagged = |case: Case, cid: &str| {
        case.status(200)
            .header("content-type", has("application/x-tar"))
            .header("content-disposition", has("attachment;"))
            .header("etag", has(format!("W/\"{cid}.x-tar")))
            .header("x-content-type-options", is("nosniff"))
    };
    let text = |path: String| (path, Some(Bytes::from_static(LISTING_TEXT.as_bytes())));
    let of_file = || Body::Tar(vec![text(LISTING_FILE.to_owned())]);
    vec![
        tagged(get("a file by query", format!("{file}?format=tar")), LISTING_FILE).body(of_file()),
        tagged(get("a file by Accept", &file).with("Accept", "application/x-tar"), LISTING_FILE).body(of_file()),
        tagged(get("a directory", format!("{dir}?format=tar")), LISTING).body(Body::Tar(vec![
            text(format!("{LISTING}/ą/ę/file-źł.txt")),
            (format!("{LISTING}/api/file.txt"), None),
            (format!("{LISTING}/ipfs/file.txt"), None),
            (format!("{LISTING}/ipns/file.txt"), None),
        ])),
        get("a file of several blocks", format!("/ipfs/{FILES}/multiblock.txt?format=tar"))
            .status(200)
            .body(Body::Tar(vec![(MULTIBLOCK.to_owned(), Some(crate::fixtures::file(MULTIBLOCK)))])),
        get("a symlink stays one", format!("/ipfs/{SYMLINK}?format=tar"))
            .status(200)
            .body(Body::Tar(vec![(format!("{SYMLINK}/bar"), Some(Bytes::from_static(b"content\n")))])),
        get("another name", format!("{dir}?format=tar&filename=test%D1%82%D0%B5%D1%81%D1%82.tar")).status(200).header(
            "content-disposition",
            has("attachment; filename=\"test____.tar\"; filename*=UTF-8''test%D1%82%D0%B5%D1%81%D1%82.tar"),
        ),
        get("a name that climbs out", format!("/ipfs/{TAR_OUTSIDE}?format=tar")).statuses(400..600).get_only(),
        get("names that climb and stay inside", format!("/ipfs/{TAR_INSIDE}?format=tar"))
            .status(200)
            .body(Body::Tar(vec![(format!("{TAR_INSIDE}/foobar/file"), Some(Bytes::from_static(b"Hello, world!\n")))])),
        get("a file with a hole", format!("/ipfs/{MISSING}?format=tar")).breaks_off(),
    ]
}

/// Unpacks an archive, and compares the expected entries.
pub fn fault(archive: &[u8], expected: &[(String, Option<Bytes>)]) -> Option<String> {
    let folder = tempfile::TempDir::with_prefix("causeway-tar-").expect("the temporary folder is writable");
    let file = folder.path().join("archive.tar");
    std::fs::write(&file, archive).expect("the folder is writable");
    let inside = folder.path().join("unpacked");
    std::fs::create_dir(&inside).expect("the folder is writable");
    let unpacked = Command::new("tar").arg("-xf").arg(&file).arg("-C").arg(&inside).output().expect("tar starts");
    if !unpacked.status.success() || !archive.ends_with(&[0; 1024]) {
        return Some(format!("no good archive: {}", String::from_utf8_lossy(&unpacked.stderr)));
    }
    expected.iter().find_map(|(path, content)| entry_fault(&inside.join(path), content.as_ref()))
}

fn entry_fault(path: &Path, expected: Option<&Bytes>) -> Option<String> {
    match std::fs::read(path) {
        Ok(found) => expected.filter(|expected| found != **expected).map(|_| format!("{} differs", path.display())),
        Err(error) => Some(format!("{}: {error}", path.display())),
    }
}
