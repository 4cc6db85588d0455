//! One GET, timed: to the first byte of the body and to the last.

use anyhow::{Context, Result, ensure};
use reqwest::header::RANGE;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// Longer than anything that is measured.
const PATIENCE: Duration = Duration::from_secs(300);

/// From the request to the first and to the last byte of the body.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub first_byte: Duration,
    pub complete: Duration,
}

/// Gets a whole file over a connection of its own.
pub async fn get(url: &str) -> Result<(Times, Vec<u8>)> {
    fetch(url, None).await
}

/// Gets some bytes of a file over a connection of its own.
pub async fn get_range(url: &str, range: RangeInclusive<usize>) -> Result<(Times, Vec<u8>)> {
    fetch(url, Some(range)).await
}

async fn fetch(url: &str, range: Option<RangeInclusive<usize>>) -> Result<(Times, Vec<u8>)> {
    let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build()?;
    let mut request = client.get(url);
    let expected = if range.is_some() { 206 } else { 200 };
    if let Some(range) = range {
        request = request.header(RANGE, format!("bytes={}-{}", range.start(), range.end()));
    }
    let begun = Instant::now();
    let mut response = request.send().await?;
    ensure!(response.status() == expected, "{url}: {}: {}", response.status(), response.text().await?);
    let length = usize::try_from(response.content_length().unwrap_or_default())?;
    let mut body = Vec::with_capacity(length);
    let mut first_byte = None;
    while let Some(chunk) = response.chunk().await? {
        first_byte.get_or_insert_with(|| begun.elapsed());
        body.extend_from_slice(&chunk);
    }
    let times = Times { first_byte: first_byte.context("an empty body")?, complete: begun.elapsed() };
    Ok((times, body))
}
