//! [`BlockWriter`]: writes the blocks of an upload to the cache, or pins them for an owner.
//!
//! Non-goals: importing files, which [`services::uploads`] does.

use crate::http::answer::ApiError;
use crate::kubo_rpc::Rpc;
use crate::kubo_rpc::call::Call;
use crate::kubo_rpc::problem::RpcError;
use axum::http::StatusCode;
use cache::add::AddError;
use content::dag::DagError;
use content::{Block, Cid, SourceError, Verdict};
use gateway::errors::Problem;
use services::access::Principal;
use services::pinning::adopt::{AdoptError, Adoption};
use services::pinning::{Meta, Owner, PinParameters, PinRequest, PinsError, RemainingQuota, Status};
use services::uploads::limits::UploadAllowance;
use services::uploads::{Destination, DestinationWriter, PinDetails, UploadError};
use std::sync::Arc;

/// Writes blocks for an owner, either all to the cache or all as pins.
pub struct BlockWriter<'a> {
    rpc: &'a Rpc,
    owner: Owner,
    /// The rest of the owner's quota in bytes, if there is one.
    room_bytes: Option<u64>,
    /// The limit of an upload.
    allowance: UploadAllowance,
    /// The number of bytes that were written.
    written: u64,
    keeping: DestinationWriter,
}

impl<'a> BlockWriter<'a> {
    /// Begins an upload.
    ///
    /// # Errors
    /// The owner's quota is used up, if blocks are to be pinned; or an error of the store.
    pub async fn begin(rpc: &'a Rpc, bearer: &Principal, pins: bool) -> Result<Self, RpcError> {
        let owner = Owner::from(bearer);
        let (destination, room) = if pins {
            (Destination::Pinned(PinDetails::default()), rpc.pins.room(&owner))
        } else {
            (Destination::Cached, RemainingQuota::default())
        };
        if room.pins == Some(0) {
            return Err(too_much("the token's quota of pins is used up: remove some pins".to_owned()));
        }
        let allowance = rpc.uploads.limits().allowance(&destination);
        let keeping = rpc.uploads.begin(destination).await?;
        Ok(Self { rpc, owner, room_bytes: room.bytes, allowance, written: 0, keeping })
    }

    /// The owner.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// Checks the number of bytes against the owner's quota.
    ///
    /// # Errors
    /// The bytes exceed the quota.
    pub fn check_room(&self, bytes: u64) -> Result<(), RpcError> {
        match self.room_bytes.filter(|room| bytes > *room) {
            Some(room) => Err(too_much(format!("the token's quota has only {room} bytes left: remove some pins"))),
            None => Ok(()),
        }
    }

    /// Checks a block against the policy.
    ///
    /// # Errors
    /// The policy withholds the block.
    pub fn check(&self, cid: &Cid) -> Result<(), RpcError> {
        match self.rpc.policy.check(cid) {
            Verdict::Allow => Ok(()),
            verdict => Err(Problem::Refused { cid: *cid, verdict }.into()),
        }
    }

    /// Writes a block.
    ///
    /// # Errors
    /// The policy withholds the block, the upload is too large, or the store failed.
    pub async fn put(&mut self, block: &Block) -> Result<(), RpcError> {
        self.check(block.cid())?;
        self.written = self.written.saturating_add(block.data().len() as u64);
        self.allowance.check(self.written)?;
        Ok(self.keeping.put(block).await?)
    }

    /// Writes a block to the cache, or pins the DAG below it, fetching its missing blocks.
    ///
    /// # Errors
    /// Like [`BlockWriter::put`], or the pin failed.
    pub async fn keep(&mut self, block: &Block, call: &Call) -> Result<(), RpcError> {
        self.check_room(block.data().len() as u64)?;
        self.put(block).await?;
        if !matches!(self.keeping, DestinationWriter::Pinned(..)) {
            return Ok(());
        }
        // Reports write errors now, so that an unwritten block is not taken for a missing one and fetched.
        self.settle().await?;
        match self.pin_held(*block.cid(), None).await {
            // The network may have the blocks below it.
            Err(PinFailure::Missing(_)) if !call.offline && self.rpc.bridge.is_some() => {
                self.rpc.pin(&self.owner, *block.cid(), None, None).await
            }
            pinned => pinned.map_err(RpcError::from),
        }
    }

    /// Waits until all written blocks are visible to reads.
    ///
    /// # Errors
    /// The cache did not keep all blocks, or the store failed.
    pub async fn settle(&mut self) -> Result<(), RpcError> {
        Ok(self.keeping.settle().await?)
    }

    /// Pins a root whose DAG is completely stored locally, without the network, as a cancellation-safe task.
    ///
    /// # Errors
    /// A block is missing, or the root cannot be pinned. Then no new pin stays.
    pub async fn pin_held(&self, root: Cid, name: Option<&str>) -> Result<(), PinFailure> {
        let (rpc, owner, name) = (self.rpc.clone(), self.owner.clone(), name.map(str::to_owned));
        let pinning = tokio::spawn(async move {
            let addition = rpc.uploads.begin_addition().await.map_err(RpcError::from)?;
            let adoption =
                Adoption { owner: &owner, name: name.as_deref(), meta: &Meta::new(), renames: false, import: None };
            match rpc.pins.adopt(addition, &[root], adoption).await {
                Ok(_) => Ok(()),
                Err(AdoptError::Add(error)) => Err(error.into()),
                Err(AdoptError::Pins(error)) => Err(RpcError::from(error).into()),
            }
        });
        pinning.await.unwrap_or_else(|_| Err(RpcError::stopping().into()))
    }
}

