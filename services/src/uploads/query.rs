//! Parsing the parameters and headers of an upload into [`UploadOptions`].

use crate::pinning::Meta;
use crate::pinning::request::check_meta;
use crate::uploads::multipart::filename;
use crate::uploads::{Destination, FileFormat, FileOptions, PinDetails, UploadError, UploadOptions};
use crate::url::{pairs, parameter};
use api::store::CAR;
use cache::RootsIn;
use content::importer::{Chunking, Profile, Version};
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use http::{HeaderMap, Uri};
use std::str::FromStr;
use std::sync::LazyLock;
use utoipa::IntoParams;

/// The media types of TAR.
const TAR: [&str; 4] = ["application/x-tar", "application/tar", "application/x-gtar", "application/x-ustar"];
/// The media types of compressed TAR.
const COMPRESSED_TAR: [&str; 4] =
    ["application/x-tar+gzip", "application/x-gtar-compressed", "application/x-tgz", "application/x-compressed-tar"];

/// The parameters of an upload, and their documentation. Other parameters are rejected.
#[derive(Debug, Default, PartialEq, Eq, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "kebab-case")]
pub struct UploadParams {
    /// The name of a single file. For a CAR, the name of its pins.
    pub name: Option<String>,
    /// Wrap everything into a folder, so that files keep their names.
    pub wrap: Option<bool>,
    /// A named profile of the options that determine CIDs, which the parameters below override: unixfs-v0-2015 (the
    /// default),
    /// unixfs-v1-2025, legacy-cid-v0, test-cid-v1 or test-cid-v1-wide.
    pub profile: Option<String>,
    /// The CID version, 0 or 1; 1 implies raw leaves.
    #[param(minimum = 0, maximum = 1)]
    pub cid_version: Option<u8>,
    /// Store the leaves of files as raw blocks, without a UnixFS envelope.
    pub raw_leaves: Option<bool>,
    /// The chunker: size-BYTES, rabin, rabin-AVERAGE, rabin-MIN-AVERAGE-MAX or buzhash.
    pub chunker: Option<String>,
    /// Compute the CIDs without storing anything.
    pub only_hash: Option<bool>,
    /// Store a single file as seekable zstd, if it shrinks: the answer has the CIDs of the plain file, of the zstd
    /// file, and of the plain content by the zstd file.
    pub packed: Option<bool>,
    /// Preserve the modes of files and folders in a form of Kubo's client or a TAR.
    pub preserve_mode: Option<bool>,
    /// Preserve the modification times of files and folders in a form of Kubo's client or a TAR.
    pub preserve_mtime: Option<bool>,
    /// Where a CAR names the roots to pin: "header" (the default), or "last" for a list in its last block.
    pub roots: Option<String>,
    /// The name of the pins; the name of the upload by default.
    pub pin_name: Option<String>,
    /// Metadata of the pins: a JSON object of strings.
    pub meta: Option<String>,
}

/// The names of all parameters.
static KNOWN: LazyLock<Vec<String>> = LazyLock::new(|| {
    let described = UploadParams::into_params(|| None);
    described.into_iter().map(|parameter| parameter.name).collect()
});

/// Parses the options and the format of an upload.
///
/// # Errors
/// [`UploadError::Invalid`] that names the parameter, and [`UploadError::Unsupported`] for compressed archives.
pub fn options(uri: &Uri, headers: &HeaderMap) -> Result<UploadOptions, UploadError> {
    let text = |name| headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes())).unwrap_or_default();
    let disposition = headers.get(CONTENT_DISPOSITION).and_then(|value| filename(value.as_bytes(), false));
    let name = disposition.map(|name| String::from_utf8_lossy(&name).into_owned());
    parse_stored(uri.query().unwrap_or_default(), &text(CONTENT_TYPE), name.as_deref())
}

