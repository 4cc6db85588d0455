//! The inputs of `causeway add`: the arguments, and the files below them.
//!
//! Goals: a missing argument is detected before anything is read; a folder is always added in the same order (of names,
//! as bytes); a symlink is added and never followed, even if it is an argument.

use crate::progress;
use anyhow::{Context as _, bail};
use content::importer::Attributes;
use indicatif::WeakProgressBar;
use rustix::fs::OFlags;
use services::uploads::pipeline::Pipeline;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, FileType};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::{io, thread};

/// An input that an argument names.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    /// Standard input, whose name is its CID.
    Stdin,
    /// A file, folder or symlink.
    Path {
        /// The path.
        path: PathBuf,
        /// The name in the folder that is added.
        name: OsString,
    },
}

/// The inputs that the arguments name.
///
/// # Errors
/// When an argument cannot be added, as far as that is known without opening it.
pub fn inputs(arguments: &[PathBuf]) -> anyhow::Result<Vec<Input>> {
    let inputs: Vec<Input> = arguments.iter().map(|argument| Input::of(argument)).collect::<Result<_, _>>()?;
    if inputs.iter().filter(|input| **input == Input::Stdin).count() > 1 {
        bail!("standard input can be given only once");
    }
    Ok(inputs)
}

/// Checks that all inputs can be in one folder.
///
/// # Errors
/// When two inputs have the same name.
pub fn check_names(inputs: &[Input]) -> anyhow::Result<()> {
    let mut called: HashMap<&OsStr, &Path> = HashMap::new();
    for input in inputs {
        let Input::Path { path, name } = input else { continue };
        if let Some(other) = called.insert(name, path) {
            let (one, other, name) = (other.display(), path.display(), name.display());
            bail!("{one} and {other} have the same name {name}, so they cannot be in one folder");
        }
    }
    Ok(())
}

/// Checks that all inputs are files.
///
/// # Errors
/// When an input is a folder or a symlink.
pub fn check_files(inputs: &[Input]) -> anyhow::Result<()> {
    for input in inputs {
        if let Input::Path { path, .. } = input
            && !matches!(Kind::of(path)?, Kind::File)
        {
            bail!("{} is not a file: --packed is for files, each of which is pinned alone", path.display());
        }
    }
    Ok(())
}

/// Counts the bytes to read on a thread of its own, and sets them as the total of a progress line. With standard input,
/// the total stays unknown.
pub fn measure(inputs: &[Input], hidden: bool, line: WeakProgressBar) {
    let mut left: Vec<PathBuf> = Vec::new();
    for input in inputs {
        match input {
            Input::Stdin => return,
            Input::Path { path, .. } => left.push(path.clone()),
        }
    }
    thread::spawn(move || {
        let mut bytes = 0;
        while let Some(path) = left.pop() {
            match fs::symlink_metadata(&path) {
                Ok(found) if found.is_dir() => {
                    let below = names(&path, hidden).unwrap_or_default();
                    left.extend(below.into_iter().map(|name| path.join(name)));
                }
                Ok(found) if found.is_file() => bytes += found.len(),
                // Reading it will report the error.
                _ => {}
            }
        }
        if let Some(line) = line.upgrade() {
            progress::set_total(&line, bytes);
        }
    });
}

impl Input {
    fn of(argument: &Path) -> anyhow::Result<Self> {
        if argument == Path::new("-") {
            return Ok(Self::Stdin);
        }
        // Without a trailing slash, which would follow a symlink.
        let path: PathBuf = argument.components().collect();
        Kind::of(&path)?;
        let name = match path.file_name() {
            Some(name) => name.to_owned(),
            // "." and ".." have the name of their canonical path; "/" has no name.
            None => {
                let whole = fs::canonicalize(&path).with_context(|| unreadable(&path))?;
                whole.file_name().map(OsString::from).unwrap_or_default()
            }
        };
        Ok(Self::Path { path, name })
    }

    /// Adds the input with everything below it; hidden files below it only if `hidden` is set.
    ///
    /// # Errors
    /// When a file cannot be read, or its blocks cannot be stored.
    pub fn add_to(self, pipeline: &mut Pipeline<'_>, hidden: bool) -> anyhow::Result<()> {
        match self {
            Self::Stdin => {
                let stdin = io::stdin().lock();
                pipeline.file(None, Attributes::default(), stdin).context("standard input cannot be added")
            }
            Self::Path { path, name } => add(&path, name, hidden, pipeline),
        }
    }
}

