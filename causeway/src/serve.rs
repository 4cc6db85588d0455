//! `causeway serve`: a node from its start to its end, and what signals ask of it.

use crate::node::{Node, Ready};
use crate::signals::{Signals, Wanted};
use cli::command_line::{read, runtime};
use cli::output::{EXIT_FAILURE, EXIT_FORCED, print};
use config::{Flags, Loaded};
use services::logging::{self, chain};
use services::supervision::EssentialTaskEnded;
use std::time::Duration;

/// Runs a node until a signal or an operator ends it.
///
/// # Errors
/// When it cannot be started, or a task that it cannot do without has ended.
pub fn serve(flags: &Flags) -> anyhow::Result<()> {
    let loaded = read(flags)?;
    logging::start(&loaded)?;
    // A connection is a file: the soft limit that most systems set is far below what they allow.
    if let Err(error) = rlimit::increase_nofile_limit(u64::MAX) {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
    let runtime = runtime()?;
    let result = runtime.block_on(until_signalled(&loaded, flags));
    // Whatever still runs after the drain is not waited for.
    runtime.shutdown_background();
    result
}

async fn until_signalled(loaded: &Loaded, flags: &Flags) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let node = tokio::select! {
        node = Node::start(loaded) => node?,
        () = signals.end() => return Ok(()),
    };
    print(&Ready(&node.addresses).to_string())?;
    loop {
        tokio::select! {
            wanted = signals.next() => match wanted {
                Wanted::End => break,
                // Lists may be fetched meanwhile, which an end does not wait for.
                Wanted::Reload => tokio::select! {
                    () = node.reload(loaded, read(flags)) => {}
                    () = signals.end() => break,
                    () = node.asked_to_stop() => break,
                    failure = node.failed() => return Err(end_after(failure, node).await),
                },
            },
            () = node.asked_to_stop() => break,
            failure = node.failed() => return Err(end_after(failure, node).await),
        }
    }
    tracing::info!("draining; a second signal ends the process at once");
    tokio::select! {
        result = node.drain() => result,
        // Not `std::process::exit`: it runs RocksDB's destructors, which wait for compactions.
        () = signals.end() => signal_hook::low_level::exit(EXIT_FORCED),
    }
}

/// How long a node of which a part is gone may take to end.
const FAILED_DRAIN_MAX: Duration = Duration::from_secs(10);

/// Ends a node of which a part is gone, in good order as far as that is still possible: soon, for as long as it answers nothing,
/// nobody starts it again.
async fn end_after(failure: EssentialTaskEnded, node: Node) -> anyhow::Error {
    match tokio::time::timeout(FAILED_DRAIN_MAX, node.drain()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(error = chain(&error), "the end was not an orderly one"),
        Err(_) => {
            tracing::error!("the process ends at once: what is left of it did not end in time");
            signal_hook::low_level::exit(EXIT_FAILURE);
        }
    }
    failure.into()
}
