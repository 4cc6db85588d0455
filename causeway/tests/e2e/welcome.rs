//! The welcome page of a first start, without any network.

use crate::support::causeway::Launch;
use crate::support::get;
use tempfile::TempDir;

#[tokio::test(flavor = "multi_thread")]
async fn the_welcome_page_needs_no_network() {
    let dir = TempDir::new().expect("the temporary folder is writable");
    let causeway = Launch::new(dir.path()).start().await;
    let page = get(causeway.welcome()).await;
    assert_eq!(page.status, 200, "{}: {}", causeway.welcome(), page.text());
    assert!(page.header("content-type").starts_with("text/html"), "{:?}", page.header("content-type"));
    assert!(page.text().contains("Causeway"), "{}", page.text());
    assert_eq!(causeway.metrics().await.hits("network"), 0);
    causeway.assert_healthy().await;
    causeway.stop().await;
}

/// An unpinned welcome site stays unpinned, and a setting disables it.
#[tokio::test(flavor = "multi_thread")]
async fn the_welcome_site_can_be_unpinned_and_disabled() {
    let dir = TempDir::new().expect("the temporary folder is writable");
    let launch = Launch::new(dir.path());
    let causeway = launch.start().await;
    let root = causeway.welcome().trim_end_matches('/').rsplit('/').next().expect("a CID").to_owned();
    launch.run(&["pin", "rm", &root]).expect("unpins");
    causeway.stop().await;
    for _ in 0..2 {
        let causeway = launch.start().await;
        assert_eq!(causeway.welcome(), "not pinned");
        let landing = causeway.get("/").await;
        assert!(landing.status == 200 && !landing.text().contains(&root), "{}", landing.text());
        causeway.assert_healthy().await;
        causeway.stop().await;
    }

    let dir = TempDir::new().expect("the temporary folder is writable");
    let causeway = Launch::new(dir.path()).set("CAUSEWAY_HTTP_WELCOME_SITE", false).start().await;
    assert_eq!(causeway.welcome(), "not pinned");
    assert_eq!(causeway.metrics().await.sample("causeway_disk_pinned_bytes"), 0);
    causeway.stop().await;
}