/// A kind of file that can be added.
enum Kind {
    File,
    Folder,
    Symlink,
}

impl Kind {
    fn of(path: &Path) -> anyhow::Result<Self> {
        let found = fs::symlink_metadata(path).with_context(|| unreadable(path))?.file_type();
        Self::among(found).with_context(|| format!("{} is not a file, folder or symlink", path.display()))
    }

    fn among(found: FileType) -> Option<Self> {
        match found {
            found if found.is_file() => Some(Self::File),
            found if found.is_dir() => Some(Self::Folder),
            found if found.is_symlink() => Some(Self::Symlink),
            _ => None,
        }
    }
}

/// Opens a regular file. A symlink or FIFO that has replaced it meanwhile is neither followed nor waited for.
fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no longer a regular file")) }
}

/// Adds a file, symlink or folder. Recursive; the depth is bounded by the system's maximum length of a path.
fn add(path: &Path, name: OsString, hidden: bool, pipeline: &mut Pipeline<'_>) -> anyhow::Result<()> {
    let name = name.into_vec();
    match Kind::of(path)? {
        Kind::File => {
            let file = open_file(path).with_context(|| unreadable(path))?;
            let added = pipeline.file(Some(name), Attributes::default(), file);
            added.with_context(|| format!("{} cannot be added", path.display()))
        }
        Kind::Symlink => {
            let target = fs::read_link(path).with_context(|| unreadable(path))?;
            Ok(pipeline.symlink(name, target.into_os_string().into_vec(), Attributes::default())?)
        }
        Kind::Folder => {
            pipeline.enter(name)?;
            for name in names(path, hidden).with_context(|| unreadable(path))? {
                add(&path.join(&name), name, hidden, pipeline)?;
            }
            Ok(pipeline.leave()?)
        }
    }
}

/// The sorted names of a folder's entries.
fn names(folder: &Path, hidden: bool) -> io::Result<Vec<OsString>> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name()));
    let wanted = |name: &io::Result<OsString>| {
        hidden || !name.as_ref().is_ok_and(|name| name.as_encoded_bytes().starts_with(b"."))
    };
    let mut names = names.filter(wanted).collect::<io::Result<Vec<_>>>()?;
    names.sort_unstable();
    Ok(names)
}

fn unreadable(path: &Path) -> String {
    format!("{} cannot be read", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    #[test]
    fn inputs_have_the_names_of_their_paths() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("folder")).expect("a folder");
        fs::create_dir(at("folder/inner")).expect("a folder");
        symlink("folder", at("link")).expect("a symlink");
        let table = [
            ("folder", "folder"),
            ("folder/", "folder"),
            ("link/", "link"),
            ("folder/inner/..", "folder"),
            ("folder/.", "folder"),
        ];
        for (argument, expected) in table {
            let Ok(Input::Path { path, name }) = Input::of(&at(argument)) else { panic!("{argument}") };
            assert_eq!(name, expected, "{argument}");
            assert_eq!(path.is_symlink(), argument == "link/", "{argument}");
        }
        let Ok(Input::Path { name, .. }) = Input::of(Path::new("/")) else { panic!("/") };
        assert_eq!(name, "");
        assert!(inputs(&["-".into(), at("link")]).is_ok());
        assert!(inputs(&["-".into(), "-".into()]).is_err(), "standard input twice");
        assert!(check_names(&inputs(&[at("folder"), at("link"), "-".into()]).expect("are there")).is_ok());
        assert!(check_names(&inputs(&[at("folder"), at("folder/inner/..")]).expect("are there")).is_err());
        assert!(Input::of(&at("nothing")).is_err());
        let _socket = UnixListener::bind(at("socket")).expect("a socket");
        assert!(Input::of(&at("socket")).is_err());
    }

    #[test]
    fn names_are_sorted_and_hidden_ones_are_optional() {
        let dir = tempfile::tempdir().expect("a folder");
        for name in ["b", ".h", "a", "Z", "ä", "a.b"] {
            File::create(dir.path().join(name)).expect("a file");
        }
        assert_eq!(names(dir.path(), false).expect("lists"), ["Z", "a", "a.b", "b", "ä"]);
        assert_eq!(names(dir.path(), true).expect("lists"), [".h", "Z", "a", "a.b", "b", "ä"]);
    }
}
