//! What readers tell a source that they will request, and that they tell nothing of blocks that are available at once.

use crate::support::*;
use content::importer::{Attributes, Estimate, Importer, Part, Profile, Sharding, SinkError};
use content::scope::{self, DagScope, EntityBytes, ScopeLimits, ScopeOptions};
use content::unixfs::dir;
use content::unixfs::file::{FileReader, ReadLimits};
use content::walk::{self, Purpose};
use content::{AllowAll, Block, BlockSource, Cid, MemoryBlocks, ReadAhead, SourceError};
use futures::future::{BoxFuture, FutureExt as _, ready};
use futures::stream::{StreamExt as _, TryStreamExt as _};
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

/// A source that has some blocks at once, and records what is said about the others.
#[derive(Default)]
struct Recorder {
    blocks: MemoryBlocks,
    at_hand: HashSet<Cid>,
    said: Mutex<Vec<(Cid, Option<ReadAhead>)>>,
}

impl Recorder {
    fn record(&self, cid: &Cid, ahead: Option<&ReadAhead>) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.said.lock().expect("no panic").push((*cid, ahead.cloned()));
        ready(self.blocks.peek(cid).ok_or(SourceError::NotFound { cid: *cid })).boxed()
    }

    fn take(&self) -> Vec<(Cid, Option<ReadAhead>)> {
        std::mem::take(&mut self.said.lock().expect("no panic"))
    }
}

impl BlockSource for Recorder {
    fn peek(&self, cid: &Cid) -> Option<Block> {
        self.at_hand.contains(cid).then(|| self.blocks.peek(cid)).flatten()
    }

    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.record(cid, None)
    }

    fn get_ahead(&self, cid: &Cid, ahead: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
        self.record(cid, Some(ahead))
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        ready(Ok(self.at_hand.contains(cid))).boxed()
    }
}

