use super::audit::audit;
use super::{block_of, budget, key, noisy, open, open_with};
use crate::import::{ImportError, RootsIn, import_car, import_car_with};
use crate::memory::{self, MemoryOptions};
use crate::{BlockStore as _, PinState};
use content::car::CarError;
use content::{Block, BlockSource, Cid, codec};

fn varint(mut number: usize, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(u8::try_from(number & 0x7f).expect("seven bits") | 0x80);
        number >>= 7;
    }
    out.push(u8::try_from(number).expect("seven bits"));
}

fn section(payload: &[&[u8]], out: &mut Vec<u8>) {
    varint(payload.iter().map(|part| part.len()).sum(), out);
    payload.iter().for_each(|part| out.extend_from_slice(part));
}

/// A CARv1 (<https://ipld.io/specs/transport/car/carv1/>), with a hand-written header in deterministic CBOR.
pub(super) fn car(roots: &[Cid], blocks: &[Block]) -> Vec<u8> {
    let mut header = vec![0xa2, 0x65];
    header.extend(b"roots");
    header.push(0x80 | u8::try_from(roots.len()).expect("few"));
    for root in roots {
        let cid = root.to_bytes();
        header.extend([0xd8, 0x2a, 0x58, u8::try_from(cid.len() + 1).expect("short"), 0]);
        header.extend(cid);
    }
    header.push(0x67);
    header.extend(b"version");
    header.push(1);
    let mut out = Vec::new();
    section(&[&header], &mut out);
    for block in blocks {
        section(&[&block.cid().to_bytes(), block.data()], &mut out);
    }
    out
}

/// A dag-pb node with links and no data (<https://ipld.io/specs/codecs/dag-pb/spec/>).
pub(super) fn node(children: &[&Block]) -> Block {
    let mut data = Vec::new();
    for child in children {
        let cid = child.cid().to_bytes();
        let mut link = vec![0x0a];
        section(&[&cid], &mut link);
        link.extend([0x12, 0x00]);
        data.push(0x12);
        section(&[&link], &mut data);
    }
    block_of(codec::DAG_PB, data)
}

/// Two roots that share a leaf, and a block that belongs to neither.
struct Archive {
    left: Block,
    right: Block,
    leaves: Vec<Block>,
    stray: Block,
}

fn archive() -> Archive {
    let leaves: Vec<_> = (0..20).map(|seed| noisy(seed, 8_000)).collect();
    let inner = node(&leaves[..11].iter().collect::<Vec<_>>());
    let left = node(&[&inner, &leaves[0]]);
    let right = node(&leaves[10..].iter().collect::<Vec<_>>());
    Archive { left, right, leaves: [leaves, vec![inner]].concat(), stray: noisy(99, 8_000) }
}

impl Archive {
    /// The blocks in the worst order: leaves first, roots last.
    fn blocks(&self) -> Vec<Block> {
        let mut blocks = vec![self.stray.clone()];
        blocks.extend(self.leaves.clone());
        blocks.extend([self.right.clone(), self.left.clone(), self.leaves[3].clone()]);
        blocks
    }
}

#[tokio::test]
async fn every_root_is_pinned_whatever_the_order_and_the_budget() {
    let dir = tempfile::tempdir().expect("a directory");
    // A cache with room for two of the blocks.
    let disk = open_with(dir.path(), budget(17_000)).expect("opens");
    let archive = archive();
    let (left, right, blocks) = (*archive.left.cid(), *archive.right.cid(), archive.blocks());
    let bytes = car(&[left, right, left], &blocks);
    let summary = import_car(&disk, &bytes[..], Some("docs".to_owned())).await.expect("imports");
    assert_eq!(summary.blocks, 25);
    assert_eq!(summary.bytes, blocks.iter().map(|block| block.data().len() as u64).sum::<u64>());
    let pins: Vec<_> = summary.pins.iter().map(|pin| (pin.root, pin.blocks, pin.state)).collect();
    assert_eq!(pins, [(left, 13, PinState::Complete), (right, 11, PinState::Complete)]);
    disk.flush().await.expect("flushes");
    audit(&disk);
    for block in blocks.iter().skip(1) {
        assert_eq!(disk.get(block.cid()).await.as_ref(), Ok(block));
    }
    assert!(!disk.is_pinned(&key(&archive.stray)).await.expect("reads"), "a stray block is only cached");
    import_car(&disk, &bytes[..], None).await.expect("imports again");
    let pins = disk.pins().await.expect("lists");
    assert_eq!(pins.len(), 2);
    assert!(pins.iter().all(|pin| pin.name.as_deref() == Some("docs")));
}

