//! The metrics reference: what a node exposes, with the alert rules that watch it. The rules and the Grafana dashboards
//! use metrics, labels and label values that exist.

use crate::engines::support::Postgres;
use crate::support::causeway::Launch;
use crate::support::{certificate, eventually};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tempfile::TempDir;

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/metrics.md");
const ALERTS: &str = include_str!("../../../deploy/prometheus/causeway.rules.yml");
const RECORDING: &str = include_str!("../../../deploy/prometheus/causeway.recording.yml");
const UNIT_TESTS: &str = include_str!("../../../deploy/prometheus/causeway.rules.test.yml");
const RUNBOOK: &str = include_str!("../../../docs/runbook.md");
const DASHBOARDS: [(&str, &str); 4] = [
    ("overview", include_str!("../../../deploy/grafana/dashboards/causeway-overview.json")),
    ("tiers", include_str!("../../../deploy/grafana/dashboards/causeway-tiers.json")),
    ("network", include_str!("../../../deploy/grafana/dashboards/causeway-network.json")),
    ("store", include_str!("../../../deploy/grafana/dashboards/causeway-store.json")),
];
const HEAD: &str = "# Metrics reference\n\n\
    <!-- Generated from a running node: CAUSEWAY_BLESS=1 cargo test --release -p causeway --test e2e metrics_reference -->\n\n\
    `GET /metrics` on the admin listener answers in the OpenMetrics text format. Counters end in `_total` there, histograms in\n\
    `_bucket`, `_sum` and `_count`. The last column names the alerts of\n\
    [`causeway.rules.yml`](../../deploy/prometheus/causeway.rules.yml) that watch a metric: each has a section in the\n\
    [run-book](../runbook.md).\n\n\
    | metric | type | unit | meaning | alerts |\n|---|---|---|---|---|\n";

/// Labels that Prometheus adds to each series that it scrapes.
const SCRAPE_LABELS: [&str; 2] = ["instance", "job"];

/// The metadata of a metric family (OpenMetrics, section "Metadata"), and the labels of its series with their values.
#[derive(Default)]
struct Family {
    kind: String,
    unit: String,
    help: String,
    labels: BTreeMap<String, BTreeSet<String>>,
}

impl Family {
    /// The names of the series of a family.
    fn series<'a>(&self, name: &'a str) -> impl Iterator<Item = String> + use<'a> {
        let suffixes: &[&str] = match &*self.kind {
            "counter" => &["_total"],
            "histogram" => &["_bucket", "_sum", "_count"],
            _ => &[""],
        };
        suffixes.iter().map(move |suffix| format!("{name}{suffix}"))
    }
}

fn families(exposition: &str) -> BTreeMap<String, Family> {
    let mut families = BTreeMap::<String, Family>::new();
    for line in exposition.lines() {
        let Some((key, rest)) = line.strip_prefix("# ").and_then(|line| line.split_once(' ')) else { continue };
        let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
        let family = families.entry(name.to_owned()).or_default();
        match key {
            "TYPE" => family.kind = value.to_owned(),
            "UNIT" => family.unit = value.to_owned(),
            "HELP" => family.help = value.to_owned(),
            other => panic!("unknown metadata {other}"),
        }
    }
    let names = series_of(&families);
    for line in exposition.lines().filter(|line| !line.starts_with('#')) {
        for Selector { name, matchers } in selectors(line) {
            let family = names.get(&name).unwrap_or_else(|| panic!("{name} has no metadata"));
            let labels = &mut families.get_mut(family).expect("is named by the map").labels;
            for (label, _, value) in matchers {
                labels.entry(label).or_default().insert(value);
            }
        }
    }
    families
}

/// The family of each series.
fn series_of(families: &BTreeMap<String, Family>) -> BTreeMap<String, String> {
    let of_family = |(name, family): (&String, &Family)| {
        family.series(name).map(|series| (series, name.clone())).collect::<Vec<_>>()
    };
    families.iter().flat_map(of_family).collect()
}

/// A selector of series in a PromQL expression.
#[derive(Debug, PartialEq, Eq)]
struct Selector {
    name: String,
    /// Labels, operators and values.
    matchers: Vec<(String, String, String)>,
}

