//! [`Admission`]: for which names certificates are obtained on demand, and how many, without I/O.
//!
//! Any client can name any domain in a TLS handshake, so each order needs a permit of three rates: all together, the
//! registered domain of the name, and the client. Names that were refused or failed are cached for a time.
//!
//! Non-goals: whether a domain has a DNSLink, which the caller looks up.

use crate::limiter::ClientKey;
use crate::rate_limiter::RateLimiter;
use config::acme::{certificate_name, is_local};
use hashlink::LruCache;
use std::hash::RandomState;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The time of a rate.
const HOUR: Duration = Duration::from_secs(3600);
/// How many refused names are cached.
const REFUSED_MAX: usize = 10_000;
/// The part of the hourly orders that one domain or client may use, and at least this number.
const SHARE: u64 = 10;
const SHARE_MIN: u64 = 3;

p2p_bridge::label_values! {
    /// What became of a name that a client asked for.
    pub enum Demand {
        /// A certificate is ordered.
        Ordered = "ordered",
        /// It is no name of a public domain, or belongs to the gateway itself.
        InvalidName = "invalid_name",
        /// It has no DNSLink that resolves.
        NoDnsLink = "no_dnslink",
        /// A rate limit is reached.
        RateLimited = "rate_limited",
        /// The limit of stored certificates is reached.
        Full = "full",
        /// It was refused, or its order failed, a short time ago.
        Cached = "cached",
    }
}

/// The name of a TLS handshake as the name of a certificate on demand: a domain in lower case that is neither local nor
/// one of the gateway's own hosts, nor below one.
pub fn name_on_demand(text: &str, hosts: &[String]) -> Option<String> {
    let name = certificate_name(text).filter(|name| !name.starts_with('*') && !is_local(name))?;
    let is_own =
        |host: &String| name.strip_suffix(host.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    (!hosts.iter().any(is_own)).then_some(name)
}

/// The part of a name that was probably registered: two labels, or three below second-level domains such as `co.uk`.
/// Without a list of public suffixes, which would have to be kept up to date, some domains share a rate.
pub fn registered_domain(name: &str) -> &str {
    let labels: Vec<&str> = name.rsplit('.').take(3).collect();
    let count = match labels[..] {
        [top, second, _] if top.len() == 2 && second.len() <= 3 => 3,
        _ => labels.len().min(2),
    };
    let bytes = labels[..count].iter().map(|label| label.len() + 1).sum::<usize>() - 1;
    &name[name.len() - bytes..]
}

/// The rates of orders on demand, and the refused names.
#[derive(Debug)]
pub struct Admission {
    /// That of all orders, which has one bucket.
    all: RateLimiter,
    /// Those of registered domains and of clients.
    shares: RateLimiter,
    /// Until when a name is refused. Clients choose the names, so the hashes are keyed.
    refused: LruCache<String, i64, RandomState>,
}

impl Admission {
    /// An admission of `hourly` orders in an hour.
    pub fn new(hourly: u64) -> Self {
        let share = (hourly / SHARE).max(SHARE_MIN).min(hourly);
        let [all, shares] = [hourly, share].map(|tokens| RateLimiter::filled_in(HOUR, tokens));
        Self { all, shares, refused: LruCache::with_hasher(REFUSED_MAX, RandomState::new()) }
    }

    /// Whether a name was refused a short time ago.
    pub fn is_refused(&mut self, name: &str, now: i64) -> bool {
        match self.refused.get(name) {
            Some(until) if now < *until => true,
            Some(_) => {
                self.refused.remove(name);
                false
            }
            None => false,
        }
    }

    /// Refuses a name for a time.
    pub fn refuse(&mut self, name: &str, seconds: i64, now: i64) {
        self.refused.insert(name.to_owned(), now.saturating_add(seconds));
    }

    /// Takes a permit for an order, if all rates have one.
    pub fn permit(&mut self, name: &str, client: IpAddr, now: Instant) -> bool {
        let all = ClientKey::Token("all".into());
        let shares = [ClientKey::Token(registered_domain(name).into()), client.into()];
        let has_permit = self.all.has_token(&all, now) && shares.iter().all(|key| self.shares.has_token(key, now));
        if has_permit {
            self.all.take(all, now);
            shares.into_iter().for_each(|key| self.shares.take(key, now));
        }
        has_permit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn client(number: u8) -> IpAddr {
        [198, 51, 100, number].into()
    }

    #[test]
    fn names_on_demand_are_public_domains_of_others() {
        let hosts = ["gateway.example", "localhost"].map(str::to_owned);
        let table = [
            ("En.Wikipedia.example", Some("en.wikipedia.example")),
            ("mygateway.example", Some("mygateway.example")),
            ("gateway.example", None),
            ("bafy.ipfs.gateway.example", None),
            ("*.example.org", None),
            ("site.localhost", None),
            ("printer.local", None),
            ("intranet", None),
            ("127.0.0.1", None),
            ("_dnslink.example.org", None),
            ("../../etc/passwd", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(name_on_demand(text, &hosts).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn domains_are_grouped_by_their_registration() {
        let table = [
            ("example.org", "example.org"),
            ("a.b.example.org", "example.org"),
            ("a.example.co.uk", "example.co.uk"),
            ("example.com.au", "example.com.au"),
            ("co.uk", "co.uk"),
            ("a.ipfs.io", "ipfs.io"),
            ("a.dev.io", "a.dev.io"),
        ];
        for (name, expected) in table {
            assert_eq!(registered_domain(name), expected, "{name}");
        }
    }

    #[test]
    fn orders_are_limited_in_total_and_for_domains_and_clients() {
        let (mut admission, start) = (Admission::new(60), Instant::now());
        let mut taken = |name: &str, client, after, attempts: u32| {
            let now = start + Duration::from_secs(after);
            (0..attempts).filter(|_| admission.permit(name, client, now)).count()
        };
        // A tenth for one domain, whoever asks, and for one client, whatever it asks for.
        assert_eq!(taken("a.example.org", CLIENT, 0, 100), 6);
        assert_eq!(taken("b.example.org", client(1), 0, 100), 0);
        assert_eq!(taken("example.net", CLIENT, 0, 100), 0);
        // The rest for the others: a refused order costs nothing.
        let others: usize =
            (0..30).map(|number| taken(&format!("site-{number}.example"), client(number), 0, 100)).sum();
        assert_eq!(others, 60 - 6);
        // They are refilled with time, and never beyond the hour's.
        assert_eq!(taken("late.example", client(100), 59, 1), 0);
        assert_eq!(taken("late.example", client(100), 60, 9), 1);
        assert_eq!(taken("a.example.org", CLIENT, 1_000_000, 100), 6);
    }

    #[test]
    fn small_rates_can_be_used_up_by_one_client() {
        for (hourly, share) in [(1, 1), (2, 2), (3, 3), (20, 3), (100, 10)] {
            let (mut admission, now) = (Admission::new(hourly), Instant::now());
            let taken = (0..200).filter(|_| admission.permit("example.org", CLIENT, now)).count();
            assert_eq!(taken, share, "{hourly}");
        }
    }

    #[test]
    fn refused_names_are_cached_for_a_time_within_a_bound() {
        let mut admission = Admission::new(60);
        admission.refuse("example.org", 300, 0);
        assert!(admission.is_refused("example.org", 299) && !admission.is_refused("example.net", 299));
        assert!(!admission.is_refused("example.org", 300));
        for number in 0..2 * REFUSED_MAX {
            admission.refuse(&number.to_string(), 300, 0);
        }
        assert_eq!(admission.refused.len(), REFUSED_MAX);
    }
}
