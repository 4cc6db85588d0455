//! `causeway store`: import and export of archives, compatible with Kubo; detection and repair of damage.

use crate::support::causeway::{Causeway, Launch};
use crate::support::corpus::{self, Item};
use crate::support::eventually;
use crate::support::kubo::Kubo;
use content::hashes::{self, SHA2_256};
use content::{Cid, codec};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;
use tempfile::TempDir;

const BYTES: usize = 3_000_000;
const LEAF_BYTES: usize = 256 << 10;

/// Kubo with a file of raw leaves, and a node's folder.
struct World {
    dir: TempDir,
    kubo: Kubo,
    item: Item,
}

impl World {
    async fn new() -> Self {
        let kubo = Kubo::start().await;
        let [_, item] = corpus::files(&kubo, BYTES);
        Self { dir: TempDir::new().expect("the temporary folder is writable"), kubo, item }
    }

    fn launch(&self) -> Launch {
        Launch::new(self.dir.path())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The file, exported by Kubo.
    fn archive(&self) -> PathBuf {
        let car = self.path("kubo.car");
        self.kubo.export(&self.item.root, &car);
        car
    }

    /// Flips a bit of a leaf on the disk, and returns the leaf's CID.
    fn damage(&self, leaf: usize) -> String {
        let data = &self.item.body[leaf * LEAF_BYTES..(leaf + 1) * LEAF_BYTES];
        let folder = fs::read_dir(self.path("data/store/segments")).expect("there is a store");
        let flipped = folder.filter_map(|file| flip(&file.expect("reads").path(), data)).count();
        assert_eq!(flipped, 1, "it is there once");
        let hash = hashes::digest(SHA2_256, 32, data).expect("hashes");
        Cid::new_v1(codec::RAW, hash).to_string()
    }
}

fn flip(path: &Path, data: &[u8]) -> Option<()> {
    let mut bytes = fs::read(path).expect("reads");
    let at = bytes.windows(64).position(|window| window == &data[..64])?;
    bytes[at + data.len() / 2] ^= 1;
    fs::write(path, bytes).expect("writes");
    Some(())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[tokio::test(flavor = "multi_thread")]
async fn archives_are_imported_and_exported_as_kubo_writes_them() {
    let world = World::new().await;
    let (car, root) = (world.archive(), world.item.root.as_str());
    let archive = fs::read(&car).expect("reads");

    let launch = world.launch();
    let error_line = launch.run(&["store", "export", root, "-"]).expect_err("there is no store");
    assert!(error_line.contains("there is no store in"), "{error_line}");
    let printed = launch.run(&["store", "import", car.to_str().expect("text")]).expect("imports");
    assert!(printed.starts_with(&format!("pinned {root}\nimported 13 blocks, ")), "{printed}");
    assert_eq!(launch.output(&["store", "export", root, "-"], &[]).stdout, archive);
    let out = world.path("out.car");
    let export = ["store", "export", root, out.to_str().expect("text")];
    assert_eq!(launch.run(&export).expect("exports"), "exported 13 blocks");
    assert_eq!(fs::read(&out).expect("reads"), archive);
    let error_line = launch.run(&export).expect_err("it exists");
    assert!(error_line.contains("out.car cannot be created"), "{error_line}");
    assert_eq!(fs::read(&out).expect("reads"), archive);

    let other = TempDir::new().expect("the temporary folder is writable");
    let piped = Launch::new(other.path()).output(&["store", "import", "-"], &archive);
    assert_eq!(text(&piped.stdout).trim(), printed);
    world.kubo.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_is_detected_and_repaired() {
    let world = World::new().await;
    let launch = world.launch();
    launch.import(&world.archive());
    let stats = json(&launch.output(&["store", "stats", "--json"], &[]));
    assert_eq!((&stats["pinned"]["blocks"], &stats["pins"]), (&Value::from(13), &Value::from(1)), "{stats}");
    assert!(launch.run(&["store", "stats"]).expect("reads").contains("13"));
    let printed = launch.run(&["store", "check"]).expect("nothing is wrong");
    assert!(printed.starts_with("checked 13 blocks, "), "{printed}");

    let damaged = world.damage(3);
    let lacks = format!("pin {} lacks 1 of 13 blocks\n", world.item.root);
    let output = launch.output(&["store", "check"], &[]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1));
    assert!(printed.starts_with(&format!("damaged {damaged}\n{lacks}checked 13 blocks, ")), "{printed}");
    assert_eq!(text(&output.stderr).lines().count(), 1, "{}", text(&output.stderr));
    let output = launch.output(&["store", "check", "--json"], &[]);
    let report = json(&output);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!((&report["clean"], &report["damaged"]), (&Value::from(false), &Value::from(vec![damaged.clone()])));
    assert_eq!(report["pins_lacking_blocks"][0]["missing"], 1);

    fs::write(world.path("data/store/segments/000000ff.segment"), "nobody's").expect("writes");
    let printed = launch.run(&["store", "repair"]).expect("repairs");
    assert!(printed.starts_with(&format!("damaged {damaged}\n{lacks}")), "{printed}");
    assert!(printed.contains("segments 0, files 1\n"), "{printed}");
    let out = world.path("out.car");
    let error_line = launch.run(&["store", "export", &world.item.root, out.to_str().expect("text")]);
    assert!(error_line.expect_err("a block is missing").contains(&format!("{damaged} is not in the store")));
    assert!(!out.exists(), "an incomplete export is removed");

    let peering = world.kubo.tcp().to_owned();
    let node = launch.clone().peering(&peering).start().await;
    let error_line = launch.run(&["store", "repair"]).expect_err("it is in use");
    assert!(
        error_line.contains("stop the gateway") && error_line.contains("in use by another process"),
        "{error_line}"
    );
    assert_eq!(error_line.lines().count(), 1, "{error_line}");
    crate::tiers::expect(&node, &world.item).await;
    node.stop().await;
    let printed = launch.run(&["store", "check"]).expect("missing blocks were fetched");
    assert!(!printed.contains("lacks"), "{printed}");
    launch.run(&["store", "compact"]).expect("compacts");
    let stats = json(&launch.output(&["store", "stats", "--json"], &[]));
    assert_eq!(stats["pinned_segments"]["dead_bytes"], 0, "{stats}");
    launch.run(&["store", "check"]).expect("nothing is wrong");
    world.kubo.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_gateway_scrubs_its_store() {
    let world = World::new().await;
    let launch = world.launch().set("CAUSEWAY_CACHE_SCRUB_BYTES_PER_SECOND", 1 << 30);
    launch.import(&world.archive());
    world.damage(5);
    world.damage(7);
    let node = launch.start().await;
    let metrics = eventually("the pass ends", Duration::from_secs(60), async || {
        let metrics = node.metrics().await;
        if metrics.sample("causeway_disk_scrub_passes_total") == 1 { Ok(metrics) } else { Err("not yet") }
    });
    let metrics = metrics.await;
    assert_eq!(metrics.sample("causeway_disk_corrupt_blocks_total"), 2);
    assert_eq!(metrics.sample("causeway_disk_lacking_pins"), 1);
    assert!(metrics.sample("causeway_disk_scrubbed_bytes_total") > BYTES as u64);
    node.assert_healthy().await;
    node.stop().await;
    // The next scrub is due in a week.
    let node = launch.start().await;
    assert_eq!(node.get("/").await.status, 200);
    assert_eq!(node.metrics().await.sample("causeway_disk_scrubbed_blocks_total"), 0);
    node.stop().await;
    world.kubo.stop().await;
}

/// The status and details of a pin.
async fn pin_status(node: &Causeway, cid: &str) -> (String, String) {
    let path = format!("/psa/pins?cid={cid}&status=queued,pinning,pinned,failed");
    let (_, page) = node.admin("GET", &path, None).await;
    let pin = &page["results"][0];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (text(&pin["status"]), text(&pin["info"]["status_details"]))
}

async fn until_pin_status(node: &Causeway, cid: &str, what: &str, good: impl Fn(&str, &str) -> bool) {
    eventually(what, Duration::from_secs(120), async || {
        let (status, details) = pin_status(node, cid).await;
        if good(&status, &details) { Ok(()) } else { Err(format!("{status}: {details}")) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_block_of_a_pin_is_reported_and_fetched() {
    let world = World::new().await;
    let (launch, root) = (world.launch(), world.item.root.as_str());
    launch.import(&world.archive());
    assert!(launch.run(&["pin", "status", root]).expect("shows the status").contains("pinned"));
    let damaged = world.damage(3);
    // Without a gateway, a check detects it, and the pin is incomplete from then on.
    assert_eq!(launch.output(&["store", "check"], &[]).status.code(), Some(1));
    assert!(!launch.run(&["pin", "ls"]).expect("lists").contains(root));
    let printed = launch.run(&["pin", "status", root]).expect("shows the status");
    assert!(printed.contains("queued") && printed.contains("blocks are missing in the store"), "{printed}");
    // A gateway without peers waits for the block.
    let node = launch.clone().start().await;
    until_pin_status(&node, root, "it waits", |status, details| {
        matches!(status, "queued" | "pinning") && details.contains("blocks of it were lost")
    })
    .await;
    assert_eq!(node.metrics().await.sample("causeway_pins_incomplete"), 1);
    let (status, pins) = node.admin("POST", &format!("/api/v0/pin/ls?arg={root}&type=recursive"), None).await;
    assert!(status >= 400, "{pins}");
    node.stop().await;
    // A gateway with a peer that has the block fetches it, and nothing else.
    let sent = world.kubo.sent().await.blocks;
    let node = launch.clone().peering(world.kubo.tcp()).start().await;
    until_pin_status(&node, root, "it is complete", |status, _| status == "pinned").await;
    assert_eq!(world.kubo.sent().await.blocks - sent, 1);
    assert_eq!(node.metrics().await.sample("causeway_pins_incomplete"), 0);
    // A withheld leaf is reported as such, and is fetched when it is unblocked.
    let losses = node.metrics().await.sample("causeway_pins_losses_total");
    launch.run(&["block", "add", &damaged]).expect("blocks");
    until_pin_status(&node, root, "it is reported as withheld", |status, details| {
        status == "failed" && details.contains("withheld")
    })
    .await;
    let metrics = node.metrics().await;
    assert_eq!(metrics.sample("causeway_pins_incomplete"), 0);
    assert_eq!(metrics.sample("causeway_pins_losses_total"), losses, "what is withheld is not lost");
    let printed = launch.run(&["store", "check"]).expect("nothing is damaged");
    assert!(printed.contains("1 of 13 blocks is withheld by a rule and not stored"), "{printed}");
    let printed = launch.output(&["pin", "status", root], &[]).stdout;
    assert!(text(&printed).contains("12 blocks"), "{}", text(&printed));
    node.stop().await;
    let printed = launch.run(&["store", "check"]).expect("nothing is damaged");
    assert!(printed.contains("1 of 13 blocks is withheld by a rule and not stored"), "{printed}");
    let printed = text(&launch.output(&["pin", "status", root], &[]).stdout);
    assert!(printed.contains("12 blocks") && printed.contains("withheld"), "{printed}");
    let node = launch.clone().peering(world.kubo.tcp()).start().await;
    launch.run(&["block", "rm", &damaged]).expect("unblocks");
    until_pin_status(&node, root, "it is complete again", |status, _| status == "pinned").await;
    crate::tiers::expect(&node, &world.item).await;
    node.stop().await;
    launch.run(&["store", "check"]).expect("nothing is wrong");
    world.kubo.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_pin_metadata_is_reported_and_repaired() {
    let world = World::new().await;
    let (launch, root) = (world.launch(), world.item.root.as_str());
    launch.import(&world.archive());
    let node = launch.start().await;
    node.stop().await;
    let manifest = || {
        let files = fs::read_dir(world.path("data/pins")).expect("lists").map(|file| file.expect("lists").path());
        files.max_by_key(|path| path.to_string_lossy().contains("MANIFEST")).expect("a manifest")
    };
    let break_it = || {
        let mut bytes = fs::read(manifest()).expect("reads");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(manifest(), bytes).expect("writes");
    };
    break_it();
    let output = launch.output(&["store", "check"], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("the pin metadata is damaged"), "{}", text(&output.stdout));
    let printed = launch.run(&["store", "repair"]).expect("repairs");
    assert!(printed.contains("The pin metadata was damaged") && printed.contains("pins.damaged-1"), "{printed}");
    assert!(launch.run(&["store", "check"]).expect("nothing is wrong").contains("of the pin metadata"));
    // A gateway starts with damaged pin metadata.
    break_it();
    let node = launch.start().await;
    assert_eq!(pin_status(&node, root).await.0, "pinned");
    assert_eq!(node.metrics().await.sample("causeway_pins_list_rebuilt"), 1);
    node.stop().await;
    assert!(world.path("data/pins.damaged-2").exists());
    world.kubo.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_index_is_reported_and_rebuilt() {
    let world = World::new().await;
    let launch = world.launch();
    launch.import(&world.archive());
    let damage = || fs::write(world.path("data/store/CURRENT"), "?").expect("writes");
    damage();
    let error_line = launch.run(&["store", "check"]).expect_err("it cannot be read");
    assert!(error_line.contains("CURRENT is damaged") && error_line.contains("causeway store repair"), "{error_line}");
    let printed = launch.run(&["store", "repair"]).expect("repairs");
    assert!(
        printed.starts_with("Rebuilt the index (its file CURRENT is damaged); segments: 1, values: 13"),
        "{printed}"
    );
    let printed = launch.run(&["store", "check"]).expect("nothing is wrong");
    assert!(printed.starts_with("checked 13 blocks, "), "{printed}");
    // A start also rebuilds it.
    damage();
    let node = launch.start().await;
    crate::tiers::expect(&node, &world.item).await;
    assert_eq!(node.metrics().await.sample("causeway_disk_index_rebuilt"), 1);
    node.stop().await;
    world.kubo.stop().await;
}
