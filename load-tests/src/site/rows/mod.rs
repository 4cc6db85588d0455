//! What a gateway of a site takes by the number of rows in the database: its memory and its start, lists, look-ups, new
//! pins and removals, and the comparison of a part of the storage with the index.
//!
//! Goals: the real binary, asked over HTTP, on a PostgreSQL server with a hundredth, a tenth and all of the rows. What
//! does not grow with them is called flat: with all rows it takes at most 1.5 times as much as with a hundredth.
//!
//! Non-goals: blocks that are read, since the rows are of blocks without objects; several gateways; a cold page cache.
//!
//! | module | concern |
//! |---|---|
//! | [`filling`] | the rows |
//! | [`figures`] | what is measured, as cases |

mod figures;
mod filling;

use self::figures::{Figures, Quantity, Site};
use self::filling::{Rows, fill_slot, request_id, requested_at, table_bytes};
use super::Options;
use super::gateways::Shared;
use super::postgres::Postgres;
use crate::comparison::{Case, System};
use crate::directory::temp_dir;
use crate::random::SplitMix;
use crate::servers::{Causeway, Setup, token};
use crate::tiers::world::{Content, File};
use anyhow::{Context, Result, ensure};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The sites, by the part of the rows that they have.
const SITES: [(System, &str, u64); 3] =
    [(System::RowsHundredth, "hundredth", 100), (System::RowsTenth, "tenth", 10), (System::RowsAll, "all", 1)];
/// A server as operators set it up for so many rows: the defaults are for a few megabytes.
const SETTINGS: &str = "shared_buffers = '2GB'\nmax_wal_size = '2GB'\ncheckpoint_timeout = '15min'\n";
/// Nothing is announced or searched for.
const FLAGS: [&str; 2] = ["--dht", "off"];
/// Of the content.
const SEED: u64 = 26;
/// Bytes of a new pin, which is one block.
const FILE_BYTES: u64 = 16 << 10;
/// Blocks that are looked up at once.
const LOOK_UP: usize = 256;
/// Pins on a page.
const PAGE: u64 = 100;
/// For what is waited for.
const TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Between attempts to compare the storage with the index, which are written to the audit log.
const COMPARE_INTERVAL: Duration = Duration::from_millis(50);

pub async fn measure(options: &Options) -> Result<Vec<Case>> {
    let database = Postgres::start_with(if options.run.quick { "" } else { SETTINGS }).await?;
    let content = Content::make(SEED, std::iter::repeat_n(FILE_BYTES, options.turns() * SITES.len()))?;
    let archive = content.archive();
    let setup = Setup { archive: Some(&archive), flags: FLAGS.to_vec(), ..Setup::default() };
    let source = Causeway::start(&options.binaries.causeway, setup).await?;
    let mut figures = Figures::default();
    for ((system, name, part), files) in SITES.into_iter().zip(content.files.chunks(options.turns())) {
        let rows = Rows::of(options.block_rows() / part);
        ensure!(rows.pins() >= options.turns() as u64, "{} block rows are too few", options.block_rows());
        eprintln!("  {} block rows of {} pins …", rows.blocks, rows.pins());
        let begun = Instant::now();
        let filled = Filled::new(options, &database, system, name, rows).await?;
        eprintln!("  filled after {:.0} s", begun.elapsed().as_secs_f64());
        filled.starts(&mut figures).await?;
        filled.work(&mut figures, &source, files).await?;
        figures.add(Site { system, rows, table_bytes: table_bytes(&database, &filled.schema)? });
        database.script(&format!("DROP SCHEMA \"{}\" CASCADE", filled.schema))?;
    }
    Ok(figures.cases())
}

/// A site whose tables have rows.
struct Filled<'a> {
    options: &'a Options,
    database: &'a Postgres,
    system: System,
    rows: Rows,
    shared: Shared,
    schema: String,
}

impl<'a> Filled<'a> {
    async fn new(options: &'a Options, database: &'a Postgres, system: System, name: &str, rows: Rows) -> Result<Self> {
        let shared = Shared::new(name, database)?;
        let filled = Self { options, database, system, rows, shared, schema: format!("causeway_{name}") };
        // It creates the tables, and marks the storage.
        drop(filled.start(&[]).await?);
        let dir = temp_dir("rows")?;
        rows.fill(database, &filled.schema, dir.path())?;
        Ok(filled)
    }

    /// A gateway with an empty disk.
    async fn start(&self, peers: &[String]) -> Result<Causeway> {
        self.shared.start(self.options, Setup { peers, flags: FLAGS.to_vec(), ..Setup::default() }).await
    }

