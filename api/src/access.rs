//! Scopes and quotas of tokens.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use utoipa::ToSchema;

/// The storage quota of a token's owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// The maximum number of pins, in any state. `null`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pins_max: Option<u64>,
    /// The maximum size of the pinned DAGs in bytes, each counted in full. `null`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_max: Option<u64>,
}

/// The name under which the operator owns pins.
pub const OPERATOR: &str = "operator";

/// A permission of a token. No scope includes another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Read access: metrics, statistics, peers, requests, settings, content.
    Read,
    /// Pin and upload; list and remove the token's own pins.
    Pin,
    /// Change the running gateway: the store, caches, peers, names and their keys, draining, the pins of all owners.
    Operate,
    /// Change what is withheld.
    Takedown,
}

impl Scope {
    /// All scopes.
    pub const ALL: [Self; 4] = [Self::Read, Self::Pin, Self::Operate, Self::Takedown];

    /// The name of the scope.
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

/// The text is not a scope.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is not a scope: it must be read, pin, operate or takedown")]
pub struct UnknownScope(String);

impl FromStr for Scope {
    type Err = UnknownScope;

    fn from_str(text: &str) -> Result<Self, UnknownScope> {
        Self::ALL.into_iter().find(|scope| scope.as_str() == text).ok_or_else(|| UnknownScope(text.to_owned()))
    }
}

/// A set of scopes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Scope>", into = "Vec<Scope>")]
pub struct Scopes(u8);

impl Scopes {
    /// Every scope.
    pub fn all() -> Self {
        Scope::ALL.into_iter().collect()
    }

    /// Whether the set has the scope.
    pub fn contains(self, scope: Scope) -> bool {
        self.0 & bit(scope) != 0
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The scopes, in the order of [`Scope::ALL`].
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
    fn each_scope_is_distinct() {
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