/// Like [`options`], for a stored upload: its parameters, its media type, and its default name.
///
/// # Errors
/// As [`options`].
pub fn parse_stored(query: &str, content_type: &str, name: Option<&str>) -> Result<UploadOptions, UploadError> {
    let params = UploadParams::read(query)?;
    let name = params.name.clone().or_else(|| name.filter(|name| !name.is_empty()).map(str::to_owned));
    let format = file_format(content_type, name.clone())?;
    if params.roots.is_some() && format.is_some() {
        return Err(invalid(format!("roots is only for a CAR, but the Content-Type is not {CAR}")));
    }
    let (roots_in, profile) = (roots_in(params.roots.as_deref())?, params.profile()?);
    let pin_name = params.pin_name.or(name);
    cache::pins::check_name(pin_name.as_deref()).map_err(invalid)?;
    let pin = PinDetails { name: pin_name, meta: params.meta.as_deref().map(meta).transpose()?.unwrap_or_default() };
    let only_hash = params.only_hash == Some(true);
    let packed = params.packed == Some(true);
    if packed && (params.wrap == Some(true) || !matches!(format, Some(FileFormat::File { .. }))) {
        return Err(invalid("packed is for a single file, without a folder around it"));
    }
    match format {
        None if only_hash => Err(invalid("the blocks of a CAR have their CIDs, and its roots must be pinned")),
        None => Ok(UploadOptions::Car { roots_in, pin }),
        Some(format) => Ok(UploadOptions::Files(FileOptions {
            format,
            profile,
            wrap: params.wrap == Some(true),
            destination: if only_hash { Destination::Nothing } else { Destination::Pinned(pin) },
            modes: params.preserve_mode == Some(true),
            times: params.preserve_mtime == Some(true),
            packed,
        })),
    }
}

impl UploadParams {
    fn read(query: &str) -> Result<Self, UploadError> {
        let query = Query::of(query)?;
        Ok(Self {
            name: query.text("name"),
            wrap: query.flag("wrap")?,
            profile: query.text("profile"),
            cid_version: query.parsed("cid-version")?,
            raw_leaves: query.flag("raw-leaves")?,
            chunker: query.text("chunker"),
            only_hash: query.flag("only-hash")?,
            packed: query.flag("packed")?,
            preserve_mode: query.flag("preserve-mode")?,
            preserve_mtime: query.flag("preserve-mtime")?,
            roots: query.text("roots"),
            pin_name: query.text("pin-name"),
            meta: query.text("meta"),
        })
    }

    /// The options that determine CIDs.
    fn profile(&self) -> Result<Profile, UploadError> {
        let unknown = || invalid(format!("profile must be one of {}", Profile::NAMES.join(", ")));
        let named = self.profile.as_deref().map(|name| Profile::named(name).ok_or_else(unknown)).transpose()?;
        let version = match self.cid_version {
            None => None,
            Some(0) => Some(Version::V0),
            Some(1) => Some(Version::V1),
            Some(_) => return Err(invalid("cid-version must be 0 or 1")),
        };
        let chunking = self.chunker.as_deref().map(str::parse::<Chunking>).transpose();
        let chunking = chunking.map_err(|error| invalid(format!("chunker: {error}")))?;
        Ok(chosen(named.unwrap_or_default(), version, self.raw_leaves, chunking))
    }
}

fn invalid(words: impl ToString) -> UploadError {
    UploadError::Invalid(words.to_string())
}

/// The query. Unknown parameters are rejected, because a misspelt one would silently have no effect.
struct Query<'a>(&'a str);

impl<'a> Query<'a> {
    fn of(query: &'a str) -> Result<Self, UploadError> {
        let mut names: Vec<&str> = pairs(query).map(|(name, _)| name).collect();
        if let Some(name) = names.iter().find(|name| !KNOWN.iter().any(|known| known == *name)) {
            let name: String = name.chars().take(80).collect();
            return Err(invalid(format!("unknown parameter \"{name}\"; the parameters are {}", KNOWN.join(", "))));
        }
        names.sort_unstable();
        match names.array_windows().find(|[one, other]| one == other) {
            Some([name, _]) => Err(invalid(format!("the parameter {name} occurs more than once"))),
            None => Ok(Self(query)),
        }
    }

