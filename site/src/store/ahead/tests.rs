//! The state of blocks that are written ahead, step by step.

use super::*;
use bytes::Bytes;
use content::{codec, hashes};

const ONE: UploadId = 1;
const OTHER: UploadId = 2;

/// The state, with a room for its blocks.
struct Uploads {
    state: State,
    room: Arc<Semaphore>,
}

impl Uploads {
    fn new() -> Self {
        Self { state: State::default(), room: Arc::new(Semaphore::new(BLOCKS_MAX * 2)) }
    }

    /// Whether it has been queued.
    fn put(&mut self, upload: UploadId, block: &Block) -> bool {
        let puts = self.state.puts;
        let room = Arc::clone(&self.room).try_acquire_owned().expect("there is room");
        self.state.push(upload, key(block), block, room);
        self.state.puts > puts
    }

    /// Begins to write a batch. Returns its puts, and what is in the room no longer when it is dropped.
    fn begin(&mut self, upload: UploadId) -> (Vec<Put>, Vec<Queued>) {
        let batch = self.state.next_batch(upload);
        (batch.iter().map(|queued| queued.put).collect(), batch)
    }

    /// All of a batch is written. Returns the objects that it was written as, and those that are to be deleted.
    fn end(&mut self, upload: UploadId, batch: (Vec<Put>, Vec<Queued>)) -> (Vec<WrittenObject>, Vec<ObjectId>) {
        let (puts, queued) = batch;
        let written: Vec<WrittenObject> = queued.iter().map(written).collect();
        let needless = self.state.end_batch(upload, &puts, Ok(written.clone()));
        (written, needless)
    }

    fn write(&mut self, upload: UploadId) -> Vec<WrittenObject> {
        let batch = self.begin(upload);
        let (written, needless) = self.end(upload, batch);
        assert_eq!(needless, []);
        written
    }

    /// What is queued.
    fn queued(&self) -> usize {
        BLOCKS_MAX * 2 - self.room.available_permits()
    }

    /// The objects are deleted, and nothing is left.
    fn assert_empty(mut self, deleted: usize) {
        assert_eq!(self.state.discarding, deleted);
        assert_eq!(self.state.is_idle(), deleted == 0);
        self.state.discarding -= deleted;
        assert!(self.state.is_idle() && self.state.blocks.is_empty());
        assert_eq!(self.queued(), 0);
        assert!(self.state.uploads.values().all(|upload| upload.blocks == 0));
    }
}

fn block(number: usize) -> Block {
    Block::of(codec::RAW, hashes::SHA2_256, 32, Bytes::from(format!("block {number}"))).expect("a block")
}

fn key(block: &Block) -> BlockKey {
    block.key().expect("has a key")
}

fn keys(blocks: &[Block]) -> BTreeSet<BlockKey> {
    blocks.iter().map(key).collect()
}

/// An object for each put.
fn written(queued: &Queued) -> WrittenObject {
    let Put { key, number } = queued.put;
    let encoded = encode(&[(key, queued.block.clone())], CompressionOptions::default()).expect("is encoded");
    let shape = encoded[0].stored.shape();
    WrittenObject { object: ObjectId { key, generation: number }, bytes: 1, shape }
}

fn objects(written: &[WrittenObject]) -> Vec<ObjectId> {
    written.iter().map(|written| written.object).collect()
}

#[test]
fn a_pin_takes_what_is_written() {
    let (mut uploads, block) = (Uploads::new(), block(0));
    assert!(uploads.put(ONE, &block) && !uploads.put(ONE, &block), "once");
    let written = uploads.write(ONE);
    assert!(uploads.state.take_queued(&keys(std::slice::from_ref(&block))), "nothing is being written");
    assert_eq!(uploads.state.take(&keys(&[block])), written);
    assert_eq!(uploads.state.remove(ONE), []);
    uploads.assert_empty(0);
}

#[test]
fn a_pin_takes_over_what_is_queued() {
    let mut uploads = Uploads::new();
    let all: Vec<Block> = (0..5).map(block).collect();
    for block in &all {
        assert!(uploads.put(ONE, block));
    }
    assert!(uploads.state.take_queued(&keys(&all[..2])), "it does not wait for them");
    assert_eq!(uploads.queued(), 3, "their memory is released");
    let (puts, batch) = uploads.begin(ONE);
    assert_eq!(puts.iter().map(|put| put.key).collect::<BTreeSet<_>>(), keys(&all[2..]));
    uploads.end(ONE, (puts, batch));
    assert_eq!(uploads.state.take(&keys(&all)).len(), 3);
    uploads.assert_empty(0);
}

#[test]
fn a_pin_waits_for_what_is_being_written_and_not_for_the_rest() {
    let (mut uploads, first, second) = (Uploads::new(), block(0), block(1));
    uploads.put(ONE, &first);
    let batch = uploads.begin(ONE);
    uploads.put(ONE, &second);
    let both = keys(&[first, second]);
    assert!(!uploads.state.take_queued(&both));
    assert!(uploads.state.next_batch(ONE).is_empty(), "the second one is the pin's");
    let (written, needless) = uploads.end(ONE, batch);
    assert!(needless.is_empty() && uploads.state.take_queued(&both));
    assert_eq!(uploads.state.take(&both), written);
    uploads.assert_empty(0);
}

