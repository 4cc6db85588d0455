//! Text that `causeway add` stored compressed, read by common programs: `curl --compressed`, and the
//! command-line tool of zstd; and what they compressed, uploaded. `scripts/install-missing test` installs both.

use crate::support::assert_same_bytes;
use crate::support::causeway::{Causeway, Launch, TOKEN};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Leaves of the file, at 256 KiB each.
const LEAVES: usize = 6;

/// Text of that many leaves, of which the last is short.
fn text() -> Vec<u8> {
    let lines = (0_u64..).map(|line| format!("line {line}: {} bottles of {:x}\n", line % 99, line * line));
    let mut text = Vec::new();
    for line in lines {
        text.extend(line.bytes());
        if text.len() > (LEAVES - 1) * 256 * 1024 + 1000 {
            return text;
        }
    }
    text
}

/// A program's output; panics if it fails.
fn run(command: &mut Command) -> Vec<u8> {
    let name = command.get_program().to_owned();
    let output = command.stderr(Stdio::piped()).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}: scripts/install-missing test", name.display()));
    let error_line = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {}: {error_line}", name.display(), output.status);
    output.stdout
}

/// The answer that curl receives: the decoded body, the head in lower case, and the length of the encoded body.
struct Got {
    body: Vec<u8>,
    head: String,
    sent_bytes: usize,
}

fn curl(dir: &Path, url: &str, arguments: &[&str]) -> Got {
    let (body, head) = (dir.join("body"), dir.join("head"));
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--fail", "--max-time", "60", "--noproxy", "*"]);
    command.args(["--write-out", "%{size_download}"]).args(arguments);
    let sent = run(command.arg("--output").arg(&body).arg("--dump-header").arg(&head).arg(url));
    Got {
        body: std::fs::read(body).expect("curl wrote it"),
        head: std::fs::read_to_string(head).expect("curl wrote it").to_lowercase(),
        sent_bytes: String::from_utf8_lossy(&sent).parse().expect("a number"),
    }
}

