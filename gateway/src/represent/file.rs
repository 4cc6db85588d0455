//! Files, symlinks and raw blocks: bytes of a known length, whole or in ranges.

use crate::body::Content;
use crate::errors::Problem;
use crate::headers::header;
use crate::limits::{ClientMemory, RequestLimits};
use crate::represent::Context;
use crate::represent::encoded::Encoded;
use crate::represent::plan::{self, About, Decision, Representation};
use crate::request::Ask;
use crate::request::conditional::none_match;
use crate::request::negotiate::{self, Coding, Format};
use crate::request::range::Multipart;
use crate::resolve::source::{RootSource, Tier};
use crate::resolve::{self, Entity, content_type, etag_of};
use crate::respond::Draft;
use bytes::{Bytes, BytesMut};
use content::budget::Share;
use content::packed::{PackedFile, reader};
use content::policy::check_inlined;
use content::unixfs::Node;
use content::unixfs::file::FileReader;
use content::walk::WalkError;
use content::{Block, BlockSource as _, Cid, Verdict, codec};
use futures::future::try_join;
use futures::stream::{self, StreamExt as _};
use http::HeaderValue;
use std::hash::{BuildHasher as _, RandomState};
use std::ops::Range;
use std::sync::Arc;

/// A file and its root block.
pub struct OpenFile<'a> {
    /// The source of its other blocks.
    pub source: &'a Arc<RootSource>,
    /// Its root block.
    pub block: &'a Block,
    /// Its length, in bytes.
    pub size: u64,
    /// The cache of encoded files, if files are sent encoded.
    pub encoded: Option<&'a Encoded>,
    /// The frames of which it is read, if the root block is that of a zstd file.
    pub packed: Option<PackedFile>,
    /// The limits of a request.
    pub limits: &'a RequestLimits,
}

/// The response with a file or its ranges. `on_sniffed` is called when sniffing has determined the media type.
///
/// # Errors
/// [`Problem`] when the first bytes cannot be read.
pub async fn file(
    about: &About<'_>,
    mut entity: Arc<Entity>,
    file: OpenFile<'_>,
    response_bytes_max: u64,
    on_sniffed: impl FnOnce(&Arc<Entity>),
) -> Result<Draft, Problem> {
    let ask = about.ask;
    let knew = entity.content_type.is_some();
    if let Some(draft) = encoded(about, &mut entity, &file, response_bytes_max).await {
        if !knew {
            on_sniffed(&entity);
        }
        return Ok(draft);
    }
    let decision = Decision::of(ask, &entity.etag, entity.modified, entity.size);
    check_length(&decision, entity.size, response_bytes_max)?;
    let sniffs = decision.has_body() && entity.content_type.is_none();
    let wanted = (decision.has_body() && !ask.head_only).then(|| first_range(&decision, entity.size));
    let shown = wanted.as_ref().is_some_and(|range| includes_sniffed_bytes(range, entity.size));
    let sniffs_first = sniffs && (!shown || file.packed.is_some());
    let (mut content, sniffed) = match file.in_memory(wanted.as_ref()).filter(|_| !sniffs_first) {
        Some(content) => (content, None),
        None => Box::pin(file.open_and_sniff(wanted, sniffs_first)).await?,
    };
    if sniffs {
        let sniffed = sniffed.unwrap_or_else(|| content_type::by_content(&file.first_bytes(&content)));
        Arc::make_mut(&mut entity).content_type = Some(sniffed);
        on_sniffed(&entity);
    }
    let content_type = plan::file_type(ask, &entity);
    let multipart = multipart(&decision, content_type.as_ref(), entity.size);
    if let (Some(multipart), false) = (&multipart, ask.head_only) {
        content = multipart_content(&file, multipart.clone(), content);
    }
    let it = Representation { multipart: multipart.as_ref(), ..file_representation(ask, &entity) };
    Ok(plan::sized(about, &it, &decision).map(|()| content))
}

