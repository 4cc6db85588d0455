//! The details of a change in the audit log besides the client: [`AuditContext`], set before the work begins, and
//! [`ResponseDetail`](crate::audit::ResponseDetail), set with the response.
//!
//! Goals: the log records what was requested also for a change that fails or whose client disconnects; long values are
//! truncated, not dropped.
//!
//! Non-goals: recording what happens after the response has begun.

use serde::Serialize;
use serde_json::Value;
use std::sync::{Arc, OnceLock};

/// The maximum size of the details of one change, in bytes of JSON.
pub const BYTES_MAX: usize = 16 * 1024;
/// The maximum length of one text in details that exceed [`BYTES_MAX`], in bytes.
const TEXT_BYTES_MAX: usize = 8 * 1024;
/// The weight of one item of a list, in bytes of a text, when values are truncated.
const ITEM_BYTES: usize = 32;
/// Marks where a value was truncated.
const CUT: &str = "…";

/// The audit context of a change. The guard creates one for each request, a handler sets it before work begins that may
/// fail or outlive the request, and it is read when the change ends in any way. Clones share the context.
#[derive(Debug, Clone, Default)]
pub struct AuditContext(Arc<OnceLock<Value>>);

impl AuditContext {
    /// Records what was requested, which must not be a secret. Only the first call counts.
    pub fn note(&self, what: &impl Serialize) {
        if let Ok(what) = serde_json::to_value(what) {
            _ = self.0.set(shortened(what));
        }
    }

    /// The details to record: the context, and what the response adds.
    pub fn with(&self, added: Option<Value>) -> Option<Value> {
        match (self.0.get().cloned(), added) {
            (Some(Value::Object(mut context)), Some(Value::Object(added))) => {
                context.extend(added);
                Some(Value::Object(context))
            }
            (context, added) => added.or(context),
        }
    }
}

/// Truncates a value to [`BYTES_MAX`] bytes of JSON: long texts, lists and objects lose their ends.
pub(super) fn shortened(value: Value) -> Value {
    let fits = |value: &Value| value.to_string().len() <= BYTES_MAX;
    if fits(&value) {
        return value;
    }
    let mut bytes_max = TEXT_BYTES_MAX;
    while bytes_max > 0 {
        let mut cut_value = value.clone();
        cut(&mut cut_value, bytes_max);
        if fits(&cut_value) {
            return cut_value;
        }
        bytes_max /= 2;
    }
    Value::from(CUT)
}

/// Truncates each text to so many bytes, and each list and object to as many items as weigh that much.
fn cut(value: &mut Value, bytes_max: usize) {
    let items_max = bytes_max.div_ceil(ITEM_BYTES);
    match value {
        Value::String(text) if text.len() > bytes_max => {
            text.truncate(text.floor_char_boundary(bytes_max));
            text.push_str(CUT);
        }
        Value::Array(items) => {
            let more = items.len().saturating_sub(items_max);
            items.truncate(items_max);
            items.iter_mut().for_each(|item| cut(item, bytes_max));
            if more > 0 {
                items.push(Value::from(format!("{CUT} and {more} more")));
            }
        }
        Value::Object(members) => {
            let kept = std::mem::take(members).into_iter().take(items_max);
            members.extend(kept);
            members.values_mut().for_each(|member| cut(member, bytes_max));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn long_values_are_truncated_and_not_dropped() {
        let short = json!({"path": "/ipfs/x", "below": false});
        assert_eq!(shortened(short.clone()), short);
        let path = format!("/ipfs/x{}", "/é".repeat(9_000));
        let told = shortened(json!({"path": path, "below": false}));
        let kept = told["path"].as_str().and_then(|kept| kept.strip_suffix(CUT)).expect("it was cut");
        assert!(path.starts_with(kept) && kept.len() > 1000 && told["below"] == json!(false), "{told}");
        let roots: Vec<String> = (0..300).map(|number| format!("{number:062}")).collect();
        let told = shortened(json!({"rule": "//x", "unpinned": roots}));
        let kept = told["unpinned"].as_array().expect("a list");
        assert!(kept.len() > 100 && kept[0] == json!(roots[0]) && told["rule"] == json!("//x"), "{told}");
        let more = format!("{CUT} and {} more", 300 - (kept.len() - 1));
        assert_eq!(kept.last(), Some(&json!(more)));
    }

    #[test]
    fn every_value_fits_after_truncation() {
        let deep = (0..9).fold(json!("\u{1}".repeat(100)), |inner, _| json!([inner, inner]));
        let wide: serde_json::Map<_, _> = (0..9_000).map(|number| (number.to_string(), json!(number))).collect();
        for value in [json!("\u{1}".repeat(BYTES_MAX)), json!({"\u{1}".repeat(BYTES_MAX): 1}), wide.into(), deep] {
            assert!(shortened(value).to_string().len() <= BYTES_MAX);
        }
    }

    #[test]
    fn the_response_adds_to_the_context() {
        let noted = AuditContext::default();
        assert_eq!(noted.with(None), None);
        assert_eq!(noted.with(Some(json!({"roots": 1}))), Some(json!({"roots": 1})));
        let same = noted.clone();
        same.note(&json!({"method": "PATCH"}));
        same.note(&json!({"method": "DELETE"}));
        assert_eq!(noted.with(None), Some(json!({"method": "PATCH"})));
        assert_eq!(noted.with(Some(json!({"roots": 1}))), Some(json!({"method": "PATCH", "roots": 1})));
    }
}
