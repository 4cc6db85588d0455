//! `causeway add`.
//!
//! Goals: the CIDs and the output of `ipfs add`; hashing on all processors; each byte is read once and each new block
//! is written once; when the command succeeds, the added content is pinned and on the disk.
//!
//! | module | concern |
//! |---|---|
//! | [`files`] | the inputs |
//! | [`report`] | the output, and the progress |
//!
//! [`services::uploads::pipeline`] builds the blocks, as for uploads.
//!
//! Non-goals: modes and times of files, ignore rules, and the options of Kubo that it calls experimental.
//!
//! Departures from Kubo: folders need no `-r` (which is accepted); a folder's line is printed as soon as the folder is
//! complete, and not after all files; without `-w`, files of the same name in different folders may be added by one
//! command.

pub mod files;
pub mod report;

use self::files::Input;
use self::report::{Lines, PackedLine, Report};
use crate::audited_change::AuditedChange;
use crate::local_policy;
use crate::options::{GATEWAY_OPTIONAL, NodeOptions};
use crate::remote::client::RequestError;
use crate::remote::compression::TransferOptions;
use crate::remote::{Backend, Remote};
use crate::store_cli::{finish_and_close, store_to_write};
use anyhow::{Context as _, bail};
use api::uploads::PackedView;
use cache::{Addition, BlockStore};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use config::{Flags, Loaded};
use content::importer::{BlockSink, Chunking, Importer, Packing, Part, Profile, SinkError, Version};
use content::policy::admit;
use content::stored::{CompressionOptions, Slice};
use content::{Block, Cid, Policy};
use http::StatusCode;
use serde_json::json;
use services::uploads::pipeline::Pipeline;
use services::uploads::query::chosen;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use tokio::runtime::Runtime;

const HELP: &str = "\
The CIDs are those of \"ipfs add\" with the same options and the same defaults. For new content, use \
--profile unixfs-v1-2025: all implementations that support it produce the same CIDs.\n\n\
Add a site and open it:\n\
\x20 causeway add --profile unixfs-v1-2025 site/   the last line has the CID\n\
\x20 causeway serve                                if it is not running\n\
and open http://127.0.0.1:8080/ipfs/CID/\n\n\
Keep the name of a file:      causeway add -w photo.jpg\n\
Only the CID, for a script:   cid=$(causeway add -Q site/)\n\
Small on disk and on the way: causeway add --packed data.csv\n\
From a pipe:                  tar c site/ | causeway add -\n\
What would the CID be?        causeway add -n photo.jpg\n\n\
The roots are pinned: their blocks stay in the store until they are unpinned. Blocks that are already stored take no \
additional space (deduplication).";

/// `causeway add`
#[derive(Debug, Args)]
#[command(after_help = format!("{HELP}\n\n{GATEWAY_OPTIONAL}"))]
pub struct AddArgs {
    /// Files and folders to add, recursively; symlinks are added as symlinks; "-" is standard input
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Also add hidden files and folders below PATH, whose names begin with a dot
    #[arg(long, short = 'H')]
    hidden: bool,
    /// Wrap everything in a folder, so that each PATH keeps its name
    #[arg(long, short = 'w')]
    wrap_with_directory: bool,
    /// Print the CIDs without storing anything
    #[arg(long, short = 'n')]
    only_hash: bool,
    /// The UnixFS profile, which the options below override
    #[arg(long, value_name = "NAME", value_parser = profiles())]
    profile: Option<Profile>,
    /// The CID version: 0 or 1; 1 implies --raw-leaves
    #[arg(long, value_name = "VERSION", value_parser = clap::value_parser!(u8).range(0..=1))]
    cid_version: Option<u8>,
    /// Store leaves of files as raw blocks, without a dag-pb envelope
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    raw_leaves: Option<bool>,
    /// The chunker: size-BYTES, rabin, rabin-AVERAGE, rabin-MIN-AVERAGE-MAX or buzhash
    #[arg(long, short = 's', value_name = "CHUNKER")]
    chunker: Option<Chunking>,
    /// Store each file as seekable zstd, if it shrinks, and print three CIDs: of the file, of its zstd file for any
    /// node ("zstd"), and of the file by its zstd file ("packed"); not for folders
    #[arg(long, conflicts_with = "wrap_with_directory")]
    packed: bool,
    /// The name of the pins
    #[arg(long, alias = "pin-name", value_name = "NAME", conflicts_with = "only_hash")]
    name: Option<String>,
    /// Print only the last CID: of the last PATH, or of the wrapping folder
    #[arg(long, short = 'Q')]
    quieter: bool,
    /// Print a JSON object on each line: cid, name, and size, the total bytes of files
    #[arg(long)]
    json: bool,
    /// Accepted for compatibility with Kubo: folders are always added recursively.
    #[arg(long = "recursive", short = 'r', hide = true)]
    _recursive: bool,
    /// How it is sent.
    #[command(flatten)]
    transfer: TransferOptions,
    /// The node.
    #[command(flatten)]
    node: NodeOptions,
}

