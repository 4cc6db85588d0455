//! Content that every server has in memory: small files by popularity, files of the published median size and of a
//! mebibyte, a page in a large directory, and revalidation.

use super::Options;
use super::under_load::{Target, rounds};
use super::world::{Content, File, World};
use crate::archive::{self, PLAIN, importer};
use crate::comparison::{Case, Measure, System};
use crate::directory::temp_dir;
use crate::http::Client;
use crate::random::SplitMix;
use crate::sample;
use crate::servers::{Causeway, Setup};
use crate::wrk::{PathList, Paths};
use crate::zipf::Zipf;
use anyhow::{Context, Result};
use content::Cid;
use std::path::Path;

/// Of small files.
pub(super) const SMALL_BYTES: u64 = 4096;
pub(super) const URLS: usize = 1000;
/// Requests of the list that `wrk` goes through: enough that the rarest URL is in it several times.
const DRAWN: usize = 1 << 16;
/// Connections, unless a row says otherwise.
const CONNECTIONS: usize = 32;
/// Entries of the directory, the page included.
const ENTRIES: u64 = 500;

/// 4 KiB, 1,000 URLs by Zipf, with few connections and with many.
pub async fn small(options: &Options) -> Result<Vec<Case>> {
    let content = Content::make(options.seed, std::iter::repeat_n(SMALL_BYTES, URLS))?;
    let world = World::start(options, &content).await?;
    world.warm(&content).await?;
    let drawn = by_zipf(options.seed, &content.files)?;
    let paths = Paths::List(&drawn);
    let mut cases = Vec::new();
    for connections in [CONNECTIONS, 512] {
        let servers = [
            (System::Causeway, &world.causeway.server),
            (System::NginxCache, &world.nginx),
            (System::Kubo, &world.kubo.server),
        ];
        let targets = servers.map(|(system, server)| Target::new(system, server, paths, Some(SMALL_BYTES)));
        let series = rounds(options, connections, &targets).await?;
        let case = format!("hot 4 KiB, {URLS} URLs by Zipf, {connections} connections");
        let case = Case::new(case, "requests/s", series);
        let nginx = case.against(System::NginxCache).bar("1.2 ×", 1.2).aim("1.5 ×", 1.5);
        let kubo = case.against(System::Kubo).bar("6 ×", 6.0);
        cases.push(case.measure(nginx).measure(kubo));
    }
    Ok(cases)
}

/// Requests of the files, the first of them most often.
pub fn by_zipf(seed: u64, files: &[File]) -> Result<PathList> {
    let (zipf, mut random) = (Zipf::new(files.len()), SplitMix::new(seed));
    PathList::new((0..DRAWN).map(|_| files[zipf.draw(&mut random)].path.as_str()))
}

/// One file of so many bytes.
pub async fn large(options: &Options, name: &str, bytes: u64) -> Result<Vec<Case>> {
    let content = Content::make(options.seed, std::iter::once(bytes))?;
    let [file] = content.files.as_slice() else { anyhow::bail!("{} files were made", content.files.len()) };
    std::fs::write(content.directory().join("file.bin"), file.content()?)?;
    let world = World::start(options, &content).await?;
    world.warm(&content).await?;
    let static_path = "/files/file.bin";
    Client::new()?.get(&world.nginx.at(static_path)).await?.of_content(&file.content()?)?;
    let target = |system, server, path| Target::new(system, server, Paths::One(path), Some(bytes));
    let targets = [
        target(System::Causeway, &world.causeway.server, &file.path),
        target(System::NginxCache, &world.nginx, &file.path),
        target(System::NginxStatic, &world.nginx, static_path),
        target(System::Kubo, &world.kubo.server, &file.path),
    ];
    let case = Case::new(format!("hot {name}"), "requests/s", rounds(options, CONNECTIONS, &targets).await?);
    let cache = case.against(System::NginxCache).bar("1.1 ×", 1.1).aim("1.4 ×", 1.4);
    let sendfile = case.against(System::NginxStatic).aim("as fast with sendfile", 1.0);
    let kubo = case.against(System::Kubo);
    Ok(vec![case.measure(cache).measure(sendfile).measure(kubo)])
}

