//! Properties of every command.

use crate::command_line::Cli;
use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

/// Every visible command with its full name, such as "causeway token create".
fn commands() -> Vec<(String, Command)> {
    fn gather(path: String, command: &Command, all: &mut Vec<(String, Command)>) {
        for below in command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help") {
            gather(format!("{path} {}", below.get_name()), below, all);
        }
        all.push((path, command.clone()));
    }
    let mut cli = Cli::command();
    cli.build();
    let mut all = Vec::new();
    gather("causeway".to_owned(), &cli, &mut all);
    all
}

fn is_leaf(command: &Command) -> bool {
    command.get_subcommands().all(|below| below.get_name() == "help")
}

#[test]
fn the_command_line_is_valid() {
    Cli::command().debug_assert();
    let about = Cli::command().get_about().map(ToString::to_string).unwrap_or_default();
    assert!(about.starts_with("An IPFS HTTP gateway"), "the first line of the help: {about}");
    assert!(commands().len() > 30, "{}", commands().len());
}

#[test]
fn every_command_and_option_has_a_help_text() {
    for (path, command) in commands() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        assert!(!about.is_empty() && !about.contains('\\'), "{path}: {about}");
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
            assert!(!help.is_empty(), "{path} {} has no help", argument.get_id());
            assert!(!help.contains('\\'), "{path} {}: {help}", argument.get_id());
            assert!(!help.ends_with('.') || argument.get_id() == "help", "{path} {}: {help}", argument.get_id());
        }
    }
}

#[test]
fn every_command_has_an_example() {
    for (path, command) in commands().into_iter().filter(|(_, command)| is_leaf(command)) {
        let more = command.get_after_help().or(command.get_after_long_help()).map(ToString::to_string);
        let more = more.unwrap_or_default();
        assert!(more.contains(&path), "the help of {path} has no example: {more}");
    }
}

/// Users copy examples wrongly if the terminal breaks their lines.
#[test]
fn examples_fit_a_narrow_terminal() {
    for (path, command) in commands() {
        let more = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for example in more.lines().filter(|line| line.starts_with("  causeway ")) {
            assert!(example.chars().count() <= 80, "the help of {path}: {example}");
        }
    }
}

#[test]
fn the_flag_json_takes_no_value() {
    for (path, command) in commands() {
        let json = command.get_arguments().find(|argument| argument.get_long() == Some("json"));
        assert!(json.is_none_or(|json| !json.get_action().takes_values()), "{path}");
    }
}

#[test]
fn no_option_takes_a_secret() {
    for (path, command) in commands() {
        let typed = command.get_arguments().filter_map(|argument| argument.get_long());
        for flag in typed.filter(|flag| flag.contains("token") || flag.contains("password")) {
            // The help of --admin-token recommends the environment variable.
            let known = matches!(flag, "token-file" | "from-token-file" | "admin-token");
            assert!(known, "{path} --{flag}");
            let of_settings = ["causeway serve", "causeway config check", "causeway config show"];
            assert!(flag != "admin-token" || of_settings.contains(&path.as_str()), "{path} --{flag}");
        }
    }
}

#[test]
fn every_shell_completes_every_command() {
    for shell in [Shell::Bash, Shell::Elvish, Shell::Fish, Shell::PowerShell, Shell::Zsh] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "causeway", &mut script);
        let script = String::from_utf8(script).expect("text");
        for (path, _) in commands() {
            let name = path.rsplit(' ').next().unwrap_or(&path);
            assert!(script.contains(name), "{shell}: {path}");
        }
        assert!(script.contains("data-dir"), "{shell}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let dir = tempfile::tempdir().expect("a folder");
    clap_mangen::generate_to(Cli::command(), dir.path()).expect("writes");
    for (path, command) in commands() {
        let page = std::fs::read_to_string(dir.path().join(format!("{}.1", path.replace(' ', "-"))));
        let page = page.unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{path}: {page}");
        if is_leaf(&command) {
            let shown = page.replace("\\-", "-");
            assert!(shown.contains(&path), "the page of {path} has no example: {shown}");
        }
    }
}

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/commands.md");
const REFERENCE_HEAD: &str = "# Command reference\n\n\
    <!-- Generated from the command line: CAUSEWAY_BLESS=1 cargo test --release -p causeway-cli --lib command_reference -->\n\n\
    What each command prints with `--help`. `causeway man DIR` writes the same as manual pages.\n";

#[test]
fn the_command_reference_is_generated_from_the_command_line() {
    let mut rendered = REFERENCE_HEAD.to_owned();
    let mut commands = commands();
    commands.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (path, command) in commands {
        let help = command.term_width(100).render_long_help().to_string();
        let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
        rendered.push_str(&format!("\n## {path}\n\n```text\n{}\n```\n", lines.join("\n").trim_end()));
    }
    if std::env::var_os("CAUSEWAY_BLESS").is_some() {
        std::fs::write(REFERENCE, &rendered).expect("writes");
    }
    let checked_in = std::fs::read_to_string(REFERENCE).unwrap_or_default();
    assert!(checked_in == rendered, "docs/reference/commands.md is out of date: run this test with CAUSEWAY_BLESS=1");
}

