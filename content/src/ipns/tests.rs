//! Verification of the conformance suite's records, of records with every kind of key, and of corrupted ones.

use super::*;
use libp2p_identity::{Keypair, ecdsa, secp256k1};
use proptest::prelude::*;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/ipns")
}

/// The record whose file name starts with `start`, and the key in the file name.
fn fixture(start: &str) -> (Key, Bytes) {
    let mut entries = std::fs::read_dir(fixtures()).expect("the fixtures").map(|entry| entry.expect("an entry").path());
    let path = entries
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(start)))
        .unwrap_or_else(|| panic!("no fixture {start}"));
    let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
    let key = Key::parse(stem.split('_').next().expect("a part")).expect("a key");
    (key, std::fs::read(path).expect("the fixture").into())
}

/// A key pair of each kind, the same in every run.
fn keypairs() -> [(&'static str, Keypair); 4] {
    let mut rsa = std::fs::read(fixtures().join("test-only-rsa-2048.pkcs8")).expect("the key");
    let secp256k1 = secp256k1::SecretKey::try_from_bytes([2; 32]).expect("in range");
    let ecdsa = ecdsa::SecretKey::try_from_bytes([3; 32]).expect("in range");
    [
        ("Ed25519", Keypair::ed25519_from_bytes([1; 32]).expect("any 32 bytes will do")),
        ("RSA", Keypair::rsa_from_pkcs8(&mut rsa).expect("an RSA key")),
        ("secp256k1", secp256k1::Keypair::from(secp256k1).into()),
        ("ECDSA", ecdsa::Keypair::from(ecdsa).into()),
    ]
}

fn draft() -> Draft {
    Draft {
        value: "/ipfs/bafkqaddjnzzxazldoqwxizltoq/a b".to_owned(),
        sequence: 7,
        end_of_life: UNIX_EPOCH + Duration::new(2_000_000_000, 123_456_789),
        ttl: Duration::from_secs(90),
    }
}

fn name(keypair: &Keypair) -> Key {
    Key::from(keypair.public().to_peer_id())
}

#[test]
fn the_conformance_suites_records_are_accepted_or_rejected() {
    let differs = Err(RecordError::Differs { field: "value" });
    let table: [(&str, Result<&str, RecordError>); 12] = [
        (
            "k51qzi5uqu5dlkw8pxuw9qmqayfdeh4kfebhmreauqdc6a7c3y7d5i9fi8mk9w_v1-v2",
            Ok("/ipfs/bafkqaddwgevxmmraojswg33smq"),
        ),
        (
            "k51qzi5uqu5dit2ku9mutlfgwyz8u730on38kd10m97m36bjt66my99hb6103f_v2",
            Ok("/ipfs/bafkqadtwgiww63tmpeqhezldn5zgi"),
        ),
        ("k51qzi5uqu5dm4tm0wt8srkg9h9suud4wuiwjimndrkydqm81cqtlb5ak6p7ku_v1", Err(RecordError::OnlyVersion1)),
        ("k51qzi5uqu5dlmit2tuwdvnx4sbnyqgmvbxftl0eo3f33wwtb9gr7yozae9kpw_v1-v2-broken-v1", differs),
        ("k51qzi5uqu5diamp7qnnvs1p1gzmku3eijkeijs3418j23j077zrkok63xdm8c_v1-v2-broken", Err(RecordError::Signature)),
        (
            "k51qzi5uqu5dilgf7gorsh9vcqqq4myo6jd4zmqkuy9pxyxi5fua3uf7axph4y_v1-v2-broken",
            Ok("/ipfs/bafkqahtwgevxmmrao5uxi2bamjzg623fnyqhg2lhnzqxi5lsmuqhmmi"),
        ),
        (
            "k51qzi5uqu5dlxdsdu5fpuu7h69wu4ohp32iwm9pdt9nq3y5rpn3ln9j12zfhe",
            Ok("/ipfs/bafybeib3ffl2teiqdncv3mkz4r23b5ctrwkzrrhctdbne6iboayxuxk5ui"),
        ),
        (
            "k51qzi5uqu5djokp3m1keo36hoxtd6u3a1d2rg1camf6al7p3huy63dojlm57c",
            Ok("/ipfs/bafybeib3ffl2teiqdncv3mkz4r23b5ctrwkzrrhctdbne6iboayxuxk5ui/root2"),
        ),
        (
            "k51qzi5uqu5dhjghbwdvbo6mi40htrq6e2z4pwgp15pgv3ho1azvidttzh8yy2",
            Ok("/ipfs/baguqeeram5ujjqrwheyaty3w5gdsmoz6vittchvhk723jjqxk7hakxkd47xq"),
        ),
        (
            "k51qzi5uqu5dghjous0agrwavl8vzl64xckoqzwqeqwudfr74kfd11zcyk3b7l",
            Ok("/ipfs/bafyreibs4utpgbn7uqegmd2goqz4bkyflre2ek2iwv743fhvylwi4zeeim"),
        ),
        (
            "QmVujd5Vb7moysJj8itnGufN7MEtPRCNHkKpNuA4onsRa3",
            Ok("/ipfs/bafkreicysg23kiwv34eg2d7qweipxwosdo2py4ldv42nbauguluen5v6am"),
        ),
        (
            "12D3KooWLQzUv2FHWGVPXTXSZpdHs7oHbXub2G5WC8Tx4NQhyd2d",
            Ok("/ipfs/bafkreicysg23kiwv34eg2d7qweipxwosdo2py4ldv42nbauguluen5v6am"),
        ),
    ];
    for (start, expected) in table {
        let (key, bytes) = fixture(start);
        let got = Record::verify(&key, bytes);
        assert_eq!(got.as_ref().map(Record::value), expected.as_ref().copied(), "{start}");
        if let Ok(record) = got {
            assert!(record.is_valid_at(SystemTime::now()), "{start}");
            assert!(record.ttl() > Duration::ZERO, "{start}");
        }
    }
}

#[test]
fn records_of_every_kind_of_key_are_signed_and_verified() {
    for (kind, keypair) in keypairs() {
        let record = Record::sign(&keypair, &draft()).expect(kind);
        let read = Record::verify(&name(&keypair), record.bytes().clone()).expect(kind);
        assert_eq!(read, record, "{kind}");
        let Draft { value, sequence, end_of_life, ttl } = draft();
        assert_eq!((read.value(), read.sequence()), (value.as_str(), sequence), "{kind}");
        assert_eq!((read.end_of_life(), read.ttl()), (end_of_life, ttl), "{kind}");
    }
}

#[test]
fn a_record_is_valid_for_its_own_name_only() {
    let keypairs = keypairs();
    for (kind, keypair) in &keypairs {
        let record = Record::sign(keypair, &draft()).expect(kind);
        for (other_kind, other) in keypairs.iter().filter(|(other, _)| other != kind) {
            let refused = Record::verify(&name(other), record.bytes().clone());
            let reasons = [RecordError::OtherKey, RecordError::Signature, RecordError::NoKey];
            assert!(
                refused.as_ref().is_err_and(|error| reasons.contains(error)),
                "{kind} as {other_kind}: {refused:?}"
            );
        }
    }
}

#[test]
fn a_record_is_valid_until_its_end_of_life_in_nanoseconds() {
    let (_, keypair) = &keypairs()[0];
    let record = Record::sign(keypair, &draft()).expect("signs");
    let end = draft().end_of_life;
    let table = [(UNIX_EPOCH, true), (end, true), (end + Duration::from_nanos(1), false)];
    for (now, holds) in table {
        assert_eq!(record.is_valid_at(now), holds, "{now:?}");
    }
}

#[test]
fn unset_values_have_defaults() {
    let (_, keypair) = &keypairs()[0];
    let record = Record::sign(keypair, &Draft { value: String::new(), ttl: Duration::ZERO, ..draft() }).expect("signs");
    assert_eq!((record.value(), record.ttl()), ("/ipfs/bafkqaaa", TTL_DEFAULT));
}

#[test]
fn binary_cids_are_paths_and_other_values_are_returned_as_text() {
    let cid = crate::cid::parse("bafkreicysg23kiwv34eg2d7qweipxwosdo2py4ldv42nbauguluen5v6am").expect("a CID");
    let table = [(cid.to_bytes(), format!("/ipfs/{cid}")), (b"hello".to_vec(), "hello".to_owned())];
    for (value, path) in table {
        let document = Document { value, validity: Vec::new(), validity_type: 0, sequence: 0, ttl_nanos: 0 };
        assert_eq!(document.path(), path);
    }
}

#[test]
fn documents_without_required_fields_are_rejected() {
    let validity = |text: &str| Document {
        value: Vec::new(),
        validity: text.as_bytes().to_vec(),
        validity_type: 0,
        sequence: 0,
        ttl_nanos: 0,
    };
    for text in ["2033-05-18T03:33:20Z", "2033-05-18T05:33:20.000000000+02:00"] {
        assert_eq!(validity(text).end_of_life(), Ok(UNIX_EPOCH + Duration::from_secs(2_000_000_000)), "{text}");
    }
    for text in ["", "tomorrow", "2033-05-18", "2033-13-18T03:33:20Z"] {
        assert!(matches!(validity(text).end_of_life(), Err(RecordError::Document(_))), "{text}");
    }
    let unknown = Document { validity_type: 1, ..validity("2033-05-18T03:33:20Z") };
    assert!(matches!(unknown.end_of_life(), Err(RecordError::Document(_))));
    // Empty input; not a map; an empty map; a map whose value is text instead of bytes; deeply nested arrays.
    let table: [&[u8]; 5] = [b"", b"\x80", b"\xa0", b"\xa1\x65Value\x61/", &[0x81; 9000]];
    for data in table {
        assert!(matches!(Document::decode(data), Err(RecordError::Document(_))), "{data:?}");
    }
}

#[test]
fn the_order_of_records_is_total() {
    let (_, keypair) = &keypairs()[0];
    let sign = |sequence, life, value: &str| {
        let end_of_life = UNIX_EPOCH + Duration::from_secs(life);
        Record::sign(keypair, &Draft { value: value.to_owned(), sequence, end_of_life, ..draft() }).expect("signs")
    };
    let ascending = [sign(1, 900, "/ipfs/a"), sign(2, 100, "/ipfs/a"), sign(2, 101, "/ipfs/a"), sign(3, 50, "/ipfs/a")];
    for (index, record) in ascending.iter().enumerate() {
        for (other_index, other) in ascending.iter().enumerate() {
            assert_eq!(record.newer_than(other), index > other_index, "{index} {other_index}");
        }
    }
    let (one, two) = (sign(1, 100, "/ipfs/a"), sign(1, 100, "/ipfs/b"));
    assert_ne!(one.newer_than(&two), two.newer_than(&one), "equal but for the bytes");
}

#[test]
fn records_over_the_size_limit_are_rejected() {
    let (key, _) = fixture("QmVujd");
    let refused = Record::verify(&key, vec![0; RECORD_BYTES_MAX + 1].into());
    assert_eq!(refused, Err(RecordError::TooLarge { bytes: RECORD_BYTES_MAX + 1 }));
    let (_, keypair) = &keypairs()[0];
    let large = Draft { value: format!("/ipfs/{}", "a".repeat(RECORD_BYTES_MAX)), ..draft() };
    assert!(matches!(Record::sign(keypair, &large), Err(SignError::Refused(RecordError::TooLarge { .. }))));
}

proptest! {
    #[test]
    fn random_bytes_are_rejected_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let (key, _) = fixture("QmVujd");
        prop_assert!(Record::verify(&key, bytes.into()).is_err());
    }

    #[test]
    fn a_changed_byte_is_detected_or_changes_no_field(at in 0_usize..10_000, with in 1_u8..) {
        let (key, bytes) = fixture("k51qzi5uqu5dit2ku9mutlfgwyz8u730on38kd10m97m36bjt66my99hb6103f_v2");
        let good = Record::verify(&key, bytes.clone()).expect("the fixture");
        let mut changed = bytes.to_vec();
        let at = at % changed.len();
        changed[at] ^= with;
        if let Ok(record) = Record::verify(&key, changed.into()) {
            prop_assert_eq!((record.value(), record.sequence()), (good.value(), good.sequence()));
        }
    }

    #[test]
    fn documents_never_panic(data in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(document) = Document::decode(&data) {
            let _ = (document.path(), document.end_of_life(), document.ttl());
        }
    }
}
