//! What all pages that this gateway writes have in common: they ask for nothing else, and fit a phone.

use maud::{Markup, PreEscaped, html};
use std::borrow::Cow;

/// Text that anybody may have written, for a place where it stands beside our own words: characters that control the direction
/// of text (Unicode Standard Annex 9, section 2) or nothing that is shown are replaced, because they would reorder what follows.
pub fn plain(text: &str) -> Cow<'_, str> {
    let is_control = |character: char| {
        character.is_control()
            || matches!(character, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace(is_control, "\u{fffd}"))
}

/// The head of a page. `style` is our own: it is not escaped.
pub fn head(title: &str, style: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            title { (plain(title)) }
            // Without one, browsers would ask for /favicon.ico.
            link rel="icon" href="data:,";
            style { (PreEscaped(style)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_elsewhere_reorders_nothing() {
        let table = [
            ("photo\u{202e}gnp.exe", "photo\u{fffd}gnp.exe"),
            ("a\u{2067}b\u{2069}c\u{200f}", "a\u{fffd}b\u{fffd}c\u{fffd}"),
            ("tab\tand\nline", "tab\u{fffd}and\u{fffd}line"),
            ("שלום, żółw and 日本", "שלום, żółw and 日本"),
        ];
        for (text, expected) in table {
            assert_eq!(plain(text), expected);
        }
        assert!(head("a\u{202e}b", "").into_string().contains("<title>a\u{fffd}b</title>"));
    }
}