/// A whole file in a coding that the client accepts, if it is stored as zstd or was transcoded before. It is a
/// representation of its own, with its own entity tag and without ranges, which refer to the unencoded bytes. If the
/// media type is unknown, the first bytes are sniffed, and `entity` gets the result.
async fn encoded(
    about: &About<'_>,
    entity: &mut Arc<Entity>,
    file: &OpenFile<'_>,
    response_bytes_max: u64,
) -> Option<Draft> {
    let ask = about.ask;
    let encoded = file.encoded.filter(|_| is_native(ask) && negotiate::codings(ask.headers).next().is_some())?;
    // A client with a cached unencoded file keeps it.
    if !plan::may_be_encoded(ask) || none_match(ask.headers, entity.etag.as_bytes(), true) {
        return None;
    }
    let mut tags = negotiate::codings(ask.headers).map(|coding| plan::encoded_etag(&entity.etag, coding));
    if let Some(etag) = tags.find(|etag| none_match(ask.headers, etag.as_bytes(), true)) {
        // The decoded content never changes: no block is needed for a 304.
        let it = Representation { etag: &etag, ..file_representation(ask, entity) };
        return Some(plan::sized(about, &it, &Decision::NotModified).map(|()| Content::Empty));
    }
    let (coding, size, content) = encoded_content(ask, encoded, entity, file).await?;
    let etag = plan::encoded_etag(&entity.etag, coding);
    if size > response_bytes_max {
        return None;
    }
    let decision = Decision::of(ask, &etag, entity.modified, size);
    if decision.has_body() && plan::file_type(ask, entity).is_none() {
        // The whole file is stored locally, so this does not wait for the network. An error will appear where the file
        // is sent unencoded.
        let sniffed = Box::pin(file.sniff()).await.ok()?;
        Arc::make_mut(entity).content_type = Some(sniffed);
    }
    let it = Representation { etag: &etag, size, ..file_representation(ask, entity) };
    let mut head = plan::sized(about, &it, &decision);
    if !decision.has_body() {
        return Some(head.map(|()| Content::Empty));
    }
    plan::set_coding(&mut head, coding);
    Some(head.map(|()| content))
}

/// A file in the first available coding of those that the client accepts.
async fn encoded_content(
    ask: &Ask<'_>,
    encoded: &Encoded,
    entity: &Entity,
    file: &OpenFile<'_>,
) -> Option<(Coding, u64, Content)> {
    for coding in negotiate::codings(ask.headers) {
        let found = match coding {
            Coding::Zstd => {
                let memory = file.source.memory(file.limits);
                encoded.file(&entity.cid, entity.size, entity.generation, memory).await
            }
            _ => encoded.transcoded(&entity.cid, entity.size, entity.generation, coding).await,
        };
        if let Some((size, content)) = found {
            return Some((coding, size, content));
        }
    }
    None
}

/// The head of a file, if it needs no block (which the decision about the content encoding does), and the length is
/// within the limit.
pub fn head_only(about: &About<'_>, entity: &Entity, response_bytes_max: u64) -> Option<Draft> {
    let decision = Decision::of(about.ask, &entity.etag, entity.modified, entity.size);
    check_length(&decision, entity.size, response_bytes_max).ok()?;
    let needs_block =
        !about.ask.head_only || entity.content_type.is_none() || negotiate::codings(about.ask.headers).next().is_some();
    if decision.has_body() && needs_block {
        return None;
    }
    Some(plan::sized(about, &file_representation(about.ask, entity), &decision).map(|()| Content::Empty))
}

/// A file, whole or as one range.
fn file_representation<'a>(ask: &Ask<'_>, entity: &'a Entity) -> Representation<'a> {
    Representation {
        etag: &entity.etag,
        modified: entity.modified,
        size: entity.size,
        content_type: plan::file_type(ask, entity),
        disposition: plan::file_disposition(ask),
        multipart: None,
        further_key: entity.index_key.as_ref(),
    }
}

