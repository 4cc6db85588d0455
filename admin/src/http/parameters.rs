//! The input of a request to the admin API: its query ([`Parameters`]) and its JSON body ([`read_body`]).

use crate::http::answer::ApiError;
use axum::http::{StatusCode, Uri};
use serde::de::DeserializeOwned;
use services::url::{pairs, parameter};
use std::borrow::Cow;
use std::ops::RangeInclusive;

/// 400 with a message that says what is wrong with the request.
pub fn bad_request(message: impl ToString) -> ApiError {
    ApiError(StatusCode::BAD_REQUEST, message.to_string())
}

/// Parses a JSON body. An empty body counts as an empty object.
///
/// # Errors
/// 400 with what is wrong.
pub fn read_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body)
        .map_err(|error| bad_request(format!("the request's body is not the expected JSON: {error}")))
}

/// The query parameters of a request. Unknown parameters are rejected, since a misspelt one would silently have no
/// effect.
#[derive(Debug, Clone, Copy)]
pub struct Parameters<'a>(&'a str);

impl<'a> Parameters<'a> {
    /// Reads the query of `uri`, which may have the parameters `known`.
    ///
    /// # Errors
    /// 400 about the first unknown parameter.
    pub fn of(uri: &'a Uri, known: &[&str]) -> Result<Self, ApiError> {
        let query = uri.query().unwrap_or_default();
        match pairs(query).map(|(name, _)| name).find(|name| !known.contains(name)) {
            Some(name) if known.is_empty() => {
                Err(bad_request(format!("there is no parameter \"{name}\"; this path takes no parameters")))
            }
            Some(name) => {
                Err(bad_request(format!("there is no parameter \"{name}\"; the parameters are {}", known.join(", "))))
            }
            None => Ok(Self(query)),
        }
    }

    /// The first value of a parameter, decoded.
    pub fn get(&self, name: &str) -> Option<Cow<'a, str>> {
        parameter(self.0, name)
    }

    /// The value of a parameter that is a whole number within bounds.
    ///
    /// # Errors
    /// 400 if it is not.
    pub fn number(&self, name: &str, within: RangeInclusive<usize>) -> Result<Option<usize>, ApiError> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| within.contains(number));
        let message =
            || bad_request(format!("{name} must be a whole number from {} to {}", within.start(), within.end()));
        number.map(Some).ok_or_else(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_parameters_are_rejected() {
        // The query, the known parameters, and the value of "limit" or a part of the error.
        type Row<'a> = (&'a str, &'a [&'a str], Result<Option<usize>, &'a str>);
        let table: [Row<'_>; 9] = [
            ("/", &["limit"], Ok(None)),
            ("/?", &["limit"], Ok(None)),
            ("/?limit=3", &["limit"], Ok(Some(3))),
            ("/?name=a&limit=%33", &["limit", "name"], Ok(Some(3))),
            ("/?limit=", &["limit"], Err("from 1 to 9")),
            ("/?limit=0", &["limit"], Err("from 1 to 9")),
            ("/?limit=-1", &["limit"], Err("from 1 to 9")),
            ("/?limits=3", &["limit"], Err("no parameter \"limits\"")),
            ("/?limit=3", &[], Err("no parameter \"limit\"")),
        ];
        for (uri, known, expected) in table {
            let uri = uri.parse().expect("a path");
            let read = Parameters::of(&uri, known).and_then(|parameters| parameters.number("limit", 1..=9));
            match (read, expected) {
                (Ok(read), Ok(expected)) => assert_eq!(read, expected, "{uri}"),
                (Err(error), Err(message)) => assert!(error.1.contains(message), "{uri}: {}", error.1),
                (read, _) => panic!("{uri}: {read:?}"),
            }
        }
    }
}
