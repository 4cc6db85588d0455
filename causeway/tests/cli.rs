//! The binary, run as by an operator: its messages, its output and its exit codes.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use tempfile::TempDir;

#[path = "../../gateway/tests/http/dag.rs"]
#[allow(dead_code)]
mod dag;

/// The binary without the settings of the caller's environment.
fn causeway(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_causeway"));
    std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CAUSEWAY_")).for_each(|(name, _)| {
        command.env_remove(name);
    });
    command.args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    causeway(arguments).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Asserts one line on standard error, nothing on standard output, and the exit code; returns the line.
fn refusal(mut command: Command, code: i32) -> String {
    let output = command.output().expect("the binary runs");
    let (printed, error_output) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{error_output}");
    assert!(printed.is_empty(), "{printed}");
    assert_eq!(error_output.lines().count(), 1, "{error_output}");
    error_output
}

fn path(dir: &TempDir, name: &str) -> String {
    dir.path().join(name).display().to_string()
}

/// The lines of standard error, which a thread reads, so that the process never blocks on a full pipe.
fn lines_of(stderr: ChildStderr) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    std::thread::spawn(move || {
        BufReader::new(stderr).lines().map_while(Result::ok).try_for_each(|line| sender.send(line).map_err(drop))
    });
    lines
}

/// An offline gateway on free ports, with its data in a folder.
struct Serving {
    child: Child,
    printed: Vec<String>,
    /// Its log, line by line.
    stderr: mpsc::Receiver<String>,
}

/// The timeout of waiting for a log line.
const LOG_TIMEOUT: Duration = Duration::from_secs(60);

