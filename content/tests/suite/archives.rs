//! CARv1: valid archives, and all kinds of truncation and corruption.

use crate::support::*;
use content::car::{self, CarError, CarReader};
use content::{Block, Cid, MAX_BLOCK_BYTES, codec, hashes};
use futures::stream::StreamExt as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, ReadBuf};

/// The roots and blocks of an archive, and the error that ended it.
fn read(reader: impl AsyncRead + Unpin) -> (Vec<Cid>, Vec<Block>, Option<CarError>) {
    block_on(async {
        let mut car = match CarReader::new(reader).await {
            Ok(car) => car,
            Err(error) => return (Vec::new(), Vec::new(), Some(error)),
        };
        let mut blocks = Vec::new();
        while let Some(block) = car.next_block().await {
            match block {
                Ok(block) => blocks.push(block),
                Err(error) => {
                    assert!(car.next_block().await.is_none(), "nothing follows an error");
                    return (car.roots().to_vec(), blocks, Some(error));
                }
            }
        }
        assert!(car.next_block().await.is_none());
        (car.roots().to_vec(), blocks, None)
    })
}

fn three_blocks() -> [Block; 3] {
    let block = |codec, hash, bytes, data: &[u8]| Block::of(codec, hash, bytes, data.to_vec().into()).expect("block");
    let v0 = block(codec::DAG_PB, hashes::SHA2_256, 32, &pb_node(&[], None, false));
    let v0 = v0.under(&Cid::new_v0(*v0.cid().hash()).expect("v0")).expect("same hash");
    [
        v0,
        block(codec::RAW, 0x1e, 32, &content(1, 100_000)), // BLAKE3
        block(codec::RAW, hashes::IDENTITY, 5, b"hello"),
    ]
}

fn archive(roots: &[Cid], blocks: &[Block]) -> Vec<u8> {
    write_car(&car_header(roots), blocks.iter().map(|block| (*block.cid(), &block.data()[..])))
}

#[test]
fn an_archive_gives_its_roots_and_blocks_in_order() {
    let blocks = three_blocks();
    let roots = [*blocks[0].cid(), *blocks[2].cid()];
    for roots in [&roots[..], &roots[..1], &[]] {
        let car = archive(roots, &blocks);
        let (found_roots, found, error) = read(&car[..]);
        assert!(error.is_none(), "{error:?}");
        assert_eq!((&found_roots[..], &found[..]), (roots, &blocks[..]));
    }
    let (_, none, error) = read(&archive(&roots, &[])[..]);
    assert!(none.is_empty() && error.is_none());
    let car = archive(&roots, &blocks);
    let streamed = block_on(async {
        let blocks: Vec<_> = CarReader::new(&car[..]).await.expect("a CAR").into_blocks().collect().await;
        blocks.into_iter().map(|block| block.expect("a block")).collect::<Vec<_>>()
    });
    assert_eq!(streamed, blocks);
}

#[test]
fn an_archive_received_byte_by_byte_reads_the_same() {
    struct ByteByByte<'a>(&'a [u8], bool);
    impl AsyncRead for ByteByByte<'_> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            self.1 = !self.1;
            if self.1 {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            if let Some((first, rest)) = self.0.split_first() {
                buf.put_slice(&[*first]);
                self.0 = rest;
            }
            Poll::Ready(Ok(()))
        }
    }
    let mut blocks = three_blocks();
    blocks[1] = Block::of(codec::RAW, hashes::SHA2_256, 32, content(1, 300)).expect("block");
    let car = archive(&[], &blocks);
    let (_, found, error) = read(ByteByByte(&car, false));
    assert!(error.is_none());
    assert_eq!(found, blocks);
}

#[test]
fn truncation_is_an_error_except_between_sections() {
    let mut blocks = three_blocks();
    blocks[1] = Block::of(codec::RAW, hashes::SHA2_256, 32, content(1, 300)).expect("block");
    let mut boundaries = vec![archive(&[], &[]).len()];
    (1..=3).for_each(|count| boundaries.push(archive(&[], &blocks[..count]).len()));
    let car = archive(&[], &blocks);
    for cut in 0..car.len() {
        let (_, found, error) = read(&car[..cut]);
        match boundaries.iter().position(|boundary| *boundary == cut) {
            Some(count) => assert!(error.is_none() && found.len() == count, "{cut}"),
            None => assert!(matches!(error, Some(CarError::Truncated(_))), "{cut}: {error:?}"),
        }
    }
}

#[test]
fn headers_other_than_carv1_are_rejected() {
    let root = *inline(codec::RAW, b"x").cid();
    let version = |version: u8| {
        let mut header = car_header(&[root]);
        *header.last_mut().expect("not empty") = version;
        write_car(&header, [])
    };
    assert!(read(&version(1)[..]).2.is_none());
    for number in [0, 2, 3] {
        let error = read(&version(number)[..]).2;
        assert!(matches!(error, Some(CarError::Version { version }) if version == u64::from(number)));
    }
    // The pragma of CARv2 (<https://ipld.io/specs/transport/car/carv2/#pragma>).
    let pragma = [&b"\x0a\xa1\x67version\x02"[..], &[0; 40]].concat();
    let error = read(&pragma[..]).2.expect("refused");
    assert!(matches!(error, CarError::Version { version: 2 }));
    assert!(error.to_string().contains("version 2") && error.to_string().contains("CARv1"));
    for header in [&b"\xa1\x67version\x01"[..], b"\xa0", b"not cbor", b"\xa2\x65roots\x80\x67version\x20", b"\x80"] {
        let error = read(&write_car(header, [])[..]).2;
        assert!(matches!(error, Some(CarError::Header(_))), "{header:?}: {error:?}");
    }
    assert!(matches!(read(&b""[..]).2, Some(CarError::Truncated(_))));
    assert!(matches!(read(&b"\x00"[..]).2, Some(CarError::Length { .. })));
    assert!(matches!(read(&b"\x81\x80\x40"[..]).2, Some(CarError::Length { .. })), "a header over 1 MiB");
}

