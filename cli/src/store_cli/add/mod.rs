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
use self::report::{Lines, Report};
use crate::audited_change::AuditedChange;
use crate::local_policy;
use crate::options::{GATEWAY_OPTIONAL, NodeOptions};
use crate::remote::client::RequestError;
use crate::remote::compression::TransferOptions;
use crate::remote::{Backend, Remote};
use crate::store_cli::{finish_and_close, store_to_write};
use anyhow::Context as _;
use cache::{Addition, BlockStore};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use config::{Flags, Loaded};
use content::importer::{BlockSink, Chunking, Importer, Part, Profile, SinkError, Version};
use content::policy::admit;
use content::{Block, Cid, Policy};
use http::StatusCode;
use serde_json::json;
use services::uploads::pipeline::Pipeline;
use services::uploads::query::chosen;
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
    let job =
        ImportJob { importer: Importer::new(profile)?, inputs, hidden: args.hidden, wrap: args.wrap_with_directory };
    let store = if args.only_hash { None } else { Some(store_to_write(loaded, runtime, &args.node)?) };
    let mut report = Report::new(args.lines());
    if !report.progress.is_hidden() {
        files::measure(&job.inputs, args.hidden, report.progress.downgrade());
    }
    let name = args.name.as_deref();
    match store {
        None => _ = job.import(runtime, &mut |_| Ok(()), &mut report)?,
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
    let mut sink = |block: Block| -> Result<(), SinkError> {
        admit(policy, block.cid())?;
        Ok(runtime.block_on(addition.put(&block))?)
    };
    let roots = job.import(runtime, &mut sink, report)?;
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

/// The inputs and how to import them.
struct ImportJob {
    importer: Importer,
    inputs: Vec<Input>,
    hidden: bool,
    wrap: bool,
}

impl ImportJob {
    /// Imports all inputs, and returns the roots.
    fn import(self, runtime: &Runtime, sink: &mut dyn BlockSink, report: &mut Report) -> anyhow::Result<Vec<Part>> {
        let mut pipeline = Pipeline::new(self.importer, runtime.handle().clone(), sink, report);
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
    fn invalid_options_are_rejected() {
        for words in ["", "--cid-version=2 f", "--profile best f", "--chunker=size-0 f", "-n --name x f"] {
            assert!(parse(words).is_err(), "{words}");
        }
    }
}