    fn text(&self, name: &str) -> Option<String> {
        parameter(self.0, name).map(|text| text.into_owned()).filter(|text| !text.is_empty())
    }

    /// A boolean parameter; a name without a value is true.
    fn flag(&self, name: &str) -> Result<Option<bool>, UploadError> {
        match parameter(self.0, name).as_deref() {
            None => Ok(None),
            Some("false" | "0") => Ok(Some(false)),
            Some("" | "true" | "1") => Ok(Some(true)),
            Some(_) => Err(invalid(format!("{name} must be true or false"))),
        }
    }

    fn parsed<T: FromStr>(&self, name: &str) -> Result<Option<T>, UploadError>
    where
        T::Err: ToString,
    {
        let parsed = self.text(name).map(|text| text.parse().map_err(|error: T::Err| error.to_string()));
        parsed.transpose().map_err(|error| invalid(format!("{name}: {error}")))
    }
}

/// A profile with overridden options, as in `ipfs add` and `causeway add`.
pub fn chosen(
    profile: Profile,
    cid_version: Option<Version>,
    raw_leaves: Option<bool>,
    chunking: Option<Chunking>,
) -> Profile {
    let profile = match cid_version {
        None => profile,
        Some(Version::V0) => Profile { cid_version: Version::V0, ..profile },
        Some(Version::V1) => profile.with_cid_v1(),
    };
    Profile {
        raw_leaves: raw_leaves.unwrap_or(profile.raw_leaves),
        chunking: chunking.unwrap_or(profile.chunking),
        ..profile
    }
}

fn meta(text: &str) -> Result<Meta, UploadError> {
    let meta: Meta = serde_json::from_str(text)
        .map_err(|error| invalid(format!("meta must be a JSON object of strings: {error}")))?;
    check_meta(&meta).map_err(invalid)?;
    Ok(meta)
}

/// The format of a body with files; `None` for a CAR.
fn file_format(content_type: &str, name: Option<String>) -> Result<Option<FileFormat>, UploadError> {
    let media_type = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    Ok(Some(match media_type.as_str() {
        CAR => return Ok(None),
        media_type if TAR.contains(&media_type) => FileFormat::Tar,
        media_type if COMPRESSED_TAR.contains(&media_type) => {
            let words = "compressed archives are not supported: send the uncompressed TAR (application/x-tar), with \
                         \"Content-Encoding: zstd\" if it is compressed with zstd";
            return Err(UploadError::Unsupported(words.to_owned()));
        }
        media_type if media_type.starts_with("multipart/") => {
            let boundary = multer::parse_boundary(content_type)
                .map_err(|_| invalid("the Content-Type of a form must be multipart/form-data; boundary=…"))?;
            FileFormat::Multipart { boundary, kubo: false }
        }
        _ => FileFormat::File { name },
    }))
}

