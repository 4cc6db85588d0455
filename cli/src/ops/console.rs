//! `causeway console`: the URL of the gateway's web page, which signs in with a token.
//!
//! The token is in the fragment of the URL, which browsers do not send. With `--open` the browser is given a file that
//! leads to the URL, since every user of the machine can read the arguments of a process.

use crate::options::{GATEWAY_REQUIRED, NodeOptions};
use crate::output::print_line;
use crate::remote::connect;
use anyhow::{Context as _, bail};
use clap::Args;
use config::Loaded;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The unreserved characters of URLs (RFC 3986, section 2.3) stay as they are.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The program that opens files in the user's browser.
const OPENER: &str = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
/// How long the program may take, and how long the browser may take to read the file after that.
const OPENER_TIMEOUT: Duration = Duration::from_secs(20);
const READ_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

const CONSOLE: &str = "\
Examples:
  causeway console --open              open it in a browser on this machine
  causeway console                     print its URL
  causeway console --token-file FILE   with less than the operator's token

The console is a web page of the admin listener: it shows live statistics, health, peers and pins, and operates the \
gateway. The URL ends in a token, after #, so keep it secret; browsers do not send that part. What the page shows \
depends on the scopes of the token: \"causeway token create\" creates one.

For a gateway on another machine, make a tunnel, and open the URL that the command prints there:
  ssh -N -L 8081:127.0.0.1:8081 HOST &
  ssh HOST causeway console";

/// `causeway console`
#[derive(Debug, Args)]
#[command(after_help = format!("{CONSOLE}\n\n{GATEWAY_REQUIRED}"))]
pub struct ConsoleArgs {
    /// Open it in the browser
    #[arg(long)]
    open: bool,
    /// The node.
    #[command(flatten)]
    pub node: NodeOptions,
}

/// The URL with a token in its fragment.
fn with_token(url: &str, token: &str) -> String {
    format!("{url}/#token={}", utf8_percent_encode(token, ESCAPED))
}

/// Prints the URL of the console, and opens it on request.
///
/// # Errors
/// When the gateway cannot be reached, rejects the token, or has no console; or when no browser can be started.
pub async fn console(loaded: &Loaded, args: ConsoleArgs) -> anyhow::Result<()> {
    let remote = connect(loaded, &args.node).await?;
    let client = remote.client();
    if !client.has("/").await? {
        bail!("the gateway at {} has no console: set admin.console = true, and restart it", client.url());
    }
    let address = client.url();
    if address.starts_with("unix:") {
        bail!(
            "browsers cannot open {address}: add an address such as 127.0.0.1:8081 to admin.listen, and name it with --admin"
        );
    }
    let url = client.token().map_or_else(|| client.url(), |token| with_token(&client.url(), token));
    print_line(&url)?;
    if args.open {
        open(&url).await.with_context(|| "no browser can be opened: open the URL above in one")?;
    }
    Ok(())
}

/// A page that leads to a URL without sending where it came from.
fn redirect(url: &str) -> String {
    // Percent-encoded, so that it needs no escapes in an attribute.
    format!(
        "<!doctype html>\n<meta charset=\"utf-8\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <meta http-equiv=\"refresh\" content=\"0; url={url}\">\n<title>Causeway console</title>\n"
    )
}

/// Opens a URL in the user's browser, by a file that only this user can read.
async fn open(url: &str) -> anyhow::Result<()> {
    let mut file = tempfile::Builder::new().prefix("causeway-console-").suffix(".html").tempfile()?;
    file.write_all(redirect(url).as_bytes())?;
    file.flush()?;
    run(OPENER, file.path(), OPENER_TIMEOUT).await?;
    // The browser reads the file after the program has ended.
    tokio::time::sleep(READ_TIMEOUT).await;
    Ok(())
}

/// Runs a program on a file. One that is still running after the timeout is the browser itself.
async fn run(program: &str, file: &Path, timeout: Duration) -> anyhow::Result<()> {
    let mut command = Command::new(program);
    command.arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut opener = command.spawn().with_context(|| format!("{program} cannot be run"))?;
    let begun = Instant::now();
    while begun.elapsed() < timeout {
        match opener.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => bail!("{program} ended with {status}"),
            None => tokio::time::sleep(POLL_INTERVAL).await,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_in_the_fragment_and_escaped() {
        let table = [
            ("cw_abc_DEF-1.2~3", "http://127.0.0.1:8081/#token=cw_abc_DEF-1.2~3"),
            ("a\"b<c>&#d+e%", "http://127.0.0.1:8081/#token=a%22b%3Cc%3E%26%23d%2Be%25"),
        ];
        for (token, expected) in table {
            let url = with_token("http://127.0.0.1:8081", token);
            assert_eq!(url, expected);
            let page = redirect(&url);
            assert!(page.contains(&format!("content=\"0; url={expected}\"")), "{page}");
        }
    }

    #[tokio::test]
    async fn a_program_that_fails_or_does_not_exist_is_reported() {
        let file = tempfile::NamedTempFile::new().expect("creates");
        let run = async |program: &str| run(program, file.path(), Duration::from_secs(30)).await;
        assert!(run("true").await.is_ok());
        let error = run("false").await.expect_err("it fails");
        assert!(error.to_string().contains("false ended with"), "{error}");
        let error = run("/nowhere/xdg-open").await.expect_err("it does not exist");
        assert!(error.to_string().contains("cannot be run"), "{error}");
        // "sleep 30", which is still running after the timeout.
        let begun = Instant::now();
        let running = super::run("sleep", Path::new("30"), Duration::from_millis(100)).await;
        assert!(running.is_ok() && begun.elapsed() < Duration::from_secs(20));
    }
}
