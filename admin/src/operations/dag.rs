//! [`Frontier`]: the blocks of a DAG in some order, down to a depth.
//!
//! What was met is remembered in a few bytes for each block, and there are limits to how many, and to how many wait. It is
//! for whoever walks to read the blocks, and to say what they link to.
//!
//! Each block comes once; but where there is a limit to the depth, one that is met again closer to a root comes again, for
//! what is below it may be wanted after all. Somebody who makes a DAG for it could have that happen over and over, so as
//! many blocks as may be met may come again, and no more.

use content::cid::codec;
use content::fingerprints::Marker;
use content::{Cid, Multihash};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Codecs that a block may be asked for by, of which a walk has met one.
const CODECS: [u64; 4] = [codec::RAW, codec::DAG_PB, codec::DAG_CBOR, codec::DAG_JSON];
/// Blocks that wait to come. A DAG needs as many as its blocks on one path from the root have links.
const WAITING_MAX: usize = 1 << 20;

/// The DAG is more than is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TooMany {
    /// It has more blocks than this, or leads to them again more often.
    #[error("it has more than {0} blocks (http.dag_blocks_max)")]
    Blocks(usize),
    /// More of them than this would have to wait.
    #[error("more than {0} of its links are beside each other")]
    Waiting(usize),
}

/// A block to walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The block.
    pub cid: Cid,
    /// How far below a root.
    pub depth: u32,
    /// Whether it came before, from farther below.
    pub again: bool,
}

/// A block that was met.
struct Met {
    /// The least depth at which it was.
    depth: u32,
    /// Whether it has come.
    came: bool,
}

/// Where a walk is.
pub struct Frontier {
    marker: Marker,
    met: HashMap<u128, Met>,
    /// CIDs in binary, which take less than half as much so. The last found goes first: depth before breadth keeps this short.
    waiting: Vec<(Box<[u8]>, u32)>,
    waiting_max: usize,
    depth_max: Option<u32>,
    blocks_max: usize,
    /// How many blocks came again.
    repeated: usize,
}

impl Frontier {
    /// A walk from some roots down to a depth, if there is a limit: the roots themselves are at depth 0.
    pub fn new(roots: &[Cid], depth_max: Option<u32>, blocks_max: usize) -> Self {
        let (marker, met, waiting) = (Marker::default(), HashMap::new(), Vec::new());
        let waiting_max = WAITING_MAX;
        let mut frontier = Self { marker, met, waiting, waiting_max, depth_max, blocks_max, repeated: 0 };
        for root in roots {
            frontier.meet(root, 0);
        }
        frontier
    }

    /// The next block.
    pub fn next(&mut self) -> Option<Step> {
        loop {
            let (bytes, depth) = self.waiting.pop()?;
            // What was written here can be read.
            let Ok(cid) = Cid::try_from(&*bytes) else { continue };
            let Some(met) = self.met.get_mut(&self.marker.mark(what(&cid))) else { continue };
            // It may have been met again meanwhile, closer to a root, and has come from there.
            if met.depth < depth {
                continue;
            }
            let again = std::mem::replace(&mut met.came, true);
            self.repeated += usize::from(again);
            return Some(Step { cid, depth, again });
        }
    }

    /// Whether what a block links to is wanted.
    pub fn goes_below(&self, cid: &Cid, depth: u32) -> bool {
        let is_leaf = matches!(cid.codec(), codec::RAW | codec::CBOR | codec::JSON);
        self.depth_max.is_none_or(|max| depth < max) && !is_leaf
    }

    /// A block at that depth links to these.
    ///
    /// # Errors
    /// [`TooMany`] when more blocks were met than are walked, or more would wait.
    pub fn links(&mut self, links: &[Cid], depth: u32) -> Result<(), TooMany> {
        for link in links.iter().rev() {
            let is_known = self.met.contains_key(&self.marker.mark(what(link)));
            if self.met.len() >= self.blocks_max && !is_known || self.repeated >= self.blocks_max {
                return Err(TooMany::Blocks(self.blocks_max));
            }
            if self.waiting.len() >= self.waiting_max {
                return Err(TooMany::Waiting(self.waiting_max));
            }
            self.meet(link, depth.saturating_add(1));
        }
        Ok(())
    }

