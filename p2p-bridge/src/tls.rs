//! Which cryptography TLS is made with: ring for HTTP, as the resolver does; libp2p's QUIC and TLS are made with AWS-LC, and
//! leave no choice.

/// Makes ring the process's choice, unless somebody chose before. Clients of HTTP over TLS cannot be built without a choice.
pub fn use_ring() {
    // An error says that there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Gathers AWS-LC's first entropy. It measures the processor's jitter for some 80 ms, once in a process, and whoever makes
/// the first QUIC connection would have to wait for it. Blocks the thread.
pub fn gather_entropy() {
    // Were it to fail, the first connection would fail as well, and say so.
    let _ = rustls::crypto::aws_lc_rs::default_provider().secure_random.fill(&mut [0; 32]);
}