/// What calls an operation of the admin API: a command, or none, with the reason.
enum CalledBy {
    Command(&'static str),
    Nothing(&'static str),
}

use CalledBy::{Command as C, Nothing as N};

const FOR_KUBO: &str = "for Kubo's own commands and client libraries";
const FOR_PROGRAMS: &str = "for programs; \"add\" and \"import\" send content to the store";

/// Every operation, by a prefix of "METHOD /path".
const CALLED_BY: [(&str, CalledBy); 71] = [
    ("GET /healthz", N("\"health\" uses /readyz, which has more information")),
    ("GET /readyz", C("health")),
    ("GET /metrics", N("for Prometheus; \"stats\" prints a selection")),
    ("GET /api/v1/version", C("health")),
    ("GET /api/v1/openapi.json", N("for developers of clients")),
    ("GET /api/v1/tokens", C("token ls")),
    ("POST /api/v1/tokens", C("token create")),
    ("DELETE /api/v1/tokens/", C("token rm")),
    ("GET /api/v1/token", C("token show")),
    ("GET /api/v1/audit", C("audit")),
    ("GET /api/v1/names/keys", C("key list")),
    ("POST /api/v1/names/keys/import", C("key import")),
    (
        "POST /api/v1/names/keys/{name}/export",
        N("a private key is never sent over a connection: \"key export\" reads the file"),
    ),
    ("POST /api/v1/names/keys/{name}/rename", C("key rename")),
    ("POST /api/v1/names/keys", C("key create")),
    ("DELETE /api/v1/names/keys/", C("key remove")),
    ("GET /api/v1/names/publish", C("name list")),
    ("POST /api/v1/names/publish", C("name publish")),
    ("POST /api/v1/names/refresh", C("refresh")),
    ("GET /api/v1/store/stats", C("store stats")),
    ("POST /api/v1/store/check", C("store check")),
    ("POST /api/v1/store/compact", C("store compact")),
    ("POST /api/v1/store/gc", C("gc")),
    ("GET /api/v1/store/export/", C("store export")),
    ("POST /api/v1/store/import", C("store import")),
    ("POST /api/v1/store/have", C("add")),
    ("GET /api/v1/store/blocks/", C("get")),
    ("HEAD /api/v1/store/blocks/", C("get")),
    ("GET /api/v1/fetch/", C("get")),
    ("POST /api/v1/purge", C("purge")),
    ("POST /api/v1/warm", C("warm")),
    ("GET /api/v1/explain", C("explain")),
    ("POST /api/v1/peers/connect", C("peers connect")),
    ("DELETE /api/v1/peers/", C("peers disconnect")),
    ("GET /api/v1/peers", C("peers")),
    ("GET /api/v1/bandwidth", C("peers traffic")),
    ("GET /api/v1/requests", C("requests")),
    ("POST /api/v1/drain", C("drain")),
    ("DELETE /api/v1/drain", C("drain")),
    ("GET /api/v1/log/level", C("log-level")),
    ("PUT /api/v1/log/level", C("log-level")),
    ("GET /api/v1/pins", C("pin ls")),
    ("GET /api/v1/pins/owners", C("pin owners")),
    ("DELETE /api/v1/pins/", C("pin rm")),
    ("GET /api/v1/denylists/check", C("block check")),
    ("GET /api/v1/denylists/local/rules", C("block ls")),
    ("POST /api/v1/denylists/local/rules", C("block add")),
    ("DELETE /api/v1/denylists/local/rules", C("block rm")),
    ("POST /api/v1/denylists/reload", C("block reload")),
    ("GET /api/v1/denylists", C("block ls")),
    ("GET /api/v1/node", C("node")),
    ("GET /api/v1/site", C("site status")),
    ("POST /api/v1/site/reconcile", C("site reconcile")),
    ("GET /api/v1/stats", C("stats")),
    ("GET /api/v1/health", C("health")),
    ("GET /api/v1/history", N("for the console; Prometheus keeps statistics beyond an hour")),
    ("GET /api/v1/requests/errors", N("for the console; the access log has all requests")),
    ("POST /api/v1/pins/{requestid}/retry", N("for the console; a failed pin can be requested again with \"pin add\"")),
    ("POST /api/v1/pins", C("site import")),
    ("GET /api/v1/events", C("stats")),
    ("GET /api/v1/config", C("config running")),
    ("GET /psa/pins", C("pin ls")),
    ("POST /psa/pins", C("pin add")),
    ("DELETE /psa/pins", C("pin rm")),
    ("POST /upload", N(FOR_PROGRAMS)),
    ("POST /api/v1/upload", N(FOR_PROGRAMS)),
    ("GET /api/v1/uploads", N(FOR_PROGRAMS)),
    ("HEAD /api/v1/uploads", N(FOR_PROGRAMS)),
    ("PATCH /api/v1/uploads", N(FOR_PROGRAMS)),
    ("DELETE /api/v1/uploads", N(FOR_PROGRAMS)),
    ("POST /api/v0/", N(FOR_KUBO)),
];

/// The operations that the admin listener describes, as "METHOD /path".
fn operations() -> Vec<String> {
    let document: serde_json::Value = serde_json::from_str(include_str!("../../api/openapi.json")).expect("JSON");
    let paths = document["paths"].as_object().expect("paths");
    let methods = |(path, item): (&String, &serde_json::Value)| {
        let methods = item.as_object().expect("operations").keys().cloned();
        let methods = methods.filter(|key| ["get", "put", "post", "delete", "head", "patch"].contains(&key.as_str()));
        methods.map(|method| format!("{} {path}", method.to_uppercase())).collect::<Vec<_>>()
    };
    paths.iter().flat_map(methods).collect()
}

#[test]
fn every_operation_of_the_api_has_a_command_or_a_reason() {
    let typed: Vec<String> = commands().into_iter().map(|(path, _)| path).collect();
    for operation in operations() {
        // The longest prefix counts.
        let known = CALLED_BY.iter().filter(|(prefix, _)| operation.starts_with(prefix));
        let known = known.max_by_key(|(prefix, _)| prefix.len()).map(|(_, by)| by);
        match known {
            Some(C(command)) => assert!(typed.contains(&format!("causeway {command}")), "{operation}: {command}"),
            Some(N(why)) => assert!(!why.is_empty()),
            None => panic!("no command calls {operation}"),
        }
    }
}
