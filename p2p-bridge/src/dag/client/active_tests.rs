//! Transfers over streams in memory: what is delivered, and how transfers with misbehaving servers end.

use super::*;
use crate::dag::client::fixture::{LEAF_BYTES, Site, Start, answer};
use crate::dag::client::transfer::UNSOLICITED_MAX;
use crate::dag::fragments;
use crate::dag::framing::read_frame;
use crate::dag::message::{BUDGET_BYTES_MAX, CONTROL_BYTES_MAX, OPENING_BYTES_MAX, Packed};
use bytes::BytesMut;
use content::denylist::{List, Matcher, Source};
use content::{BlockSource as _, Verdict, codec, hashes};
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};
use tokio::io::{AsyncRead as _, AsyncWrite as _, DuplexStream, ReadBuf, duplex};

const PATIENCE: Duration = Duration::from_secs(30);

/// One end of a stream.
struct End(DuplexStream);

impl AsyncRead for End {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut into = ReadBuf::new(into);
        Pin::new(&mut self.0).poll_read(cx, &mut into).map_ok(|()| into.filled().len())
    }
}

impl AsyncWrite for End {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// A transfer, and the server's ends of its streams.
struct Bench {
    site: Site,
    active: Arc<ActiveTransfer>,
    context: Arc<Context>,
    events: mpsc::UnboundedReceiver<TransferEvent>,
    widen: mpsc::UnboundedReceiver<Arc<ActiveTransfer>>,
    first: End,
    budgets: Budgets,
}

impl Bench {
    /// A transfer of a file with so many leaves, whose request was read.
    async fn new(leaves: usize, budget_bytes: u64) -> Self {
        Self::refusing(leaves, budget_bytes, |_| Vec::new()).await
    }

    /// The same with a policy that refuses some CIDs.
    async fn refusing(leaves: usize, budget_bytes: u64, refused: impl Fn(&Site) -> Vec<Cid>) -> Self {
        let site = Site::new(leaves);
        let list: String = refused(&site).iter().map(|cid| format!("/ipfs/{cid}\n")).collect();
        let list = List::parse(list.as_bytes()).expect("a list");
        let source = Source { id: "test".into(), list, status: Verdict::Legal };
        let (events, received) = mpsc::unbounded_channel();
        let memory = Memory::new(64 << 20);
        let context = Arc::new(Context {
            wants: Arc::default(),
            pushed: Arc::default(),
            readers: Arc::default(),
            policy: NetworkPolicy(Arc::new(Matcher::new([source]))),
            memory: memory.clone(),
            names: names_budget(&memory),
            events,
            metrics: Metrics::default(),
            over: BlockTransport::Dag,
        });
        let request = site.request(budget_bytes);
        let active = ActiveTransfer::new(Arc::clone(&context), PeerId::random(), *site.root.hash(), request.clone());
        let budgets = Budgets::new(memory, Arc::default());
        let (ours, theirs) = duplex(64 * 1024);
        let (widen, widened) = mpsc::unbounded_channel();
        tokio::spawn(Arc::clone(&active).run_first(End(ours), budgets.clone(), widen));
        let mut first = End(theirs);
        let opening = read_frame(&mut first, OPENING_BYTES_MAX, PATIENCE).await.expect("reads").expect("a request");
        assert_eq!(Opening::decode(opening), Ok(Opening::Request(request)));
        Self { site, active, context, events: received, widen: widened, first, budgets }
    }

    fn blocks(&self) -> Vec<Block> {
        self.site.blocks_of(&self.site.request(0))
    }

    /// A further stream, whose opening was read.
    async fn join(&self) -> End {
        let (ours, theirs) = duplex(64 * 1024);
        tokio::spawn(Arc::clone(&self.active).run_joined(End(ours), self.budgets.clone()));
        let mut stream = End(theirs);
        let opening = read_frame(&mut stream, OPENING_BYTES_MAX, PATIENCE).await.expect("reads").expect("a join");
        assert_eq!(Opening::decode(opening), Ok(Opening::Join(self.active.id)));
        stream
    }

