use super::keys::{self, of_double};
use super::runs::{Keys, Layers, RuleInfo};
use super::*;
use crate::cid::{self, Cid, Multihash, codec};
use crate::hashes;
use crate::names::Name;
use crate::policy::{Policy as _, Verdict};
use ::cid::multibase::Base;
use proptest::prelude::*;
use std::time::Instant;

const ROOT: &str = "QmecDgNqCRirkc3Cjz9eoRBNwXGckJ9WvTdmY16HP88768";
const OTHER: &str = "bafybeihvvulpp4evxj7x7armbqcyg6uezzuig6jp3lktpbovlqfkuqeuoq";
const KEY: &str = "k51qzi5uqu5dhmzyv3zac033i7rl9hkgczxyl81lwoukda2htteop7d3x0y1mf";

fn cid(text: &str) -> Cid {
    cid::parse(text).expect(text)
}

fn content(seed: u64) -> Cid {
    Cid::new_v1(codec::RAW, hashes::digest(hashes::SHA2_256, 32, &seed.to_be_bytes()).expect("accepted"))
}

fn matcher(lists: &[&str]) -> Matcher {
    let source = |(index, text): (usize, &&str)| Source {
        id: index.to_string().into(),
        list: List::parse(text.as_bytes()).expect("a list"),
        status: Verdict::Gone,
    };
    Matcher::new(lists.iter().enumerate().map(source))
}

/// The verdict on an address.
fn asked(matcher: &Matcher, address: &str) -> Verdict {
    let path = crate::ContentPath::parse(address, 64).expect(address);
    let below = path.segments.join("/");
    match path.root {
        crate::path::Root::Cid(cid) => matcher.check_path(&cid, &below),
        crate::path::Root::Name(name) => matcher.check_name(&name, &below),
    }
}

fn sha256_hex(text: &str) -> String {
    Base::Base16Lower.encode(hashes::digest(hashes::SHA2_256, 32, text.as_bytes()).expect("accepted").digest())
}

fn multihash_of(code: u64, bytes: usize, text: &str) -> String {
    Base::Base58Btc.encode(hashes::digest(code, bytes, text.as_bytes()).expect("accepted").to_bytes())
}

#[test]
fn lines_are_parsed_as_in_the_specification() {
    let good = [
        (format!("/ipfs/{ROOT}"), format!("/ipfs/{}", Cid::new_v1(codec::RAW, *cid(ROOT).hash()))),
        (format!("/ipfs/{OTHER}/"), format!("/ipfs/{}", Cid::new_v1(codec::RAW, *cid(OTHER).hash()))),
        (
            format!("  /ipld/{OTHER}/a%20b//c/ \r"),
            format!("/ipfs/{}/a%20b/c", Cid::new_v1(codec::RAW, *cid(OTHER).hash())),
        ),
        (format!("!/ipfs/{OTHER}/*"), format!("!/ipfs/{}/*", Cid::new_v1(codec::RAW, *cid(OTHER).hash()))),
        (format!("+/ipfs/{OTHER}/a*"), format!("!/ipfs/{}/a*", Cid::new_v1(codec::RAW, *cid(OTHER).hash()))),
        (format!("/ipfs/{OTHER}/a/*"), format!("/ipfs/{}/a*", Cid::new_v1(codec::RAW, *cid(OTHER).hash()))),
        (format!("/ipfs/{OTHER}/a%2A"), format!("/ipfs/{}/a%2A", Cid::new_v1(codec::RAW, *cid(OTHER).hash()))),
        (format!("/ipns/{KEY}"), format!("/ipns/{KEY}")),
        ("/ipns/12D3KooWDkNqEJNmreF3NYYFK1ws7Ra2fuW6cHBTu567SPV3LdYA/x".to_owned(), format!("/ipns/{KEY}/x")),
        ("/ipns/Domain.Example".to_owned(), "/ipns/domain.example".to_owned()),
        ("/ipns/my--site-example".to_owned(), "/ipns/my-site.example".to_owned()),
        (format!("//{ROOT} reason=dmca a:b junk # why=no"), format!("//{ROOT} reason=dmca a=b")),
        (
            format!("//{}", "AB".repeat(32)),
            format!("//{}", Base::Base58Btc.encode([&[0x12, 32][..], &[0xab; 32]].concat())),
        ),
        (format!("//z{ROOT}"), format!("//{ROOT}")),
    ];
    for (line, printed) in good {
        let rule = Rule::parse(&line).expect(&line).expect("a rule");
        assert_eq!(rule.to_string(), printed, "{line}");
        assert_eq!(Rule::parse(&printed).expect("parses"), Some(rule), "{line}");
    }
    for line in ["", "   ", "# remark", "  # remark"] {
        assert_eq!(Rule::parse(line), Ok(None), "{line:?}");
    }
    let bad = [
        ("hello".to_owned(), RuleError::Kind),
        ("/path/only*".to_owned(), RuleError::Kind),
        ("---".to_owned(), RuleError::Kind),
        (format!("/ipfs/{OTHER}/%zz"), RuleError::Path),
        (format!("/ipfs/{OTHER}/%ff"), RuleError::Path),
        (format!("/ipfs/{OTHER}/a/../b"), RuleError::Path),
        ("//".to_owned(), RuleError::Double),
        (format!("//{}", "a".repeat(63)), RuleError::Double),
        ("//bafkqaaa".to_owned(), RuleError::Double),
        ("/ipfs/bafkqaaa".to_owned(), RuleError::Empty),
        ("/ipfs/QmUNLLsPACCz1vLxQVkXqqLX5R1X345qqfHbsf67hvA3Nn/*".to_owned(), RuleError::Empty),
    ];
    for (line, error) in bad {
        assert_eq!(Rule::parse(&line), Err(error), "{line}");
    }
    for line in ["/ipfs/", "/ipfs/nothing", &format!("/ipfs/{OTHER}*"), "/ipfs/*"] {
        assert!(matches!(Rule::parse(line), Err(RuleError::Cid(_))), "{line}");
    }
    for line in ["/ipns/", "/ipns/nothing", "/ipns/a..b", "/ipns/*"] {
        assert!(matches!(Rule::parse(line), Err(RuleError::Name(_))), "{line}");
    }
}

