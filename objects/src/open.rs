//! [`open`]: from a URL to an engine.

use crate::contract::Objects;
use crate::error::OpenError;
use crate::folder::Folder;
use crate::names;
use crate::options::StoreOptions;
use crate::s3::S3;
use std::path::PathBuf;
use std::sync::Arc;

/// Opens object storage: `s3://bucket/prefix`, or `file:///mnt/folder`.
///
/// Of S3 nothing is requested yet. A folder is examined, so this blocks. Both need [`check_marker`] next.
///
/// [`check_marker`]: crate::check_marker
///
/// # Errors
/// A sentence for the operator: the URL or an option is invalid, the credentials cannot be read, or the folder is not
/// usable.
pub fn open(url: &str, options: &StoreOptions) -> Result<Arc<dyn Objects>, OpenError> {
    Ok(match parse(url)? {
        Place::S3 { bucket, prefix } => Arc::new(S3::new(&bucket, &prefix, options)?),
        Place::Folder(path) => Arc::new(Folder::new(path, options)?),
    })
}

/// What the URL of a store says.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// A bucket, and the path that names are below: empty, or without `/` at its ends.
    S3 { bucket: String, prefix: String },
    /// An absolute path.
    Folder(PathBuf),
}

/// The messages show no part of the URL that may be a secret.
fn parse(url: &str) -> Result<Place, OpenError> {
    let invalid = |reason: &str| OpenError::new(format!("the URL of the store is invalid: {reason}"));
    if let Some(rest) = url.strip_prefix("s3://") {
        if rest.contains('@') {
            return Err(invalid("credentials are not part of it: it has the form s3://BUCKET/PREFIX"));
        }
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let is_alphanumeric =
            |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        let (first, last) = (bucket.as_bytes().first(), bucket.as_bytes().last());
        if !(3..=63).contains(&bucket.len())
            || !bucket.bytes().all(|byte| is_alphanumeric(Some(&byte)) || b".-".contains(&byte))
            || !is_alphanumeric(first)
            || !is_alphanumeric(last)
        {
            return Err(invalid(
                "after s3:// follows the name of a bucket: 3 to 63 lowercase letters, digits, '-' and '.'",
            ));
        }
        if !prefix.is_empty() && (prefix.len() > 256 || names::check(prefix).is_err()) {
            return Err(invalid(
                "after the bucket follows a path of letters, digits, '.', '_' and '-', of at most 256 bytes, in which \
                 no component is empty or begins with a dot",
            ));
        }
        return Ok(Place::S3 { bucket: bucket.to_owned(), prefix: prefix.to_owned() });
    }
    if url.starts_with("file:") {
        let folder = "a folder has the form file:///ABSOLUTE/PATH, with %20 in place of a space";
        let parsed = reqwest::Url::parse(url).ok().filter(|_| url.starts_with("file:///"));
        let parsed = parsed.filter(|parsed| parsed.query().is_none() && parsed.fragment().is_none());
        let path = parsed.and_then(|parsed| parsed.to_file_path().ok()).filter(|path| path.is_absolute());
        return match path {
            Some(path) if path.parent().is_some() => Ok(Place::Folder(path)),
            Some(_) => Err(invalid("the root folder of the system is none for objects")),
            None => Err(invalid(folder)),
        };
    }
    Err(match url.starts_with('/') {
        true => invalid("a folder is written as file:///PATH"),
        false => invalid("it begins with s3:// or file:///"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::StoreOption;
    use crate::options::{Credentials, Environment};

    #[test]
    fn urls_are_buckets_or_folders() {
        let s3 = |bucket: &str, prefix: &str| Place::S3 { bucket: bucket.to_owned(), prefix: prefix.to_owned() };
        let table = [
            ("s3://bucket", s3("bucket", "")),
            ("s3://bucket/", s3("bucket", "")),
            ("s3://my.bucket-1/a/b/", s3("my.bucket-1", "a/b")),
            ("file:///mnt/x", Place::Folder("/mnt/x".into())),
            ("file:///mnt/with%20space/", Place::Folder("/mnt/with space/".into())),
        ];
        for (url, expected) in table {
            assert_eq!(parse(url).expect(url), expected);
        }
    }

    #[test]
    fn errors_name_the_option_that_they_are_about() {
        let environment = Environment::of([("AWS_ACCESS_KEY_ID", "a"), ("AWS_SECRET_ACCESS_KEY", "b")]);
        let valid = StoreOptions { environment, ..StoreOptions::default() };
        let (endpoint, region) = ("s3.example".to_owned(), "eu west".to_owned());
        let missing = Credentials::File { path: "/missing/keys".into(), profile: "default".to_owned() };
        let table = [
            ("https://bucket", valid.clone(), Some(StoreOption::Url)),
            ("file:///missing/folder", valid.clone(), Some(StoreOption::Url)),
            ("s3://bucket", StoreOptions { endpoint, ..valid.clone() }, Some(StoreOption::Endpoint)),
            ("s3://bucket", StoreOptions { region, ..valid.clone() }, Some(StoreOption::Endpoint)),
            ("s3://bucket", StoreOptions { credentials: missing, ..valid.clone() }, Some(StoreOption::Credentials)),
            ("s3://bucket", StoreOptions { ca: "/missing/ca.pem".into(), ..valid.clone() }, Some(StoreOption::Ca)),
            ("s3://bucket", valid, None),
        ];
        for (url, options, expected) in table {
            assert_eq!(open(url, &options).err().map(|error| error.option()), expected, "{url}");
        }
    }

    #[test]
    fn wrong_urls_have_sentences_without_secrets() {
        let table = [
            ("", "begins with s3://"),
            ("https://bucket.s3.example/x", "begins with s3://"),
            ("S3://bucket", "begins with s3://"),
            ("/mnt/x", "file:///PATH"),
            ("mnt/x", "begins with s3://"),
            ("file://server/mnt/x", "file:///ABSOLUTE/PATH"),
            ("file:/mnt/x", "file:///ABSOLUTE/PATH"),
            ("file:///mnt/x?y", "file:///ABSOLUTE/PATH"),
            ("file:///", "root folder"),
            ("s3://", "3 to 63"),
            ("s3://ab", "3 to 63"),
            ("s3://Bucket", "3 to 63"),
            ("s3://-bucket", "3 to 63"),
            ("s3://bucket?region=x", "3 to 63"),
            ("s3://bucket/a//b", "no component is empty"),
            ("s3://bucket/.a", "begins with a dot"),
            ("s3://bucket/a?b", "letters, digits"),
            ("s3://key:secret@bucket/x", "credentials are not part"),
        ];
        for (url, words) in table {
            let error = parse(url).expect_err(url).to_string();
            assert!(error.contains(words), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
