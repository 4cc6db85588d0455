//! Runs fuzz targets on their corpora. This file is not a part of the library: tests of the fuzzed crates have it as a
//! module beside `fuzz`, which has the targets.

use super::fuzz::Function;
use std::fs;
use std::path::Path;

/// Runs each target on every input of the corpus with its name.
pub fn run(targets: &[(&str, Function)]) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    for (name, function) in targets {
        let folder = fs::read_dir(corpus.join(name)).unwrap_or_else(|error| panic!("the corpus of {name}: {error}"));
        let mut inputs = 0;
        for file in folder {
            let path = file.expect("a file").path();
            // A failing test shows its output: the last path is that of the failing input.
            println!("{}", path.display());
            function(&fs::read(&path).expect("an input"));
            inputs += 1;
        }
        assert!(inputs > 0, "{name} has no inputs");
    }
}