/// The range that is read first.
fn first_range(decision: &Decision, size: u64) -> Range<u64> {
    match decision {
        Decision::Part(range) => range.clone(),
        Decision::Parts(parts) => parts.first().cloned().unwrap_or(0..0),
        _ => 0..size,
    }
}

/// # Errors
/// [`Problem::TooLarge`] when the response would exceed the limit.
fn check_length(decision: &Decision, size: u64, max: u64) -> Result<(), Problem> {
    let length = match decision {
        Decision::NotModified | Decision::Unsatisfiable => 0,
        Decision::Whole => size,
        Decision::Part(range) => range.end - range.start,
        Decision::Parts(parts) => parts.iter().map(|range| range.end - range.start).sum(),
    };
    if length > max { Err(Problem::TooLarge { bytes: length, max }) } else { Ok(()) }
}

fn multipart(decision: &Decision, content_type: Option<&HeaderValue>, size: u64) -> Option<Multipart> {
    let Decision::Parts(parts) = decision else { return None };
    let octets = HeaderValue::from_static("application/octet-stream");
    Some(Multipart::new(boundary(), content_type.unwrap_or(&octets), size, parts.clone()))
}

/// An unpredictable number: the keys of the standard library's hash maps are random.
fn boundary() -> u128 {
    let random = || u128::from(RandomState::new().hash_one(()));
    (random() << 64) | random()
}

impl OpenFile<'_> {
    /// The requested bytes, if the root block contains them.
    fn in_memory(&self, wanted: Option<&Range<u64>>) -> Option<Content> {
        match wanted {
            None => Some(Content::Empty),
            Some(range) if self.packed.is_none() && self.block.cid().codec() == codec::RAW => {
                Some(block_content(self.source, self.block, range, self.limits))
            }
            Some(_) => None,
        }
    }

    /// Reads the range and sniffs the media type at the same time: over the network, one after the other would take
    /// twice as long.
    async fn open_and_sniff(
        &self,
        wanted: Option<Range<u64>>,
        sniffs: bool,
    ) -> Result<(Content, Option<HeaderValue>), Problem> {
        let opening = async {
            match wanted {
                Some(range) => self.open(range).await,
                None => Ok(Content::Empty),
            }
        };
        let sniffing = async {
            match sniffs {
                true => self.sniff().await.map(Some),
                false => Ok(None),
            }
        };
        try_join(opening, sniffing).await
    }

    /// The bytes of a range. Waits for the first of them.
    async fn open(&self, range: Range<u64>) -> Result<Content, Problem> {
        match &self.packed {
            Some(packed) => open_packed(self.source, packed, range, self.limits).await,
            None => open(self.source, self.block, self.size, range, self.limits).await,
        }
    }

    /// Sniffs the media type from the file's first bytes.
    async fn sniff(&self) -> Result<HeaderValue, Problem> {
        let content = self.open(0..self.size.min(content_type::SNIFF_BYTES)).await?;
        Ok(content_type::by_content(&self.first_bytes(&content)))
    }

    /// The first bytes of content that begins with the file.
    fn first_bytes(&self, content: &Content) -> Bytes {
        match content {
            Content::Bytes(bytes) | Content::File { first: Some(bytes), .. } => bytes.clone(),
            // It is read in pieces later.
            _ => match offset_in_root(self.source, self.block, self.size) {
                Some(at) => slice(self.block.data(), &(at..at + self.size)),
                None => Bytes::new(),
            },
        }
    }
}

/// Smaller blocks do not count against the memory budget of response bodies.
const COUNTED_BYTES_MIN: usize = 64 * 1024;
/// The size of pieces in which a block is read if there is no memory to hold it, in bytes.
const PIECE_BYTES: u64 = 256 * 1024;

/// Bytes that count against the memory budget until they are sent.
struct BudgetedBytes {
    bytes: Bytes,
    _share: Share,
}

