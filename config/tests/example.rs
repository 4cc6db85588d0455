//! `examples/causeway.toml` is the typed documentation: every doc comment of the schema, above its key and default.

use config::Config;
use toml::{Table, Value};

const SCHEMA: [&str; 2] = [include_str!("../src/schema.rs"), include_str!("../src/p2p.rs")];
const EXAMPLE: &str = include_str!("../examples/causeway.toml");
const HEAD: &str = "# Every setting of Causeway with its default. Unknown keys are refused.\n\
    # Each key is also an environment variable: http.listen is CAUSEWAY_HTTP_LISTEN, lists separated by commas.\n\
    # Flags beat the environment, which beats this file, which beats the defaults.\n";

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
