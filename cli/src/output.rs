//! Output of commands, as text or JSON, and exit codes.

use crate::remote::client::RequestError;
pub use api::text::count;
use config::ConfigError;
use http::StatusCode;
use serde::Serialize;
use std::io::{ErrorKind, Write as _};

/// The exit code of errors that have no code of their own.
pub const EXIT_FAILURE: i32 = 1;
/// The command line or a setting is invalid; clap uses the same code.
pub const EXIT_USAGE: i32 = 2;
/// No gateway is running, or it cannot be reached.
pub const EXIT_UNREACHABLE: i32 = 3;
/// Authentication or authorisation failed: 401 or 403.
pub const EXIT_UNAUTHORISED: i32 = 4;
/// A second signal ended the process.
pub const EXIT_FORCED: i32 = 130;

/// The exit codes, for the help.
pub(super) const EXITS: &str = "Exit codes: 0 success; 1 failure, with one line on standard error that says why; 2 the \
    command line or a setting is invalid; 3 no gateway is running, or it cannot be reached; 4 the gateway rejects the \
    token, or the token lacks the scope.";

/// The exit code of an error.
pub fn exit_code(error: &anyhow::Error) -> i32 {
    if error.downcast_ref::<ConfigError>().is_some() {
        return EXIT_USAGE;
    }
    match error.downcast_ref() {
        Some(RequestError::Unreachable(_)) => EXIT_UNREACHABLE,
        Some(RequestError::Rejected { status: StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, .. }) => {
            EXIT_UNAUTHORISED
        }
        Some(RequestError::Rejected { .. }) | None => EXIT_FAILURE,
    }
}

/// Writes to standard output. A closed pipe is not an error.
pub fn print(text: &str) -> anyhow::Result<()> {
    print_bytes(text.as_bytes())
}

/// Writes bytes to standard output. A closed pipe is not an error.
pub fn print_bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Prints a line. A closed pipe is not an error.
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

/// A table with aligned columns. The last column is not padded.
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
    fn a_count_of_one_is_singular() {
        assert_eq!([0, 1, 2].map(|number| count(number, "block")), ["0 blocks", "1 block", "2 blocks"]);
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [["1".to_owned(), "zwölf".to_owned()], ["1000".to_owned(), String::new()]];
        assert_eq!(table(["NUMBER", "WORD"], rows), "NUMBER  WORD\n1       zwölf\n1000\n");
    }

    #[test]
    fn errors_have_exit_codes() {
        let rejected = |status| anyhow::Error::from(RequestError::Rejected { status, message: "no".to_owned() });
        let table = [
            (anyhow::anyhow!("broken"), EXIT_FAILURE),
            (RequestError::Unreachable("no gateway".to_owned()).into(), EXIT_UNREACHABLE),
            (rejected(StatusCode::UNAUTHORIZED), EXIT_UNAUTHORISED),
            (rejected(StatusCode::FORBIDDEN).context("it was not done"), EXIT_UNAUTHORISED),
            (rejected(StatusCode::NOT_FOUND), EXIT_FAILURE),
        ];
        for (error, code) in table {
            assert_eq!(exit_code(&error), code, "{error:#}");
        }
    }
}
