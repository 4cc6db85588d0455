//! Kubo's command line as a client of this node's RPC, compared with the same commands on its own repository.

use crate::store::assert_same_content;
use crate::support::causeway::{Causeway, Launch, TOKEN};
use crate::support::ipfs::Ipfs;
use crate::support::kubo::Kubo;
use crate::support::noise::Noise;
use crate::support::{assert_same_bytes, client, eventually, output_of};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const TIMEOUT: Duration = Duration::from_secs(60);

fn folder() -> TempDir {
    TempDir::new().expect("the temporary folder is writable")
}

/// Files of one chunk and of many, an empty file and folder, odd and long names, an executable, and a symlink.
fn fill(dir: &Path) {
    fs::create_dir_all(dir.join("site/a b/empty")).expect("the folder is ours");
    let long = format!("site/{0}/{0}/{0}", "long".repeat(25));
    fs::create_dir_all(dir.join(&long)).expect("the folder is ours");
    let far = format!("{long}/far");
    let files: [(&str, Vec<u8>); 8] = [
        ("one.txt", b"hello".to_vec()),
        ("loose", Noise::bytes(40, 2_000_000)),
        ("big", Noise::bytes(41, 3_000_000)),
        ("site/index.html", b"<p>Hello.".to_vec()),
        ("site/a b/50% ä+\"x\"", Noise::bytes(42, 600_000)),
        ("site/nothing", Vec::new()),
        ("site/a b/run me", b"#!/bin/sh\n".to_vec()),
        (&far, b"down".to_vec()),
    ];
    files.iter().for_each(|(name, bytes)| fs::write(dir.join(name), bytes).expect("the folder is ours"));
    fs::set_permissions(dir.join("site/a b/run me"), Permissions::from_mode(0o755)).expect("the folder is ours");
    symlink("index.html", dir.join("site/same")).expect("the folder is ours");
}

/// Kubo's command line as a client of a Causeway node.
struct Remote<'a> {
    ipfs: &'a Ipfs,
    dir: &'a Path,
    api: String,
    token: String,
}

impl<'a> Remote<'a> {
    fn new(ipfs: &'a Ipfs, dir: &'a Path, causeway: &Causeway) -> Self {
        let port = causeway.admin_url().rsplit(':').next().expect("a port").to_owned();
        Self { ipfs, dir, api: format!("/ip4/127.0.0.1/tcp/{port}"), token: TOKEN.to_owned() }
    }

