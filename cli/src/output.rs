//! What commands print: text for people, JSON for scripts; and which code they exit with.

use crate::remote::client::AskError;
pub use api::text::count;
use config::ConfigError;
use http::StatusCode;
use serde::Serialize;
use std::io::{ErrorKind, Write as _};

/// What everything exits with that goes wrong and has no code of its own.
pub const EXIT_FAILURE: i32 = 1;
/// What a wrong command line or setting exits with; clap's own choice.
pub const EXIT_USAGE: i32 = 2;
/// No gateway runs or answers where one has to.
pub const EXIT_UNREACHABLE: i32 = 3;
/// The gateway does not take the token, or not for this.
pub const EXIT_REFUSED: i32 = 4;
/// What a second signal exits with.
pub const EXIT_FORCED: i32 = 130;

/// What the codes mean, for the help.
pub(super) const EXITS: &str = "Exit codes: 0 it was done; 1 it was not, and one line on standard error says why; 2 the command \
    line or a setting is wrong; 3 no gateway runs or answers where one has to; 4 the gateway does not take the token, or not for this.";

/// Which code an error exits with.
pub fn exit_code(error: &anyhow::Error) -> i32 {
    if error.downcast_ref::<ConfigError>().is_some() {
        return EXIT_USAGE;
    }
    match error.downcast_ref() {
        Some(AskError::Unreachable(_)) => EXIT_UNREACHABLE,
        Some(AskError::Refused { status: StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, .. }) => EXIT_REFUSED,
        Some(AskError::Refused { .. }) | None => EXIT_FAILURE,
    }
}

/// Writes to standard output; a reader who has left is no error.
pub fn print(text: &str) -> anyhow::Result<()> {
    print_bytes(text.as_bytes())
}

/// The same for what need not be text.
pub fn print_bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Prints a line; the same.
pub fn print_line(line: &str) -> anyhow::Result<()> {
    print(&format!("{line}\n"))
}

/// Prints a view as JSON on several lines.
pub fn print_json(view: &impl Serialize) -> anyhow::Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(view)?))
}

/// Prints a view as JSON, or as text.
pub fn print_view<T: Serialize>(json: bool, view: &T, text: impl FnOnce(&T) -> String) -> anyhow::Result<()> {
    if json { print_json(view) } else { print(&text(view)) }
}

/// Rows whose cells line up; the last cell of a row is as long as it is.
pub fn table<const N: usize>(head: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
    let mut widths = [0; N];
    for row in &rows {
        widths.iter_mut().zip(row).for_each(|(width, cell)| *width = (*width).max(cell.chars().count()));
    }
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            let blanks = width - cell.chars().count() + 2;
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', blanks));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_many() {
        assert_eq!([0, 1, 2].map(|number| count(number, "block")), ["0 blocks", "1 block", "2 blocks"]);
    }

    #[test]
    fn rows_line_up() {
        let rows = [["1".to_owned(), "zwölf".to_owned()], ["1000".to_owned(), String::new()]];
        assert_eq!(table(["NUMBER", "WORD"], rows), "NUMBER  WORD\n1       zwölf\n1000\n");
    }

    #[test]
    fn codes_tell_what_to_do_about_it() {
        let refused = |status| anyhow::Error::from(AskError::Refused { status, words: "no".to_owned() });
        let table = [
            (anyhow::anyhow!("broken"), EXIT_FAILURE),
            (AskError::Unreachable("nobody".to_owned()).into(), EXIT_UNREACHABLE),
            (refused(StatusCode::UNAUTHORIZED), EXIT_REFUSED),
            (refused(StatusCode::FORBIDDEN).context("it was not done"), EXIT_REFUSED),
            (refused(StatusCode::NOT_FOUND), EXIT_FAILURE),
        ];
        for (error, code) in table {
            assert_eq!(exit_code(&error), code, "{error:#}");
        }
    }
}
