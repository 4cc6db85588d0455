//! [`Selection`]: the filter and the order of a listing, from the query of the request.
//!
//! | parameter | meaning |
//! |---|---|
//! | `search=TEXT` | entries whose name contains the text, ignoring case; reads the directory as far as needed |
//! | `sort=name`, `sort=size` | by name, or the largest first; stored order by default |
//!
//! Only directories that fit on one page are sorted: sorting a longer one would need all of its entries in memory. It
//! is listed in stored order, and the page says so. A search counts against the request's processor budget
//! ([`content::work`]), which also lets other requests run in between.

use crate::errors::Problem;
use crate::request::Ask;
use content::unixfs::dir::{DirEntry, DirError};
use content::work::Work;
use futures::future::ready;
use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// The maximum size of names that are sorted, in bytes. Real directories of one page have much less.
const SORTED_BYTES_MAX: usize = 1024 * 1024;

/// The entries of a directory, as they are read.
pub type Entries = BoxStream<'static, Result<DirEntry, DirError>>;

/// An order other than the stored one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sort {
    /// By name, byte by byte.
    Name,
    /// The largest first; entries of equal size by name.
    Size,
}

impl Sort {
    /// All orders.
    pub const ALL: [Self; 2] = [Self::Name, Self::Size];

    /// Its name in the query and on the page.
    pub fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Size => "size",
        }
    }
}

/// The filter and the order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Selection {
    /// The text that names contain.
    pub search: Option<String>,
    /// The order; `None` for stored order.
    pub sort: Option<Sort>,
}

/// The selected entries.
pub struct Selected {
    /// In order.
    pub entries: Entries,
    /// Whether sorting was requested, but there are too many entries.
    pub too_long_to_sort: bool,
}

impl Selection {
    /// Reads the query of a request. An unknown order is ignored.
    pub fn of(ask: &Ask<'_>) -> Self {
        let search = ask.parameter("search").map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        let sort = ask.parameter("sort");
        let sort = Sort::ALL.into_iter().find(|order| Some(order.name()) == sort.as_deref());
        Self { search, sort }
    }

    /// The query parameters of the selection: empty, or with a trailing `&`.
    pub fn query(&self) -> String {
        let search = self.search.iter().map(|text| format!("search={}&", utf8_percent_encode(text, NON_ALPHANUMERIC)));
        let sort = self.sort.iter().map(|order| format!("sort={}&", order.name()));
        search.chain(sort).collect()
    }

    /// Filters and sorts entries for a page of `entries_max`. `work` is the processor budget of the request.
    ///
    /// # Errors
    /// [`Problem`] when entries that must be sorted cannot be read.
    pub async fn apply(&self, entries: Entries, entries_max: usize, work: &Work) -> Result<Selected, Problem> {
        let entries = match &self.search {
            Some(text) => containing(entries, text, work.clone()),
            None => entries,
        };
        match self.sort {
            Some(order) => sorted(entries, order, entries_max).await,
            None => Ok(Selected { entries, too_long_to_sort: false }),
        }
    }

    /// The size of the search text, in bytes.
    pub fn bytes(&self) -> usize {
        self.search.as_ref().map_or(0, String::len)
    }
}

fn containing(entries: Entries, text: &str, work: Work) -> Entries {
    let text = text.to_lowercase();
    let looked_at = entries.and_then(move |entry| {
        let work = work.clone();
        async move {
            work.charge_text(entry.name.len());
            work.turn().await?;
            Ok(entry)
        }
    });
    looked_at.try_filter(move |entry| ready(entry.name.to_lowercase().contains(&text))).boxed()
}

async fn sorted(mut entries: Entries, order: Sort, entries_max: usize) -> Result<Selected, Problem> {
    let (mut kept, mut bytes) = (Vec::new(), 0);
    let mut too_long_to_sort = false;
    while let Some(entry) = entries.next().await.transpose()? {
        bytes += entry.name.len();
        kept.push(entry);
        too_long_to_sort = kept.len() > entries_max || bytes > SORTED_BYTES_MAX;
        if too_long_to_sort {
            break;
        }
    }
    if too_long_to_sort {
        let entries = stream::iter(kept.into_iter().map(Ok)).chain(entries).boxed();
        return Ok(Selected { entries, too_long_to_sort });
    }
    match order {
        Sort::Name => kept.sort_by(|a, b| a.name_bytes().cmp(b.name_bytes())),
        Sort::Size => kept.sort_by(|a, b| b.tsize.cmp(&a.tsize).then_with(|| a.name_bytes().cmp(b.name_bytes()))),
    }
    Ok(Selected { entries: stream::iter(kept.into_iter().map(Ok)).boxed(), too_long_to_sort })
}

