//! The list that the admin API writes: `DATA_DIR/denylists/local.deny`, a list like any other, which an operator may also edit
//! or carry elsewhere.
//!
//! A rule is appended and synced; removing one writes the file anew beside its place. A line that a power cut left half written
//! is ended before anything is added, and is no rule.

use content::denylist::Rule;
use p2p_bridge::durable;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// What a new list begins with.
const HEADER: &str = "version: 1\n\
    name: Local rules\n\
    description: Rules that were added through the admin API. They count for more than those of any other list.\n\
    ---\n";

/// Where it is.
pub fn path(dir: &Path) -> PathBuf {
    dir.join("local.deny")
}

/// Makes the list if there is none.
///
/// # Errors
/// What the system said.
pub fn ensure(path: &Path) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        durable::create_folder(dir)?;
    }
    if path.try_exists()? { Ok(()) } else { durable::write(path, HEADER.as_bytes()) }
}

/// Adds lines. They are on the disk when this returns; if it fails, none of them is a rule.
///
/// # Errors
/// What the system said.
pub fn append(path: &Path, lines: &[String]) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).append(true).mode(0o600).open(path)?;
    let before = file.metadata()?.len();
    let mut text = String::new();
    if before > 0 && !ends_a_line(&mut file)? {
        text.push('\n');
    }
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    if written.is_err() {
        // As far as that can be done: what is there twice does no harm.
        _ = file.set_len(before);
    }
    written
}

fn ends_a_line(file: &mut File) -> io::Result<bool> {
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// Takes away the rules that are meant, and says how many there were. It is on the disk when this returns.
///
/// # Errors
/// What the system said. Nothing has changed then.
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

/// The rules from a line on, at most so many, each with the number of its line.
///
/// # Errors
/// What the system said.
pub fn rules(path: &Path, after: u64, max: usize) -> io::Result<Vec<(u64, Rule)>> {
    let text = std::fs::read(path)?;
    let lines = text.split(|byte| *byte == b'\n').zip(1..).filter(|(_, number)| *number > after);
    let rules = lines.filter_map(|(line, number)| {
        let line = str::from_utf8(line).ok()?;
        Some((number, Rule::parse(line.trim()).ok()??))
    });
    Ok(rules.take(max).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[&str]) -> Vec<String> {
        text.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn rules_come_and_go() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = path(&dir.path().join("denylists"));
        ensure(&path).expect("makes");
        append(&path, &lines(&["/ipns/a.example reason=x", "/ipns/b.example"])).expect("adds");
        ensure(&path).expect("leaves it");
        // A power cut.
        File::options().append(true).open(&path).expect("opens").write_all(b"/ipns/c.exa").expect("writes");
        append(&path, &lines(&["/ipns/a.example", "!/ipns/a.example"])).expect("adds");
        let shown = |after, max| {
            let rules = rules(&path, after, max).expect("reads");
            rules.into_iter().map(|(line, rule)| format!("{line} {rule}")).collect::<Vec<_>>()
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
        assert!(text.starts_with(HEADER), "what is no rule stays: {text}");
    }
}