impl AsRef<[u8]> for BudgetedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Bytes that keep a buffer of `kept` bytes in memory, counted against the client's budget; `None` if it is used up.
fn counted(bytes: Bytes, kept: usize, memory: ClientMemory<'_>) -> Option<Bytes> {
    if kept < COUNTED_BYTES_MIN {
        return Some(bytes);
    }
    // A small slice is copied, so that it does not keep the whole buffer alive.
    let (bytes, held) = match bytes.len() < kept / 2 {
        true => (Bytes::copy_from_slice(&bytes), bytes.len()),
        false => (bytes, kept),
    };
    let mut share = memory.share();
    share.grow(held).then(|| Bytes::from_owner(BudgetedBytes { bytes, _share: share }))
}

/// The requested bytes of a block. If there is no memory to hold them, the block is released and read again for each
/// piece that the client takes.
fn block_content(source: &Arc<RootSource>, block: &Block, range: &Range<u64>, limits: &RequestLimits) -> Content {
    let memory = source.memory(limits);
    match counted(slice(block.data(), range), block.data().len(), memory) {
        Some(bytes) => Content::Bytes(bytes),
        None => in_pieces(source, *block.cid(), range.clone()),
    }
}

fn in_pieces(source: &Arc<RootSource>, cid: Cid, range: Range<u64>) -> Content {
    let (source, end) = (Arc::clone(source), range.end);
    let pieces = stream::try_unfold(range.start, move |at| {
        let source = Arc::clone(&source);
        async move {
            if at >= end {
                return Ok(None);
            }
            let block = source.fetch(&cid).await.map_err(WalkError::Source)?;
            let until = end.min(at + PIECE_BYTES);
            Ok(Some((Bytes::copy_from_slice(&slice(block.data(), &(at..until))), until)))
        }
    });
    Content::Stream { stream: pieces.boxed(), remaining: Some(range.end - range.start) }
}

/// The offset of a file's bytes in its root block, if that contains the whole file: small files need no reader.
fn offset_in_root(source: &Arc<RootSource>, block: &Block, size: u64) -> Option<u64> {
    if block.cid().codec() == codec::RAW {
        return Some(0);
    }
    // The root of a longer file is decoded by its reader.
    if size > block.data().len() as u64 {
        return None;
    }
    source.work().charge_decoding(block);
    match Node::decode(block) {
        // A length that disagrees with the bytes is the reader's to judge.
        Ok(Node::File(file)) if file.child_count() == 0 && file.data().len() as u64 == size => {
            offset_of(file.data(), block.data())
        }
        _ => None,
    }
}

/// The offset of bytes in the buffer that they are a part of.
fn offset_of(part: &Bytes, buffer: &Bytes) -> Option<u64> {
    let at = part.as_ptr().addr().checked_sub(buffer.as_ptr().addr())?;
    (at + part.len() <= buffer.len()).then_some(at as u64)
}

async fn open(
    source: &Arc<RootSource>,
    block: &Block,
    size: u64,
    range: Range<u64>,
    limits: &RequestLimits,
) -> Result<Content, Problem> {
    if let Some(at) = offset_in_root(source, block, size) {
        return Ok(block_content(source, block, &(at + range.start..at + range.end), limits));
    }
    let remaining = range.end - range.start;
    let read_limits = source.memory(limits).read_limits();
    let mut reader = FileReader::new(source.paced(), block.clone(), range, read_limits)?;
    match reader.next().await.transpose()? {
        None if remaining == 0 => Ok(Content::Empty),
        None => Err(Problem::Length),
        Some(first) if first.len() as u64 == remaining => Ok(Content::Bytes(first)),
        Some(first) => Ok(Content::File { first: Some(first), reader: Box::new(reader), remaining }),
    }
}

