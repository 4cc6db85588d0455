//! Content and settings, with the CIDs that Kubo 0.41 computes for them.

use super::content;
use crate::importer::{Attributes, Chunking, Estimate, Layout, Profile, Version};
use crate::{cid, hashes};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The content of a case.
#[derive(Debug, Clone, Copy)]
pub enum Content {
    /// A file of so many pseudorandom bytes.
    File(usize),
    /// A file of so many zeros.
    Zeros(usize),
    /// A folder of so many empty files with names of six digits.
    Empties(usize),
    /// A folder of so many files with their name as content.
    Files(usize),
    /// A folder of so many folders with one file each.
    Folders(usize),
    /// A folder with files, folders, symlinks and unusual names.
    Mixed,
}

/// A file, a folder or a symlink.
#[derive(Debug)]
pub struct Item {
    /// The path below the imported root, whose path is empty.
    pub path: String,
    pub kind: Kind,
    pub mode: u32,
    /// Seconds since 1970, and nanoseconds.
    pub modified: (i64, u32),
}

#[derive(Debug)]
pub enum Kind {
    File(Vec<u8>),
    Directory,
    Symlink(&'static str),
}

fn file(path: &str, bytes: Vec<u8>) -> Item {
    Item { path: path.to_owned(), kind: Kind::File(bytes), mode: 0o640, modified: (1_700_000_000, 5) }
}

fn folder(path: &str) -> Item {
    Item { path: path.to_owned(), kind: Kind::Directory, mode: 0o750, modified: (1_600_000_000, 0) }
}

fn link(path: &str, target: &'static str) -> Item {
    Item { path: path.to_owned(), kind: Kind::Symlink(target), mode: 0o777, modified: (1_500_000_000, 0) }
}

/// A folder with the items that the function returns for every number below `count`.
fn numbered<const N: usize>(count: usize, items: impl Fn(usize) -> [Item; N]) -> Vec<Item> {
    std::iter::once(folder("")).chain((0..count).flat_map(items)).collect()
}

impl Content {
    /// All items, each folder before its entries.
    pub fn items(self) -> Vec<Item> {
        match self {
            Self::File(size) => vec![file("", content(1, size))],
            Self::Zeros(size) => vec![file("", vec![0; size])],
            Self::Empties(count) => numbered(count, |n| [file(&format!("{n:06}"), Vec::new())]),
            Self::Files(count) => numbered(count, |n| [file(&format!("file {n}"), format!("file {n}").into_bytes())]),
            Self::Folders(count) => numbered(count, |n| {
                [folder(&format!("folder {n}")), file(&format!("folder {n}/a"), content(n as u64, 200))]
            }),
            Self::Mixed => mixed(),
        }
    }
}

fn mixed() -> Vec<Item> {
    vec![
        folder(""),
        file("Z", content(2, 10)),
        file("a", content(3, 1_000)),
        folder("a.b"),
        file("a.b/c", content(4, 300_000)),
        Item { mode: 0o4711, modified: (-2, 0), ..file("a.b/d \"e\"", Vec::new()) },
        folder("empty"),
        folder("ä"),
        folder("ä/deep"),
        Item { mode: 0o1777, modified: (0, 0), ..folder("ä/deep/deeper") },
        file("ä/deep/deeper/öß", content(5, 33)),
        link("ä/up", "../a.b/c"),
        link("link", "/dev/null"),
    ]
}

/// A test case.
pub struct Case {
    /// A published profile, or empty for Kubo's default.
    pub profile: &'static str,
    /// Flags of `ipfs add`, and settings of Kubo (`Import.NAME=VALUE`).
    pub flags: &'static str,
    pub content: Content,
    pub cid: &'static str,
}

impl Case {
    pub fn words(&self) -> impl Iterator<Item = &'static str> {
        self.flags.split_whitespace()
    }

    pub fn has(&self, flag: &str) -> bool {
        self.words().any(|word| word == flag)
    }

    /// The profile, with the flags applied.
    pub fn profile(&self) -> Profile {
        let base = match self.profile {
            "" => Profile::default(),
            name => Profile::named(name).expect("a published name"),
        };
        self.words().fold(base, choose)
    }

