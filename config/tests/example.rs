//! `examples/causeway.toml` and `docs/reference/settings.md` are generated from the schema: each doc comment with its
//! key and default.

use config::Config;
use toml::{Table, Value};

const SCHEMA: [&str; 3] =
    [include_str!("../src/schema.rs"), include_str!("../src/p2p.rs"), include_str!("../src/site.rs")];
const EXAMPLE: &str = include_str!("../examples/causeway.toml");
const HEAD: &str = "# Every setting of Causeway with its default. Unknown keys are rejected.\n\
    # Each key is also an environment variable: http.listen is CAUSEWAY_HTTP_LISTEN, lists separated by commas.\n\
    # Flags override the environment, which overrides this file, which overrides the defaults.\n";

/// The fields of a struct in the schema, as (documentation, name, type).
fn fields(name: &str) -> Vec<(Vec<&'static str>, &'static str, &'static str)> {
    let head = format!("pub struct {name} {{\n");
    let found = SCHEMA.iter().find_map(|source| source.split_once(&head)).expect("the struct is in the schema");
    let body = found.1.split_once("\n}").expect("an end").0;
    let mut docs = Vec::new();
    let mut fields = Vec::new();
    for line in body.lines().map(str::trim) {
        if let Some(doc) = line.strip_prefix("/// ") {
            docs.push(doc);
        } else if let Some((field, kind)) = line.strip_prefix("pub ").and_then(|field| field.split_once(": ")) {
            fields.push((std::mem::take(&mut docs), field, kind.trim_end_matches(',')));
        }
    }
    fields
}

fn render(name: &str, values: &Table, out: &mut String) {
    for (docs, field, kind) in fields(name) {
        assert!(!docs.is_empty(), "{field} is not documented");
        out.push('\n');
        out.extend(docs.iter().map(|doc| format!("# {doc}\n")));
        match &values[field] {
            Value::Table(section) => {
                out.push_str(&format!("[{field}]\n"));
                render(kind, section, out);
            }
            value => out.push_str(&format!("{field} = {}\n", value_text(value))),
        }
    }
}

fn value_text(value: &Value) -> String {
    match value {
        Value::Array(items) if items.len() > 1 => {
            let lines: String = items.iter().map(|item| format!("    {item},\n")).collect();
            format!("[\n{lines}]")
        }
        other => other.to_string(),
    }
}

#[test]
fn the_example_is_the_typed_documentation_and_equals_the_defaults() {
    let mut rendered = HEAD.to_owned();
    render("Config", &Table::try_from(Config::default()).expect("a tree"), &mut rendered);
    if rendered != EXAMPLE {
        let path = concat!(env!("CARGO_TARGET_TMPDIR"), "/causeway.toml");
        std::fs::write(path, &rendered).expect("writes");
        panic!("examples/causeway.toml differs from the schema; copy {path} over it");
    }
    assert_eq!(toml::from_str::<Config>(EXAMPLE).expect("parses"), Config::default());
}

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/settings.md");
const REFERENCE_HEAD: &str = "# Settings reference\n\n\
    <!-- Generated from config/src/schema.rs: CAUSEWAY_BLESS=1 cargo test --release -p causeway-config --test \
    example -->\n\n\
    Every setting with its default. Each key is also an environment variable: `http.listen` is \
    `CAUSEWAY_HTTP_LISTEN`,\n\
    lists separated by commas. Flags override the environment, which overrides the file, which overrides the\n\
    defaults. [Settings](../settings.md) says what to set for what you want.\n";

/// A section with a table of its keys, then the sections below it.
fn render_reference(prefix: &str, name: &str, values: &Table, out: &mut String) {
    let (sections, keys): (Vec<_>, Vec<_>) =
        fields(name).into_iter().partition(|(_, field, _)| matches!(values[*field], Value::Table(_)));
    out.push_str("\n| key | default | meaning |\n|---|---|---|\n");
    for (docs, field, _) in keys {
        let meaning = docs.join(" ").replace('|', "\\|").replace('<', "&lt;").replace('[', "\\[");
        let default = values[field].to_string().replace('|', "\\|");
        out.push_str(&format!("| `{prefix}{field}` | `{default}` | {meaning} |\n"));
    }
    for (docs, field, kind) in sections {
        let Value::Table(section) = &values[field] else { unreachable!("only tables are sections") };
        out.push_str(&format!("\n## {prefix}{field}\n\n{}\n", docs.join(" ")));
        render_reference(&format!("{prefix}{field}."), kind, section, out);
    }
}

#[test]
fn the_settings_reference_is_generated_from_the_schema() {
    let mut rendered = REFERENCE_HEAD.to_owned();
    render_reference("", "Config", &Table::try_from(Config::default()).expect("a tree"), &mut rendered);
    if std::env::var_os("CAUSEWAY_BLESS").is_some() {
        std::fs::write(REFERENCE, &rendered).expect("writes");
    }
    let checked_in = std::fs::read_to_string(REFERENCE).unwrap_or_default();
    assert!(checked_in == rendered, "docs/reference/settings.md is out of date: run this test with CAUSEWAY_BLESS=1");
}
