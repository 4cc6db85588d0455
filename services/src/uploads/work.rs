//! [`Work`]: one upload, from its first byte to its pins.
//!
//! Reading, cutting and linking are done by a thread of the upload's own, which waits where it has to; hashing is spread over others. What
//! is pinned is protected from the first block to the pin's end by a scaffold ([`cache::Addition`]).

use crate::access::Principal;
use crate::pinning::Owner;
use crate::pinning::adopt::Adoption;
use crate::uploads::body::Meter;
use crate::uploads::pipeline::Pipeline;
use crate::uploads::taker::{Herald, Keeper, Taker};
use crate::uploads::tree::{Catalogue, Repeats, Shape, Top};
use crate::uploads::{
    Form, Keep, Keeping, Order, Root, Taken, Terms, UploadError, Uploads, Watchers, multipart, names, tarball,
};
use cache::{Addition, RootsIn, TakenCar};
use content::importer::{Attributes, Importer, Part, SinkError};
use content::{Block, Cid, Policy, Verdict};
use std::collections::HashMap;
use tokio::runtime::Handle;
use tokio_util::io::SyncIoBridge;

/// An upload that is to be taken in.
pub struct Work {
    pub uploads: Uploads,
    pub order: Order,
    pub meter: Meter,
}

/// What was read.
struct Made {
    tops: Vec<Top>,
    blocks: u64,
    keeping: Keeping,
}

impl Work {
    /// Takes it in.
    ///
    /// # Errors
    /// [`UploadError`]; nothing is pinned then that was not before.
    pub async fn run(self) -> Result<Taken, UploadError> {
        if let Form::Car { roots_last } = self.order.form {
            return self.run_car(if roots_last { RootsIn::LastBlock } else { RootsIn::Header }).await;
        }
        let Self { uploads, order: Order { owner, terms, form, watchers }, meter } = self;
        let keeping = uploads.begin(terms.keep).await?;
        let import =
            Import { uploads: uploads.clone(), terms: terms.clone(), form, meter, watchers: watchers.clone(), keeping };
        let runtime = Handle::current();
        let made = tokio::task::spawn_blocking(move || import.run(&runtime)).await;
        let Made { tops, blocks, mut keeping } = made.map_err(|_| UploadError::Stopping)??;
        let cids: Vec<Cid> = tops.iter().map(|(_, part)| part.cid).collect();
        keeping.settle().await?;
        let pins = match keeping {
            Keeping::Pinned(addition) => pin(&uploads, &owner, &terms, addition, &cids).await?.1,
            Keeping::Cached(_) | Keeping::Nothing => HashMap::new(),
        };
        let root = |(name, part): Top| Root {
            name: String::from_utf8_lossy(&name).into_owned(),
            cid: part.cid,
            bytes: part.file_bytes,
            pin: pins.get(&part.cid).cloned(),
        };
        Ok(Taken { roots: tops.into_iter().map(root).collect(), bytes: watchers.progress.now().bytes, blocks })
    }

    async fn run_car(self, roots_in: RootsIn) -> Result<Taken, UploadError> {
        let Self { uploads, order: Order { owner, terms, .. }, meter } = self;
        if terms.keep != Keep::Pinned {
            return Err(UploadError::Invalid(
                "the blocks of a CAR are named already, and its roots are pinned".to_owned(),
            ));
        }
        let policy = std::sync::Arc::clone(&uploads.policy);
        let look = move |cid: &Cid| check(&*policy, cid).map_err(SinkError::from);
        let TakenCar { addition, roots, blocks, bytes } =
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
        Ok(Taken { roots: distinct.map(root).collect(), bytes, blocks })
    }
}

/// By root.
type ByRoot<T> = HashMap<Cid, T>;

/// Pins the roots of an upload and puts them down as its owner's: the bytes of their DAGs, and the pin service's requests.
async fn pin(
    uploads: &Uploads,
    owner: &Principal,
    terms: &Terms,
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

/// Whether a block may be kept here.
fn check(policy: &dyn Policy, cid: &Cid) -> Result<(), UploadError> {
    match policy.check(cid) {
        verdict @ (Verdict::Gone | Verdict::Legal) => Err(UploadError::Denied { cid: *cid, verdict }),
        // What is not on a list of what is served may be kept for whoever may upload.
        _ => Ok(()),
    }
}

/// What the thread does.
struct Import {
    uploads: Uploads,
    terms: Terms,
    form: Form,
    meter: Meter,
    watchers: Watchers,
    keeping: Keeping,
}

impl Import {
    fn run(self, runtime: &Handle) -> Result<Made, UploadError> {
        let Self { uploads, terms, form, meter, watchers, mut keeping } = self;
        let importer = Importer::new(terms.profile.clone())?;
        let mut blocks = 0;
        let mut sink = |block: Block| -> Result<(), SinkError> {
            check(&*uploads.policy, block.cid())?;
            blocks += 1;
            Ok(runtime.block_on(keeping.put(&block))?)
        };
        let catalogue = Catalogue::new(uploads.folder.clone(), uploads.limits.entries_max);
        let herald = Herald { progress: watchers.progress, events: watchers.events, runtime: runtime.clone() };
        let mut keeper = Keeper { catalogue, herald };
        let mut pipeline = Pipeline::new(importer.clone(), runtime.clone(), &mut sink, &mut keeper);
        let mut taker = Taker { pipeline: &mut pipeline, modes: terms.modes, times: terms.times };
        read(&form, &meter, runtime, &mut taker)?;
        pipeline.finish()?;
        let Keeper { catalogue, herald } = keeper;
        let shape = Shape { wrap: terms.wrap, repeats: repeats(&form) };
        let mut on_folder = |path: Vec<u8>, part: &Part| herald.added(&path, part);
        let tops = catalogue.build(&importer, shape, &mut sink, &mut on_folder)?;
        if tops.is_empty() {
            return Err(UploadError::Invalid("there is nothing in the upload".to_owned()));
        }
        Ok(Made { tops, blocks, keeping })
    }
}

fn read(form: &Form, meter: &Meter, runtime: &Handle, taker: &mut Taker<'_, '_>) -> Result<(), UploadError> {
    let reader = || SyncIoBridge::new_with_handle(meter.clone(), runtime.clone());
    match form {
        Form::File { name } => {
            let path = name.as_deref().map(|name| names::Path::of_name(name.as_bytes())).transpose()?;
            taker.file(path.as_ref(), Attributes::default(), reader())
        }
        Form::Multipart { boundary, kubo } => multipart::take(meter, boundary, *kubo, runtime, taker),
        Form::Tar => tarball::take(reader(), taker),
        // Its blocks are made already.
        Form::Car { .. } => Ok(()),
    }
}

fn repeats(form: &Form) -> Repeats {
    match form {
        Form::Tar => Repeats::LastCounts,
        _ => Repeats::Refused,
    }
}
