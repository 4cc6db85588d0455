//! [`Work`]: one upload, from its first byte to its pins.
//!
//! A dedicated thread reads, chunks and links, and may block; hashing is spread over other threads. A temporary pin
//! ([`cache::Addition`]) protects the blocks from the first one until the roots are pinned.

use crate::access::Principal;
use crate::pinning::Owner;
use crate::pinning::adopt::Adoption;
use crate::uploads::body::Meter;
use crate::uploads::entries::{CatalogueWatch, EntryWriter, ProgressSender};
use crate::uploads::pipeline::Pipeline;
use crate::uploads::tree::{Catalogue, Repeats, Shape, Top};
use crate::uploads::{
    Destination, DestinationWriter, Form, ProgressReceivers, Root, UploadError, UploadOptions, UploadRequest,
    UploadResult, Uploads, multipart, names, tarball,
};
use cache::{Addition, ReadCar, RootsIn};
use content::importer::{Attributes, Importer, Part, SinkError};
use content::{Block, Cid, Policy, Verdict};
use std::collections::HashMap;
use tokio::runtime::Handle;
use tokio_util::io::SyncIoBridge;

/// An upload to run.
pub struct Work {
    pub uploads: Uploads,
    pub order: UploadRequest,
    pub meter: Meter,
}

/// The result of an import.
struct Imported {
    tops: Vec<Top>,
    blocks: u64,
    keeping: DestinationWriter,
}

impl Work {
    /// Runs the upload.
    ///
    /// # Errors
    /// [`UploadError`]; nothing new is pinned then.
    pub async fn run(self) -> Result<UploadResult, UploadError> {
        if let Form::Car { roots_last } = self.order.form {
            return self.run_car(if roots_last { RootsIn::LastBlock } else { RootsIn::Header }).await;
        }
        let Self { uploads, order: UploadRequest { owner, terms, form, watchers }, meter } = self;
        let keeping = uploads.begin(terms.keep).await?;
        let import =
            Import { uploads: uploads.clone(), terms: terms.clone(), form, meter, watchers: watchers.clone(), keeping };
        let runtime = Handle::current();
        let imported = tokio::task::spawn_blocking(move || import.run(&runtime)).await;
        let Imported { tops, blocks, mut keeping } = imported.map_err(|_| UploadError::Stopping)??;
        let cids: Vec<Cid> = tops.iter().map(|(_, part)| part.cid).collect();
        keeping.settle().await?;
        let pins = match keeping {
            DestinationWriter::Pinned(addition) => pin(&uploads, &owner, &terms, addition, &cids).await?.1,
            DestinationWriter::Cached(_) | DestinationWriter::Nothing => HashMap::new(),
        };
        let root = |(name, part): Top| Root {
            name: String::from_utf8_lossy(&name).into_owned(),
            cid: part.cid,
            bytes: part.file_bytes,
            pin: pins.get(&part.cid).cloned(),
        };
        Ok(UploadResult { roots: tops.into_iter().map(root).collect(), bytes: watchers.progress.now().bytes, blocks })
    }

    async fn run_car(self, roots_in: RootsIn) -> Result<UploadResult, UploadError> {
        let Self { uploads, order: UploadRequest { owner, terms, .. }, meter } = self;
        if terms.keep != Destination::Pinned {
            return Err(UploadError::Invalid(
                "the blocks of a CAR have their CIDs, and its roots must be pinned".to_owned(),
            ));
        }
        let policy = std::sync::Arc::clone(&uploads.policy);
        let look = move |cid: &Cid| check(&*policy, cid).map_err(SinkError::from);
        let ReadCar { addition, roots, blocks, bytes } =
            cache::take_car(uploads.begin_addition().await?, meter, roots_in, &look).await?;
        let (sizes, pins) = pin(&uploads, &owner, &terms, addition, &roots).await?;
        let root = |cid: &Cid| Root {
            name: String::new(),
            cid: *cid,
            bytes: sizes.get(cid).copied().unwrap_or(0),
            pin: pins.get(cid).cloned(),
        };
        let mut seen = std::collections::HashSet::new();
        let distinct = roots.iter().filter(|cid| seen.insert(**cid));
        Ok(UploadResult { roots: distinct.map(root).collect(), bytes, blocks })
    }
}

