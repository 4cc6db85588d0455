//! A page with 40 assets, whole, in Chromium.

use super::Options;
use super::latency::{Clients, SYSTEMS};
use super::world::Remote;
use crate::comparison::{Case, Measure, System, rounds};
use crate::directory::temp_dir;
use crate::sample;
use crate::servers::{Kubo, Transport};
use crate::timed;
use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/browser/page-time.mjs");
/// Style sheets, scripts and pictures.
const ASSETS: [(&str, usize, usize); 3] = [("css", 4, 30_000), ("js", 6, 60_000), ("svg", 30, 20_000)];

/// From the navigation to the end of the load event.
pub async fn page(options: &Options, transport: Transport) -> Result<Case> {
    let modules =
        options.browser_modules.as_ref().context("--browser-modules is not given; see `make bench-network`")?;
    let source = Remote::<Kubo>::start(options, options.link()).await?;
    let clients = Clients::start(options, &source, transport).await?;
    let series = rounds(options.run.rounds(), &SYSTEMS, async |system, round| {
        let site = temp_dir("site")?;
        let bytes = write_site(site.path(), 200 << 16 | (system as u64) << 8 | round as u64)?;
        let root = source.node.add_directory(site.path())?;
        let before = source.passed(system, transport);
        let url = format!("{}{root}/index.html", clients.url(system, &source)?);
        let mut node = Command::new("node");
        node.arg(SCRIPT).arg(modules).arg(&options.chromium).arg(site.path()).arg(url);
        // The link needs this runtime meanwhile. The script ends by itself.
        let ran = tokio::task::spawn_blocking(move || timed::run(&mut node)).await??;
        source.check(system, transport, before, bytes)?;
        let times: Vec<f64> = serde_json::from_str(&ran.stdout)?;
        Ok(times.first().context("no time was printed")? / 1e3)
    });
    let name = format!("a cold page with {} assets, whole, in Chromium, {}", assets(), transport.name());
    let case = Case::new(name, "s", series.await?);
    let kubo = case.value(System::Kubo);
    let measure = Measure::lower(case.value(System::Causeway), "s")
        .bar("half of Kubo's", kubo / 2.0)
        .aim("a quarter", kubo / 4.0);
    Ok(case.measure(measure).note("over HTTP the browser has six connections with the source's gateway"))
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