#[test]
fn the_status_hint_sets_the_verdict() {
    let list = format!(
        "version: 1\nname: \"Some list\" # remark\ndescription: >\n  In two\n  lines\nauthor: me@example.org\n\
         unknown: [a]\nhints:\n  status: 451\n  other: 'x'\n---\n/ipfs/{ROOT}\n\
         /ipfs/{OTHER} status=410 reason=a%20b\n/ipns/{KEY}\n"
    );
    let read = List::parse(list.as_bytes()).expect("a list");
    let header = read.header();
    assert_eq!(header.name.as_deref(), Some("Some list"));
    assert_eq!(header.description.as_deref(), Some("In two lines"));
    assert_eq!(header.author.as_deref(), Some("me@example.org"));
    assert_eq!(header.hints, [("status".to_owned(), "451".to_owned()), ("other".to_owned(), "x".to_owned())]);
    assert_eq!((read.rules(), read.malformed()), (3, 0));
    let matcher = matcher(&[&list]);
    assert_eq!(asked(&matcher, &format!("/ipfs/{ROOT}")), Verdict::Legal);
    assert_eq!(asked(&matcher, &format!("/ipfs/{OTHER}")), Verdict::Gone);
    assert_eq!(asked(&matcher, &format!("/ipns/{KEY}")), Verdict::Legal);
    let hit = matcher.find_block(&cid(OTHER)).expect("a rule");
    assert_eq!((&*hit.list, hit.line), ("0", 13));
    let rule = Rule::parse(&format!("/ipfs/{OTHER} status=410 reason=a%20b")).expect("parses").expect("a rule");
    assert_eq!((rule.status(), rule.hint("reason").as_deref()), (Some(Verdict::Gone), Some("a b")));
    assert_eq!(Rule::deny(rule.target.clone()).with_hint("status", "410").with_hint("reason", "a b"), rule);
    assert_eq!(List::parse(b"version: 2\n---\n").map(|_| ()), Err(HeaderError::Version));
}