/// A site with the file `a/b/file` of ten leaves, and a sharded directory `many`. Returns its root, and the file.
fn site() -> (Recorder, Part, Part) {
    let recorder = Recorder::default();
    let sink = &mut |block: Block| -> Result<(), SinkError> {
        recorder.blocks.insert(&block);
        Ok(())
    };
    let profile = Profile { chunking: "size-100".parse().expect("a chunking"), ..Profile::default().with_cid_v1() };
    let sharding = Sharding { estimate: Estimate::Off, threshold_bytes: 0, links_max: Some(20), fanout: 8 };
    let importer = Importer::new(Profile { raw_leaves: true, sharding, ..profile }).expect("a profile");
    let mut add = |bytes: &[u8]| {
        let mut file = importer.file(Attributes::default());
        file.write(bytes, sink).expect("writes");
        file.finish(sink).expect("finishes")
    };
    let (file, other) = (add(&content(1, 1_000)), add(b"other"));
    let names: Vec<String> = (0..60).map(|n| format!("many/{n}")).collect();
    let mut tree = importer.tree(Attributes::default());
    let entries = names.iter().map(|name| (name.as_str(), &other));
    for (path, part) in [("a/b/file", &file)].into_iter().chain(entries) {
        tree.add(path.as_bytes(), part, sink).expect("adds");
    }
    let root = tree.finish(sink).expect("finishes");
    (recorder, root, file)
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn entity(entity_bytes: Option<EntityBytes>) -> ScopeOptions {
    ScopeOptions { scope: DagScope::Entity, entity_bytes, duplicates: false }
}

#[test]
fn a_path_is_told_with_what_is_read_at_its_end() {
    let (recorder, root, file) = site();
    let path = names(&["a", "b", "file"]);
    let purpose = Purpose { scope: entity(EntityBytes::new(5, None).ok()), further: Some("index.html") };
    let resolve = |recorder: &Recorder| {
        block_on(walk::resolve_for(recorder, &AllowAll, root.cid, &path, &purpose)).expect("resolves")
    };
    let resolved = resolve(&recorder);
    let said = recorder.take();
    assert_eq!(said.iter().map(|(cid, _)| *cid).collect::<Vec<_>>(), resolved.roots);
    for (at, (cid, ahead)) in said.into_iter().enumerate() {
        let rest = [&path[at..], &names(&["index.html"])].concat();
        assert_eq!(ahead, Some(ReadAhead { path: rest, ..ReadAhead::below(cid, purpose.scope) }));
    }
    // From the first block on that is not at hand.
    let recorder = Recorder { at_hand: resolved.roots[..3].iter().copied().collect(), ..recorder };
    resolve(&recorder);
    let ahead = ReadAhead { path: names(&["index.html"]), ..ReadAhead::below(file.cid, purpose.scope) };
    assert_eq!(recorder.take(), [(file.cid, Some(ahead))]);
    let recorder = Recorder { at_hand: resolved.roots.into_iter().collect(), ..recorder };
    resolve(&recorder);
    assert_eq!(recorder.take(), []);
    // Without a purpose, only the blocks of the path are needed.
    let recorder = Recorder { at_hand: HashSet::new(), ..recorder };
    block_on(walk::resolve(&recorder, root.cid, &path)).expect("resolves");
    let scope = ScopeOptions { scope: DagScope::Block, ..ScopeOptions::default() };
    let first = ReadAhead { path, ..ReadAhead::below(root.cid, scope) };
    assert_eq!(recorder.take()[0], (root.cid, Some(first)));
}

#[test]
fn shards_are_told_from_the_directory_on() {
    let (recorder, root, _) = site();
    let path = names(&["many", "17"]);
    let resolved = block_on(walk::resolve(&recorder, root.cid, &path)).expect("resolves");
    assert!(resolved.passed.len() > 2, "there are inner shards");
    let directory = resolved.roots[1];
    let said = recorder.take();
    for shard in &resolved.passed[2..] {
        let (_, ahead) = said.iter().find(|(cid, _)| cid == shard).expect("was requested");
        let ahead = ahead.as_ref().expect("is told");
        assert_eq!((ahead.root, &ahead.path[..]), (directory, &path[1..]));
    }
    let recorder = Arc::new(recorder);
    let block = recorder.blocks.peek(&directory).expect("is stored");
    let listed = block_on(dir::list(Arc::clone(&recorder) as _, block).try_collect::<Vec<_>>()).expect("lists");
    assert_eq!(listed.len(), 60);
    let said = recorder.take();
    assert!(!said.is_empty());
    assert!(said.into_iter().all(|(_, ahead)| ahead == Some(ReadAhead::of_directory(directory))));
}

#[test]
fn a_reader_tells_the_rest_of_its_range() {
    let (recorder, _, file) = site();
    let root = recorder.blocks.peek(&file.cid).expect("is stored");
    let links = content::dag::links(&root).expect("links");
    let recorder = Arc::new(Recorder { at_hand: [links[3]].into(), ..recorder });
    let reader = FileReader::new(Arc::clone(&recorder) as _, root, 250..870, ReadLimits::default());
    let read = block_on(reader.expect("a file").try_collect::<Vec<_>>()).expect("reads");
    assert_eq!(read.concat(), content(1, 1_000)[250..870]);
    let expected: Vec<(Cid, Option<ReadAhead>)> = [2, 4, 5, 6, 7, 8]
        .map(|n: u64| (links[n as usize], Some(ReadAhead::of_file(file.cid, (n * 100).max(250), 870))))
        .into();
    assert_eq!(recorder.take(), expected);
}

#[test]
fn an_archive_requests_nodes_alone_that_are_more_than_its_window_ahead() {
    let recorder = Recorder::default();
    let sink = &mut |block: Block| -> Result<(), SinkError> {
        recorder.blocks.insert(&block);
        Ok(())
    };
    // Nodes of forty leaves, which are larger than the window.
    let profile = Profile { chunking: "size-65536".parse().expect("a chunking"), ..Profile::default().with_cid_v1() };
    let importer = Importer::new(Profile { raw_leaves: true, file_links_max: 40, ..profile }).expect("a profile");
    let mut file = importer.file(Attributes::default());
    file.write(&content(3, 200 * 65_536), sink).expect("writes");
    let file = file.finish(sink).expect("finishes");
    let recorder = Arc::new(recorder);
    let terminal = recorder.blocks.peek(&file.cid).expect("is stored");
    let nodes = content::dag::links(&terminal).expect("links");
    for options in [entity(None), ScopeOptions::default()] {
        let source = Arc::new(Later(Arc::clone(&recorder)));
        let limits = ScopeLimits { look_ahead_bytes_max: 1 << 20, ..ScopeLimits::default() };
        let blocks = scope::blocks(source, Vec::new(), terminal.clone(), options, limits);
        assert_eq!(block_on(blocks.try_fold(0, async |count, _| Ok(count + 1))), Ok(1 + 5 + 200));
        let said = recorder.take();
        let of_node = |cid: &Cid| said.iter().find(|(said, _)| said == cid).expect("was requested").1.clone();
        let bytes = 40 * 65_536;
        for (n, node) in (0_u64..).zip(&nodes) {
            let ahead = match options.scope {
                DagScope::All => ReadAhead::all(*node),
                _ => ReadAhead::of_file(file.cid, n * bytes, u64::MAX),
            };
            // All of them are requested at once, before their leaves are known.
            let expected = if n * bytes > 1 << 20 { ReadAhead::block(*node) } else { ahead };
            assert_eq!(of_node(node), Some(expected), "{n} {options:?}");
        }
        let leaves = said.iter().filter(|(cid, _)| cid.codec() == content::codec::RAW);
        let alone =
            leaves.filter(|(_, ahead)| ahead.as_ref().is_some_and(|ahead| ahead.scope.scope == DagScope::Block));
        assert_eq!(alone.count(), 0, "leaves are close");
    }
}

/// The same source, whose blocks arrive later than they are requested.
struct Later(Arc<Recorder>);

impl BlockSource for Later {
    fn get(&self, cid: &Cid) -> BoxFuture<'static, Result<Block, SourceError>> {
        later(self.0.get(cid))
    }

    fn get_ahead(&self, cid: &Cid, ahead: &ReadAhead) -> BoxFuture<'static, Result<Block, SourceError>> {
        later(self.0.get_ahead(cid, ahead))
    }

    fn has(&self, cid: &Cid) -> BoxFuture<'static, Result<bool, SourceError>> {
        self.0.has(cid)
    }
}

