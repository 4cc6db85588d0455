//! The cryptography of TLS: ring for HTTP, as for the resolver. TLS and QUIC between peers use AWS-LC.

/// Makes ring the process's default provider, unless there is one already. HTTPS clients need a default provider.
pub fn use_ring() {
    // An error means that there is a default already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Initialises AWS-LC's entropy source. It measures CPU jitter for about 80 ms once per process, which would otherwise
/// delay the first QUIC connection. Blocks the thread.
pub fn gather_entropy() {
    // An error here will also fail the first connection, which reports it.
    let _ = rustls::crypto::aws_lc_rs::default_provider().secure_random.fill(&mut [0; 32]);
}