    /// Whether the bytes of a CID were met, under whatever codec.
    pub fn has_met(&self, cid: &Cid) -> bool {
        let under = |codec: u64| self.met.contains_key(&self.marker.mark((codec, cid.hash())));
        under(cid.codec()) || CODECS.into_iter().any(under)
    }

    fn meet(&mut self, cid: &Cid, depth: u32) {
        match self.met.entry(self.marker.mark(what(cid))) {
            Entry::Occupied(known) if self.depth_max.is_none() || known.get().depth <= depth => return,
            Entry::Occupied(mut known) => known.get_mut().depth = depth,
            Entry::Vacant(unknown) => _ = unknown.insert(Met { depth, came: false }),
        }
        self.waiting.push((cid.to_bytes().into(), depth));
    }
}

/// What tells blocks apart; the version of a CID does not.
fn what(cid: &Cid) -> (u64, &Multihash) {
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

    /// Walks a DAG of nodes, given as pairs of a node and one it links to.
    fn walk(edges: &[(u32, u32)], depth_max: Option<u32>, max: usize) -> Result<Vec<u32>, TooMany> {
        let mut frontier = Frontier::new(&[node(0)], depth_max, max);
        let mut order = Vec::new();
        while let Some(Step { cid, depth, .. }) = frontier.next() {
            let number = (0..100).find(|n| node(*n) == cid).expect("one of ours");
            order.push(number);
            if frontier.goes_below(&cid, depth) {
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
        assert_eq!(walk(&diamond, None, 4), Err(TooMany::Blocks(4)));
        // 4 is met far below first, and then right below the root: what is below it is wanted as well.
        let shortcut = [(0, 1), (1, 2), (2, 4), (0, 4), (4, 5)];
        let walked = walk(&shortcut, Some(2), 9).expect("few");
        assert!(walked.contains(&5), "{walked:?}");
        let mut cycle = walk(&[(0, 1), (1, 0)], None, 9).expect("ends");
        cycle.sort_unstable();
        assert_eq!(cycle, [0, 1]);
    }

    #[test]
    fn a_block_comes_again_only_for_what_is_below_it_and_not_for_ever() {
        // Node 4k leads to node 4(k + 1) by a long way, which is walked first, and by a short one.
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
        assert_eq!(walk(&many, Some(1000), 97), Err(TooMany::Blocks(97)));
    }

    #[test]
    fn what_waits_is_bounded_and_comes_as_it_was() {
        let inline = Cid::new_v1(codec::RAW, hashes::digest(hashes::IDENTITY, 128, &[7; 128]).expect("a hash"));
        let old = Cid::new_v0(*node(1).hash()).expect("SHA-256");
        let links = [inline, old, cid(codec::DAG_CBOR, 3)];
        let mut frontier = Frontier::new(&[node(0)], None, 99);
        frontier.waiting_max = links.len() + 1;
        assert_eq!(frontier.links(&links, 0), Ok(()));
        assert_eq!(frontier.links(&[node(9)], 0), Err(TooMany::Waiting(4)));
        let came: Vec<Cid> = std::iter::from_fn(|| frontier.next()).map(|step| step.cid).collect();
        assert_eq!(came, [&links[..], &[node(0)]].concat());
    }

    #[test]
    fn bytes_are_known_under_every_codec_and_leaves_have_nothing_below() {
        let mut frontier = Frontier::new(&[node(1)], None, 9);
        assert!(frontier.has_met(&cid(codec::RAW, 1)) && !frontier.has_met(&node(2)));
        frontier.links(&[cid(codec::RAW, 2)], 0).expect("few");
        assert!(frontier.has_met(&node(2)));
        assert!(frontier.goes_below(&node(1), 7) && !frontier.goes_below(&cid(codec::RAW, 2), 1));
    }
}
