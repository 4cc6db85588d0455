//! One order: from the account to the certificate (RFC 8555, section 7.4).

use super::certificate::AcmeCertificate;
use super::challenges::{self, Challenges, PendingChallenge};
use super::client::{CaClient, Seen};
use super::hook::{DnsHook, HookAction};
use super::schedule::FailureKind;
use super::store::Store;
use config::AcmeChallenge;
use instant_acme::{
    Account, AccountCredentials, AuthorizationStatus, CertificateIdentifier, Error, Identifier, KeyAuthorization,
    NewAccount, NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use reqwest::Client;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;

/// How long the authority may take to validate a challenge, and to issue a certificate.
const POLLING: RetryPolicy = RetryPolicy::new().timeout(Duration::from_secs(120));
/// What a name is prefixed with in the TXT record of dns-01.
const RECORD: &str = "_acme-challenge.";

/// Why an order failed.
#[derive(Debug)]
pub(super) struct OrderFailure {
    pub kind: FailureKind,
    /// A sentence.
    pub reason: String,
    /// How long the authority asks to wait.
    pub retry_after: Option<Duration>,
}

impl OrderFailure {
    fn rejected(reason: impl Into<String>) -> Self {
        Self { kind: FailureKind::Rejected, reason: reason.into(), retry_after: None }
    }
}

impl From<Error> for OrderFailure {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Api(problem) => match problem.r#type.as_deref().and_then(|kind| kind.rsplit(':').next()) {
                Some("rateLimited") => FailureKind::RateLimited,
                // The library has sent the request again twice: the next order has other nonces (RFC 8555, section 6.5).
                Some("serverInternal" | "badNonce") => FailureKind::Unreachable,
                _ if problem.status.is_some_and(|status| status >= 500) => FailureKind::Unreachable,
                _ if problem.status == Some(429) => FailureKind::RateLimited,
                _ => FailureKind::Rejected,
            },
            Error::Timeout(_) | Error::Unsupported(_) => FailureKind::Rejected,
            // The request failed, or its response is not one of ACME.
            _ => FailureKind::Unreachable,
        };
        Self { kind, reason: error.to_string(), retry_after: None }
    }
}

/// Whether an error says that the authority does not know the account.
fn is_unknown_account(error: &Error) -> bool {
    let Error::Api(problem) = error else { return false };
    problem.r#type.as_deref().is_some_and(|kind| kind.ends_with(":accountDoesNotExist"))
}

/// What orders need.
pub(super) struct Orders {
    pub directory: String,
    pub contact: Vec<String>,
    pub preferred: Vec<AcmeChallenge>,
    pub client: Client,
    pub store: Store,
    pub challenges: Arc<Challenges>,
    pub hook: Option<DnsHook>,
    /// The account's credentials as JSON, once they were read or created. Locked while it is created, so that orders
    /// at the same time create one.
    pub account: Mutex<Option<String>>,
}

impl Orders {
    /// Orders a certificate for a name after this number of failures; returns its key and chain in PEM format.
    /// `replaced` is the certificate that it replaces, if the authority has suggested when to renew it.
    pub async fn order(
        &self,
        name: &str,
        failures: u32,
        replaced: Option<&AcmeCertificate>,
    ) -> Result<String, OrderFailure> {
        let seen = Seen::default();
        let ordered = self.attempt(name, failures, replaced, &seen).await;
        ordered.map_err(|failure| OrderFailure { retry_after: seen.retry_after(), ..failure })
    }

    async fn attempt(
        &self,
        name: &str,
        failures: u32,
        replaced: Option<&AcmeCertificate>,
        seen: &Seen,
    ) -> Result<String, OrderFailure> {
        let account = self.account(seen).await?;
        // An authority that has forgotten the replaced certificate rejects the order: it is not named again.
        let replaced = replaced.filter(|_| failures == 0).and_then(AcmeCertificate::leaf);
        let replaced = replaced.and_then(|leaf| CertificateIdentifier::try_from(leaf).ok());
        let identifiers = [Identifier::Dns(name.to_owned())];
        let new = NewOrder::new(&identifiers);
        let new = match replaced {
            Some(id) => new.replaces(id),
            None => new,
        };
        let mut order = match account.new_order(&new).await {
            Err(error) if is_unknown_account(&error) => {
                self.forget_account().await;
                return Err(OrderFailure::from(error));
            }
            order => order?,
        };
        self.authorize(&mut order, name, failures).await?;
        let key = KeyPair::generate().map_err(|error| OrderFailure::rejected(error.to_string()))?;
        let request = signing_request(name, &key).map_err(|error| OrderFailure::rejected(error.to_string()))?;
        order.finalize_csr(&request).await?;
        let chain = order.poll_certificate(&POLLING).await?;
        Ok(key.serialize_pem() + &chain)
    }

