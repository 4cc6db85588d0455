//! Creation of requests: new ones, replacements, and those for uploads.
//!
//! Goals: those of an upload are created together or not at all, and once, also if its import runs again
//! ([`crate::pinning::repeatable`]).

use crate::pinning::index::{Index, PinOutcome, StoredRequest};
use crate::pinning::record::PinChange;
use crate::pinning::repeatable::RepeatableImport;
use crate::pinning::request::{Meta, Owner, PinParameters, PinRequest, Status};
use crate::pinning::service::{FollowUp, Pins, PinsError, Protection, now_ms, progress};
use cache::{PinState, StoreError};
use content::Cid;
use libp2p::Multiaddr;
use std::sync::Arc;

/// The maximum memory of the names, metadata and origins of all requests, in bytes.
const TEXT_BYTES_MAX: u64 = 256 * 1024 * 1024;

impl Pins {
    /// Requests a DAG, which is fetched as soon as a worker is free.
    ///
    /// # Errors
    /// [`PinsError::Invalid`], [`PinsError::Quota`], [`PinsError::Full`] or [`PinsError::Store`].
    pub async fn request(self: &Arc<Self>, owner: &Owner, wanted: PinParameters) -> Result<PinRequest, PinsError> {
        self.add(owner, wanted, None).await
    }

    /// Replaces a request by one for another DAG. Blocks that both have are kept throughout.
    ///
    /// # Errors
    /// As [`Pins::request`], and [`PinsError::NotFound`].
    pub async fn replace(
        self: &Arc<Self>,
        owner: &Owner,
        id: &str,
        wanted: PinParameters,
    ) -> Result<PinRequest, PinsError> {
        self.add(owner, wanted, Some(id.to_owned())).await
    }

    async fn add(
        self: &Arc<Self>,
        owner: &Owner,
        wanted: PinParameters,
        replaced: Option<String>,
    ) -> Result<PinRequest, PinsError> {
        wanted.check().map_err(PinsError::Invalid)?;
        let (pins, owner) = (Arc::clone(self), owner.clone());
        self.spawn_change(async move { pins.add_now(&owner, wanted, replaced.as_deref(), false).await }).await
    }

    /// Adds a request; `pinned` ones only if the DAG is stored completely.
    async fn add_now(
        self: &Arc<Self>,
        owner: &Owner,
        wanted: PinParameters,
        replaced: Option<&str>,
        pinned: bool,
    ) -> Result<PinRequest, PinsError> {
        let wanted = Arc::new(wanted);
        self.refresh(&wanted.root).await?;
        let decide = |index: &Index| {
            let (entry, changes) = self.decide(index, owner, &wanted, replaced)?;
            match pinned && entry.outcome != PinOutcome::Pinned {
                true => Err(PinsError::NotPinned { root: entry.root }),
                false => Ok((changes, entry)),
            }
        };
        let (request, is_fetched) = self.commit_with(decide, apply).await?;
        // A worker that fetches the root already does not know its origins.
        if is_fetched && !wanted.origins.is_empty() {
            self.spawn_dial(wanted.root, wanted.origins.clone());
        }
        self.changed();
        request.ok_or(PinsError::NotFound)
    }

    /// Decides what becomes of a new request.
    fn decide(
        &self,
        index: &Index,
        owner: &Owner,
        wanted: &Arc<PinParameters>,
        replaced: Option<&str>,
    ) -> Result<(StoredRequest, Vec<PinChange>), PinsError> {
        let own = |id: &str| index.entry(id).filter(|entry| entry.owner == owner.id);
        let replaced = replaced.map(|id| own(id).ok_or(PinsError::NotFound)).transpose()?;
        self.check_quota(index, owner, &Further { roots: vec![wanted.root], requests: 1 }, replaced)?;
        let is_removing = index.is_removing(&wanted.root);
        let outcome = match index.root(&wanted.root) {
            Some(root) if root.complete && !is_removing => PinOutcome::Pinned,
            // The missing blocks are not fetched until the rules change.
            _ => index.withheld(&wanted.root).map_or(PinOutcome::Pending, PinOutcome::Withheld),
        };
        // The former DAG stays until the new one is complete.
        let keeps = replaced.filter(|_| outcome == PinOutcome::Pending).and_then(|former| match former.outcome {
            PinOutcome::Pinned | PinOutcome::Withheld(_) => Some(former.root),
            PinOutcome::Pending => former.keeps,
            PinOutcome::Failed(_) => None,
        });
        let entry = self.entry(index, owner, Arc::clone(wanted), outcome, keeps)?;
        let mut changes = vec![PinChange::Request(entry.clone())];
        // A removal in progress is completed first.
        changes.extend((!is_removing).then_some(PinChange::RemoveOrphan(wanted.root)));
        changes.extend(replaced.map(|former| PinChange::RemoveRequest(Arc::clone(&former.id))));
        Ok((entry, changes))
    }

