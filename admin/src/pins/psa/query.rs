//! The filters of a list, parsed from the query.

use crate::pins::psa::failure::PsaFailure;
use cache::pins::NAME_CHARS_MAX;
use serde::{Deserialize, Serialize};
use services::pinning::{Filter, Meta, NameMatch, Status};
use services::url;
use std::collections::HashMap;
use std::time::SystemTime;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use utoipa::ToSchema;

/// The maximum number of CIDs in a filter.
const CIDS_MAX: usize = 10;
/// The default number of pins on a page.
const LIMIT: usize = 10;
/// The maximum number of pins on a page.
const LIMIT_MAX: usize = 1000;

/// How a name is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = TextMatchingStrategy)]
pub enum MatchView {
    /// The whole name, case-sensitive.
    Exact,
    /// The whole name, case-insensitive.
    Iexact,
    /// A part of the name, case-sensitive.
    Partial,
    /// A part of the name, case-insensitive.
    Ipartial,
}

/// Parses the filter of a query.
///
/// # Errors
/// 400 about the first invalid parameter.
pub fn filter(query: &str) -> Result<Filter, PsaFailure> {
    let given = QueryParameters::of(query)?;
    let name = given.one("name").map(name).transpose()?;
    let how = given.one("match").map(strategy).transpose()?.unwrap_or_default();
    // A search by name finds pins in every status, as the official compliance tool expects.
    let default_statuses = || if name.is_some() { Vec::new() } else { vec![Status::Pinned] };
    let statuses = given.list("status").map(statuses).transpose()?.unwrap_or_else(default_statuses);
    Ok(Filter {
        roots: given.list("cid").map(roots).transpose()?.unwrap_or_default(),
        name: name.map(|name| (name, how)),
        statuses,
        before: given.one("before").map(|text| time_of("before", text)).transpose()?,
        after: given.one("after").map(|text| time_of("after", text)).transpose()?,
        meta: given.one("meta").map(meta).transpose()?.unwrap_or_default(),
        limit: given.one("limit").map(limit).transpose()?.unwrap_or(LIMIT),
    })
}

/// All values of each parameter, form-decoded.
struct QueryParameters(HashMap<String, Vec<String>>);

impl QueryParameters {
    fn of(query: &str) -> Result<Self, PsaFailure> {
        let mut given: HashMap<String, Vec<String>> = HashMap::new();
        for (name, value) in url::pairs(query) {
            given.entry(decoded(name)?).or_default().push(decoded(value)?);
        }
        Ok(Self(given))
    }

    fn one(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(|values| values.first()).map(String::as_str)
    }

    /// A list, whose items may be separated by commas or given by repeating the parameter.
    fn list(&self, name: &str) -> Option<impl Iterator<Item = &str> + use<'_>> {
        Some(self.0.get(name)?.iter().flat_map(|value| value.split(',')))
    }
}

fn decoded(text: &str) -> Result<String, PsaFailure> {
    String::from_utf8(url::form_decoded(text.as_bytes())).map_err(|_| PsaFailure::bad_request("the query is not UTF-8"))
}

/// Parses the parameter `name`.
///
/// # Errors
/// 400 if it is too long.
pub fn name(text: &str) -> Result<String, PsaFailure> {
    match text.chars().count() {
        0..=NAME_CHARS_MAX => Ok(text.to_owned()),
        chars => {
            Err(PsaFailure::bad_request(format!("name must have at most {NAME_CHARS_MAX} characters, and has {chars}")))
        }
    }
}

/// Parses the parameter `match`.
///
/// # Errors
/// 400 if it is unknown.
pub fn strategy(text: &str) -> Result<NameMatch, PsaFailure> {
    Ok(match text {
        "exact" => NameMatch::Exact,
        "iexact" => NameMatch::IgnoringCase,
        "partial" => NameMatch::Partial,
        "ipartial" => NameMatch::PartialIgnoringCase,
        _ => return Err(PsaFailure::bad_request("match must be exact, iexact, partial or ipartial")),
    })
}

/// Parses the parameter `cid`.
///
/// # Errors
/// 400 if a CID is invalid or there are too many.
pub fn roots<'a>(items: impl Iterator<Item = &'a str>) -> Result<Vec<content::Cid>, PsaFailure> {
    let mut roots = Vec::new();
    for item in items {
        if roots.len() == CIDS_MAX {
            return Err(PsaFailure::bad_request(format!("cid must have at most {CIDS_MAX} CIDs")));
        }
        roots.push(content::cid::parse(item).map_err(PsaFailure::bad_request)?);
    }
    Ok(roots)
}

/// Parses the parameter `status`.
///
/// # Errors
/// 400 if a status is unknown.
pub fn statuses<'a>(items: impl Iterator<Item = &'a str>) -> Result<Vec<Status>, PsaFailure> {
    let mut statuses = Vec::new();
    for item in items {
        let status = match item {
            "queued" => Status::Queued,
            "pinning" => Status::Pinning,
            "pinned" => Status::Pinned,
            "failed" => Status::Failed,
            _ => {
                return Err(PsaFailure::bad_request(
                    "status must be any of queued, pinning, pinned and failed, separated by commas",
                ));
            }
        };
        if !statuses.contains(&status) {
            statuses.push(status);
        }
    }
    Ok(statuses)
}