/// A map by root.
type ByRoot<T> = HashMap<Cid, T>;

/// Pins the roots of an upload and records them for the owner. Returns the sizes of their DAGs, and the IDs of the
/// requests.
async fn pin(
    uploads: &Uploads,
    owner: &Principal,
    terms: &UploadOptions,
    addition: Addition,
    roots: &[Cid],
) -> Result<(ByRoot<u64>, ByRoot<String>), UploadError> {
    let adoption =
        Adoption { owner: &Owner::from(owner), name: terms.pin_name.as_deref(), meta: &terms.meta, renames: false };
    let adopted = uploads.pins.adopt(addition, roots, adoption).await?;
    let sizes = adopted.iter().map(|adopted| (adopted.pin.root, adopted.pin.bytes)).collect();
    let requests = adopted.iter().map(|adopted| (adopted.pin.root, adopted.request.id.to_string())).collect();
    Ok((sizes, requests))
}

/// Checks whether the policy allows storing a block.
fn check(policy: &dyn Policy, cid: &Cid) -> Result<(), UploadError> {
    match policy.check(cid) {
        verdict @ (Verdict::Gone | Verdict::Legal) => Err(UploadError::Withheld { cid: *cid, verdict }),
        // In allowlist mode, authorised clients may store unlisted content.
        _ => Ok(()),
    }
}

/// The work of the dedicated thread.
struct Import {
    uploads: Uploads,
    terms: UploadOptions,
    form: Form,
    meter: Meter,
    watchers: ProgressReceivers,
    keeping: DestinationWriter,
}

impl Import {
    fn run(self, runtime: &Handle) -> Result<Imported, UploadError> {
        let Self { uploads, terms, form, meter, watchers, mut keeping } = self;
        let importer = Importer::new(terms.profile.clone())?;
        let mut blocks = 0;
        let mut sink = |block: Block| -> Result<(), SinkError> {
            check(&*uploads.policy, block.cid())?;
            blocks += 1;
            Ok(runtime.block_on(keeping.put(&block))?)
        };
        let catalogue = Catalogue::new(uploads.folder.clone(), uploads.limits.entries_max);
        let ProgressReceivers { progress, events } = watchers;
        let progress = ProgressSender { progress, events, runtime: runtime.clone() };
        let mut watch = CatalogueWatch { catalogue, progress };
        let mut pipeline = Pipeline::new(importer.clone(), runtime.clone(), &mut sink, &mut watch);
        let mut entries = EntryWriter { pipeline: &mut pipeline, modes: terms.modes, times: terms.times };
        read(&form, &meter, runtime, &mut entries)?;
        pipeline.finish()?;
        let CatalogueWatch { catalogue, progress } = watch;
        let shape = Shape { wrap: terms.wrap, repeats: repeats(&form) };
        let mut on_folder = |path: Vec<u8>, part: &Part| progress.added(&path, part);
        let tops = catalogue.build(&importer, shape, &mut sink, &mut on_folder)?;
        if tops.is_empty() {
            return Err(UploadError::Invalid("the upload is empty".to_owned()));
        }
        Ok(Imported { tops, blocks, keeping })
    }
}

fn read(form: &Form, meter: &Meter, runtime: &Handle, entries: &mut EntryWriter<'_, '_>) -> Result<(), UploadError> {
    let reader = || SyncIoBridge::new_with_handle(meter.clone(), runtime.clone());
    match form {
        Form::File { name } => {
            let path = name.as_deref().map(|name| names::Path::of_name(name.as_bytes())).transpose()?;
            entries.file(path.as_ref(), Attributes::default(), reader())
        }
        Form::Multipart { boundary, kubo } => multipart::import(meter, boundary, *kubo, runtime, entries),
        Form::Tar => tarball::import(reader(), entries),
        // A CAR is imported elsewhere.
        Form::Car { .. } => Ok(()),
    }
}

fn repeats(form: &Form) -> Repeats {
    match form {
        Form::Tar => Repeats::LastCounts,
        _ => Repeats::Refused,
    }
}
