//! [`Frontier`]: a depth-first traversal of a DAG, down to a depth. The caller reads the blocks and passes their links.
//!
//! The set of seen blocks takes a few bytes for each block. Its size and the length of the queue are limited.
//!
//! Each block is visited once; but if the depth is limited, a block that is found again nearer to a root is visited
//! again, since blocks below it may now be within the depth. A malicious DAG could cause many such visits, so their
//! number is limited as well, to the maximum number of blocks.

use content::cid::codec;
use content::fingerprints::FingerprintHasher;
use content::{Cid, Multihash};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The codecs with which other CIDs may refer to the same bytes.
const CODECS: [u64; 4] = [codec::RAW, codec::DAG_PB, codec::DAG_CBOR, codec::DAG_JSON];
/// The maximum length of the queue. A DAG needs as many entries as the blocks on one path from the root have links.
const QUEUE_MAX: usize = 1 << 20;

/// The DAG exceeds a limit of the traversal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DagLimit {
    /// It has more blocks than this, or revisits blocks more often.
    #[error("the DAG has more than {0} blocks (http.dag_blocks_max)")]
    Blocks(usize),
    /// The queue would be longer than this.
    #[error("the traversal of the DAG would have to queue more than {0} links")]
    Queue(usize),
}

/// A visit of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The block.
    pub cid: Cid,
    /// Its distance from a root.
    pub depth: u32,
    /// Whether it was visited before, at a greater depth.
    pub again: bool,
}

/// A seen block.
struct Seen {
    /// The least depth at which it was found.
    depth: u32,
    /// Whether it has been visited.
    visited: bool,
}

/// The state of a traversal.
pub struct Frontier {
    marker: FingerprintHasher,
    seen: HashMap<u128, Seen>,
    /// CIDs in binary, which take less than half the memory of [`Cid`]. It is a stack, since a depth-first order keeps
    /// it short.
    queue: Vec<(Box<[u8]>, u32)>,
    queue_max: usize,
    depth_max: Option<u32>,
    blocks_max: usize,
    /// The number of repeated visits.
    repeated: usize,
}

impl Frontier {
    /// A traversal from some roots, optionally down to a depth; the roots have the depth 0.
    pub fn new(roots: &[Cid], depth_max: Option<u32>, blocks_max: usize) -> Self {
        let (marker, seen, queue) = (FingerprintHasher::default(), HashMap::new(), Vec::new());
        let queue_max = QUEUE_MAX;
        let mut frontier = Self { marker, seen, queue, queue_max, depth_max, blocks_max, repeated: 0 };
        for root in roots {
            frontier.push(root, 0);
        }
        frontier
    }

    /// The next visit.
    pub fn next(&mut self) -> Option<Step> {
        loop {
            let (bytes, depth) = self.queue.pop()?;
            // The bytes are those of a valid CID.
            let Ok(cid) = Cid::try_from(&*bytes) else { continue };
            let Some(seen) = self.seen.get_mut(&self.marker.mark(identity(&cid))) else { continue };
            // The block was found again nearer to a root meanwhile, and has been visited there.
            if seen.depth < depth {
                continue;
            }
            let again = std::mem::replace(&mut seen.visited, true);
            self.repeated += usize::from(again);
            return Some(Step { cid, depth, again });
        }
    }

    /// Whether the traversal follows the links of a block.
    pub fn descends_below(&self, cid: &Cid, depth: u32) -> bool {
        let is_leaf = matches!(cid.codec(), codec::RAW | codec::CBOR | codec::JSON);
        self.depth_max.is_none_or(|max| depth < max) && !is_leaf
    }

    /// Adds the links of a block at `depth`.
    ///
    /// # Errors
    /// [`DagLimit`] if there are too many blocks, or the queue would be too long.
    pub fn links(&mut self, links: &[Cid], depth: u32) -> Result<(), DagLimit> {
        for link in links.iter().rev() {
            let is_seen = self.seen.contains_key(&self.marker.mark(identity(link)));
            if self.seen.len() >= self.blocks_max && !is_seen || self.repeated >= self.blocks_max {
                return Err(DagLimit::Blocks(self.blocks_max));
            }
            if self.queue.len() >= self.queue_max {
                return Err(DagLimit::Queue(self.queue_max));
            }
            self.push(link, depth.saturating_add(1));
        }
        Ok(())
    }

    /// Whether the bytes of a CID were seen, under any codec.
    pub fn has_seen(&self, cid: &Cid) -> bool {
        let under = |codec: u64| self.seen.contains_key(&self.marker.mark((codec, cid.hash())));
        under(cid.codec()) || CODECS.into_iter().any(under)
    }

    fn push(&mut self, cid: &Cid, depth: u32) {
        match self.seen.entry(self.marker.mark(identity(cid))) {
            Entry::Occupied(known) if self.depth_max.is_none() || known.get().depth <= depth => return,
            Entry::Occupied(mut known) => known.get_mut().depth = depth,
            Entry::Vacant(unknown) => _ = unknown.insert(Seen { depth, visited: false }),
        }
        self.queue.push((cid.to_bytes().into(), depth));
    }
}

