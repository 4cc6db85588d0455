//! Type checks of values, with messages for the operator.
//!
//! The deserialiser's own messages name Rust types ("expected u64"). Messages here say what to write instead.

use toml::Value;

/// Whether a key's unit is bytes, by its name.
pub(crate) fn is_size(key: &str) -> bool {
    let name = key.rsplit('.').next().unwrap_or_default();
    name.split('_').any(|word| word == "bytes")
}

/// Checks that a value has the type of the key's default.
///
/// # Errors
/// What to write.
pub(crate) fn check(key: &str, value: &Value, default: &Value) -> Result<(), String> {
    let expected = match (default, value) {
        (Value::Integer(_), Value::Integer(_))
        | (Value::Boolean(_), Value::Boolean(_))
        | (Value::Float(_), Value::Float(_) | Value::Integer(_))
        | (Value::String(_), Value::String(_)) => return Ok(()),
        (Value::Array(_), Value::Array(entries)) => match entries.iter().find(|entry| !is_entry(entry)) {
            None => return Ok(()),
            Some(entry) => {
                return Err(format!("{} is not a string: write each entry of the list in quotes", shown(entry)));
            }
        },
        (Value::Integer(_), _) if is_size(key) => "a size: write a whole number of bytes, or a string such as \"1GiB\"",
        (Value::Integer(_), _) => "a whole number",
        (Value::Float(_), _) => "a number",
        (Value::Boolean(_), _) => "true or false",
        (Value::Array(_), _) => "a list: write strings in square brackets, such as [\"a\", \"b\"]",
        _ => "a string: write it in quotes",
    };
    Err(format!("{} is not {expected}", shown(value)))
}

/// Entries of lists are strings, or tables in some lists.
fn is_entry(value: &Value) -> bool {
    matches!(value, Value::String(_) | Value::Table(_))
}

/// A value as it is written in the file; a table or list by its type.
fn shown(value: &Value) -> String {
    match value {
        Value::Table(_) => "a table".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        other => other.to_string(),
    }
}

/// A message of the deserialiser in one line, without Rust types.
pub(crate) fn message_for_operator(message: &str) -> String {
    let message = one_line(message);
    let quoted = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    if message.starts_with("unknown variant") {
        let mut names = quoted(&message).into_iter();
        let written = names.next().unwrap_or_default();
        return format!("\"{written}\" is not one of {}", names.collect::<Vec<_>>().join(", "));
    }
    if let Some(rest) = message.strip_prefix("invalid value: integer") {
        let written = quoted(rest).into_iter().next().unwrap_or_default();
        let why = if written.starts_with('-') { "less than zero" } else { "too large" };
        return format!("{written} is {why}");
    }
    message
}

/// A message without line breaks.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_the_deserializer_name_no_types() {
        let table = [
            ("unknown variant `on`, expected one of `auto`, `off`", "\"on\" is not one of auto, off"),
            ("unknown variant `xml`, expected `text` or `json`", "\"xml\" is not one of text, json"),
            ("invalid value: integer `-1`, expected u64", "-1 is less than zero"),
            ("invalid value: integer `99999`,\n expected u16", "99999 is too large"),
            ("a host is a name,\n or a table", "a host is a name, or a table"),
        ];
        for (message, expected) in table {
            assert_eq!(message_for_operator(message), expected);
        }
    }

    #[test]
    fn keys_with_bytes_in_their_names_are_sizes() {
        for key in crate::keys::all() {
            assert!(!is_size(&key.0) || matches!(key.1, Value::Integer(_)), "{key:?}");
        }
        assert!(is_size("cache.ram_bytes_max") && is_size("uploads.bytes_max") && !is_size("http.misses_max"));
    }
}