/// A pin has not waited, and the block is put once more while it is being written.
#[test]
fn a_batch_ends_its_own_puts_only() {
    let (mut uploads, block) = (Uploads::new(), block(0));
    let only = keys(std::slice::from_ref(&block));
    uploads.put(ONE, &block);
    let first = uploads.begin(ONE);
    assert_eq!(uploads.state.take(&only), []);
    assert!(uploads.put(ONE, &block));
    let second = uploads.begin(ONE);
    let (written, needless) = uploads.end(ONE, first);
    assert_eq!(needless, objects(&written));
    assert!(!uploads.state.take_queued(&only), "the second one is still being written");
    let (written, needless) = uploads.end(ONE, second);
    assert_eq!((needless, uploads.state.take(&only)), (Vec::new(), written));
    uploads.assert_empty(1);
}

#[test]
fn a_failure_stops_the_upload_and_leaves_the_blocks_of_others() {
    let mut uploads = Uploads::new();
    let all: Vec<Block> = (0..4).map(block).collect();
    uploads.put(ONE, &all[0]);
    let (puts, batch) = uploads.begin(ONE);
    uploads.put(ONE, &all[1]);
    // The other one puts the same block after a pin has taken it over, and writes it.
    assert!(uploads.state.take_queued(&keys(&all[1..2])));
    uploads.put(OTHER, &all[1]);
    let of_other = uploads.write(OTHER);
    uploads.put(ONE, &all[2]);
    assert_eq!(uploads.state.end_batch(ONE, &puts, Err(StoreError::Busy)), []);
    drop(batch);
    assert!(!uploads.put(ONE, &all[3]), "it has failed");
    assert!(uploads.state.next_batch(ONE).is_empty());
    assert_eq!(uploads.state.take(&keys(&all)), of_other);
    uploads.assert_empty(0);
}

#[test]
fn a_block_of_two_uploads_is_that_of_the_first() {
    let (mut uploads, block) = (Uploads::new(), block(0));
    assert!(uploads.put(ONE, &block) && !uploads.put(OTHER, &block));
    let written = uploads.write(ONE);
    assert_eq!(uploads.state.remove(OTHER), []);
    assert_eq!(uploads.state.remove(ONE), objects(&written));
    uploads.assert_empty(1);
}

#[test]
fn what_is_written_after_the_end_of_its_upload_is_deleted() {
    let (mut uploads, first, second) = (Uploads::new(), block(0), block(1));
    uploads.put(ONE, &first);
    let batch = uploads.begin(ONE);
    uploads.put(ONE, &second);
    assert_eq!(uploads.state.remove(ONE), []);
    assert_eq!(uploads.queued(), 1, "the second one is dropped");
    // Another one has it now.
    uploads.put(OTHER, &first);
    let (written, needless) = uploads.end(ONE, batch);
    assert_eq!(needless, objects(&written));
    assert_eq!(uploads.write(OTHER).len(), 1);
    assert!(uploads.state.next_batch(ONE).is_empty());
    assert_eq!(uploads.state.take(&keys(&[first, second])).len(), 1);
    uploads.assert_empty(1);
}

#[test]
fn what_is_withheld_is_taken_in_any_stage() {
    let mut uploads = Uploads::new();
    let all: Vec<Block> = (0..3).map(block).collect();
    uploads.put(ONE, &all[0]);
    let written = uploads.write(ONE);
    uploads.put(ONE, &all[1]);
    let batch = uploads.begin(ONE);
    uploads.put(ONE, &all[2]);
    assert_eq!(uploads.state.take_needless(&keys(&all)), objects(&written));
    let (written, needless) = uploads.end(ONE, batch);
    assert_eq!(needless, objects(&written));
    uploads.assert_empty(2);
}

#[test]
fn uploads_have_a_quarter_each_and_objects_count_until_they_are_deleted() {
    let mut uploads = Uploads::new();
    let mut numbers = 0..;
    let mut fill = |uploads: &mut Uploads, upload| {
        let next = || block(numbers.next().expect("is endless"));
        std::iter::repeat_with(next).take_while(|block| uploads.put(upload, block)).count()
    };
    for upload in 0..4 {
        assert_eq!(fill(&mut uploads, upload), UPLOAD_BLOCKS_MAX);
    }
    assert_eq!(fill(&mut uploads, 4), 0, "all places are taken");
    let written = uploads.write(0).len();
    assert_eq!(written, BATCH_BLOCKS);
    assert_eq!(uploads.state.remove(0).len(), BATCH_BLOCKS);
    assert_eq!(fill(&mut uploads, 4), UPLOAD_BLOCKS_MAX - BATCH_BLOCKS);
    uploads.state.discarding -= BATCH_BLOCKS;
    assert_eq!(fill(&mut uploads, 4), BATCH_BLOCKS);
    // A pin takes some of an upload's, which has room again then.
    assert_eq!(uploads.write(1).len(), BATCH_BLOCKS);
    let taken: BTreeSet<BlockKey> = uploads.state.blocks.keys().copied().collect();
    assert_eq!(uploads.state.take(&taken).len(), BATCH_BLOCKS);
    assert_eq!(fill(&mut uploads, 1), UPLOAD_BLOCKS_MAX);
    uploads.state.remove(1);
    uploads.assert_empty(0);
}

#[test]
fn nothing_is_queued_after_closing() {
    let (mut uploads, first, second) = (Uploads::new(), block(0), block(1));
    uploads.put(ONE, &first);
    let batch = uploads.begin(ONE);
    uploads.put(ONE, &second);
    uploads.state.close();
    assert!(!uploads.put(OTHER, &second) && !uploads.state.is_idle());
    let (written, _) = uploads.end(ONE, batch);
    assert!(uploads.state.is_idle());
    assert_eq!(uploads.state.remove(ONE), objects(&written));
    uploads.assert_empty(1);
}