/// The selectors of Causeway's series in an expression: those whose name has `causeway_` or `process_` in it. Text in
/// quotation marks is skipped.
fn selectors(expression: &str) -> Vec<Selector> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(start) = rest.find(|c| is_name(c) || c == '"') {
        rest = &rest[start..];
        if let Some(quoted) = rest.strip_prefix('"') {
            rest = quoted.split_once('"').map_or("", |(_, after)| after);
            continue;
        }
        let name = rest.split(|c| !is_name(c)).next().unwrap_or_default();
        rest = &rest[name.len()..];
        if !name.contains("causeway_") && !name.starts_with("process_") {
            continue;
        }
        let inside = rest.strip_prefix('{').and_then(|inside| inside.split_once('}'));
        let matchers: Vec<&str> = inside.map_or_else(Vec::new, |(inside, _)| inside.split_inclusive('"').collect());
        rest = inside.map_or(rest, |(_, after)| after);
        // A label with its operator, and a value.
        let pairs = matchers.chunks_exact(2).map(|pair| {
            let label = pair[0].trim_matches(|c| ",\" ".contains(c));
            let (label, operator) = label.split_at(label.find(['=', '!']).expect("a matcher has an operator"));
            (label.to_owned(), operator.to_owned(), pair[1].trim_end_matches('"').to_owned())
        });
        found.push(Selector { name: name.to_owned(), matchers: pairs.collect() });
    }
    found
}

#[test]
fn selectors_are_found_in_expressions() {
    let selector = |name: &str, matchers: &[(&str, &str, &str)]| Selector {
        name: name.to_owned(),
        matchers: matchers.iter().map(|&(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned())).collect(),
    };
    let expression = r#"sum without (code) (rate(causeway_a_total{code="5xx", tier=~"ram|disk"}[5m])) > 1
        and on (job) up{job="causeway_x"} unless process_open_fds or i:causeway_a:rate5m{i!="b"}"#;
    assert_eq!(
        selectors(expression),
        [
            selector("causeway_a_total", &[("code", "=", "5xx"), ("tier", "=~", "ram|disk")]),
            selector("process_open_fds", &[]),
            selector("i:causeway_a:rate5m", &[("i", "!=", "b")]),
        ]
    );
}

/// The rules of a file with this key, each with its text.
fn rules(file: &'static str, key: &str) -> Vec<(&'static str, &'static str)> {
    let start = format!("- {key}: ");
    let rules = file.split(&start).skip(1);
    rules.map(|rule| rule.split_once('\n').expect("a rule has lines")).map(|(name, text)| (name.trim(), text)).collect()
}

/// The alerts with their expressions, in the order of the file.
fn alerts() -> Vec<(&'static str, &'static str)> {
    let expression = |text: &'static str| text.split("labels:").next().unwrap_or_default();
    rules(ALERTS, "alert").into_iter().map(|(name, text)| (name, expression(text))).collect()
}

/// All expressions of rules and dashboards, each with the place where it is.
fn expressions() -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> =
        alerts().into_iter().chain(rules(RECORDING, "record")).map(|(name, text)| (name.into(), text.into())).collect();
    for (name, text) in DASHBOARDS {
        let dashboard: serde_json::Value = serde_json::from_str(text).expect("a dashboard is JSON");
        for panel in dashboard["panels"].as_array().expect("a dashboard has panels") {
            for target in panel["targets"].as_array().expect("a panel has queries") {
                let expression = target["expr"].as_str().expect("a query has an expression");
                all.push((format!("{name}: {}", panel["title"]), expression.to_owned()));
            }
        }
    }
    all
}

/// What is wrong with a selector, if it matches no series of a node whatever happens to it.
fn defect(selector: &Selector, families: &BTreeMap<String, Family>, recorded: &BTreeSet<&str>) -> Option<String> {
    let Selector { name, matchers } = selector;
    if name.contains(':') {
        return (!recorded.contains(&**name)).then(|| format!("{name} is not recorded"));
    }
    let Some(family) = series_of(families).remove(name) else { return Some(format!("there is no {name}")) };
    let labels = &families[&family].labels;
    matchers.iter().filter(|(label, ..)| !SCRAPE_LABELS.contains(&&**label)).find_map(|(label, operator, value)| {
        let Some(values) = labels.get(label) else { return Some(format!("{name} has no label {label}")) };
        let mut wanted = if operator == "=~" { value.split('|').collect() } else { vec![&**value] };
        wanted.retain(|value| !values.contains(*value));
        (!wanted.is_empty()).then(|| format!("{name} has no {label} {wanted:?}, only {values:?}"))
    })
}

