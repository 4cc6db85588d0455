//! DAGs for tests, and the answers of a server that has them.

use super::active::{ActiveTransfer, Context, TransferEnd, TransferEvent, names_budget};
use super::metrics::Metrics;
use super::pushed::Readers;
use crate::dag::message::{Answer, BUDGET_BYTES_MAX, Packed, Request, TransferId};
use crate::framing::Memory;
use crate::network_policy::NetworkPolicy;
use crate::observers::BlockTransport;
use content::importer::{Attributes, Chunking, Importer, Profile};
use content::scope::{Child, DagScope, ScopeOptions, Seen, expand};
use content::stored::Encoder;
use content::{Block, BlockSource as _, Cid, MemoryBlocks, ReadAhead};
use libp2p::PeerId;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;

/// The bytes of each leaf.
pub const LEAF_BYTES: usize = 1_000;

/// A site: the file `pages/deep/file`, and others beside it.
pub struct Site {
    /// All its blocks.
    pub blocks: MemoryBlocks,
    /// The root of the tree.
    pub root: Cid,
    /// The root of the file.
    pub file: Cid,
    /// The bytes of the file.
    pub file_bytes: usize,
}

/// Bytes that hardly repeat, of which every second leaf is compressible.
pub fn bytes(length: usize) -> Vec<u8> {
    let mut seed = length as u64 + 1;
    let mut next = move |at: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if (at / LEAF_BYTES).is_multiple_of(2) { (seed >> 33) as u8 } else { b"text"[at % 4] ^ (at / LEAF_BYTES) as u8 }
    };
    (0..length).map(&mut next).collect()
}

impl Site {
    /// A site whose file has so many leaves.
    pub fn new(leaves: usize) -> Self {
        let profile = Profile {
            chunking: Chunking::size(LEAF_BYTES).expect("a size"),
            file_links_max: 5,
            raw_leaves: true,
            ..Profile::default().with_cid_v1()
        };
        let (importer, blocks) = (Importer::new(profile).expect("a profile"), MemoryBlocks::new());
        let sink = &mut |block: Block| {
            blocks.insert(&block);
            Ok(())
        };
        let mut add = |bytes: &[u8]| {
            let mut file = importer.file(Attributes::default());
            file.write(bytes, sink).expect("writes");
            file.finish(sink).expect("finishes")
        };
        let file_bytes = leaves * LEAF_BYTES;
        let (file, other) = (add(&bytes(file_bytes)), add(b"another file"));
        let mut tree = importer.tree(Attributes::default());
        for (path, part) in [("other", &other), ("pages/deep/file", &file), ("pages/deep/other", &other)] {
            tree.add(path.as_bytes(), part, sink).expect("adds");
        }
        let root = tree.finish(sink).expect("finishes").cid;
        Self { blocks, root, file: file.cid, file_bytes }
    }

    /// The request for the file by its path.
    pub fn request(&self, budget_bytes: u64) -> Request {
        let path = ["pages", "deep", "file"].map(str::to_owned).to_vec();
        let scope = ScopeOptions { scope: DagScope::Entity, ..ScopeOptions::default() };
        Request {
            transfer: TransferId(1),
            root: self.root,
            path,
            scope,
            held: Vec::new(),
            budget_bytes,
            packed: true,
            fragments: true,
        }
    }

    /// What the reader of the file by its path requests first.
    pub fn ahead(&self) -> ReadAhead {
        let Request { root, path, scope, .. } = self.request(0);
        ReadAhead { root, path, scope }
    }

    /// A block and all below it.
    pub fn below(blocks: &MemoryBlocks, root: Cid) -> HashSet<Cid> {
        let (mut found, mut stack) = (HashSet::new(), vec![root]);
        while let Some(cid) = stack.pop() {
            if found.insert(cid) {
                let block = blocks.peek(&cid).expect("is stored");
                stack.extend(content::dag::links(&block).unwrap_or_default());
            }
        }
        found
    }

    /// The blocks of a request, each after its parent.
    pub fn blocks_of(&self, request: &Request) -> Vec<Block> {
        let mut seen = Seen::new(100_000);
        let mut found = Vec::new();
        self.visit(&Child::root(request.root, request.path.clone(), request.scope), &mut seen, &mut found);
        found
    }

    fn visit(&self, child: &Child, seen: &mut Seen, found: &mut Vec<Block>) {
        if seen.is_repeat(child) {
            return;
        }
        let block = self.blocks.peek(&child.cid).expect("is stored");
        if seen.visit(child).expect("has room") {
            found.push(block.clone());
        }
        let Some(mut children) = expand(&block, &child.role).expect("is decodable") else { return };
        while let Some(child) = children.next_child().expect("is decodable") {
            self.visit(&child, seen, found);
        }
    }
}

/// A transfer that is to be started, and what it reports.
pub struct Start {
    /// What it has in common with others.
    pub context: Arc<Context>,
    /// The transfer.
    pub active: Arc<ActiveTransfer>,
    events: mpsc::UnboundedReceiver<TransferEvent>,
}

/// What transfers share that report to `events`.
pub fn context(over: BlockTransport, events: &mpsc::UnboundedSender<TransferEvent>, readers: &Arc<Readers>) -> Context {
    let memory = Memory::new(256 << 20);
    Context {
        wants: Arc::default(),
        pushed: Arc::default(),
        readers: Arc::clone(readers),
        policy: NetworkPolicy::default(),
        names: names_budget(&memory),
        memory,
        events: events.clone(),
        metrics: Metrics::default(),
        over,
    }
}

impl Start {
    /// A transfer from a random peer.
    pub fn of_random_peer() -> Self {
        Self::of_scope(Site::new(1).request(0).scope)
    }

    /// The same of a scope.
    pub fn of_scope(scope: ScopeOptions) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (events, received) = mpsc::unbounded_channel();
        let context = Arc::new(Context {
            wants: Arc::default(),
            pushed: Arc::default(),
            readers: Arc::default(),
            policy: NetworkPolicy::default(),
            memory: Memory::new(64 << 20),
            names: names_budget(&Memory::new(64 << 20)),
            events,
            metrics: Metrics::default(),
            over: BlockTransport::Dag,
        });
        let site = Site::new(1);
        let transfer = TransferId(NEXT.fetch_add(1, Ordering::Relaxed));
        let request = Request { transfer, scope, ..site.request(BUDGET_BYTES_MAX) };
        let active = ActiveTransfer::new(Arc::clone(&context), PeerId::random(), *site.root.hash(), request);
        Self { context, active, events: received }
    }

    /// How it has ended, if that was reported since the last call.
    pub fn end(&mut self) -> Option<TransferEnd> {
        match self.events.try_recv().ok()? {
            TransferEvent::Ended { transfer, end } if transfer == self.active.id => Some(end),
            other => panic!("{other:?}"),
        }
    }
}

/// A block as a server sends it: compressed, if that makes it smaller.
pub fn answer(block: &Block) -> Answer {
    let stored = Encoder::new(Default::default()).expect("an encoder").encode(block);
    Packed::new(*block.cid(), stored).map_or_else(|| Answer::plain(block), Answer::Packed)
}