/// A page in a directory of 500 entries, beside the same file by its own CID.
pub async fn page(options: &Options) -> Result<Vec<Case>> {
    let dir = temp_dir("page")?;
    let archive = dir.path().join("site.car");
    let page = sample::bytes(usize::try_from(SMALL_BYTES)?, options.seed);
    let (site, file) = site(&archive, options.seed, &page)?;
    let setup = Setup { archive: Some(&archive), flags: options.flags.get(), ..Setup::default() };
    let causeway = Causeway::start(&options.binaries.causeway, setup).await?.server;
    let (file, by_path) = (format!("/ipfs/{file}"), format!("/ipfs/{site}/index.html"));
    let ways = [
        (System::File, file.as_str(), Vec::new()),
        (System::ByPath, by_path.as_str(), Vec::new()),
        (System::BySubdomain, "/index.html", vec![format!("Host: {site}.ipfs.localhost")]),
    ];
    let client = Client::new()?;
    for (_, path, headers) in &ways {
        // Twice, so that the second response is a cached one.
        for _ in 0..2 {
            client.request(&causeway.at(path), headers).await?.of_status(200)?.of_content(&page)?;
        }
    }
    let targets = ways.map(|(system, path, headers)| Target {
        headers,
        ..Target::new(system, &causeway, Paths::One(path), Some(SMALL_BYTES))
    });
    let series = rounds(options, CONNECTIONS, &targets).await?;
    let case = Case::new(format!("hot page in a directory of {ENTRIES} entries"), "requests/s", series);
    let of_file = |system, how| {
        let ratio = case.value(system) / case.value(System::File);
        Measure::higher(ratio, format!("× the file, {how}")).bar("0.85 ×", 0.85).aim("the same", 1.0)
    };
    let (by_path, by_subdomain) = (of_file(System::ByPath, "by path"), of_file(System::BySubdomain, "by subdomain"));
    let note = format!("the page has {SMALL_BYTES} bytes: the smaller it is, the more path resolution weighs");
    Ok(vec![case.measure(by_path).measure(by_subdomain).note(note)])
}

/// Writes a directory of pages, one of them `page`. Returns the CIDs of both.
fn site(archive: &Path, seed: u64, page: &[u8]) -> Result<(Cid, Cid)> {
    archive::write(archive, |sink| {
        let importer = importer()?;
        let mut directory = importer.directory(PLAIN);
        let index = archive::file(&importer, page, sink)?;
        directory.add(b"index.html", &index)?;
        for number in 1..ENTRIES {
            let other = archive::file(&importer, &sample::bytes(1000, seed + number), sink)?;
            directory.add(format!("page-{number:03}.html").as_bytes(), &other)?;
        }
        let root = directory.finish(sink)?.cid;
        Ok((root, (root, index.cid)))
    })
}

/// Revalidation of a file that the client has: 304.
pub async fn revalidation(options: &Options) -> Result<Vec<Case>> {
    let content = Content::make(options.seed, std::iter::once(SMALL_BYTES))?;
    let world = World::start(options, &content).await?;
    world.warm(&content).await?;
    let path = content.files.first().context("no file was made")?.path.as_str();
    let client = Client::new()?;
    let mut targets = Vec::new();
    for (system, server) in [(System::Causeway, &world.causeway.server), (System::NginxCache, &world.nginx)] {
        let response = client.get(&server.at(path)).await?;
        let etag = response.header("etag").with_context(|| format!("{system}: no ETag"))?;
        let headers = vec![format!("If-None-Match: {etag}")];
        client.request(&server.at(path), &headers).await?.of_status(304)?;
        targets.push(Target { headers, ..Target::new(system, server, Paths::One(path), Some(0)) });
    }
    let case = Case::new("304 revalidation", "requests/s", rounds(options, CONNECTIONS, &targets).await?);
    let nginx = case.against(System::NginxCache).bar("1.3 ×", 1.3).aim("1.6 ×", 1.6);
    Ok(vec![case.measure(nginx)])
}
