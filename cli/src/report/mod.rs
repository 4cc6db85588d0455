//! `causeway report`: evaluates access logs, as section 6.3 of *Design and Evaluation of IPFS* (SIGCOMM 2022) does:
//! shares and latencies by tier, the request rate, the popularity of content, referrers, and distributions of latencies
//! and sizes.
//!
//! Goals: it needs no gateway and no data folder; it reads whatever format the gateway writes, and the combined logs
//! of other servers; memory is bounded, however long the logs are and whatever is in them; what is not exact says by
//! how much; a log can be made that can be published.
//!
//! | module | concern |
//! |---|---|
//! | `input` | files, compressed or not, line by line |
//! | `content_root` | the CID or name that a request is for |
//! | `agents` | families of user agents |
//! | `sketch` | counts, quantiles and distinct values in bounded memory |
//! | `summary` | what is counted of the records |
//! | `view` | the result as text and JSON |
//! | `charts`, `axis` | the result as SVG |
//! | `anonymise` | the log that can be published |

mod agents;
mod anonymise;
mod axis;
mod charts;
mod content_root;
mod input;
mod sketch;
mod summary;
mod view;

use crate::output::{print, print_json};
use anonymise::Anonymiser;
use anyhow::Context as _;
use clap::{Args, ValueEnum};
use input::Line;
use services::access_log::parse::{ParseError, parse};
use std::borrow::Cow;
use std::path::PathBuf;
use summary::Summary;
use view::ReportView;

const HELP: &str = "\
Examples:
  causeway report access.log
  causeway report --svg charts /var/log/causeway/access.log*
  journalctl -u causeway -o cat | causeway report -
  causeway report --anonymise published.jsonl access.log

Formats: the gateway's text, JSON and combined formats, the access log in the gateway's log (text, JSON, also from \
journald), and combined logs of nginx or Apache, which have no tiers and latencies. The format is detected for each \
line. Lines that cannot be read are counted. This needs no running gateway and no data folder.

Accuracy: requests, bytes and rates are exact. Quantiles are within 1 %. Roots are counted exactly up to 524,288 \
different ones (referrers: 65,536). With more, the counts that are shown may be too low by a number that is shown as \
well, at most requests * 2 / 524,288, and the number of different roots is an estimate, as that of clients is above \
4,096, with a standard error of 0.8 %.

The anonymised log (--anonymise) has one JSON object per request. It keeps: method, protocol, status, tier, whether \
the response was complete, the root CID or name, and the family of the user agent (such as \"Firefox\"). It rounds: \
times to the minute, sizes and durations to two digits. It replaces by hashes with a random key that is not stored: \
addresses (IPv6 networks of 64 bits) with the day, the path below the root, and referring sites. It removes: hosts, \
queries, the rest of user agents. What remains can be linked: the requests of one client on one day have the same \
hash, and a CID identifies its content; --hash-roots replaces roots as well.";

/// `causeway report`
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct ReportArgs {
    /// Access logs, also compressed (.gz, .zst); "-" is standard input
    #[arg(value_name = "LOG", required = true)]
    logs: Vec<PathBuf>,
    /// The format of the report
    #[arg(long, value_enum, default_value_t = ReportFormat::Text)]
    format: ReportFormat,
    /// Print JSON: the same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// The number of roots, referrers and user agents that are listed
    #[arg(long, value_name = "NUMBER", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=1000))]
    top: u32,
    /// Write charts to this folder as SVG files: requests, tiers, popularity, latency and sizes
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Write a log that can be published to this file, which must not exist
    #[arg(long, value_name = "OUT")]
    anonymise: Option<PathBuf>,
    /// In the anonymised log, replace root CIDs and names by hashes
    #[arg(long, requires = "anonymise")]
    hash_roots: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ReportFormat {
    /// Tables for people
    Text,
    /// One JSON object
    Json,
}

/// Evaluates access logs, and prints the report.
///
/// # Errors
/// When a log cannot be read or has no request, or when the charts or the anonymised log cannot be written.
pub fn run(args: &ReportArgs) -> anyhow::Result<()> {
    let view = execute(args)?;
    if args.json || args.format == ReportFormat::Json { print_json(&view) } else { print(&view.text()) }
}

/// Evaluates access logs, and writes charts and the anonymised log.
fn execute(args: &ReportArgs) -> anyhow::Result<ReportView> {
    let ReportArgs { logs, top, svg, anonymise, hash_roots, .. } = args;
    let mut anonymiser = anonymise.as_deref().map(|out| Anonymiser::create(out, *hash_roots)).transpose()?;
    let mut summary = Summary::default();
    for log in logs {
        let name = log.display().to_string();
        let mut number = 0_u64;
        input::for_each_line(log, &mut |line| {
            number += 1;
            add_line(&mut summary, anonymiser.as_mut(), line, &|| format!("{name}:{number}"))
        })
        .with_context(|| format!("{name} cannot be read"))?;
    }
    if let Some(why) = summary.why_empty() {
        anyhow::bail!("no line is a request ({} lines): {why}", summary.lines());
    }
    let view = ReportView::of(&summary, *top as usize);
    if let Some(dir) = svg {
        charts::write(dir, &view)?;
    }
    if let Some(anonymiser) = anonymiser {
        anonymiser.finish()?;
    }
    Ok(view)
}

/// Adds a line to the report and to the anonymised log. `place` is for messages.
fn add_line(
    summary: &mut Summary,
    anonymiser: Option<&mut Anonymiser>,
    line: Line<'_>,
    place: &dyn Fn() -> String,
) -> anyhow::Result<()> {
    let Line::Whole(bytes) = line else {
        summary.skip(place, "the line is too long");
        return Ok(());
    };
    let text: Cow<'_, str> = String::from_utf8_lossy(bytes);
    match parse(&text) {
        Ok(record) => {
            let root = content_root::of(&record);
            summary.add(&record, root.as_deref());
            anonymiser.map_or(Ok(()), |anonymiser| anonymiser.write(&record, root.as_deref()))
        }
        Err(ParseError::OtherLine) => {
            summary.other();
            Ok(())
        }
        Err(_) if text.trim().is_empty() => Ok(()),
        Err(error) => {
            summary.skip(place, &error.to_string());
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
