//! What a token authorises, and how much may be stored for it.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use utoipa::ToSchema;

/// How much the owner of a token may keep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Pins, in whatever state. `null`: as many as the gateway takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pins_max: Option<u64>,
    /// Bytes of the DAGs that are pinned, each counted in full. `null`: as many as the gateway takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_max: Option<u64>,
}

/// Under which name the operator owns pins.
pub const OPERATOR: &str = "operator";

/// One thing that a token may be good for. None includes another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Looking: metrics, figures, peers, requests, settings, content.
    Read,
    /// Pinning and uploading, and seeing and removing what this token has pinned.
    Pin,
    /// Changing how the gateway runs: its store, caches and peers, names and their keys, draining, everybody's pins.
    Operate,
    /// Deciding what is not served.
    Takedown,
}

impl Scope {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::Read, Self::Pin, Self::Operate, Self::Takedown];

    /// As it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Pin => "pin",
            Self::Operate => "operate",
            Self::Takedown => "takedown",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that is no scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no scope: there are read, pin, operate and takedown")]
pub struct UnknownScope(String);

impl FromStr for Scope {
    type Err = UnknownScope;

    fn from_str(text: &str) -> Result<Self, UnknownScope> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == text).ok_or_else(|| UnknownScope(text.to_owned()))
    }
}

/// Several scopes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Scope>", into = "Vec<Scope>")]
pub struct Scopes(u8);

impl Scopes {
    /// Every scope.
    pub fn all() -> Self {
        Scope::ALL.into_iter().collect()
    }

    /// Whether one is among them.
    pub fn contains(self, scope: Scope) -> bool {
        self.0 & bit(scope) != 0
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Each of them, in the order of [`Scope::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |scope| self.contains(*scope))
    }
}

fn bit(scope: Scope) -> u8 {
    1 << scope as u8
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<I: IntoIterator<Item = Scope>>(scopes: I) -> Self {
        Self(scopes.into_iter().fold(0, |bits, scope| bits | bit(scope)))
    }
}

impl From<Vec<Scope>> for Scopes {
    fn from(scopes: Vec<Scope>) -> Self {
        scopes.into_iter().collect()
    }
}

impl From<Scopes> for Vec<Scope> {
    fn from(scopes: Scopes) -> Self {
        scopes.iter().collect()
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.iter().map(Scope::as_str).collect();
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scope_is_one_of_its_own() {
        for scope in Scope::ALL {
            let alone: Scopes = [scope].into_iter().collect();
            for other in Scope::ALL {
                assert_eq!(alone.contains(other), other == scope, "{scope} {other}");
            }
            assert_eq!(scope.as_str().parse(), Ok(scope));
            assert_eq!(serde_json::to_value(alone).expect("writes"), serde_json::json!([scope.as_str()]));
        }
        assert!("Read".parse::<Scope>().is_err() && "".parse::<Scope>().is_err());
        assert!(Scopes::default().is_empty() && Scopes::default().iter().next().is_none());
        assert_eq!(Scopes::all().to_string(), "read,pin,operate,takedown");
        let read = serde_json::from_str::<Scopes>("[\"takedown\", \"read\", \"read\"]").expect("reads");
        assert_eq!(read.to_string(), "read,takedown");
    }
}
