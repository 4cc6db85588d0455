//! Runs every input of the fuzzing corpus as a regression test, without a fuzzer.

#[path = "../../fuzz/src/corpus.rs"]
mod corpus;
#[path = "../../fuzz/src/network.rs"]
mod fuzz;

#[test]
fn every_input_of_the_corpus_passes() {
    corpus::run(&fuzz::TARGETS);
}