/// Examples of the specification's test suite (<https://github.com/ipfs-shipyard/nopfs/tree/master/tester>).
#[test]
fn examples_of_the_specification_hold() {
    let list = "---\n\
        /ipfs/bafybeihvvulpp4evxj7x7armbqcyg6uezzuig6jp3lktpbovlqfkuqeuoq\n\
        /ipfs/QmdWFA9FL52hx3j9EJZPQP1ZUH8Ygi5tLCX2cRDs6knSf8/*\n\
        /ipfs/Qmah2YDTfrox4watLCr3YgKyBwvjq8FJZEFdWY6WtJ3Xt2/test*\n\
        /ipfs/QmTuvSQbEDR3sarFAN9kAeXBpiBCyYYNxdxciazBba11eC/test/*\n\
        /ipfs/QmUboz9UsQBDeS6Tug1U8jgoFkgYxyYood9NDyVURAY9pK/blocked*\n\
        !/ipfs/QmUboz9UsQBDeS6Tug1U8jgoFkgYxyYood9NDyVURAY9pK/blockednot\n\
        !/ipfs/QmUboz9UsQBDeS6Tug1U8jgoFkgYxyYood9NDyVURAY9pK/blocked/not\n\
        !/ipfs/QmUboz9UsQBDeS6Tug1U8jgoFkgYxyYood9NDyVURAY9pK/blocked/exceptions*\n\
        /ipns/domain.example\n\
        /ipns/domain2.example/path\n\
        /ipns/k51qzi5uqu5dhmzyv3zac033i7rl9hkgczxyl81lwoukda2htteop7d3x0y1mf\n\
        //d9d295bde21f422d471a90f2a37ec53049fdf3e5fa3ee2e8f20e10003da429e7\n\
        //6ef262a67f2c7caa9722b0fe46aced2f1559c749eab2bcf2f2701f43f802e900\n\
        //fb5a70b1aade810d21e8195a0da05f40ebd099e4b4d6bf088dc604e4fcf34263\n\
        //3f8b9febd851873b3774b937cce126910699ceac56e72e64b866f8e258d09572\n\
        //QmX9dhRcQcKUw3Ws8485T5a9dtjrSCQaUAHnG4iK9i4ceM\n\
        //gW813G35CnLsy7gRYYHuf63hrz71U1xoLFDVeV7actx6oX\n\
        //QmX6zeaAb8mC285YbXe4ac7LmX3jvrHBiFrw8kNnCM1bk4\n\
        //QmcwfDuZYijxztHVR7w71WtdDaETsrGUU3ARWbNiYD3Hhp\n\
        //QmdGtYErkPjfpUPjVMUypoX8XTE9PUTBBF6KE9AwWaBs1e\n\
        //QmQouNeftXbxGRt4U8s838diCuMPPHCfpHTR5w8bRREs9d\n";
    let matcher = matcher(&[list]);
    let refused = [
        "/ipfs/bafybeihvvulpp4evxj7x7armbqcyg6uezzuig6jp3lktpbovlqfkuqeuoq",
        "/ipfs/bafkreihvvulpp4evxj7x7armbqcyg6uezzuig6jp3lktpbovlqfkuqeuoq",
        "/ipfs/QmesfgDQ3q6prBy2Kg2gKbW4MAGuWiRP2DVuGA5MZSERLo",
        "/ipfs/QmdWFA9FL52hx3j9EJZPQP1ZUH8Ygi5tLCX2cRDs6knSf8",
        "/ipfs/QmdWFA9FL52hx3j9EJZPQP1ZUH8Ygi5tLCX2cRDs6knSf8/a/b",
        "/ipfs/QmdWFA9FL52hx3j9EJZPQP1ZUH8Ygi5tLCX2cRDs6knSf8/z/",
        "/ipfs/Qmah2YDTfrox4watLCr3YgKyBwvjq8FJZEFdWY6WtJ3Xt2/test",
        "/ipfs/Qmah2YDTfrox4watLCr3YgKyBwvjq8FJZEFdWY6WtJ3Xt2/test2",
        "/ipfs/Qmah2YDTfrox4watLCr3YgKyBwvjq8FJZEFdWY6WtJ3Xt2/test/one",
        "/ipfs/QmTuvSQbEDR3sarFAN9kAeXBpiBCyYYNxdxciazBba11eC/test2",
        "/ipfs/QmTuvSQbEDR3sarFAN9kAeXBpiBCyYYNxdxciazBba11eC/test/one",
        "/ipfs/QmUboz9UsQBDeS6Tug1U8jgoFkgYxyYood9NDyVURAY9pK/blocked",
        "/ipfs/QmUboz9UsQBDeS6Tug1U8jgoFkgYxyYood9NDyVURAY9pK/blocked2",
        "/ipns/domain.example",
        "/ipns/domain2.example/path",
        "/ipns/bafzaajaiaejcaotjfs57kieazxny5japcmy5p2pgv2cic77tu6ogghttvurnrufx",
        "/ipns/12D3KooWDkNqEJNmreF3NYYFK1ws7Ra2fuW6cHBTu567SPV3LdYA",
        "/ipfs/bafybeiefwqslmf6zyyrxodaxx4vwqircuxpza5ri45ws3y5a62ypxti42e",
        "/ipfs/bafybeiefwqslmf6zyyrxodaxx4vwqircuxpza5ri45ws3y5a62ypxti42e/path",
        "/ipns/k51qzi5uqu5dixwsch9wpd9rolqby1m0uqj5hhxwtxal0dwltastfmh01dlniq",
        "/ipns/bafzaajaiaejca3vrvdzmu4qntwa2pn6apsd4ug5k63ckdyhnd3g6vdvgvujdw62s",
        "/ipns/very-bad-example.eth/",
        "/ipfs/bafybeidjwik6im54nrpfg7osdvmx7zojl5oaxqel5cmsz46iuelwf5acja",
        "/ipfs/QmVTF1yEejXd9iMgoRTFDxBv7HAz9kuZcQNBzHrceuK9HR",
        "/ipfs/bafyb4ieqht3b2rssdmc7sjv2cy2gfdilxkfh7623nvndziyqnawkmo266a/path",
        "/ipfs/f01701e20903cf61d46521b05f926ba1634628d0bba8a7ffb5b6d5a3ca310682ca63b5ef0/path",
        "/ipns/my.domain.com",
        "/ipns/my.domain2.com/path",
        "/ipns/k51qzi5uqu5dixwsch9wpd9rolqby1m0uqj5hhxwtxal0dwltastfmh01dabcd",
        "/ipns/k51qzi5uqu5dixwsch9wpd9rolqby1m0uqj5hhxwtxal0dwltastfmh01d1234/mypath",
        "/ipns/bafzaajaiaejca3vrvdzmu4qntwa2pn6apsd4ug5k63ckdyhnd3g6vdvgvujczuoq/mypath",
    ];
    for address in refused {
        assert_eq!(asked(&matcher, address), Verdict::Gone, "{address}");
    }
    let allowed = [
        "/ipfs/Qmah2YDTfrox4watLCr3YgKyBwvjq8FJZEFdWY6WtJ3Xt2/tes",
        "/ipfs/Qmah2YDTfrox4watLCr3YgKyBwvjq8FJZEFdWY6WtJ3Xt2",
        "/ipfs/Qmah2YDTfrox4watLCr3YgKyBwvjq8FJZEFdWY6WtJ3Xt2/one/test",
        "/ipfs/QmTuvSQbEDR3sarFAN9kAeXBpiBCyYYNxdxciazBba11eC",
        "/ipfs/QmUboz9UsQBDeS6Tug1U8jgoFkgYxyYood9NDyVURAY9pK/blockednot",
        "/ipfs/QmUboz9UsQBDeS6Tug1U8jgoFkgYxyYood9NDyVURAY9pK/blocked/not",
        "/ipfs/QmUboz9UsQBDeS6Tug1U8jgoFkgYxyYood9NDyVURAY9pK/blocked/exceptions2",
        "/ipfs/QmUboz9UsQBDeS6Tug1U8jgoFkgYxyYood9NDyVURAY9pK/blocked/exceptions/one",
        "/ipns/domainaefa.example",
        "/ipns/domain.example/path",
        "/ipns/domain2.example",
        "/ipns/domain2.example/path2",
        "/ipns/12D3KooWDkNqEJNmreF3NYYFK1ws7Ra2fuW6cHBTu567SPV3LdYA/path",
        "/ipfs/bafybeiefwqslmf6zyyrxodaxx4vwqircuxpza5ri45ws3y5a62ypxti42e/path2",
        "/ipfs/bafyb4ieqht3b2rssdmc7sjv2cy2gfdilxkfh7623nvndziyqnawkmo266a/",
        "/ipfs/bafyb4ieqht3b2rssdmc7sjv2cy2gfdilxkfh7623nvndziyqnawkmo266a/path2",
        "/ipns/my.domain2.com/path2",
        "/ipns/k51qzi5uqu5dixwsch9wpd9rolqby1m0uqj5hhxwtxal0dwltastfmh01d1234/mypath2",
    ];
    for address in allowed {
        assert_eq!(asked(&matcher, address), Verdict::Allow, "{address}");
    }
}

