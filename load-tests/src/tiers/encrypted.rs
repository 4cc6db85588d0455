//! Hot small files over TLS, by HTTP/1.1 and HTTP/2, and handshakes: beside an nginx with the same certificate, whose
//! cache has the same files.

use super::Options;
use super::hot::{SMALL_BYTES, URLS, by_zipf};
use super::under_load::{Target, rounds};
use super::world::Content;
use crate::certificate::Certificate;
use crate::comparison::{self, Case, System, Turn};
use crate::http::Client;
use crate::servers::{self, Server};
use crate::wrk::Paths;
use crate::{h2load, handshakes};
use anyhow::{Context, Result, ensure};

/// Over HTTP/1.1.
const CONNECTIONS: usize = 32;
/// Over HTTP/2, with the streams of each: as many requests at a time, and as many as pages of a site have.
const SHAPES: [(usize, usize); 2] = [(8, 4), (8, 32)];

/// A server with TLS.
struct Encrypted<'a> {
    system: System,
    server: &'a Server,
    url: &'a str,
}

/// 4 KiB, 1,000 URLs by Zipf.
pub async fn small(options: &Options) -> Result<Vec<Case>> {
    let content = Content::make(options.seed, std::iter::repeat_n(SMALL_BYTES, URLS))?;
    let certificate = Certificate::make()?;
    let (path, key) = (certificate.path().display().to_string(), certificate.key().display().to_string());
    let settings = [
        ("CAUSEWAY_HTTP_TLS_LISTEN", "127.0.0.1:0"),
        ("CAUSEWAY_HTTP_TLS_CERTIFICATE", path.as_str()),
        ("CAUSEWAY_HTTP_TLS_KEY", key.as_str()),
    ];
    let causeway = content.causeway(options, &settings).await?;
    let (nginx, nginx_url) = servers::encrypted_nginx(&causeway.server.url, content.directory(), &certificate).await?;
    let causeway_url = causeway.encrypted.as_deref().context("Causeway has no listener with TLS")?;
    let servers = [
        Encrypted { system: System::Causeway, server: &causeway.server, url: causeway_url },
        Encrypted { system: System::NginxCache, server: &nginx, url: &nginx_url },
    ];
    warm(&content, &servers).await?;
    let drawn = by_zipf(options.seed, &content.files)?;

    let targets = servers.each_ref().map(|Encrypted { system, server, url }| Target {
        url,
        ..Target::new(*system, server, Paths::List(&drawn), Some(SMALL_BYTES))
    });
    let series = rounds(options, CONNECTIONS, &targets).await?;
    let name = format!("hot 4 KiB over TLS and HTTP/1.1, {URLS} URLs by Zipf, {CONNECTIONS} connections");
    let mut cases = vec![Case::new(name, "requests/s", series)];
    let mut encryption = Vec::new();
    for (connections, streams) in SHAPES {
        let series = turns(options, &servers, |url| {
            let load = h2load::Load { url, paths: &drawn, connections, streams, seconds: options.seconds };
            let run = h2load::run(&load)?;
            check(&run, connections * streams)?;
            encryption.push(run.encryption);
            Ok((run.requests, run.requests_per_second))
        });
        let name =
            format!("hot 4 KiB over HTTP/2, {URLS} URLs by Zipf, {connections} connections of {streams} streams");
        cases.push(Case::new(name, "requests/s", series.await?));
    }
    encryption.dedup();
    ensure!(encryption.len() == 1, "the servers encrypt differently: {encryption:?}");
    let series = turns(options, &servers, |url| {
        let run = handshakes::run(url, options.seconds)?;
        Ok((run.handshakes, run.per_second))
    });
    cases.push(Case::new("TLS handshakes, one at a time", "handshakes/s", series.await?));

    let judged = cases.into_iter().map(|case| {
        let (rate, cpu) = (case.against(System::NginxCache), case.cpu_against(System::NginxCache));
        case.measure(rate.aim("as fast", 1.0)).measure(cpu.aim("less CPU time", 1.0))
    });
    let mut cases: Vec<Case> = judged.collect();
    if let Some(last) = cases.last_mut() {
        let how = format!(
            "over HTTP/2: h2load {} -D{}, {}; handshakes: openssl {} -time {}, whose own work limits their number, so \
             that the CPU time tells more",
            h2load::ARGUMENTS.join(" "),
            options.seconds,
            encryption.concat(),
            handshakes::ARGUMENTS.join(" "),
            options.seconds,
        );
        last.notes.push(how);
    }
    Ok(cases)
}

/// Requests every file over TLS twice from each server.
async fn warm(content: &Content, servers: &[Encrypted<'_>]) -> Result<()> {
    let client = Client::trusting_any_certificate()?;
    for file in &content.files {
        let expected = file.content()?;
        for Encrypted { url, .. } in servers {
            let url = format!("{url}{}", file.path);
            client.get(&url).await?.of_content(&expected)?;
            let response = client.get(&url).await?.of_content(&expected)?;
            ensure!(response.header("x-cache").is_none_or(|cache| cache == "HIT"), "nginx does not cache {url}");
        }
    }
    Ok(())
}

/// Every server once in each round, under a load that returns how many there were, and how many a second.
async fn turns(
    options: &Options,
    servers: &[Encrypted<'_>],
    mut load: impl FnMut(&str) -> Result<(u64, f64)>,
) -> Result<Vec<comparison::Series>> {
    let systems: Vec<System> = servers.iter().map(|server| server.system).collect();
    comparison::rounds(options.run.rounds(), &systems, async |system, _| {
        let found = servers.iter().find(|server| server.system == system).context("a system without a server")?;
        let before = found.server.process.cpu();
        let (count, value) = load(found.url)?;
        let cpu = found.server.process.cpu().saturating_sub(before);
        Ok(Turn { value, cpu_microseconds: cpu.as_secs_f64() * 1e6 / count.max(1) as f64, latency: None })
    })
    .await
}

/// Whether as many bytes were received as so many responses have.
fn check(run: &h2load::Run, at_once: usize) -> Result<()> {
    let (least, most) = (run.requests * SMALL_BYTES, (run.requests + at_once as u64) * SMALL_BYTES);
    let h2load::Run { requests, body_bytes, .. } = run;
    ensure!(*requests > 0 && (least..=most).contains(body_bytes), "{requests} responses have {body_bytes} bytes");
    Ok(())
}
