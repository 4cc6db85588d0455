//! Which cryptography TLS is made with: ring, the one that libp2p and the resolver bring along.

/// Makes ring the process's choice, unless somebody chose before. Clients of HTTP over TLS cannot be built without a choice.
pub fn use_ring() {
    // An error says that there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
