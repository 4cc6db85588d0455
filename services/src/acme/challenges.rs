//! [`Challenges`]: the answers to challenges of an authority that are pending, and which challenge is chosen.

use config::AcmeChallenge;
use instant_acme::ChallengeType;
use rustls::sign::CertifiedKey;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The path of http-01, before the token (RFC 8555, section 8.3).
const WELL_KNOWN: &str = "/.well-known/acme-challenge/";

/// The pending challenges over HTTP and TLS. It is empty unless orders are running, of which there are only a few.
#[derive(Debug, Default)]
pub struct Challenges {
    pending: Mutex<Pending>,
}

#[derive(Debug, Default)]
struct Pending {
    /// Key authorizations of http-01, by token.
    http: HashMap<String, String>,
    /// Certificates of tls-alpn-01, by name.
    tls: HashMap<String, Arc<CertifiedKey>>,
}

/// A pending challenge. Dropping it removes the answer.
pub(super) struct PendingChallenge {
    challenges: Arc<Challenges>,
    kind: AcmeChallenge,
    key: String,
}

impl Challenges {
    /// The body of the response to a request for this path, if it is a pending http-01 challenge.
    pub fn key_authorization(&self, path: &str) -> Option<String> {
        let token = path.strip_prefix(WELL_KNOWN)?;
        self.pending().http.get(token).cloned()
    }

    /// The certificate for a tls-alpn-01 challenge of this name, if it is pending.
    pub fn certificate(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        self.pending().tls.get(name).cloned()
    }

    pub(super) fn answer_http(self: &Arc<Self>, token: &str, key_authorization: &str) -> PendingChallenge {
        self.pending().http.insert(token.to_owned(), key_authorization.to_owned());
        self.guard(AcmeChallenge::Http01, token)
    }

    pub(super) fn answer_tls(self: &Arc<Self>, name: &str, certificate: CertifiedKey) -> PendingChallenge {
        self.pending().tls.insert(name.to_owned(), Arc::new(certificate));
        self.guard(AcmeChallenge::TlsAlpn01, name)
    }

    fn guard(self: &Arc<Self>, kind: AcmeChallenge, key: &str) -> PendingChallenge {
        PendingChallenge { challenges: Arc::clone(self), kind, key: key.to_owned() }
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PendingChallenge {
    fn drop(&mut self) {
        let mut pending = self.challenges.pending();
        match self.kind {
            AcmeChallenge::Http01 => _ = pending.http.remove(&self.key),
            AcmeChallenge::TlsAlpn01 => _ = pending.tls.remove(&self.key),
            AcmeChallenge::Dns01 => {}
        }
    }
}

/// The challenge of the next order of a name: of those that are offered, the preferred one, and after each failure the
/// next one. Wildcards have dns-01 alone (RFC 8555, section 7.1.3).
pub(super) fn choose(
    preferred: &[AcmeChallenge],
    is_wildcard: bool,
    failures: u32,
    offered: &[ChallengeType],
) -> Option<AcmeChallenge> {
    let preferred = if is_wildcard { &[AcmeChallenge::Dns01] } else { preferred };
    let possible: Vec<_> = preferred.iter().filter(|kind| offered.contains(&challenge_type(**kind))).collect();
    let turn = usize::try_from(failures).unwrap_or_default().checked_rem(possible.len())?;
    possible.get(turn).map(|kind| **kind)
}

/// The type of a challenge on the wire.
pub(super) fn challenge_type(kind: AcmeChallenge) -> ChallengeType {
    match kind {
        AcmeChallenge::Http01 => ChallengeType::Http01,
        AcmeChallenge::TlsAlpn01 => ChallengeType::TlsAlpn01,
        AcmeChallenge::Dns01 => ChallengeType::Dns01,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AcmeChallenge::{Dns01, Http01, TlsAlpn01};

    #[test]
    fn only_pending_tokens_are_answered() {
        let challenges = Arc::new(Challenges::default());
        assert_eq!(challenges.key_authorization("/.well-known/acme-challenge/"), None);
        let pending = challenges.answer_http("token", "token.thumbprint");
        let table = [
            ("/.well-known/acme-challenge/token", Some("token.thumbprint")),
            ("/.well-known/acme-challenge/Token", None),
            ("/.well-known/acme-challenge/token/", None),
            ("/.well-known/acme-challenge/", None),
            ("/well-known/acme-challenge/token", None),
            ("token", None),
        ];
        for (path, expected) in table {
            assert_eq!(challenges.key_authorization(path).as_deref(), expected, "{path}");
        }
        drop(pending);
        assert_eq!(challenges.key_authorization("/.well-known/acme-challenge/token"), None);
    }

    #[test]
    fn challenges_take_turns_after_failures() {
        let all = [ChallengeType::Http01, ChallengeType::Dns01, ChallengeType::TlsAlpn01];
        let preferred = [TlsAlpn01, Http01];
        let table = [
            (&preferred[..], false, 0, &all[..], Some(TlsAlpn01)),
            (&preferred, false, 1, &all, Some(Http01)),
            (&preferred, false, 2, &all, Some(TlsAlpn01)),
            (&preferred, false, u32::MAX, &all, Some(Http01)),
            (&preferred, false, 0, &all[..2], Some(Http01)),
            (&preferred, false, 3, &all[..2], Some(Http01)),
            (&preferred, false, 0, &[], None),
            (&preferred, true, 0, &all, Some(Dns01)),
            (&preferred, true, 5, &all, Some(Dns01)),
            (&preferred, true, 0, &all[..1], None),
            (&[Dns01], false, 0, &all, Some(Dns01)),
        ];
        for (preferred, is_wildcard, failures, offered, expected) in table {
            let found = choose(preferred, is_wildcard, failures, offered);
            assert_eq!(found, expected, "{preferred:?} {is_wildcard} {failures} {offered:?}");
        }
    }
}
