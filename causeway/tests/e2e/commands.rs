//! Commands as users and scripts call them: tokens, content from the network, their output and exit codes.

use crate::support::assert_same_bytes;
use crate::support::causeway::{Causeway, Launch};
use crate::support::noise::Noise;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};

/// Exit codes.
const FAILURE: i32 = 1;
const USAGE: i32 = 2;
const UNREACHABLE: i32 = 3;
const REFUSED: i32 = 4;

fn folder() -> TempDir {
    TempDir::new().expect("the temporary folder is writable")
}

/// A launch without a token of its own.
fn without_token(dir: &Path) -> Launch {
    Launch::new(dir).set("CAUSEWAY_ADMIN_TOKEN", "")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

/// The output of a successful command.
fn run(launch: &Launch, arguments: &[&str]) -> String {
    launch.run(arguments).unwrap_or_else(|error_line| panic!("causeway {arguments:?}: {error_line}"))
}

fn json(launch: &Launch, arguments: &[&str]) -> Value {
    let printed = run(launch, arguments);
    serde_json::from_str(&printed).unwrap_or_else(|error| panic!("causeway {arguments:?}: {error}: {printed}"))
}

/// The exit code and the error line of a failing command.
fn error_line(launch: &Launch, arguments: &[&str]) -> (i32, String) {
    let Output { status, stdout, stderr } = launch.output(arguments, b"");
    let (printed, error_output) = (text(&stdout), text(&stderr));
    assert!(
        printed.is_empty() && error_output.lines().count() == 1,
        "causeway {arguments:?}: {printed}\n{error_output}"
    );
    (status.code().expect("it was not killed"), error_output)
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_created_shown_and_revoked_with_and_without_a_gateway() {
    let (home, elsewhere) = (folder(), folder());
    let (launch, remote) = (without_token(home.path()), without_token(elsewhere.path()));
    let made = json(&launch, &["token", "create", "--scope", "read,pin", "--name", "ci", "--pins-max", "3", "--json"]);
    let secret = made["token"].as_str().expect("it is shown").to_owned();
    assert!(secret.starts_with("cw_") && made["name"] == "ci" && made["quota"]["pins_max"] == 3, "{made}");
    let node = launch.start().await;
    let at = ["--admin", node.admin_url()];

    // A token in a file, from another data folder.
    let file = elsewhere.path().join("token");
    fs::write(&file, format!("{secret}\n")).expect("the folder is ours");
    let with_file = ["--token-file", file.to_str().expect("text")];
    let own = json(&remote, &[&["token", "show", "--json"], &at[..], &with_file].concat());
    assert_eq!((&own["id"], &own["scopes"]), (&made["id"], &serde_json::json!(["read", "pin"])));
    assert!(own["token"].is_null() && own["created_at"] == made["created_at"], "{own}");

    // Another token, while the gateway runs; standard output has only the secret.
    let output = launch.output(&["token", "create", "--scope", "operate", "--expires", "1d"], b"");
    let (second, notes) = (text(&output.stdout), text(&output.stderr));
    assert!(second.starts_with("cw_") && second.lines().count() == 1 && notes.contains("token-1"), "{second} {notes}");
    let listed = json(&launch, &["token", "ls", "--json"]);
    let names: Vec<_> = listed["tokens"].as_array().expect("a list").iter().map(|token| &token["name"]).collect();
    assert_eq!(names, ["ci", "token-1"]);
    assert!(!listed.to_string().contains(secret.rsplit('_').next().expect("a secret")), "{listed}");
    let operator = Launch::new(elsewhere.path()).set("CAUSEWAY_ADMIN_TOKEN", &second);
    assert_eq!(
        json(&operator, &[&["token", "ls", "--json"], &at[..]].concat()),
        listed,
        "the gateway lists the same tokens"
    );
    let lines = run(&launch, &["token", "ls"]);
    assert!(lines.starts_with("ID ") && lines.lines().count() == 3 && lines.contains("never"), "{lines}");

    // Operations that the token does not authorise, and a revoked token.
    let (code, printed) = error_line(&remote, &[&["key", "create", "site"], &at[..], &with_file].concat());
    assert!(code == REFUSED && printed.contains("operate"), "{code} {printed}");
    assert!(run(&launch, &["token", "rm", "ci"]).starts_with("revoked ci "));
    let (code, printed) = error_line(&remote, &[&["store", "stats"], &at[..], &with_file].concat());
    assert!(code == REFUSED && printed.contains("rejected the token in"), "{code} {printed}");
    let (code, printed) = error_line(&remote, &[&["store", "stats"], &at[..]].concat());
    assert!(code == REFUSED && printed.contains("requires a token: set CAUSEWAY_ADMIN_TOKEN"), "{code} {printed}");
    // Commands on the data folder need no token.
    json(&launch, &["store", "stats", "--json"]);

    for wrong in [&["--scope", "everything"][..], &[], &["--scope", "read", "--expires", "soon"]] {
        let output = launch.output(&[&["token", "create"], wrong].concat(), b"");
        assert_eq!(output.status.code(), Some(USAGE), "{wrong:?}: {}", text(&output.stderr));
    }
    let (code, printed) = error_line(&launch, &["token", "rm", "ci"]);
    assert!(code == FAILURE && printed.contains("no token"), "{code} {printed}");
    node.stop().await;
    let (code, printed) = error_line(&launch, &["token", "show"]);
    assert!(code == UNREACHABLE && printed.contains("causeway serve"), "{code} {printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_gateway_fetches_missing_blocks_for_commands() {
    let (one, other) = (folder(), folder());
    let (from, to) = (Launch::new(one.path()), Launch::new(other.path()));
    let dir = other.path();
    let big = Noise::bytes(41, 3_000_000);
    fs::create_dir_all(one.path().join("site/images")).expect("the folder is ours");
    fs::write(one.path().join("site/images/big"), &big).expect("the folder is ours");
    fs::write(one.path().join("site/index.html"), "<p>Hello.").expect("the folder is ours");
    let holder = from.start().await;
    let root = run(&from, &["add", "-Q", "site"]);
    let node = to.clone().peering(holder.tcp()).set("CAUSEWAY_HTTP_STALL_TIMEOUT_SECONDS", 3).start().await;

    let (code, printed) = error_line(&to, &["ls", "--offline", &root]);
    assert!(code == FAILURE && printed.contains("is not stored locally"), "{printed}");
    let listed = run(&to, &["ls", &root]);
    assert!(listed.contains(" images") && listed.contains(" index.html"), "{listed}");
    assert_eq!(run(&to, &["cat", &format!("{root}/index.html")]), "<p>Hello.");
    let part = ["cat", "--offset", "1000000", "--length", "500000", &format!("{root}/images/big")];
    assert_same_bytes("part", &to.pipe(dir, &part, b"").expect("is read"), &big[1_000_000..1_500_000]);
    run(&to, &["get", &root, "-o", "back"]);
    assert_same_bytes("big", &fs::read(dir.join("back/images/big")).expect("reads"), &big);
    holder.stop().await;
    // It is stored now.
    assert_eq!(run(&to, &["cat", "--offline", &format!("{root}/index.html")]), "<p>Hello.");
    let absent = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy";
    let (code, printed) = error_line(&to, &["cat", absent]);
    assert!(code == FAILURE && printed.contains("the gateway could not fetch it"), "{printed}");
    node.stop().await;
}

/// Forwards connections to the admin listener, and counts the sent bytes.
async fn counted(node: &Causeway) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("is bound"));
    let (up, there) = (Arc::<AtomicU64>::default(), node.admin_url().trim_start_matches("http://").to_owned());
    let counter = Arc::clone(&up);
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let (there, counter) = (there.clone(), Arc::clone(&counter));
            tokio::spawn(async move {
                let mut far = TcpStream::connect(there).await.expect("it runs");
                // A client that disconnects early is not counted.
                if let Ok((sent, _)) = tokio::io::copy_bidirectional(&mut near, &mut far).await {
                    counter.fetch_add(sent, Ordering::SeqCst);
                }
            });
        }
    });
    (url, up)
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_blocks_are_deduplicated() {
    let (home, elsewhere) = (folder(), folder());
    let (launch, dir) = (Launch::new(home.path()), elsewhere.path());
    let client = Launch::new(dir);
    let mut content = Noise::bytes(42, 20_000_000);
    fs::write(dir.join("big"), &content).expect("the folder is ours");
    let node = launch.start().await;
    let (url, up) = counted(&node).await;
    let add = |launch: &Launch| run(launch, &["add", "-Q", "--cid-version=1", "--admin", &url, "big"]);
    let settled = async |least: u64| {
        crate::support::eventually("the connections are counted", std::time::Duration::from_secs(30), async || {
            let sent = up.load(Ordering::SeqCst);
            if sent >= least { Ok(up.swap(0, Ordering::SeqCst)) } else { Err(sent) }
        })
        .await
    };
    let first = add(&client);
    assert!(settled(20_000_000).await < 21_000_000);
    assert_eq!(add(&client), first);
    let again = settled(1).await;
    assert!(again < 200_000, "{again} bytes were sent for stored blocks");
    // A part of the file has changed.
    content[10_000_000..10_500_000].copy_from_slice(&Noise::bytes(43, 500_000));
    fs::write(dir.join("big"), &content).expect("the folder is ours");
    let changed = add(&client);
    assert_ne!(changed, first);
    let sent = settled(500_000).await;
    assert!(sent < 1_500_000, "{sent} bytes were sent for half a megabyte");
    node.expect(&format!("/ipfs/{changed}"), &content).await;
    // Both versions are pinned.
    let stats = json(&launch, &["store", "stats", "--json"]);
    assert!(stats["pins"].as_u64().is_some_and(|pins| pins >= 2), "{stats}");
    assert!(run(&launch, &["store", "check"]).contains("0 damaged"));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_shrinks_is_compressed_on_its_way_to_another_machine() {
    let (home, elsewhere) = (folder(), folder());
    let dir = elsewhere.path();
    let client = Launch::new(dir);
    let node = Launch::new(home.path()).start().await;
    let (near, up) = counted(&node).await;
    // This host as well, but no loopback address: to a command it is another machine.
    let far = near.replace("127.0.0.1", "0.0.0.0");
    let line = |file: u8, line: u32| format!("line {line} of {file}: {} bottles\n", line % 99).into_bytes();
    let text = |file: u8| (0..200_000).flat_map(|number| line(file, number)).collect::<Vec<u8>>();
    let sent = async |least: u64| {
        crate::support::eventually("the connections are counted", std::time::Duration::from_secs(30), async || {
            let sent = up.load(Ordering::SeqCst);
            if sent >= least { Ok(up.swap(0, Ordering::SeqCst)) } else { Err(sent) }
        })
        .await
    };
    type Case<'a> = (&'a str, Vec<u8>, &'a str, &'a [&'a str], bool);
    let table: [Case<'_>; 4] = [
        ("text to this machine", text(1), &near, &[], false),
        ("text", text(2), &far, &[], true),
        ("text, uncompressed", text(3), &far, &["--uncompressed"], false),
        ("noise", Noise::bytes(50, 5_000_000), &far, &[], false),
    ];
    for (name, content, url, flags, shrinks) in table {
        fs::write(dir.join("content"), &content).expect("the folder is ours");
        let expected = run(&client, &["add", "-n", "-Q", "--cid-version=1", "content"]);
        let add = [&["add", "-Q", "--cid-version=1", "--admin", url], flags, &["content"]].concat();
        assert_eq!(run(&client, &add), expected, "{name}");
        let length = content.len() as u64;
        let bytes = sent(if shrinks { length / 200 } else { length }).await;
        let bounds = if shrinks { length / 200..length / 3 } else { length..length + length / 50 };
        assert!(bounds.contains(&bytes), "{name}: {bytes} of {length} bytes");
        node.expect(&format!("/ipfs/{expected}"), &content).await;
    }
    // An archive, too; its blocks are stored already.
    let car = dir.join("text.car");
    fs::write(dir.join("content"), text(2)).expect("the folder is ours");
    let root = run(&client, &["add", "-n", "-Q", "--cid-version=1", "content"]);
    run(&client, &["store", "export", "--admin", &near, &root, car.to_str().expect("text")]);
    up.store(0, Ordering::SeqCst);
    for (flags, shrinks) in [(&[][..], true), (&["--uncompressed"][..], false)] {
        let import = [&["import", "--admin", &far], flags, &[car.to_str().expect("text")]].concat();
        assert!(run(&client, &import).contains(&root));
        let length = fs::metadata(&car).expect("is there").len();
        let bytes = sent(if shrinks { length / 200 } else { length }).await;
        assert_eq!(bytes < length / 3, shrinks, "{flags:?}: {bytes} of {length} bytes");
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_drawn_on_terminals_only() {
    let home = folder();
    let launch = Launch::new(home.path());
    fs::write(home.path().join("big"), Noise::bytes(44, 5_000_000)).expect("the folder is ours");
    fs::write(home.path().join("small"), "a").expect("the folder is ours");
    // The creation of a store is reported once.
    let output = launch.output(&["add", "small"], b"");
    assert!(
        output.status.success() && text(&output.stderr).starts_with("created a store in "),
        "{}",
        text(&output.stderr)
    );
    let output = launch.output(&["add", "big"], b"");
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    let Some(drawn) = launch.on_terminal(&["add", "big"]) else { return };
    assert!(drawn.contains("\u{1b}[2K") && drawn.contains("/s") && drawn.contains("added "), "{drawn}");
}

#[test]
fn completions_and_manual_pages_are_printed() {
    let home = folder();
    let launch = Launch::new(home.path());
    let plain = |arguments: &[&str]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_causeway")).args(arguments).output();
        let output = output.expect("the binary runs");
        assert!(output.status.success() && output.stderr.is_empty(), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(plain(&["completions", shell]).contains("causeway"), "{shell}");
    }
    let script = home.path().join("completions");
    fs::write(&script, plain(&["completions", "bash"])).expect("the folder is ours");
    let words = "source completions; COMP_WORDS=(causeway token cr); COMP_CWORD=2; _causeway causeway cr token; \
                 echo ${COMPREPLY[@]}";
    let completed = std::process::Command::new("bash").args(["-c", words]).current_dir(home.path()).output();
    assert_eq!(text(&completed.expect("bash runs").stdout), "create");
    assert!(plain(&["man"]).contains(".TH"));
    let pages = home.path().join("man/man1");
    plain(&["man", pages.to_str().expect("text")]);
    for page in ["causeway.1", "causeway-add.1", "causeway-token-create.1"] {
        assert!(fs::read_to_string(pages.join(page)).expect("is there").contains(".SH"), "{page}");
    }
    assert_eq!(launch.output(&["completions", "tcsh"], b"").status.code(), Some(USAGE));
}

#[tokio::test(flavor = "multi_thread")]
async fn pins_are_fetched_listed_and_removed() {
    let (one, other) = (folder(), folder());
    // Origins are untrusted, and may not have private addresses unless the operator allows that.
    let to = Launch::new(other.path()).set("CAUSEWAY_P2P_DIAL_PRIVATE", true);
    let from = Launch::new(one.path());
    fs::create_dir_all(one.path().join("site/docs")).expect("the folder is ours");
    fs::write(one.path().join("site/docs/big"), Noise::bytes(45, 1_000_000)).expect("the folder is ours");
    fs::write(one.path().join("site/index.html"), "<p>Pinned.").expect("the folder is ours");
    let holder = from.start().await;
    let root = run(&from, &["add", "-Q", "--cid-version=1", "site"]);
    let docs = run(&from, &["ls", "--json", &root]);
    let docs = docs.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let mut docs = docs.filter(|row| row["name"] == "docs").map(|row| row["cid"].as_str().expect("a CID").to_owned());
    let docs = docs.next_back().expect("it is in there");
    let node = to.start().await;

    // Only the origin has the content.
    let added = ["pin", "add", "--json", "--name", "my docs", "--meta", "a=b", "--origin", holder.tcp()];
    let pinned = json(&to, &[&added[..], &[&format!("{root}/docs")]].concat());
    assert_eq!((&pinned["status"], &pinned["pin"]["cid"]), (&"pinned".into(), &docs.as_str().into()), "{pinned}");
    assert_eq!((&pinned["pin"]["name"], &pinned["pin"]["meta"]["a"]), (&"my docs".into(), &"b".into()), "{pinned}");
    let id = pinned["requestid"].as_str().expect("an id").to_owned();
    let printed = run(&to, &["pin", "add", "--no-wait", &root]);
    assert!(printed.contains(&root), "{printed}");
    let printed = run(&to, &["pin", "status", "--watch", &root]);
    assert!(printed.contains("status   pinned") && printed.contains("blocks"), "{printed}");
    let listed = json(&to, &["pin", "ls", "--all", "--json"]);
    let cids: Vec<_> = listed["results"].as_array().expect("a list").iter().map(|pin| &pin["pin"]["cid"]).collect();
    assert!(cids.contains(&&Value::from(docs.as_str())) && cids.contains(&&Value::from(root.as_str())), "{listed}");
    let named = json(&to, &["pin", "ls", "--name", "DOC", "--partial", "--json"]);
    assert_eq!((&named["count"], &named["results"][0]["requestid"]), (&1.into(), &id.as_str().into()), "{named}");
    assert_eq!(json(&to, &["pin", "ls", "--limit", "1", "--json"])["count"], 1);
    assert!(run(&to, &["pin", "ls"]).starts_with("CID "), "a table");
    let owners = json(&to, &["pin", "owners", "--json"]);
    assert!(owners["pinned"].as_u64().is_some_and(|pinned| pinned >= 2), "{owners}");
    let everybodys = json(&to, &["pin", "ls", "--everybody", "--json"]);
    assert!(everybodys["pins"].as_array().is_some_and(|pins| pins.iter().any(|pin| pin["requestid"] == id.as_str())));

    // One pin is replaced, one removed; a third cannot be fetched.
    let replaced = json(&to, &["pin", "replace", "--json", &id, &root]);
    assert_eq!((&replaced["pin"]["name"], &replaced["status"]), (&"my docs".into(), &"pinned".into()), "{replaced}");
    let gone = run(&to, &["pin", "rm", &root]);
    assert_eq!(gone.lines().filter(|line| line.starts_with(&format!("unpinned {root}"))).count(), 2, "{gone}");
    let (code, printed) = error_line(&to, &["pin", "status", &root]);
    assert!(code == FAILURE && printed.contains("this token has no pin request"), "{code} {printed}");
    let absent = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy";
    let (code, printed) = error_line(&to, &["pin", "add", "--timeout", "1s", absent]);
    assert!(code == FAILURE && printed.contains("is not pinned after 1 s"), "{code} {printed}");
    run(&to, &["pin", "rm", absent]);
    for wrong in [&["pin", "add", "nonsense"][..], &["pin", "status", "nobody"], &["pin", "rm", "nobody"]] {
        assert_eq!(error_line(&to, wrong).0, FAILURE, "{wrong:?}");
    }
    run(&to, &["pin", "add", "--name", "kept", &format!("{root}/docs")]);
    node.stop().await;
    holder.stop().await;

    // Without a gateway, stored content is pinned and listed, but not removed.
    // The names of pins are known only to the gateway.
    let listed = json(&to, &["pin", "ls", "--json"]);
    let mut listed = listed["results"].as_array().expect("a list").iter();
    assert!(listed.any(|pin| pin["pin"]["cid"] == docs.as_str() && pin["status"] == "pinned"), "{docs}");
    let (code, printed) = error_line(&to, &["pin", "add", absent]);
    assert!(code == FAILURE && printed.contains("is not stored locally"), "{code} {printed}");
    let (code, printed) = error_line(&to, &["pin", "rm", &docs]);
    assert!(code == UNREACHABLE && printed.contains("causeway serve"), "{code} {printed}");
    let again = json(&from, &["pin", "add", "--json", "--name", "here", &root]);
    assert_eq!((&again["status"], &again["pin"]["name"]), (&"pinned".into(), &"here".into()), "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admin_listener_with_tls_is_verified() {
    let (home, elsewhere) = (folder(), folder());
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("is created");
    let (certificate, key) = (home.path().join("certificate.pem"), home.path().join("key.pem"));
    fs::write(&certificate, cert.pem()).expect("the folder is ours");
    fs::write(&key, signing_key.serialize_pem()).expect("the folder is ours");
    let launch = without_token(home.path())
        .set("CAUSEWAY_ADMIN_TLS_CERTIFICATE", certificate.display())
        .set("CAUSEWAY_ADMIN_TLS_KEY", key.display());
    let token = json(&launch, &["token", "create", "--scope", "read,operate", "--json"])["token"].clone();
    let node = launch.start().await;
    let address = node.admin_url().trim_start_matches("https://").trim_end_matches('/').to_owned();
    assert_ne!(address, node.admin_url(), "the listener uses TLS");
    // The certificate is for another host than the address in the data folder, which is trusted.
    json(&launch, &["store", "stats", "--json"]);

    let remote_client = without_token(elsewhere.path()).set("CAUSEWAY_ADMIN_TOKEN", token.as_str().expect("a token"));
    let named = format!("https://localhost:{}", address.rsplit(':').next().expect("a port"));
    let (by_name, by_address, plain) = (["--admin", &named], format!("https://{address}"), format!("http://{address}"));
    let ca = ["--admin-ca", certificate.to_str().expect("text")];
    let (code, printed) = error_line(&remote_client, &[&["store", "stats"][..], &by_name].concat());
    assert!(code == UNREACHABLE && printed.contains("--admin-ca"), "{code} {printed}");
    let (code, printed) =
        error_line(&remote_client, &[&["store", "stats"][..], &["--admin", &by_address], &ca].concat());
    assert!(code == UNREACHABLE && printed.contains("ertificate"), "{code} {printed}");
    let output = remote_client.output(&["store", "stats", "--admin", &plain], b"");
    assert!(!output.status.success(), "{}", text(&output.stdout));

    let content = Noise::bytes(46, 20_000_000);
    fs::write(elsewhere.path().join("big"), &content).expect("the folder is ours");
    let root = run(&remote_client, &[&["add", "-Q", "big"][..], &by_name, &ca].concat());
    let read = remote_client.pipe(elsewhere.path(), &[&["cat", &root][..], &by_name, &ca].concat(), b"");
    assert_same_bytes("big", &read.expect("is read"), &content);
    let wrong = elsewhere.path().join("nothing.pem");
    fs::write(&wrong, "nothing").expect("the folder is ours");
    let wrong = ["--admin-ca", wrong.to_str().expect("text")];
    let (_, printed) = error_line(&remote_client, &[&["store", "stats"][..], &by_name, &wrong].concat());
    assert!(printed.contains("has no certificate in PEM"), "{printed}");
    node.stop().await;
}