    /// Proves control over the name, unless the authority still has an earlier proof.
    async fn authorize(&self, order: &mut Order, name: &str, failures: u32) -> Result<(), OrderFailure> {
        if matches!(order.state().status, OrderStatus::Ready | OrderStatus::Valid) {
            return Ok(());
        }
        let mut presented = None;
        let set = {
            let mut authorizations = order.authorizations();
            let mut authorization = authorizations
                .next()
                .await
                .ok_or_else(|| OrderFailure::rejected("the order has no authorization"))??;
            match authorization.status {
                AuthorizationStatus::Pending => {
                    let offered: Vec<_> = authorization.challenges.iter().map(|offer| offer.r#type.clone()).collect();
                    let is_wildcard = name.starts_with("*.");
                    let chosen = challenges::choose(&self.preferred, is_wildcard, failures, &offered);
                    let challenge = chosen.and_then(|kind| {
                        let challenge = authorization.challenge(challenges::challenge_type(kind));
                        challenge.map(|challenge| (kind, challenge))
                    });
                    let (kind, mut challenge) = challenge.ok_or_else(|| {
                        OrderFailure::rejected(format!("the authority offers none of the challenges: {offered:?}"))
                    })?;
                    let key = challenge.key_authorization();
                    presented = Some(self.present(kind, name, &challenge.token, &key).await?);
                    challenge.set_ready().await
                }
                // It is proved, or the order's state has the cause.
                _ => Ok(()),
            }
        };
        let polled = match set {
            Ok(()) => order.poll_ready(&POLLING).await,
            Err(error) => Err(error),
        };
        if let Some(presented) = presented {
            self.clean_up(presented).await;
        }
        match polled? {
            OrderStatus::Invalid => Err(OrderFailure::rejected(cause_of_invalidity(order).await)),
            _ => Ok(()),
        }
    }

    /// Has the challenge answered.
    async fn present(
        &self,
        kind: AcmeChallenge,
        name: &str,
        token: &str,
        key: &KeyAuthorization,
    ) -> Result<Presented, OrderFailure> {
        match kind {
            AcmeChallenge::Http01 => {
                Ok(Presented::Pending { _guard: self.challenges.answer_http(token, key.as_str()) })
            }
            AcmeChallenge::TlsAlpn01 => {
                let certificate = challenge_certificate(name, key.digest().as_ref()).map_err(OrderFailure::rejected)?;
                Ok(Presented::Pending { _guard: self.challenges.answer_tls(name, certificate) })
            }
            AcmeChallenge::Dns01 => {
                let record = format!("{RECORD}{}", name.strip_prefix("*.").unwrap_or(name));
                let value = key.dns_value();
                let hook = self.hook.as_ref().ok_or_else(|| OrderFailure::rejected("http.acme_dns_hook is not set"))?;
                let set = hook.run(HookAction::Present, &record, &value).await;
                let presented = Presented::Record { record, value };
                if let Err(reason) = set {
                    // It may have set a part.
                    self.clean_up(presented).await;
                    return Err(OrderFailure::rejected(reason));
                }
                Ok(presented)
            }
        }
    }

    async fn clean_up(&self, presented: Presented) {
        if let (Presented::Record { record, value }, Some(hook)) = (presented, &self.hook)
            && let Err(error) = hook.run(HookAction::Cleanup, &record, &value).await
        {
            tracing::warn!(error, record, "the TXT record of a challenge could not be removed: remove it by hand");
        }
    }

    /// The account, which is created if there is none.
    async fn account(&self, seen: &Seen) -> Result<Account, OrderFailure> {
        let client = || Box::new(CaClient { client: self.client.clone(), seen: seen.clone() });
        let mut stored = self.account.lock().await;
        if stored.is_none() {
            let store = self.store.clone();
            let read = tokio::task::spawn_blocking(move || store.account()).await;
            *stored = read.map_err(|error| OrderFailure::rejected(error.to_string()))?.map_err(|error| {
                OrderFailure::rejected(format!("{} cannot be read: {error}", self.store.folder().display()))
            })?;
        }
        if let Some(credentials) =
            stored.as_deref().and_then(|json| serde_json::from_str::<AccountCredentials>(json).ok())
        {
            drop(stored);
            return Ok(Account::builder_with_http(client()).from_credentials(credentials).await?);
        }
        let contact: Vec<&str> = self.contact.iter().map(String::as_str).collect();
        let new = NewAccount { contact: &contact, terms_of_service_agreed: true, only_return_existing: false };
        let created = Account::builder_with_http(client()).create(&new, self.directory.clone(), None).await;
        let (account, credentials) = created?;
        let json = serde_json::to_string(&credentials).map_err(|error| OrderFailure::rejected(error.to_string()))?;
        let (store, text) = (self.store.clone(), json.clone());
        let saved = tokio::task::spawn_blocking(move || store.save_account(&text)).await;
        // It works without the file until a restart.
        if let Ok(Err(error)) = saved {
            tracing::error!(%error, folder = %self.store.folder().display(), "the ACME account cannot be stored");
        }
        tracing::info!(account = account.id(), directory = self.directory, "an ACME account was created");
        *stored = Some(json);
        Ok(account)
    }

    /// Removes the account, so that the next order creates one.
    async fn forget_account(&self) {
        tracing::warn!(
            directory = self.directory,
            "the authority does not know the ACME account: a new one is created"
        );
        let mut stored = self.account.lock().await;
        *stored = None;
        let store = self.store.clone();
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || store.remove_account()).await {
            tracing::error!(%error, "the ACME account cannot be removed");
        }
    }
}

