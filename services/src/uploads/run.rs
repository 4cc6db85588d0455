//! Runs one upload, from its first byte to its pins.
//!
//! A dedicated thread reads, chunks and links, and may block; hashing is spread over other threads. A temporary pin
//! ([`cache::Addition`]) protects the blocks from the first one until the roots are pinned.

use crate::access::Principal;
use crate::pinning::adopt::Adoption;
use crate::pinning::{Owner, RepeatableImport};
use crate::uploads::body::Meter;
use crate::uploads::entries::{CatalogueWatch, EntryWriter, ProgressSender};
use crate::uploads::pipeline::Pipeline;
use crate::uploads::tree::{Catalogue, Repeats, Shape, Top};
use crate::uploads::{
    DestinationWriter, FileFormat, FileOptions, PackingResult, PinDetails, ProgressReceivers, Root, UploadError,
    UploadOptions, UploadRequest, UploadResult, Uploads, multipart, names, tarball,
};
use cache::{Addition, ReadCar, RootsIn};
use content::importer::{Attributes, BlockSink, ImportError, Importer, Packing, Part, SinkError};
use content::stored::{CompressionOptions, Slice};
use content::{Block, Cid, Policy, Verdict};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio_util::io::SyncIoBridge;

/// The result of an import.
struct Imported {
    tops: Vec<Top>,
    packing: ByRoot<PackingResult>,
    blocks: u64,
    writer: DestinationWriter,
}

/// Stores blocks that the policy allows, and counts them.
struct PolicySink<'a> {
    policy: &'a dyn Policy,
    runtime: &'a Handle,
    writer: DestinationWriter,
    blocks: u64,
}

impl BlockSink for PolicySink<'_> {
    fn put(&mut self, block: Block) -> Result<(), SinkError> {
        check(self.policy, block.cid())?;
        self.blocks += 1;
        Ok(self.runtime.block_on(self.writer.put(&block))?)
    }

    fn put_slice(&mut self, leaf: &Cid, slice: Slice) -> Result<(), SinkError> {
        check(self.policy, leaf)?;
        self.blocks += 1;
        Ok(self.runtime.block_on(self.writer.put_slice(leaf, slice))?)
    }
}

/// The owner of the pins, and the import that makes them if it may run again.
type PinnedFor<'a> = (&'a Principal, Option<&'a RepeatableImport>);

/// A map by root.
type ByRoot<T> = HashMap<Cid, T>;

impl Uploads {
    /// Runs an upload.
    ///
    /// # Errors
    /// [`UploadError`]; nothing new is pinned then.
    pub(super) async fn import(self, request: UploadRequest, meter: Meter) -> Result<UploadResult, UploadError> {
        let UploadRequest { owner, options, watchers, import } = request;
        let pinned_for = (&owner, import.as_ref());
        match options {
            UploadOptions::Files(options) => self.import_files(pinned_for, options, watchers, meter).await,
            UploadOptions::Car { roots_in, pin } => self.import_car(pinned_for, roots_in, &pin, meter).await,
        }
    }

    async fn import_files(
        self,
        pinned_for: PinnedFor<'_>,
        options: FileOptions,
        watchers: ProgressReceivers,
        meter: Meter,
    ) -> Result<UploadResult, UploadError> {
        let writer = self.begin(options.destination.clone()).await?;
        if options.packed && !writer.takes_slices() {
            return Err(UploadError::Invalid(cache::store::NO_SLICES.to_owned()));
        }
        let (uploads, runtime, progress) = (self.clone(), Handle::current(), Arc::clone(&watchers.progress));
        let import = move || uploads.import_blocking(&options, watchers, &meter, writer, &runtime);
        let imported = tokio::task::spawn_blocking(import).await;
        let Imported { tops, packing, blocks, mut writer } = imported.map_err(|_| UploadError::Stopping)??;
        let cids: Vec<Cid> = tops.iter().map(|(_, part)| part.cid).collect();
        writer.settle().await?;
        let pins = match writer {
            DestinationWriter::Pinned(mut addition, pin) => {
                for (root, packing) in &packing {
                    if let PackingResult::Packed(packed) = packing {
                        addition.set_packed(*root, packed.zstd_file.cid);
                    }
                }
                self.pin(pinned_for, &pin, addition, &cids).await?.1
            }
            DestinationWriter::Cached(_) | DestinationWriter::Nothing => HashMap::new(),
        };
        let root = |(name, part): Top| Root {
            name: String::from_utf8_lossy(&name).into_owned(),
            cid: part.cid,
            bytes: part.file_bytes,
            pin: pins.get(&part.cid).cloned(),
            packing: packing.get(&part.cid).copied().unwrap_or_default(),
        };
        Ok(UploadResult { roots: tops.into_iter().map(root).collect(), bytes: progress.now().bytes, blocks })
    }

