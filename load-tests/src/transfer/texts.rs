//! The texts: public data sets, if they were fetched, and otherwise generated ones of the same form.

use super::generated::{self, Generator};
use anyhow::{Context, Result, ensure};
use std::path::Path;

/// Of a generated data set. No multiple of a block: a data set that is repeated has other blocks then.
const GENERATED_BYTES: usize = 8_400_007;
const QUICK_DIVISOR: usize = 32;
const SEED: u64 = 1;

/// A data set: its file, and how it is generated.
const DATASETS: [(&str, Generator); 4] = [
    ("flights.csv", generated::flights_csv),
    ("cities.json", generated::cities_json),
    ("flights-200k.json", generated::flights_json),
    ("BidiTest.txt", generated::bidi_test),
];

pub struct Texts {
    datasets: Vec<Dataset>,
    is_real: bool,
}

pub struct Dataset {
    pub name: &'static str,
    pub bytes: Vec<u8>,
    is_real: bool,
}

impl Texts {
    /// All data sets of a directory, or generated ones: short ones if the run is a quick one.
    pub fn load(dir: Option<&Path>, is_quick: bool) -> Result<Self> {
        let generated_bytes = if is_quick { GENERATED_BYTES / QUICK_DIVISOR } else { GENERATED_BYTES };
        let load = |(name, generate): (&'static str, Generator)| {
            let bytes = match dir.map(|dir| dir.join(name)) {
                Some(path) => std::fs::read(&path).with_context(|| {
                    format!("{} cannot be read; `scripts/benchmark-data` fetches it", path.display())
                })?,
                None => generate(generated_bytes, SEED),
            };
            ensure!(!bytes.is_empty(), "{name} is empty");
            Ok::<_, anyhow::Error>(Dataset { name, bytes, is_real: dir.is_some() })
        };
        Ok(Self { datasets: DATASETS.into_iter().map(load).collect::<Result<_>>()?, is_real: dir.is_some() })
    }

    pub fn datasets(&self) -> &[Dataset] {
        &self.datasets
    }

    /// So many bytes: all data sets one after the other, and again.
    pub fn of(&self, bytes: usize) -> Vec<u8> {
        let mut text = Vec::with_capacity(bytes);
        for dataset in self.datasets.iter().cycle() {
            let left = bytes - text.len();
            text.extend_from_slice(&dataset.bytes[..dataset.bytes.len().min(left)]);
            if text.len() == bytes {
                break;
            }
        }
        text
    }

    /// What they are, in a sentence.
    pub fn about(&self) -> String {
        let names: Vec<&str> = self.datasets.iter().map(|dataset| dataset.name).collect();
        let how = if self.is_real { "as they are published" } else { "generated from a seed in their form" };
        format!("Texts are {}, {how}, one after the other and repeated.", names.join(", "))
    }
}

impl Dataset {
    pub fn about(&self) -> &'static str {
        if self.is_real { "as it is published" } else { "generated from a seed in its form" }
    }
}

#[test]
fn texts_have_the_length_and_repeat_no_block() {
    let texts = Texts::load(None, true).expect("memory does not fail");
    let lengths: Vec<usize> = texts.datasets().iter().map(|dataset| dataset.bytes.len()).collect();
    assert_eq!(lengths, [GENERATED_BYTES / QUICK_DIVISOR; 4]);
    let text = texts.of(4 << 20);
    assert_eq!(text.len(), 4 << 20);
    assert!(text.starts_with(&texts.datasets()[0].bytes) && texts.of(10) == text[..10]);
    let blocks: std::collections::HashSet<&[u8]> = text.chunks(256 << 10).collect();
    assert_eq!(blocks.len(), 16);
}

#[test]
fn data_sets_are_read_from_a_directory_which_has_all_of_them() {
    let dir = tempfile::TempDir::new().expect("the temporary directory is writable");
    assert!(Texts::load(Some(dir.path()), false).err().is_some_and(|error| error.to_string().contains("flights.csv")));
    for (name, _) in DATASETS {
        std::fs::write(dir.path().join(name), name).expect("there is space");
    }
    let texts = Texts::load(Some(dir.path()), false).expect("all are there");
    assert_eq!(texts.of(20), b"flights.csvcities.js");
    assert!(texts.about().contains("as they are published"));
}
