//! The `causeway` binary.

use clap::Parser as _;
use std::io::Write as _;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() {
    let code = gateway::commands::cli::run(gateway::commands::cli::Cli::parse());
    _ = std::io::stdout().flush();
    // What has to outlive the process is synced by now. An ordinary exit would run RocksDB's static destructors under the
    // feet of readers and compactions that are still in the middle of something, and abort.
    signal_hook::low_level::exit(code)
}