    /// The attributes from flags, which apply to all items.
    pub fn custom(&self) -> Attributes {
        let value = |flag: &str| self.words().find_map(|word| word.strip_prefix(flag)?.strip_prefix('='));
        let number = |flag: &str| value(flag).map(|text| text.parse::<i64>().expect("a number"));
        let mode = value("--mode").map(|text| u32::from_str_radix(text, 8).expect("an octal number"));
        let nanos = number("--mtime-nsecs").unwrap_or_default();
        let modified = number("--mtime").map(|seconds| time(seconds, u32::try_from(nanos).expect("below a second")));
        Attributes { mode, modified }
    }

    /// The attributes with which an item is imported.
    pub fn attributes_of(&self, item: &Item) -> Attributes {
        let Attributes { mode, modified } = self.custom();
        Attributes {
            mode: mode.or(self.has("--preserve-mode").then_some(item.mode)),
            modified: modified.or(self.has("--preserve-mtime").then(|| time(item.modified.0, item.modified.1))),
        }
    }
}

pub fn time(seconds: i64, nanos: u32) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let time = if seconds < 0 { UNIX_EPOCH - whole } else { UNIX_EPOCH + whole };
    time + Duration::from_nanos(nanos.into())
}

/// Applies a flag to a profile.
fn choose(mut profile: Profile, word: &str) -> Profile {
    let (flag, value) = word.split_once('=').unwrap_or((word, ""));
    let number = || value.trim_end_matches('B').parse::<usize>().expect("a number");
    match flag {
        "--cid-version" if value == "1" => return profile.with_cid_v1(),
        "--cid-version" => profile.cid_version = Version::V0,
        "--raw-leaves" => profile.raw_leaves = value != "false",
        "--hash" => return profile.with_hash(hashes::named(value).expect("a known name")),
        "--chunker" => profile.chunking = value.parse::<Chunking>().expect("a form"),
        "--trickle" => profile.layout = Layout::Trickle,
        "--max-file-links" => profile.file_links_max = number(),
        "--inline" => profile.inline_bytes_max = profile.inline_bytes_max.or(Some(32)),
        "--inline-limit" => profile.inline_bytes_max = Some(number()),
        "--max-directory-links" => profile.sharding.links_max = Some(number()),
        "--max-hamt-fanout" => profile.sharding.fanout = number(),
        "Import.UnixFSHAMTDirectorySizeThreshold" => profile.sharding.threshold_bytes = number(),
        "Import.UnixFSHAMTDirectorySizeEstimation" => {
            profile.sharding.estimate = match value {
                "links" => Estimate::Links,
                "block" => Estimate::Block,
                _ => Estimate::Off,
            }
        }
        "-w" | "--preserve-mode" | "--preserve-mtime" | "--mode" | "--mtime" | "--mtime-nsecs" => {}
        _ => panic!("{word} is not supported here"),
    }
    profile
}

const fn case(profile: &'static str, flags: &'static str, content: Content, cid: &'static str) -> Case {
    Case { profile, flags, content, cid }
}

use Content::{Empties, File, Files, Folders, Mixed, Zeros};

