//! A DAG from a trustless gateway that is not ours.

use super::Bench;
use crate::comparison::{Case, Measure, System, rounds};
use crate::network::bulk::whole;
use crate::network::world::Remote;
use crate::sample;
use crate::servers::{Causeway, Kubo, Setup, Transport};
use anyhow::Result;

const BYTES: usize = 100 << 20;
const BLOCK_BYTES: usize = 256 << 10;
/// The setting with the gateways to fetch from.
const GATEWAYS: &str = "CAUSEWAY_P2P_GATEWAYS";
/// How many blocks were fetched one by one.
const BLOCKS_METRIC: &str = "causeway_http_source_requests_total{outcome=\"block\"}";

/// 100 MiB from a Kubo's gateway, which is the only source.
pub async fn car(bench: &Bench) -> Result<Vec<Case>> {
    let options = &bench.options;
    let source = Remote::<Kubo>::start(options, options.link()).await?;
    let content = sample::bytes(options.size(BYTES), 12);
    let path = source.node.add(&content)?;
    let url = source.url();
    let mut single_blocks = 0.0;
    let series = rounds(options.run.rounds(), &[System::Http, System::Causeway], async |system, _| {
        // Everything passes the link of HTTP.
        let before = source.passed(System::Http, Transport::Tcp);
        let seconds = if system == System::Http {
            whole(&url, &path, &content).await?
        } else {
            let settings = [(GATEWAYS, url.as_str())];
            let setup = Setup { flags: options.flags.get(), settings: &settings, ..Setup::default() };
            let client = Causeway::start(&options.binaries.causeway, setup).await?;
            let seconds = whole(&client.server.url, &path, &content).await?;
            // A source that was not asked for single blocks may have no such figure.
            single_blocks = client.metric(BLOCKS_METRIC).await.unwrap_or_default();
            seconds
        };
        source.check(System::Http, Transport::Tcp, before, content.len())?;
        Ok(seconds)
    });
    let name = format!("{} MiB cold from a Kubo's gateway over HTTP", content.len() >> 20);
    let case = Case::new(name, "s", series.await?);
    let of_http = case.value(System::Causeway) / case.value(System::Http);
    let case = case.measure(Measure::lower(of_http, "× HTTP").bar("1.5 × HTTP", 1.5));
    let leaves = content.len().div_ceil(BLOCK_BYTES);
    Ok(vec![if single_blocks < leaves as f64 {
        case.note(format!("{single_blocks} of {leaves} leaves and their parents were requested one by one"))
    } else {
        case.note(format!(
            "CARs as a source are not supported by this binary: {single_blocks} blocks were requested one by one"
        ))
    }])
}
