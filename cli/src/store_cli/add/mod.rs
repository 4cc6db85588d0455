//! `causeway add`.
//!
//! Goals: the CIDs that `ipfs add` prints, and its lines; every processor hashes; each byte is read once and each new block
//! written once; what is printed as added is pinned and on the disk when the command ends well.
//!
//! | module | concern |
//! |---|---|
//! | [`files`] | what there is to add, in order |
//! | [`report`] | the lines about what was added, and how fast it goes |
//!
//! Bytes become blocks in [`services::uploads::pipeline`], as those of an upload do.
//!
//! Non-goals: modes and times of files, ignore rules, and the options of Kubo that it calls experimental.
//!
//! Departures from Kubo: folders need no `-r` (which is accepted); a folder's line comes as soon as the folder is complete
//! and not behind all files; without `-w`, files of the same name in different places may be added in one command.

pub mod files;
pub mod report;

use self::files::Input;
use self::report::{Lines, Report};
use crate::place::{NodePlace, REACH};
use crate::recorded::Recorded;
use crate::remote::client::AskError;
use crate::remote::{Remote, Worker};
use crate::store_cli::{and_close, store_to_write};
use crate::withheld;
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
The CIDs are those of \"ipfs add\" with the same options; its defaults are the defaults here. For new content \
--profile unixfs-v1-2025 is the better choice: every up-to-date implementation gives it the same CID.\n\n\
Put a site into the store and look at it:\n\
\x20 causeway add --profile unixfs-v1-2025 site/   the last line has the CID\n\
\x20 causeway serve                                unless it runs\n\
and open http://127.0.0.1:8080/ipfs/CID/\n\n\
Keep the name of a file:      causeway add -w photo.jpg\n\
Only the CID, for a script:   cid=$(causeway add -Q site/)\n\
From a pipe:                  tar c site/ | causeway add -\n\
What would the CID be?        causeway add -n photo.jpg\n\n\
The roots are pinned: nothing of them leaves the store until they are unpinned. What is in the store already takes no new \
space.";

/// `causeway add`
#[derive(Debug, Args)]
#[command(after_help = format!("{HELP}\n\n{REACH}"))]
pub struct AddArgs {
    /// Files and folders with all that is in them; symlinks are kept as symlinks; "-" is standard input
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Take in files and folders whose names begin with a dot as well; those named here are taken in anyway
    #[arg(long, short = 'H')]
    hidden: bool,
    /// Put everything into a folder, so that each PATH keeps its name
    #[arg(long, short = 'w')]
    wrap_with_directory: bool,
    /// Print the CIDs and keep nothing
    #[arg(long, short = 'n')]
    only_hash: bool,
    /// A published set of choices, which the options below change
    #[arg(long, value_name = "NAME", value_parser = profiles())]
    profile: Option<Profile>,
    /// 0 or 1; 1 makes raw leaves too
    #[arg(long, value_name = "VERSION", value_parser = clap::value_parser!(u8).range(0..=1))]
    cid_version: Option<u8>,
    /// Leaves of files are bare bytes, without an envelope
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    raw_leaves: Option<bool>,
    /// Where files are cut: size-BYTES, rabin, rabin-AVERAGE, rabin-MIN-AVERAGE-MAX or buzhash
    #[arg(long, short = 's', value_name = "CHUNKER")]
    chunker: Option<Chunking>,
    /// What to call the pins
    #[arg(long, alias = "pin-name", value_name = "NAME", conflicts_with = "only_hash")]
    name: Option<String>,
    /// Print the last CID only: that of the last PATH, or of the folder around all of them
    #[arg(long, short = 'Q')]
    quieter: bool,
    /// Print an object of JSON on each line: cid, name, and size, which is the bytes of the files in it
    #[arg(long)]
    json: bool,
    /// Folders are always added with all that is in them; this is for those who are used to saying so.
    #[arg(long = "recursive", short = 'r', hide = true)]
    _recursive: bool,
    /// Which node is meant.
    #[command(flatten)]
    node: NodePlace,
}

fn profiles() -> impl clap::builder::TypedValueParser<Value = Profile> {
    PossibleValuesParser::new(Profile::NAMES).try_map(|name| Profile::named(&name).ok_or("no such profile"))
}

