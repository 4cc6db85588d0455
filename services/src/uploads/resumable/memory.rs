//! [`PiecesMemory`]: the memory in which the pieces of resumable uploads are gathered.
//!
//! Goals: a piece is received for as long as its client likes, so that the pieces of all clients leave most of the
//! memory to what ends by itself, and those of one leave memory to those of others.
//!
//! Non-goals: the memory of decoders and of imports, which is reserved from the same budget.

use crate::client_budgets::ClientBudgets;
use crate::limiter::ClientKey;
use crate::uploads::UploadError;
use content::budget::{Budget, Share};
use std::sync::Arc;

/// One part in so many of the memory of uploads is for pieces.
const OF_UPLOADS: usize = 4;
/// One part in so many of that is for the pieces of one client.
const OF_PIECES: usize = 2;

/// The memory of all pieces that are being received.
pub struct PiecesMemory(ClientBudgets);

impl PiecesMemory {
    /// A part of the memory of uploads, which has so many bytes.
    pub fn new(uploads: &Arc<Budget>, bytes: usize) -> Self {
        let all = bytes / OF_UPLOADS;
        Self(ClientBudgets::within(Arc::clone(uploads), all, all / OF_PIECES))
    }

    /// Reserves memory for a piece of a client.
    ///
    /// # Errors
    /// [`UploadError::PiecesMemory`] when too little is left, for the client or for all.
    pub fn reserve(&self, client: impl Into<ClientKey>, bytes: usize) -> Result<Share, UploadError> {
        // Files need none.
        let budget = (bytes > 0).then(|| self.0.of(client));
        let mut share = Share::of(budget);
        if share.grow(bytes) { Ok(share) } else { Err(UploadError::PiecesMemory) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(name: &str) -> ClientKey {
        ClientKey::Token(name.into())
    }

    #[test]
    fn pieces_leave_memory_to_other_clients_and_to_imports() {
        let uploads = Arc::new(Budget::new(64));
        let memory = PiecesMemory::new(&uploads, 64);
        let first = memory.reserve(client("alice"), 8).expect("is free");
        let error = memory.reserve(client("alice"), 1).expect_err("she has her share");
        assert_eq!((error.status().as_u16(), error.failure().1), (503, error.to_string()));
        let second = memory.reserve(client("bob"), 8).expect("is free");
        assert!(memory.reserve(client("carol"), 1).is_err(), "pieces have their part");
        assert_eq!(uploads.left(), 48);
        assert_eq!(memory.reserve(client("carol"), 0).expect("needs none").bytes(), 0);
        drop((first, second));
        assert_eq!(uploads.left(), 64);
        // The memory of uploads may be used up by others.
        assert!(uploads.try_reserve(60) && memory.reserve(client("alice"), 8).is_err());
        assert!(memory.reserve(client("alice"), 4).is_ok());
    }
}