#[test]
fn invalid_sections_are_errors_and_earlier_blocks_are_returned() {
    let good = Block::of(codec::RAW, hashes::SHA2_256, 32, content(1, 300)).expect("block");
    let start = archive(&[], std::slice::from_ref(&good));
    let section = |cid: &[u8], data: &[u8]| {
        let body = [cid, data].concat();
        let mut out = Vec::new();
        prost::encoding::encode_varint(body.len() as u64, &mut out);
        [out, body].concat()
    };
    let cid = good.cid().to_bytes();
    let md5 = [&[1, 0x55, 0xd5, 1, 16][..], &[0; 16]].concat();
    type Check = fn(&CarError) -> bool;
    let table: [(&str, Vec<u8>, Check); 9] = [
        ("other bytes", section(&cid, b"other"), |e| matches!(e, CarError::Block(_))),
        ("no bytes", section(&cid, b""), |e| matches!(e, CarError::Block(_))),
        ("half a CID", section(&cid[..20], b""), |e| matches!(e, CarError::Cid(_))),
        ("no CID", section(b"\xff\xff", b""), |e| matches!(e, CarError::Cid(_))),
        ("a hash that is not accepted", section(&md5, b""), |e| matches!(e, CarError::Block(_))),
        ("an empty section", vec![0], |e| matches!(e, CarError::Length { .. })),
        ("zero padding", vec![0; 100], |e| matches!(e, CarError::Length { .. })),
        ("a length over the limit", vec![0xff, 0xff, 0xff, 0x7f], |e| matches!(e, CarError::Length { .. })),
        ("a length that is not a varint", vec![0xff; 12], |e| matches!(e, CarError::Length { .. })),
    ];
    for (name, tail, expected) in table {
        let (_, blocks, error) = read(&[&start[..], &tail].concat()[..]);
        assert_eq!(blocks, std::slice::from_ref(&good), "{name}");
        assert!(error.as_ref().is_some_and(expected), "{name}: {error:?}");
    }
}

#[test]
fn the_largest_block_is_read_and_a_larger_one_is_not() {
    let largest = Block::of(codec::RAW, hashes::SHA2_256, 32, vec![7; MAX_BLOCK_BYTES].into()).expect("block");
    let (_, blocks, error) = read(&archive(&[], std::slice::from_ref(&largest))[..]);
    assert!(error.is_none() && blocks == [largest]);
    let long = vec![7; MAX_BLOCK_BYTES + 1];
    let hash = hashes::digest(hashes::SHA2_256, 32, &long).expect("hash");
    let car = write_car(&car_header(&[]), [(Cid::new_v1(codec::RAW, hash), &long[..])]);
    assert!(matches!(read(&car[..]).2, Some(CarError::Block(_))));
}

#[test]
fn a_claimed_length_allocates_no_memory_before_its_bytes_arrive() {
    /// Records the maximum buffer capacity that the reader offers.
    struct Miser<'a>(&'a [u8], usize);
    impl AsyncRead for Miser<'_> {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            self.1 = self.1.max(buf.remaining());
            let (now, rest) = self.0.split_at(self.0.len().min(buf.remaining()));
            buf.put_slice(now);
            self.0 = rest;
            Poll::Ready(Ok(()))
        }
    }
    let car = [&archive(&[], &[])[..], &[0x80, 0x80, 0x80, 0x01], b"no more than this"].concat();
    let mut miser = Miser(&car, 0);
    assert!(matches!(read(&mut miser).2, Some(CarError::Truncated(_))));
    assert!(miser.1 <= 256 * 1024, "{}", miser.1);
}

#[test]
fn a_reader_that_fails_is_an_error() {
    struct Broken;
    impl AsyncRead for Broken {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Err(std::io::Error::other("the connection was reset")))
        }
    }
    assert!(matches!(read(Broken).2, Some(CarError::Io(_))));
}

#[test]
fn a_list_of_roots_is_a_dag_cbor_block() {
    let of = |codec, data: &'static [u8]| Block::of(codec, hashes::SHA2_256, 32, data.into()).expect("a block");
    let blocks = [of(codec::RAW, b"one"), of(codec::RAW, b"two")];
    let many: Vec<Cid> = (0..300).map(|number| *blocks[number % 2].cid()).collect();
    for roots in [&[][..], &many[..1], &many[..23], &many] {
        let list = car::roots_block(roots).expect("not too many");
        assert_eq!(list.cid().codec(), codec::DAG_CBOR);
        assert_eq!(car::read_roots(&list).expect("reads"), roots);
        assert_eq!(content::dag::links(&list).as_deref(), Ok(roots), "it is standard dag-cbor");
    }
    let not_lists: [(u64, &'static [u8]); 5] = [
        (codec::RAW, b"\x80"),
        (codec::DAG_CBOR, b"\xa0"),
        (codec::DAG_CBOR, b"\x81\x01"),
        (codec::DAG_CBOR, b"\x80\x80"),
        (codec::DAG_CBOR, b""),
    ];
    for (codec, data) in not_lists {
        assert!(matches!(car::read_roots(&of(codec, data)), Err(CarError::Roots(_))), "{codec} {data:?}");
    }
    let too_many = vec![*blocks[0].cid(); 60_000];
    assert!(car::roots_block(&too_many).is_err());
}
