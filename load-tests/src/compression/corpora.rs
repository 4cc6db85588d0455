//! The data: what web sites and archives are made of.

use super::{Options, image, synthetic};
use crate::directory::temp_dir;
use crate::sample;
use anyhow::{Context, Result};
use flate2::Compression;
use flate2::read::GzEncoder;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Texts that every Debian has (base-files).
const LICENCES: &str = "/usr/share/common-licenses";
/// Extensions of sources.
const SOURCES: [&str; 3] = ["rs", "md", "toml"];
/// Directories of a source tree without sources.
const NOT_SOURCES: [&str; 3] = ["target", "node_modules", "results"];

/// Files of one kind.
pub struct Corpus {
    pub name: &'static str,
    /// What it is, and whether it is real.
    pub about: String,
    pub files: Vec<File>,
}

pub struct File {
    pub name: String,
    pub bytes: Vec<u8>,
}

impl Corpus {
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes.len() as u64).sum()
    }

    /// The files in a directory.
    pub fn written(&self) -> Result<TempDir> {
        let directory = temp_dir("corpus")?;
        for file in &self.files {
            std::fs::write(directory.path().join(&file.name), &file.bytes)?;
        }
        Ok(directory)
    }

    fn new(name: &'static str, about: impl Into<String>, extension: &str, contents: Vec<Vec<u8>>) -> Self {
        let name_of = |index| format!("{index:04}.{extension}");
        let files = contents.into_iter().enumerate();
        let files = files.map(|(index, bytes)| File { name: name_of(index), bytes }).collect();
        Self { name, about: about.into(), files }
    }
}

/// Every kind, and what this machine does not have.
pub fn all(options: &Options) -> Result<(Vec<Corpus>, Vec<String>)> {
    let (bytes, seed) = (options.bytes(), options.seed);
    let mut corpora = Vec::new();
    let mut notes = Vec::new();
    let sources = "real: this source tree's .rs, .md and .toml files, cut to the size of the others";
    let licences = "real: the licence texts of Debian's base-files";
    for (name, about, dir, extensions) in [
        ("sources", sources, options.sources.as_path(), &SOURCES as &[&str]),
        ("licences", licences, Path::new(LICENCES), &[] as &[&str]),
    ] {
        match real(dir, extensions, bytes)? {
            files if files.is_empty() => notes.push(format!("`{name}` is left out: {} has none", dir.display())),
            files => corpora.push(Corpus { name, about: about.to_owned(), files }),
        }
    }
    let csv = synthetic::csv(bytes, seed);
    let gzip = csv.chunks(1 << 20).map(gzip).collect::<Result<Vec<_>>>()?;
    corpora.extend([
        Corpus::new("text", "synthetic: words by Zipf's law", "txt", pieces(&sample::text(bytes, seed), 1 << 20)),
        Corpus::new("CSV", "synthetic: readings of sensors", "csv", pieces(&csv, 4 << 20)),
        Corpus::new("JSON", "synthetic: answers of an API", "json", synthetic::json(bytes, 2 << 20, seed)),
        Corpus::new("HTML", "synthetic: pages of one site", "html", synthetic::html(bytes, 90 << 10, seed)),
        Corpus::new(
            "PNG, drawn",
            "synthetic, really encoded: areas of one colour",
            "png",
            image::drawings(bytes, seed)?,
        ),
        Corpus::new("PNG, photo", "synthetic, really encoded: gradients and noise", "png", image::photos(bytes, seed)?),
        Corpus::new(
            "JPEG-like",
            "noise behind true JPEG headers, as entropy-coded data looks",
            "jpg",
            synthetic::jpeg_like(bytes, 300 << 10, seed),
        ),
        Corpus::new(
            "MP4-like",
            "true MP4 boxes: tables of sample sizes, then noise",
            "mp4",
            vec![synthetic::mp4_like(bytes, seed)],
        ),
        Corpus::new(
            "WAV",
            "synthetic, a real format: 16-bit tones with noise",
            "wav",
            vec![synthetic::wav(bytes, seed)],
        ),
        Corpus::new("gzip", "real: the CSV by gzip, level 6", "csv.gz", gzip),
        Corpus::new("random", "noise", "bin", pieces(&sample::bytes(bytes, seed), 4 << 20)),
    ]);
    Ok((corpora, notes))
}

fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut packed = Vec::new();
    GzEncoder::new(bytes, Compression::new(6)).read_to_end(&mut packed)?;
    Ok(packed)
}

fn pieces(bytes: &[u8], piece_bytes: usize) -> Vec<Vec<u8>> {
    bytes.chunks(piece_bytes).map(<[u8]>::to_vec).collect()
}

/// Files of a directory in the order of their paths, until there are enough bytes. Without extensions, all files.
fn real(dir: &Path, extensions: &[&str], bytes_max: usize) -> Result<Vec<File>> {
    let mut paths = Vec::new();
    collect(dir, extensions, &mut paths).with_context(|| dir.display().to_string())?;
    paths.sort();
    let (mut files, mut left) = (Vec::new(), bytes_max);
    for (index, path) in paths.iter().enumerate() {
        let bytes = std::fs::read(path)?;
        if bytes.is_empty() || bytes.len() > left {
            continue;
        }
        left -= bytes.len();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        files.push(File { name: format!("{index:04}-{name}"), bytes });
    }
    Ok(files)
}

/// Only regular files, no links; a missing directory is empty.
fn collect(dir: &Path, extensions: &[&str], into: &mut Vec<PathBuf>) -> Result<()> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Ok(()) };
    for entry in entries {
        let entry = entry?;
        let (path, name, kind) = (entry.path(), entry.file_name(), entry.file_type()?);
        let name = name.to_string_lossy();
        if kind.is_dir() && !extensions.is_empty() && !name.starts_with('.') && !NOT_SOURCES.contains(&&*name) {
            collect(&path, extensions, into)?;
        }
        let extension = path.extension().unwrap_or_default().to_string_lossy();
        if kind.is_file() && (extensions.is_empty() || extensions.contains(&&*extension)) {
            into.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Run;

    fn quick() -> (Vec<Corpus>, Vec<String>) {
        let options = Options {
            causeway: PathBuf::new(),
            run: Run { out: PathBuf::new(), rounds: 1, quick: true },
            sources: Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
            bytes: 0,
            seed: 1,
        };
        all(&options).expect("memory does not fail")
    }

    #[test]
    fn every_kind_has_about_as_many_bytes_and_is_the_same_every_time() {
        let ((corpora, _), (again, _)) = (quick(), quick());
        assert!(corpora.len() >= 12, "{}", corpora.len());
        for (corpus, again) in corpora.iter().zip(&again) {
            let bytes = corpus.bytes();
            let least = if corpus.name == "licences" || corpus.name == "gzip" { 50_000 } else { 300_000 };
            assert!((least..=(1 << 20)).contains(&bytes), "{}: {bytes}", corpus.name);
            for (file, again) in corpus.files.iter().zip(&again.files) {
                assert!(file.name == again.name && file.bytes == again.bytes, "{}: {}", corpus.name, file.name);
            }
        }
    }

    #[test]
    fn real_files_are_taken_while_they_fit() {
        let dir = TempDir::new().expect("the temporary directory is writable");
        std::fs::create_dir(dir.path().join("target")).expect("it is new");
        for (name, bytes) in [("b.rs", 50), ("a.md", 60), ("c.bin", 10), ("d.rs", 30), ("target/e.rs", 1)] {
            std::fs::write(dir.path().join(name), vec![7; bytes]).expect("there is room");
        }
        let names = |extensions: &[&str]| -> Vec<String> {
            let files = real(dir.path(), extensions, 100).expect("it can be read");
            files.into_iter().map(|file| file.name).collect()
        };
        assert_eq!(names(&SOURCES), ["0000-a.md", "0002-d.rs"]);
        assert_eq!(names(&[]), ["0000-a.md", "0002-c.bin", "0003-d.rs"]);
        assert!(real(Path::new("/nowhere/at/all"), &[], 100).expect("nothing is there").is_empty());
    }
}
