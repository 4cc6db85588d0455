//! The steps of [`super::SharedBlocks`], in simulated orders.

mod memory;
mod simulation;

use super::{BlockIndex, index_suite};
use memory::{Services, SimulatedIndex};
use std::sync::Arc;

/// The index that the simulation compares with is one.
#[tokio::test]
async fn the_simulated_index_is_a_block_index() {
    index_suite::check_all(&|| Arc::new(SimulatedIndex(Services::immediate())) as Arc<dyn BlockIndex>).await;
}
