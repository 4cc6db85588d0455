//! A minimal codec of Bitswap messages, independent of Causeway's own codec, so that a bug there is not
//! repeated here: <https://specs.ipfs.tech/bitswap-protocol/#bitswap-1-2-0-wire-format>.

/// The wanted CIDs of a message, without cancellations. Empty for an invalid message.
pub fn wanted_cids(message: &[u8]) -> Vec<Vec<u8>> {
    let wantlists = fields(message).into_iter().filter(|(number, _)| *number == 1);
    let entries = wantlists.flat_map(|(_, wantlist)| fields(wantlist)).filter(|(number, _)| *number == 1);
    entries.filter_map(|(_, entry)| wanted_cid(entry)).collect()
}

fn wanted_cid(entry: &[u8]) -> Option<Vec<u8>> {
    let cancelled = contains_varint_field(entry, 3, 1);
    let block = fields(entry).into_iter().find(|(number, _)| *number == 1);
    block.filter(|_| !cancelled).map(|(_, cid)| cid.to_vec())
}

/// A message with HAVE for each CID, and with blocks as (prefix, data).
pub fn message(haves: &[Vec<u8>], blocks: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut message = Vec::new();
    for (prefix, data) in blocks {
        let mut block = Vec::new();
        put_bytes(&mut block, 1, prefix);
        put_bytes(&mut block, 2, data);
        put_bytes(&mut message, 3, &block);
    }
    for cid in haves {
        let mut presence = Vec::new();
        // Presence type 0, "have", is protobuf's default and is not written.
        put_bytes(&mut presence, 1, cid);
        put_bytes(&mut message, 4, &presence);
    }
    message
}

/// A message with DONT_HAVE for each CID.
pub fn lacks(cids: &[Vec<u8>]) -> Vec<u8> {
    let mut message = Vec::new();
    for cid in cids {
        let mut presence = Vec::new();
        put_bytes(&mut presence, 1, cid);
        presence.extend([2 << 3, 1]);
        put_bytes(&mut message, 4, &presence);
    }
    message
}

/// The root of a request for a DAG transfer; `None` for a further stream of one.
pub fn root_of_transfer(opening: &[u8]) -> Option<Vec<u8>> {
    let (_, request) = fields(opening).into_iter().find(|(number, _)| *number == 1)?;
    // Its first field, the number of the transfer, is not length-delimited.
    let mut rest = request;
    while let Some((key, after)) = take_varint(rest) {
        let (value, after) = take_varint(after)?;
        if key & 7 != 2 {
            rest = after;
            continue;
        }
        let (bytes, after) = after.split_at_checked(value as usize)?;
        if key >> 3 == 2 {
            return Some(bytes.to_vec());
        }
        rest = after;
    }
    None
}

/// The CIDv1 of a raw block with a SHA-256 digest.
pub fn raw_cid(digest: &[u8; 32]) -> Vec<u8> {
    [&[1, 0x55, 0x12, 32][..], digest].concat()
}

/// A framed answer of a transfer: a block.
pub fn dag_block(cid: &[u8], data: &[u8]) -> Vec<u8> {
    let mut block = Vec::new();
    put_bytes(&mut block, 1, cid);
    put_bytes(&mut block, 2, data);
    framed_answer(1, &block)
}

/// A framed answer of a transfer: a compressed block.
pub fn dag_packed(cid: &[u8], block_bytes: u64, frame: &[u8]) -> Vec<u8> {
    let mut packed = Vec::new();
    put_bytes(&mut packed, 1, cid);
    packed.push(2 << 3);
    packed.extend(varint(block_bytes));
    put_bytes(&mut packed, 4, frame);
    framed_answer(2, &packed)
}

/// A framed answer of a transfer: its end.
pub fn dag_end(status: u8) -> Vec<u8> {
    framed_answer(4, &[1 << 3, status])
}

fn framed_answer(field: u64, inner: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    put_bytes(&mut answer, field, inner);
    [varint(answer.len() as u64), answer].concat()
}

/// The prefix of a CIDv1 without its digest: version, codec, hash function, digest length. Digests here
/// have 32 bytes.
pub fn prefix_of(cid: &[u8]) -> Vec<u8> {
    cid[..cid.len().saturating_sub(32)].to_vec()
}

/// An unsigned varint.
pub fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push((number as u8 & 0x7f) | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

fn put_bytes(message: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    message.extend(varint(field << 3 | 2));
    message.extend(varint(bytes.len() as u64));
    message.extend(bytes);
}

/// The length-delimited fields of a message, up to the first invalid one.
fn fields(message: &[u8]) -> Vec<(u64, &[u8])> {
    let mut fields = Vec::new();
    let mut rest = message;
    while let Some((key, after)) = take_varint(rest) {
        rest = after;
        let Some((len, after)) = take_varint(rest) else { break };
        rest = after;
        if key & 7 == 2 {
            let Some((bytes, after)) = rest.split_at_checked(len as usize) else { break };
            fields.push((key >> 3, bytes));
            rest = after;
        }
    }
    fields
}

fn contains_varint_field(message: &[u8], field: u64, value: u64) -> bool {
    let mut rest = message;
    while let Some((key, after)) = take_varint(rest) {
        let Some((number, after)) = take_varint(after) else { break };
        if key & 7 == 2 {
            let Some((_, after)) = after.split_at_checked(number as usize) else { break };
            rest = after;
            continue;
        }
        if key >> 3 == field && number == value {
            return true;
        }
        rest = after;
    }
    false
}

fn take_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let end = bytes.iter().take(10).position(|byte| byte & 0x80 == 0)?;
    let number = bytes[..=end].iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f));
    Some((number, &bytes[end + 1..]))
}

#[test]
fn wants_are_read_and_cancellations_are_not_wants() {
    let entry = |cid: &[u8], cancel: bool| {
        let mut entry = Vec::new();
        put_bytes(&mut entry, 1, cid);
        entry.extend([2 << 3, 1]);
        if cancel {
            entry.extend([3 << 3, 1]);
        }
        entry
    };
    let mut wantlist = Vec::new();
    for (cid, cancel) in [(b"one", false), (b"two", true)] {
        put_bytes(&mut wantlist, 1, &entry(cid, cancel));
    }
    let mut message = Vec::new();
    put_bytes(&mut message, 1, &wantlist);
    assert_eq!(wanted_cids(&message), [b"one".to_vec()]);
}