fn time_of(parameter: &str, text: &str) -> Result<SystemTime, PsaFailure> {
    // Form decoding turns an unescaped "+" of the offset into a space.
    let parsed = OffsetDateTime::parse(&text.replace(' ', "+"), &Rfc3339);
    let message = || format!("{parameter} must be a time such as 2020-07-27T17:32:28.276Z");
    Ok(parsed.map_err(|_| PsaFailure::bad_request(message()))?.into())
}

fn meta(text: &str) -> Result<Meta, PsaFailure> {
    let message = |error| {
        PsaFailure::bad_request(format!("meta must be a JSON object of strings, such as {{\"app_id\":\"7\"}}: {error}"))
    };
    serde_json::from_str(text).map_err(message)
}

fn limit(text: &str) -> Result<usize, PsaFailure> {
    let limit = text.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
    limit.ok_or_else(|| PsaFailure::bad_request(format!("limit must be a whole number from 1 to {LIMIT_MAX}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use services::pinning::index::time;

    const V0: &str = "QmbWqxBEKC3P8tqsKc98xmWNzrzDtRLMiMPL8wBuTGsMnR";
    const V1: &str = "bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy";

    #[test]
    fn filters_are_read_as_clients_write_them() {
        let is = |query: &str, expected: Filter| {
            let filter = filter(query).expect("good parameters");
            assert_eq!(format!("{filter:?}"), format!("{expected:?}"), "{query}");
        };
        let default = || Filter { statuses: vec![Status::Pinned], limit: 10, ..Filter::default() };
        let cids = || vec![V0.parse().expect("a CID"), V1.parse().expect("a CID")];
        is("", default());
        is("unknown=1&x", default());
        is("limit=1000", Filter { limit: 1000, ..default() });
        is(&format!("cid={V0},{V1}"), Filter { roots: cids(), ..default() });
        is(&format!("cid={V0}%2C{V1}"), Filter { roots: cids(), ..default() });
        is(&format!("cid={V0}&cid={V1}"), Filter { roots: cids(), ..default() });
        let named = |how| Filter { name: Some(("a b+ü".to_owned(), how)), statuses: Vec::new(), ..default() };
        is("name=a+b%2B%C3%BC", named(NameMatch::Exact));
        is("name=a%20b%2B%C3%BC&match=exact", named(NameMatch::Exact));
        is("match=iexact&name=a%20b%2B%C3%BC", named(NameMatch::IgnoringCase));
        is("name=a%20b%2B%C3%BC&match=partial", named(NameMatch::Partial));
        is("name=a%20b%2B%C3%BC&match=ipartial", named(NameMatch::PartialIgnoringCase));
        is("match=partial", default());
        let statuses = vec![Status::Queued, Status::Failed];
        is("status=queued,failed", Filter { statuses: statuses.clone(), ..default() });
        is("status=queued%2Cfailed&status=queued", Filter { statuses, ..default() });
        let at = |ms| Some(time(ms));
        is("before=2020-07-27T17:32:28.276Z", Filter { before: at(1_595_871_148_276), ..default() });
        is("after=2020-07-27T17%3A32%3A28Z", Filter { after: at(1_595_871_148_000), ..default() });
        is("after=2020-07-27T19:32:28+02:00", Filter { after: at(1_595_871_148_000), ..default() });
        let meta = [("a b".to_owned(), "ü".to_owned()), ("n".to_owned(), "1".to_owned())].into();
        is("meta=%7B%22a%20b%22%3A%22%C3%BC%22%2C%22n%22%3A%221%22%7D", Filter { meta, ..default() });
    }

    #[test]
    fn invalid_filters_are_rejected_with_a_message() {
        let eleven = format!("cid={}", [V1; 11].join(","));
        let long = format!("name={}", "n".repeat(256));
        let table = [
            ("limit=0", "from 1 to 1000"),
            ("limit=1001", "from 1 to 1000"),
            ("limit=ten", "from 1 to 1000"),
            ("cid=", "not a CID"),
            ("cid=nothing", "not a CID"),
            (&eleven, "10 CIDs"),
            (&long, "255 characters"),
            ("name=x&match=fuzzy", "match must be exact"),
            ("status=", "status must be any of"),
            ("status=pinned,gone", "status must be any of"),
            ("before=yesterday", "before must be a time"),
            ("after=2020-07-27", "after must be a time"),
            ("meta=1", "JSON object"),
            ("meta={\"a\":1}", "JSON object"),
            ("meta=", "JSON object"),
            ("name=%FF", "not UTF-8"),
        ];
        for (query, message) in table {
            let failure = filter(query).expect_err(query);
            assert!(format!("{failure:?}").contains(message), "{query}: {failure:?}");
            assert!(format!("{failure:?}").contains("BAD_REQUEST"), "{query}: {failure:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_query_or_body_panics(query in "[a-z=&%,.:{}\"+0-9-]{0,60}", value in ".{0,40}", body: Vec<u8>) {
            let crossed = [format!("meta={value}&before={value}&cid={value}"), format!("name={value}&{query}")];
            for query in crossed.into_iter().chain([query]) {
                if let Ok(filter) = filter(&query) {
                    assert!(filter.roots.len() <= CIDS_MAX && (1..=LIMIT_MAX).contains(&filter.limit));
                }
            }
            _ = crate::pins::psa::views::wanted(&body);
            _ = crate::pins::psa::views::wanted(format!("{{\"cid\":\"{value}\",\"origins\":[\"{value}\"]}}").as_bytes());
        }
    }
}
