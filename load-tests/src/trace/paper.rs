//! The figures that the paper prints of one day at a public gateway: "Design and Evaluation of IPFS: A Storage Layer
//! for the Decentralized Web" (SIGCOMM 2022, <https://doi.org/10.1145/3544216.3544232>), sections 4.2, 5.1 and 6.3,
//! Table 5.

use super::tier::ByTier;
use serde::Serialize;

/// Requests of the day (section 4.2).
pub const REQUESTS: f64 = 7.1e6;
/// CIDs that they were for (section 4.2).
pub const CIDS: u32 = 274_000;
/// Bytes that were downloaded (section 6.3).
pub const BYTES: f64 = 6.57e12;
/// Median size of an object in bytes (section 6.3).
pub const MEDIAN_BYTES: f64 = 664_590.0;
/// The size in bytes that most objects are above, and how many are (section 6.3).
pub const LARGE_BYTES: f64 = 100_000.0;
pub const LARGE_SHARE: f64 = 0.791;

/// Countries of the clients: the share of the day's requests, and the country's clock relative to the gateway's, which
/// is on Pacific time, in hours (section 5.1). Countries with several clocks count by the one in the middle of their
/// population.
pub const COUNTRIES: [(f64, f64); 5] = [
    (0.504, 2.0),  // United States, by Central time
    (0.319, 16.0), // China
    (0.066, 16.0), // Hong Kong
    (0.046, 3.0),  // Canada, by Eastern time
    (0.017, 17.0), // Japan
];

/// A column of Table 5.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Column {
    pub name: &'static str,
    /// Of the day's requests and bytes.
    pub requests: f64,
    pub bytes: f64,
    /// Median latency, as printed.
    #[serde(rename = "median_latency")]
    pub latency: &'static str,
    #[serde(skip)]
    pub latency_seconds: f64,
}

/// Table 5, by our tiers in the same places.
pub const TABLE_5: ByTier<Column> = ByTier {
    ram: Column { name: "nginx cache", requests: 0.460, bytes: 0.464, latency: "0 s", latency_seconds: 0.0 },
    disk: Column { name: "IPFS node store", requests: 0.402, bytes: 0.380, latency: "8 ms", latency_seconds: 0.008 },
    network: Column { name: "Non Cached", requests: 0.138, bytes: 0.156, latency: "4.04 s", latency_seconds: 4.04 },
};

/// The share of pinned content: of the requests that nginx's cache did not answer, those that the node store did. Table
/// 5 is followed here; the text of section 6.3 has 67.1 %, which does not add up with it.
pub const PINNED_SHARE: f64 = 0.402 / (0.402 + 0.138);

#[test]
fn the_columns_are_everything() {
    for share in [|column: &Column| column.requests, |column: &Column| column.bytes] {
        assert!((TABLE_5.iter().map(share).sum::<f64>() - 1.0).abs() < 1e-9);
    }
    assert!(COUNTRIES.iter().map(|(share, _)| share).sum::<f64>() < 1.0);
}
