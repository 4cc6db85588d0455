//! CAR (<https://specs.ipfs.tech/http-gateways/trustless-gateway/#car-responses-application-vnd-ipld-car>) and TAR.
//!
//! The length of an archive is not known in advance, so archives have no ranges. Errors before the first bytes get a
//! status of their own; later errors abort the response. Clients that accept zstd get CARs in this coding
//! ([`crate::represent::encoded`]).

use crate::body::Content;
use crate::errors::{CarOptionsError, Problem};
use crate::headers::header;
use crate::represent::encoded::Encoded;
use crate::represent::whole::{LocalBlocks, Whole};
use crate::represent::{Context, plan};
use crate::request::Ask;
use crate::request::negotiate::{self, Coding};
use crate::resolve;
use crate::respond::Draft;
use bytes::Bytes;
use content::budget::Share;
use content::policy::check_inlined;
use content::scope::{self, DagScope, EntityBytes, ScopeError, ScopeLimits, ScopeOptions};
use content::stored::frame;
use content::tar::{self, TarLimits};
use content::walk::{Resolved, WalkError};
use content::{Block, BlockSource, Cid, Policy, SourceError, Verdict, car};
use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use http::HeaderValue;
use http::header::CONTENT_DISPOSITION;
use services::limiter::Permit;
use std::sync::Arc;

/// The parameters of a CAR request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CarOptions {
    scope: DagScope,
    entity_bytes: Option<EntityBytes>,
    duplicates: bool,
}

impl CarOptions {
    /// Reads a request: parameters of the query take precedence over those of the media type (IPIP-0523). By default
    /// the whole DAG is sent, depth first and without duplicates.
    ///
    /// # Errors
    /// [`CarOptionsError`] names the parameter that is not supported.
    pub fn of(ask: &Ask<'_>) -> Result<Self, CarOptionsError> {
        let media_type = |name: &str| ask.wanted.parameters.iter().find(|(own, _)| own == name).map(|(_, value)| value);
        let either = |name: &str| {
            let query = ask.parameter(&format!("car-{name}")).filter(|value| !value.is_empty());
            query.map(|value| value.into_owned()).or_else(|| media_type(name).cloned())
        };
        match either("version").as_deref() {
            None | Some("1") => {}
            Some(other) => return Err(CarOptionsError::Version(other.to_owned())),
        }
        match either("order").as_deref() {
            None | Some("dfs" | "unk") => {}
            Some(other) => return Err(CarOptionsError::Order(other.to_owned())),
        }
        let duplicates = match either("dups").as_deref() {
            None | Some("n") => false,
            Some("y") => true,
            Some(other) => return Err(CarOptionsError::Duplicates(other.to_owned())),
        };
        let entity_bytes = ask.parameter("entity-bytes").map(|asked| {
            let malformed = |reason: scope::EntityBytesError| CarOptionsError::EntityBytes {
                asked: asked.chars().take(80).collect(),
                reason: reason.to_string(),
            };
            asked.parse::<EntityBytes>().map_err(malformed)
        });
        let scope = ask.parameter("dag-scope").map(|asked| {
            DagScope::parse(&asked).ok_or_else(|| CarOptionsError::Scope(asked.chars().take(80).collect()))
        });
        let entity_bytes = entity_bytes.transpose()?;
        // `entity-bytes` implies the scope `entity`.
        let implied = if entity_bytes.is_some() { DagScope::Entity } else { DagScope::All };
        Ok(Self { scope: scope.transpose()?.unwrap_or(implied), entity_bytes, duplicates })
    }

    /// The part of the DAG that is requested.
    pub fn scope_options(&self) -> ScopeOptions {
        ScopeOptions { scope: self.scope, entity_bytes: self.entity_bytes, duplicates: false }
    }

    fn media_type(&self) -> HeaderValue {
        HeaderValue::from_static(match self.duplicates {
            true => "application/vnd.ipld.car; version=1; order=dfs; dups=y",
            false => "application/vnd.ipld.car; version=1; order=dfs; dups=n",
        })
    }