impl Serving {
    fn start(data_dir: &Path, more: &[&str]) -> Self {
        let data_dir = data_dir.display().to_string();
        let mut arguments =
            vec!["serve", "--data-dir", &data_dir, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
        arguments.extend(more);
        let mut command = causeway(&arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs");
        let stdout = BufReader::new(child.stdout.take().expect("is piped"));
        let stderr = lines_of(child.stderr.take().expect("is piped"));
        let mut serving = Self { child, printed: Vec::new(), stderr };
        for line in stdout.lines() {
            serving.printed.push(line.expect("text"));
            if serving.printed.last().is_some_and(|line| line.starts_with("  welcome ")) {
                return serving;
            }
        }
        panic!("it ended early: {:?} {:?}", serving.printed, serving.stderr.iter().collect::<Vec<_>>());
    }

    fn value(&self, key: &str) -> &str {
        let line = self.printed.iter().find_map(|line| line.strip_prefix("  ")?.strip_prefix(key));
        line.unwrap_or_else(|| panic!("no {key} in {:?}", self.printed)).trim()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("is running");
    }

    /// Reads log lines until one contains `words`, and returns it.
    fn logs(&self, words: &str) -> String {
        loop {
            match self.stderr.recv_timeout(LOG_TIMEOUT) {
                Ok(line) if line.contains(words) => return line,
                Ok(_) => {}
                Err(error) => panic!("it did not log {words}: {error}"),
            }
        }
    }

    fn wait(mut self) -> ExitStatus {
        self.child.wait().expect("ends")
    }

    fn terminate(self) {
        self.signal(Signal::SIGTERM);
        assert_eq!(self.wait().code(), Some(0));
    }

    /// Sends a request and gives the connection back.
    fn request(&self, path: &str) -> TcpStream {
        let address = self.value("gateway").trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).expect("connects");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("sends");
        stream
    }

    fn get(&self, path: &str) -> String {
        let mut answer = Vec::new();
        self.request(path).read_to_end(&mut answer).expect("an answer");
        text(&answer)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// A CARv1 of one root and the blocks below it, in a file.
fn write_car(to: &Path, root: &content::Block, more: &[content::Block]) {
    let mut header = b"\xa2\x65roots\x81\xd8\x2a\x58".to_vec();
    let cid = root.cid().to_bytes();
    header.extend([cid.len() as u8 + 1, 0]);
    header.extend(cid);
    header.extend(b"\x67version\x01");
    let mut car = section(&header);
    for block in std::iter::once(root).chain(more) {
        car.extend(section(&[&block.cid().to_bytes()[..], block.data()].concat()));
    }
    std::fs::write(to, car).expect("writes");
}

fn section(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(bytes);
    out
}

/// A file of 32 MiB, which no socket buffers whole.
fn large() -> (content::Block, Vec<content::Block>) {
    let leaves: Vec<_> = (0..32).map(|seed| dag::raw(dag::noise(seed, 1 << 20))).collect();
    (dag::file(&leaves), leaves)
}

#[test]
fn help_names_every_command_and_flag() {
    let help = text(&run(&["--help"]).stdout);
    let commands = ["serve", "config", "id", "key", "name", "add", "get", "cat", "ls", "store", "import", "token"];
    for command in commands.into_iter().chain(["completions", "man"]) {
        assert!(help.contains(command), "{help}");
    }
    let help = text(&run(&["serve", "--help"]).stdout);
    for flag in [
        "--config <FILE>",
        "--data-dir <DIR>",
        "--listen <ADDR>",
        "--admin-listen <ADDR>",
        "--admin-token <TOKEN>",
        "--p2p-listen <MULTIADDR>",
        "--announce <MULTIADDR>",
        "--bootstrap <MULTIADDR>",
        "--peering <MULTIADDR>",
        "--offline",
    ] {
        assert!(help.contains(flag), "{flag} is not in {help}");
    }
    let version = text(&run(&["--version"]).stdout);
    assert!(version.starts_with("causeway 0.") && version.trim_end().ends_with(')'), "names no commit: {version}");
    assert_eq!(run(&["serve", "--nonsense"]).status.code(), Some(2));
}

#[test]
fn invalid_settings_prevent_the_start_with_one_line() {
    let dir = TempDir::new().expect("a folder");
    let file = path(&dir, "causeway.toml");
    std::fs::write(&file, "data_dir = \"d\"\n[http]\nlisten_on = []\n").expect("writes");
    let error_line = refusal(causeway(&["serve", "--config", &file]), 2);
    assert!(error_line.contains(&format!("{file}:3")) && error_line.contains("\"http.listen_on\""), "{error_line}");
    assert_eq!(error_line, refusal(causeway(&["config", "check", "--config", &file]), 2));

    let mut command = causeway(&["serve"]);
    command.env("CAUSEWAY_HTTP_STALL_TIMEOUT_SECONDS", "soon");
    let error_line = refusal(command, 2);
    assert!(error_line.contains("http.stall_timeout_seconds: \"soon\" is not a whole number"), "{error_line}");

    let error_line = refusal(causeway(&["serve", "--peering", "/ip4/127.0.0.1/tcp/1"]), 2);
    assert!(error_line.contains("p2p.peering") && error_line.contains("--peering"), "{error_line}");
    let error_line = refusal(causeway(&["config", "check", "--admin-listen", "0.0.0.0:1"]), 2);
    assert!(error_line.contains("admin.listen") && error_line.contains("admin.tls_certificate"), "{error_line}");
}

#[test]
fn config_check_rejects_the_files_that_a_start_rejects() {
    let dir = TempDir::new().expect("a folder");
    let nowhere = path(&dir, "nowhere");
    let empty = path(&dir, "empty");
    let any = "127.0.0.1:0".to_owned();
    std::fs::write(&empty, "").expect("writes");
    let table = [
        ("policy.denylists", vec![("CAUSEWAY_POLICY_DENYLISTS", &nowhere)]),
        ("policy.allowlists", vec![("CAUSEWAY_POLICY_ALLOWLISTS", &nowhere)]),
        ("names.dnslink_map", vec![("CAUSEWAY_NAMES_DNSLINK_MAP", &nowhere)]),
        ("p2p.swarm_key", vec![("CAUSEWAY_P2P_SWARM_KEY", &empty)]),
        (
            "http.tls_certificate",
            vec![
                ("CAUSEWAY_HTTP_TLS_LISTEN", &any),
                ("CAUSEWAY_HTTP_TLS_CERTIFICATE", &nowhere),
                ("CAUSEWAY_HTTP_TLS_KEY", &nowhere),
            ],
        ),
        ("admin.tls_certificate", vec![("CAUSEWAY_ADMIN_TLS_CERTIFICATE", &empty), ("CAUSEWAY_ADMIN_TLS_KEY", &empty)]),
    ];
    for (key, variables) in table {
        let of = |command: &[&str]| {
            let data = path(&dir, "data");
            let base = ["--data-dir", &data, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
            let mut command = causeway(&[command, &base[..], &["--bootstrap", "none"]].concat());
            command.env("CAUSEWAY_LOG_LEVEL", "error").env("CAUSEWAY_P2P_LISTEN", "/ip4/127.0.0.1/tcp/0");
            variables.iter().for_each(|(name, value)| _ = command.env(name, value));
            refusal(command, 2)
        };
        let found = of(&["config", "check"]);
        assert!(found.starts_with(&format!("error: {key}: ")), "{found}");
        assert!(!dir.path().join("data").exists(), "a check creates nothing");
        assert_eq!(found, of(&["serve"]));
        _ = std::fs::remove_dir_all(dir.path().join("data"));
    }
}

#[test]
fn sighup_reloads_the_settings() {
    let dir = TempDir::new().expect("a folder");
    let (file, list, map) = (path(&dir, "causeway.toml"), path(&dir, "list.deny"), path(&dir, "names"));
    let root = dag::raw(b"taken down later".to_vec());
    std::fs::write(&list, "version: 1\n---\n").expect("writes");
    std::fs::write(&map, "site.example:/ipfs/bafkqaalp").expect("writes");
    let settings = |level: &str, more: &str| {
        let text = format!(
            "[log]\nlevel = {level:?}\n[policy]\ndenylists = [{list:?}]\n[names]\ndnslink_map = {map:?}\n{more}"
        );
        std::fs::write(&file, text).expect("writes");
    };
    settings("info", "");
    let serving = Serving::start(&dir.path().join("data"), &["--offline", "--config", &file]);
    let old = serving.get("/ipns/site.example");
    assert!(old.starts_with("HTTP/1.1 200 ") && old.ends_with('o'), "{old}");
    settings("debug", "[http]\nmisses_max = 7\n");
    std::fs::write(&list, format!("version: 1\n---\n/ipfs/{}\n", root.cid())).expect("writes");
    std::fs::write(&map, "site.example:/ipfs/bafkqaalo").expect("writes");
    serving.signal(Signal::SIGHUP);
    serving.logs("key=\"http.misses_max\"");
    serving.logs("reloaded the settings and the denylists");
    assert!(serving.get(&format!("/ipfs/{}", root.cid())).starts_with("HTTP/1.1 410 "));
    assert!(serving.get("/ipns/site.example").ends_with('n'), "the name resolves as in the changed file");
    std::fs::write(&map, "no entry").expect("writes");
    settings("nonsense level", "");
    serving.signal(Signal::SIGHUP);
    serving.logs("log.level is invalid and was not applied");
    serving.logs("names.dnslink_map is invalid and was not applied");
    assert!(serving.get("/ipns/site.example").ends_with('n'));
    std::fs::write(&file, "[http").expect("writes");
    serving.signal(Signal::SIGHUP);
    serving.logs("the new settings are invalid");
    assert!(serving.get("/healthz").ends_with("ok\n"));
    serving.terminate();
}

#[test]
fn a_created_store_is_reported_and_a_missing_store_is_an_error() {
    let dir = TempDir::new().expect("a folder");
    let data = path(&dir, "data");
    for command in [&["ls", "bafkqaaa"][..], &["cat", "bafkqaaa"], &["pin", "ls"], &["store", "check"]] {
        let error_line = refusal(causeway(&[command, &["--data-dir", &data]].concat()), 1);
        assert!(error_line.contains(&data) && error_line.contains("no store"), "{error_line}");
        assert!(!dir.path().join("data/store").exists(), "{command:?} created a store");
    }
    std::fs::write(dir.path().join("file"), "of mine").expect("writes");
    let printed = |output: Output| (output.status.code(), text(&output.stderr));
    let (code, error_line) = printed(run(&["add", "--data-dir", &data, &path(&dir, "file")]));
    assert!(code == Some(0) && error_line.contains(&format!("created a store in {data}")), "{error_line}");
    let (code, error_line) = printed(run(&["add", "--data-dir", &data, &path(&dir, "file")]));
    assert!(code == Some(0) && !error_line.contains("created"), "{error_line}");
    // A denylist that cannot be read does not keep a store from being checked and repaired.
    for command in [["store", "check"], ["store", "repair"]] {
        let mut command = causeway(&[&command[..], &["--data-dir", &data]].concat());
        let (code, warning) =
            printed(command.env("CAUSEWAY_POLICY_DENYLISTS", path(&dir, "nowhere")).output().expect("runs"));
        assert!(code == Some(0) && warning.contains("warning: policy.denylists"), "{warning}");
    }
}

/// Only root can chown files; run as another user, this tests nothing.
#[test]
fn an_interrupted_command_of_root_leaves_no_files_of_root() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dir = TempDir::new().expect("a folder");
    let data = dir.path().join("data");
    std::fs::create_dir(&data).expect("is created");
    std::os::unix::fs::chown(&data, Some(12_345), Some(12_346)).expect("chowns");
    // It waits for standard input, with its store open.
    let mut add = causeway(&["add", "--data-dir", &data.display().to_string(), "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let lines = lines_of(add.stderr.take().expect("is piped"));
    let printed = lines.recv_timeout(LOG_TIMEOUT).expect("it reports that it created a store");
    assert!(printed.contains("created a store"), "{printed}");
    kill(Pid::from_raw(add.id() as i32), Signal::SIGINT).expect("is running");
    assert_eq!(add.wait().expect("ends").signal(), Some(2), "as any program");
    let mut folders = vec![data];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("lists") {
            let entry = entry.expect("lists");
            let found = entry.metadata().expect("is there");
            assert_eq!((found.uid(), found.gid()), (12_345, 12_346), "{}", entry.path().display());
            folders.extend(found.is_dir().then(|| entry.path()));
        }
    }
}

#[test]
fn a_port_in_use_prevents_the_start() {
    let dir = TempDir::new().expect("a folder");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("is bound").to_string();
    let data = path(&dir, "data");
    let base = ["serve", "--offline", "--data-dir", &data];
    for (flag, key, other) in
        [("--listen", "http.listen", "--admin-listen"), ("--admin-listen", "admin.listen", "--listen")]
    {
        let arguments = [&base[..], &[flag, &address, other, "127.0.0.1:0"]].concat();
        let error_line = refusal(causeway(&arguments), 2);
        let expected = format!("error: {key}: {address} is in use");
        assert!(error_line.starts_with(&expected) && error_line.contains(flag), "{error_line}");
    }
    let multiaddr = format!("/ip4/127.0.0.1/tcp/{}", taken.local_addr().expect("is bound").port());
    let free = ["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--bootstrap", "none"];
    let arguments = [&["serve", "--data-dir", &data, "--p2p-listen", &multiaddr][..], &free].concat();
    let error_line = refusal(causeway(&arguments), 2);
    assert!(error_line.starts_with("error: p2p.listen: ") && error_line.contains(&multiaddr), "{error_line}");
}

#[test]
fn a_data_folder_in_use_prevents_the_start() {
    let dir = TempDir::new().expect("a folder");
    let serving = Serving::start(&dir.path().join("data"), &["--offline"]);
    let data = path(&dir, "data");
    let free = ["--offline", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"];
    let error_line = refusal(causeway(&[&["serve", "--data-dir", &data][..], &free].concat()), 2);
    assert!(
        error_line.starts_with("error: data_dir: ") && error_line.contains("in use by another process"),
        "{error_line}"
    );
    serving.terminate();
    std::fs::write(dir.path().join("file"), "").expect("writes");
    let error_line = refusal(causeway(&[&["serve", "--data-dir", &path(&dir, "file")][..], &free].concat()), 2);
    assert!(error_line.starts_with("error: data_dir: ") && error_line.contains("cannot be created"), "{error_line}");
}

#[test]
fn a_node_prints_its_p2p_addresses() {
    let dir = TempDir::new().expect("a folder");
    let p2p =
        ["--p2p-listen", "/ip4/127.0.0.1/tcp/0", "--p2p-listen", "/ip4/127.0.0.1/udp/0/quic-v1", "--bootstrap", "none"];
    let serving = Serving::start(&dir.path().join("data"), &p2p);
    let end = format!("/p2p/{}", serving.value("peer id"));
    let addresses: Vec<_> = serving.printed.iter().filter_map(|line| line.strip_prefix("  p2p       ")).collect();
    assert_eq!(addresses.len(), 2, "{addresses:?}");
    for (address, transport) in addresses.iter().zip(["/tcp/", "/udp/"]) {
        assert!(address.contains(transport) && address.ends_with(&end) && !address.contains("/0/"), "{address}");
    }
    serving.terminate();
}

#[test]
fn config_show_prints_the_effective_settings_without_secrets() {
    let mut command = causeway(&["config", "show", "--listen", "127.0.0.1:7", "--bootstrap", "none"]);
    let output = command.env("CAUSEWAY_ADMIN_TOKEN", "hunter2").output().expect("runs");
    let shown = text(&output.stdout);
    assert!(shown.contains("listen = [\"127.0.0.1:7\"]") && shown.contains("bootstrap = []"), "{shown}");
    assert!(shown.contains("token = \"***\"") && !shown.contains("hunter2"), "{shown}");
    let check = run(&["config", "check"]);
    assert!(check.status.success() && text(&check.stdout).starts_with("The settings are valid"));
}

#[test]
fn the_identity_is_persistent() {
    let dir = TempDir::new().expect("a folder");
    let id = || text(&run(&["id", "--data-dir", &path(&dir, "data")]).stdout);
    let first = id();
    assert!(first.starts_with("12D3Koo") && first.lines().count() == 1, "{first}");
    assert_eq!(id(), first);
    let serving = Serving::start(&dir.path().join("data"), &["--offline"]);
    assert_eq!(serving.value("peer id"), first.trim());
    serving.terminate();
}

#[test]
fn imported_content_is_served_offline_and_persistent() {
    let dir = TempDir::new().expect("a folder");
    let data = dir.path().join("data");
    let hello = dag::raw("hello from a CAR");
    let root = dag::directory(&[("hello.txt", &hello)]);
    let car = dir.path().join("site.car");
    write_car(&car, &root, &[hello]);
    let output = run(&["import", "--data-dir", &path(&dir, "data"), &path(&dir, "site.car")]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains(&format!("pinned {}\n", root.cid())), "{}", text(&output.stdout));

    for _ in 0..2 {
        let serving = Serving::start(&data, &["--offline"]);
        let answer = serving.get(&format!("/ipfs/{}/hello.txt", root.cid()));
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello from a CAR"), "{answer}");
        let again = run(&["import", "--data-dir", &path(&dir, "data"), &path(&dir, "site.car")]);
        assert_eq!((again.status.code(), &again.stdout), (Some(0), &output.stdout), "{}", text(&again.stderr));
        serving.terminate();
    }
}

#[test]
fn a_damaged_archive_is_rejected() {
    let dir = TempDir::new().expect("a folder");
    let file = path(&dir, "broken.car");
    // The creation of a store is reported once.
    let root = dag::raw(b"whole".to_vec());
    write_car(&dir.path().join("whole.car"), &root, &[]);
    assert!(run(&["import", "--data-dir", &path(&dir, "data"), &path(&dir, "whole.car")]).status.success());
    for bytes in [&b"no archive"[..], b""] {
        std::fs::write(&file, bytes).expect("writes");
        let error_line = refusal(causeway(&["import", "--data-dir", &path(&dir, "data"), &file]), 1);
        assert!(error_line.contains("broken.car was not imported"), "{error_line}");
    }
    let error_line = refusal(causeway(&["import", "--data-dir", &path(&dir, "data"), "/nowhere.car"]), 1);
    assert!(error_line.contains("/nowhere.car cannot be read"), "{error_line}");
}

#[test]
fn the_admin_listener_answers_under_a_flood_of_connections() {
    let dir = TempDir::new().expect("a folder");
    let serving = Serving::start(&dir.path().join("data"), &["--offline"]);
    let admin = serving.value("admin").trim_start_matches("http://").to_owned();
    let token = std::fs::read_to_string(dir.path().join("data/admin.token")).expect("commands find it there");
    let ask = |path: &str| {
        let mut stream = TcpStream::connect(&admin).expect("connects");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
        let authorization = format!("Authorization: Bearer {}\r\n", token.trim());
        let head = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{authorization}Connection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).expect("sends");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap_or_else(|error| panic!("{path}: {error} {answer}"));
        answer
    };
    // An empty connection, half a head, and an idle keep-alive connection.
    for sent in ["", "GET /metr", "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"] {
        let flood: Vec<TcpStream> = (0..150)
            .map(|_| {
                let mut stream = TcpStream::connect(&admin).expect("connects");
                stream.write_all(sent.as_bytes()).expect("sends");
                stream
            })
            .collect();
        for path in ["/healthz", "/readyz", "/metrics", "/api/v1/store/stats"] {
            let answer = ask(path);
            assert!(answer.starts_with("HTTP/1.1 200"), "{sent:?}, {path}: {answer}");
        }
        drop(flood);
    }
    // Requests that the public listener rejects are rejected here.
    let mut stream = TcpStream::connect(&admin).expect("connects");
    write!(stream, "GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\nConnection: close\r\n\r\n").expect("sends");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("exactly one Host header"), "{answer}");
}

#[test]
fn the_access_log_has_a_line_for_each_request() {
    let dir = TempDir::new().expect("a folder");
    let settings = path(&dir, "causeway.toml");
    std::fs::write(&settings, "[log]\naccess = \"log\"\nformat = \"json\"\n").expect("writes");
    let serving = Serving::start(&dir.path().join("data"), &["--offline", "--config", &settings]);
    let address = serving.value("gateway").trim_start_matches("http://").to_owned();
    let mut stream = TcpStream::connect(address).expect("connects");
    let head = "GET /ipfs/bafkqac3imvwgy3zao5xxe3de?token=secret HTTP/1.1\r\nHost: example.org\r\n";
    write!(stream, "{head}User-Agent: a\tb\"c\r\nAuthorization: Bearer secret\r\nConnection: close\r\n\r\n")
        .expect("sends");
    stream.read_to_string(&mut String::new()).expect("an answer");
    let line = serving.logs("\"access\"");
    let logged: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    let fields = &logged["fields"];
    let expected = serde_json::json!({
        "client": "127.0.0.1", "method": "GET", "host": "example.org", "path": "/ipfs/bafkqac3imvwgy3zao5xxe3de",
        "status": 200, "bytes": 11, "tier": "ram", "user_agent": "a\\x09b\\x22c", "complete": true,
    });
    for (name, value) in expected.as_object().expect("an object") {
        assert_eq!(&fields[name], value, "{name}: {line}");
    }
    assert!(fields["duration_ms"].as_f64() > Some(0.0) && !line.contains("secret"), "{line}");
}

#[test]
fn the_welcome_site_is_served_at_the_first_start() {
    let dir = TempDir::new().expect("a folder");
    let serving = Serving::start(&dir.path().join("data"), &["--offline"]);
    assert!(serving.printed[0].starts_with("Causeway 0.") && serving.printed[0].ends_with(" is ready."));
    let landing = serving.get("/");
    let path = serving.value("welcome").trim_start_matches(serving.value("gateway")).to_owned();
    assert!(landing.starts_with("HTTP/1.1 200") && landing.contains(&format!("href=\"{path}\"")), "{landing}");
    let pages = [
        (path.clone(), "text/html", "Your gateway is running"),
        (format!("{path}how-it-works/"), "text/html", "From a CID to a page"),
        (format!("{path}causeway.svg"), "image/svg+xml", "<svg"),
        (format!("{path}style.css"), "text/css; charset=utf-8", "color-scheme"),
        (format!("{path}examples/"), "text/html; charset=utf-8", "hello.txt"),
        (format!("{path}examples/hello.txt"), "text/plain; charset=utf-8", "Hello from Causeway"),
        ("/ipfs/bafkqac3imvwgy3zao5xxe3de".to_owned(), "text/plain; charset=utf-8", "hello world"),
    ];
    for (path, content_type, words) in pages {
        let answer = serving.get(&path);
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        assert!(
            answer.contains(&format!("content-type: {content_type}\r\n")) && answer.contains(words),
            "{path}: {answer}"
        );
    }
    let admin = serving.value("admin").trim_start_matches("http://").to_owned();
    let mut stream = TcpStream::connect(admin).expect("connects");
    let token = std::fs::read_to_string(dir.path().join("data/admin.token")).expect("commands find it there");
    let authorization = format!("Authorization: Bearer {}\r\n", token.trim());
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\n{authorization}Connection: close\r\n\r\n").expect("sends");
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).expect("metrics");
    for name in ["causeway_http_requests_total", "causeway_tier_hits_total", "causeway_disk_pinned_bytes", "# EOF"] {
        assert!(metrics.contains(name), "{name} is not in {metrics}");
    }
    serving.terminate();
}

/// A gateway that is sending 32 MiB to a slow client.
fn busy(dir: &TempDir) -> (Serving, TcpStream, usize) {
    let (root, leaves) = large();
    let car = dir.path().join("large.car");
    write_car(&car, &root, &leaves);
    let data = dir.path().join("data");
    let output = run(&["import", "--data-dir", &path(dir, "data"), &path(dir, "large.car")]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let serving = Serving::start(&data, &["--offline"]);
    let mut stream = serving.request(&format!("/ipfs/{}", root.cid()));
    let mut first = vec![0; 4096];
    stream.read_exact(&mut first).expect("a head");
    assert!(first.starts_with(b"HTTP/1.1 200"));
    let head = text(&first).find("\r\n\r\n").expect("a whole head") + 4;
    (serving, stream, first.len() - head)
}

#[test]
fn open_downloads_finish_after_a_signal() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let dir = TempDir::new().expect("a folder");
        let (serving, mut stream, received) = busy(&dir);
        serving.signal(signal);
        serving.logs("draining");
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).expect("a complete answer");
        assert_eq!(received + rest.len(), 32 << 20);
        assert_eq!(serving.wait().code(), Some(0));
    }
}