fn profiles() -> impl clap::builder::TypedValueParser<Value = Profile> {
    PossibleValuesParser::new(Profile::NAMES).try_map(|name| Profile::named(&name).ok_or("unknown profile"))
}

impl AddArgs {
    /// The settings that the options override.
    pub fn flags(&self) -> Flags {
        (&self.node).into()
    }

    fn lines(&self) -> Lines {
        match (self.quieter, self.json) {
            (false, json) => Lines::All { json },
            (true, json) => Lines::Last { json },
        }
    }
}

/// The profile of the options.
fn effective_profile(
    profile: Option<Profile>,
    cid_version: Option<u8>,
    raw_leaves: Option<bool>,
    chunker: Option<Chunking>,
) -> Profile {
    let version = cid_version.map(|version| if version == 0 { Version::V0 } else { Version::V1 });
    chosen(profile.unwrap_or_default(), version, raw_leaves, chunker)
}

/// Adds the inputs, and prints their CIDs.
///
/// # Errors
/// When a file cannot be read, or the store or the gateway fails. Roots that are already pinned stay pinned.
pub fn run(loaded: &Loaded, runtime: &Runtime, args: &AddArgs) -> anyhow::Result<()> {
    cache::pins::check_name(args.name.as_deref())?;
    let inputs = files::inputs(&args.paths)?;
    if args.wrap_with_directory {
        files::check_names(&inputs)?;
    }
    let profile = effective_profile(args.profile.clone(), args.cid_version, args.raw_leaves, args.chunker);
    let packing = if args.packed { Some(Packing::new(&profile, CompressionOptions::default())?) } else { None };
    if args.packed {
        files::check_files(&inputs)?;
    }
    let (hidden, wrap) = (args.hidden, args.wrap_with_directory);
    let job = ImportJob { importer: Importer::new(profile)?, inputs, hidden, wrap, packing };
    let store = if args.only_hash { None } else { Some(store_to_write(loaded, runtime, &args.node)?) };
    let mut report = Report::new(args.lines());
    if !report.progress.is_hidden() {
        files::measure(&job.inputs, args.hidden, report.progress.downgrade());
    }
    let name = args.name.as_deref();
    match store {
        None => _ = job.import(runtime, &mut Discard, &mut report)?,
        Some(Backend::Local(store)) => {
            let policy = runtime.block_on(local_policy::load(loaded));
            let paths: Vec<String> = args.paths.iter().map(|path| path.display().to_string()).collect();
            let request = json!({ "paths": paths, "name": name });
            let mut record = None;
            let added = policy.and_then(|policy| {
                record = Some(AuditedChange::begin(&loaded.config.data_dir, "add", request)?);
                add_to_store(runtime, &*store, &*policy, job, name, &mut report)
            });
            let added = finish_and_close(runtime, &store, added);
            AuditedChange::end_if_begun(
                record,
                added,
                |roots| json!({ "roots": roots.iter().map(Cid::to_string).collect::<Vec<_>>(), "name": name }),
            )?;
        }
        Some(Backend::Remote(remote)) if args.packed => {
            let (query, remote) = (packed_query(args), remote.sending(args.transfer));
            for input in job.inputs {
                runtime.block_on(upload_packed(&remote, input, &query, name, &mut report))?;
            }
        }
        Some(Backend::Remote(remote)) => {
            add_remotely(runtime, &remote.sending(args.transfer), job, name, &mut report)?;
        }
    }
    report.end()
}