#[test]
fn a_block_is_denied_under_every_codec() {
    let legacy = format!("//{}\n", sha256_hex(&format!("{OTHER}/")));
    let matcher = matcher(&[&legacy]);
    for codec in [codec::DAG_PB, codec::RAW, codec::DAG_CBOR, codec::DAG_JSON, codec::CBOR, 0x1234] {
        let cid = Cid::new_v1(codec, *cid(OTHER).hash());
        // Checked twice, to test the cache.
        assert_eq!((matcher.check(&cid), matcher.check(&cid)), (Verdict::Gone, Verdict::Gone), "{codec:x}");
        assert_eq!((matcher.check(&content(1)), matcher.check(&content(1))), (Verdict::Allow, Verdict::Allow));
    }
    let odd = Cid::new_v1(0x1234, *cid(ROOT).hash());
    let matcher = self::matcher(&[&format!("//{}\n", sha256_hex(&format!("{odd}/")))]);
    assert_eq!(matcher.check(&cid(ROOT)), Verdict::Allow);
    assert_eq!(matcher.check(&odd), Verdict::Gone, "cached verdicts on common codecs do not apply to others");
}

#[test]
fn the_last_rule_of_the_last_list_wins() {
    let (deny, allow) = (format!("/ipfs/{ROOT}/a*\n"), format!("!/ipfs/{ROOT}/ab\n"));
    let address = format!("/ipfs/{ROOT}/ab");
    let table = [
        (vec![format!("{deny}{allow}")], Verdict::Allow),
        (vec![format!("{allow}{deny}")], Verdict::Gone),
        (vec![deny.clone(), allow.clone()], Verdict::Allow),
        (vec![allow.clone(), deny.clone()], Verdict::Gone),
        (vec![deny.clone(), String::new()], Verdict::Gone),
        (vec![deny.clone(), format!("/ipfs/{ROOT}/zz status=451\n")], Verdict::Gone),
        (vec![deny, format!("/ipfs/{ROOT}/ab status=451\n")], Verdict::Legal),
    ];
    for (lists, verdict) in table {
        let lists: Vec<&str> = lists.iter().map(String::as_str).collect();
        assert_eq!(asked(&matcher(&lists), &address), verdict, "{lists:?}");
    }
    // A double hash is a rule like any other.
    let hash = multihash_of(hashes::SHA2_256, 32, ROOT);
    assert_eq!(matcher(&[&format!("/ipfs/{ROOT}\n!//{hash}\n")]).check(&cid(ROOT)), Verdict::Allow);
    assert_eq!(matcher(&[&format!("!//{hash}\n/ipfs/{ROOT}\n")]).check(&cid(ROOT)), Verdict::Gone);
}

