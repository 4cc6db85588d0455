//! Pins over HTTP: the Pinning Service API for owners ([`psa`]), and all pins for the operator ([`overview`]).

pub mod overview;
pub mod psa;
#[cfg(test)]
mod tests;