fn add_to_store(
    runtime: &Runtime,
    store: &dyn BlockStore,
    policy: &dyn Policy,
    job: ImportJob,
    name: Option<&str>,
    report: &mut Report,
) -> anyhow::Result<Vec<Cid>> {
    let addition = runtime.block_on(Addition::begin(store))?;
    if job.packing.is_some() && !addition.takes_slices() {
        bail!(cache::store::NO_SLICES);
    }
    let mut sink = PolicySink { runtime, policy, addition };
    let roots = job.import(runtime, &mut sink, report)?;
    let PolicySink { mut addition, .. } = sink;
    for (root, zstd_file) in std::mem::take(&mut report.zstd_files) {
        addition.set_packed(root, zstd_file);
    }
    report.pinning();
    let roots: Vec<_> = roots.into_iter().map(|root| root.cid).collect();
    runtime.block_on(addition.pin(&roots, name))?;
    Ok(roots)
}

/// Reads and hashes the files in this process, with its user's permissions, and sends the gateway the blocks that it
/// lacks.
fn add_remotely(
    runtime: &Runtime,
    remote: &Remote,
    job: ImportJob,
    name: Option<&str>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut addition = runtime.block_on(async { remote.begin_addition(name, true) });
    let mut sink = |block: Block| runtime.block_on(addition.put(&block));
    let roots = match job.import(runtime, &mut sink, report) {
        Ok(roots) => roots,
        Err(error) => {
            runtime.block_on(addition.abort())?;
            return Err(error);
        }
    };
    report.pinning();
    let roots: Vec<_> = roots.into_iter().map(|root| root.cid).collect();
    let pinned = runtime.block_on(addition.pin(&roots));
    // Between the query and the reference, the gateway may have evicted a block. That is rare, and a retry succeeds.
    pinned.map(drop).map_err(|error| match RequestError::status(&error) {
        Some(StatusCode::CONFLICT) => {
            error.context("the gateway has evicted a block of this content meanwhile: try again")
        }
        _ => error,
    })
}

/// Stores blocks that the policy allows.
struct PolicySink<'a> {
    runtime: &'a Runtime,
    policy: &'a dyn Policy,
    addition: Addition,
}

impl BlockSink for PolicySink<'_> {
    fn put(&mut self, block: Block) -> Result<(), SinkError> {
        admit(self.policy, block.cid())?;
        Ok(self.runtime.block_on(self.addition.put(&block))?)
    }

    fn put_slice(&mut self, leaf: &Cid, slice: Slice) -> Result<(), SinkError> {
        admit(self.policy, leaf)?;
        Ok(self.runtime.block_on(self.addition.put_slice(leaf, slice))?)
    }
}

/// Stores nothing.
struct Discard;

impl BlockSink for Discard {
    fn put(&mut self, _block: Block) -> Result<(), SinkError> {
        Ok(())
    }

    fn put_slice(&mut self, _leaf: &Cid, _slice: Slice) -> Result<(), SinkError> {
        Ok(())
    }
}

/// The parameters of an upload that packs a file with these options.
fn packed_query(args: &AddArgs) -> Vec<(&'static str, String)> {
    let name = Profile::NAMES.into_iter().find(|name| Profile::named(name) == args.profile && args.profile.is_some());
    let options = [
        ("profile", name.map(str::to_owned)),
        ("cid-version", args.cid_version.map(|version| version.to_string())),
        ("raw-leaves", args.raw_leaves.map(|raw| raw.to_string())),
        ("chunker", args.chunker.map(|chunker| chunker.to_string())),
    ];
    let options = options.into_iter().filter_map(|(name, value)| Some((name, value?)));
    [("packed", "true".to_owned())].into_iter().chain(options).collect()
}

