//! Content that everybody holds in memory: small files by popularity, files of the published median size and of a mebibyte, a
//! page in a large directory, and what a client has already.

use super::Options;
use super::figures::{Case, Measure, Who};
use super::under_load::{Participant, rounds};
use super::world::{Client, Content, File, World};
use crate::archive::{self, PLAIN, importer};
use crate::sample::{self, SplitMix};
use crate::servers::{self, Causeway, Server, Setup};
use crate::wrk::{Asked, Drawn};
use crate::zipf::Zipf;
use anyhow::{Context, Result, ensure};
use content::Cid;
use std::path::Path;

/// Of small files.
const SMALL_BYTES: u64 = 4096;
const URLS: usize = 1000;
/// Requests of the list that `wrk` goes through: enough that the rarest URL is in it several times.
const DRAWN: usize = 1 << 16;
/// Connections where a row says nothing else.
const CONNECTIONS: usize = 32;
/// Entries of the directory, the page included.
const ENTRIES: u64 = 500;

/// 4 KiB, 1,000 URLs by Zipf, with few connections and with many.
pub async fn small(options: &Options) -> Result<Vec<Case>> {
    let content = Content::make(options.seed, std::iter::repeat_n(SMALL_BYTES, URLS))?;
    let world = World::start(options, &content).await?;
    world.warm(&content).await?;
    let drawn = by_zipf(options.seed, &content.files)?;
    let asked = Asked::Drawn(&drawn);
    let mut cases = Vec::new();
    for connections in [CONNECTIONS, 512] {
        let participant = |who, server| participant(who, server, asked, SMALL_BYTES);
        let participants = [
            participant(Who::Causeway, &world.causeway.server),
            participant(Who::NginxCache, &world.nginx),
            participant(Who::Kubo, &world.kubo.server),
        ];
        let series = rounds(options, connections, &participants)?;
        let case = format!("hot 4 KiB, {URLS} URLs by Zipf, {connections} connections");
        let mut case = Case::new(case, "requests/s", series);
        case.measures = vec![
            case.against(Who::NginxCache).bar("1.2 ×", 1.2).aim("1.5 ×", 1.5),
            case.against(Who::Kubo).bar("6 ×", 6.0),
        ];
        cases.push(case);
    }
    Ok(cases)
}

fn by_zipf(seed: u64, files: &[File]) -> Result<Drawn> {
    let (zipf, mut random) = (Zipf::new(files.len()), SplitMix::new(seed));
    Drawn::new((0..DRAWN).map(|_| files[zipf.draw(&mut random)].path.as_str()))
}

/// One file of so many bytes.
pub async fn large(options: &Options, name: &str, bytes: u64) -> Result<Vec<Case>> {
    let content = Content::make(options.seed, std::iter::once(bytes))?;
    let [file] = content.files.as_slice() else { anyhow::bail!("{} files were made", content.files.len()) };
    std::fs::write(content.folder().join("file.bin"), file.content()?)?;
    let world = World::start(options, &content).await?;
    world.warm(&content).await?;
    let static_path = "/files/file.bin";
    Client::new()?.expect(&world.nginx, static_path, &[], &file.content()?).await?;
    let participant = |who, server, path| participant(who, server, Asked::One(path), bytes);
    let participants = [
        participant(Who::Causeway, &world.causeway.server, &file.path),
        participant(Who::NginxCache, &world.nginx, &file.path),
        participant(Who::NginxStatic, &world.nginx, static_path),
        participant(Who::Kubo, &world.kubo.server, &file.path),
    ];
    let mut case = Case::new(format!("hot {name}"), "requests/s", rounds(options, CONNECTIONS, &participants)?);
    case.measures = vec![
        case.against(Who::NginxCache).bar("1.1 ×", 1.1).aim("1.4 ×", 1.4),
        case.against(Who::NginxStatic).aim("as fast with sendfile", 1.0),
        case.against(Who::Kubo),
    ];
    Ok(vec![case])
}

/// A page in a directory of 500 entries, beside the same file by its own CID.
pub async fn page(options: &Options) -> Result<Vec<Case>> {
    let dir = servers::folder("page")?;
    let archive = dir.path().join("site.car");
    let page = sample::bytes(usize::try_from(SMALL_BYTES)?, options.seed);
    let (site, file) = site(&archive, options.seed, &page)?;
    let setup = Setup { archive: Some(&archive), flags: options.flags(), ..Setup::default() };
    let causeway = Causeway::start(&options.binaries.causeway, setup).await?.server;
    let (file, by_path) = (format!("/ipfs/{file}"), format!("/ipfs/{site}/index.html"));
    let ways = [
        (Who::File, file.as_str(), Vec::new()),
        (Who::ByPath, by_path.as_str(), Vec::new()),
        (Who::BySubdomain, "/index.html", vec![format!("Host: {site}.ipfs.localhost")]),
    ];
    let client = Client::new()?;
    for (_, path, headers) in &ways {
        // Twice, so that the second answer is a remembered one.
        client.expect(&causeway, path, headers, &page).await?;
        client.expect(&causeway, path, headers, &page).await?;
    }
    let participants = ways.map(|(who, path, headers)| Participant {
        headers,
        ..participant(who, &causeway, Asked::One(path), SMALL_BYTES)
    });
    let series = rounds(options, CONNECTIONS, &participants)?;
    let mut case = Case::new(format!("hot page in a directory of {ENTRIES} entries"), "requests/s", series);
    let beside = |who, how| {
        Measure::of(case.ratio(who, Who::File), format!("× the file, {how}")).bar("0.85 ×", 0.85).aim("the same", 1.0)
    };
    case.measures = vec![beside(Who::ByPath, "by path"), beside(Who::BySubdomain, "by subdomain")];
    case.notes.push(format!("the page has {SMALL_BYTES} bytes: the smaller it is, the more the way to it weighs"));
    Ok(vec![case])
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

/// A file that the client has: 304.
pub async fn revalidation(options: &Options) -> Result<Vec<Case>> {
    let content = Content::make(options.seed, std::iter::once(SMALL_BYTES))?;
    let world = World::start(options, &content).await?;
    world.warm(&content).await?;
    let path = content.files.first().context("no file was made")?.path.as_str();
    let client = Client::new()?;
    let mut participants = Vec::new();
    for (who, server) in [(Who::Causeway, &world.causeway.server), (Who::NginxCache, &world.nginx)] {
        let answer = client.get(server, path, &[]).await?;
        let headers =
            vec![format!("If-None-Match: {}", answer.header("etag").with_context(|| format!("{who}: no ETag"))?)];
        let status = client.get(server, path, &headers).await?.status;
        ensure!(status == 304, "{who}: {status} for what has not changed");
        participants.push(Participant { headers, ..participant(who, server, Asked::One(path), 0) });
    }
    let series = rounds(options, CONNECTIONS, &participants)?;
    let mut case = Case::new("304 revalidation", "requests/s", series);
    case.measures = vec![case.against(Who::NginxCache).bar("1.3 ×", 1.3).aim("1.6 ×", 1.6)];
    Ok(vec![case])
}

fn participant<'a>(who: Who, server: &'a Server, asked: Asked<'a>, body_bytes: u64) -> Participant<'a> {
    Participant { who, server, asked, headers: Vec::new(), body_bytes: Some(body_bytes) }
}