    pub(super) fn entry(
        &self,
        index: &Index,
        owner: &Owner,
        wanted: Arc<PinParameters>,
        outcome: PinOutcome,
        keeps: Option<Cid>,
    ) -> Result<StoredRequest, StoreError> {
        Ok(StoredRequest {
            id: new_id()?,
            owner: Arc::clone(&owner.id),
            wanted,
            created_ms: index.next_created_ms(now_ms()),
            outcome,
            bytes_max: owner.bytes_max,
            keeps,
            taken_in: false,
        })
    }

    /// Checks whether the quota allows further requests. A replaced request frees its share, except for the bytes,
    /// which are kept until the replacement is complete.
    fn check_quota(
        &self,
        index: &Index,
        owner: &Owner,
        further: &Further,
        replaced: Option<&StoredRequest>,
    ) -> Result<(), PinsError> {
        let (former, count) = (usize::from(replaced.is_some()), further.requests);
        let (pins, bytes) = index.used(&owner.id);
        let pins_after = pins.saturating_sub(former as u64).saturating_add(count as u64);
        if let Some(most) = owner.pins_max.filter(|most| count > 0 && pins_after > *most) {
            return Err(PinsError::Quota(format!("the token has reached its quota of {most} pins: remove some")));
        }
        // The stored bytes of a root that the owner already has count already, and stay after a replacement.
        let new: Vec<&Cid> = further.roots.iter().filter(|root| !index.is_live(&owner.id, root)).collect();
        let bytes_of = |root: &&Cid| index.root(root).map_or(0, |root| root.progress.bytes);
        let added = new.iter().map(bytes_of).fold(0, u64::saturating_add);
        let freed = replaced.filter(|former| !further.roots.contains(&former.root));
        let freed = freed.map_or(0, |former| index.freed_by(former));
        let after = bytes.saturating_sub(freed).saturating_add(added);
        if let Some(most) = owner.bytes_max
            && (after > most || (after == most && added == 0 && !new.is_empty()))
        {
            let words = format!("the token has {bytes} bytes pinned, with a quota of {most} bytes: remove some pins");
            return Err(PinsError::Quota(words));
        }
        let pins_max = self.options.pins_max;
        if count > 0 && index.count_of_all().saturating_sub(former).saturating_add(count) > pins_max {
            return Err(PinsError::Full(format!("the service has reached its maximum of {pins_max} pins")));
        }
        if index.text_bytes() >= TEXT_BYTES_MAX {
            return Err(PinsError::Full("the names and metadata of all pins use up the memory for them".to_owned()));
        }
        Ok(())
    }

    /// Records a request for a DAG that an upload or import has just pinned in the store. To keep others from removing
    /// that pin before this is called, call [`Pins::protect`] before the store's pin is finished, and drop the
    /// protection after this.
    ///
    /// # Errors
    /// As [`Pins::request`], and [`PinsError::NotPinned`]. The store's pin is kept: the caller decides what to do with
    /// it, or calls [`Pins::remove_unneeded`].
    pub async fn record(
        self: &Arc<Self>,
        owner: &Owner,
        root: Cid,
        name: Option<String>,
        meta: Meta,
    ) -> Result<PinRequest, PinsError> {
        let wanted = PinParameters { name, meta, ..PinParameters::new(root) };
        wanted.check().map_err(PinsError::Invalid)?;
        let (pins, owner) = (Arc::clone(self), owner.clone());
        let protection = self.protect(root).await;
        self.spawn_change(async move {
            let _protection = protection;
            let summary = pins.store.pin(&root).await?.filter(|pin| pin.state == PinState::Complete);
            let summary = summary.ok_or(PinsError::NotPinned { root })?;
            // So that its bytes count, and it is not fetched.
            pins.index_mut().set_progress(&root, progress(&summary), true);
            let added = pins.add_now(&owner, wanted, None, true).await;
            // Other requests for the root may be pending.
            let settled = pins.settle_complete(&root).await;
            if added.is_ok() {
                pins.follow_ups().push(FollowUp::Announce(root));
            }
            // The worker settles them later.
            if let Err(error) = settled {
                tracing::warn!(%root, %error, "settling other requests for a pinned root failed");
            }
            added
        })
        .await
    }

