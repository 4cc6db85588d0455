//! Many files that are on disk and not in memory, beside Kubo and its flatfs. The operating system's page cache is the
//! same for both.

use super::Options;
use super::under_load::{Target, rounds};
use super::world::Content;
use crate::comparison::{Case, System};
use crate::http::Client;
use crate::sample;
use crate::servers::Kubo;
use crate::trace::tier::bytes_served;
use crate::wrk::{PathList, Paths};
use anyhow::{Result, ensure};

/// The published median object.
const BYTES: u64 = 664_000;
const CONNECTIONS: usize = 32;
/// The least that the memory tier can be set to: as good as off.
const RAM_BYTES: &str = "1048576";
/// The share of bytes that may come from the memory tier all the same.
const RAM_SHARE_MAX: f64 = 0.05;

/// Files of 664 KB in random order.
pub async fn median(options: &Options) -> Result<Vec<Case>> {
    let count = usize::from(options.disk_files);
    let content = Content::make(options.seed, std::iter::repeat_n(BYTES, count))?;
    let causeway = content.causeway(options, &[("CAUSEWAY_CACHE_RAM_BYTES_MAX", RAM_BYTES)]).await?;
    let mut flatfs = false;
    let kubo = Kubo::start_with(&options.binaries.kubo, |settings| {
        flatfs = settings["Datastore"]["Spec"].to_string().contains("\"flatfs\"");
    });
    let kubo = kubo.await?;
    ensure!(flatfs, "Kubo's store is not flatfs");
    kubo.import(&content.archive())?;
    let client = Client::new()?;
    for file in &content.files {
        let expected = file.content()?;
        for server in [&causeway.server, &kubo.server] {
            client.get(&server.at(&file.path)).await?.of_content(&expected)?;
        }
    }
    let mut paths: Vec<&str> = content.files.iter().map(|file| file.path.as_str()).collect();
    sample::shuffle(&mut paths, options.seed);
    let drawn = PathList::new(paths.into_iter())?;
    let targets = [(System::Causeway, &causeway.server), (System::Kubo, &kubo.server)]
        .map(|(system, server)| Target::new(system, server, Paths::List(&drawn), Some(BYTES)));
    let before = bytes_served(&causeway.admin).await?;
    let series = rounds(options, CONNECTIONS, &targets).await?;
    let served = bytes_served(&causeway.admin).await?.since(before);
    let ram_share = served.ram as f64 / served.sum() as f64;
    ensure!(ram_share <= RAM_SHARE_MAX, "{:.1} % of the bytes came from the memory tier", ram_share * 100.0);
    let case = format!("664 KB from disk, {count} files, RAM tier off, {CONNECTIONS} clients");
    let case = Case::new(case, "requests/s", series);
    let against = case.against(System::Kubo).bar("1.5 × Kubo (flatfs)", 1.5).aim("2.5 ×", 2.5);
    let note = format!("the memory tier had {RAM_BYTES} bytes and served {:.2} % of all bytes", ram_share * 100.0);
    let case = case.measure(against).note(note);
    Ok(vec![case])
}
