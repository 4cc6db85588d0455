//! The `causeway` binary.

use clap::Parser as _;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    gateway::cli::run(gateway::cli::Cli::parse())
}
