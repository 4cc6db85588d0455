//! New requests: what is asked for, what replaces something, and what was uploaded.

use crate::pinning::index::{Entry, Index, Outcome};
use crate::pinning::record;
use crate::pinning::request::{Meta, Owner, Request, Status, Wanted};
use crate::pinning::service::{FollowUp, Pins, PinsError, Protection, now_ms, progress};
use cache::{PinState, StoreError};
use content::Cid;
use libp2p::Multiaddr;
use std::sync::Arc;

/// The most that the names, metadata and origins of all requests may take in memory, in bytes.
const TEXT_BYTES_MAX: u64 = 256 * 1024 * 1024;

impl Pins {
    /// Asks for a DAG, which is fetched as soon as a worker is free.
    ///
    /// # Errors
    /// [`PinsError::Invalid`], [`PinsError::Quota`], [`PinsError::Full`] or [`PinsError::Store`].
    pub async fn request(self: &Arc<Self>, owner: &Owner, wanted: Wanted) -> Result<Request, PinsError> {
        self.add(owner, wanted, None).await
    }

    /// Asks for another DAG in the place of one that was asked for before. Blocks that both have stay all the time.
    ///
    /// # Errors
    /// As [`Pins::request`], and [`PinsError::NotFound`].
    pub async fn replace(self: &Arc<Self>, owner: &Owner, id: &str, wanted: Wanted) -> Result<Request, PinsError> {
        self.add(owner, wanted, Some(id.to_owned())).await
    }

    async fn add(
        self: &Arc<Self>,
        owner: &Owner,
        wanted: Wanted,
        replaced: Option<String>,
    ) -> Result<Request, PinsError> {
        wanted.check().map_err(PinsError::Invalid)?;
        let (pins, owner) = (Arc::clone(self), owner.clone());
        self.apart(async move { pins.add_now(&owner, wanted, replaced.as_deref()).await }).await
    }

    async fn add_now(
        self: &Arc<Self>,
        owner: &Owner,
        wanted: Wanted,
        replaced: Option<&str>,
    ) -> Result<Request, PinsError> {
        self.look_at(&wanted.root).await?;
        let (entry, replaced, left) = {
            let index = self.index();
            let replaced = match replaced {
                None => None,
                Some(id) => {
                    let entry = index.entry(id).filter(|entry| entry.owner == owner.id);
                    Some(entry.cloned().ok_or(PinsError::NotFound)?)
                }
            };
            self.check_room(&index, owner, &wanted, replaced.as_ref())?;
            let outcome = match index.root(&wanted.root) {
                Some(root) if root.complete => Outcome::Pinned,
                _ => Outcome::Pending,
            };
            let keeps =
                replaced.as_ref().filter(|_| outcome == Outcome::Pending).and_then(|former| match former.outcome {
                    Outcome::Pinned => Some(former.root),
                    Outcome::Pending => former.keeps,
                    Outcome::Withheld(_) => Some(former.root),
                    Outcome::Failed(_) => None,
                });
            let entry = self.entry(&index, owner, wanted, outcome, keeps)?;
            let left = index.left_by(replaced.iter().map(|former| (former, Some(&entry))));
            (entry, replaced, left)
        };
        let mut changes = vec![record::put(&entry)?, record::delete_orphan(&entry.root)];
        changes.extend(replaced.iter().map(|former| record::delete(&former.id)));
        self.write(changes, &left).await?;
        let pending = entry.outcome == Outcome::Pending;
        let (id, root, origins) = (Arc::clone(&entry.id), entry.root, entry.origins.clone());
        let shown = {
            let mut index = self.index_mut();
            index.insert(entry);
            if let Some(former) = replaced {
                index.remove(&former.id);
            }
            if pending {
                let now_ms = index.clock.now_ms();
                index.hurry(&root, now_ms);
            }
            index.get(&owner.id, &id)
        };
        self.drop_pins(left);
        let active = self.index().root(&root).is_some_and(|root| root.active);
        if pending && active && !origins.is_empty() {
            self.dial_apart(root, origins);
        }
        self.changed();
        shown.ok_or(PinsError::NotFound)
    }

    pub(super) fn entry(
        &self,
        index: &Index,
        owner: &Owner,
        wanted: Wanted,
        outcome: Outcome,
        keeps: Option<Cid>,
    ) -> Result<Entry, StoreError> {
        Ok(Entry {
            id: new_id()?,
            owner: Arc::clone(&owner.id),
            wanted: Arc::new(wanted),
            created_ms: index.next_created_ms(now_ms()),
            outcome,
            bytes_max: owner.bytes_max,
            keeps,
            taken_in: false,
        })
    }

