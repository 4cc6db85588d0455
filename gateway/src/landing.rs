//! The page at `/`: a field for a CID or a name, and a link to the welcome site.

use crate::html;
use content::Cid;
use http::Response;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use maud::{DOCTYPE, html};

/// The page; `welcome` is the root of the site that it links to.
pub fn page(welcome: Option<&Cid>) -> Response<String> {
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            (html::head("Causeway", STYLE))
            body {
                h1 { "Causeway" }
                p { "An IPFS gateway. All content is verified against its CID." }
                form action="/ipfs/" {
                    label for="uri" { "CID, ipfs:// address or name" }
                    div {
                        input id="uri" name="uri" required autofocus autocapitalize="off" spellcheck="false"
                            placeholder="bafy… or example.org";
                        button { "Open" }
                    }
                }
                @if let Some(root) = welcome { p { a href={ "/ipfs/" (root) "/" } { "What is this?" } } }
            }
        }
    };
    let mut response = Response::new(markup.into_string());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

const STYLE: &str = ":root{color-scheme:light dark;--line:#0003;--accent:#0b7c84}\
    @media(prefers-color-scheme:dark){:root{--line:#fff4;--accent:#5cc6c4}}\
    body{max-width:38rem;margin:14vh auto 0;padding:0 1.25rem;font:1.0625rem/1.6 system-ui,sans-serif}\
    h1{margin:0;color:var(--accent)}a{color:var(--accent)}form{margin:2rem 0}label{display:block;font-size:.9rem}\
    form div{display:flex;flex-wrap:wrap;gap:.5rem}input{flex:1 1 14rem;min-width:0;padding:.6rem .7rem;font:inherit;\
    border:1px solid var(--line);border-radius:.4rem;background:none;color:inherit}\
    button{padding:.6rem 1.2rem;font:inherit;border:0;border-radius:.4rem;background:var(--accent);color:Canvas}";