/// The bytes of a range of a packed file. Waits for the first of them.
async fn open_packed(
    source: &Arc<RootSource>,
    packed: &PackedFile,
    range: Range<u64>,
    limits: &RequestLimits,
) -> Result<Content, Problem> {
    let remaining = range.end - range.start;
    let mut share = source.memory(limits).share();
    if !share.grow(reader::MEMORY_BYTES_MAX) {
        return Err(Problem::MemoryFull);
    }
    let chunks = packed.read(source.paced(), range, source.memory(limits).read_limits())?;
    let mut chunks = chunks.map(|chunk| chunk.map_err(Problem::from)).boxed();
    if remaining <= COUNTED_BYTES_MIN as u64 {
        let mut bytes = BytesMut::new();
        while let Some(chunk) = chunks.next().await.transpose()? {
            bytes.extend_from_slice(&chunk);
        }
        return match bytes.len() as u64 == remaining {
            true => Ok(Content::Bytes(bytes.freeze())),
            false => Err(Problem::Length),
        };
    }
    let first = chunks.next().await.transpose()?.ok_or(Problem::Length)?;
    let chunks = stream::once(async move { Ok(first) }).chain(chunks).inspect(move |_| _ = &share);
    Ok(Content::Stream { stream: chunks.boxed(), remaining: Some(remaining) })
}

/// Several parts as one body. Each part is opened after the one before it was sent; the first is open already.
fn multipart_content(file: &OpenFile<'_>, multipart: Multipart, first: Content) -> Content {
    let (source, block, size, limits) = (Arc::clone(file.source), file.block.clone(), file.size, file.limits.clone());
    let packed = file.packed.clone();
    let remaining = multipart.content_length;
    let end = stream::once(async move { Ok(multipart.end) });
    let parts = stream::iter(multipart.frames).scan(Some(first), move |first, frame| {
        let (source, block, limits, open_first) = (Arc::clone(&source), block.clone(), limits.clone(), first.take());
        let packed = packed.clone();
        async move {
            let content = match (open_first, &packed) {
                (Some(content), _) => Ok(content),
                (None, Some(packed)) => open_packed(&source, packed, frame.range, &limits).await,
                (None, None) => open(&source, &block, size, frame.range, &limits).await,
            };
            let head = stream::once(async move { Ok(frame.head) });
            Some(match content {
                Ok(content) => head.chain(content).boxed(),
                Err(problem) => stream::once(async move { Err(problem) }).boxed(),
            })
        }
    });
    Content::Stream { stream: parts.flatten().chain(end).boxed(), remaining: Some(remaining) }
}

/// Whether the range includes the bytes that are sniffed.
fn includes_sniffed_bytes(range: &Range<u64>, size: u64) -> bool {
    range.start == 0 && range.end >= size.min(content_type::SNIFF_BYTES)
}

/// The bytes of a range, which is within the bounds.
fn slice(bytes: &Bytes, range: &Range<u64>) -> Bytes {
    let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    bytes.slice(at(range.start)..at(range.end))
}

/// Bytes in memory, with their metadata.
pub struct InMemory<'a> {
    /// All of them.
    pub bytes: Bytes,
    /// Their origin.
    pub origin: Origin<'a>,
    /// Their entity tag.
    pub etag: HeaderValue,
    /// Their media type.
    pub content_type: HeaderValue,
    /// `Content-Disposition`, if they need one.
    pub disposition: Option<HeaderValue>,
}

/// The origin of bytes in memory, which determines what happens if there is no memory to hold them for a slow client.
#[derive(Clone, Copy)]
pub enum Origin<'a> {
    /// A block, which can be read again.
    Block {
        /// The source.
        source: &'a Arc<RootSource>,
        /// The block.
        block: &'a Block,
        /// The limits of a request.
        limits: &'a RequestLimits,
    },
    /// Generated for this response.
    Made {
        /// The memory of the client.
        memory: ClientMemory<'a>,
    },
    /// Small, and shared with other owners.
    Small,
}

