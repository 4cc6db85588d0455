//! Whether the memory tier keeps to its budget while the working set is several times as large: resident memory over
//! what the same process takes under the same load with the tier as good as off.

use super::Options;
use super::under_load::{Target, rounds};
use super::world::Content;
use crate::comparison::{Case, Measure, System};
use crate::random::SplitMix;
use crate::wrk::{PathList, Paths};
use crate::zipf::Zipf;
use anyhow::Result;

/// Many sizes, so that what is evicted and what is admitted in its place rarely have the same size.
const SIZES: [u64; 6] = [1 << 10, 10_000, 70_000, 200_000, 664_000, 3 << 20];
const FILES: usize = 1800;
const CONNECTIONS: usize = 128;
const BUDGET: u64 = 256 << 20;
/// The least that the tier can be set to.
const OFF: u64 = 1 << 20;
/// What the budget may be exceeded by: 32 MiB, or 5 % of it if that is more.
const OVER: u64 = 32 << 20;
/// Requests of the list that `wrk` goes through.
const DRAWN: usize = 1 << 15;
const MIB: f64 = (1 << 20) as f64;

/// Files of several times the budget, by Zipf.
pub async fn budget(options: &Options) -> Result<Vec<Case>> {
    let files = if options.run.quick { 60 } else { FILES };
    let sizes = (0..files).map(|index| SIZES[index % SIZES.len()]);
    let content = Content::make(options.seed, sizes)?;
    let (zipf, mut random) = (Zipf::new(files), SplitMix::new(options.seed));
    let drawn = PathList::new((0..DRAWN).map(|_| content.files[zipf.draw(&mut random)].path.as_str()))?;
    let (mut peaks, mut series) = (Vec::new(), Vec::new());
    for ram in [OFF, BUDGET] {
        let ram = ram.to_string();
        let causeway = content.causeway(options, &[("CAUSEWAY_CACHE_RAM_BYTES_MAX", &ram)]).await?;
        // Sizes differ, so that the number of requests does not tell the number of bytes.
        let target = Target::new(System::Causeway, &causeway.server, Paths::List(&drawn), None);
        series = rounds(options, CONNECTIONS, &[target]).await?;
        peaks.push(causeway.server.process.resident_peak()? as f64 / MIB);
    }
    let (off, on) = (peaks[0], peaks[1]);
    let bytes: u64 = content.files.iter().map(|file| file.object.bytes).sum();
    let name = format!("the memory tier's budget of {} MiB, {} MB requested", BUDGET >> 20, bytes / 1_000_000);
    let limit = ((BUDGET + OVER.max(BUDGET / 20)) as f64) / MIB;
    let measure = Measure::lower(on - off, "MiB more than without it").bar(format!("< {limit:.0}"), limit);
    let note = format!("resident at the peak: {on:.0} MiB with the tier, {off:.0} MiB with one of 1 MiB");
    Ok(vec![Case::new(name, "requests/s", series).measure(measure).note(note)])
}
