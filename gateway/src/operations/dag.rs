//! [`Frontier`]: the blocks of a DAG in some order, each once, down to a depth.
//!
//! What was met is remembered in a few bytes for each block, and there is a limit to how many. It is for whoever walks
//! to read the blocks, and to say what they link to.

use content::Cid;
use content::cid::codec;
use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher as _;

/// Codecs that a block may be asked for by, of which a walk has met one.
const CODECS: [u64; 4] = [codec::RAW, codec::DAG_PB, codec::DAG_CBOR, codec::DAG_JSON];

/// The DAG has more blocks than are walked.
#[derive(Debug, PartialEq, Eq)]
pub struct TooMany(pub usize);

/// Where a walk is.
pub struct Frontier {
    keys: [RandomState; 2],
    /// What was met, by a fingerprint of 128 bits that is keyed at random, and how far below a root.
    met: HashMap<u128, u32>,
    /// The last found goes first: depth before breadth keeps this short.
    waiting: Vec<(Cid, u32)>,
    depth_max: u32,
    blocks_max: usize,
}

impl Frontier {
    /// A walk from some roots down to a depth, if there is a limit: the roots themselves are at depth 0.
    pub fn new(roots: &[Cid], depth_max: Option<u32>, blocks_max: usize) -> Self {
        let keys = [RandomState::new(), RandomState::new()];
        let depth_max = depth_max.unwrap_or(u32::MAX);
        let mut frontier = Self { keys, met: HashMap::new(), waiting: Vec::new(), depth_max, blocks_max };
        for root in roots {
            frontier.meet(root, 0);
        }
        frontier
    }

    /// The next block, and its depth.
    pub fn next(&mut self) -> Option<(Cid, u32)> {
        loop {
            let (cid, depth) = self.waiting.pop()?;
            // It may have been met again meanwhile, closer to a root.
            if self.met.get(&self.mark(&cid)).is_none_or(|known| *known >= depth) {
                return Some((cid, depth));
            }
        }
    }

    /// Whether what a block links to is wanted.
    pub fn goes_below(&self, cid: &Cid, depth: u32) -> bool {
        depth < self.depth_max && !matches!(cid.codec(), codec::RAW | codec::CBOR | codec::JSON)
    }

    /// A block at that depth links to these.
    ///
    /// # Errors
    /// [`TooMany`] when more blocks were met than are walked.
    pub fn links(&mut self, links: &[Cid], depth: u32) -> Result<(), TooMany> {
        for link in links.iter().rev() {
            if self.met.len() >= self.blocks_max && !self.met.contains_key(&self.mark(link)) {
                return Err(TooMany(self.blocks_max));
            }
            self.meet(link, depth.saturating_add(1));
        }
        Ok(())
    }

    /// Whether the bytes of a CID were met, under whatever codec.
    pub fn has_met(&self, cid: &Cid) -> bool {
        let under = |codec: u64| self.met.contains_key(&self.mark(&Cid::new_v1(codec, *cid.hash())));
        under(cid.codec()) || CODECS.into_iter().any(under)
    }

    fn meet(&mut self, cid: &Cid, depth: u32) {
        match self.met.entry(mark(&self.keys, cid)) {
            Entry::Occupied(known) if *known.get() <= depth => return,
            Entry::Occupied(mut known) => _ = known.insert(depth),
            Entry::Vacant(unknown) => _ = unknown.insert(depth),
        }
        self.waiting.push((*cid, depth));
    }

    fn mark(&self, cid: &Cid) -> u128 {
        mark(&self.keys, cid)
    }
}

fn mark(keys: &[RandomState; 2], cid: &Cid) -> u128 {
    let thing = (cid.codec(), cid.hash().code(), cid.hash().digest());
    let [high, low] = keys.each_ref().map(|key| key.hash_one(thing));
    u128::from(high) << 64 | u128::from(low)
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
        while let Some((cid, depth)) = frontier.next() {
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
        assert_eq!(walk(&diamond, None, 4), Err(TooMany(4)));
        // 4 is met far below first, and then right below the root: what is below it is wanted as well.
        let shortcut = [(0, 1), (1, 2), (2, 4), (0, 4), (4, 5)];
        let walked = walk(&shortcut, Some(2), 9).expect("few");
        assert!(walked.contains(&5), "{walked:?}");
        let mut cycle = walk(&[(0, 1), (1, 0)], None, 9).expect("ends");
        cycle.sort_unstable();
        assert_eq!(cycle, [0, 1]);
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
