//! Merges defaults < file < environment < flags, and reports the first error in one line.
//!
//! Each value that a layer sets is first tried alone on the defaults, so that an error names the key and the layer of
//! the invalid value.

use crate::check::check;
use crate::flags::Flags;
use crate::keys;
pub use crate::loaded::{ConfigError, Loaded, Origin};
use crate::schema::Config;
use crate::shape;
use crate::values::list;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use toml::de::DeTable;
use toml::{Table, Value};

/// Merges the layers and validates the result.
///
/// # Errors
/// [`ConfigError`] about the first invalid setting.
pub fn load(flags: &Flags, environment: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Loaded, ConfigError> {
    let variables = causeway_variables(environment)?;
    let mut layers = Layers { tree: keys::default_tree(), known: keys::all(), origins: BTreeMap::new() };
    let from_environment = variables.get(FILE_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    if let Some(path) = flags.config.clone().or(from_environment) {
        layers.lay_file(&path)?;
    }
    layers.lay_environment(&variables)?;
    for (flag, key, value) in flags.settings() {
        layers.lay(key, value, Origin::Flag(flag))?;
    }
    layers.finish()
}

/// The path of the configuration file, like `--config`.
const FILE_VARIABLE: &str = "CAUSEWAY_CONFIG";

/// The environment variables with Causeway's prefix, by name, without those that Kubernetes sets in every container for
/// a service named "causeway"
/// (<https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables>).
fn causeway_variables(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<BTreeMap<String, String>, ConfigError> {
    let mut variables = BTreeMap::new();
    for (name, value) in environment {
        let Some(name) = name.to_str().filter(|name| name.starts_with(keys::PREFIX)) else { continue };
        let rest = &name[keys::PREFIX.len()..];
        if rest == "PORT" || rest.starts_with("PORT_") || rest.starts_with("SERVICE_") {
            continue;
        }
        let value = value.into_string().map_err(|_| ConfigError::Value {
            key: name.to_owned(),
            reason: "the value is not UTF-8 text".to_owned(),
            origin: Origin::Variable(name.to_owned()),
        })?;
        variables.insert(name.to_owned(), value);
    }
    Ok(variables)
}

struct Layers {
    tree: Table,
    known: Vec<(String, Value)>,
    origins: BTreeMap<String, Origin>,
}

impl Layers {
    /// Sets one key, after trying the value alone on the defaults.
    fn lay(&mut self, key: &str, value: Value, origin: Origin) -> Result<(), ConfigError> {
        let wrong = |reason| ConfigError::Value { key: key.to_owned(), reason, origin: origin.clone() };
        let value = sized(key, value).map_err(wrong)?;
        if let Some((_, default)) = self.known.iter().find(|(known, _)| known == key) {
            shape::check(key, &value, default).map_err(wrong)?;
        }
        let mut trial = keys::default_tree();
        keys::set(&mut trial, key, value.clone());
        trial.try_into::<Config>().map_err(|error| wrong(shape::message_for_operator(error.message())))?;
        keys::set(&mut self.tree, key, value);
        self.origins.insert(key.to_owned(), origin);
        Ok(())
    }

    fn lay_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let unreadable =
            |error: std::io::Error| ConfigError::Unreadable { path: path.into(), reason: error.to_string() };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let at = |offset: usize| {
            let before = text.as_bytes().iter().take(offset);
            Origin::File(path.into(), 1 + before.filter(|byte| **byte == b'\n').count())
        };
        let syntax = |error: toml::de::Error| ConfigError::Syntax {
            origin: at(error.span().map_or(0, |span| span.start)),
            reason: shape::one_line(error.message()),
        };
        let values: Table = text.parse().map_err(syntax)?;
        let spans = DeTable::parse(&text).map_err(syntax)?;
        let mut offsets = BTreeMap::new();
        collect_offsets("", spans.get_ref(), &mut offsets);
        self.lay_table("", &values, &|key| at(offsets.get(key).copied().unwrap_or_default()))
    }

    fn lay_table(&mut self, prefix: &str, table: &Table, at: &dyn Fn(&str) -> Origin) -> Result<(), ConfigError> {
        for (name, value) in table {
            let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            let section = format!("{key}.");
            let is_section = self.known.iter().any(|(known, _)| known.starts_with(&section));
            match value {
                _ if self.known.iter().any(|(known, _)| *known == key) => self.lay(&key, value.clone(), at(&key))?,
                Value::Table(inner) if is_section => self.lay_table(&key, inner, at)?,
                _ if is_section => {
                    let reason = format!("is a section: write [{key}] and its settings below");
                    return Err(ConfigError::Value { reason, origin: at(&key), key });
                }
                _ => return Err(self.unknown_key(key.clone(), at(&key))),
            }
        }
        Ok(())
    }

    fn unknown_key(&self, key: String, origin: Origin) -> ConfigError {
        let nearest = keys::nearest(&key, self.known.iter().map(|(known, _)| known.as_str()));
        ConfigError::UnknownKey { nearest: nearest.unwrap_or_default().to_owned(), key, origin }
    }

    fn lay_environment(&mut self, variables: &BTreeMap<String, String>) -> Result<(), ConfigError> {
        let by_variable: BTreeMap<String, (String, Value)> =
            self.known.iter().map(|known| (keys::variable(&known.0), known.clone())).collect();
        for (name, text) in variables.iter().filter(|(name, _)| *name != FILE_VARIABLE) {
            let Some((key, default)) = by_variable.get(name) else {
                let nearest = keys::nearest(name, by_variable.keys().map(String::as_str)).unwrap_or_default();
                let key = by_variable.get(nearest).map(|(key, _)| key.clone()).unwrap_or_default();
                return Err(ConfigError::UnknownVariable { name: name.clone(), nearest: nearest.to_owned(), key });
            };
            let origin = Origin::Variable(name.clone());
            match typed(key, text, default) {
                Ok(value) => self.lay(key, value, origin)?,
                Err(reason) => return Err(ConfigError::Value { key: key.clone(), reason, origin }),
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<Loaded, ConfigError> {
        let config = self.tree.try_into::<Config>().map_err(|error| ConfigError::Value {
            key: "configuration".to_owned(),
            reason: shape::message_for_operator(error.message()),
            origin: Origin::Default,
        })?;
        let loaded = Loaded { config, origins: self.origins };
        check(&loaded)?;
        Ok(loaded)
    }
}

/// The offset of each key in the file, in bytes.
fn collect_offsets(prefix: &str, table: &DeTable<'_>, offsets: &mut BTreeMap<String, usize>) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.get_ref().to_string() } else { format!("{prefix}.{}", name.get_ref()) };
        if let Some(inner) = value.get_ref().as_table() {
            collect_offsets(&key, inner, offsets);
        }
        offsets.insert(key, name.span().start);
    }
}

/// Converts the text of a size, such as "1GiB", to a number of bytes. Any other value is returned unchanged.
fn sized(key: &str, value: Value) -> Result<Value, String> {
    match value {
        Value::String(text) if shape::is_size(key) => crate::size::toml_value(text.trim()),
        value => Ok(value),
    }
}

/// Parses the text of an environment variable as the type of the key's default.
fn typed(key: &str, text: &str, default: &Value) -> Result<Value, String> {
    let text = text.trim();
    match default {
        Value::Integer(_) if shape::is_size(key) => Ok(Value::String(text.to_owned())),
        Value::Integer(_) => text.parse().map(Value::Integer).map_err(|_| format!("\"{text}\" is not a whole number")),
        Value::Float(_) => text.parse().map(Value::Float).map_err(|_| format!("\"{text}\" is not a number")),
        Value::Boolean(_) => text.parse().map(Value::Boolean).map_err(|_| format!("\"{text}\" is not true or false")),
        Value::Array(_) => Ok(list(text.split(','))),
        _ => Ok(Value::String(text.to_owned())),
    }
}