/// Why a root was not pinned.
#[derive(Debug)]
pub enum PinFailure {
    /// A block is not stored locally.
    Missing(Cid),
    /// Another error.
    Other(RpcError),
}

impl From<RpcError> for PinFailure {
    fn from(error: RpcError) -> Self {
        Self::Other(error)
    }
}

impl From<AddError> for PinFailure {
    fn from(error: AddError) -> Self {
        match error {
            AddError::Store(error) => Self::Other(error.into()),
            AddError::Missing { missing } => Self::Missing(missing),
            AddError::Pin { error, .. } => match missing(&error) {
                Some(cid) => Self::Missing(cid),
                None => Self::Other((*error).into()),
            },
        }
    }
}

impl From<PinFailure> for RpcError {
    fn from(error: PinFailure) -> Self {
        match error {
            PinFailure::Missing(cid) => Self::unprocessable(format!("{cid} is not stored locally")),
            PinFailure::Other(error) => error,
        }
    }
}

fn missing(error: &cache::PinError) -> Option<Cid> {
    let cache::PinError::Blocks(error) = error else { return None };
    match error.downcast_ref::<DagError>()? {
        DagError::Source(SourceError::NotFound { cid }) => Some(*cid),
        _ => None,
    }
}

impl From<UploadError> for RpcError {
    fn from(error: UploadError) -> Self {
        ApiError::from(error).into()
    }
}

fn too_much(message: String) -> RpcError {
    RpcError { status: StatusCode::INSUFFICIENT_STORAGE, message }
}

impl From<PinsError> for RpcError {
    fn from(error: PinsError) -> Self {
        let message = error.to_string();
        match error {
            PinsError::NotFound | PinsError::NotPinned { .. } | PinsError::TakenOver => Self::unprocessable(message),
            PinsError::Invalid(message) => Self::bad_request(message),
            PinsError::Quota(message) | PinsError::Full(message) => too_much(message),
            PinsError::Store(error) => error.into(),
        }
    }
}

/// A callback for the progress of a pin.
pub type OnProgress<'a> = &'a mut (dyn FnMut(&PinRequest) + Send);

impl Rpc {
    /// Pins a root for an owner, and waits until it is pinned. An existing request of the owner for the root is reused,
    /// and replaced if the name differs. If the caller drops the future, a new request is withdrawn.
    ///
    /// # Errors
    /// Why the root is not pinned.
    pub async fn pin(
        &self,
        owner: &Owner,
        root: Cid,
        name: Option<String>,
        on_progress: Option<OnProgress<'_>>,
    ) -> Result<(), RpcError> {
        let wanted = PinParameters { name: name.clone(), ..PinParameters::new(root) };
        let known = self.pins.of_root(&owner.id, &root).into_iter().find(|request| request.status != Status::Failed);
        match known {
            Some(known) if name.is_none() || known.name.as_deref() == name.as_deref() => {
                self.wait(&known.owner, &known.id, on_progress).await
            }
            Some(known) => {
                let replaced = self.pins.replace(owner, &known.id, wanted).await?;
                self.wait(&replaced.owner, &replaced.id, on_progress).await
            }
            None => {
                let request = self.pins.request(owner, wanted).await?;
                let mut pending = PendingPin { rpc: self.clone(), request: Some(request.clone()) };
                self.wait(&request.owner, &request.id, on_progress).await?;
                pending.request = None;
                Ok(())
            }
        }
    }

    /// Waits until a request is pinned.
    ///
    /// # Errors
    /// Why it failed.
    pub async fn wait(&self, owner: &str, id: &str, mut on_progress: Option<OnProgress<'_>>) -> Result<(), RpcError> {
        let report = |request: &PinRequest| {
            if let Some(on_progress) = &mut on_progress {
                on_progress(request);
            }
        };
        match self.pins.settled(owner, id, report).await {
            Ok(request) if request.status == Status::Pinned => Ok(()),
            Ok(request) => Err(RpcError::unprocessable(request.details.as_deref().unwrap_or("the pin failed"))),
            Err(_) => Err(RpcError::unprocessable("another request removed the pin meanwhile")),
        }
    }
}

/// A pin request that is withdrawn on drop.
struct PendingPin {
    rpc: Rpc,
    request: Option<PinRequest>,
}

impl Drop for PendingPin {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            let pins = Arc::clone(&self.rpc.pins);
            tokio::spawn(async move {
                if let Err(error) = pins.remove(&request.owner, &request.id).await {
                    tracing::debug!(root = %request.root, %error, "a pin request whose client disconnected could not \
                        be withdrawn");
                }
            });
        }
    }
}
