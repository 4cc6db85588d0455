//! [`Listeners`]: the sockets of a node, which are opened before anything else starts, and the tasks that serve them.

use super::sockets::{Bound, Sockets};
use admin::operations::health::CertificateState;
use admin::{self, Admin};
use config::{ConfigError, ListenAddress, Loaded};
use gateway::listen::admission::{Admission, Bounds, PATIENCE};
use gateway::listen::drain::Drain;
use gateway::listen::http3::{self, QuicSocket};
use gateway::listen::proxy_protocol::ProxyHeaders;
use gateway::listen::server::ConnectionLimits;
use gateway::listen::socket::Listener;
use gateway::listen::tls::{Tls, TlsError, TlsFiles};
use gateway::metrics::HttpMetrics;
use gateway::pipeline::Gateway;
use gateway::public;
use services::acme::Acme;
use services::supervision::Supervisor;
use std::sync::Arc;

/// The maximum number of connections of the admin listener, which are not counted as public ones.
const ADMIN_CONNECTIONS_MAX: usize = 64;
/// The maximum number of connections of one client of the admin listener.
const ADMIN_CLIENT_CONNECTIONS_MAX: usize = 48;

/// The listening sockets, and the certificates.
pub(super) struct Listeners {
    sockets: Sockets,
    /// The certificates of the listeners with TLS.
    pub certificates: Certificates,
}

impl Listeners {
    /// Opens all sockets and reads the certificates.
    ///
    /// # Errors
    /// [`ConfigError`] with the setting that cannot be used, such as a port in use.
    pub async fn bind(loaded: &Loaded) -> Result<Self, ConfigError> {
        let sockets = Sockets::open(loaded).await?;
        let certificates = Certificates::load(loaded, None)?;
        // Certificates by ACME are added later.
        let has_certificate = certificates.public.is_some() || !loaded.config.http.acme_directory.is_empty();
        sockets.check(loaded, (has_certificate, certificates.admin.is_some()))?;
        Ok(Self { sockets, certificates })
    }

    /// The addresses of the public listener.
    pub fn public_addresses(&self) -> Vec<ListenAddress> {
        addresses(&self.sockets.public)
    }

    /// The addresses of the public listener with TLS.
    pub fn public_tls_addresses(&self) -> Vec<ListenAddress> {
        addresses(&self.sockets.public_tls)
    }

    /// The addresses of the admin listener.
    pub fn admin_addresses(&self) -> Vec<ListenAddress> {
        addresses(&self.sockets.admin)
    }

    /// The scheme of the admin listener's URL on TCP.
    pub fn admin_scheme(&self) -> &'static str {
        if self.certificates.admin.is_some() { "https" } else { "http" }
    }

    /// Starts the tasks that serve the listeners. `reset_secret`: of HTTP/3 ([`QuicSocket::reset_secret`]).
    pub fn serve(
        self,
        (http, reset_secret): (&config::Http, Option<[u8; 32]>),
        metrics: &Arc<HttpMetrics>,
        (gateway, admin): (Arc<Gateway>, Admin),
        supervisor: &Supervisor,
    ) -> (Drain, Drain) {
        let Self { sockets, certificates } = self;
        certificates.watch(metrics, supervisor);
        let memory = Some(Arc::clone(&gateway.limits().memory));
        let limits = ConnectionLimits { memory, ..ConnectionLimits::of(http) };
        let encrypted = ConnectionLimits { tls: certificates.public, ..limits.clone() };
        let headers = Arc::new(ProxyHeaders::of(http));
        let with_headers = |bound: Bound, limits: &ConnectionLimits| {
            let of_proxies = http.proxy_protocol.iter().any(|address| bound.is_at(address));
            let proxy_headers = of_proxies.then(|| Arc::clone(&headers));
            let port = bound.udp.as_ref().and_then(|_| bound.address.tcp()).map(|address| address.port());
            let port = port.map(|port| if http.http3_public_port == 0 { port } else { http.http3_public_port });
            let alt_svc = port.map(http3::alt_svc);
            (
                PublicSocket { tcp: bound.listener, quic: bound.udp.map(|udp| QuicSocket { udp, reset_secret }) },
                ConnectionLimits { proxy_headers, alt_svc, ..limits.clone() },
            )
        };
        let plain = sockets.public.into_iter().map(|bound| with_headers(bound, &limits));
        let listeners = plain.chain(sockets.public_tls.into_iter().map(|bound| with_headers(bound, &encrypted)));
        let public = serve_public(listeners, metrics, gateway, supervisor);
        (public, serve_admin(sockets.admin, &limits, certificates.admin, metrics, admin, supervisor))
    }
}

fn addresses(sockets: &[Bound]) -> Vec<ListenAddress> {
    sockets.iter().map(|bound| bound.address.clone()).collect()
}

/// The certificates of the listeners with TLS. Clones share them.
#[derive(Clone)]
pub struct Certificates {
    public: Option<Arc<Tls>>,
    admin: Option<Arc<Tls>>,
    acme: Option<Arc<Acme>>,
}