/// The identity of a block: the version of a CID does not matter.
fn identity(cid: &Cid) -> (u64, &Multihash) {
    (cid.codec(), cid.hash())
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::hashes;

    fn cid(codec: u64, n: u32) -> Cid {
        Cid::new_v1(codec, hashes::digest(hashes::SHA2_256, 32, &n.to_be_bytes()).expect("a hash"))
    }

    fn node(n: u32) -> Cid {
        cid(codec::DAG_PB, n)
    }

    /// Traverses a DAG, given as pairs of a node and a node that it links to.
    fn walk(edges: &[(u32, u32)], depth_max: Option<u32>, max: usize) -> Result<Vec<u32>, DagLimit> {
        let mut frontier = Frontier::new(&[node(0)], depth_max, max);
        let mut order = Vec::new();
        while let Some(Step { cid, depth, .. }) = frontier.next() {
            let number = (0..100).find(|n| node(*n) == cid).expect("one of ours");
            order.push(number);
            if frontier.descends_below(&cid, depth) {
                let links: Vec<Cid> =
                    edges.iter().filter(|(from, _)| *from == number).map(|(_, to)| node(*to)).collect();
                frontier.links(&links, depth)?;
            }
        }
        Ok(order)
    }

    #[test]
    fn each_block_is_walked_once_to_its_depth() {
        let diamond = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)];
        assert_eq!(walk(&diamond, None, 9), Ok(vec![0, 1, 3, 4, 2]));
        assert_eq!(walk(&diamond, Some(0), 9), Ok(vec![0]));
        assert_eq!(walk(&diamond, Some(2), 9), Ok(vec![0, 1, 3, 2]));
        assert_eq!(walk(&diamond, None, 4), Err(DagLimit::Blocks(4)));
        // 4 is found deep in the DAG first, and then directly below the root, so that its links are followed as well.
        let shortcut = [(0, 1), (1, 2), (2, 4), (0, 4), (4, 5)];
        let walked = walk(&shortcut, Some(2), 9).expect("few");
        assert!(walked.contains(&5), "{walked:?}");
        let mut cycle = walk(&[(0, 1), (1, 0)], None, 9).expect("ends");
        cycle.sort_unstable();
        assert_eq!(cycle, [0, 1]);
    }

    #[test]
    fn a_block_is_revisited_only_for_blocks_below_it_and_a_limited_number_of_times() {
        // Node 4k links to node 4(k + 1) by a long path, which is traversed first, and by a short one.
        let ways = |k: u32| [(k, k + 1), (k, k + 3), (k + 1, k + 2), (k + 2, k + 4), (k + 3, k + 4)];
        let one: Vec<_> = ways(0).into();
        let again = |depth_max| {
            let mut frontier = Frontier::new(&[node(0)], depth_max, 9);
            let mut again = Vec::new();
            while let Some(step) = frontier.next() {
                let number = (0..9).find(|n| node(*n) == step.cid).expect("one of ours");
                again.extend(step.again.then_some(number));
                let links: Vec<Cid> = one.iter().filter(|(from, _)| *from == number).map(|(_, to)| node(*to)).collect();
                frontier.links(&links, step.depth).expect("few");
            }
            again
        };
        assert_eq!(again(None), [0; 0], "without a limit, all below it was wanted the first time");
        assert_eq!(again(Some(9)), [4]);
        let many: Vec<_> = (0..24).flat_map(|k| ways(4 * k)).collect();
        assert_eq!(walk(&many, None, 97).map(|walked| walked.len()), Ok(97));
        assert_eq!(walk(&many, Some(1000), 97), Err(DagLimit::Blocks(97)));
    }

    #[test]
    fn the_queue_is_bounded_and_keeps_cids_unchanged() {
        let inline = Cid::new_v1(codec::RAW, hashes::digest(hashes::IDENTITY, 128, &[7; 128]).expect("a hash"));
        let old = Cid::new_v0(*node(1).hash()).expect("SHA-256");
        let links = [inline, old, cid(codec::DAG_CBOR, 3)];
        let mut frontier = Frontier::new(&[node(0)], None, 99);
        frontier.queue_max = links.len() + 1;
        assert_eq!(frontier.links(&links, 0), Ok(()));
        assert_eq!(frontier.links(&[node(9)], 0), Err(DagLimit::Queue(4)));
        let visited: Vec<Cid> = std::iter::from_fn(|| frontier.next()).map(|step| step.cid).collect();
        assert_eq!(visited, [&links[..], &[node(0)]].concat());
    }

    #[test]
    fn bytes_are_seen_under_every_codec_and_leaves_have_no_links() {
        let mut frontier = Frontier::new(&[node(1)], None, 9);
        assert!(frontier.has_seen(&cid(codec::RAW, 1)) && !frontier.has_seen(&node(2)));
        frontier.links(&[cid(codec::RAW, 2)], 0).expect("few");
        assert!(frontier.has_seen(&node(2)));
        assert!(frontier.descends_below(&node(1), 7) && !frontier.descends_below(&cid(codec::RAW, 2), 1));
    }
}