    /// Records requests for DAGs that an upload has just pinned in the store: for all of them, or for none. A root that
    /// the owner has pinned under the same name keeps its request if no metadata is given, and so does one that an
    /// earlier run of the same import has recorded. As for [`Pins::record`], the caller protects the roots.
    ///
    /// # Errors
    /// As [`Pins::record`], and [`PinsError::TakenOver`] if another run of the import has taken over.
    pub async fn record_all(
        self: &Arc<Self>,
        owner: &Owner,
        wanted: Vec<PinParameters>,
        import: Option<&RepeatableImport>,
    ) -> Result<Vec<PinRequest>, PinsError> {
        wanted.iter().try_for_each(PinParameters::check).map_err(PinsError::Invalid)?;
        let protections = self.protect_all(&wanted.iter().map(|wanted| wanted.root).collect::<Vec<_>>()).await;
        let (pins, owner, import) = (Arc::clone(self), owner.clone(), import.cloned());
        self.spawn_change(async move {
            let _protections = protections;
            pins.record_all_now(&owner, wanted, import.as_ref()).await
        })
        .await
    }

    async fn record_all_now(
        &self,
        owner: &Owner,
        wanted: Vec<PinParameters>,
        import: Option<&RepeatableImport>,
    ) -> Result<Vec<PinRequest>, PinsError> {
        let wanted: Vec<_> = wanted.into_iter().map(Arc::new).collect();
        for PinParameters { root, .. } in wanted.iter().map(Arc::as_ref) {
            let summary = self.store.pin(root).await?.filter(|pin| pin.state == PinState::Complete);
            let summary = summary.ok_or(PinsError::NotPinned { root: *root })?;
            // So that its bytes count, and it is not fetched.
            self.index_mut().set_progress(root, progress(&summary), true);
        }
        let decide = |index: &Index| self.decide_all(index, owner, &wanted, import);
        let apply = |index: &mut Index, changes: &[PinChange], recorded: Vec<Recorded>| {
            index.apply(changes);
            let shown = |recorded: Recorded| Some((index.get(&owner.id, &recorded.id)?, recorded.is_changed));
            recorded.into_iter().map(shown).collect::<Option<Vec<_>>>()
        };
        let recorded = self.commit_fenced(import.map(|import| &import.fence), decide, apply).await;
        for wanted in &wanted {
            self.settle_others(&wanted.root).await;
        }
        self.changed();
        let announced = |(request, is_changed): (PinRequest, bool)| {
            self.follow_ups().extend(is_changed.then_some(FollowUp::Announce(request.root)));
            request
        };
        Ok(recorded?.ok_or(PinsError::NotFound)?.into_iter().map(announced).collect())
    }

    /// Settles pending requests for a root that is complete. If that fails, the worker does it later.
    async fn settle_others(&self, root: &Cid) {
        let is_pending = self.index().is_pending(root);
        if is_pending && let Err(error) = self.settle_complete(root).await {
            tracing::warn!(%root, %error, "settling other requests for a pinned root failed");
        }
    }

