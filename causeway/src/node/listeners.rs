//! [`Listeners`]: the sockets of a node, which are bound before anything else starts, and the tasks that serve them.

use admin::{self, Admin};
use axum::body::Body;
use config::{ConfigError, Loaded};
use gateway::listen::admission::{Admission, Bounds, PATIENCE};
use gateway::listen::server::{Connection, ConnectionLimits, Drain, RequestBody, serve};
use gateway::listen::tls::{Tls, TlsError};
use gateway::metrics::HttpMetrics;
use gateway::pipeline::Gateway;
use services::supervision::Supervisor;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

/// The maximum number of connections of the admin listener, which are not counted as public ones.
const ADMIN_CONNECTIONS_MAX: usize = 64;
/// The maximum number of connections of one client of the admin listener.
const ADMIN_CLIENT_CONNECTIONS_MAX: usize = 48;

/// The bound sockets.
pub(super) struct Listeners {
    public: Vec<TcpListener>,
    admin: Vec<TcpListener>,
    /// The TLS configuration of the admin listener, if TLS is enabled.
    tls: Option<Arc<Tls>>,
}

impl Listeners {
    /// Binds all addresses of the settings and reads the certificate of the admin listener.
    ///
    /// # Errors
    /// [`ConfigError`] with the setting that cannot be used, such as a port in use.
    pub async fn bind(loaded: &Loaded) -> Result<Self, ConfigError> {
        let public = bind(loaded, "http.listen", &loaded.config.http.listen).await?;
        let admin = bind(loaded, "admin.listen", &loaded.config.admin.listen).await?;
        Ok(Self { public, admin, tls: admin_tls(loaded)? })
    }

    /// The addresses of the public listener.
    pub fn public_addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.public.iter().map(TcpListener::local_addr).collect()
    }

    /// The addresses of the admin listener.
    pub fn admin_addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.admin.iter().map(TcpListener::local_addr).collect()
    }

    /// The scheme of the admin listener's URL.
    pub fn admin_scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// Starts the tasks that serve the listeners.
    pub fn serve(
        self,
        limits: &ConnectionLimits,
        metrics: &Arc<HttpMetrics>,
        (gateway, admin): (Arc<Gateway>, Admin),
        supervisor: &Supervisor,
    ) -> (Drain, Drain) {
        let Self { public, admin: operator, tls } = self;
        let public = serve_public(public, limits, metrics, gateway, supervisor);
        (public, serve_admin(operator, limits, tls, metrics, admin, supervisor))
    }
}

async fn bind(loaded: &Loaded, key: &str, addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, ConfigError> {
    let mut listeners = Vec::with_capacity(addresses.len());
    for address in addresses {
        let listener = TcpListener::bind(address).await;
        listeners.push(listener.map_err(|error| loaded.error(key, why_not_bound(address, &error)))?);
    }
    Ok(listeners)
}

fn why_not_bound(address: &SocketAddr, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("{address} is in use: stop the program that has it, or choose another port")
        }
        io::ErrorKind::PermissionDenied => format!("this user may not listen on {address}"),
        io::ErrorKind::AddrNotAvailable => format!("{address} is not an address of this machine"),
        _ => format!("cannot listen on {address}: {error}"),
    }
}

/// The TLS configuration of the admin listener, if TLS is enabled.
///
/// # Errors
/// [`ConfigError`] with the setting of the file that cannot be used.
pub fn admin_tls(loaded: &Loaded) -> Result<Option<Arc<Tls>>, ConfigError> {
    let config::Admin { tls_certificate, tls_key, .. } = &loaded.config.admin;
    if tls_certificate.as_os_str().is_empty() {
        return Ok(None);
    }
    let wrong = |error: TlsError| {
        let key = if matches!(error, TlsError::Certificate { .. }) { "admin.tls_certificate" } else { "admin.tls_key" };
        loaded.error(key, error.to_string())
    };
    Tls::load(tls_certificate, tls_key).map(|tls| Some(Arc::new(tls))).map_err(wrong)
}

fn serve_public(
    listeners: Vec<TcpListener>,
    limits: &ConnectionLimits,
    metrics: &Arc<HttpMetrics>,
    gateway: Arc<Gateway>,
    supervisor: &Supervisor,
) -> Drain {
    let drain = Drain::default();
    for listener in listeners {
        let gateway = Arc::clone(&gateway);
        let handler = move |request, connection| {
            let gateway = Arc::clone(&gateway);
            async move { gateway.handle(request, connection).await }
        };
        let serving = serve(listener, limits.clone(), Arc::clone(metrics), drain.clone(), handler);
        supervisor.spawn("a public listener", serving).detach();
    }
    drain
}

fn serve_admin(
    listeners: Vec<TcpListener>,
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
    for listener in listeners {
        let router = router.clone();
        let handler = move |request: http::Request<RequestBody>, connection: Arc<Connection>| {
            admin::answer(router.clone(), request.map(Body::new), connection)
        };
        let serving = serve(listener, limits.clone(), Arc::clone(metrics), drain.clone(), handler);
        supervisor.spawn("an admin listener", serving).detach();
    }
    drain
}
