//! [`Keeper`]: what takes blocks in for somebody, and keeps them as the cache does or as a pin.
//!
//! Non-goals: files, which [`services::uploads`] makes blocks of.

use crate::http::answer::Refusal;
use crate::kubo_rpc::Rpc;
use crate::kubo_rpc::call::Call;
use crate::kubo_rpc::problem::RpcError;
use axum::http::StatusCode;
use cache::add::AddError;
use content::dag::DagError;
use content::{Block, Cid, SourceError, Verdict};
use gateway::errors::Problem;
use services::access::Principal;
use services::pinning::{Meta, Owner, PinsError, Request, Room, Status, Wanted};
use services::uploads::body::Allowance;
use services::uploads::{Keep, Keeping, UploadError};
use std::sync::Arc;
use std::time::Duration;

/// How often is looked whether a pin is done: at first, and after a while.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// Takes blocks in for somebody: all of them as pins, or all of them to the cache.
pub struct Keeper<'a> {
    rpc: &'a Rpc,
    owner: Owner,
    /// What may be pinned for them, in bytes, if there is a limit.
    room_bytes: Option<u64>,
    /// What anybody may send.
    bounds: Allowance,
    /// What was put, in bytes.
    came: u64,
    keeping: Keeping,
}

impl<'a> Keeper<'a> {
    /// Begins.
    ///
    /// # Errors
    /// That nothing more may be pinned for them, if it is to be; and what the disk said.
    pub async fn begin(rpc: &'a Rpc, bearer: &Principal, pins: bool) -> Result<Self, RpcError> {
        let owner = Owner::from(bearer);
        let (keep, room) = if pins { (Keep::Pinned, rpc.pins.room(&owner)) } else { (Keep::Cached, Room::default()) };
        if room.pins == Some(0) {
            return Err(too_much("this token has as many pins as it may: remove some".to_owned()));
        }
        let (bounds, keeping) = (rpc.uploads.bounds(keep), rpc.uploads.begin(keep).await?);
        Ok(Self { rpc, owner, room_bytes: room.bytes, bounds, came: 0, keeping })
    }

    /// Who it is for.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// That so many bytes may be taken in.
    ///
    /// # Errors
    /// That they may not.
    pub fn check_room(&self, bytes: u64) -> Result<(), RpcError> {
        match self.room_bytes.filter(|room| bytes > *room) {
            Some(room) => Err(too_much(format!("this token has room for {room} bytes more: remove some pins"))),
            None => Ok(()),
        }
    }

    /// That a block may be here.
    ///
    /// # Errors
    /// What the policy says.
    pub fn check(&self, cid: &Cid) -> Result<(), RpcError> {
        match self.rpc.policy.check(cid) {
            Verdict::Allow => Ok(()),
            verdict => Err(Problem::Refused { cid: *cid, verdict }.into()),
        }
    }

    /// Takes a block.
    ///
    /// # Errors
    /// What the policy says, or the disk; and that too much came.
    pub async fn put(&mut self, block: &Block) -> Result<(), RpcError> {
        self.check(block.cid())?;
        self.came = self.came.saturating_add(block.data().len() as u64);
        self.bounds.check(self.came)?;
        Ok(self.keeping.put(block).await?)
    }

    /// Keeps a block: in the cache, or with everything below it as a pin.
    ///
    /// # Errors
    /// Why that is not possible.
    pub async fn keep(&mut self, block: &Block, call: &Call) -> Result<(), RpcError> {
        self.check_room(block.data().len() as u64)?;
        self.put(block).await?;
        if !matches!(self.keeping, Keeping::Pinned(_)) {
            return Ok(());
        }
        // What the disk refused is not taken for something that has to be fetched.
        self.settle().await?;
        match self.pin_held(*block.cid(), None).await {
            // What is below it may be elsewhere.
            Err(Unpinned::Missing(_)) if !call.offline && self.rpc.bridge.is_some() => {
                self.rpc.pin(&self.owner, *block.cid(), None, None).await
            }
            pinned => pinned.map_err(RpcError::from),
        }
    }

    /// Done when everybody finds what was put.
    ///
    /// # Errors
    /// That the cache did not keep all of it, or what the disk said.
    pub async fn settle(&mut self) -> Result<(), RpcError> {
        Ok(self.keeping.settle().await?)
    }