#[test]
fn denied_paths_below_a_path_are_found() {
    let list =
        format!("/ipfs/{ROOT}/a/b/secret\n/ipfs/{ROOT}/c*\n/ipfs/{ROOT}/d/e\n!/ipfs/{ROOT}/d/*\n/ipfs/{OTHER}/*\n");
    let matcher = matcher(&[&list]);
    let below = |path: &str| matcher.check_below(&cid(ROOT), path);
    assert_eq!((below(""), below("a"), below("a/b")), (Verdict::Gone, Verdict::Gone, Verdict::Gone));
    for path in ["a/b/secret", "a/bc", "b", "d", "d/e"] {
        assert_eq!(below(path), Verdict::Allow, "{path}");
    }
    // An exception for one path does not cover longer paths.
    let except = self::matcher(&[&format!("/ipfs/{ROOT}/a*\n!/ipfs/{ROOT}/a\n")]);
    assert_eq!(except.check_path(&cid(ROOT), "a"), Verdict::Allow);
    for path in ["", "a"] {
        assert_eq!(except.check_below(&cid(ROOT), path), Verdict::Gone, "{path}");
    }
    assert_eq!(matcher.check_below(&content(1), ""), Verdict::Allow);
    assert_eq!(matcher.check_path(&cid(ROOT), "cx/y"), Verdict::Gone);
}