/// The number of frames of a file, as zstd counts them.
fn frames(file: &Path) -> usize {
    let list = run(Command::new("zstd").arg("--list").arg(file));
    let list = String::from_utf8_lossy(&list).into_owned();
    let line = list.lines().nth(1).unwrap_or_else(|| panic!("no list: {list}"));
    line.split_whitespace().next().and_then(|frames| frames.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

struct World {
    dir: TempDir,
    text: Vec<u8>,
    causeway: Causeway,
    paths: Vec<(&'static str, String)>,
}

/// The same text with raw leaves and with dag-pb leaves, under both versions of CIDs.
async fn world() -> World {
    let (dir, text) = (TempDir::new().expect("the temporary folder is writable"), text());
    let launch = Launch::new(dir.path());
    let file: PathBuf = dir.path().join("text.txt");
    std::fs::write(&file, &text).expect("the folder is ours");
    let variants: [(&str, &[&str]); 3] = [
        ("raw leaves", &["--cid-version=1"]),
        ("dag-pb leaves, CIDv0", &["--cid-version=0"]),
        ("dag-pb leaves, CIDv1", &["--cid-version=1", "--raw-leaves=false"]),
    ];
    let paths = variants.map(|(name, flags)| {
        let file = file.to_str().expect("text");
        let arguments = [&["add", "--quieter", "--wrap-with-directory"], flags, &[file]].concat();
        let root = launch.run(&arguments).unwrap_or_else(|error_line| panic!("{name}: {error_line}"));
        (name, format!("/ipfs/{root}/text.txt"))
    });
    World { causeway: launch.start().await, dir, text, paths: paths.into() }
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_and_zstd_decode_compressed_blocks() {
    let World { dir, text, causeway, paths } = world().await;
    for (name, path) in paths {
        let url = causeway.url(&path);
        let plain = curl(dir.path(), &url, &[]);
        assert!(!plain.head.contains("content-encoding"), "{name}: {}", plain.head);
        assert_same_bytes(name, &plain.body, &text);
        assert_eq!(plain.sent_bytes, text.len());

        // The first request that accepts it, and later ones.
        for _ in 0..2 {
            let got = curl(dir.path(), &url, &["--compressed"]);
            assert!(got.head.contains("content-encoding: zstd\r\n"), "{name}: {}", got.head);
            assert!(got.head.contains("content-type: text/plain"), "{name}: {}", got.head);
            assert_same_bytes(name, &got.body, &text);
            assert!(got.sent_bytes < text.len() / 2, "{name}: {} of {} bytes", got.sent_bytes, text.len());
            assert!(got.head.contains(&format!("content-length: {}\r\n", got.sent_bytes)), "{name}: {}", got.head);
        }

        let stored = curl(dir.path(), &url, &["--header", "Accept-Encoding: zstd"]);
        let file = dir.path().join("text.zst");
        std::fs::write(&file, &stored.body).expect("the folder is ours");
        assert_same_bytes(name, &run(Command::new("zstd").args(["--decompress", "--stdout"]).arg(&file)), &text);
        assert_eq!(frames(&file), LEAVES, "{name}: one frame for each leaf");

        let part = curl(dir.path(), &url, &["--compressed", "--range", "200000-600000"]);
        assert!(part.head.starts_with("http/1.1 206") && !part.head.contains("content-encoding"), "{}", part.head);
        assert_same_bytes(name, &part.body, &text[200_000..=600_000]);
    }
    causeway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn curl_and_zstd_decode_raw_blocks_and_cars() {
    let World { dir, text, causeway, paths } = world().await;
    let stored_as_zstd = |url: &str| {
        let stored = curl(dir.path(), url, &["--header", "Accept-Encoding: zstd"]);
        assert!(stored.head.contains("content-encoding: zstd\r\n"), "{}", stored.head);
        let file = dir.path().join("body.zst");
        std::fs::write(&file, &stored.body).expect("the folder is ours");
        (run(Command::new("zstd").args(["--decompress", "--stdout"]).arg(&file)), stored)
    };
    for (name, path) in &paths {
        let url = causeway.url(&format!("{path}?format=car"));
        let plain = curl(dir.path(), &url, &[]);
        assert!(!plain.head.contains("content-encoding"), "{name}: {}", plain.head);
        let got = curl(dir.path(), &url, &["--compressed"]);
        assert!(got.head.contains("content-encoding: zstd\r\n"), "{name}: {}", got.head);
        assert_same_bytes(name, &got.body, &plain.body);
        assert!(got.sent_bytes < text.len() / 2, "{name}: {} of {} bytes", got.sent_bytes, plain.body.len());
        assert_same_bytes(name, &stored_as_zstd(&url).0, &plain.body);
    }
    // One leaf, raw and with an envelope.
    let short = &text[..200_000];
    std::fs::write(dir.path().join("short.txt"), short).expect("the folder is ours");
    for flags in ["--raw-leaves=true", "--raw-leaves=false"] {
        let at = ["add", "-Q", "--cid-version=1", flags, "--admin", causeway.admin_url(), "short.txt"];
        let launch = Launch::new(dir.path());
        let root = launch.run(&at).expect("is added");
        let url = causeway.url(&format!("/ipfs/{root}?format=raw"));
        let plain = curl(dir.path(), &url, &[]);
        assert!(plain.body.len() - short.len() < 20, "{flags}: {} bytes", plain.body.len());
        let (decoded, stored) = stored_as_zstd(&url);
        assert_same_bytes(flags, &decoded, &plain.body);
        let length = stored.body.len();
        assert!(stored.head.contains(&format!("content-length: {length}\r\n")), "{flags}: {}", stored.head);
        assert!(stored.head.contains(&format!("etag: w/\"{root}.raw.zstd\"\r\n")), "{flags}: {}", stored.head);
        assert!(length < short.len() / 2, "{flags}: {length} bytes");
        assert_same_bytes(flags, &curl(dir.path(), &url, &["--compressed"]).body, &plain.body);
        let part = curl(dir.path(), &url, &["--compressed", "--range", "7-9"]);
        assert!(part.head.starts_with("http/1.1 206") && !part.head.contains("content-encoding"), "{}", part.head);
        let explained = launch.run(&["explain", "--admin", causeway.admin_url(), &format!("/ipfs/{root}?format=raw")]);
        let explained = explained.expect("explains");
        assert!(explained.contains(&format!("as {length} bytes of zstd")), "{explained}");
    }
    causeway.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_zstd_compressed_is_uploaded() {
    let (dir, text) = (TempDir::new().expect("the temporary folder is writable"), text());
    let launch = Launch::new(dir.path());
    let file = dir.path().join("text.txt");
    std::fs::write(&file, &text).expect("the folder is ours");
    let causeway = launch.start().await;
    let root = launch.run(&["add", "-n", "-Q", "text.txt"]).expect("is hashed");
    let token = format!("Authorization: Bearer {TOKEN}");
    let send = |name: &str, coding: &str, target: &str, kind: &str| {
        let (url, body) =
            (format!("{}{target}", causeway.admin_url()), format!("@{}", dir.path().join(name).display()));
        let coding = format!("Content-Encoding: {coding}");
        let mut command = Command::new("curl");
        command.args([
            "--silent",
            "--show-error",
            "--max-time",
            "60",
            "--noproxy",
            "*",
            "--include",
            "--header",
            &token,
        ]);
        command.args(["--header", &coding, "--header", kind, "--header", "Expect:", "--data-binary", &body, &url]);
        String::from_utf8(run(&mut command)).expect("text")
    };
    let compress = |arguments: &[&str], output: &str| {
        let output = dir.path().join(output);
        run(Command::new("zstd").args(["--force", "--quiet"]).args(arguments).arg(&file).arg("-o").arg(output));
    };
    compress(&["-3"], "fast.zst");
    compress(&["-19"], "small.zst");
    // A file would have its size in the header, and a window of no more than that.
    let input = std::fs::File::open(&file).expect("is there");
    let mut command = Command::new("zstd");
    command.args(["--quiet", "--long=27", "-o"]).arg(dir.path().join("window.zst")).stdin(input);
    run(&mut command);
    let whole = std::fs::read(dir.path().join("fast.zst")).expect("reads");
    let write = |name: &str, body: &[u8]| std::fs::write(dir.path().join(name), body).expect("the folder is ours");
    write("cut.zst", &whole[..whole.len() - 10]);
    write("behind.zst", &[&whole[..], b"garbage"].concat());
    write("two.zst", &whole.repeat(2));
    let plain = "Content-Type: text/plain";
    for name in ["fast.zst", "small.zst"] {
        let answer = send(name, "zstd", "/upload", plain);
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(&root), "{name}: {answer}");
    }
    let table = [
        ("cut.zst", "zstd", "400"),
        ("behind.zst", "zstd", "400"),
        ("window.zst", "zstd", "400"),
        ("text.txt", "zstd", "400"),
        ("fast.zst", "gzip", "415"),
    ];
    for (name, coding, status) in table {
        for target in ["/upload", "/api/v1/store/import"] {
            let kind = if target == "/upload" { plain } else { "Content-Type: application/vnd.ipld.car" };
            let answer = send(name, coding, target, kind);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{name} {target}: {answer}");
            let is_named = answer.to_lowercase().contains("accept-encoding: zstd\r\n");
            assert_eq!(is_named, status == "415", "{name} {target}: {answer}");
        }
    }
    let answer = send("two.zst", "zstd", "/upload", plain);
    assert!(answer.contains(&format!("\"bytes\":{}", 2 * text.len())), "{answer}");
    let pins = launch.run(&["pin", "ls", "--admin", causeway.admin_url()]).expect("lists");
    assert!(pins.contains(&root), "{pins}");
    causeway.expect(&format!("/ipfs/{root}"), &text).await;
    causeway.stop().await;
}
