//! `causeway serve`: runs a node, and handles signals.

use crate::node::{Node, Ready};
use crate::notify;
use crate::signals::{SignalAction, Signals};
use cli::command_line::{read, runtime};
use cli::output::{EXIT_FAILURE, EXIT_FORCED, print};
use config::{Flags, Loaded};
use services::logging::{self, chain};
use services::supervision::EssentialTaskEnded;
use std::time::Duration;

/// Runs a node until a signal or an operator stops it.
///
/// # Errors
/// When it cannot be started, or an essential task has ended.
pub fn serve(flags: &Flags) -> anyhow::Result<()> {
    let loaded = read(flags)?;
    logging::start(&loaded)?;
    // Each connection takes a file descriptor, and the default soft limit is far below the hard limit.
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
    let runtime = runtime()?;
    let result = runtime.block_on(run_until_stopped(&loaded, flags));
    // Tasks that still run after the drain are not awaited.
    runtime.shutdown_background();
    result
}

async fn run_until_stopped(loaded: &Loaded, flags: &Flags) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let node = tokio::select! {
        node = Node::start(loaded) => node?,
        () = signals.stop() => return Ok(()),
    };
    print(&Ready(&node.addresses).to_string())?;
    notify::ready();
    loop {
        tokio::select! {
            action = signals.next() => match action {
                SignalAction::Stop => break,
                // A reload may fetch lists, which a stop does not wait for.
                SignalAction::Reload => tokio::select! {
                    () = reload(&node, loaded, flags) => {}
                    () = signals.stop() => break,
                    () = node.asked_to_stop() => break,
                    failure = node.failed() => return Err(drain_after(failure, node).await),
                },
            },
            () = node.asked_to_stop() => break,
            failure = node.failed() => return Err(drain_after(failure, node).await),
        }
    }
    tracing::info!("draining; a second signal ends the process immediately");
    notify::stopping();
    let draining = async {
        tokio::select! {
            () = node.announce_end() => {}
            failure = node.failed() => return Err(drain_after(failure, node).await),
        }
        node.drain().await
    };
    tokio::select! {
        result = draining => result,
        // Not `std::process::exit`, which runs RocksDB's destructors and waits for compactions.
        () = signals.stop() => signal_hook::low_level::exit(EXIT_FORCED),
    }
}

async fn reload(node: &Node, running: &Loaded, flags: &Flags) {
    notify::reloading();
    node.reload(running, flags).await;
    notify::ready();
}

/// The drain timeout after an essential task has ended.
const FAILED_DRAIN_MAX: Duration = Duration::from_secs(10);

/// Drains a node after an essential task has ended. Quickly, so that a service manager can restart the process.
async fn drain_after(failure: EssentialTaskEnded, node: Node) -> anyhow::Error {
    match tokio::time::timeout(FAILED_DRAIN_MAX, node.drain()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(error = chain(&error), "the drain failed"),
        Err(_) => {
            tracing::error!("the drain timed out; ending the process immediately");
            signal_hook::low_level::exit(EXIT_FAILURE);
        }
    }
    failure.into()
}
