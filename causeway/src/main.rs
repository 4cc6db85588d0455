//! The `causeway` binary: a node from its start to its end, behind the command line.
//!
//! | module | concern |
//! |---|---|
//! | [`serve`], [`signals`] | `causeway serve`: settings, log, node, and what signals ask of it |
//! | [`node`] | the parts of a node: started in order, wired together, drained |
//! | [`network`] | the peer-to-peer network, or its absence |
//! | [`preflight`], [`reload`] | files that settings name, checked before a start and read again on SIGHUP |
//! | [`process`] | the release, and figures of the process |
//!
//! Non-goals: what requests are answered with (`gateway`, `admin`); what is stored and who may change it (`services`, `cache`).

mod network;
mod node;
mod preflight;
mod process;
mod reload;
mod serve;
mod signals;

use cli::command_line::Program;
use std::io::Write as _;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() {
    let program = Program { version: &process::VERSION_AND_COMMIT, serve: serve::serve, check: preflight::check };
    let code = cli::command_line::run(&program);
    _ = std::io::stdout().flush();
    // What has to outlive the process is synced by now. An ordinary exit would run RocksDB's static destructors under the
    // feet of readers and compactions that are still in the middle of something, and abort.
    signal_hook::low_level::exit(code)
}
