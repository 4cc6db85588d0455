//! Families of user agents: the name of the program, without what tells one client from another.

/// Parts of user agents in lower case, and the family of those that have them. The first match counts: crawlers name
/// browsers, and most browsers name others.
const FAMILIES: [(&str, &str); 44] = [
    ("googlebot", "Googlebot"),
    ("bingbot", "bingbot"),
    ("yandexbot", "YandexBot"),
    ("gptbot", "GPTBot"),
    ("claudebot", "ClaudeBot"),
    ("amazonbot", "Amazonbot"),
    ("facebookexternalhit", "facebookexternalhit"),
    ("twitterbot", "Twitterbot"),
    ("discordbot", "Discordbot"),
    ("telegrambot", "TelegramBot"),
    ("slackbot", "Slackbot"),
    ("bot", "other crawlers"),
    ("crawler", "other crawlers"),
    ("spider", "other crawlers"),
    ("headlesschrome", "headless Chrome"),
    ("edg/", "Edge"),
    ("edga/", "Edge"),
    ("opr/", "Opera"),
    ("samsungbrowser", "Samsung Internet"),
    ("brave", "Brave"),
    ("electron", "Electron"),
    ("firefox", "Firefox"),
    ("fxios", "Firefox"),
    ("crios", "Chrome"),
    ("chromium", "Chrome"),
    ("chrome", "Chrome"),
    ("safari", "Safari"),
    ("kubo", "Kubo"),
    ("go-ipfs", "Kubo"),
    ("helia", "Helia"),
    ("causeway", "Causeway"),
    ("curl", "curl"),
    ("wget", "Wget"),
    ("go-http-client", "Go-http-client"),
    ("python-requests", "python-requests"),
    ("aiohttp", "aiohttp"),
    ("python", "other Python"),
    ("okhttp", "OkHttp"),
    ("axios", "axios"),
    ("node", "Node.js"),
    ("undici", "Node.js"),
    ("java", "Java"),
    ("goaccess", "GoAccess"),
    ("mozilla", "other browsers"),
];
/// The families of the other user agents.
pub(super) const OTHER: &str = "other";
pub(super) const NONE: &str = "none";

/// The family of a user agent.
pub(super) fn family(agent: &str) -> &'static str {
    if agent.is_empty() {
        return NONE;
    }
    // An anonymised log has the families.
    let names = FAMILIES.iter().map(|(_, name)| *name).chain([OTHER, NONE]);
    if let Some(name) = names.into_iter().find(|name| *name == agent) {
        return name;
    }
    let agent = agent.to_ascii_lowercase();
    FAMILIES.iter().find(|(part, _)| agent.contains(part)).map_or(OTHER, |(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_agent_has_a_family() {
        let table = [
            ("Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0", "Firefox"),
            (
                "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 \
                 Safari/537.36",
                "Chrome",
            ),
            ("Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/142.0.0.0 Safari/537.36 Edg/142.0.0.0", "Edge"),
            ("Mozilla/5.0 (Macintosh) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.0 Safari/605.1.15", "Safari"),
            ("Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)", "Googlebot"),
            ("Mozilla/5.0 AppleWebKit/537.36 (compatible; SomeBot/1.0)", "other crawlers"),
            ("curl/8.5.0", "curl"),
            ("my-program/1.0 (token 12345)", "other"),
            ("", "none"),
        ];
        for (agent, expected) in table {
            assert_eq!(family(agent), expected, "{agent}");
        }
        for (_, name) in FAMILIES {
            assert_eq!(family(name), name, "the family of a family is itself");
        }
    }
}
