//! What a request to the admin API says: its query ([`Parameters`]), and a body of JSON ([`read_body`]).

use crate::http::answer::Refusal;
use axum::http::{StatusCode, Uri};
use serde::de::DeserializeOwned;
use services::url::parameter;
use std::borrow::Cow;
use std::ops::RangeInclusive;

/// Says what is wrong with a request.
pub fn wrong(words: impl ToString) -> Refusal {
    Refusal(StatusCode::BAD_REQUEST, words.to_string())
}

/// A request's body; none at all is an empty object.
///
/// # Errors
/// 400 with what is wrong.
pub fn read_body<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body)
        .map_err(|error| wrong(format!("the request's body is not the JSON that is asked for: {error}")))
}

/// A request's parameters. One that is misspelt would have no effect and nobody would notice, so it is refused.
#[derive(Debug, Clone, Copy)]
pub struct Parameters<'a>(&'a str);

impl<'a> Parameters<'a> {
    /// Reads the query of `uri`, which may have the parameters `known`.
    ///
    /// # Errors
    /// 400 about the first that is not known.
    pub fn of(uri: &'a Uri, known: &[&str]) -> Result<Self, Refusal> {
        let query = uri.query().unwrap_or_default();
        let names = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split('=').next().unwrap_or(pair));
        match names.into_iter().find(|name| !known.contains(name)) {
            Some(name) if known.is_empty() => Err(wrong(format!("there is no parameter \"{name}\" here"))),
            Some(name) => Err(wrong(format!("there is no parameter \"{name}\" here, but {}", known.join(" and ")))),
            None => Ok(Self(query)),
        }
    }

    /// The first value of a parameter, decoded.
    pub fn get(&self, name: &str) -> Option<Cow<'a, str>> {
        parameter(self.0, name)
    }

    /// A whole number within bounds.
    ///
    /// # Errors
    /// 400 if it is none.
    pub fn number(&self, name: &str, within: RangeInclusive<usize>) -> Result<Option<usize>, Refusal> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let number = text.parse().ok().filter(|number| within.contains(number));
        let words = || wrong(format!("{name} is a whole number from {} to {}", within.start(), within.end()));
        number.map(Some).ok_or_else(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_refused() {
        // The query, the parameters there are, and what "limit" is, or a word of the complaint.
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
                (Err(refusal), Err(words)) => assert!(refusal.1.contains(words), "{uri}: {}", refusal.1),
                (read, _) => panic!("{uri}: {read:?}"),
            }
        }
    }
}