impl Certificates {
    /// Reads the files of the settings. The public listener has certificates by ACME as well, if there are any.
    ///
    /// # Errors
    /// [`ConfigError`] with the setting of the file that cannot be used.
    pub fn load(loaded: &Loaded, acme: Option<Arc<Acme>>) -> Result<Self, ConfigError> {
        let config::Config { http, admin, .. } = &loaded.config;
        let of_http = TlsFiles {
            certificate: http.tls_certificate.clone(),
            key: http.tls_key.clone(),
            http2: http.http2,
            http3: http.http3,
        };
        // Requests of the admin API are few.
        let of_admin = TlsFiles {
            certificate: admin.tls_certificate.clone(),
            key: admin.tls_key.clone(),
            http2: false,
            http3: false,
        };
        let of_http = Some(of_http).filter(TlsFiles::is_set);
        let public = match &acme {
            Some(acme) => Some(Tls::with_acme(of_http, Arc::clone(acme), (http.http2, http.http3))),
            None => of_http.map(Tls::load),
        };
        let admin = Some(of_admin).filter(TlsFiles::is_set).map(Tls::load);
        Ok(Self { public: usable(loaded, "http", public)?, admin: usable(loaded, "admin", admin)?, acme })
    }

    /// Keeps them up to date.
    fn watch(&self, metrics: &HttpMetrics, supervisor: &Supervisor) {
        for (listener, tls) in [("public", &self.public), ("admin", &self.admin)] {
            // Certificates by ACME have metrics of their own.
            if let Some(tls) = tls.as_ref().filter(|tls| tls.has_files()) {
                let watching = Arc::clone(tls).watch(metrics.tls.of(listener));
                supervisor.spawn("the update task of a certificate", watching).detach();
            }
        }
        if let Some(acme) = &self.acme {
            supervisor.spawn("the task of certificates by ACME", Arc::clone(acme).run()).detach();
        }
    }

    /// The state of each certificate: those of files by their listener, those by ACME by their configured name.
    pub fn states(&self) -> Vec<CertificateState> {
        let of_files = [("the public listener", &self.public), ("the admin listener", &self.admin)].into_iter();
        let of_files = of_files.filter_map(|(listener, tls)| {
            let status = tls.as_ref()?.file_status()?;
            Some(CertificateState {
                subject: listener.to_owned(),
                by_acme: false,
                expires_at: Some(status.expires_at),
                is_overdue: false,
                failure: status.failure,
            })
        });
        let by_acme = self.acme.iter().flat_map(|acme| acme.statuses()).map(|status| CertificateState {
            subject: status.name,
            by_acme: true,
            expires_at: status.expires_at,
            is_overdue: status.is_overdue,
            failure: status.failure,
        });
        of_files.chain(by_acme).collect()
    }

    /// Has the files read again, and failed orders repeated.
    pub fn reload(&self) {
        [&self.public, &self.admin].into_iter().flatten().for_each(|tls| tls.reload());
    }
}

/// The certificate of a section of the settings, if it has one.
fn usable(loaded: &Loaded, section: &str, tls: Option<Result<Tls, TlsError>>) -> Result<Option<Arc<Tls>>, ConfigError> {
    let wrong = |error: TlsError| {
        let file = if matches!(error, TlsError::Key { .. }) { "tls_key" } else { "tls_certificate" };
        loaded.error(&format!("{section}.{file}"), error.to_string())
    };
    tls.transpose().map(|tls| tls.map(Arc::new)).map_err(wrong)
}

/// A socket of the public listener.
struct PublicSocket {
    tcp: Listener,
    /// For HTTP/3.
    quic: Option<QuicSocket>,
}

fn serve_public(
    sockets: impl Iterator<Item = (PublicSocket, ConnectionLimits)>,
    metrics: &Arc<HttpMetrics>,
    gateway: Arc<Gateway>,
    supervisor: &Supervisor,
) -> Drain {
    let drain = Drain::default();
    for (PublicSocket { tcp, quic }, limits) in sockets {
        if let Some(socket) = quic {
            let (metrics, gateway) = (Arc::clone(metrics), Arc::clone(&gateway));
            let serving = public::serve_http3(socket, limits.clone(), metrics, drain.clone(), gateway);
            let serving = async move {
                if let Err(error) = serving.await {
                    tracing::error!(%error, "the UDP socket of HTTP/3 has failed, so this process ends");
                }
            };
            supervisor.spawn("the listener of HTTP/3", serving).detach();
        }
        let serving = public::serve(tcp, limits, Arc::clone(metrics), drain.clone(), Arc::clone(&gateway));
        supervisor.spawn("a public listener", serving).detach();
    }
    drain
}

fn serve_admin(
    sockets: Vec<Bound>,
    limits: &ConnectionLimits,
    tls: Option<Arc<Tls>>,
    metrics: &Arc<HttpMetrics>,
    admin: Admin,
    supervisor: &Supervisor,
) -> Drain {
    let drain = Drain::default();
    let (all, each) = (ADMIN_CONNECTIONS_MAX, ADMIN_CLIENT_CONNECTIONS_MAX);
    let admission = Arc::new(Admission::new(Bounds { all, each, exempt: Vec::new(), patience: PATIENCE }));
    let limits = ConnectionLimits { admission, tls, ..limits.clone() };
    let router = admin::router(admin);
    for Bound { listener, address, .. } in sockets {
        let (router, mut limits) = (router.clone(), limits.clone());
        if address.tcp().is_none() {
            // Nothing between two processes of this machine needs encryption.
            limits.tls = None;
        }
        let serving = admin::serve(listener, limits, Arc::clone(metrics), drain.clone(), router);
        supervisor.spawn("an admin listener", serving).detach();
    }
    drain
}