impl InMemory<'_> {
    /// The body for one range.
    fn part(&self, range: &Range<u64>) -> Result<Content, Problem> {
        let bytes = slice(&self.bytes, range);
        match self.origin {
            Origin::Block { source, block, limits } => Ok(block_content(source, block, range, limits)),
            Origin::Made { memory } => {
                counted(bytes, self.bytes.len(), memory).map(Content::Bytes).ok_or(Problem::MemoryFull)
            }
            Origin::Small => Ok(Content::Bytes(bytes)),
        }
    }

    /// The body for several ranges.
    fn parts(&self, multipart: &Multipart) -> Result<Content, Problem> {
        let length = usize::try_from(multipart.content_length).unwrap_or(usize::MAX);
        match self.origin {
            Origin::Small => Ok(Content::Bytes(joined(&self.bytes, multipart))),
            _ if length < COUNTED_BYTES_MIN => Ok(Content::Bytes(joined(&self.bytes, multipart))),
            Origin::Block { source, block, .. } => Ok(parts_of_block(source, block, multipart.clone())),
            Origin::Made { memory } => {
                // The budget is checked before the body is assembled.
                let mut share = memory.share();
                if !share.grow(length) {
                    return Err(Problem::MemoryFull);
                }
                Ok(Content::Bytes(Bytes::from_owner(BudgetedBytes {
                    bytes: joined(&self.bytes, multipart),
                    _share: share,
                })))
            }
        }
    }
}

/// Several parts of a block, which is read again for each piece, so that it is not held while the client reads.
fn parts_of_block(source: &Arc<RootSource>, block: &Block, multipart: Multipart) -> Content {
    let (source, cid) = (Arc::clone(source), *block.cid());
    let remaining = multipart.content_length;
    let end = stream::once(async move { Ok(multipart.end) });
    let parts = stream::iter(multipart.frames).map(move |frame| {
        let head = stream::once(async move { Ok(frame.head) });
        head.chain(in_pieces(&source, cid, frame.range))
    });
    Content::Stream { stream: parts.flatten().chain(end).boxed(), remaining: Some(remaining) }
}

/// The response with bytes in memory, or their ranges.
///
/// # Errors
/// [`Problem::MemoryFull`] when there is no memory to hold them for the client, and they cannot be read again.
pub fn in_memory(about: &About<'_>, it: InMemory<'_>) -> Result<Draft, Problem> {
    let size = it.bytes.len() as u64;
    let decision = Decision::of(about.ask, &it.etag, None, size);
    let multipart = multipart(&decision, Some(&it.content_type), size);
    let content = match (&decision, &multipart) {
        _ if about.ask.head_only => Content::Empty,
        (Decision::Whole, _) => it.part(&(0..size))?,
        (Decision::Part(range), _) => it.part(range)?,
        (Decision::Parts(_), Some(multipart)) => it.parts(multipart)?,
        _ => Content::Empty,
    };
    let it = Representation {
        etag: &it.etag,
        modified: None,
        size,
        content_type: Some(it.content_type),
        disposition: it.disposition,
        multipart: multipart.as_ref(),
        further_key: None,
    };
    Ok(plan::sized(about, &it, &decision).map(|()| content))
}

fn joined(bytes: &Bytes, multipart: &Multipart) -> Bytes {
    let mut body = Vec::with_capacity(usize::try_from(multipart.content_length).unwrap_or_default());
    for frame in &multipart.frames {
        body.extend_from_slice(&frame.head);
        body.extend_from_slice(&slice(bytes, &frame.range));
    }
    body.extend_from_slice(&multipart.end);
    body.into()
}

/// A symlink's target, as text.
///
/// # Errors
/// As [`in_memory`].
pub fn symlink(about: &About<'_>, entity: &Entity, target: Bytes, memory: ClientMemory<'_>) -> Result<Draft, Problem> {
    let content_type = plan::file_type(about.ask, entity).unwrap_or(content_type::SYMLINK);
    in_memory(
        about,
        InMemory {
            bytes: target,
            origin: Origin::Made { memory },
            etag: entity.etag.clone(),
            content_type,
            disposition: plan::file_disposition(about.ask),
        },
    )
}