fn roots_in(roots: Option<&str>) -> Result<RootsIn, UploadError> {
    match roots {
        None | Some("header") => Ok(RootsIn::Header),
        Some("last") => Ok(RootsIn::LastBlock),
        Some(_) => Err(invalid("roots must be \"header\" or \"last\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(query: &str, headers: &[(&str, &str)]) -> Result<UploadOptions, UploadError> {
        let uri: Uri = format!("/upload?{query}").parse().expect("a URI");
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(http::HeaderName::from_bytes(name.as_bytes()).expect("a name"), value.parse().expect("a value"));
        }
        options(&uri, &map)
    }

    #[test]
    fn the_media_type_determines_the_format() {
        let file = |name: Option<&str>| Ok(FileFormat::File { name: name.map(str::to_owned) });
        let form = || Ok(FileFormat::Multipart { boundary: "xyz".to_owned(), kubo: false });
        let table = [
            ("", vec![], file(None)),
            ("name=a%20b", vec![("content-type", "text/plain")], file(Some("a b"))),
            ("", vec![("content-disposition", "attachment; filename=\"c.txt\"")], file(Some("c.txt"))),
            ("name=a", vec![("content-disposition", "attachment; filename=\"c.txt\"")], file(Some("a"))),
            ("name=", vec![("content-type", "application/gzip")], file(None)),
            ("", vec![("content-type", "application/vnd.ipld.car; version=1")], Err(RootsIn::Header)),
            ("roots=last", vec![("content-type", "Application/vnd.ipld.CAR")], Err(RootsIn::LastBlock)),
            ("", vec![("content-type", "application/x-tar")], Ok(FileFormat::Tar)),
            ("", vec![("content-type", "multipart/form-data; boundary=xyz")], form()),
        ];
        for (query, headers, expected) in table {
            let format = match of(query, &headers).unwrap_or_else(|error| panic!("{query}: {error}")) {
                UploadOptions::Files(options) => Ok(options.format),
                UploadOptions::Car { roots_in, .. } => Err(roots_in),
            };
            assert_eq!(format, expected, "{query} {headers:?}");
        }
    }

    #[test]
    fn parameters_are_those_of_causeway_add() {
        let files = |query: &str| match of(query, &[]).expect("reads") {
            UploadOptions::Files(options) => options,
            car => panic!("{car:?}"),
        };
        let options =
            files("cid-version=1&raw-leaves=false&chunker=size-1000&wrap&pin-name=p&meta=%7B%22a%22%3A%22b%22%7D");
        let chunking = Chunking::size(1000).expect("a size");
        assert_eq!(options.profile, Profile { raw_leaves: false, chunking, ..Profile::default().with_cid_v1() });
        let meta = Meta::from([("a".to_owned(), "b".to_owned())]);
        let pinned = |name: &str, meta| Destination::Pinned(PinDetails { name: Some(name.to_owned()), meta });
        assert_eq!((options.wrap, options.destination), (true, pinned("p", meta)));
        assert_eq!(files("only-hash").destination, Destination::Nothing);
        let options = files("profile=unixfs-v1-2025&name=f");
        assert_eq!((options.profile, options.destination), (Profile::UNIXFS_V1_2025, pinned("f", Meta::new())));
    }

    #[test]
    fn invalid_parameters_are_rejected() {
        let long = format!("pin-name={}", "n".repeat(256));
        let queries = [
            "cid-verson=1",
            "cid-version=2",
            "cid-version=x",
            "chunker=size-0",
            "raw-leaves=maybe",
            "profile=best",
            "wrap=2",
            "wrap=true&wrap=false",
            "roots=header",
            "meta=x",
            "meta=%7B%22a%22%3A1%7D",
            &format!("meta=%7B%22a%22%3A%22{}%22%7D", "m".repeat(16 * 1024)),
            &long,
        ];
        for query in queries {
            let error = of(query, &[]).expect_err(query);
            assert_eq!(error.status(), 400, "{query}");
        }
        assert_eq!(of("", &[("content-type", "application/x-tgz")]).expect_err("rejected").status(), 415);
        assert_eq!(of("", &[("content-type", "multipart/form-data")]).expect_err("refused").status(), 400);
        for query in ["roots=first", "only-hash"] {
            assert_eq!(of(query, &[("content-type", CAR)]).expect_err(query).status(), 400);
        }
    }

    #[test]
    fn every_documented_parameter_is_parsed() {
        assert_eq!(KNOWN.len(), 13);
        for name in KNOWN.iter() {
            let read = UploadParams::read(&format!("{name}=1")).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_ne!(read, UploadParams::default(), "{name}");
        }
    }
}