#[test]
fn a_second_signal_ends_the_process_immediately() {
    let dir = TempDir::new().expect("a folder");
    let (serving, _unread, _) = busy(&dir);
    serving.signal(Signal::SIGTERM);
    serving.logs("draining");
    serving.signal(Signal::SIGINT);
    assert_eq!(serving.wait().code(), Some(130));
}

/// The output of a successful command.
fn printed(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn key_and_name_commands_work_with_and_without_a_running_node() {
    let dir = TempDir::new().expect("a folder");
    let data = path(&dir, "data");
    let value = "/ipfs/bafkqaddjnzzxazldoqwxizltoq";
    for (running, sequence) in [(false, 0), (true, 0)] {
        let serving = running.then(|| Serving::start(Path::new(&data), &["--offline"]));
        let at = |arguments: &[&str]| printed(&[arguments, &["--data-dir", &data]].concat());
        let refused = |arguments: &[&str], words: &str| {
            let error_line = refusal(causeway(&[arguments, &["--data-dir", &data]].concat()), 1);
            assert!(error_line.contains(words), "{error_line}");
        };
        let made = at(&["key", "create", "site"]);
        assert!(made.starts_with("site  k51") && made.ends_with("  ed25519\n"), "{made}");
        refused(&["key", "create", "site"], "the key \"site\" already exists");
        refused(&["key", "create", "a/b"], "cannot name a key");
        refused(&["key", "remove", "a/b"], "key");
        refused(&["key", "remove", "self"], "node's identity");
        let file = path(&dir, if running { "two.pem" } else { "one.pem" });
        assert_eq!(at(&["key", "export", "site", "--format", "pem-pkcs8-cleartext", "-o", &file]), format!("{file}\n"));
        refused(&["key", "export", "site", "-o", &file], "cannot be created");
        assert!(std::fs::read_to_string(&file).expect("written").starts_with("-----BEGIN PRIVATE KEY-----\n"));
        at(&["key", "remove", "site"]);
        assert_eq!(at(&["key", "import", "site", &file]), made, "the same key");
        assert!(at(&["key", "rename", "site", "page"]).starts_with("page  k51"));
        let listed = at(&["key", "list"]);
        assert!(listed.contains("page  k51") && listed.contains("self  k51"), "{listed}");

        let published = at(&["name", "publish", "--key", "page", "--lifetime", "24h", value]);
        let expected = format!("-> {value}\n  key page, sequence number {sequence}, valid until ");
        assert!(published.starts_with("/ipns/k51") && published.contains(&expected), "{published}");
        assert!(published.contains("stored locally"), "{published}");
        assert_eq!(at(&["name", "list"]), published);
        refused(&["name", "publish", "nonsense"], "is not a valid path");
        refused(&["name", "publish", "--key", "nobody", value], "there is no key \"nobody\"");
        if let Some(serving) = serving {
            let name = published.split(' ').next().expect("a name");
            assert!(serving.get(&format!("{name}?format=ipns-record")).starts_with("HTTP/1.1 200"), "known at once");
            serving.terminate();
        }
        at(&["key", "remove", "page"]);
        assert_eq!(at(&["name", "list"]), "");
    }
}

#[test]
fn changes_of_commands_without_a_gateway_are_in_the_audit_log() {
    let dir = TempDir::new().expect("a folder");
    let (data, file) = (path(&dir, "data"), path(&dir, "file"));
    std::fs::write(&file, "of mine").expect("writes");
    let root = printed(&["add", "-Q", "--data-dir", &data, &file]);
    let archive = path(&dir, "archive.car");
    for command in [
        &["key", "gen", "site"][..],
        &["key", "rename", "site", "page"],
        &["name", "publish", "--key", "page", root.trim()],
        &["key", "rm", "page"],
        &["pin", "add", root.trim()],
        &["store", "export", root.trim(), &archive],
        &["import", &archive],
        &["key", "ls"],
        &["pin", "ls"],
    ] {
        printed(&[command, &["--data-dir", &data]].concat());
    }
    refusal(causeway(&["key", "rm", "page", "--data-dir", &data]), 1);
    // The first of two is pinned, the second is not stored.
    let missing = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy";
    let both = causeway(&["pin", "add", root.trim(), missing, "--data-dir", &data]).output().expect("the binary runs");
    assert!(!both.status.success() && text(&both.stdout).contains(root.trim()), "{both:?}");
    printed(&["store", "repair", "--release-unclaimed", "--data-dir", &data]);
    let log = std::fs::read_to_string(dir.path().join("data/audit.log")).expect("there is a log");
    let ended = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let ended: Vec<_> = ended.filter(|entry| !entry["status"].is_null()).collect();
    let reported: Vec<_> =
        ended.iter().map(|entry| (entry["path"].as_str().expect("words"), entry["status"].as_u64())).collect();
    let done = ["add", "key create", "key rename", "name publish", "key remove", "pin add", "import"]
        .map(|words| (words, Some(200)));
    let later =
        [("key remove", Some(404)), ("pin add", Some(200)), ("pin add", Some(500)), ("store repair", Some(200))];
    assert_eq!(reported, [&done[..], &later].concat());
    assert_eq!(ended[0]["detail"]["roots"], serde_json::json!([root.trim()]));
}

/// Without settings, the data folder is `data` in the working directory.
#[test]
fn the_default_data_folder_is_below_the_working_directory() {
    let dir = TempDir::new().expect("a folder");
    let here = |arguments: &[&str]| causeway(arguments).current_dir(&dir).output().expect("the binary runs");
    let made = here(&["token", "create", "--scope", "read"]);
    assert!(made.status.success() && text(&made.stdout).starts_with("cw_"), "{}", text(&made.stderr));
    assert!(dir.path().join("data/tokens.json").is_file());
    assert!(text(&here(&["token", "ls"]).stdout).contains("token-1"));
    let alone = here(&["health"]);
    assert!(alone.status.code() == Some(3) && text(&alone.stderr).contains(&path(&dir, "data")), "{alone:?}");
}

#[test]
fn missing_access_to_a_node_is_reported() {
    let dir = TempDir::new().expect("a folder");
    let data = path(&dir, "data");
    // The admin listener, the command's token, and its error; `None` for success.
    let table = [
        ("127.0.0.1:0", None, None),
        ("127.0.0.1:0", Some("secret"), None),
        ("127.0.0.1:0", Some("wrong"), Some("CAUSEWAY_ADMIN_TOKEN")),
        ("none", None, Some("without an admin listener")),
    ];
    for (admin, token, error_line) in table {
        let arguments = ["serve", "--offline", "--data-dir", &data, "--listen", "127.0.0.1:0", "--admin-listen", admin];
        let mut serving = causeway(&arguments);
        let mut child =
            serving.env("CAUSEWAY_ADMIN_TOKEN", "secret").stdout(Stdio::piped()).spawn().expect("the binary runs");
        let stdout = BufReader::new(child.stdout.take().expect("is piped"));
        let ready = stdout.lines().map_while(Result::ok).any(|line| line.starts_with("  welcome "));
        let mut command = causeway(&["key", "list", "--data-dir", &data]);
        let output =
            command.envs(token.map(|token| ("CAUSEWAY_ADMIN_TOKEN", token))).output().expect("the binary runs");
        kill(Pid::from_raw(child.id() as i32), Signal::SIGKILL).expect("is running");
        child.wait().expect("ends");
        assert!(
            ready && output.status.success() == error_line.is_none(),
            "{admin} {token:?}: {}",
            text(&output.stderr)
        );
        assert!(
            text(&output.stderr).contains(error_line.unwrap_or_default()),
            "{admin} {token:?}: {}",
            text(&output.stderr)
        );
    }
    assert!(printed(&["key", "list", "--data-dir", &data]).contains("self"), "SIGKILL leaves no lock");
}
