//! [`CidList`]: many CIDs in little memory.

use crate::cid::Cid;

/// The number of CIDs in a batch.
const BATCH_CIDS: usize = 1024;

/// A list of CIDs as their bytes: some 40 bytes each, a quarter of a [`Cid`].
#[derive(Debug, Default)]
pub struct CidList {
    /// Batches of concatenated CIDs.
    batches: Vec<Vec<u8>>,
    len: usize,
}

impl CidList {
    /// Appends a CID.
    pub fn push(&mut self, cid: &Cid) {
        if self.len.is_multiple_of(BATCH_CIDS) {
            self.batches.push(Vec::new());
        }
        self.len += 1;
        // Writing to memory does not fail.
        self.batches.last_mut().into_iter().for_each(|batch| _ = cid.write_bytes(batch));
    }

    /// The number of CIDs.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The CIDs, in order.
    pub fn iter(&self) -> impl Iterator<Item = Cid> + '_ {
        self.batches.iter().flat_map(|batch| read(batch))
    }

    /// The CIDs in batches, in reverse order. Where blocks are listed in the order in which a traversal finds them,
    /// those that are left can still be found from the root if deleting them ends early.
    pub fn batches_reversed(&self) -> impl Iterator<Item = Vec<Cid>> + '_ {
        self.batches.iter().rev().map(|batch| {
            let mut cids: Vec<Cid> = read(batch).collect();
            cids.reverse();
            cids
        })
    }
}

fn read(mut bytes: &[u8]) -> impl Iterator<Item = Cid> + '_ {
    // These bytes were written from CIDs.
    std::iter::from_fn(move || if bytes.is_empty() { None } else { Cid::read_bytes(&mut bytes).ok() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cid::codec;
    use crate::hashes;

    #[test]
    fn cids_are_read_as_they_were_added() {
        let hash = |n: u16| hashes::digest(hashes::SHA2_256, 32, &n.to_be_bytes()).expect("a hash");
        let mut cids: Vec<Cid> = (0..2_998).map(|n| Cid::new_v1(codec::RAW, hash(n))).collect();
        cids.push(Cid::new_v0(hash(1)).expect("SHA-256"));
        cids.push(Cid::new_v1(codec::DAG_CBOR, hash(1)));
        let mut list = CidList::default();
        assert!(list.is_empty() && list.iter().next().is_none());
        cids.iter().for_each(|cid| list.push(cid));
        assert!(list.len() == 3_000 && list.iter().eq(cids.iter().copied()));
        let batches: Vec<Vec<Cid>> = list.batches_reversed().collect();
        assert!(batches.len() == 3 && batches.iter().all(|batch| batch.len() <= BATCH_CIDS));
        assert!(batches.concat().iter().eq(cids.iter().rev()));
        assert!(list.batches.iter().map(Vec::len).sum::<usize>() <= 40 * list.len());
    }
}