#[test]
fn a_list_is_parsed_incrementally_and_as_it_grows() {
    let first = format!("version: 1\n---\n# remark\n/ipfs/{ROOT}\nnonsense\n\n/ipfs/{OTHER}/a");
    let mut builder = ListBuilder::default();
    for byte in first.as_bytes() {
        builder.push(&[*byte]).expect("reads");
    }
    let before = builder.list();
    assert_eq!((before.rules(), before.malformed()), (2, 1));
    assert_eq!(before.reported(), [Reported { line: 5, error: RuleError::Kind }]);
    builder.push(b"b\n").expect("reads");
    builder.push(format!("/ipns/{KEY}\n").as_bytes()).expect("reads");
    let after = builder.list();
    assert_eq!((after.rules(), after.malformed()), (3, 1));
    let of = |list: &List| Matcher::new([Source { id: "x".into(), list: list.clone(), status: Verdict::Gone }]);
    let (before, after) = (of(&before), of(&after));
    for (path, was, is) in [("a", true, false), ("ab", false, true)] {
        let address = format!("/ipfs/{OTHER}/{path}");
        assert_eq!((asked(&before, &address) == Verdict::Gone, asked(&after, &address) == Verdict::Gone), (was, is));
    }
    assert_eq!(after.find_name(&Name::parse(KEY).expect("a name"), "").map(|hit| hit.line), Some(8));
}

#[test]
fn invalid_lines_are_counted_and_reported() {
    let long = "x".repeat(LINE_BYTES_MAX + 1);
    let mut text = format!("# no header\n{long}\n/ipfs/{ROOT}\r\n").into_bytes();
    text.extend(b"\xff\xfe\n---\n");
    text.extend(format!("{long}\n/ipfs/{OTHER}\n{long}").bytes());
    let list = List::parse(&text).expect("reads");
    let lines: Vec<u64> = list.reported().iter().map(|reported| reported.line).collect();
    assert_eq!((list.rules(), lines), (2, vec![2, 4, 5, 6]));
    let many = "nonsense\n".repeat(1_000);
    let list = List::parse(format!("/ipfs/{ROOT}\n{many}").as_bytes()).expect("reads");
    assert_eq!((list.malformed(), list.reported().len()), (1_000, 100));
    // Each function costs a hash computation for every check of a block.
    let functions = [(0x13, 64), (0x14, 64), (0x15, 48), (0x16, 32), (0x1b, 32)];
    let doubles: String = functions.map(|(code, bytes)| format!("//{}\n", multihash_of(code, bytes, "x"))).concat();
    let list = List::parse(doubles.as_bytes()).expect("reads");
    assert_eq!((list.rules(), list.malformed()), (4, 1));
}

#[test]
fn layers_are_merged_and_keep_the_last_line() {
    let mut layers = Layers::<Keys>::default();
    for round in 0..500_u64 {
        let key = |n: u64| of_double(content(n).hash());
        layers.add(vec![(key(round), RuleInfo::new(round, false, None)), (key(7), RuleInfo::new(round, true, None))]);
    }
    assert!(layers.iter().count() <= 5, "{}", layers.iter().count());
    let found: Vec<_> = layers.iter().filter_map(|run| run.find(of_double(content(7).hash()))).collect();
    assert_eq!(found.into_iter().reduce(RuleInfo::later), Some(RuleInfo::new(499, true, None)));
}