    /// Weak: a later release may frame the same blocks differently.
    fn etag(&self, resolved: &Resolved) -> HeaderValue {
        let Self { scope, entity_bytes, duplicates } = self;
        let scope = scope.name();
        let bytes = entity_bytes.as_ref().map(|bytes| format!(".{bytes}")).unwrap_or_default();
        let dups = if *duplicates { ".dups" } else { "" };
        let root = resolved.roots.first().unwrap_or(resolved.block.cid());
        let way = if resolved.passed.is_empty() { String::new() } else { format!(".{root}") };
        header(&format!("W/\"{}.car{way}.{scope}{bytes}{dups}\"", resolved.block.cid()))
    }
}

/// The blocks that prove a path and its target.
///
/// # Errors
/// [`Problem`] when the path cannot be resolved, or a block on it cannot be fetched.
pub async fn car(cx: &Context<'_>) -> Result<Draft, Problem> {
    let options = CarOptions::of(cx.ask)?;
    let resolved = cx.walk().await?;
    let roots = resolve::roots_header(&resolved);
    let (about, plain_etag) = (cx.about(&roots), options.etag(&resolved));
    let encoded = encoded(cx);
    let encoded_etag = encoded.map(|_| plan::encoded_etag(&plain_etag, Coding::Zstd));
    let CarOptions { scope, entity_bytes, duplicates } = options;
    let permit = cx.resources.begin_archive(cx.source.client())?;
    let check = check_in_advance(cx, &resolved, ScopeOptions { scope, entity_bytes, duplicates: false }).await?;
    let mut tags = [Some(&plain_etag), encoded_etag.as_ref()].into_iter().flatten();
    if check == PolicyCheck::Served
        && let Some(head) = tags.find_map(|etag| plan::not_modified(&about, etag, false))
    {
        return Ok(head.map(|()| Content::Empty));
    }
    let etag = encoded_etag.as_ref().unwrap_or(&plain_etag);
    let mut head = plan::stream(&about, etag, options.media_type(), false);
    if encoded.is_some() {
        plan::set_coding(&mut head, Coding::Zstd);
    }
    head.headers_mut().insert(CONTENT_DISPOSITION, plan::disposition(cx.ask, true, Some(name_of(cx, "car"))));
    if cx.ask.head_only {
        return Ok(head.map(|()| Content::Empty));
    }
    let source: Arc<dyn BlockSource> = match scope {
        DagScope::All => Arc::new(whole(cx, &resolved).await?),
        DagScope::Block | DagScope::Entity | DagScope::File => cx.source.paced(),
    };
    let Resolved { block, passed, .. } = resolved;
    let header = car::header(&[*block.cid()]);
    let options = ScopeOptions { scope, entity_bytes, duplicates };
    let limits = &cx.resources.limits;
    let ahead = share(cx, limits.scope.look_ahead_bytes_max);
    let limits = ScopeLimits { look_ahead_bytes_max: ahead.bytes(), ..limits.scope };
    let blocks = scope::blocks(source, passed, block, options, limits);
    let policy = Arc::clone(cx.source.policy_handle());
    let blocks = blocks.map(move |block| -> Result<_, ScopeError> {
        let block = block?;
        check_inlined(&*policy, &block)?;
        Ok(block)
    });
    let (first, sections) = match encoded.cloned() {
        None => (header, blocks.map_ok(|block| <[_; 2]>::from(car::section(&block)).to_vec()).boxed()),
        Some(encoded) => {
            let section = move |block: Block| {
                let encoded = encoded.clone();
                async move { Ok::<_, ScopeError>(encoded.section(&block).await?) }
            };
            (frame::raw(&header).concat().into(), blocks.and_then(section).boxed())
        }
    };
    let chunks = sections.flat_map(|parts: Result<Vec<Bytes>, ScopeError>| {
        stream::iter(match parts {
            Ok(parts) => parts.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(Problem::Scope(error))],
        })
    });
    let first = stream::once(async move { Ok(first) });
    begin(cx, head, first.chain(chunks).boxed(), CAR_CHUNKS_FIRST, (ahead, permit)).await
}

/// What encodes a CAR as zstd, if the client accepts that.
fn encoded<'a>(cx: &Context<'a>) -> Option<&'a Encoded> {
    let accepted = negotiate::accepts_zstd(cx.ask.headers) && plan::may_be_encoded(cx.ask);
    cx.resources.encoded.as_ref().filter(|_| accepted)
}

