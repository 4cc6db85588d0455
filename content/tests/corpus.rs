//! Runs every input of the fuzzing corpora, so that fixed bugs stay fixed, without a fuzzer.

#[path = "../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../fuzz/src/content.rs"]
mod fuzz;

#[test]
fn every_input_of_the_corpus_passes() {
    corpus::run(&fuzz::TARGETS);
}