/// Random rules.
fn rules() -> impl Strategy<Value = Rule> {
    let root = prop_oneof![(0..4_u64).prop_map(content), Just(cid(ROOT)), Just(cid("bafkqaddjnzzxazldoqwxizltoq"))];
    let name = prop_oneof![Just(KEY), Just("a.example"), Just("b.example")];
    let path = (prop::collection::vec("[ab*% é/]{1,3}", 0..3), any::<bool>());
    let pattern = path.prop_map(|(names, prefix)| {
        let text = names.join("/");
        let text: Vec<&str> = text.split('/').filter(|name| !name.is_empty()).collect();
        PathPattern { text: text.join("/"), prefix }
    });
    let double = (0..6_u64, prop_oneof![Just((0x12_u64, 32_usize)), Just((0x1e, 32)), Just((0x13, 64))]);
    let target = prop_oneof![
        (root, pattern.clone()).prop_map(|(root, path)| Target::Content { hash: *root.hash(), path }),
        (name, pattern).prop_map(|(name, path)| Target::Name { name: Name::parse(name).expect("a name"), path }),
        double.prop_map(|(seed, (code, bytes))| {
            let text = Base::Base58Btc.encode(content(seed).hash().to_bytes());
            let text = if seed > 3 { format!("{}/", content(seed - 4)) } else { text };
            let hash = hashes::digest(code, bytes, text.as_bytes()).expect("accepted");
            Target::Double { hash, other: None }
        }),
    ];
    let hints = prop::collection::vec(("[a-z]{1,6}", "[!-~]{0,6}"), 0..3).prop_map(|mut hints| {
        hints.retain(|(_, value)| !value.starts_with('#'));
        hints
    });
    (any::<bool>(), target, hints).prop_map(|(allows, target, hints)| Rule { allows, target, hints })
}

/// The verdict of a linear search from the last rule to the first.
fn naive(lists: &[Vec<Rule>], matches: impl Fn(&Target) -> bool) -> Verdict {
    let rule = lists.iter().rev().find_map(|list| list.iter().rev().find(|rule| matches(&rule.target)));
    match rule {
        None => Verdict::Allow,
        Some(rule) if rule.allows => Verdict::Allow,
        Some(rule) => rule.status().unwrap_or(Verdict::Gone),
    }
}

fn double_is_of(hash: &Multihash, texts: &[String]) -> bool {
    texts.iter().any(|text| hashes::digest(hash.code(), hash.digest().len(), text.as_bytes()).as_ref() == Ok(hash))
}

proptest! {
    #[test]
    fn a_displayed_rule_parses_to_the_same_rule(rule in rules()) {
        let printed = rule.to_string();
        prop_assert_eq!(Rule::parse(&printed), Ok(Some(rule)), "{}", printed);
    }

    #[test]
    fn no_input_panics_and_chunks_do_not_matter(
        text in "(version: [01]\nhints:\n  a: b\n---\n)?\
            ([!+-]?/{0,2}(ipfs|ipns)?/?[a-zA-Z0-9.%*/-]{0,50} ?[ -~]{0,20}\n){0,4}",
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        cuts in prop::collection::vec(0..200_usize, 0..3),
    ) {
        for input in [text.as_bytes(), &bytes] {
            let whole = List::parse(input);
            let mut builder = ListBuilder::default();
            let (mut from, mut failed) = (0, false);
            for cut in cuts.iter().copied().chain([input.len()]) {
                let to = cut.clamp(from, input.len());
                failed |= builder.push(&input[from..to]).is_err();
                from = to;
                if failed {
                    break;
                }
                _ = builder.list();
            }
            prop_assert_eq!(whole.is_err(), failed);
            if let Ok(whole) = whole {
                let list = builder.list();
                prop_assert_eq!((list.rules(), list.reported()), (whole.rules(), whole.reported()));
            }
        }
    }

    #[test]
    fn the_verdict_is_that_of_a_linear_search(
        lists in prop::collection::vec(prop::collection::vec(rules(), 0..90), 1..4),
        cut in 0..90_usize,
        path in "[ab]{0,2}(/[ab* é]{1,2}){0,2}",
    ) {
        let path = path.trim_matches('/');
        let sources = lists.iter().enumerate().map(|(index, rules)| {
            // In two steps, so that there is more than one run.
            let mut builder = ListBuilder::default();
            let lines: Vec<String> = rules.iter().map(|rule| format!("{rule}\n")).collect();
            builder.push(lines[..cut.min(lines.len())].concat().as_bytes()).expect("reads");
            _ = builder.list();
            builder.push(lines[cut.min(lines.len())..].concat().as_bytes()).expect("reads");
            Source { id: index.to_string().into(), list: builder.list(), status: Verdict::Gone }
        });
        let matcher = Matcher::new(sources);
        let roots = (0..4).map(content).chain([cid(ROOT), cid("bafkqaddjnzzxazldoqwxizltoq")]);
        for root in roots {
            let b58 = Base::Base58Btc.encode(root.hash().to_bytes());
            for path in ["", path] {
                let texts = match path {
                    "" => [b58.clone(), format!("{root}/")],
                    path => [format!("{b58}/{path}"), format!("{root}/{path}")],
                };
                let expected = naive(&lists, |target| match target {
                    Target::Content { hash, path: pattern } => hash == root.hash() && pattern.matches(path),
                    Target::Double { hash, .. } => {
                        // The legacy form uses SHA2-256 only.
                        double_is_of(hash, &texts[..1]) || hash.code() == hashes::SHA2_256 && double_is_of(hash, &texts)
                    }
                    Target::Name { .. } => false,
                });
                prop_assert_eq!(matcher.check_path(&root, path), expected, "{} {}", root, path);
                prop_assert_eq!(matcher.check_path(&root, path), expected, "once more");
            }
            let below = if path.is_empty() { String::new() } else { format!("{path}/") };
            let texts = lists.iter().flatten().filter_map(|rule| match &rule.target {
                Target::Content { hash, path } if hash == root.hash() => {
                    Some([path.text.clone(), format!("{}\0", path.text)])
                }
                _ => None,
            });
            let texts = texts.flatten().chain([format!("{below}\0")]);
            let refused = texts.filter(|text| !text.is_empty() && text.starts_with(&below)).any(|text| {
                matcher.check_path(&root, &text) != Verdict::Allow
            });
            prop_assert_eq!(matcher.check_below(&root, path) != Verdict::Allow, refused, "below {}", path);
        }
        for name in [KEY, "a.example", "b.example", "c.example"] {
            let name = Name::parse(name).expect("a name");
            let expected = naive(&lists, |target| {
                matches!(target, Target::Name { name: own, path: pattern } if *own == name && pattern.matches(path))
            });
            prop_assert_eq!(matcher.check_name(&name, path), expected, "{} {}", name, path);
        }
    }
}