/// The answer to a challenge.
enum Presented {
    /// Over HTTP or TLS, until this is dropped.
    Pending { _guard: PendingChallenge },
    /// In a TXT record.
    Record { record: String, value: String },
}

/// Why an order is invalid: the error of its challenge.
async fn cause_of_invalidity(order: &mut Order) -> String {
    let mut authorizations = order.authorizations();
    if let Some(Ok(mut authorization)) = authorizations.next().await
        && let Ok(state) = authorization.refresh().await
        && let Some(error) = state.challenges.iter().find_map(|challenge| challenge.error.as_ref())
    {
        return error.to_string();
    }
    "the authority could not validate the challenge".to_owned()
}

/// A certificate signing request for one name, in DER.
fn signing_request(name: &str, key: &KeyPair) -> Result<Vec<u8>, rcgen::Error> {
    let mut parameters = CertificateParams::new(vec![name.to_owned()])?;
    parameters.distinguished_name = DistinguishedName::new();
    Ok(parameters.serialize_request(key)?.der().to_vec())
}

/// The self-signed certificate of tls-alpn-01, which has the digest of the key authorization (RFC 8737, section 3).
fn challenge_certificate(name: &str, digest: &[u8]) -> Result<CertifiedKey, String> {
    let certificate = || -> Result<_, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut parameters = CertificateParams::new(vec![name.to_owned()])?;
        parameters.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
        Ok((parameters.self_signed(&key)?, key))
    };
    let (certificate, key) = certificate().map_err(|error| error.to_string())?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let key = aws_lc_rs::default_provider().key_provider.load_private_key(key).map_err(|error| error.to_string())?;
    // Not checked against each other: rustls reads no certificate with this critical extension.
    Ok(CertifiedKey::new(vec![certificate.der().clone()], key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use instant_acme::Problem;
    use x509_parser::prelude::{FromDer as _, X509Certificate};

    #[test]
    fn failures_are_told_apart() {
        let problem = |kind: &str, status| {
            let kind = format!("urn:ietf:params:acme:error:{kind}");
            let json = serde_json::json!({ "type": kind, "detail": "why", "status": status });
            Error::Api(serde_json::from_value::<Problem>(json).expect("a problem"))
        };
        let table = [
            (problem("rateLimited", 429), FailureKind::RateLimited),
            (problem("serverInternal", 500), FailureKind::Unreachable),
            (problem("badNonce", 400), FailureKind::Unreachable),
            (problem("other", 503), FailureKind::Unreachable),
            (problem("other", 429), FailureKind::RateLimited),
            (problem("rejectedIdentifier", 400), FailureKind::Rejected),
            (Error::Timeout(None), FailureKind::Rejected),
            (Error::Other("no route to host".into()), FailureKind::Unreachable),
        ];
        for (error, expected) in table {
            let text = error.to_string();
            assert_eq!(OrderFailure::from(error).kind, expected, "{text}");
        }
        assert!(is_unknown_account(&problem("accountDoesNotExist", 400)));
        assert!(!is_unknown_account(&problem("unauthorized", 403)));
    }

    #[test]
    fn the_certificate_of_a_challenge_has_its_digest_in_a_critical_extension() {
        let digest: Vec<u8> = (0..32).collect();
        let certified = challenge_certificate("example.org", &digest).expect("is created");
        let (_, parsed) = X509Certificate::from_der(&certified.cert[0]).expect("is valid");
        // RFC 8737, section 3: id-pe-acmeIdentifier, an octet string.
        let extension = parsed.extensions().iter().find(|found| found.oid.to_id_string() == "1.3.6.1.5.5.7.1.31");
        let extension = extension.expect("is there");
        assert!(extension.critical);
        assert_eq!(extension.value, [&[4, 32][..], &digest].concat());
    }
}