    /// Whether an owner may have one more. What it replaces makes room for it, but for the bytes, which stay until it
    /// is here.
    fn check_room(
        &self,
        index: &Index,
        owner: &Owner,
        wanted: &Wanted,
        replaced: Option<&Entry>,
    ) -> Result<(), PinsError> {
        let former = u64::from(replaced.is_some());
        let (pins, bytes) = index.used(&owner.id);
        if let Some(most) = owner.pins_max.filter(|most| pins.saturating_sub(former) >= *most) {
            return Err(PinsError::Quota(format!("this token may have {most} pins, and has them: remove some")));
        }
        // What it has of this root counts already, and stays if it replaces another request for it.
        let has_it = index.is_live(&owner.id, &wanted.root);
        let further = index.root(&wanted.root).filter(|_| !has_it).map_or(0, |root| root.progress.bytes);
        let freed = replaced.filter(|former| former.root != wanted.root).map_or(0, |former| index.freed_by(former));
        let after = bytes.saturating_sub(freed).saturating_add(further);
        if let Some(most) = owner.bytes_max
            && (after > most || (after == most && further == 0 && !has_it))
        {
            let words = format!("this token may have {most} bytes pinned, and has {bytes}: remove some pins");
            return Err(PinsError::Quota(words));
        }
        let pins_max = self.options.pins_max;
        if index.count_of_all().saturating_sub(usize::from(replaced.is_some())) >= pins_max {
            return Err(PinsError::Full(format!("this service has as many pins as it may: {pins_max}")));
        }
        if index.text_bytes() >= TEXT_BYTES_MAX {
            return Err(PinsError::Full("the names and metadata of all pins take all of their memory".to_owned()));
        }
        Ok(())
    }

    /// Records a DAG that was pinned in the store a moment ago, by an upload or import. To keep somebody else from
    /// removing that pin before this is called, take [`Pins::protect`] before the store's pin is finished, and drop it
    /// after this.
    ///
    /// # Errors
    /// As [`Pins::request`], and [`PinsError::NotHeld`]. The store's pin stays: whoever made it decides what to do with
    /// it, or calls [`Pins::let_go`].
    pub async fn record(
        self: &Arc<Self>,
        owner: &Owner,
        root: Cid,
        name: Option<String>,
        meta: Meta,
    ) -> Result<Request, PinsError> {
        let wanted = Wanted { name, meta, ..Wanted::new(root) };
        wanted.check().map_err(PinsError::Invalid)?;
        let (pins, owner) = (Arc::clone(self), owner.clone());
        let protection = self.protect(root).await;
        self.apart(async move {
            let _protection = protection;
            let summary = pins.store.pin(&root).await?.filter(|pin| pin.state == PinState::Complete);
            let summary = summary.ok_or(PinsError::NotHeld { root })?;
            // So that its bytes count, and that it need not be fetched.
            pins.index_mut().note_progress(&root, progress(&summary), true);
            let added = pins.add_now(&owner, wanted, None).await;
            // Others may have waited for the same.
            pins.settle_complete(&root).await?;
            if added.is_ok() {
                pins.follow_ups().push(FollowUp::Announce(root));
            }
            added
        })
        .await
    }

    /// Records a DAG like that, unless the owner has it already: doing the same again changes nothing, but that a name
    /// replaces the one that it had.
    ///
    /// # Errors
    /// As [`Pins::record`].
    pub async fn record_once(
        self: &Arc<Self>,
        owner: &Owner,
        root: Cid,
        name: Option<String>,
    ) -> Result<Request, PinsError> {
        let looking = Arc::clone(self);
        self.apart(async move { looking.look_at(&root).await }).await?;
        let own = self.of_root(&owner.id, &root).into_iter().find(|request| request.status == Status::Pinned);
        match own {
            Some(own) if name.is_none() || own.name.as_deref() == name.as_deref() => Ok(own),
            Some(own) => {
                let wanted = Wanted { name, meta: Meta::clone(&own.meta), ..Wanted::new(root) };
                self.replace(owner, &own.id, wanted).await
            }
            None => self.record(owner, root, name, Meta::new()).await,
        }
    }

    /// Keeps the store's pin of a root from being removed. Waits if it is being removed already.
    pub async fn protect(self: &Arc<Self>, root: Cid) -> Protection {
        loop {
            let changes = {
                let mut index = self.index_mut();
                if !index.is_removing(&root) {
                    index.hold(root);
                    return Protection { pins: Arc::clone(self), root };
                }
                index.watch(&root)
            };
            if let Some(mut changes) = changes {
                _ = changes.changed().await;
            }
        }
    }

    /// Removes the store's pin of a root if nobody asked for it: for uploads that were refused after they were pinned.
    /// While somebody protects it, that waits.
    ///
    /// # Errors
    /// [`PinsError::Store`].
    pub async fn let_go(self: &Arc<Self>, root: Cid) -> Result<(), PinsError> {
        let pins = Arc::clone(self);
        self.apart(async move {
            if pins.index_mut().want_to_go(&root) {
                pins.write(Vec::new(), &[root]).await?;
                pins.drop_pins(vec![root]);
            }
            Ok(())
        })
        .await
    }

    /// Dials without waiting, unless that is done for several others already.
    fn dial_apart(self: &Arc<Self>, root: Cid, origins: Vec<Multiaddr>) {
        let Ok(place) = Arc::clone(&self.dials).try_acquire_owned() else { return };
        let pins = Arc::clone(self);
        tokio::spawn(async move {
            pins.reach.dial(&root, origins).await;
            drop(place);
        });
    }
}

/// 128 bits of the system's randomness.
fn new_id() -> Result<Arc<str>, StoreError> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| StoreError::Io(error.to_string().into()))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)).into())
}