#[tokio::test]
async fn an_incomplete_dag_is_rejected_with_the_missing_cid() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let archive = archive();
    let missing = archive.leaves[15].clone();
    let blocks: Vec<_> = archive.blocks().into_iter().filter(|block| *block != missing).collect();
    let bytes = car(&[*archive.left.cid(), *archive.right.cid()], &blocks);
    let error = import_car(&disk, &bytes[..], None).await.expect_err("incomplete");
    let (right, absent) = (*archive.right.cid(), *missing.cid());
    assert!(matches!(&error, ImportError::Incomplete { root, missing } if (*root, *missing) == (right, absent)));
    let message = error.to_string();
    assert!(message.contains(&right.to_string()) && message.contains(&absent.to_string()), "{message}");
    let states: Vec<_> = disk.pins().await.expect("lists").into_iter().map(|pin| (pin.root, pin.state)).collect();
    assert!(states.contains(&(*archive.left.cid(), PinState::Complete)));
    assert!(states.contains(&(right, PinState::Partial)));
    // Blocks that the archive lacks may be in the store.
    disk.put_cached(missing).await;
    disk.flush().await.expect("flushes");
    import_car(&disk, &bytes[..], None).await.expect("imports");
    disk.flush().await.expect("flushes");
    audit(&disk);
}

#[tokio::test]
async fn truncated_damaged_and_rootless_archives_are_rejected() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let archive = archive();
    let whole = car(&[*archive.left.cid()], &archive.blocks());
    let cut = import_car(&disk, &whole[..whole.len() - 1], None).await;
    assert!(matches!(cut, Err(ImportError::Car(CarError::Truncated(_)))), "{cut:?}");
    let mut flipped = whole.clone();
    *flipped.last_mut().expect("not empty") ^= 1;
    assert!(matches!(import_car(&disk, &flipped[..], None).await, Err(ImportError::Car(CarError::Block(_)))));
    assert!(matches!(import_car(&disk, &car(&[], &[])[..], None).await, Err(ImportError::NoRoots)));
    disk.flush().await.expect("flushes");
    assert_eq!(disk.stats().pinned_bytes, 0, "nothing stays protected");
    assert_eq!(disk.pins().await.expect("lists"), []);
    audit(&disk);
}