    /// The time until a gateway is ready, and the memory that it has then and needed until then.
    async fn starts(&self, figures: &mut Figures) -> Result<()> {
        for round in 0..self.options.run.rounds() {
            let begun = Instant::now();
            let gateway = self.start(&[]).await?;
            until_ready(&gateway).await?;
            figures.time(Quantity::Start, self.system, round, begun.elapsed());
            let process = &gateway.server.process;
            process.settled_cpu().await?;
            figures.memory(Quantity::StartMemory, self.system, round, process.resident()?);
            figures.memory(Quantity::StartPeak, self.system, round, process.resident_peak()?);
        }
        Ok(())
    }

    /// What a gateway does, each several times; and its memory after that.
    async fn work(&self, figures: &mut Figures, source: &Causeway, files: &[File]) -> Result<()> {
        let gateway = self.start(&[source.multiaddr()?]).await?;
        until_ready(&gateway).await?;
        let admin = Admin::of(&gateway)?;
        self.lists(figures, &admin).await?;
        self.look_ups(figures, &admin).await?;
        self.amounts(figures, &admin).await?;
        for (turn, file) in files.iter().enumerate() {
            let took = pin(&admin, file.path.trim_start_matches("/ipfs/")).await?;
            figures.time(Quantity::Pin, self.system, turn, took);
        }
        self.removals(figures, &admin).await?;
        self.slot(figures, &admin).await?;
        gateway.server.process.settled_cpu().await?;
        figures.memory(Quantity::WorkMemory, self.system, 0, gateway.server.process.resident()?);
        Ok(())
    }

    /// A page at the beginning, in the middle and at the end, of the pins of all owners and of those of a token.
    async fn lists(&self, figures: &mut Figures, admin: &Admin) -> Result<()> {
        let last = PAGE.min(self.rows.pins());
        let pages = [
            (Quantity::FirstPage, Quantity::OwnFirstPage, None),
            (Quantity::MiddlePage, Quantity::OwnMiddlePage, Some(self.rows.pins() / 2)),
            (Quantity::LastPage, Quantity::OwnLastPage, Some(last)),
        ];
        for (of_all, own, before) in pages {
            let expected = before.unwrap_or(self.rows.pins());
            let mut page = format!("/api/v1/pins?limit={PAGE}");
            let mut own_page = format!("/psa/pins?limit={PAGE}");
            if let Some(pin) = before.filter(|pin| *pin < self.rows.pins()) {
                page += &format!("&older_than={}", request_id(pin));
                own_page += &format!("&before={}", requested_at(pin)?);
            }
            for turn in 0..self.options.turns() {
                for (quantity, path) in [(of_all, &page), (own, &own_page)] {
                    let (took, listed) = admin.get(path).await?;
                    ensure!(listed["count"] == expected, "{path}: {} of {expected} pins", listed["count"]);
                    figures.time(quantity, self.system, turn, took);
                }
            }
        }
        Ok(())
    }

    /// Whether the site has blocks, other ones in each turn.
    async fn look_ups(&self, figures: &mut Figures, admin: &Admin) -> Result<()> {
        let mut random = SplitMix::new(SEED);
        for turn in 0..self.options.turns() {
            let question = json!({ "cids": self.rows.random_cids(&mut random, LOOK_UP)? });
            let (took, answer) = admin.call(Method::POST, "/api/v1/store/have", Some(question)).await?;
            let held = answer["held"].as_array().map_or(0, |held| held.iter().filter(|held| **held == true).count());
            ensure!(held == LOOK_UP, "{held} of {LOOK_UP} blocks are found");
            figures.time(Quantity::LookUp, self.system, turn, took);
        }
        Ok(())
    }

    async fn amounts(&self, figures: &mut Figures, admin: &Admin) -> Result<()> {
        for turn in 0..self.options.turns() {
            let (took, site) = admin.get("/api/v1/site").await?;
            let [pins, blocks] = ["pins", "pinned_blocks"].map(|amount| site[amount].as_u64().unwrap_or_default());
            // The welcome page is pinned as well.
            ensure!(pins > self.rows.pins() && blocks > self.rows.blocks, "{site}");
            figures.time(Quantity::Amounts, self.system, turn, took);
        }
        Ok(())
    }