#[test]
fn every_alert_has_a_unit_test_and_a_section_in_the_run_book() {
    for (name, text) in rules(ALERTS, "alert") {
        let anchor = name.to_lowercase();
        assert!(text.contains(&format!("runbook_url: docs/runbook.md#{anchor}\n")), "{name} has no runbook_url");
        assert!(RUNBOOK.contains(&format!("\n### {name}\n")), "docs/runbook.md has no section {name}");
        assert!(UNIT_TESTS.contains(&format!("alertname=\"{name}\", instance=")), "{name} is not tested");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_reference_is_generated_and_rules_and_dashboards_use_existing_metrics() {
    let dir = TempDir::new().expect("the temporary folder is writable");
    // What is off by default has metrics as well.
    let (certificate, key) = certificate::write(dir.path());
    let (database, storage) = (Postgres::start().await, TempDir::new().expect("the temporary folder is writable"));
    let node = Launch::new(dir.path())
        .set("CAUSEWAY_SITE_NAME", "metrics")
        .set("CAUSEWAY_SITE_DATABASE", database.options("metrics").url)
        .set("CAUSEWAY_SITE_STORE", format!("file://{}", storage.path().display()))
        .set("CAUSEWAY_HTTP_TLS_LISTEN", "127.0.0.1:0")
        .set("CAUSEWAY_HTTP_TLS_CERTIFICATE", certificate.display())
        .set("CAUSEWAY_HTTP_TLS_KEY", key.display())
        // An authority that does not answer.
        .set("CAUSEWAY_HTTP_ACME_DIRECTORY", "https://127.0.0.1:1/directory")
        .set("CAUSEWAY_HTTP_ACME_TERMS_AGREED", true)
        .set("CAUSEWAY_HTTP_ACME_NAMES", "gateway.example.org")
        .set("CAUSEWAY_HTTP_ROUTING_V1", true)
        .set("CAUSEWAY_HTTP_HOSTS", "gateway.example.org")
        .set("CAUSEWAY_POLICY_CACHES", "purge+http://127.0.0.1:1")
        .start()
        .await;
    // The site has metrics as soon as the gateway is a member.
    eventually("it is a member", Duration::from_secs(30), async || {
        let has_joined = node.exposition().await.contains("causeway_site_gateways 1");
        if has_joined { Ok(()) } else { Err("it is none") }
    })
    .await;
    let families = families(&node.exposition().await);
    node.stop().await;

    let recorded = rules(RECORDING, "record").into_iter().map(|(name, _)| name).collect();
    for (place, expression) in expressions() {
        let selectors = selectors(&expression);
        // Whether a target is up is Prometheus's own metric.
        assert!(!selectors.is_empty() || expression.contains("up{"), "{place} uses no metric");
        for selector in selectors {
            assert_eq!(defect(&selector, &families, &recorded), None, "{place}");
        }
    }

    let mut rendered = HEAD.to_owned();
    for (name, family) in &families {
        let Family { kind, unit, help, .. } = family;
        assert!(!help.is_empty() && !kind.is_empty(), "{name} is not described");
        let series: Vec<String> = family.series(name).collect();
        let watches = |expression| selectors(expression).iter().any(|selector| series.contains(&selector.name));
        let watching = alerts().into_iter().filter(|(_, expression)| watches(expression));
        let watching: Vec<String> = watching.map(|(alert, _)| format!("`{alert}`")).collect();
        let help = help.replace('|', "\\|").replace('<', "&lt;");
        rendered.push_str(&format!("| `{name}` | {kind} | {unit} | {help} | {} |\n", watching.join(", ")));
    }
    if std::env::var_os("CAUSEWAY_BLESS").is_some() {
        std::fs::write(REFERENCE, &rendered).expect("writes");
    }
    let checked_in = std::fs::read_to_string(REFERENCE).unwrap_or_default();
    assert!(checked_in == rendered, "docs/reference/metrics.md is out of date: run this test with CAUSEWAY_BLESS=1");
}