    /// The output of a command, or its error message.
    fn try_run(&self, arguments: &[&str], input: &[u8]) -> Result<Vec<u8>, String> {
        let auth = format!("--api-auth=bearer:{}", self.token);
        let mut command = self.ipfs.command(self.dir);
        command.arg(format!("--api={}", self.api)).arg(auth).args(arguments);
        let (output, _) = output_of(&mut command, input);
        match output.status.success() {
            true => Ok(output.stdout),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }

    fn bytes(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        self.try_run(arguments, input).unwrap_or_else(|error_line| panic!("ipfs {arguments:?}: {error_line}"))
    }

    fn run(&self, arguments: &[&str]) -> String {
        String::from_utf8(self.bytes(arguments, b"")).expect("text").trim_end().to_owned()
    }

    fn error_line(&self, arguments: &[&str]) -> String {
        self.try_run(arguments, b"").err().unwrap_or_else(|| panic!("ipfs {arguments:?} went well"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_folders_get_kubos_cids() {
    let (data, content) = (folder(), folder());
    fill(content.path());
    let causeway = Launch::new(data.path()).start().await;
    let ipfs = Ipfs::new(|_| ());
    let remote = Remote::new(&ipfs, content.path(), &causeway);
    let table: [&[&str]; 13] = [
        &["one.txt"],
        &["-r", "site"],
        &["-r", "--cid-version=1", "site", "big"],
        &["-w", "one.txt", "big"],
        &["-Q", "--cid-version=1", "--raw-leaves=false", "big"],
        &["--chunker=size-1000", "one.txt", "big"],
        &["-r", "--hash=blake2b-256", "site"],
        &["--trickle", "big"],
        &["--inline", "--cid-version=1", "one.txt"],
        &["-r", "-n", "site"],
        &["-r", "--preserve-mode", "--preserve-mtime", "site"],
        &["-r", "--max-file-links=3", "--max-directory-links=1", "--max-hamt-fanout=16", "site", "big"],
        &["--progress=false", "-q", "one.txt", "big"],
    ];
    for arguments in table {
        let arguments = [&["add"], arguments].concat();
        let expected = ipfs.run(content.path(), &arguments);
        let sorted = |text: &str| {
            let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
            lines.sort_unstable();
            lines
        };
        assert_eq!(sorted(&remote.run(&arguments)), sorted(&expected), "{arguments:?}");
    }
    let piped = remote.bytes(&["add", "-Q", "--stdin-name=x", "-w"], b"from a pipe");
    let expected = ipfs.run_with(content.path(), &["add", "-Q", "--stdin-name=x", "-w"], b"from a pipe");
    assert_eq!(String::from_utf8_lossy(&piped).trim(), expected);

    // Unpinned content is cached: it is read again from a node without peers, and has no pin.
    let unpinned = fs::read(content.path().join("loose")).expect("is ours");
    let loose = remote.run(&["add", "-Q", "--pin=false", "loose"]);
    assert_eq!(loose, ipfs.run(content.path(), &["add", "-Q", "--pin=false", "loose"]));
    assert_same_bytes("unpinned", &remote.bytes(&["cat", &loose], b""), &unpinned);
    assert!(remote.error_line(&["pin", "ls", &loose]).contains("is not pinned"));

    // Added content is read again, by ranges, as a folder and as an archive.
    let site = remote.run(&["add", "-Q", "-r", "site"]);
    let big = remote.run(&["add", "-Q", "big"]);
    let bytes = fs::read(content.path().join("big")).expect("is ours");
    assert_same_bytes("cat", &remote.bytes(&["cat", &big], b""), &bytes);
    assert_same_bytes(
        "cat -o -l",
        &remote.bytes(&["cat", "-o", "1000", "-l", "2000000", &big], b""),
        &bytes[1000..2_001_000],
    );
    assert_eq!(remote.bytes(&["cat", &format!("/ipfs/{site}/index.html")], b""), b"<p>Hello.");
    assert_eq!(remote.run(&["ls", "--size", &site]), ipfs.run(content.path(), &["ls", "--size", &site]));
    assert_eq!(remote.run(&["ls", &big]), ipfs.run(content.path(), &["ls", &big]));
    assert_folders_and_files_are_got(&remote, &site, &big);
    assert!(remote.error_line(&["cat", &site]).contains("is a directory"));
    assert!(remote.error_line(&["cat", &format!("{site}/nowhere")]).contains("nowhere"));
    assert!(remote.error_line(&["add", "--nocopy", "one.txt"]).contains("not supported"));
    assert!(remote.error_line(&["files", "ls"]).contains("ommand not found"));
    causeway.stop().await;
}

/// `ipfs get` restores what was added, under the default name or a given one, and as an archive that `tar` unpacks.
fn assert_folders_and_files_are_got(remote: &Remote<'_>, site: &str, big: &str) {
    let dir = remote.dir;
    remote.run(&["get", big, "-o", "again"]);
    assert_same_content("a file", &dir.join("again"), &dir.join("big"));
    remote.run(&["get", site]);
    assert_same_content("a folder", &dir.join(site), &dir.join("site"));
    remote.run(&["get", &format!("/ipfs/{site}/a b/"), "-o", "new name"]);
    assert_same_content("a folder in a folder", &dir.join("new name"), &dir.join("site/a b"));
    remote.run(&["get", &format!("{site}/a b/empty"), "-o", "void"]);
    assert_same_content("an empty folder", &dir.join("void"), &dir.join("site/a b/empty"));
    remote.run(&["get", &format!("{site}/same"), "-o", "link"]);
    assert_same_content("a symlink", &dir.join("link"), &dir.join("site/same"));
    remote.run(&["get", "--archive", site, "-o", "packed"]);
    let unpacked = folder();
    let mut tar = Command::new("tar");
    let (output, _) = output_of(tar.arg("xf").arg(dir.join("packed.tar")).current_dir(unpacked.path()), b"");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_same_content("an archive", &unpacked.path().join(site), &dir.join("site"));
    assert!(remote.error_line(&["get", "--compress", big, "-o", "small"]).contains("not supported"));
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_documents_and_archives() {
    let (data, content) = (folder(), folder());
    fill(content.path());
    let causeway = Launch::new(data.path()).start().await;
    let ipfs = Ipfs::new(|_| ());
    let dir = content.path();
    let remote = Remote::new(&ipfs, dir, &causeway);
    for options in [&[][..], &["--format=v0"], &["--cid-codec=dag-cbor", "--mhtype=sha2-512"], &["--mhtype=blake3"]] {
        let arguments = [&["block", "put", "one.txt"], options].concat();
        let cid = remote.run(&arguments);
        assert_eq!(cid, ipfs.run(dir, &arguments), "{options:?}");
        assert_eq!(remote.bytes(&["block", "get", &cid], b""), b"hello");
        assert_eq!(remote.run(&["block", "stat", &cid]), ipfs.run(dir, &["block", "stat", &cid]));
    }
    let document = br#"{"b":[1,{"/":"bafkqaddjnzzxazldoqwxizltoq"}],"a":"x"}"#;
    let put = String::from_utf8(remote.bytes(&["dag", "put"], document)).expect("text");
    assert_eq!(put.trim(), ipfs.run_with(dir, &["dag", "put"], document));
    for arguments in [&["dag", "get"][..], &["dag", "resolve"], &["dag", "get", "--output-codec=dag-cbor"]] {
        for path in [put.trim().to_owned(), format!("{}/b/0", put.trim())] {
            let arguments = [arguments, &[path.as_str()]].concat();
            let expected = ipfs.run_with(dir, &arguments, b"");
            assert_eq!(String::from_utf8_lossy(&remote.bytes(&arguments, b"")).trim(), expected, "{arguments:?}");
        }
    }

    let site = ipfs.run(dir, &["add", "-Q", "-r", "site"]);
    let exported = {
        let mut export = ipfs.command(dir);
        let (output, _) = output_of(export.args(["dag", "export", "--progress=false", &site]), b"");
        output.stdout
    };
    fs::write(dir.join("site.car"), &exported).expect("the folder is ours");
    let cached = ["dag", "import", "--stats", "--pin-roots=false", "site.car"];
    assert_eq!(remote.run(&cached), ipfs.run(dir, &cached));
    assert_eq!(remote.bytes(&["cat", &format!("{site}/index.html")], b""), b"<p>Hello.");
    assert!(remote.error_line(&["pin", "ls", &site]).contains("is not pinned"));
    let imported = remote.run(&["dag", "import", "--stats", "site.car"]);
    assert_eq!(imported, ipfs.run(dir, &["dag", "import", "--stats", "site.car"]));
    assert_same_bytes("export", &remote.bytes(&["dag", "export", "--progress=false", &site], b""), &exported);
    assert_eq!(
        remote.run(&["dag", "stat", "--progress=false", &site]).trim(),
        ipfs.run(dir, &["dag", "stat", "--progress=false", &site]).trim()
    );
    fs::write(dir.join("cut.car"), &exported[..exported.len() - 10]).expect("the folder is ours");
    assert!(remote.error_line(&["dag", "import", "cut.car"]).contains("import failed"));

    // A truncated archive is an error: the export must not look complete.
    let root_alone = {
        let mut export = ipfs.command(dir);
        let (output, _) = output_of(export.args(["block", "get", &site]), b"");
        output.stdout
    };
    let (lonely, lonely_data) = (folder(), folder());
    fs::write(lonely.path().join("root"), root_alone).expect("the folder is ours");
    let alone = Launch::new(lonely_data.path()).set("CAUSEWAY_P2P_OFFLINE", true).start().await;
    let other = Remote::new(&ipfs, lonely.path(), &alone);
    assert_eq!(other.run(&["block", "put", "--format=v0", "root"]), site);
    let error_line = other.error_line(&["dag", "export", "--progress=false", &site]);
    assert!(!error_line.is_empty());
    alone.stop().await;
    causeway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pins_names_and_peers() {
    let (data, content) = (folder(), folder());
    fill(content.path());
    let causeway = Launch::new(data.path()).set("CAUSEWAY_P2P_DIAL_PRIVATE", true).start().await;
    let kubo = Kubo::start().await;
    let ipfs = Ipfs::new(|_| ());
    let remote = Remote::new(&ipfs, content.path(), &causeway);

    // Peers.
    assert_eq!(remote.run(&["id", "--format=<id>"]), causeway.peer_id());
    let connected = remote.run(&["swarm", "connect", kubo.tcp()]);
    assert_eq!(connected, format!("connect {} success", kubo.peer_id()));
    assert!(remote.run(&["swarm", "peers"]).contains(kubo.peer_id()));
    assert!(remote.run(&["swarm", "peers", "-v"]).contains("outbound"));
    eventually("Kubo is identified", TIMEOUT, async || {
        let printed = remote.run(&["id", kubo.peer_id()]);
        if printed.contains("kubo/") { Ok(()) } else { Err(printed) }
    })
    .await;
    let nobody = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWRBy97UB99e3J6hiPesre1MZeuNQvfan4gBziswrRJsNK";
    assert!(remote.error_line(&["swarm", "connect", nobody]).contains("failure"));

    // Content that only Kubo has is fetched and stored.
    let bytes = Noise::bytes(43, 2_000_000);
    let cid = kubo.add(&bytes[..], &["--cid-version=1"]);
    assert_same_bytes("cat", &remote.bytes(&["cat", &cid], b""), &bytes);
    let other = kubo.add(&b"another"[..], &["--cid-version=0"]);
    assert_eq!(remote.run(&["pin", "add", "--name=a name", "--progress", &cid]), format!("pinned {cid} recursively"));
    assert_eq!(remote.run(&["pin", "ls", "--type=recursive", "--names", &cid]), format!("{cid} recursive a name"));
    assert!(remote.run(&["pin", "ls", "--type=indirect"]).contains("indirect"));
    assert_eq!(remote.run(&["pin", "update", &cid, &other]), format!("updated {cid} to {other}"));
    assert!(remote.error_line(&["pin", "ls", &cid]).contains("is not pinned"));
    assert_eq!(remote.run(&["pin", "rm", &other]), format!("unpinned {other}"));
    assert!(remote.error_line(&["pin", "rm", &other]).contains("not pinned"));

    // Names.
    let site = remote.run(&["add", "-Q", "-r", "site"]);
    let key = remote.run(&["key", "gen", "site"]);
    assert!(remote.run(&["key", "ls", "-l"]).contains(&key));
    let published = remote.run(&["name", "publish", "--key=site", &format!("/ipfs/{site}")]);
    assert_eq!(published, format!("Published to {key}: /ipfs/{site}"));
    assert_eq!(remote.run(&["name", "resolve", &key]), format!("/ipfs/{site}"));
    assert_eq!(remote.run(&["resolve", &format!("/ipns/{key}")]), format!("/ipfs/{site}"));
    assert_eq!(remote.bytes(&["cat", &format!("/ipns/{key}/index.html")], b""), b"<p>Hello.");
    kubo.stop().await;
    causeway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_authorise_by_scope() {
    let (data, content) = (folder(), folder());
    fill(content.path());
    let launch = Launch::new(data.path());
    let causeway = launch.start().await;
    let ipfs = Ipfs::new(|_| ());
    let reader = launch.run(&["token", "create", "--scope", "read"]).expect("creates a token").trim().to_owned();
    let mut remote = Remote::new(&ipfs, content.path(), &causeway);
    let cid = remote.run(&["add", "-Q", "one.txt"]);
    remote.token = reader;
    assert_eq!(remote.bytes(&["cat", &cid], b""), b"hello");
    for refused in [&["add", "big"][..], &["pin", "rm", &cid], &["key", "gen", "x"], &["block", "put", "one.txt"]] {
        assert!(remote.error_line(refused).contains("scope"), "{refused:?}");
    }
    remote.token = "wrong".to_owned();
    assert!(remote.error_line(&["cat", &cid]).contains("token"));

    // Other methods, other commands, and cross-site requests.
    let url = format!("{}/api/v0/version", causeway.admin_url());
    let ask = |request: reqwest::RequestBuilder| request.bearer_auth(TOKEN).send();
    let refused = ask(client().get(&url)).await.expect("answers");
    assert_eq!((refused.status().as_u16(), refused.headers()["allow"].as_bytes()), (405, &b"POST"[..]));
    let unknown = ask(client().post(format!("{}/api/v0/files/ls", causeway.admin_url()))).await.expect("answers");
    assert_eq!(unknown.status(), 404);
    let words: Value = serde_json::from_slice(&unknown.bytes().await.expect("a body")).expect("JSON");
    assert!(words["Message"].as_str().is_some_and(|words| words.contains("dag/export")), "{words}");
    let page = ask(client().post(&url).header("origin", "https://evil.example")).await.expect("answers");
    assert_eq!(page.status(), 403);
    causeway.stop().await;
}