/// Chunks of a CAR that are produced before the head is sent: the header and the first block, whose absence gets a
/// status.
const CAR_CHUNKS_FIRST: usize = 3;
/// Chunks of a TAR that are produced before the head is sent.
const TAR_CHUNKS_FIRST: usize = 2;

/// A file or directory as an archive (<https://specs.ipfs.tech/http-gateways/path-gateway/#tar-responses>).
///
/// # Errors
/// [`Problem`] when the path cannot be resolved, or its target cannot be archived.
pub async fn tar(cx: &Context<'_>) -> Result<Draft, Problem> {
    let resolved = cx.walk().await?;
    let cid = *resolved.block.cid();
    if !resolved.remainder.is_empty() {
        return Err(Problem::InsideDocument { cid });
    }
    let roots = resolve::roots_header(&resolved);
    let (about, etag) = (cx.about(&roots), header(&format!("W/\"{cid}.x-tar\"")));
    let permit = cx.resources.begin_archive(cx.source.client())?;
    let check = check_in_advance(cx, &resolved, ScopeOptions::default()).await?;
    if check == PolicyCheck::Served
        && let Some(head) = plan::not_modified(&about, &etag, false)
    {
        return Ok(head.map(|()| Content::Empty));
    }
    let mut head = plan::stream(&about, &etag, HeaderValue::from_static("application/x-tar"), false);
    head.headers_mut().insert(CONTENT_DISPOSITION, plan::disposition(cx.ask, true, Some(name_of(cx, "tar"))));
    let source = Arc::new(whole(cx, &resolved).await?);
    // One window for the current file, and one for the next entries.
    let ahead = share(cx, 2 * cx.resources.limits.tar.window_bytes_max);
    let limits = TarLimits { window_bytes_max: ahead.bytes() / 2, ..cx.resources.limits.tar };
    let stream = tar::stream(source, cid.to_string(), resolved.block, limits);
    let stream = stream.map(|chunk| chunk.map_err(Problem::Tar)).boxed();
    begin(cx, head, stream, TAR_CHUNKS_FIRST, (ahead, permit)).await
}

/// The blocks below the end of a path, each checked against the policy.
async fn whole(cx: &Context<'_>, resolved: &Resolved) -> Result<Whole, Problem> {
    let (source, policy) = (cx.source.paced(), Arc::clone(cx.source.policy_handle()));
    let (resolved, segments) = (resolved.clone(), cx.target.segments.clone());
    let below = async move { Whole::below(source, policy, &resolved, &segments).await };
    let whole = cx.resources.workers.run(below).await.ok_or_else(Problem::closed)?;
    Ok(whole.map_err(WalkError::Source)?)
}

/// The result of checking an archive before it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PolicyCheck {
    /// Nothing in the archive is withheld.
    Served,
    /// Unknown: a block is not available locally, or the archive is too large to check in advance.
    Unknown,
}

/// The processor budget of checking an archive before it begins, in steps: some tens of milliseconds.
const CHECK_STEPS_MAX: u64 = 512 * 1024;

/// Checks the locally available blocks of an archive against the policy, so that GET, HEAD and conditional requests get
/// the same answer if something is withheld.
///
/// # Errors
/// [`SourceError::Refused`] or [`SourceError::RefusedPath`] if a block or a path of the archive is withheld.
async fn check_in_advance(
    cx: &Context<'_>,
    resolved: &Resolved,
    options: ScopeOptions,
) -> Result<PolicyCheck, Problem> {
    let policy = Arc::clone(cx.source.policy_handle());
    if !policy.withholds() {
        return Ok(PolicyCheck::Served);
    }
    let local_blocks = LocalBlocks::new(cx.source, CHECK_STEPS_MAX);
    let (resolved, segments, limits) = (resolved.clone(), cx.target.segments.clone(), cx.resources.limits.scope);
    let checked =
        cx.resources.workers.run(check_local_blocks(local_blocks, policy, resolved, segments, options, limits)).await;
    match checked.ok_or_else(Problem::closed)? {
        Ok(()) => Ok(PolicyCheck::Served),
        Err(ScopeError::Source(error @ (SourceError::Refused { .. } | SourceError::RefusedPath { .. }))) => {
            Err(WalkError::Source(error).into())
        }
        Err(_) => Ok(PolicyCheck::Unknown),
    }
}

