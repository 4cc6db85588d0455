//! AWS's shared credentials file: sections in brackets, lines `key = value`, comments.
//! <https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html>
//!
//! It is read strictly: what a line means must not depend on what another program would make of it. Errors name lines
//! and never show their contents, which may be secrets.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// The greatest length of the file, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The keys of a profile.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Keys {
    pub(super) id: String,
    pub(super) secret: String,
    /// Of temporary keys.
    pub(super) token: Option<String>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keys")
    }
}

/// Reads the keys of a profile.
pub(super) fn read(path: &Path, profile: &str) -> Result<Keys, String> {
    let failed = |reason: String| format!("the credentials file {} cannot be used: {reason}", path.display());
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
        .map_err(|error| failed(error.to_string()))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(failed("it is longer than 64 KiB".to_owned()));
    }
    parse(&text, profile).map_err(failed)
}

fn parse(text: &str, profile: &str) -> Result<Keys, String> {
    let (mut id, mut secret, mut token) = (None, None, None);
    let (mut is_seen, mut is_wanted, mut has_section) = (false, false, false);
    for (number, line) in (1..).zip(text.lines()) {
        let at = |reason: &str| format!("line {number}: {reason}");
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(rest) = trimmed.strip_prefix('[') {
            let name = rest.strip_suffix(']').ok_or_else(|| at("a section is written as [NAME]"))?.trim();
            (is_wanted, has_section) = (name == profile, true);
            if is_wanted && is_seen {
                return Err(at("the profile is there twice"));
            }
            is_seen |= is_wanted;
            continue;
        }
        if line.starts_with([' ', '\t']) {
            return Err(at("a line that continues the one before is not supported"));
        }
        let (key, value) = trimmed.split_once('=').ok_or_else(|| at("it has the form KEY = VALUE"))?;
        if !has_section {
            return Err(at("it is before the first section, such as [default]"));
        }
        if !is_wanted {
            continue;
        }
        let place = match key.trim().to_ascii_lowercase().as_str() {
            "aws_access_key_id" => &mut id,
            "aws_secret_access_key" => &mut secret,
            "aws_session_token" => &mut token,
            "region" | "output" => continue,
            _ => {
                return Err(at("only aws_access_key_id, aws_secret_access_key and aws_session_token are supported"));
            }
        };
        let value = value.trim();
        if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(at("the value is empty or has characters that no key has"));
        }
        if place.replace(value.to_owned()).is_some() {
            return Err(at("the key is there twice"));
        }
    }
    if !is_seen {
        return Err(format!("it has no profile [{profile}]"));
    }
    let missing = |key: &str| format!("the profile [{profile}] has no {key}");
    Ok(Keys {
        id: id.ok_or_else(|| missing("aws_access_key_id"))?,
        secret: secret.ok_or_else(|| missing("aws_secret_access_key"))?,
        token,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_profiles() {
        let text =
            "# ours\n\n[default]\naws_access_key_id = one\r\naws_secret_access_key=a/+=\nregion = eu-1\n; other\n\
            [temporary]\n AWS_ACCESS_KEY_ID\t=  two\n"
                .replace("\n AWS", "\nAWS")
                + "aws_secret_access_key = b\naws_session_token = t==\n[else]\nrole_arn = x\n";
        let keys = |id: &str, secret: &str, token: Option<&str>| Keys {
            id: id.to_owned(),
            secret: secret.to_owned(),
            token: token.map(str::to_owned),
        };
        assert!(parse(&text, "default") == Ok(keys("one", "a/+=", None)));
        assert!(parse(&text, "temporary") == Ok(keys("two", "b", Some("t=="))));
        assert!(parse(&text, "else").is_err());
        assert!(parse(&text, "absent").is_err());
    }

    #[test]
    fn what_is_not_understood_is_refused_without_being_shown() {
        let whole = "aws_access_key_id=SECRET1\naws_secret_access_key=SECRET2\n";
        let table = [
            ("".to_owned(), "no profile [p]"),
            (format!("[q]\n{whole}"), "no profile [p]"),
            (whole.to_owned(), "line 1: it is before"),
            (format!("[p\n{whole}"), "line 1: a section"),
            (format!("[p]\n{whole}[p]\n{whole}"), "line 4: the profile is there twice"),
            (format!("[p]\n{whole}{whole}"), "line 4: the key is there twice"),
            ("[p]\naws_access_key_id SECRET1\n".to_owned(), "line 2: it has the form"),
            ("[p]\naws_access_key_id=\n".to_owned(), "line 2: the value is empty"),
            ("[p]\naws_access_key_id=SEC RET\n".to_owned(), "line 2: the value"),
            ("[p]\naws_access_key_id=SECRET1\n".to_owned(), "no aws_secret_access_key"),
            ("[p]\naws_secret_access_key=SECRET1\n".to_owned(), "no aws_access_key_id"),
            (format!("[p]\n{whole}role_arn=SECRET3\n"), "line 4: only aws_access_key_id"),
            (format!("[p]\n{whole}credential_process=SECRET3\n"), "line 4: only aws_access_key_id"),
            (format!("[p]\n{whole}s3 =\n  SECRET3 = 1\n"), "line 4"),
            (format!("[p]\n{whole}  SECRET3\n"), "line 4: a line that continues"),
        ];
        for (text, words) in table {
            let error = parse(&text, "p").expect_err(&text);
            assert!(error.contains(words), "{text}: {error}");
            assert!(!error.contains("SECRET"), "{error}");
        }
    }

    #[test]
    fn a_file_is_not_read_without_limit() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("credentials");
        let comment = "#".repeat(usize::try_from(FILE_BYTES_MAX).expect("small"));
        std::fs::write(&file, format!("[p]\naws_access_key_id=a\naws_secret_access_key=b\n{comment}")).expect("writes");
        assert!(read(&file, "p").expect_err("is refused").contains("64 KiB"));
    }
}
