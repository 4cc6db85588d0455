//! The page that a first start prints: it is there without any network.

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