impl AddArgs {
    /// The settings that were given.
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

/// What decides about CIDs.
fn choose(
    profile: Option<Profile>,
    cid_version: Option<u8>,
    raw_leaves: Option<bool>,
    chunker: Option<Chunking>,
) -> Profile {
    let version = cid_version.map(|version| if version == 0 { Version::V0 } else { Version::V1 });
    chosen(profile.unwrap_or_default(), version, raw_leaves, chunker)
}

/// Adds what the arguments name, and prints what became of it.
///
/// # Errors
/// One that names the file that cannot be read, or says what is wrong with the store. Roots that were pinned before stay.
pub fn run(loaded: &Loaded, runtime: &Runtime, args: &AddArgs) -> anyhow::Result<()> {
    cache::pins::check_name(args.name.as_deref())?;
    let inputs = files::inputs(&args.paths)?;
    if args.wrap_with_directory {
        files::check_names(&inputs)?;
    }
    let profile = choose(args.profile.clone(), args.cid_version, args.raw_leaves, args.chunker);
    let work = Work { importer: Importer::new(profile)?, inputs, hidden: args.hidden, wrap: args.wrap_with_directory };
    let mut report = Report::new(args.lines());
    if report.is_watched() {
        files::measure(&work.inputs, args.hidden, report.total());
    }
    if args.only_hash {
        work.import(runtime, &mut |_| Ok(()), &mut report)?;
        return report.end();
    }
    let name = args.name.as_deref();
    match store_to_write(loaded, runtime, &args.node)? {
        Worker::Here(store) => {
            let policy = runtime.block_on(withheld::policy(loaded));
            let paths: Vec<String> = args.paths.iter().map(|path| path.display().to_string()).collect();
            let recorded = policy.and_then(|policy| {
                let record = Recorded::begin(&loaded.config.data_dir, "add", json!({ "paths": paths, "name": name }))?;
                let added = add_here(runtime, &*store, &*policy, work, name, &mut report);
                record.end(
                    added,
                    |roots| json!({ "roots": roots.iter().map(Cid::to_string).collect::<Vec<_>>(), "name": name }),
                )
            });
            and_close(runtime, &store, recorded)?;
        }
        Worker::There(remote) => add_there(runtime, &remote, work, name, &mut report)?,
    }
    report.end()
}

fn add_here(
    runtime: &Runtime,
    store: &dyn BlockStore,
    policy: &dyn Policy,
    work: Work,
    name: Option<&str>,
    report: &mut Report,
) -> anyhow::Result<Vec<Cid>> {
    let addition = runtime.block_on(Addition::begin(store))?;
    let mut sink = |block: Block| -> Result<(), SinkError> {
        admit(policy, block.cid())?;
        Ok(runtime.block_on(addition.put(&block))?)
    };
    let roots = work.import(runtime, &mut sink, report)?;
    report.pinning();
    let roots: Vec<_> = roots.into_iter().map(|root| root.cid).collect();
    runtime.block_on(addition.pin(&roots, name))?;
    Ok(roots)
}

/// The files are read and hashed here, by whoever may read them; the gateway gets blocks, but for those that it has.
fn add_there(
    runtime: &Runtime,
    remote: &Remote,
    work: Work,
    name: Option<&str>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut addition = runtime.block_on(async { remote.begin_addition(name, true) });
    let mut sink = |block: Block| runtime.block_on(addition.put(&block));
    let roots = match work.import(runtime, &mut sink, report) {
        Ok(roots) => roots,
        Err(error) => {
            runtime.block_on(addition.give_up())?;
            return Err(error);
        }
    };
    report.pinning();
    let roots: Vec<_> = roots.into_iter().map(|root| root.cid).collect();
    let pinned = runtime.block_on(addition.pin(&roots));
    // What it had a moment ago, it may have evicted before it read that it is needed. That is rare, and all is well the next time.
    pinned.map(drop).map_err(|error| match AskError::status(&error) {
        Some(StatusCode::CONFLICT) => {
            error.context("what was being added has changed at the gateway meanwhile: try again")
        }
        _ => error,
    })
}

/// What there is to do.
struct Work {
    importer: Importer,
    inputs: Vec<Input>,
    hidden: bool,
    wrap: bool,
}

impl Work {
    /// The roots of everything.
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
            assert_eq!(choose(args.profile, args.cid_version, args.raw_leaves, args.chunker), expected, "{words}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for words in ["", "--cid-version=2 f", "--profile best f", "--chunker=size-0 f", "-n --name x f"] {
            assert!(parse(words).is_err(), "{words}");
        }
    }
}