/// Sends a file to the gateway, which packs it: slices are made where the blocks are stored.
async fn upload_packed(
    remote: &Remote,
    input: Input,
    query: &[(&'static str, String)],
    pin_name: Option<&str>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut query = query.to_vec();
    query.extend(pin_name.map(|name| ("pin-name", name.to_owned())));
    let progress = report.progress.clone();
    let count = move |bytes: usize| progress.inc(bytes as u64);
    let (name, file) = match input {
        Input::Stdin => {
            let stdin = std::io::stdin().as_fd().try_clone_to_owned().context("standard input cannot be read")?;
            (None, tokio::fs::File::from_std(stdin.into()))
        }
        Input::Path { path, name } => {
            let file =
                tokio::fs::File::open(&path).await.with_context(|| format!("{} cannot be read", path.display()))?;
            (Some(name.to_string_lossy().into_owned()), file)
        }
    };
    let uploaded = remote.upload_file(&query, file, count).await?;
    for root in uploaded.roots {
        let packed = match (root.packed, root.note) {
            (Some(PackedView { zstd, cid, bytes }), _) => Some(PackedLine::Packed { zstd, packed: cid, bytes }),
            (None, note) => note.map(PackedLine::Plain),
        };
        report.print_entry(&root.cid, root.bytes, name.as_deref().unwrap_or(&root.cid), packed.as_ref());
    }
    Ok(())
}

/// The inputs and how to import them.
struct ImportJob {
    importer: Importer,
    inputs: Vec<Input>,
    hidden: bool,
    wrap: bool,
    /// How files are packed, if they are.
    packing: Option<Packing>,
}

impl ImportJob {
    /// Imports all inputs, and returns the roots.
    fn import(self, runtime: &Runtime, sink: &mut dyn BlockSink, report: &mut Report) -> anyhow::Result<Vec<Part>> {
        let pipeline = Pipeline::new(self.importer, runtime.handle().clone(), sink, report);
        let mut pipeline = pipeline.packed(self.packing);
        if self.wrap {
            pipeline.enter(Vec::new())?;
        }
        for input in self.inputs {
            input.add_to(&mut pipeline, self.hidden)?;
        }
        if self.wrap {
            pipeline.leave()?;
        }
        pipeline.finish().context("the content cannot be added")?;
        Ok(std::mem::take(&mut report.roots))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: AddArgs,
    }

    fn parse(words: &str) -> Result<AddArgs, clap::Error> {
        Line::try_parse_from(["add"].into_iter().chain(words.split_whitespace())).map(|line| line.args)
    }

    #[test]
    fn options_choose_what_they_choose_in_kubo() {
        let v1 = Profile::UNIXFS_V1_2025;
        let table = [
            ("f", Profile::default()),
            ("--cid-version=1 f", Profile::default().with_cid_v1()),
            ("--cid-version 0 f", Profile::default()),
            ("--cid-version=1 --raw-leaves=false f", Profile { raw_leaves: false, ..Profile::default().with_cid_v1() }),
            ("--raw-leaves f", Profile { raw_leaves: true, ..Profile::default() }),
            ("--profile unixfs-v1-2025 f", v1.clone()),
            ("--profile=unixfs-v1-2025 --cid-version=0 f", Profile { cid_version: Version::V0, ..v1.clone() }),
            ("-s size-1000 --profile unixfs-v1-2025 f", Profile { chunking: Chunking::size(1_000).unwrap(), ..v1 }),
        ];
        for (words, expected) in table {
            let args = parse(words).unwrap_or_else(|error| panic!("{words}: {error}"));
            assert_eq!(args.paths, [PathBuf::from("f")], "{words}");
            assert_eq!(
                effective_profile(args.profile, args.cid_version, args.raw_leaves, args.chunker),
                expected,
                "{words}"
            );
        }
    }

    #[test]
    fn a_packed_upload_has_the_same_options() {
        let table: [(&str, &[(&str, &str)]); 3] = [
            ("--packed f", &[("packed", "true")]),
            ("--packed --profile unixfs-v1-2025 f", &[("packed", "true"), ("profile", "unixfs-v1-2025")]),
            (
                "--packed --cid-version=1 --raw-leaves=false -s rabin-300000 f",
                &[
                    ("packed", "true"),
                    ("cid-version", "1"),
                    ("raw-leaves", "false"),
                    ("chunker", "rabin-100000-300000-450000"),
                ],
            ),
        ];
        for (words, expected) in table {
            let query = packed_query(&parse(words).unwrap_or_else(|error| panic!("{words}: {error}")));
            let query: Vec<_> = query.iter().map(|(name, value)| (*name, value.as_str())).collect();
            assert_eq!(query, expected, "{words}");
        }
    }

    #[test]
    fn invalid_options_are_rejected() {
        for words in
            ["", "--cid-version=2 f", "--profile best f", "--chunker=size-0 f", "-n --name x f", "--packed -w f"]
        {
            assert!(parse(words).is_err(), "{words}");
        }
    }
}