    /// Removes pins: until that is answered, and until their blocks have none any more.
    async fn removals(&self, figures: &mut Figures, admin: &Admin) -> Result<()> {
        for turn in 0..self.options.turns() {
            let before = pinned_blocks(admin).await?;
            // Spread over all of them.
            let removed = turn as u64 * self.rows.pins() / self.options.turns() as u64;
            let begun = Instant::now();
            let path = format!("/psa/pins/{}", request_id(removed));
            let (took, _) = admin.call(Method::DELETE, &path, None).await?;
            figures.time(Quantity::Removal, self.system, turn, took);
            while pinned_blocks(admin).await? > before.saturating_sub(self.rows.blocks_of_a_pin()) {
                ensure!(begun.elapsed() < TIMEOUT, "the blocks of a removed pin are still pinned");
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            figures.time(Quantity::Release, self.system, turn, begun.elapsed());
        }
        Ok(())
    }

    /// Compares the objects of one slot with the index, without changing anything.
    async fn slot(&self, figures: &mut Figures, admin: &Admin) -> Result<()> {
        let objects = fill_slot(self.database, &self.schema, self.shared.storage())?;
        for round in 0..self.options.run.rounds() {
            let (took, found) = admin.first_slot().await?;
            ensure!(found["objects"] == objects && found["lost_blocks"] == 0, "{objects} objects: {found}");
            figures.time_of_each(Quantity::Slot, self.system, round, took, objects);
        }
        Ok(())
    }
}

async fn until_ready(gateway: &Causeway) -> Result<()> {
    let (client, begun) = (crate::http::Client::new()?, Instant::now());
    while client.request(&gateway.server.at("/readyz"), &[]).await?.status != 200 {
        ensure!(begun.elapsed() < TIMEOUT, "the gateway is not ready");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Pins a DAG that a peer has, and waits until it is pinned.
async fn pin(admin: &Admin, cid: &str) -> Result<Duration> {
    let begun = Instant::now();
    let (_, requested) = admin.call(Method::POST, "/psa/pins", Some(json!({ "cid": cid }))).await?;
    let path = format!("/psa/pins/{}", requested["requestid"].as_str().context("a request without an ID")?);
    loop {
        let (_, shown) = admin.get(&path).await?;
        if shown["status"] == "pinned" {
            return Ok(begun.elapsed());
        }
        ensure!(begun.elapsed() < TIMEOUT, "a pin does not complete: {shown}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

async fn pinned_blocks(admin: &Admin) -> Result<u64> {
    admin.get("/api/v1/site").await?.1["pinned_blocks"].as_u64().context("no number of blocks")
}

/// The admin listener of a gateway.
struct Admin {
    http: Client,
    url: String,
}

impl Admin {
    fn of(gateway: &Causeway) -> Result<Self> {
        let http = Client::builder().no_proxy().timeout(TIMEOUT).build()?;
        Ok(Self { http, url: gateway.admin.trim_end_matches('/').to_owned() })
    }

    async fn get(&self, path: &str) -> Result<(Duration, Value)> {
        self.call(Method::GET, path, None).await
    }

    /// A response in JSON, null if it has no body, and the time until it was complete.
    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Result<(Duration, Value)> {
        let mut request = self.http.request(method, format!("{}{path}", self.url)).bearer_auth(token());
        if let Some(body) = body {
            request = request.header("Content-Type", "application/json").body(body.to_string());
        }
        let begun = Instant::now();
        let response = request.send().await?;
        let (status, text) = (response.status(), response.text().await?);
        let took = begun.elapsed();
        ensure!(status.is_success(), "{path}: {status}: {text}");
        Ok((took, if text.is_empty() { Value::Null } else { serde_json::from_str(&text)? }))
    }

    /// What a comparison of the storage with the index has found in the first slot. Then it is ended.
    async fn first_slot(&self) -> Result<(Duration, Value)> {
        let waiting = Instant::now();
        loop {
            let begun = Instant::now();
            let line = self.compare().await?;
            let took = begun.elapsed();
            if line["progress"]["parts"] == 1 {
                return Ok((took, line["progress"].clone()));
            }
            // The one before has not ended yet.
            ensure!(waiting.elapsed() < TIMEOUT, "the storage is not compared with the index: {line}");
            tokio::time::sleep(COMPARE_INTERVAL).await;
        }
    }

    /// Begins such a comparison, and returns the first line of the response, or the error.
    async fn compare(&self) -> Result<Value> {
        let request = self.http.post(format!("{}/api/v1/site/reconcile", self.url)).bearer_auth(token());
        let request = request.header("Content-Type", "application/json").body(json!({ "dry_run": true }).to_string());
        let mut response = request.send().await?;
        match response.status().is_success() {
            true => Ok(serde_json::from_str(&first_line(&mut response).await?)?),
            false => Ok(response.text().await?.into()),
        }
    }
}

async fn first_line(response: &mut reqwest::Response) -> Result<String> {
    let mut received = Vec::new();
    while !received.contains(&b'\n') {
        received.extend_from_slice(&response.chunk().await?.context("no line")?);
    }
    let line = received.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Ok(String::from_utf8(line.to_vec())?)
}