    /// Decides which requests an upload has, and which of them are to be created.
    fn decide_all(
        &self,
        index: &Index,
        owner: &Owner,
        wanted: &[Arc<PinParameters>],
        import: Option<&RepeatableImport>,
    ) -> Result<(Vec<PinChange>, Vec<Recorded>), PinsError> {
        let (mut changes, mut recorded, mut further) = (Vec::new(), Vec::new(), Further::default());
        let created_ms = index.next_created_ms(now_ms());
        for wanted in wanted {
            let root = wanted.root;
            if index.is_removing(&root) || !index.root(&root).is_some_and(|root| root.complete) {
                return Err(PinsError::NotPinned { root });
            }
            let id = import.map(|import| import.request_id(&owner.id, &root));
            let entry = match existing(index, owner, wanted, id.as_deref()) {
                Some(entry) if entry.outcome == PinOutcome::Pinned => {
                    recorded.push(Recorded { id: Arc::clone(&entry.id), is_changed: false });
                    continue;
                }
                // It has lost blocks, or was failed, since an earlier run has recorded it.
                Some(entry) => StoredRequest { outcome: PinOutcome::Pinned, keeps: None, ..entry.clone() },
                None => {
                    let entry = self.entry(index, owner, Arc::clone(wanted), PinOutcome::Pinned, None)?;
                    let created_ms = created_ms + further.requests as u64;
                    further.requests += 1;
                    StoredRequest { id: id.unwrap_or_else(|| Arc::clone(&entry.id)), created_ms, ..entry }
                }
            };
            further.roots.push(root);
            recorded.push(Recorded { id: Arc::clone(&entry.id), is_changed: true });
            changes.extend([PinChange::Request(entry), PinChange::RemoveOrphan(root)]);
        }
        if !changes.is_empty() {
            self.check_quota(index, owner, &further, None)?;
        }
        Ok((changes, recorded))
    }

    /// Records a request for such a DAG, unless the owner has one already. Idempotent, except that a given name
    /// replaces the former one.
    ///
    /// # Errors
    /// As [`Pins::record`].
    pub async fn record_once(
        self: &Arc<Self>,
        owner: &Owner,
        root: Cid,
        name: Option<String>,
    ) -> Result<PinRequest, PinsError> {
        let pins = Arc::clone(self);
        self.spawn_change(async move {
            // Another gateway may have removed what is known here.
            pins.read_log().await?;
            pins.refresh(&root).await?;
            pins.settle_stored(&root).await
        })
        .await?;
        let own = self.of_root(&owner.id, &root).into_iter().find(|request| request.status == Status::Pinned);
        match own {
            Some(own) if name.is_none() || own.name.as_deref() == name.as_deref() => Ok(own),
            Some(own) => {
                let wanted = PinParameters { name, meta: Meta::clone(&own.meta), ..PinParameters::new(root) };
                self.replace(owner, &own.id, wanted).await
            }
            None => self.record(owner, root, name, Meta::new()).await,
        }
    }

    /// Whether any owner has a request for a root that has not failed.
    pub(in crate::pinning) fn is_requested(&self, root: &Cid) -> bool {
        !self.index().requests_for(root, StoredRequest::is_live).is_empty()
    }

    /// Settles the requests for a root that was just pinned in the store, whose pin the caller protects.
    ///
    /// # Errors
    /// [`PinsError::NotFound`] if there is none, [`PinsError::Quota`] if all of them have failed, [`PinsError::Store`].
    pub(in crate::pinning) async fn settle_supplied(self: &Arc<Self>, root: Cid) -> Result<(), PinsError> {
        let pins = Arc::clone(self);
        self.spawn_change(async move {
            // Another gateway may have removed what is known here.
            pins.read_log().await?;
            pins.refresh(&root).await?;
            pins.settle_stored(&root).await?;
            pins.supplied(&root)?;
            pins.follow_ups().push(FollowUp::Announce(root));
            Ok(())
        })
        .await
    }

    /// Whether a root that is pinned in the store has a request that is pinned.
    fn supplied(&self, root: &Cid) -> Result<(), PinsError> {
        let index = self.index();
        if index.is_pinned(root) {
            return Ok(());
        }
        let failed = |id: &Arc<str>| match &index.entry(id)?.outcome {
            PinOutcome::Failed(reason) => Some(PinsError::Quota(reason.to_string())),
            _ => None,
        };
        Err(index.requests_for(root, |_| true).iter().find_map(failed).unwrap_or(PinsError::NotFound))
    }