#[rustfmt::skip]
pub const CASES: &[Case] = &[
    // Sizes around a chunk, in Kubo's default and the ways to choose leaves and CIDs.
    case("", "", File(0), "QmbFMke1KXqnYyBBWxB74N4c5SBnJMVAiMNRcGu6x1AwQH"),
    case("", "", File(1), "QmYgeDNcNoWGunNmxb2do8E5oMALcrxnzxCWLpzrWeBjZ4"),
    case("", "", File(262_143), "QmbprEmh75s6X6Emza1eqFsUcX1D3TXENuQvcy9BK6Y2iw"),
    case("", "", File(262_144), "QmXQ4ZkKirB2Zb6wHWAcnJCH8SYMhFX8VJti8DDSbecW6w"),
    case("", "", File(262_145), "QmXvgfEzy3p9r74AY3dfHgymaRquR6BCDCLAXk7vkHN326"),
    case("", "", File(1_000_000), "QmcwkpsrENqqgfcfLEZ8n9A9AxgCa7g3ZRgNKz9khkYjfP"),
    case("", "--cid-version=1", File(0), "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"),
    case("", "--cid-version=1", File(1), "bafkreibcvwxqlcrmwzulcxfuyhzq47ghec56hdaumvcbnhntl67wga4jyq"),
    case("", "--cid-version=1", File(262_144), "bafkreidemtpffvxst7k3g26s3az3rhzz6jbsqfctdys3e3hyedvd2kzdcy"),
    case("", "--cid-version=1", File(262_145), "bafybeihuvmmuxpnginsztsbeifrs6xb4mjkosxmyvrd3ud6h33evi7iqx4"),
    case("", "--raw-leaves", File(0), "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"),
    case("", "--raw-leaves", File(1), "bafkreibcvwxqlcrmwzulcxfuyhzq47ghec56hdaumvcbnhntl67wga4jyq"),
    case("", "--raw-leaves", File(262_145), "QmeojWSfzyBuPnn3z1ELgXqkcYBXzLmD2fvzxHehBE5sLz"),
    case("", "--cid-version=1 --raw-leaves=false", File(1), "bafybeiezwpwoadcfe7peet3b6b7u3ujhwhcfbpcvufn6rzbsni7ovzim5m"),
    case("", "--cid-version=1 --raw-leaves=false", File(262_145), "bafybeigcwbu5inodm6kdvec5lgzx4ausdhcyx4iifofinxakt3zaqkzxqa"),
    // Published profiles.
    case("unixfs-v0-2015", "", File(0), "QmbFMke1KXqnYyBBWxB74N4c5SBnJMVAiMNRcGu6x1AwQH"),
    case("unixfs-v0-2015", "", File(262_145), "QmXvgfEzy3p9r74AY3dfHgymaRquR6BCDCLAXk7vkHN326"),
    case("unixfs-v0-2015", "", Mixed, "QmV7s5axV9nNac6L48ohYV9EVpQ4mcBRhff4xsUFGPCZgn"),
    case("legacy-cid-v0", "", File(1_000_000), "QmcwkpsrENqqgfcfLEZ8n9A9AxgCa7g3ZRgNKz9khkYjfP"),
    case("unixfs-v1-2025", "", File(0), "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"),
    case("unixfs-v1-2025", "", File(1), "bafkreibcvwxqlcrmwzulcxfuyhzq47ghec56hdaumvcbnhntl67wga4jyq"),
    case("unixfs-v1-2025", "", File(1_048_576), "bafkreihst6yheey7z7dslnpmirvndglawky3j7lyupf7lbtqbeir7zqc4a"),
    case("unixfs-v1-2025", "", File(1_048_577), "bafybeifj33pdgiqayh4uybeucizrmtesybzsua65zbusgyosoakged7mpq"),
    case("unixfs-v1-2025", "--chunker=size-10", File(10_240), "bafybeidbgeqx3nvh5zip4wj2yu3z4i4j2u3kcqg2m6aq7d42ttiwe7gdeq"),
    case("unixfs-v1-2025", "--chunker=size-10", File(10_241), "bafybeih4kxjiv5gloxovuderq2zh34ytb3gqyovyzoqeo5lc2qw56awafa"),
    case("unixfs-v1-2025", "", Mixed, "bafybeiefnsmahtdmyb4wznvdawhjezjdwruc56xdtfr33tbjxedxdwo3aa"),
    case("test-cid-v1", "", File(1_048_577), "bafybeifj33pdgiqayh4uybeucizrmtesybzsua65zbusgyosoakged7mpq"),
    case("test-cid-v1", "--chunker=size-10", File(1_741), "bafybeiexyi4ngpzflagi3cnughwel6zulyqjb44sxctbcepkwekyeq4dze"),
    case("test-cid-v1", "", Mixed, "bafybeiefnsmahtdmyb4wznvdawhjezjdwruc56xdtfr33tbjxedxdwo3aa"),
    case("test-cid-v1-wide", "--chunker=size-10", File(10_241), "bafybeih4kxjiv5gloxovuderq2zh34ytb3gqyovyzoqeo5lc2qw56awafa"),
    case("test-cid-v1-wide", "Import.UnixFSHAMTDirectorySizeThreshold=1000B", Files(100), "bafybeicf6ymmqxflcmlgt45frra4d7lsrbosu5fj7i7r6yjogletxuim6i"),
    // Links of inner nodes: one full node, one leaf more, three and more levels.
    case("", "--chunker=size-10", File(1_740), "QmRQ3YFot4GQG9YHrvSHcUG7eHoeXCzYayXovsE1xe72jc"),
    case("", "--chunker=size-10", File(1_741), "QmdZ5RuNQtX7YRn6rmEdwnnnz9UN5PPdYhEcGb6m24MKSL"),
    case("", "--chunker=size-10", File(302_760), "QmWjETTa8WQ6X3b8T6hdkq9M7oE3SKSQHhjKQtMxTUVJ4g"),
    case("", "--chunker=size-10", File(302_761), "QmWEakx7K4ZaodCxSNh7GJMj6aNEDLFzsE4KLP5YCH5Kj8"),
    case("", "--chunker=size-10 --cid-version=1", File(302_761), "bafybeidvbhvtc6fwawemzhjwt5u3o67nesmjzegjokuxrcbgfsfwlfk4la"),
    case("", "--chunker=size-10 --max-file-links=2", File(10), "QmQdYBsm9M5hsjauFJdztX2Ej9QQawtS8bH26pJD1xfjN7"),
    case("", "--chunker=size-10 --max-file-links=2", File(11), "QmUf3feA8tY1E66znGsbDPn3ukS7QDP2z3qc42gUGEiYye"),
    case("", "--chunker=size-10 --max-file-links=2", File(1_281), "QmQKavCNqQSuXP3BDkKKKPGcKM2fJKDufvLvBBfHHTngPA"),
    case("", "--chunker=size-10 --max-file-links=3", File(5_000), "QmdLkpWrYnvs3pfD524rqv8JzWnbxvVomCo5MhPdHFndWB"),
    case("", "--chunker=size-10", Zeros(5_000), "QmcWzVxy9Wek4iiLYHh8Q3BBwKZXhYJisVik3oexr4dz7z"),
    case("", "--chunker=size-2096896", File(2_096_897), "QmZ8Eo6nfZzTctT1YvqCG7PkhRZvWoVEmc1pUkNEtj8MWT"),
    case("", "--chunker=size-2096896 --raw-leaves", File(2_096_897), "QmQxiFoyTjwtZa1fLgsWJzqqPmugCwzVdPnHcaYZNwKZse"),
    // The trickle layout.
    case("", "--trickle", File(0), "QmbFMke1KXqnYyBBWxB74N4c5SBnJMVAiMNRcGu6x1AwQH"),
    case("", "--trickle --cid-version=1", File(0), "bafybeif7ztnhq65lumvvtr4ekcwd2ifwgm3awq4zfr3srh462rwyinlb4y"),
    case("", "--trickle", File(1), "QmUCtEyaE1PUqXsNxPapoiqxyPRHzsnNEQwag4cEECcdnS"),
    case("", "--trickle --raw-leaves", File(1), "QmSH6ihRi9CFiMUbNWedcaAvv6cX2QUtjxvENqDwkp52Ku"),
    case("", "--trickle", File(262_145), "QmTBC63piw6bu8Rs1EMPjErLuhqwiqhXFxC6MRKdhfVumu"),
    case("", "--trickle --chunker=size-10", File(1_740), "QmTWKedJXqZFFY418GB1jwwrxdrVvJtFMLsKFVPthv7j6L"),
    case("", "--trickle --chunker=size-10", File(1_741), "QmQbxh7r7su824tZyiELVabUpuUKKneHPpYD6YvxxgDgDe"),
    case("", "--trickle --chunker=size-10 --cid-version=1", File(20_000), "bafybeihv5vjdc2bnqz4ivkk6o3mxp674nuv2zxjgf6b4egxhyupbq234hu"),
    case("", "--trickle --chunker=size-10 --max-file-links=2", File(20), "QmSup1RYcDbbPhqodKfAZpt8Yi2ug5MEshB8SLDHCvjneR"),
    case("", "--trickle --chunker=size-10 --max-file-links=2", File(101), "QmdNYeugzLCr2xRNPVgzzLKLY33aFgGCj3GRsEuEXmG6nf"),
    case("", "--trickle --chunker=size-10 --max-file-links=2", File(20_000), "QmcaWvkEyzxMosx47w6Y7H7i4GLZuXooJ5x2UnSdbTaXPv"),
    case("", "--trickle --chunker=size-10 --max-file-links=3 --raw-leaves", File(7_777), "QmVpvkxLaYpFwSDWDbzZ6UkjrEMf9b1hwiqG1ezLaWmGuh"),
    // Cuts by content.
    case("", "--chunker=rabin", File(2_000_000), "QmPRZJKyFg4f3G2odmS8Kho5a6izyuh8FSwZ2HYLTaYcSn"),
    case("", "--chunker=rabin --cid-version=1", File(100), "bafkreia7xyhlf3t2fmv3mh3g335xpmhj6ujulcxyu747cpa6r5ft7wqlwy"),
    case("", "--chunker=rabin-1000", File(100_000), "QmNhmc4pkj7WGxCgUcgoA4GuvgqJ8eTBXamGU4RoWsDwmy"),
    case("", "--chunker=rabin-16-64-128", File(20_000), "QmW1pA5YaSWBaqcq4Aw1uZrDQ5RyKB5KdYKLSamR23aQVk"),
    case("", "--chunker=rabin-min:128-avg:300-max:512", File(100_000), "Qma43c18tjGRxxkNWquqVRgiiv4heQdoek9Mgy73f2UxCm"),
    case("", "--chunker=rabin-512-1024-2048 --trickle", File(100_000), "QmdEQKLAVKtSgpywctCqX4rRrQ8moKtm44o1v1A3hVbSiJ"),
    case("", "--chunker=rabin-128-256-512", Zeros(10_000), "QmdPe3roC8sQuMHMtUS8Nd9yGKRSL4EJJ9Gtqjugmf4EWu"),
    case("", "--chunker=buzhash", File(100), "QmSDD85Veg2s3bSVzq99KXdkZ9BTbfP5UqLymtdsrEabpr"),
    case("", "--chunker=buzhash", File(131_072), "QmV3CHYJrcvSurzoeCKDDF5xdrMTXRQ4xZkLL8Z7N2D9E9"),
    case("", "--chunker=buzhash", File(131_073), "QmfTdAYyTN48mS4DTUdepkQXTwB5dKJyxFTVVv75A3HEap"),
    case("", "--chunker=buzhash --cid-version=1", File(2_000_000), "bafybeicc42vek5col7qyrg7gfcciisnl4e2qytbqukszyaxuclj2il66lm"),
    case("", "--chunker=buzhash", Zeros(1_100_000), "QmeM3xwJZ8o9PA8VF6bEpHT2JvFwj3wzbWNG3La8fpfadP"),
    // Blocks in CIDs.
    case("", "--inline", File(0), "bafyaabqkaqeaegaa"),
    case("", "--inline", File(24), "bafyaaiakdyeaeeqyvvg7gc5oo4n5y5tanyblt3xqmq3gdehfshhao6yyda"),
    case("", "--inline", File(25), "QmfKmyRnfr2Cusky49CJhxom9ExKpSgfQ3HFYVGf5sTwQp"),
    case("", "--inline --cid-version=1", File(32), "bafkqaifnjxzqxltxdpohmydoak4654degzqzbzmrzydxw5gmru3aybk7ga"),
    case("", "--inline --cid-version=1", File(33), "bafkreifiuqh65qlqza6xc5johjrf2ujsslxcgiri5rb4rrfrifyejyig4e"),
    case("", "--inline --inline-limit=128 --cid-version=1", File(128), "bafkqbaabvvg7gc5oo4n5y5tanyblt3xqmq3gdehfshhao63uzsgtmdafl4yoyswfuhqbn2zmph5xwtwoduijpt7s5dlejyostlvhb5a2fz42vwml4lllbbkovloy5dkcjhj2tdupcwv6roh7ot2aqay725lepbnnf36rdj5n7b43yvm6qa55ng6ed4hb6ec2h7ujsinz75bv37dzkb3mk"),
    case("", "--inline --inline-limit=128 --cid-version=1 --chunker=size-100", File(1_050), "bafybeigm7vc2vjfxjshzsavozgprig526adlgqcp46fzconozxu6txqnwe"),
    case("", "--inline --inline-limit=128 --chunker=size-10", File(45), "QmcBRUgVuh71tScS27wFo2K8tA3zfM9bLw2bQ1RgHk9heE"),
    case("", "--inline --inline-limit=0", File(0), "QmbFMke1KXqnYyBBWxB74N4c5SBnJMVAiMNRcGu6x1AwQH"),
    case("", "--inline", Mixed, "QmUEgXSX9r7xJECUViAkgHbPvAhKeAKExZuKdU4HaX9KDV"),
    case("", "--inline --inline-limit=128 --cid-version=1", Mixed, "bafybeid4v4ng6xks4csi4mr64boe2avz2mz22plyddscsx3uyvtmq4ajma"),
    case("", "--inline Import.UnixFSHAMTDirectorySizeThreshold=1000B", Files(100), "QmeF22hXKVKoP3JX1q2VN31PXX8X1srBwTS7mfxAoe4y8u"),
    // Hash functions.
    case("", "--hash=blake3", File(1_000), "bafkr4if7nwiulnjtzsryaz3brxdkkziyf756ywznom4xfzmm6axkhugnii"),
    case("", "--hash=sha2-512", File(300_000), "bafybgqbil3r55gkqwafbymwqumqey4ivycsp4nyesrfkwbaa5byvqrm2yhadeubjmmzkbww5zysnc7mjz4mqsxwxa7bvvxm62qo7fjxhbdhrq"),
    case("", "--hash=blake2b-256", Mixed, "bafykbzaceaq3ne4o7uqdgv5drsph2njghpod4ce5b6rc42gb6xqbpj4pvfkzi"),
    case("", "--hash=blake2s-256", File(1_000), "bafk6bzaceanaapn63rpynot6ito2wfvrg5zj46jelqfdkmnmhey6g7etskc5c"),
    case("", "--hash=shake-256", File(1_000), "bafkrsqczh2qwkmtq6wjzsq2xjyg47ekcddd6pfms3jxwxlug2mxsc3pw4rwjjq5hcopcxyyq2cmc747fnlxcolj5xldqqby3ssjcfh6t43n5g"),
    case("", "--hash=sha3-256 --raw-leaves=false", File(1_000), "bafybmihu2mufce2h5ljyz5uqibuceki2flomvy2ltv6zxdhgqxanpe5pgu"),
    case("", "--hash=sha1", File(1_000), "bafkrcfagpip5ci3sn7dzwt7qfyet44eonxiziri"),
    case("", "--hash=blake3 --inline", File(33), "bafkr4iec57624rh2l2blcykjcac6poch4th5rrktq5tsjbgvo2dem7wstq"),
    // Modes and times.
    case("", "--preserve-mode", File(0), "QmQLgxypSNGNFTuUPGCecq6dDEjb6hNB5xSyVmP3cEuNtq"),
    case("", "--preserve-mode", File(1_000), "QmSgnBkiZsLpS2AGp8fBtufjMagrRRnJLVR3vp4yxxrqg4"),
    case("", "--preserve-mtime", File(1_000), "QmdGC3bauzZCb2FHQkD1GFCzcaE1YTWuokUg1dPTPTmm4r"),
    case("", "--preserve-mode --preserve-mtime", File(300_000), "QmcNVsxRxUXguDwZ6rVtKr5rT4nndoBRS8AbiiU219NAUQ"),
    case("", "--preserve-mode --preserve-mtime --cid-version=1", File(1_000), "bafybeic3rhnlo3mxd57t44zs73p4je7qlr2wpqwdurbmwn5x22dvh3eknm"),
    case("", "--preserve-mode --preserve-mtime --trickle", File(1_000), "QmWkUUWfCcKBReFqtW8sTTSR5hwEtsV5CkZXd9QJr3ukYx"),
    case("", "--preserve-mode", Mixed, "QmVrPpwCYQfrWj3CRYPxGhQyFwrku6JSestdhBQxZwvdjA"),
    case("", "--preserve-mtime", Mixed, "QmcUMJdXrKAP1owCeepJ7xz5zDUCgt73kwJGxsz8ef6b31"),
    case("", "--preserve-mode --preserve-mtime --cid-version=1", Mixed, "bafybeibhftv6hvc4bszlzi2yw5hkm57vv7zid7uvhhcgkf4eajy256pj2a"),
    case("", "--preserve-mode --preserve-mtime Import.UnixFSHAMTDirectorySizeThreshold=1000B", Files(100), "QmUt8Jb289WrbUREGnaqLMCYxfuiq4pDPtC9eXD7L6g7mT"),
    case("unixfs-v1-2025", "--raw-leaves=false --preserve-mode --preserve-mtime", Mixed, "bafybeibws253vig2b6jay2snlobm76laiwijmk2o3fryhgzkmmoeegqyse"),
    case("", "--mode=0755 --mtime=1700000000 --mtime-nsecs=5", File(1_000), "QmTNUSSszWiMwemgTq6obqGsomRbS9EuLDRgnsJZWGGTbc"),
    case("", "--mtime=-5 --mtime-nsecs=7", File(1_000), "QmcS2sENoyRAxAzsRxuqpJvAjcs6J3qr9nmc6yAy43nEN7"),
    case("", "--mode=0600", Mixed, "QmWj1fKya23RHRpvtwL5y59iWRAs6nqTEhjjGTTUyKDxUp"),
    case("", "--mode=0600 --mtime=77 -w", File(1), "Qmap8cYXiCbuRHUni1TUfhRXmEfSCciN2NxPM7AefhpeqX"),
    case("", "--preserve-mode --preserve-mtime -w", File(1), "QmPAbv2BNgrk236SY4H32AJDiYQt5raPbt7uKhJMgmFgKt"),
    // Directories.
    case("", "-w", File(0), "QmWHf6bijuKLiUADiRwZzkrTZ7t5XeCoaPQgKMLJ7zjbf5"),
    case("", "-w --cid-version=1", File(1_000), "bafybeigrror2qyfoylp76hqrfiwysifzzwykzowbdgzphera7vu3tpj5xi"),
    case("", "-w", Mixed, "QmcewphoTpi7mqm5Aj8KbcTgiY6oCSZZzEF2wFStGMEaGb"),
    case("", "", Mixed, "QmV7s5axV9nNac6L48ohYV9EVpQ4mcBRhff4xsUFGPCZgn"),
    case("", "--cid-version=1", Mixed, "bafybeialv5ocgvzjc5lxmi47j7auxi46oxqqsi7hp3lyz2cefeax6k5dfe"),
    case("", "--trickle --chunker=size-1000", Mixed, "QmXi5aNsLS1BL2bqaHC3nzvDoF7VjUMGMtVhFithGDn8Dw"),
    case("", "", Empties(0), "QmUNLLsPACCz1vLxQVkXqqLX5R1X345qqfHbsf67hvA3Nn"),
    case("", "--cid-version=1", Empties(0), "bafybeiczsscdsbs7ffqz55asqdf3smv6klcw3gofszvwlyarci47bgf354"),
    case("", "", Folders(3), "QmQrsXBiHUYwxrVzV9jewYvBMMfobLtJa7XU8VwF3kBg8n"),
    // Shards: by names and CIDs, by the block, by the number of entries.
    case("", "", Empties(6_553), "QmXznCMmJNQRq3oM37qABKnpDwzFasm2pT3DvkG6BSy7YQ"),
    case("", "", Empties(6_554), "QmeHDP5yaagxYm8DBwYHY1meTCXeyb22oMjbU5YjQvqgi4"),
    case("unixfs-v1-2025", "", Empties(5_242), "bafybeiciwoavvx5lvjuxwhtzsyntr4ysa2bft3yhv2dunw5esvuvilyocy"),
    case("unixfs-v1-2025", "", Empties(5_243), "bafybeig66t2qrz7j6c7h37jeo6fbtxfqnqjzekfj5uy33dbtquhc7rhp6u"),
    case("", "Import.UnixFSHAMTDirectorySizeThreshold=400B", Empties(10), "QmdjDzuQvj5zNtPxSiUXgFrA7cu5kym5PBdyhsPMJCUCY9"),
    case("", "Import.UnixFSHAMTDirectorySizeThreshold=399B", Empties(10), "QmQBqfsV4MrgWvFVMqUNVQorAPBt17E1vWYR5vNw3v5R42"),
    case("", "--preserve-mtime Import.UnixFSHAMTDirectorySizeThreshold=400B", Empties(10), "QmdExGcdjpXhEkEBb1bqWPnE5QniHPRwYQyoZNzK1LFJMG"),
    case("", "Import.UnixFSHAMTDirectorySizeEstimation=block Import.UnixFSHAMTDirectorySizeThreshold=484B", Empties(10), "QmdjDzuQvj5zNtPxSiUXgFrA7cu5kym5PBdyhsPMJCUCY9"),
    case("", "Import.UnixFSHAMTDirectorySizeEstimation=block Import.UnixFSHAMTDirectorySizeThreshold=483B", Empties(10), "QmQBqfsV4MrgWvFVMqUNVQorAPBt17E1vWYR5vNw3v5R42"),
    case("", "--preserve-mode --preserve-mtime Import.UnixFSHAMTDirectorySizeEstimation=block Import.UnixFSHAMTDirectorySizeThreshold=495B", Empties(10), "QmWJdfLJyVH7c8zNsavd49pkvB4rgiEw7wJ1hzdU8HiVtb"),
    case("", "--preserve-mode --preserve-mtime Import.UnixFSHAMTDirectorySizeEstimation=block Import.UnixFSHAMTDirectorySizeThreshold=494B", Empties(10), "QmaMAp8tUXr2z43ZyqtZEq8AAruiDbQ5idKUAqLinrNCFo"),
    case("unixfs-v1-2025", "Import.UnixFSHAMTDirectorySizeThreshold=1000B", Files(100), "bafybeigvbmjswt3zummotumiezvy6pzbg4gxw7yf5l347dz3in35tpzdze"),
    case("", "--max-directory-links=5", Empties(5), "QmU9XzdDMgHkne2AJWSXRzdYpjQB8qTMoWiiaNRiL5xPAz"),
    case("", "--max-directory-links=5", Empties(6), "QmW7NDpRh3SjE6VVDwx8vbJsoojnmDh15QBnDjRLbW2Lm4"),
    case("", "Import.UnixFSHAMTDirectorySizeEstimation=disabled", Empties(6_554), "QmbBVpJ8MXsfciuU6FQbW6jGqXBBQNBnL2ehbqZunweirp"),
    case("", "Import.UnixFSHAMTDirectorySizeEstimation=disabled --max-directory-links=50", Files(51), "QmTGfP9DBx9F4ud2xVRQocLi8NrkbYKTZ7d43oVrYc7pjW"),
    case("", "Import.UnixFSHAMTDirectorySizeThreshold=1000B", Files(1_000), "QmcbKAJ16C2GPJLaJdS53kch7Jttpo7hauvp93fMHxqZU2"),
    case("", "--max-hamt-fanout=8 Import.UnixFSHAMTDirectorySizeThreshold=1000B", Files(300), "QmUWpoF8WNCxHLeojdjcNYu8BTB2rpBDu6xnZXptQiKmi2"),
    case("", "--max-hamt-fanout=16 --cid-version=1 Import.UnixFSHAMTDirectorySizeThreshold=1000B", Files(300), "bafybeibhh2vtnd5qaf7cm3csmkpm7ti2g4uhmvl73gk4xxcgx26toitt3y"),
    case("", "--max-hamt-fanout=32 Import.UnixFSHAMTDirectorySizeThreshold=1000B", Files(300), "QmavDr6adQqE8D4cFmgyjDpL9brNdPsXNHjM3tNTvnTXjX"),
    case("", "--max-hamt-fanout=512 Import.UnixFSHAMTDirectorySizeThreshold=1000B", Files(300), "QmUoJHfz5hV94yZveGmKuHwiSQfM1kMd1LMFG1mJCtERzU"),
    case("", "--max-hamt-fanout=1024 --cid-version=1 Import.UnixFSHAMTDirectorySizeThreshold=1000B", Files(1_000), "bafybeifi5llb77ghqb76okaymbnhstualuafxbmes4ntlcpismih2bhbsi"),
    case("", "Import.UnixFSHAMTDirectorySizeThreshold=1000B", Folders(100), "QmauLJUNabhpJwKVjSTnf3L9XfAiPSADjb7J7PU6zfNJJJ"),
    case("", "--cid-version=1 --inline Import.UnixFSHAMTDirectorySizeThreshold=1000B", Folders(100), "bafybeicjvz2hfiie3rftfeonuix5wkci4bpnnloibz7ldqb4vfu5rzrggq"),
    case("", "-w --max-directory-links=2", Mixed, "QmV3LTquJMoXKbhxvQouyLRso9L5gQAmkg6WJnFcT1mrvH"),
];

#[test]
fn the_table_has_valid_cids() {
    for case in CASES {
        assert!(cid::parse(case.cid).is_ok(), "{} {:?}", case.flags, case.content);
    }
}
