//! Every input that fuzzing ever found worth keeping, run again: what was wrong once stays right, without a fuzzer.

use std::fs;
use std::path::Path;

#[path = "../../fuzz/src/lib.rs"]
mod fuzz;

#[test]
fn every_input_of_the_corpus_passes() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    for (name, function) in fuzz::TARGETS {
        let folder = fs::read_dir(corpus.join(name)).unwrap_or_else(|error| panic!("the corpus of {name}: {error}"));
        let mut inputs = 0;
        for file in folder {
            let path = file.expect("a file").path();
            // A failing test shows what it wrote: the last input is the one at fault.
            println!("{}", path.display());
            function(&fs::read(&path).expect("an input"));
            inputs += 1;
        }
        assert!(inputs > 0, "{name} has no inputs");
    }
}
