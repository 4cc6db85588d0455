//! Compression of what is sent to a gateway on another machine.
//!
//! Goals: text takes a fraction of the time on a slow link; what does not shrink is not compressed, since a sample of
//! each chunk decides ([`content::stored::coding`]); the gateway can decode everything that was sent so far, because it
//! protects the blocks that an addition refers to as soon as it has read the reference.
//!
//! Non-goals: gateways on this machine, to which sending costs less than compressing.

use bytes::Bytes;
use clap::Args;
use content::stored::coding::BodyEncoder;
use futures::stream::{self, Stream, StreamExt as _};
use std::io;

/// How content is sent to a gateway.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args)]
pub struct TransferOptions {
    /// Send the content to a gateway on another machine uncompressed. By default, what shrinks is compressed on the way
    /// (zstd); the CIDs and what is stored are the same
    #[arg(long)]
    pub uncompressed: bool,
}

/// A body as zstd.
///
/// # Errors
/// When memory cannot be allocated.
pub fn compressed(
    chunks: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> io::Result<impl Stream<Item = io::Result<Bytes>> + Send + 'static> {
    let chunks = chunks.map(|chunk| chunk.map(Some)).chain(stream::iter([Ok(None)]));
    let encoded = chunks.scan(BodyEncoder::new()?, |encoder, chunk| {
        let parts = chunk.and_then(|chunk| match chunk {
            Some(chunk) => encoder.encode(&chunk),
            None => encoder.finish(),
        });
        let parts: Vec<io::Result<Bytes>> = match parts {
            Ok(parts) => parts.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        };
        futures::future::ready(Some(stream::iter(parts)))
    });
    Ok(encoded.flatten())
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::stored::coding::decode_body;
    use futures::TryStreamExt as _;

    async fn sent(chunks: Vec<io::Result<Bytes>>) -> io::Result<Vec<u8>> {
        Ok(compressed(stream::iter(chunks))?.try_collect::<Vec<_>>().await?.concat())
    }

    #[tokio::test]
    async fn a_body_is_complete_only_if_its_chunks_are() {
        let chunk = || Bytes::from("some text. ".repeat(10_000));
        for count in [0, 1, 3] {
            let body = sent((0..count).map(|_| Ok(chunk())).collect()).await.expect("compresses");
            let content = chunk().repeat(count);
            assert!(body.len() < 1000 && decode_body(&body, 1 << 20).as_deref() == Ok(&content), "{count}");
        }
        let error = sent(vec![Ok(chunk()), Err(io::Error::other("unreadable"))]).await.expect_err("it is cut");
        assert_eq!(error.to_string(), "unreadable");
    }
}
