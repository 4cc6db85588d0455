//! The metrics reference: what a node exposes, with the alert rules that watch it.

use crate::support::causeway::Launch;
use crate::support::certificate;
use std::collections::BTreeMap;
use tempfile::TempDir;

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/metrics.md");
const RULES: &str = include_str!("../../../deploy/prometheus/causeway.rules.yml");
const HEAD: &str = "# Metrics reference\n\n\
    <!-- Generated from a running node: CAUSEWAY_BLESS=1 cargo test --release -p causeway --test e2e metrics_reference -->\n\n\
    `GET /metrics` on the admin listener answers in the OpenMetrics text format. Counters end in `_total` there, histograms in\n\
    `_bucket`, `_sum` and `_count`. The last column names the alerts of\n\
    [`causeway.rules.yml`](../../deploy/prometheus/causeway.rules.yml) that watch a metric: each says what to look at.\n\n\
    | metric | type | unit | meaning | alerts |\n|---|---|---|---|---|\n";

/// The metadata of a metric family (OpenMetrics, section "Metadata").
#[derive(Default)]
struct Family {
    kind: String,
    unit: String,
    help: String,
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
    families
}

/// The alerts that use each metric, in the order of the file.
fn alerts() -> Vec<(String, Vec<String>)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut alerts = Vec::new();
    for rule in RULES.split("- alert: ").skip(1) {
        let (name, body) = rule.split_once('\n').expect("a rule has lines");
        let expression = body.split("labels:").next().unwrap_or_default();
        let metrics = expression.split(|c| !is_name(c)).filter(|word| word.starts_with("causeway_"));
        alerts.push((name.trim().to_owned(), metrics.map(str::to_owned).collect()));
    }
    alerts
}

/// Whether a name in a PromQL expression is a series of the family.
fn is_series(series: &str, family: &str) -> bool {
    let suffix = series.strip_prefix(family);
    suffix.is_some_and(|suffix| ["", "_total", "_bucket", "_sum", "_count"].contains(&suffix))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_reference_is_generated_and_alerts_use_existing_metrics() {
    let dir = TempDir::new().expect("the temporary folder is writable");
    // What is off by default has metrics as well.
    let (certificate, key) = certificate::write(dir.path());
    let node = Launch::new(dir.path())
        .set("CAUSEWAY_HTTP_TLS_LISTEN", "127.0.0.1:0")
        .set("CAUSEWAY_HTTP_TLS_CERTIFICATE", certificate.display())
        .set("CAUSEWAY_HTTP_TLS_KEY", key.display())
        .set("CAUSEWAY_HTTP_ROUTING_V1", true)
        .set("CAUSEWAY_HTTP_HOSTS", "gateway.example.org")
        .set("CAUSEWAY_POLICY_CACHES", "purge+http://127.0.0.1:1")
        .start()
        .await;
    let families = families(&node.exposition().await);
    node.stop().await;

    let alerts = alerts();
    assert!(!alerts.is_empty());
    for (alert, metrics) in &alerts {
        assert!(!metrics.is_empty(), "{alert} watches no metric");
        for metric in metrics {
            assert!(families.keys().any(|family| is_series(metric, family)), "{alert}: there is no {metric}");
        }
    }

    let mut rendered = HEAD.to_owned();
    for (name, Family { kind, unit, help }) in &families {
        assert!(!help.is_empty() && !kind.is_empty(), "{name} is not described");
        let watching = alerts.iter().filter(|(_, metrics)| metrics.iter().any(|metric| is_series(metric, name)));
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
