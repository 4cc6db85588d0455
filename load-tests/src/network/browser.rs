//! A page with 40 assets, whole, in Chromium.

use super::Options;
use super::latency::{Clients, SYSTEMS};
use super::world::Remote;
use crate::comparison::{Case, Measure, Series, System, rounds};
use crate::directory::temp_dir;
use crate::sample;
use crate::servers::{Causeway, Kubo, Setup, Transport};
use crate::timed;
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/browser/page-time.mjs");
/// Style sheets, scripts and pictures.
const ASSETS: [(&str, usize, usize); 3] = [("css", 4, 30_000), ("js", 6, 60_000), ("svg", 30, 20_000)];

/// How the browser fetches without a gateway of its own.
const NOTE: &str = "over HTTP the browser has six connections with the source's gateway, of HTTP/1.1";

/// The page on a Kubo, from the navigation to the end of the load event.
pub async fn page(options: &Options, transport: Transport) -> Result<Case> {
    let source = Remote::<Kubo>::start(options, options.link()).await?;
    let add = |site: &Path| source.node.add_directory(site);
    let series = opened(options, transport, &source, add, |bytes| bytes).await?;
    let case = Case::new(name("", transport), "s", series);
    let kubo = case.value(System::Kubo);
    let measure = Measure::lower(case.value(System::Causeway), "s")
        .bar("half of Kubo's", kubo / 2.0)
        .aim("a quarter", kubo / 4.0);
    Ok(case.measure(measure).note(NOTE))
}

/// The same page on a Causeway, which answers the browser over HTTP as well.
pub async fn page_from_causeway(options: &Options, transport: Transport) -> Result<Case> {
    let source = Remote::<Causeway>::start_with(options, options.link(), Setup::default()).await?;
    // Causeway sends text as it is stored: hexadecimal digits take half as many bytes.
    let series = opened(options, transport, &source, |site| source.node.add(site), |bytes| bytes * 2 / 5).await?;
    let case = Case::new(name(" of Causeway's", transport), "s", series);
    let of_http = case.value(System::Causeway) / case.value(System::Http);
    let measure = Measure::lower(of_http, "× HTTP/1.1").bar("0.8 × HTTP/1.1", 0.8).aim("0.6 ×", 0.6);
    Ok(case.measure(measure).note(NOTE))
}

fn name(whose: &str, transport: Transport) -> String {
    format!("a cold page{whose} with {} assets, whole, in Chromium, {}", assets(), transport.name())
}

/// The seconds that new pages take, which `add` adds to the source. `sent` is the least that passes the link of so many
/// bytes of assets.
async fn opened<Node>(
    options: &Options,
    transport: Transport,
    source: &Remote<Node>,
    add: impl Fn(&Path) -> Result<String>,
    sent: impl Fn(usize) -> usize,
) -> Result<Vec<Series>> {
    let modules =
        options.browser.browser_modules.as_ref().context("--browser-modules is not given; see `make bench-network`")?;
    let clients = Clients::start(options, source, transport, &SYSTEMS).await?;
    rounds(options.run.rounds(), &SYSTEMS, async |system, round| {
        let site = temp_dir("site")?;
        let bytes = write_site(site.path(), 200 << 16 | (system as u64) << 8 | round as u64)?;
        let root = add(site.path())?;
        let before = source.passed(system, transport);
        let url = format!("{}{root}/index.html", clients.url(system, source)?);
        let mut node = Command::new("node");
        node.arg(SCRIPT).arg(modules).arg(&options.browser.chromium).arg(site.path()).arg(url);
        // The link needs this runtime meanwhile. The script ends by itself.
        let ran = tokio::task::spawn_blocking(move || timed::run(&mut node)).await??;
        source.check(system, transport, before, sent(bytes))?;
        let times: Vec<f64> = serde_json::from_str(&ran.stdout)?;
        Ok(times.first().context("no time was printed")? / 1e3)
    })
    .await
}

fn assets() -> usize {
    ASSETS.iter().map(|(_, count, _)| count).sum()
}

/// A page that needs all of its assets to load, and how many bytes they are.
fn write_site(dir: &Path, seed: u64) -> Result<usize> {
    let (mut head, mut body, mut total) = (String::new(), String::new(), 0);
    for (kind, count, len) in ASSETS {
        for n in 0..count {
            let name = format!("asset-{n}.{kind}");
            let filling = hexadecimal(len / 2, seed << 32 | total as u64);
            let text = match kind {
                "css" => {
                    writeln!(head, "<link rel=stylesheet href={name}>")?;
                    format!("/* {filling} */")
                }
                "js" => {
                    writeln!(head, "<script src={name} defer></script>")?;
                    format!("// {filling}")
                }
                _ => {
                    writeln!(body, "<img src={name} alt=\"\">")?;
                    format!(
                        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"9\" \
                         height=\"9\"><desc>{filling}</desc></svg>"
                    )
                }
            };
            total += text.len();
            std::fs::write(dir.join(name), text)?;
        }
    }
    let page = format!("<!DOCTYPE html>\n<title>{seed}</title>\n<link rel=icon href=\"data:,\">\n{head}{body}");
    std::fs::write(dir.join("index.html"), page)?;
    Ok(total)
}

fn hexadecimal(bytes: usize, seed: u64) -> String {
    sample::bytes(bytes, seed).iter().fold(String::new(), |mut text, byte| {
        // Strings grow.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[test]
fn a_site_names_every_asset_and_no_two_are_alike() {
    let dir = tempfile::TempDir::new().expect("the temporary directory is writable");
    let total = write_site(dir.path(), 7).expect("it is written");
    let page = std::fs::read_to_string(dir.path().join("index.html")).expect("it is there");
    let mut seen = std::collections::HashSet::new();
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir.path()).expect("it is a directory").flatten() {
        let name = entry.file_name().into_string().expect("names are ASCII");
        let content = std::fs::read(entry.path()).expect("it is there");
        if name != "index.html" {
            assert!(page.contains(&format!("={name}")), "{name}");
            bytes += content.len();
        }
        assert!(seen.insert(content), "{name} is like another");
    }
    assert_eq!((seen.len(), bytes), (41, total));
}
