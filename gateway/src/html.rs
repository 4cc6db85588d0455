//! What all pages that this gateway writes have in common: they ask for nothing else, and fit a phone.

use maud::{Markup, PreEscaped, html};

/// The head of a page. `style` is our own: it is not escaped.
pub fn head(title: &str, style: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            title { (title) }
            // Without one, browsers would ask for /favicon.ico.
            link rel="icon" href="data:,";
            style { (PreEscaped(style)) }
        }
    }
}
