//! The data: what web sites and archives are made of.

use super::{Options, image, made_up};
use crate::sample;
use crate::servers;
use anyhow::{Context, Result, ensure};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Texts that every Debian has (base-files).
const LICENCES: &str = "/usr/share/common-licenses";
/// What sources are.
const SOURCES: [&str; 3] = ["rs", "md", "toml"];
/// Folders of a source tree that hold nothing that somebody wrote.
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

    /// The files in a folder.
    pub fn written(&self) -> Result<TempDir> {
        let folder = servers::folder("corpus")?;
        for file in &self.files {
            std::fs::write(folder.path().join(&file.name), &file.bytes)?;
        }
        Ok(folder)
    }

    fn new(name: &'static str, about: impl Into<String>, extension: &str, contents: Vec<Vec<u8>>) -> Self {
        let name_of = |index| format!("{index:04}.{extension}");
        let files = contents.into_iter().enumerate();
        let files = files.map(|(index, bytes)| File { name: name_of(index), bytes }).collect();
        Self { name, about: about.into(), files }
    }
}

/// Every kind, and what this machine has not.
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
    let csv = made_up::csv(bytes, seed);
    let gzip = split(&csv, 1 << 20).map(gzip).collect::<Result<Vec<_>>>()?;
    corpora.extend([
        Corpus::new("text", "made up: words by Zipf's law", "txt", pieces(&sample::text(bytes, seed), 1 << 20)),
        Corpus::new("CSV", "made up: readings of sensors", "csv", pieces(&csv, 4 << 20)),
        Corpus::new("JSON", "made up: answers of an API", "json", made_up::json(bytes, 2 << 20, seed)),
        Corpus::new("HTML", "made up: pages of one site", "html", made_up::html(bytes, 90 << 10, seed)),
        Corpus::new("PNG, drawn", "made up, really encoded: areas of one colour", "png", image::drawings(bytes, seed)?),
        Corpus::new("PNG, photo", "made up, really encoded: gradients and noise", "png", image::photos(bytes, seed)?),
        Corpus::new(
            "JPEG-like",
            "noise behind true JPEG headers, as entropy-coded data looks",
            "jpg",
            made_up::jpeg_like(bytes, 300 << 10, seed),
        ),
        Corpus::new(
            "MP4-like",
            "true MP4 boxes: tables of sample sizes, then noise",
            "mp4",
            vec![made_up::mp4_like(bytes, seed)],
        ),
        Corpus::new("WAV", "made up, a real format: 16-bit tones with noise", "wav", vec![made_up::wav(bytes, seed)]),
        Corpus::new("gzip", "real: the CSV by gzip -6", "csv.gz", gzip),
        Corpus::new("random", "noise", "bin", pieces(&sample::bytes(bytes, seed), 4 << 20)),
    ]);
    Ok((corpora, notes))
}

fn split(bytes: &[u8], piece_bytes: usize) -> impl Iterator<Item = &[u8]> {
    bytes.chunks(piece_bytes)
}

fn pieces(bytes: &[u8], piece_bytes: usize) -> Vec<Vec<u8>> {
    split(bytes, piece_bytes).map(<[u8]>::to_vec).collect()
}

/// Files of a folder in the order of their paths, until there are enough bytes. Without extensions, all files.
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

/// Only real files, no links; a folder that is not there is empty.
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

/// The bytes as the gzip tool compresses them, without a name or a time.
pub fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut gzip = Command::new("gzip");
    gzip.args(["-6", "--no-name", "--stdout"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = gzip.spawn().context("gzip does not start")?;
    let mut stdin = child.stdin.take().context("gzip has no input")?;
    let output = std::thread::scope(|scope| {
        let writer = scope.spawn(move || stdin.write_all(bytes));
        let output = child.wait_with_output()?;
        writer.join().map_err(|_| anyhow::anyhow!("a thread failed"))??;
        Ok::<_, anyhow::Error>(output)
    })?;
    ensure!(output.status.success(), "gzip: {}", output.status);
    Ok(output.stdout)
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
        all(&options).expect("gzip is there")
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
    fn only_what_fits_is_taken_of_what_is_real() {
        let dir = TempDir::new().expect("the temporary folder is writable");
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
