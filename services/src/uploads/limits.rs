//! What limits an upload: the settings, what one upload may read, its memory, and what its body may contain.
//!
//! | limit | error |
//! |---|---|
//! | the bytes of one upload ([`UploadAllowance`]): `uploads.bytes_max` | [`UploadError::TooLarge`] |
//! | the same: the owner's quota | [`UploadError::Quota`] |
//! | the same: the size of the cache | [`UploadError::LargerThanCache`] |
//! | `uploads.entries_max` | [`UploadError::Invalid`] |
//! | `uploads.at_once_max`, and the owner's share of it | [`UploadError::Busy`], [`UploadError::TokenLimit`] |
//! | `uploads.memory_bytes_max` | [`UploadError::Memory`] |
//! | names, paths, targets, heads, descriptions and roots | [`UploadError::Invalid`] |
//! | [`ResumableLimits`]: what open resumable uploads take on the disk | `ResumableError::Full` |
//!
//! The memory that one upload takes at most is [`UploadLimits::memory_bytes`], and that of a decoder if its body is
//! encoded. All limits count decoded bytes.

use crate::uploads::request_body::RequestBody;
use crate::uploads::{Destination, UploadError, UploadOptions, pipeline, tree};
use cache::import::IMPORT_MEMORY_BYTES_MAX;
use content::MAX_BLOCK_BYTES;
use content::importer::Importer;
use std::time::Duration;

/// The maximum number of concurrent uploads, whatever the settings say. Each occupies one of tokio's 512 blocking
/// threads, and needs others for hashing.
const AT_ONCE_MAX: usize = 128;
/// The maximum memory for each byte of a body: a byte may become a link of an inner node, and an entry of a form a
/// record.
const MEMORY_PER_BYTE: usize = 64;
/// The memory of the smallest upload, in bytes.
const MEMORY_BYTES_MIN: usize = 1 << 20;
/// The maximum length of a name, in bytes: more than file systems allow, and short enough that a shard of names fits
/// into a block.
pub const NAME_BYTES_MAX: usize = 1024;
/// The maximum length of a path, in bytes.
pub const PATH_BYTES_MAX: usize = 4096;
/// The maximum depth of a path.
pub const DEPTH_MAX: usize = 256;
/// The maximum length of a symlink's target, in bytes: Linux's limit of paths.
pub const TARGET_BYTES_MAX: usize = 4096;
/// The maximum number of top-level entries without a wrapping folder: each gets its own pin.
pub const ROOTS_MAX: usize = 1_000;
/// The maximum number of bytes that the parser of a form may read without returning anything: the preamble of the form,
/// and the head of a part.
pub const HEAD_BYTES_MAX: usize = 64 * 1024;
/// The maximum size of the description before an entry of a TAR (long names, pax records, maps of sparse files), in
/// bytes.
pub const DESCRIPTION_BYTES_MAX: u64 = 256 * 1024;
/// The maximum length of the metadata header of a resumable upload, in bytes.
pub const METADATA_BYTES_MAX: usize = 8 * 1024;
/// The maximum number of completed resumable uploads that are kept for a token.
pub const COMPLETED_MAX: usize = 256;

/// The configured limits of uploads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadLimits {
    /// The maximum size of an upload, in bytes.
    pub bytes_max: u64,
    /// The maximum number of files, folders and links of an upload.
    pub entries_max: u64,
    /// The maximum number of concurrent uploads.
    pub at_once_max: usize,
    /// The capacity of the block cache, in bytes.
    pub cache_bytes_max: u64,
    /// The disk space that uploads leave free, in bytes.
    pub free_bytes_min: u64,
    /// The memory budget of uploads and imports, in bytes.
    pub memory_bytes_max: usize,
}

impl UploadLimits {
    /// The limits of the settings.
    pub fn new(uploads: &config::Uploads, cache: &config::Cache) -> Self {
        let in_memory = cache.store == config::StoreKind::Memory;
        let store_bytes_max = if in_memory { cache.memory_bytes_max } else { u64::MAX };
        Self {
            bytes_max: uploads.bytes_max,
            entries_max: uploads.entries_max,
            at_once_max: usize::try_from(uploads.at_once_max).unwrap_or(usize::MAX).min(AT_ONCE_MAX),
            cache_bytes_max: cache.disk_bytes_max.min(store_bytes_max),
            free_bytes_min: cache.disk_free_bytes_min,
            memory_bytes_max: usize::try_from(uploads.memory_bytes_max).unwrap_or(usize::MAX),
        }
    }