    async fn import_car(
        self,
        pinned_for: PinnedFor<'_>,
        roots_in: RootsIn,
        pin: &PinDetails,
        meter: Meter,
    ) -> Result<UploadResult, UploadError> {
        let policy = Arc::clone(&self.policy);
        let look = move |cid: &Cid| check(&*policy, cid).map_err(SinkError::from);
        let ReadCar { addition, roots, blocks, bytes } =
            cache::take_car(self.begin_addition().await?, meter, roots_in, &look).await?;
        let (sizes, pins) = self.pin(pinned_for, pin, addition, &roots).await?;
        let root = |cid: &Cid| Root {
            name: String::new(),
            cid: *cid,
            bytes: sizes.get(cid).copied().unwrap_or(0),
            pin: pins.get(cid).cloned(),
            packing: PackingResult::NotRequested,
        };
        let mut seen = std::collections::HashSet::new();
        let distinct = roots.iter().filter(|cid| seen.insert(**cid));
        Ok(UploadResult { roots: distinct.map(root).collect(), bytes, blocks })
    }

    /// Pins the roots of an upload and records them for the owner. Returns the sizes of their DAGs, and the IDs of the
    /// requests.
    async fn pin(
        &self,
        (owner, import): PinnedFor<'_>,
        pin: &PinDetails,
        addition: Addition,
        roots: &[Cid],
    ) -> Result<(ByRoot<u64>, ByRoot<String>), UploadError> {
        let (owner, name, meta) = (&Owner::from(owner), pin.name.as_deref(), &pin.meta);
        let adoption = Adoption { owner, name, meta, renames: false, import };
        let adopted = self.pins.adopt(addition, roots, adoption).await?;
        let sizes = adopted.iter().map(|adopted| (adopted.pin.root, adopted.pin.bytes)).collect();
        let requests = adopted.iter().map(|adopted| (adopted.pin.root, adopted.request.id.to_string())).collect();
        Ok((sizes, requests))
    }

    /// The work of the dedicated thread.
    fn import_blocking(
        self,
        options: &FileOptions,
        watchers: ProgressReceivers,
        meter: &Meter,
        writer: DestinationWriter,
        runtime: &Handle,
    ) -> Result<Imported, UploadError> {
        let importer = Importer::new(options.profile.clone())?;
        let packing = match options.packed {
            true => Some(Packing::new(&options.profile, CompressionOptions::default()).map_err(ImportError::from)?),
            false => None,
        };
        let mut sink = PolicySink { policy: &*self.policy, runtime, writer, blocks: 0 };
        let catalogue = Catalogue::new(self.folder.clone(), self.limits.entries_max);
        let ProgressReceivers { progress, events } = watchers;
        let progress = ProgressSender { progress, events, runtime: runtime.clone() };
        let mut watch = CatalogueWatch { catalogue, progress, packing: HashMap::new() };
        let mut pipeline = Pipeline::new(importer.clone(), runtime.clone(), &mut sink, &mut watch).packed(packing);
        let mut entries = EntryWriter { pipeline: &mut pipeline, modes: options.modes, times: options.times };
        read(&options.format, meter, runtime, &mut entries)?;
        pipeline.finish()?;
        let CatalogueWatch { catalogue, progress, packing } = watch;
        let shape = Shape { wrap: options.wrap, repeats: repeats(&options.format) };
        let mut on_folder = |path: Vec<u8>, part: &Part| progress.added(&path, part);
        let tops = catalogue.build(&importer, shape, &mut sink, &mut on_folder)?;
        if tops.is_empty() {
            return Err(UploadError::Invalid("the upload is empty".to_owned()));
        }
        let PolicySink { writer, blocks, .. } = sink;
        Ok(Imported { tops, packing, blocks, writer })
    }
}

/// Checks whether the policy allows storing a block.
fn check(policy: &dyn Policy, cid: &Cid) -> Result<(), UploadError> {
    match policy.check(cid) {
        verdict @ (Verdict::Gone | Verdict::Legal) => Err(UploadError::Withheld { cid: *cid, verdict }),
        // In allowlist mode, authorised clients may store unlisted content.
        _ => Ok(()),
    }
}

fn read(
    format: &FileFormat,
    meter: &Meter,
    runtime: &Handle,
    entries: &mut EntryWriter<'_, '_>,
) -> Result<(), UploadError> {
    let reader = || SyncIoBridge::new_with_handle(meter.clone(), runtime.clone());
    match format {
        FileFormat::File { name } => {
            let path = name.as_deref().map(|name| names::Path::of_name(name.as_bytes())).transpose()?;
            entries.file(path.as_ref(), Attributes::default(), reader())
        }
        FileFormat::Multipart { boundary, kubo } => multipart::import(meter, boundary, *kubo, runtime, entries),
        FileFormat::Tar => tarball::import(reader(), entries),
    }
}

fn repeats(format: &FileFormat) -> Repeats {
    match format {
        FileFormat::Tar => Repeats::LastCounts,
        _ => Repeats::Refused,
    }
}