fn later(found: BoxFuture<'static, Result<Block, SourceError>>) -> BoxFuture<'static, Result<Block, SourceError>> {
    let mut polls = 0;
    let wait = futures::future::poll_fn(move |cx| {
        polls += 1;
        cx.waker().wake_by_ref();
        if polls > 3 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    });
    async move {
        wait.await;
        found.await
    }
    .boxed()
}

#[test]
fn an_archive_tells_the_rest_of_the_file_or_what_is_below_a_block() {
    let (recorder, root, file) = site();
    let recorder = Arc::new(recorder);
    let read = |cid: &Cid, options| {
        let terminal = recorder.blocks.peek(cid).expect("is stored");
        let source = Arc::clone(&recorder) as Arc<dyn BlockSource>;
        let blocks = scope::blocks(source, Vec::new(), terminal, options, ScopeLimits::default());
        block_on(blocks.map(|block| *block.expect("reads").cid()).collect::<Vec<_>>())
    };
    let of_file = read(&file.cid, entity(EntityBytes::new(300, Some(599)).ok()));
    let said = recorder.take();
    assert_eq!(said.len() + 1, of_file.len());
    for (n, (_, ahead)) in (3..).zip(&said) {
        assert_eq!(*ahead, Some(ReadAhead::of_file(file.cid, n * 100, 600)));
    }
    let all = read(&root.cid, ScopeOptions::default());
    let said = recorder.take();
    assert!(all.len() > 10 && said.len() > 10, "{} {}", all.len(), said.len());
    for (cid, ahead) in said {
        let has_links = cid.codec() != content::codec::RAW;
        assert_eq!(ahead, has_links.then(|| ReadAhead::all(cid)));
    }
}