    /// Settles the pending requests for a root whose pin in the store is complete, also while a worker fetches it: the
    /// pin may have been completed by an import. The caller holds the lock of changes.
    async fn settle_stored(&self, root: &Cid) -> Result<(), PinsError> {
        {
            let index = self.index();
            if !index.is_pending(root) || index.is_removing(root) {
                return Ok(());
            }
        }
        match self.store.pin(root).await?.filter(|pin| pin.state == PinState::Complete) {
            Some(summary) => {
                self.index_mut().set_progress(root, progress(&summary), true);
                self.settle_complete(root).await
            }
            None => Ok(()),
        }
    }

    /// Protects the store's pin of a root from removal. Waits if it is being removed.
    pub async fn protect(self: &Arc<Self>, root: Cid) -> Protection {
        loop {
            let changes = {
                let mut index = self.index_mut();
                if !index.is_removing(&root) {
                    index.retain(root);
                    return Protection { pins: Arc::clone(self), root };
                }
                index.watch(&root)
            };
            if let Some(mut changes) = changes {
                _ = changes.changed().await;
            }
        }
    }

    /// Protects the store's pins of several roots, as [`Pins::protect`] does.
    pub(in crate::pinning) async fn protect_all(self: &Arc<Self>, roots: &[Cid]) -> Vec<Protection> {
        let mut protections = Vec::new();
        for root in roots {
            protections.push(self.protect(*root).await);
        }
        protections
    }

    /// Removes the store's pin of a root if it has no request: for uploads that were rejected after they were pinned.
    /// While the pin is protected, the removal waits.
    ///
    /// # Errors
    /// [`PinsError::Store`]. If others share the log, the removal is tried again.
    pub async fn remove_unneeded(self: &Arc<Self>, root: Cid) -> Result<(), PinsError> {
        let pins = Arc::clone(self);
        let removal = async move {
            if !pins.index_mut().request_removal(&root) {
                return Ok(());
            }
            let decide = |index: &Index| {
                let is_removable = !index.is_needed(&root) && !index.is_removing(&root);
                Ok((pins.removal_of(root).into_iter().filter(|_| is_removable).collect(), ()))
            };
            pins.commit(decide).await
        };
        let removed = self.spawn_change(removal).await;
        match &removed {
            Ok(()) => self.end_retries(&root),
            Err(_) => self.retry_removal(root),
        }
        removed
    }

    /// Dials without waiting, unless too many dials are in progress.
    fn spawn_dial(self: &Arc<Self>, root: Cid, origins: Vec<Multiaddr>) {
        let Ok(permit) = Arc::clone(&self.dials).try_acquire_owned() else { return };
        let pins = Arc::clone(self);
        tokio::spawn(async move {
            pins.reach.dial(&root, origins).await;
            drop(permit);
        });
    }
}

/// What is to be added to what an owner has.
#[derive(Debug, Default)]
struct Further {
    /// The roots of live requests.
    roots: Vec<Cid>,
    /// The number of requests.
    requests: usize,
}

/// A request of an upload.
struct Recorded {
    id: Arc<str>,
    /// It is new, or pinned again.
    is_changed: bool,
}

/// The owner's request that is the one to record: that of an earlier run of the same import, or one that equals it.
fn existing<'a>(
    index: &'a Index,
    owner: &Owner,
    wanted: &PinParameters,
    id: Option<&str>,
) -> Option<&'a StoredRequest> {
    let is_same = |entry: &StoredRequest| {
        let is_named = wanted.name.is_none() || entry.name == wanted.name;
        is_named && *entry.owner == *owner.id && entry.outcome == PinOutcome::Pinned
    };
    let of_import = id.and_then(|id| index.entry(id)).map(|entry| Arc::clone(&entry.id));
    let id = of_import.or_else(|| match wanted.meta.is_empty() {
        true => index.requests_for(&wanted.root, is_same).into_iter().next(),
        false => None,
    })?;
    index.entry(&id)
}

/// Applies a new request. Also returns whether its DAG is being fetched already.
fn apply(index: &mut Index, changes: &[PinChange], entry: StoredRequest) -> (Option<PinRequest>, bool) {
    index.apply(changes);
    let is_fetched = entry.is_pending() && index.root(&entry.root).is_some_and(|root| root.active);
    (index.get(&entry.owner, &entry.id), is_fetched)
}

/// A random ID of 128 bits.
fn new_id() -> Result<Arc<str>, StoreError> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| StoreError::Io(error.to_string().into()))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)).into())
}
