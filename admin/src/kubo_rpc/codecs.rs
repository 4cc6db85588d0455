//! Codecs by their names in the multicodec table (<https://github.com/multiformats/multicodec/blob/master/table.csv>).

use crate::kubo_rpc::problem::RpcError;
use content::codec;

const NAMES: [(&str, u64); 11] = [
    ("raw", codec::RAW),
    ("dag-pb", codec::DAG_PB),
    ("dag-cbor", codec::DAG_CBOR),
    ("dag-json", codec::DAG_JSON),
    ("cbor", codec::CBOR),
    ("json", codec::JSON),
    ("libp2p-key", codec::LIBP2P_KEY),
    ("dag-jose", 0x85),
    ("dag-cose", 0x86),
    ("git-raw", 0x78),
    ("car", 0x0202),
];

/// The codec with a name, or with a number in hexadecimal or decimal digits.
///
/// # Errors
/// There is no such codec.
pub fn named(name: &str) -> Result<u64, RpcError> {
    let known = NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, code)| code);
    let number = || match name.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => name.parse().ok(),
    };
    // Varints in CIDs have at most nine bytes of seven bits.
    let code = known.or_else(number).filter(|code| *code < 1 << 63);
    code.ok_or_else(|| RpcError::bad_request(format!("\"{name}\" is not a codec, such as \"raw\" or \"dag-cbor\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codecs_have_names_and_numbers() {
        for (name, code) in [("raw", 0x55), ("dag-cbor", 0x71), ("0x71", 0x71), ("113", 0x71)] {
            assert_eq!(named(name), Ok(code), "{name}");
        }
        for name in ["", "protobuf", "0x", "-1", "18446744073709551615"] {
            assert!(named(name).is_err(), "{name}");
        }
    }
}
