//! Parts that all generated pages share. The pages load no other resources and fit small screens.

use maud::{Markup, PreEscaped, html};
use std::borrow::Cow;

/// Escapes untrusted text for display beside trusted text: replaces control characters, and characters that control the
/// direction of text (Unicode Standard Annex 9, section 2), because they could reorder what follows.
pub fn plain(text: &str) -> Cow<'_, str> {
    let is_control = |character: char| {
        character.is_control()
            || matches!(character, '\u{061c}' | '\u{200e}' | '\u{200f}')
            || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace(is_control, "\u{fffd}"))
}

/// The head of a page. `style` is trusted and not escaped.
pub fn head(title: &str, style: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            title { (plain(title)) }
            // Prevents requests for /favicon.ico.
            link rel="icon" href="data:,";
            style { (PreEscaped(style)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn untrusted_text_cannot_reorder_what_follows() {
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
