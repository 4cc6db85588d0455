//! TLS for HTTP: the one provider of cryptography that the process has.

/// Has all HTTP clients of the process encrypt with ring, as the transports and the resolver do. To be called before any client
/// is made; calling it again changes nothing.
pub fn use_ring() {
    // Who set it first does not matter.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