#[tokio::test]
async fn roots_known_last_are_listed_in_the_last_block_which_is_not_stored() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open_with(dir.path(), budget(17_000)).expect("opens");
    let archive = archive();
    let (left, right) = (*archive.left.cid(), *archive.right.cid());
    let list = content::car::roots_block(&[right, left, right]).expect("a short list");
    let import = async |roots: &[Cid], blocks: &[Block]| {
        let bytes = car(roots, blocks);
        import_car_with(&disk, &bytes[..], Some("mine".to_owned()), RootsIn::LastBlock, &|_| Ok(())).await
    };
    let blocks = archive.blocks();
    let with = |last: &Block| [&blocks[..], std::slice::from_ref(last)].concat();
    let empty = content::car::roots_block(&[]).expect("a short list");
    let refused = [
        import(&[left], &with(&list)).await.expect_err("two lists"),
        import(&[], &blocks).await.expect_err("no list"),
        import(&[], &with(&block_of(codec::DAG_CBOR, b"\xa0".to_vec()))).await.expect_err("it is not a list either"),
    ];
    assert!(refused.iter().all(|error| matches!(error, ImportError::Car(CarError::Roots(_)))), "{refused:?}");
    for nothing in [&[][..], &with(&empty)] {
        assert!(matches!(import(&[], nothing).await, Err(ImportError::NoRoots)));
    }
    disk.flush().await.expect("flushes");
    assert_eq!((disk.pins().await.expect("lists"), disk.stats().pinned_bytes), (vec![], 0), "nothing stays protected");

    let summary = import(&[], &with(&list)).await.expect("imports");
    assert_eq!((summary.blocks, summary.pins.len()), (25, 2));
    let pins: Vec<_> = summary.pins.into_iter().map(|pin| (pin.root, pin.name.expect("named"), pin.blocks)).collect();
    assert_eq!(pins, [(right, "mine".to_owned(), 11), (left, "mine".to_owned(), 13)]);
    assert_eq!(disk.has(list.cid()).await, Ok(false));
    disk.flush().await.expect("flushes");
    audit(&disk);
}

#[tokio::test]
async fn stored_blocks_need_only_be_referred_to() {
    let archive = archive();
    let root = *archive.left.cid();
    let list = content::car::roots_block(&[root]).expect("a short list");
    let (dir, in_memory) = (tempfile::tempdir().expect("a directory"), memory::open(&MemoryOptions::default()));
    let stores = [open_with(dir.path(), budget(1 << 20)).expect("opens").handle(), in_memory.expect("opens")];
    for store in stores {
        let import = async |brought: &[Block], named: &[Block], roots_in| {
            let mut bytes = car(&[], &[]);
            named.iter().for_each(|block| bytes.extend_from_slice(&content::car::reference(block.cid())));
            brought
                .iter()
                .chain([&list])
                .for_each(|block| section(&[&block.cid().to_bytes(), block.data()], &mut bytes));
            import_car_with(&*store, &bytes[..], None, roots_in, &|_| Ok(())).await
        };
        let (held, rest) = archive.leaves.split_at(5);
        let rest: Vec<Block> = rest.iter().chain([&archive.left]).cloned().collect();
        let error = import(&rest, held, RootsIn::LastBlock).await.expect_err("nothing is stored yet");
        assert!(matches!(error, ImportError::Gone { .. }), "{error}");
        store.flush().await.expect("flushes");
        assert_eq!(store.stats().pinned_bytes, 0, "nothing stays protected");

        for block in held {
            store.put_cached(block.clone()).await;
        }
        store.flush().await.expect("flushes");
        let summary = import(&rest, held, RootsIn::LastBlock).await.expect("imports");
        assert_eq!((summary.blocks, summary.pins[0].blocks), (rest.len() as u64, 13));
        for block in held {
            assert!(store.is_pinned(&key(block)).await.expect("reads"), "it was only cached before");
        }
        // An ordinary archive must contain its blocks.
        let mut bytes = car(&[root], &[]);
        bytes.extend_from_slice(&content::car::reference(held[0].cid()));
        let error = import_car(&*store, &bytes[..], None).await.expect_err("it has no blocks");
        assert!(matches!(error, ImportError::Car(CarError::Block(_))), "{error}");
    }
}

#[tokio::test]
async fn a_temporary_pin_left_by_a_crash_is_released_when_the_store_is_opened() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = open(dir.path());
    let attempt = disk.begin_temporary_pin().await.expect("raised");
    disk.put_member(&noisy(1, 1_000), &attempt).await.expect("puts");
    disk.flush().await.expect("flushes");
    assert!(disk.is_pinned(&key(&noisy(1, 1_000))).await.expect("reads"));
    drop(disk);
    let disk = open(dir.path());
    disk.flush().await.expect("flushes");
    assert!(!disk.is_pinned(&key(&noisy(1, 1_000))).await.expect("reads"));
    audit(&disk);
}