    /// How much an owner without a quota may upload. Content that exceeds the cache is rejected before it evicts other
    /// blocks.
    pub fn allowance(&self, destination: &Destination) -> UploadAllowance {
        let cache_bytes_max = (*destination == Destination::Cached).then_some(self.cache_bytes_max);
        UploadAllowance { bytes_max: self.bytes_max, quota: None, cache_bytes_max }
    }

    /// The maximum memory of an upload with a body of at most so many bytes.
    ///
    /// # Errors
    /// [`UploadError`] for incompatible options.
    pub fn memory_bytes(&self, options: &UploadOptions, body_bytes_max: Option<u64>) -> Result<usize, UploadError> {
        let UploadOptions::Files(files) = options else {
            return Ok(memory_for(IMPORT_MEMORY_BYTES_MAX, MAX_BLOCK_BYTES, body_bytes_max));
        };
        let importer = Importer::new(files.profile.clone())?;
        let pipeline = pipeline::memory_bytes_max(&importer, body_bytes_max.unwrap_or(self.bytes_max), files.packed);
        let least = 2 * files.profile.chunking.bytes_max();
        Ok(memory_for(tree::MEMORY_BYTES_MAX + pipeline, least, body_bytes_max))
    }
}

/// The memory for a body of at most so many bytes: `most`, or less for a short one, each piece of which needs `least`.
pub fn memory_for(most: usize, least: usize, body_bytes_max: Option<u64>) -> usize {
    let body = body_bytes_max.map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    most.min(body.saturating_mul(MEMORY_PER_BYTE).saturating_add(MEMORY_BYTES_MIN + least))
}

/// The memory for importing the CARs in a body.
pub fn import_memory_bytes(body: &RequestBody) -> usize {
    let body_bytes_max = http_body::Body::size_hint(body).upper();
    memory_for(IMPORT_MEMORY_BYTES_MAX, MAX_BLOCK_BYTES, body_bytes_max) + body.decoder_bytes_max()
}

/// How many bytes one upload may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UploadAllowance {
    /// The maximum size of an upload, in bytes.
    pub bytes_max: u64,
    /// The owner's byte quota, and what is left of it.
    pub quota: Option<(u64, u64)>,
    /// The capacity of the cache, in bytes, if the blocks are only cached.
    pub cache_bytes_max: Option<u64>,
}

impl UploadAllowance {
    /// Checks whether so many bytes are allowed.
    ///
    /// # Errors
    /// The exceeded limit.
    pub fn check(&self, bytes: u64) -> Result<(), UploadError> {
        if bytes > self.bytes_max {
            return Err(UploadError::TooLarge { bytes_max: self.bytes_max });
        }
        if let Some(bytes_max) = self.cache_bytes_max.filter(|room| bytes > *room) {
            return Err(UploadError::LargerThanCache { bytes_max });
        }
        match self.quota {
            Some((bytes_max, left)) if bytes > left => Err(UploadError::Quota { bytes_max, left }),
            _ => Ok(()),
        }
    }
}

/// The limits of resumable uploads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumableLimits {
    /// The maximum total length of open uploads, in bytes.
    pub bytes_max: u64,
    /// The maximum total length of a token's open uploads, in bytes.
    pub token_bytes_max: u64,
    /// The maximum number of a token's open uploads.
    pub token_max: usize,
    /// How long after its last change an upload expires.
    pub lifetime: Duration,
}

impl From<&config::Uploads> for ResumableLimits {
    fn from(settings: &config::Uploads) -> Self {
        Self {
            bytes_max: settings.parts_bytes_max,
            token_bytes_max: settings.parts_token_bytes_max,
            token_max: usize::try_from(settings.parts_token_max).unwrap_or(usize::MAX),
            lifetime: Duration::from_secs(settings.parts_hours.saturating_mul(3600)),
        }
    }
}