    /// The end of the transfer, the CIDs that it has brought, and those that it lacks.
    async fn ended(&mut self) -> (TransferEnd, usize, Vec<Cid>) {
        let (mut received, mut absent) = (0, Vec::new());
        loop {
            let event = tokio::time::timeout(PATIENCE, self.events.recv()).await.expect("in time");
            match event.expect("an event") {
                TransferEvent::Received { .. } => received += 1,
                TransferEvent::Absent { cid, .. } => absent.push(cid),
                TransferEvent::Ended { end, .. } => return (end, received, absent),
                TransferEvent::Dropped { .. } | TransferEvent::Speaks { .. } => {}
            }
        }
    }
}

/// Sends answers. The other side may have hung up.
async fn send(stream: &mut End, answers: impl IntoIterator<Item = Answer>) {
    for answer in answers {
        if write_all(stream, answer.encode()).await.is_err() {
            return;
        }
    }
}

fn other(n: u8) -> Block {
    Block::of(codec::RAW, hashes::SHA2_256, 32, vec![n; 99].into()).expect("a block")
}

#[tokio::test]
async fn blocks_are_delivered_or_buffered_and_credit_is_given_for_them() {
    let mut bench = Bench::new(40, 16_000).await;
    let blocks = bench.blocks();
    let root = bench.site.root;
    let key = BlockKey::of(&root).expect("a key");
    let (_, waiter) = bench.context.wants.register(key, root, *root.hash());
    send(&mut bench.first, blocks[..8].iter().map(answer)).await;
    assert_eq!(waiter.await.expect("is delivered").expect("a block").data(), blocks[0].data());
    for block in &blocks[1..8] {
        let taken = tokio::time::timeout(PATIENCE, async {
            loop {
                match bench.context.pushed.take(block.cid()) {
                    Some(taken) => return taken,
                    None => tokio::time::sleep(Duration::from_millis(1)).await,
                }
            }
        });
        let taken = taken.await.expect("is buffered");
        let Answer::Packed(packed) = answer(block) else {
            assert!(taken.stored().is_none());
            continue;
        };
        assert_eq!(taken.stored().map(|stored| &**stored), Some(&packed.stored), "it is kept as it came");
    }
    // All of it is given back, but for what is not worth a message.
    let (mut credit, used) = (0, blocks[..8].iter().map(|block| answer(block).budget_bytes()).sum::<u64>());
    while used - credit >= 1_000 {
        let frame = read_frame(&mut bench.first, CONTROL_BYTES_MAX, PATIENCE).await.expect("reads").expect("credit");
        let Ok(Control::Credit(bytes)) = Control::decode(frame) else { panic!("is credit") };
        credit += bytes;
    }
    assert!(credit <= used);
    let rest: Vec<Answer> = blocks[8..].iter().map(|block| Answer::Absent(*block.cid())).take(1).collect();
    send(&mut bench.first, rest).await;
    send(&mut bench.first, [Answer::End(EndStatus::Complete)]).await;
    let (end, received, absent) = bench.ended().await;
    assert_eq!((end, received, absent), (TransferEnd::Status(EndStatus::Complete), 8, vec![*blocks[8].cid()]));
}

#[tokio::test]
async fn several_streams_carry_the_answer_and_fragments_of_it() {
    let mut bench = Bench::new(60, BUDGET_BYTES_MAX).await;
    let blocks = bench.blocks();
    let (mut second, mut third) = (bench.join().await, bench.join().await);
    // Some blocks arrive before their parents.
    let (inner, leaves): (Vec<&Block>, Vec<&Block>) =
        blocks.iter().partition(|block| block.cid().codec() == codec::DAG_PB);
    send(&mut second, leaves.iter().step_by(2).map(|block| answer(block))).await;
    send(&mut bench.first, inner.into_iter().map(answer)).await;
    send(&mut third, leaves.iter().skip(1).step_by(2).map(|block| answer(block))).await;
    drop((second, third));
    send(&mut bench.first, [Answer::End(EndStatus::Complete)]).await;
    let (end, received, _) = bench.ended().await;
    assert_eq!((end, received), (TransferEnd::Status(EndStatus::Complete), blocks.len()));
    assert_eq!(bench.context.pushed.len(), blocks.len());
    // What nobody takes is dropped with the transfer.
    let Bench { active, context, widen, .. } = bench;
    // The streams that are to be opened hold the transfer too.
    drop((active, widen));
    tokio::time::timeout(PATIENCE, async {
        while !context.pushed.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("it is dropped");

    // A block of several fragments, out of order and on two streams.
    let mut bench = Bench::new(1, BUDGET_BYTES_MAX).await;
    let large = Block::of(codec::RAW, hashes::SHA2_256, 32, vec![7; 300_000].into()).expect("a block");
    let cut = fragments::split(&Answer::plain(&large), 5).expect("is long");
    let mut second = bench.join().await;
    for (n, parts) in cut.into_iter().enumerate().rev() {
        let stream = if n % 2 == 0 { &mut second } else { &mut bench.first };
        write_all(stream, parts).await.expect("writes");
    }
    // It was not requested, and is not verified.
    drop(second);
    send(&mut bench.first, [Answer::End(EndStatus::Complete)]).await;
    assert_eq!(bench.ended().await, (TransferEnd::Status(EndStatus::Complete), 0, Vec::new()));
    assert_eq!(lock(&bench.active.fragments).bytes(), 0);
}

/// A server may reset a further stream, also one that has carried nothing.
#[tokio::test]
async fn a_further_stream_that_is_reset_does_not_end_the_transfer() {
    let mut bench = Bench::new(4, BUDGET_BYTES_MAX).await;
    let blocks = bench.blocks();
    let mut further = bench.join().await;
    // The beginning of a message: what follows is no end of a stream, but its loss.
    write_all(&mut further, vec![Bytes::from_static(&[100])]).await.expect("writes");
    drop(further);
    let ended = tokio::time::timeout(Duration::from_millis(200), bench.events.recv()).await;
    assert!(ended.is_err(), "{ended:?}");
    send(&mut bench.first, blocks.iter().map(answer)).await;
    send(&mut bench.first, [Answer::End(EndStatus::Complete)]).await;
    let (end, received, _) = bench.ended().await;
    assert_eq!((end, received), (TransferEnd::Status(EndStatus::Complete), blocks.len()));
}

/// The children of the file's root: inner nodes with five leaves each.
fn inner_nodes(site: &Site) -> Vec<Cid> {
    content::dag::links(&site.blocks.peek(&site.file).expect("is stored")).expect("links")
}

#[tokio::test]
async fn what_the_policy_refuses_is_skipped_and_not_kept_and_is_no_offence() {
    let refused = |site: &Site| vec![inner_nodes(site)[1]];
    let mut bench = Bench::refusing(100, BUDGET_BYTES_MAX, refused).await;
    let refused = refused(&bench.site)[0];
    let blocks = bench.blocks();
    // The server has sent all of it before it reads the message.
    send(&mut bench.first, blocks.iter().map(answer)).await;
    loop {
        let frame = read_frame(&mut bench.first, CONTROL_BYTES_MAX, PATIENCE).await.expect("reads").expect("a message");
        match Control::decode(frame).expect("a message") {
            Control::Credit(_) => {}
            Control::Skip(cid) => break assert_eq!(cid, refused),
        }
    }
    send(&mut bench.first, [Answer::End(EndStatus::Complete)]).await;
    let (end, received, absent) = bench.ended().await;
    let below = Site::below(&bench.site.blocks, refused);
    assert!(below.len() > UNSOLICITED_MAX, "{}", below.len());
    assert!(matches!(end, TransferEnd::NamesLost | TransferEnd::Status(EndStatus::Complete)), "{end:?}");
    assert!(received <= blocks.len() - below.len() && absent.is_empty(), "{received}");
    assert!(below.iter().all(|cid| bench.context.pushed.take(cid).is_none()), "nothing of it is kept");
    assert!(bench.context.pushed.take(&bench.site.file).is_some());
}

#[tokio::test]
async fn a_server_that_skips_what_the_policy_refuses_sends_the_rest() {
    let refused = |site: &Site| vec![inner_nodes(site)[1]];
    let mut bench = Bench::refusing(100, BUDGET_BYTES_MAX, refused).await;
    let below = Site::below(&bench.site.blocks, refused(&bench.site)[0]);
    let rest: Vec<Block> = bench.blocks().into_iter().filter(|block| !below.contains(block.cid())).collect();
    send(&mut bench.first, rest.iter().map(answer)).await;
    send(&mut bench.first, [Answer::End(EndStatus::Complete)]).await;
    let (end, received, absent) = bench.ended().await;
    assert_eq!((end, received, absent), (TransferEnd::Status(EndStatus::Complete), rest.len(), vec![]));
}

#[tokio::test]
async fn what_the_end_overtakes_is_awaited_while_it_arrives() {
    let mut bench = Bench::new(5, BUDGET_BYTES_MAX).await;
    let blocks = bench.blocks();
    let mut second = bench.join().await;
    let (early, late) = blocks.split_at(blocks.len() - 5);
    send(&mut bench.first, early.iter().map(answer)).await;
    send(&mut bench.first, [Answer::End(EndStatus::Complete)]).await;
    let start = Instant::now();
    for block in late {
        tokio::time::sleep(STREAMS_END_TIMEOUT / 4).await;
        send(&mut second, [answer(block)]).await;
    }
    assert!(start.elapsed() > STREAMS_END_TIMEOUT);
    drop(second);
    let (end, received, _) = bench.ended().await;
    assert_eq!((end, received), (TransferEnd::Status(EndStatus::Complete), blocks.len()));
    // A stream that carries nothing and does not end is not awaited for long.
    let mut bench = Bench::new(1, BUDGET_BYTES_MAX).await;
    let _second = bench.join().await;
    send(&mut bench.first, [Answer::End(EndStatus::Complete)]).await;
    assert_eq!(bench.ended().await.0, TransferEnd::Status(EndStatus::Complete));
}

#[tokio::test]
async fn more_streams_are_opened_once_the_size_of_the_file_is_known() {
    let mut bench = Bench::new(1, BUDGET_BYTES_MAX).await;
    let assumed = usize::try_from(ASSUMED_BYTES / STREAM_BYTES).expect("few");
    let requested = |bench: &mut Bench| (bench.widen.try_recv().is_ok(), bench.active.lacking_streams());
    assert_eq!(requested(&mut bench), (true, assumed - 1), "with the request");
    assert!(bench.active.guesses_streams());
    bench.active.assume_more();
    assert_eq!(requested(&mut bench), (false, STREAMS_SMALL_MAX - 1), "while the connection has few");
    // The file is small.
    bench.active.widen_for(STREAM_BYTES, false);
    assert_eq!(requested(&mut bench), (false, 0));
    assert!(!bench.active.guesses_streams());
    bench.active.assume_more();
    assert_eq!(requested(&mut bench), (false, 0), "it is known");
    bench.active.widen_for(ASSUMED_BYTES + 2 * STREAM_BYTES, false);
    assert_eq!(requested(&mut bench), (true, assumed + 1));
    (0..3).for_each(|_| bench.active.opens_stream(None));
    bench.active.widen_for(LARGE_BYTES - 1, false);
    assert_eq!(requested(&mut bench), (true, STREAMS_SMALL_MAX - 4));
    bench.active.widen_for(u64::MAX, false);
    assert_eq!(requested(&mut bench), (true, STREAMS_MAX - 4));
    bench.active.widen_for(u64::MAX, false);
    assert_eq!(requested(&mut bench), (false, STREAMS_MAX - 4), "once");
    drop(bench.first);
    assert_eq!(bench.events.recv().await.map(|event| matches!(event, TransferEvent::Ended { .. })), Some(true));
}

#[tokio::test]
async fn transfers_with_misbehaving_servers_end_and_deliver_nothing_wrong() {
    type Answers = fn(&Site) -> Vec<Bytes>;
    type Expected = fn(&TransferEnd) -> bool;
    fn frames(answers: impl IntoIterator<Item = Answer>) -> Vec<Bytes> {
        answers.into_iter().flat_map(|answer| answer.encode()).collect()
    }
    fn root(site: &Site) -> Block {
        site.blocks.peek(&site.root).expect("is stored")
    }
    let table: [(&str, Answers, Expected); 9] = [
        (
            "another block under the root's CID",
            |site| frames([Answer::Block { cid: site.root, data: Bytes::from_static(b"other bytes") }]),
            |end| *end == TransferEnd::InvalidBlock,
        ),
        (
            "another block under the root's CID, packed",
            |site| {
                let text = Block::of(codec::RAW, hashes::SHA2_256, 32, b"some text. ".repeat(500).into());
                let Answer::Packed(packed) = answer(&text.expect("a block")) else { panic!("is compressible") };
                frames([Answer::Packed(Packed { cid: site.root, ..packed })])
            },
            |end| *end == TransferEnd::InvalidBlock,
        ),
        ("garbage", |_| vec![Bytes::from_static(b"\x05hello")], |end| matches!(end, TransferEnd::Fault(_))),
        (
            "a message that is too long",
            |_| {
                let mut head = BytesMut::new();
                prost::encoding::encode_varint(3 << 20, &mut head);
                vec![head.freeze(), vec![0; 3 << 20].into()]
            },
            |end| matches!(end, TransferEnd::Fault(_)),
        ),
        (
            "blocks that were not requested",
            |site| {
                let many = (0..20).map(|n| Answer::plain(&other(n)));
                frames([answer(&root(site))].into_iter().chain(many.clone()).chain(many))
            },
            |end| matches!(end, TransferEnd::Fault(_)),
        ),
        (
            "more than the budget",
            |site| frames(site.blocks_of(&site.request(0)).iter().map(answer)),
            // Or it was given back as credit, because readers took it.
            |end| *end == violated(Violation::OverBudget) || *end == TransferEnd::Lost,
        ),
        ("nothing", |_| Vec::new(), |end| *end == TransferEnd::Lost),
        (
            "a refusal",
            |_| frames([Answer::End(EndStatus::Refused)]),
            |end| *end == TransferEnd::Status(EndStatus::Refused),
        ),
        (
            "fragments of which none is complete",
            |site| {
                let large = Block::of(codec::RAW, hashes::SHA2_256, 32, vec![7; 2 << 20].into()).expect("a block");
                let answer = Answer::Block { cid: site.root, data: large.data().clone() };
                let cut = (0..20).flat_map(|message| {
                    let mut cut = fragments::split(&answer, message).expect("is long");
                    cut.pop();
                    cut
                });
                cut.flatten().collect()
            },
            |end| matches!(end, TransferEnd::Fault(_)),
        ),
    ];
    for (name, sent, expected) in table {
        let mut bench = Bench::new(40, 20_000).await;
        let bytes = sent(&bench.site);
        // The asker hangs up in the middle of some.
        let _ = write_all(&mut bench.first, bytes).await;
        bench.first.close().await.ok();
        let (end, received, _) = bench.ended().await;
        assert!(expected(&end), "{name}: {end:?}");
        assert!(bench.active.state().has_ended(), "{name}");
        assert!(received <= 40, "{name}: {received}");
        let is_of_site = |block: &Block| bench.site.blocks.peek(block.cid()).is_some();
        assert!((0..20).all(|n| bench.context.pushed.take(other(n).cid()).is_none_or(|block| is_of_site(&block))));
    }
}

#[tokio::test]
async fn the_names_of_blocks_take_memory_until_the_end() {
    let mut bench = Bench::new(200, BUDGET_BYTES_MAX).await;
    let blocks = bench.blocks();
    let names = Arc::clone(&bench.context.names);
    let all = names.left();
    send(&mut bench.first, blocks.iter().map(answer)).await;
    tokio::time::timeout(PATIENCE, async {
        while bench.context.pushed.len() < blocks.len() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .expect("all are buffered");
    let taken = all - names.left();
    assert!((8 * blocks.len()..1_000 * blocks.len()).contains(&taken), "{taken}");
    send(&mut bench.first, [Answer::End(EndStatus::Complete)]).await;
    assert_eq!(bench.ended().await.0, TransferEnd::Status(EndStatus::Complete));
    assert_eq!(names.left(), all, "although its blocks are buffered");
    // Without memory, it ends, and what has arrived is kept.
    let mut bench = Bench::new(200, BUDGET_BYTES_MAX).await;
    assert!(bench.context.names.try_reserve(all - 2_000));
    send(&mut bench.first, blocks.iter().map(answer)).await;
    let (end, received, _) = bench.ended().await;
    assert_eq!(end, TransferEnd::TooManyBlocks);
    assert!((1..blocks.len()).contains(&received), "{received}");
    assert_eq!(bench.context.names.left(), 2_000);
}

#[tokio::test]
async fn what_was_dropped_before_it_was_named_leaves_room_when_it_is_named() {
    let Start { context, .. } = Start::of_random_peer();
    // Two nodes below the root, with five leaves each.
    let site = Site::new(10);
    let request = Request { root: site.file, path: Vec::new(), ..site.request(4_500) };
    let active = ActiveTransfer::new(Arc::clone(&context), PeerId::random(), *site.root.hash(), request.clone());
    let blocks = site.blocks_of(&request);
    let (leaves, inner): (Vec<&Block>, Vec<&Block>) =
        blocks.iter().partition(|block| block.cid().codec() == codec::RAW);
    let take = async |block: &Block| {
        let memory = context.memory.try_take(block.data().len()).expect("is free");
        assert_eq!(active.take_block(*block.cid(), block.data().clone(), memory).await, None);
    };
    take(inner[0]).await;
    // One waits for its parent, and the next one is dropped.
    take(leaves[0]).await;
    take(leaves[1]).await;
    let waiting = pin!(active.room_for(1_550));
    let Either::Right((_, waiting)) = select(waiting, pin!(tokio::task::yield_now())).await else {
        panic!("there is no room")
    };
    // The parent is verified by another task.
    let naming = {
        let (active, parent) = (Arc::clone(&active), inner[1].clone());
        let memory = context.memory.try_take(parent.data().len()).expect("is free");
        async move { active.take_block(*parent.cid(), parent.data().clone(), memory).await }
    };
    tokio::spawn(naming);
    let has_room = tokio::time::timeout(PATIENCE, waiting).await;
    assert_eq!(has_room, Ok(true));
}

#[test]
fn a_transfer_drops_no_block_that_another_one_has_buffered() {
    let Start { context, active: one, .. } = Start::of_random_peer();
    let request = Request { transfer: TransferId(u64::MAX), ..one.request.clone() };
    let another = ActiveTransfer::new(Arc::clone(&context), one.peer, one.session, request);
    let block = other(1);
    let buffer = |active: &Arc<ActiveTransfer>| {
        active.deliver(block.clone(), true, active.place(1, Some(0)), 1, Vec::new());
    };
    let forgets: [fn(&ActiveTransfer); 3] = [
        |one| one.evict(1_000),
        |one| one.read_up_to(one.place(1, Some(u64::MAX))),
        |one| assert!(!one.has_buffered()),
    ];
    for forget in forgets {
        // A reader takes the first copy, of which the transfer learns later.
        buffer(&one);
        assert!(one.has_buffered() && context.pushed.take(block.cid()).is_some());
        buffer(&another);
        forget(&one);
        assert!(context.pushed.take(block.cid()).is_some());
    }
    buffer(&one);
    assert!(context.pushed.take(block.cid()).is_some());
    buffer(&another);
    drop(one);
    assert!(context.pushed.take(block.cid()).is_some());
}

#[tokio::test]
async fn what_is_past_the_end_of_a_divided_transfer_is_not_buffered() {
    let mut bench = Bench::new(40, BUDGET_BYTES_MAX).await;
    let blocks = bench.blocks();
    let (leaves, inner): (Vec<&Block>, Vec<&Block>) =
        blocks.iter().partition(|block| block.cid().codec() == codec::RAW);
    let (before, past) = leaves.split_at(20);
    bench.active.state().end_at((20 * LEAF_BYTES) as u64, true);
    let awaited = past[10];
    let (_, waiter) = bench.context.wants.register(awaited.key().expect("a key"), *awaited.cid(), bench.active.session);
    send(&mut bench.first, blocks.iter().map(answer)).await;
    send(&mut bench.first, [Answer::End(EndStatus::Complete)]).await;
    let (end, received, _) = bench.ended().await;
    assert_eq!((end, received), (TransferEnd::Status(EndStatus::Complete), blocks.len()));
    assert_eq!(waiter.await.expect("is delivered").expect("a block").data(), awaited.data());
    assert!(past.iter().all(|block| bench.context.pushed.take(block.cid()).is_none()));
    assert!(bench.active.has_buffered());
    assert!(before.iter().all(|block| bench.context.pushed.take(block.cid()).is_some()));
    // Nodes whose leaves are all past the end are not kept either.
    let taken = inner.iter().filter(|block| bench.context.pushed.take(block.cid()).is_some()).count();
    assert!((1..inner.len()).contains(&taken), "{taken}");
    assert!(!bench.active.has_buffered(), "its window can be released");
}

#[tokio::test]
async fn a_cancelled_transfer_resets_its_streams() {
    let mut bench = Bench::new(40, BUDGET_BYTES_MAX).await;
    let mut second = bench.join().await;
    bench.active.cancel();
    assert_eq!(bench.ended().await.0, TransferEnd::Cancelled);
    for stream in [&mut bench.first, &mut second] {
        let mut rest = Vec::new();
        tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("in time").expect("reads");
        assert_eq!(rest, b"", "the stream has ended");
    }
}

/// A transfer whose blocks are delivered with or without their offsets, each as large as a quarter of the window.
struct Quarters {
    context: Arc<Context>,
    active: Arc<ActiveTransfer>,
    has_offsets: bool,
}

impl Quarters {
    fn new(has_offsets: bool) -> Self {
        let Start { context, active, .. } = Start::of_random_peer();
        Self { context, active, has_offsets }
    }

    fn deliver(&self, n: u8) {
        let quarter = self.active.window_bytes() / 4;
        let offset = self.has_offsets.then_some(u64::from(n) * quarter);
        self.active.deliver(other(n), true, self.active.place(quarter, offset), 1, Vec::new());
    }

    fn take(&self, n: u8) -> bool {
        self.context.pushed.take(other(n).cid()).is_some()
    }
}

#[test]
fn a_late_block_does_not_drop_those_that_follow_it() {
    for has_offsets in [true, false] {
        let transfer = Quarters::new(has_offsets);
        // Its stream is slow: what follows it arrives before it.
        [1, 2, 3, 0].into_iter().for_each(|n| transfer.deliver(n));
        assert_eq!([0, 1, 2, 3].map(|n| transfer.take(n)), [true; 4], "{has_offsets}");
        // What readers have passed by far is dropped.
        let transfer = Quarters::new(has_offsets);
        (0..=5).for_each(|n| transfer.deliver(n));
        assert_eq!([5, 0, 4].map(|n| transfer.take(n)), [true, false, true], "{has_offsets}");
    }
}

#[test]
fn a_reader_that_is_far_ahead_drops_nothing_that_another_one_needs() {
    for has_offsets in [true, false] {
        let transfer = Quarters::new(has_offsets);
        (0..=6).for_each(|n| transfer.deliver(n));
        let taken = [0, 6, 1, 5, 2, 3].map(|n| transfer.take(n));
        assert_eq!(taken, [true; 6], "{has_offsets}");
        transfer.active.evict(1);
        assert!(!transfer.take(4), "room is made from what is needed last");
    }
}

#[test]
fn room_is_made_from_what_readers_have_passed_or_else_need_last() {
    let transfer = Quarters::new(true);
    (1..=4).for_each(|n| transfer.deliver(n));
    transfer.active.evict(1);
    assert_eq!([4, 2].map(|n| transfer.take(n)), [false, true]);
    transfer.active.evict(1);
    assert_eq!([1, 3].map(|n| transfer.take(n)), [false, true]);
}

#[test]
fn inner_nodes_that_nobody_takes_are_dropped_once_readers_have_passed_what_is_below_them() {
    const NODES: u8 = 60;
    for has_offsets in [true, false] {
        let transfer = Quarters::new(has_offsets);
        let quarter = transfer.active.window_bytes() / 4;
        // Each node has one leaf, and is sent before it. A reader has requested all of them alone.
        let node = |n: u8| other(100 + n);
        for n in 0..NODES {
            let end = has_offsets.then_some(u64::from(n + 1) * quarter);
            let place = transfer.active.place_of_node(1, end);
            transfer.active.deliver(node(n), false, place, 1, Vec::new());
            transfer.deliver(n);
            assert!(transfer.take(n), "{has_offsets}: leaves are there");
            assert!(transfer.context.pushed.holds_of(&node(n).key().expect("a key"), &transfer.active), "{n}");
        }
        let buffered = transfer.context.pushed.len();
        assert!((2..=20).contains(&buffered), "{has_offsets}: {buffered} nodes");
        // What was passed makes room first.
        transfer.deliver(NODES);
        (0..2).for_each(|_| transfer.active.evict(1));
        assert!(transfer.take(NODES), "{has_offsets}");
    }
}

#[tokio::test]
async fn inner_nodes_that_were_requested_alone_do_not_stay_buffered() {
    // Five leaves below each node, and eight thousand bytes by which readers may be behind.
    let mut bench = Bench::new(200, 16_000).await;
    let blocks = bench.blocks();
    let (mut budget, mut most) = (16_000, 0);
    for block in &blocks {
        let answer = answer(block);
        while budget < answer.budget_bytes() {
            let frame =
                read_frame(&mut bench.first, CONTROL_BYTES_MAX, PATIENCE).await.expect("reads").expect("credit");
            let Ok(Control::Credit(bytes)) = Control::decode(frame) else { panic!("is credit") };
            budget += bytes;
        }
        budget -= answer.budget_bytes();
        send(&mut bench.first, [answer]).await;
        let key = block.key().expect("a key");
        tokio::time::timeout(PATIENCE, async {
            while !bench.context.pushed.holds_of(&key, &bench.active) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await
        .expect("is buffered");
        if block.cid().codec() == codec::RAW {
            assert!(bench.context.pushed.take(block.cid()).is_some());
        }
        most = most.max(bench.context.pushed.len());
    }
    send(&mut bench.first, [Answer::End(EndStatus::Complete)]).await;
    assert_eq!(bench.ended().await.0, TransferEnd::Status(EndStatus::Complete));
    let inner = blocks.iter().filter(|block| block.cid().codec() == codec::DAG_PB).count();
    assert!(inner > 50 && most < 20, "{most} of {inner}");
}