/// Measures the cost of a check and the size of a rule. Run by hand.
#[test]
#[ignore = "measures"]
fn cost_of_a_check() {
    const RULES: u64 = 1_000_000;
    let double = |n: u64| format!("//{}\n", sha256_hex(&format!("{}/", content(n))));
    for kind in ["blocks", "double hashes", "paths"] {
        let line = |n: u64| match kind {
            "blocks" => format!("/ipfs/{}\n", content(n)),
            "double hashes" => double(n),
            _ => format!("/ipfs/{}/some/path/{n}\n", content(n / 1000)),
        };
        let text: String = (0..RULES).map(line).collect();
        let start = Instant::now();
        let mut builder = ListBuilder::default();
        builder.push(text.as_bytes()).expect("reads");
        let list = builder.list();
        let read = start.elapsed();
        assert_eq!(list.rules(), RULES);
        let start = Instant::now();
        for n in 0..1_000 {
            builder.push(line(RULES + n).as_bytes()).expect("reads");
            _ = builder.list();
        }
        let appended = start.elapsed() / 1_000;
        let matcher = Matcher::new([Source { id: "x".into(), list: builder.list(), status: Verdict::Gone }]);
        let bytes = list.memory_bytes() as u64 / RULES;
        println!("{kind}: {bytes} bytes a rule, read in {read:?}, one more in {appended:?}");
        let cids: Vec<Cid> = (0..200_000).map(|n| content(2 * RULES + n)).collect();
        for (what, cids, rounds) in
            [("uncached blocks", &cids[..], 1), ("a thousand cached blocks", &cids[..1_000], 200)]
        {
            let start = Instant::now();
            for _ in 0..rounds {
                assert!(cids.iter().all(|cid| matcher.check(cid) == Verdict::Allow));
            }
            println!("  {what}: {:?}", start.elapsed() / u32::try_from(cids.len() * rounds).expect("small"));
        }
        let start = Instant::now();
        assert!(cids[..10_000].iter().all(|cid| matcher.check_path(cid, "some/path") == Verdict::Allow));
        println!("  path: {:?}", start.elapsed() / 10_000);
    }
    _ = keys::of_block(content(1).hash());
}