#[cfg(test)]
mod tests {
    use super::*;
    use content::work::STEPS_PER_YIELD;
    use futures::FutureExt as _;

    fn entry(name: &str, tsize: Option<u64>) -> DirEntry {
        let cid = content::cid::parse("bafkqac3imvwgy3zao5xxe3de").expect("a CID");
        DirEntry { name: name.to_owned(), not_text: None, cid, tsize }
    }

    fn select(selection: &Selection, names: &[(&str, u64)], entries_max: usize) -> (Vec<String>, bool) {
        let entries: Vec<_> = names.iter().map(|(name, size)| Ok(entry(name, Some(*size)))).collect();
        let work = Work::unlimited();
        let selected = selection.apply(stream::iter(entries).boxed(), entries_max, &work);
        let selected = selected.now_or_never().expect("nothing is waited for").expect("reads");
        let found = selected.entries.map(|entry| entry.expect("an entry").name).collect::<Vec<_>>();
        (found.now_or_never().expect("nothing is waited for"), selected.too_long_to_sort)
    }

    #[test]
    fn entries_are_searched_and_sorted() {
        let names = [("b.TXT", 1), ("a.txt", 3), ("Żółw.txt", 2), ("c.png", 3)];
        let search = |text: &str| Some(text.to_owned());
        type Row<'a> = (Option<String>, Option<Sort>, usize, &'a [&'a str], bool);
        let table: [Row<'_>; 7] = [
            (None, None, 2, &["b.TXT", "a.txt", "Żółw.txt", "c.png"], false),
            (search(".Txt"), None, 2, &["b.TXT", "a.txt", "Żółw.txt"], false),
            (search("żÓŁ"), None, 2, &["Żółw.txt"], false),
            (search("nothing"), Some(Sort::Name), 2, &[], false),
            (None, Some(Sort::Name), 4, &["a.txt", "b.TXT", "c.png", "Żółw.txt"], false),
            (None, Some(Sort::Size), 4, &["a.txt", "c.png", "Żółw.txt", "b.TXT"], false),
            (None, Some(Sort::Name), 3, &["b.TXT", "a.txt", "Żółw.txt", "c.png"], true),
        ];
        for (search, sort, entries_max, expected, too_long) in table {
            let selection = Selection { search, sort };
            let (found, too_long_to_sort) = select(&selection, &names, entries_max);
            assert_eq!(
                (found.as_slice(), too_long_to_sort),
                (&expected.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()[..], too_long),
                "{selection:?}"
            );
        }
    }

    #[test]
    fn directories_with_long_names_are_not_sorted() {
        let long = "n".repeat(SORTED_BYTES_MAX / 2);
        let names = [(long.as_str(), 1), (long.as_str(), 2), ("a", 3)];
        let (found, too_long) = select(&Selection { search: None, sort: Some(Sort::Name) }, &names, 10);
        assert!(too_long && found.len() == 3 && found[2] == "a");
    }

    #[test]
    fn a_long_search_yields() {
        let entries = stream::iter((0..STEPS_PER_YIELD).map(|number| Ok(entry(&number.to_string(), None))));
        let search = Selection { search: Some("none".to_owned()), sort: None };
        let selected = search
            .apply(entries.boxed(), 10, &Work::unlimited())
            .now_or_never()
            .expect("nothing is waited for")
            .expect("reads");
        assert!(selected.entries.collect::<Vec<_>>().now_or_never().is_none(), "it is pending once");
    }

    #[test]
    fn a_search_without_results_ends_with_the_work_limit() {
        let entries = stream::iter((0..100).map(|number| Ok(entry(&number.to_string(), None))));
        let search = Selection { search: Some("none".to_owned()), sort: None };
        let selected = search.apply(entries.boxed(), 10, &Work::new(50)).now_or_never().expect("nothing is waited for");
        let found = selected.expect("reads").entries.collect::<Vec<_>>();
        let found = futures::executor::block_on(found);
        assert!(found.iter().any(Result::is_err), "{found:?}");
    }

    #[test]
    fn a_selection_is_preserved_in_queries() {
        let request = |query: &str| {
            let uri = format!("/ipfs/x/?{query}");
            http::Request::builder().uri(uri).body(()).expect("a request").into_parts().0
        };
        let table = [
            ("search=+a%26b+&sort=size&after=x", "search=a%26b&sort=size&"),
            ("search=&sort=colour", ""),
            ("sort=name", "sort=name&"),
        ];
        for (query, expected) in table {
            let head = request(query);
            let selection = Selection::of(&Ask::read(&head).expect("reads"));
            assert_eq!(selection.query(), expected);
            let head = request(&selection.query());
            assert_eq!(Selection::of(&Ask::read(&head).expect("reads")), selection);
        }
    }
}