async fn check_local_blocks(
    local_blocks: LocalBlocks,
    policy: Arc<dyn Policy>,
    resolved: Resolved,
    segments: Vec<String>,
    options: ScopeOptions,
    limits: ScopeLimits,
) -> Result<(), ScopeError> {
    let mut source: Arc<dyn BlockSource> = Arc::new(local_blocks);
    if options.scope == DagScope::All {
        source = Arc::new(Whole::below(source, Arc::clone(&policy), &resolved, &segments).await?);
    }
    let Resolved { block, passed, .. } = resolved;
    let leaves = Arc::clone(&policy);
    let ask = move |leaf: &Cid| match leaves.check(leaf) {
        Verdict::Allow => Ok(()),
        verdict => Err(SourceError::Refused { cid: *leaf, verdict }),
    };
    let mut inner = scope::survey(source, passed, block, options, limits, Box::new(ask));
    while let Some(block) = inner.next().await {
        check_inlined(&*policy, &block?)?;
    }
    Ok(())
}

/// The read-ahead of one archive, within the memory of its client.
fn share(cx: &Context<'_>, bytes: usize) -> Share {
    let mut share = cx.memory().share();
    share.grow_within_fair_share(bytes);
    share
}

/// Waits for the first chunks, so that early errors get a status. The share and the permit are held until the last
/// chunk.
async fn begin(
    cx: &Context<'_>,
    head: plan::Head,
    stream: BoxStream<'static, Result<Bytes, Problem>>,
    chunks: usize,
    held: (Share, Permit),
) -> Result<Draft, Problem> {
    let held = move |chunk| {
        let _held = &held;
        chunk
    };
    let mut stream = cx.resources.workers.stream(stream.map(held).boxed());
    let mut first = Vec::with_capacity(chunks);
    while first.len() < chunks {
        match stream.next().await {
            Some(chunk) => first.push(Ok(chunk?)),
            None => break,
        }
    }
    let stream = stream::iter(first).chain(stream).boxed();
    Ok(head.map(|()| Content::Stream { stream, remaining: None }))
}

/// The file name of an archive: its root, and the last name of the path.
fn name_of(cx: &Context<'_>, extension: &str) -> String {
    let root: &Cid = &cx.target.root;
    match cx.target.name() {
        Some(name) => format!("{root}_{name}.{extension}"),
        None => format!("{root}.{extension}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn options(query: &str, accept: &str) -> Result<CarOptions, CarOptionsError> {
        let request = Request::builder().uri(format!("/ipfs/x?{query}")).header("accept", accept);
        let head = request.body(()).expect("a request").into_parts().0;
        CarOptions::of(&Ask::read(&head).expect("reads"))
    }

    #[test]
    fn the_query_comes_before_the_media_type() {
        const CAR: &str = "application/vnd.ipld.car";
        let all = CarOptions { scope: DagScope::All, entity_bytes: None, duplicates: false };
        let bytes = || Some("0:5".parse().expect("a range"));
        let table = [
            ("format=car", String::new(), Ok(all.clone())),
            ("", format!("{CAR}; version=1; order=unk; dups=y"), Ok(CarOptions { duplicates: true, ..all.clone() })),
            ("car-dups=n", format!("{CAR}; dups=y"), Ok(all.clone())),
            ("format=car&dag-scope=block", String::new(), Ok(CarOptions { scope: DagScope::Block, ..all.clone() })),
            (
                "format=car&entity-bytes=0:5",
                String::new(),
                Ok(CarOptions { scope: DagScope::Entity, entity_bytes: bytes(), ..all }),
            ),
            ("", format!("{CAR}; version=2"), Err(CarOptionsError::Version("2".to_owned()))),
            ("format=car&car-order=bfs", String::new(), Err(CarOptionsError::Order("bfs".to_owned()))),
            ("format=car&car-dups=maybe", String::new(), Err(CarOptionsError::Duplicates("maybe".to_owned()))),
            ("format=car&dag-scope=some", String::new(), Err(CarOptionsError::Scope("some".to_owned()))),
        ];
        for (query, accept, expected) in table {
            assert_eq!(options(query, &accept), expected, "{query} {accept}");
        }
        assert!(matches!(options("format=car&entity-bytes=x", ""), Err(CarOptionsError::EntityBytes { .. })));
    }
}