    /// Pins what is here in full, and asks nobody for the rest. Whoever does not wait does not end that.
    ///
    /// # Errors
    /// That something is missing, or it may not be pinned. It is not pinned then, unless it was.
    pub async fn pin_held(&self, root: Cid, name: Option<&str>) -> Result<(), Unpinned> {
        let (rpc, owner, name) = (self.rpc.clone(), self.owner.clone(), name.map(str::to_owned));
        let pinning = tokio::spawn(async move {
            let protection = rpc.pins.protect(root);
            let pinned = rpc.pin_whole(&owner, root, name).await;
            drop(protection);
            if pinned.is_err() {
                rpc.pins.let_go(root).await.map_err(RpcError::from)?;
            }
            pinned
        });
        pinning.await.unwrap_or_else(|_| Err(RpcError::stopping().into()))
    }
}

/// Why something was not pinned.
#[derive(Debug)]
pub enum Unpinned {
    /// A block is not here.
    Missing(Cid),
    /// Something else.
    Other(RpcError),
}

impl From<RpcError> for Unpinned {
    fn from(error: RpcError) -> Self {
        Self::Other(error)
    }
}

impl From<AddError> for Unpinned {
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

impl From<Unpinned> for RpcError {
    fn from(error: Unpinned) -> Self {
        match error {
            Unpinned::Missing(cid) => Self::cannot(format!("{cid} is not here")),
            Unpinned::Other(error) => error,
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
        Refusal::from(error).into()
    }
}

fn too_much(message: String) -> RpcError {
    RpcError { status: StatusCode::INSUFFICIENT_STORAGE, message }
}

impl From<PinsError> for RpcError {
    fn from(error: PinsError) -> Self {
        let words = error.to_string();
        match error {
            PinsError::NotFound | PinsError::NotHeld { .. } => Self::cannot(words),
            PinsError::Invalid(words) => Self::bad(words),
            PinsError::Quota(words) | PinsError::Full(words) => too_much(words),
            PinsError::Store(error) => error.into(),
        }
    }
}

/// Who is told how far a pin has come.
pub type OnProgress<'a> = &'a mut (dyn FnMut(&Request) + Send);

impl Rpc {
    /// Pins a root in the store, and puts that down as somebody's.
    async fn pin_whole(&self, owner: &Owner, root: Cid, name: Option<String>) -> Result<(), Unpinned> {
        let addition = self.uploads.begin_addition().await.map_err(RpcError::from)?;
        addition.pin(&[root], name.as_deref()).await?;
        self.pins.record(owner, root, name, Meta::new()).await.map_err(RpcError::from)?;
        Ok(())
    }

    /// Has a root pinned for somebody, and waits until it is. What they asked for before is not asked for again, and another
    /// name replaces the one that it has. Whoever does not wait to the end has asked for nothing.
    ///
    /// # Errors
    /// Why it is not pinned.
    pub async fn pin(
        &self,
        owner: &Owner,
        root: Cid,
        name: Option<String>,
        on_progress: Option<OnProgress<'_>>,
    ) -> Result<(), RpcError> {
        let wanted = Wanted { name: name.clone(), ..Wanted::new(root) };
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
                let mut asked = Asked { rpc: self.clone(), request: Some(request.clone()) };
                self.wait(&request.owner, &request.id, on_progress).await?;
                asked.request = None;
                Ok(())
            }
        }
    }

    /// Waits until a request is done.
    ///
    /// # Errors
    /// Why it failed.
    pub async fn wait(&self, owner: &str, id: &str, mut on_progress: Option<OnProgress<'_>>) -> Result<(), RpcError> {
        let (mut every, longest) = LOOK_EVERY;
        loop {
            let request = self.pins.get(owner, id).ok_or_else(|| RpcError::cannot("the pin was removed meanwhile"))?;
            match request.status {
                Status::Pinned => return Ok(()),
                Status::Failed => {
                    return Err(RpcError::cannot(request.details.as_deref().unwrap_or("it could not be pinned")));
                }
                Status::Queued | Status::Pinning => {}
            }
            if let Some(on_progress) = &mut on_progress {
                on_progress(&request);
            }
            tokio::time::sleep(every).await;
            every = (2 * every).min(longest);
        }
    }
}

/// A request that is taken back if nobody waits for it.
struct Asked {
    rpc: Rpc,
    request: Option<Request>,
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            let pins = Arc::clone(&self.rpc.pins);
            tokio::spawn(async move {
                if let Err(error) = pins.remove(&request.owner, &request.id).await {
                    tracing::debug!(root = %request.root, %error, "a pin that nobody waits for stays");
                }
            });
        }
    }
}