/// The block at the end of a path, unchanged; as zstd, if the client accepts it and the block is stored so.
///
/// # Errors
/// [`Problem`] when the path cannot be resolved or a block cannot be fetched.
pub async fn raw(cx: &Context<'_>) -> Result<Draft, Problem> {
    let root = &cx.target.root;
    // A leaf has nothing to check but its CID, so it need not be read.
    if cx.target.segments.is_empty()
        && root.codec() == codec::RAW
        && cx.source.policy().check_path(root, "") == Verdict::Allow
        && let Some(draft) = encoded_block(cx, &header(&root.to_string()), root).await
    {
        return Ok(draft);
    }
    let resolved = cx.walk().await?;
    if !resolved.remainder.is_empty() {
        return Err(Problem::InsideDocument { cid: *resolved.block.cid() });
    }
    check_inlined(cx.source.policy(), &resolved.block).map_err(WalkError::Source)?;
    let roots = resolve::roots_header(&resolved);
    let block = resolved.block;
    if let Some(draft) = encoded_block(cx, &roots, block.cid()).await {
        return Ok(draft);
    }
    let it = InMemory {
        bytes: block.data().clone(),
        origin: Origin::Block { source: cx.source, block: &block, limits: &cx.resources.limits },
        etag: raw_etag(block.cid()),
        content_type: HeaderValue::from_static(Format::Raw.media_type()),
        disposition: Some(raw_disposition(cx, block.cid())),
    };
    in_memory(&cx.about(&roots), it)
}

/// A raw block as zstd, if the client accepts it and the block is stored so. Its length is known from the index.
async fn encoded_block(cx: &Context<'_>, roots: &HeaderValue, cid: &Cid) -> Option<Draft> {
    let ask = cx.ask;
    let encoded = cx.resources.encoded.as_ref()?;
    let plain = raw_etag(cid);
    if !negotiate::accepts_zstd(ask.headers)
        || !plan::may_be_encoded(ask)
        || none_match(ask.headers, plain.as_bytes(), true)
    {
        return None;
    }
    let about = About { tier: cx.source.tier().max(Tier::Disk), ..cx.about(roots) };
    let etag = plan::encoded_etag(&plain, Coding::Zstd);
    let size = encoded.block_bytes(cid).await?;
    if let Some(head) = plan::not_modified(&about, &etag, false) {
        return Some(head.map(|()| Content::Empty));
    }
    let content = match ask.head_only {
        true => Content::Empty,
        false => {
            let bytes = encoded.block(cid).await?;
            let kept = bytes.len();
            Content::Bytes(counted(bytes, kept, cx.memory())?)
        }
    };
    let it = Representation {
        etag: &etag,
        modified: None,
        // It may have been stored in another form meanwhile.
        size: if ask.head_only { size } else { content.length()? },
        content_type: Some(HeaderValue::from_static(Format::Raw.media_type())),
        disposition: Some(raw_disposition(cx, cid)),
        multipart: None,
        further_key: None,
    };
    let mut head = plan::sized(&about, &it, &Decision::Whole);
    plan::set_coding(&mut head, Coding::Zstd);
    Some(head.map(|()| content))
}

fn raw_disposition(cx: &Context<'_>, cid: &Cid) -> HeaderValue {
    plan::disposition(cx.ask, true, Some(format!("{cid}.bin")))
}

/// The entity tag of a raw block.
pub fn raw_etag(cid: &content::Cid) -> HeaderValue {
    etag_of(cid, ".raw")
}

/// Whether a request is for the content in its own format.
pub fn is_native(ask: &Ask<'_>) -> bool {
    ask.wanted.format == Format::Native
}
