//! The `causeway` binary: the command line, and a node.
//!
//! | module | concern |
//! |---|---|
//! | [`serve`], [`signals`] | `causeway serve`: runs a node, and handles signals |
//! | [`node`] | starts, wires and drains the parts of a node |
//! | [`network`] | the peer-to-peer network, or offline mode |
//! | [`preflight`], [`reload`] | `causeway config check`; the reload on SIGHUP |
//! | [`notify`] | notifications to systemd |
//! | [`process`] | the version, and process metrics |
//!
//! Non-goals: answering requests (`gateway`, `admin`); storage and access control (`services`, `cache`).

mod network;
mod node;
mod notify;
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
    // All durable state is synced by now. `std::process::exit` would run RocksDB's static destructors while readers and
    // compactions are still running, and abort.
    signal_hook::low_level::exit(code)
}
