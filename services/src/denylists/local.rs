//! The local list, which the admin API writes: `DATA_DIR/denylists/local.deny`, a list in the common format, which the
//! operator may also edit or copy.
//!
//! In a site, rules are added to the list of the site instead ([`crate::control_log`]).
//!
//! Adding a rule appends and syncs a line; removing one replaces the file atomically. A line that a power failure left
//! incomplete is not a rule, and is terminated before anything is appended.

use crate::line_file;
use content::denylist::Rule;
use p2p_bridge::durable;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The header of a new list.
const HEADER: &str = "version: 1\n\
    name: Local rules\n\
    description: Rules that were added through the admin API. They override those of any other list.\n\
    ---\n";

/// The path of the list.
pub fn path(dir: &Path) -> PathBuf {
    dir.join("local.deny")
}

/// Creates the list if it does not exist.
///
/// # Errors
/// The error of the file system.
pub fn ensure(path: &Path) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        durable::create_folder(dir)?;
    }
    if path.try_exists()? { Ok(()) } else { durable::write(path, HEADER.as_bytes()) }
}

/// Adds lines, which are on the disk when this returns, unless the list would then have more than `bytes_max` bytes.
///
/// # Errors
/// The error of the file system, or [`io::ErrorKind::FileTooLarge`]. Nothing has changed then.
pub fn add(path: &Path, lines: &[String], bytes_max: u64) -> io::Result<()> {
    // One more for a last line that is incomplete.
    let added = lines.iter().map(|line| line.len() as u64 + 1).sum::<u64>() + 1;
    let bytes = std::fs::metadata(path)?.len().saturating_add(added);
    if bytes > bytes_max {
        let reason = format!(
            "it would have {bytes} bytes, and the gateway reads no more than {bytes_max} (policy.list_bytes_max), so \
             that the rules would not be in force; remove others with \"causeway block rm\", or raise \
             policy.list_bytes_max, and repeat the take-down"
        );
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    line_file::append(path, lines)
}

/// Removes the rules that match, and returns their number. The change is on the disk when this returns.
///
/// # Errors
/// The error of the file system. Nothing has changed then.
pub fn remove(path: &Path, is_meant: impl Fn(&Rule) -> bool) -> io::Result<u64> {
    let text = std::fs::read(path)?;
    let (mut kept, mut removed) = (Vec::with_capacity(text.len()), 0);
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let rule = str::from_utf8(line).ok().and_then(|line| Rule::parse(line.trim()).ok().flatten());
        match rule {
            Some(rule) if is_meant(&rule) => removed += 1,
            _ => kept.extend_from_slice(line),
        }
    }
    if removed > 0 {
        durable::write(path, &kept)?;
    }
    Ok(removed)
}

/// A rule of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalRule {
    /// The line number.
    pub line: u64,
    /// What the rule matches, as it was added: the rule itself has no codec and version of a CID.
    pub item: String,
    /// The rule.
    pub rule: Rule,
}

impl fmt::Display for LocalRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.item)?;
        self.rule.hints.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// The rules after a line, at most `max`.
///
/// # Errors
/// The error of the file system.
pub fn rules(path: &Path, after: u64, max: usize) -> io::Result<Vec<LocalRule>> {
    let text = std::fs::read(path)?;
    let lines = text.split(|byte| *byte == b'\n').zip(1..).filter(|(_, number)| *number > after);
    let rules = lines.filter_map(|(text, line)| {
        let text = str::from_utf8(text).ok()?;
        let rule = Rule::parse(text.trim()).ok()??;
        Some(LocalRule { line, item: text.split_ascii_whitespace().next()?.to_owned(), rule })
    });
    Ok(rules.take(max).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line_file::append;
    use std::fs::File;
    use std::io::Write as _;

    fn lines(text: &[&str]) -> Vec<String> {
        text.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn rules_are_added_and_removed() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = path(&dir.path().join("denylists"));
        ensure(&path).expect("makes");
        append(&path, &lines(&["/ipns/a.example reason=x", "/ipns/b.example"])).expect("adds");
        ensure(&path).expect("leaves it");
        // A power failure.
        File::options().append(true).open(&path).expect("opens").write_all(b"/ipns/c.exa").expect("writes");
        append(&path, &lines(&["/ipns/a.example", "!/ipns/a.example"])).expect("adds");
        let shown = |after, max| {
            let rules = rules(&path, after, max).expect("reads");
            rules.into_iter().map(|listed| format!("{} {listed}", listed.line)).collect::<Vec<_>>()
        };
        let all = [
            "5 /ipns/a.example reason=x",
            "6 /ipns/b.example",
            "7 /ipns/c.exa",
            "8 /ipns/a.example",
            "9 !/ipns/a.example",
        ];
        assert_eq!(shown(0, 10), all);
        assert_eq!(shown(5, 2), all[1..3]);
        let meant = Rule::parse("/ipns/a.example").expect("parses").expect("a rule");
        let is_meant = |rule: &Rule| rule.target == meant.target && rule.allows == meant.allows;
        assert_eq!((remove(&path, is_meant).expect("removes"), remove(&path, is_meant).expect("removes")), (2, 0));
        assert_eq!(shown(0, 10), ["5 /ipns/b.example", "6 /ipns/c.exa", "7 !/ipns/a.example"]);
        let text = std::fs::read_to_string(&path).expect("reads");
        assert!(text.starts_with(HEADER), "other lines stay: {text}");
        // CIDs are shown as they were added, whatever their codec and version.
        let added = [
            "/ipfs/bafybeihrw75yfhdx5qsqgesdnxejtjybscwuclpusvxkuttep6h7pkgmze/a%20b reason=x",
            "!/ipfs/QmecDgNqCRirkc3Cjz9eoRBNwXGckJ9WvTdmY16HP88768",
        ];
        append(&path, &lines(&added)).expect("adds");
        assert_eq!(shown(7, 10), [format!("8 {}", added[0]), format!("9 {}", added[1])]);
    }
}
