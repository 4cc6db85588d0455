//! The fixtures: their names, their content, and which IPNS records are valid.
//!
//! The expected content is read from the CAR files here, and not through the code under test.

use bytes::Bytes;
use content::car::CarReader;
use content::codec;
use content::dagpb::PbNode;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// A directory with unusual names: `ą/ę/file-źł.txt`, and folders named `api`, `ipfs` and `ipns`.
pub const LISTING: &str = "bafybeig6ka5mlwkl4subqhaiatalkcleo4jgnr3hqwvpmsqfca27cijp3i";
pub const LISTING_FILE: &str = "bafkreialihlqnf5uwo4byh4n3cmwlntwqzxxs2fg5vanqdi3d7tb2l5xkm";
pub const LISTING_TEXT: &str = "I am a txt file on path with utf8\n";
/// `ą/ę`, percent-encoded.
pub const AE: &str = "%C4%85/%C4%99";

/// `root2/root3/root4/index.html`, from the outermost directory inwards.
pub const NESTED: [&str; 5] = [
    "bafybeib3ffl2teiqdncv3mkz4r23b5ctrwkzrrhctdbne6iboayxuxk5ui",
    "bafybeih2w7hjocxjg6g2ku25hvmd53zj7og4txpby3vsusfefw5rrg5sii",
    "bafybeiawdvhmjcz65x5egzx4iukxc72hg4woks6v6fvgyupiyt3oczk5ja",
    "bafybeifq2rzpqnqrsdupncmkmhs3ckxxjhuvdcbvydkgvch3ms24k5lo7q",
    "bafkreicysg23kiwv34eg2d7qweipxwosdo2py4ldv42nbauguluen5v6am",
];

/// `dir/ascii.txt`, from the outermost directory inwards.
pub const RAW: [&str; 3] = [
    "bafybeie72edlprgtlwwctzljf6gkn2wnlrddqjbkxo3jomh4n7omwblxly",
    "bafybeifaqksygmsbnqe76kwvxoqxtkzcwssq5jkhuo65ldtqiunr3bxlra",
    "bafkreihhpc5y2pqvl5rbe5uuyhqjouybfs3rvlmisccgzue2kkt5zq6upq",
];

/// `ascii.txt` and `ascii-copy.txt`, which are the same block, `hello.txt` and `multiblock.txt`.
pub const FILES: &str = "bafybeihchr7vmgjaasntayyatmp5sv6xza57iy2h4xj7g46bpjij6yhrmy";
pub const ASCII: &str = "bafkreifkam6ns4aoolg3wedr4uzrs3kvq66p4pecirz6y2vlrngla62mxm";
pub const HELLO_WORLD: &str = "bafkreifjjcie6lypi6ny7amxnfftagclbuxndqonfipmb64f2km2devei4";
/// 1026 bytes in leaves of 256.
pub const MULTIBLOCK: &str = "bafybeigcisqd7m5nf3qmuvjdbakl5bdnh4ocrmacaqkpuh77qjvggmt2sa";
pub const LEAVES: [&str; 5] = [
    "bafkreie5noke3mb7hqxukzcy73nl23k6lxszxi5w3dtmuwz62wnvkpsscm",
    "bafkreih4ephajybraj6wnxsbwjwa77fukurtpl7oj7t7pfq545duhot7cq",
    "bafkreigu7buvm3cfunb35766dn7tmqyh2um62zcio63en2btvxuybgcpue",
    "bafkreicll3huefkc3qnrzeony7zcfo7cr3nbx64hnxrqzsixpceg332fhe",
    "bafkreifst3pqztuvj57lycamoi7z34b4emf7gawxs74nwrc2c7jncmpaqm",
];

/// A file named `Portugal%2C+España=Peninsula Ibérica.txt`.
pub const PERCENT: &str = "bafybeig675grnxcmshiuzdaz2xalm6ef4thxxds6o6ypakpghm5kghpc34";
/// That name, percent-encoded.
pub const PERCENT_NAME: &str = "Portugal%252C+Espa%C3%B1a=Peninsula%20Ib%C3%A9rica.txt";
/// `foo`, and `bar`, which is a symlink to it.
pub const SYMLINK: &str = "QmWvY6FaqFMS89YAQ9NAPjVP4WZKA1qbHbicc9HeSKQTgt";

/// Three leaves of 1 KiB, of which the second is not available.
pub const MISSING: &str = "QmYhmPjhFjYFyaoiuNzYv8WGavpSRDwdHWe5B4M5du5Rtk";
pub const MISSING_FIRST: &str = "QmPKt7ptM2ZYSGPUc8PmPT2VBkLDK3iqpG9TBJY7PCE9rF";
pub const MISSING_THIRD: &str = "QmWXY482zQdwecnfBsj78poUUuPXvyw2JAFAEMw4tzTavV";
/// Content that is not available.
pub const NOBODYS: &str = "QmYzfKSE55XCjD1MW128RfciAf2DViABhEiXfgVFMabSjN";
pub const NOBODYS_RAW: &str = "bafkreidon73zkcrwdb5iafqtijxildoonbwnpv7dyd6ef3qdgads2jc4su";

/// A sharded directory of a thousand names for [`MULTIBLOCK`].
pub const HAMT: &str = "bafybeidbclfqleg2uojchspzd4bob56dqetqjsj27gy2cq3klkkgxtpn4i";
/// The shards that `1.txt` and `685.txt` are in.
pub const HAMT_SHARD_OF_1: &str = "bafybeiawjmzmi5c6v5h75nepfpx7jj5ns5t54girned3kilvakmhctxlxy";
pub const HAMT_SHARD_OF_685: &str = "bafybeifajm5xyg46n4hjxg7clq2f7vcn7eg7bn3yevylcemr6vd7mp6gta";
/// `subdir` with `ascii.txt` and `hello.txt`.
pub const TWO: &str = "bafybeietjm63oynimmv5yyqay33nui4y4wx6u3peezwetxgiwvfmelutzu";
pub const TWO_SUBDIR: &str = "bafybeiggghzz6dlue3m6nb2dttnbrygxh3lrjl5764f2m4gq7dgzdt55o4";
/// `subdir` with `ascii.txt`, `hello.txt` and `multiblock.txt`.
pub const MIXED: &str = "bafybeidh6k2vzukelqtrjsmd4p52cpmltd2ufqrdtdg6yigi73in672fwu";
pub const MIXED_SUBDIR: &str = "bafybeicnmple4ehlz3ostv2sbojz3zhh5q7tz5r2qkfdpqfilgggeen7xm";
/// A dag-cbor `document` in a directory, which links to [`HELLO_WORLD`] and [`MULTIBLOCK`] as `files/single` and
/// `files/multiblock`.
pub const WITH_DOCUMENT: &str = "bafybeia264q44a3kmfc2otctzu4egp2k235o3t7mslz2yjraymp4nv6asi";
pub const DOCUMENT: &str = "bafyreidy4q6mmetut5jzc54ambsfnatbyoujmwbfzyyolqw24majazwgha";

/// `../foo` beside the root.
pub const TAR_OUTSIDE: &str = "bafybeicaj7kvxpcv4neaqzwhrqqmdstu4dhrwfpknrgebq6nzcecfucvyu";
/// `foobar/directory/../file`.
pub const TAR_INSIDE: &str = "bafybeibfevfxlvxp5vxobr5oapczpf7resxnleb7tkqmdorc4gl5cdva3y";

/// JSON text in UnixFS.
pub const JSON_FILE: &str = "bafkreibrppizs3g7axs2jdlnjua6vgpmltv7k72l7v7sa6mmht6mne3qqe";
pub const PLAIN_JSON: &str = "bagaaierajjsnhsxqlgfrvknlt7z2heoljcgfv37cn45tu7mhmr23x3ekiboq";
pub const PLAIN_CBOR: &str = "bafireif3aymeikgfbofx533yf5vlx4kimzq6zmzmpra2mnzfsfnmv4hchm";
/// Plain JSON and plain CBOR that would be valid dag-json and dag-cbor too.
pub const STRICT_JSON: &str = "bagaaieraonzu3mlwidrcjnpqd2ibmjiiycnfucdzotvjq5ajubwnkmlzomrq";
pub const STRICT_CBOR: &str = "bafireidluuxmsc4uzpqkcq547wavvod7rrq2v7yixuvdy2qu3eqkbvycsu";
/// Documents in which `foo/link` leads to a second one, and there `bar` to a third.
pub const DAG_JSON: &str = "baguqeeram5ujjqrwheyaty3w5gdsmoz6vittchvhk723jjqxk7hakxkd47xq";
pub const DAG_CBOR: &str = "bafyreibs4utpgbn7uqegmd2goqz4bkyflre2ek2iwv743fhvylwi4zeeim";
pub const DAG_JSON_END: &str = "baguqeerabz2ohuxlrfgan3sxrgsfeyi5woxikwoiun5i5cesn2zgp3evmy4q";
pub const DAG_CBOR_END: &str = "bafyreiaefvpp22slf5bzd4lqgzwbztqahwlldtqkpgmlhv7mh23pudle7y";
/// A directory of dag-pb; `dag-pb.json` is its dag-json representation.
pub const DAG_PB: &str = "bafybeiegxwlgmoh2cny7qlolykdf7aq7g6dlommarldrbm7c4hbckhfcke";

/// "hello" as CIDv1, as CIDv0, that as CIDv1, and under a hash that is too long for a DNS label.
pub const HELLO: &str = "bafkreicysg23kiwv34eg2d7qweipxwosdo2py4ldv42nbauguluen5v6am";
pub const HELLO_V0: &str = "QmZULkCELmmk5XNfCgTnCyFgAVxBRBXyDHGGMVoLFLiXEN";
pub const HELLO_V0_AS_V1: &str = "bafybeiffndsajwhk3lwjewwdxqntmjm4b5wxaaanokonsggenkbw6slwk4";
pub const HELLO_LONG: &str = "bafkrgqhhyivzstcz3hhswshfjgy6ertgmnqeleynhwt4dlfsthi4hn7zgh4uvlsb5xncykzapi3ocd4lzogukir6ksdy6\
                              wzrnz6ohnv4aglcs";
pub const HELLO_TEXT: &str = "hello\n";
/// `hello`, `api/file.txt`, `ipfs/file.txt` and `ipfs/ipns/bar`.
pub const ORIGIN_DIR: &str = "bafybeiht6dtwk3les7vqm6ibpvz6qpohidvlshsfyr7l5mpysdw2vmbbhe";

/// Websites with a `_redirects` file, as subdomain labels.
pub const REDIRECTS: &str = "bafybeiesjgoros75o5meijhfvnxmy7kzkynhqijlzmypw3nry6nvsjqkzy";
pub const REDIRECTS_BAD_CODES: &str = "bafybeignwkoxmt6a2l3jyvph4m2pmfctvqlom7znwufpkpzgoxtuyjptea";
pub const REDIRECTS_FORCED: &str = "bafybeicv4452oppsenilwr54bcej2xxr5olcwu3y5xc2k3lemvrvtokljm";
pub const REDIRECTS_GOOD_CODES: &str = "bafybeidweedjvp3uvnnj63vdavdkmva76ogc3veurukknvpnmtumpfyhcm";
pub const REDIRECTS_CRLF: &str = "bafybeie6hxr2huda5imzvblcwgxuddackbw5wi35elm3jzeuk4v2ul54kq";
pub const REDIRECTS_TOO_LARGE: &str = "bafybeia7qpipssvt5ric7m2kuzgnj454njcz5q6vj3fqq67be2dm7r522m";
pub const REDIRECTS_INVALID: &str = "bafybeibrxzg63d3e7tgpxyvcaqesf52n7xgymmvfm27gkebsztpjgxtuhq";
pub const REDIRECTS_SPA: &str = "bafybeib5lboymwd6p2eo4qb2lkueaine577flvsjjeuevmp2nlio72xv5q";
pub const PAGE_404: &str = "Qmd9GD7Bauh6N2ZLfNnYS3b7QVAijbud83b8GE8LPMNBBP";
pub const PAGE_410: &str = "QmSmR9NShZ89VEBrn9SBy7Xxvjw8Qe6XArD5GqtHvbtBM3";
pub const PAGE_451: &str = "QmVQqj9oZig9tH3ENHo4bxV5pNgssUwFCXUjAJAVcZVbJG";

/// To [`NESTED`], and to `root2` in it.
pub const KEY_NESTED: &str = "k51qzi5uqu5dlxdsdu5fpuu7h69wu4ohp32iwm9pdt9nq3y5rpn3ln9j12zfhe";
pub const KEY_NESTED_SUB: &str = "k51qzi5uqu5djokp3m1keo36hoxtd6u3a1d2rg1camf6al7p3huy63dojlm57c";
/// To [`DAG_JSON`] and [`DAG_CBOR`].
pub const KEY_DAG_JSON: &str = "k51qzi5uqu5dhjghbwdvbo6mi40htrq6e2z4pwgp15pgv3ho1azvidttzh8yy2";
pub const KEY_DAG_CBOR: &str = "k51qzi5uqu5dghjous0agrwavl8vzl64xckoqzwqeqwudfr74kfd11zcyk3b7l";
/// An RSA and an Ed25519 key, to [`HELLO`]: as peer id, as CIDv1, and as a CIDv1 with the wrong codec.
pub const KEY_RSA: [&str; 3] = [
    "QmVujd5Vb7moysJj8itnGufN7MEtPRCNHkKpNuA4onsRa3",
    "k2k4r8m7xvggw5pxxk3abrkwyer625hg01hfyggrai7lk1m63fuihi7w",
    "k2jmtxu61bnhrtj301lw7zizknztocdbeqhxgv76l2q9t36fn9jbzipo",
];
pub const KEY_ED25519: [&str; 3] = [
    "12D3KooWLQzUv2FHWGVPXTXSZpdHs7oHbXub2G5WC8Tx4NQhyd2d",
    "k51qzi5uqu5dk3v4rmjber23h16xnr23bsggmqqil9z2gduiis5se8dht36dam",
    "k50rm9yjlt0jey4fqg6wafvqprktgbkpgkqdg27tpqje6iimzxewnhvtin9hhq",
];
/// Signed with V1 and V2, with V2 only, and with an invalid V1 signature: valid, each with its value.
pub const KEY_V1_V2: (&str, &str) =
    ("k51qzi5uqu5dlkw8pxuw9qmqayfdeh4kfebhmreauqdc6a7c3y7d5i9fi8mk9w", "/ipfs/bafkqaddwgevxmmraojswg33smq");
pub const KEY_V2: (&str, &str) =
    ("k51qzi5uqu5dit2ku9mutlfgwyz8u730on38kd10m97m36bjt66my99hb6103f", "/ipfs/bafkqadtwgiww63tmpeqhezldn5zgi");
pub const KEY_BROKEN_V1: (&str, &str) = (
    "k51qzi5uqu5dilgf7gorsh9vcqqq4myo6jd4zmqkuy9pxyxi5fua3uf7axph4y",
    "/ipfs/bafkqahtwgevxmmrao5uxi2bamjzg623fnyqhg2lhnzqxi5lsmuqhmmi",
);
/// Signed with V1 only, with different values, and with an invalid V2 signature: invalid.
pub const KEYS_BAD: [&str; 3] = [
    "k51qzi5uqu5dm4tm0wt8srkg9h9suud4wuiwjimndrkydqm81cqtlb5ak6p7ku",
    "k51qzi5uqu5dlmit2tuwdvnx4sbnyqgmvbxftl0eo3f33wwtb9gr7yozae9kpw",
    "k51qzi5uqu5diamp7qnnvs1p1gzmku3eijkeijs3418j23j077zrkok63xdm8c",
];

/// The folder of the fixtures.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/conformance")
}

/// The files with an extension.
pub fn files(ending: &str) -> Vec<PathBuf> {
    let entries = |folder: PathBuf| {
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        entries.map(|entry| entry.expect("a readable folder").path())
    };
    let (folders, files): (Vec<PathBuf>, Vec<PathBuf>) = entries(folder()).partition(|path| path.is_dir());
    let files = files.into_iter().chain(folders.into_iter().flat_map(entries));
    let mut files: Vec<PathBuf> = files.filter(|path| path.to_string_lossy().ends_with(ending)).collect();
    files.sort();
    assert!(!files.is_empty(), "no fixture ends in {ending}");
    files
}

/// The IPNS records, each with the IPNS name in its file name.
pub fn records() -> Vec<(String, PathBuf)> {
    let name = |path: &PathBuf| {
        let file = path.file_stem().expect("a file name").to_string_lossy().into_owned();
        file.split('_').next().unwrap_or_default().to_owned()
    };
    files(".ipns-record").into_iter().map(|path| (name(&path), path)).collect()
}

static BLOCKS: LazyLock<HashMap<String, Bytes>> = LazyLock::new(|| {
    let cars = files(".car").into_iter().map(|path| std::fs::read(path).expect("a readable file"));
    cars.flat_map(|car| read_car(&car).expect("a good CAR")).collect()
});

/// The blocks of a CAR in their order, each verified, with its CID.
pub fn read_car(mut car: &[u8]) -> Result<Vec<(String, Bytes)>, String> {
    // Reading from memory is immediate.
    futures::executor::block_on(async {
        let mut reader = CarReader::new(&mut car).await.map_err(|error| error.to_string())?;
        let mut blocks = Vec::new();
        while let Some(block) = reader.next_block().await {
            let block = block.map_err(|error| error.to_string())?;
            blocks.push((block.cid().to_string(), block.data().clone()));
        }
        Ok(blocks)
    })
}

/// The bytes of a block.
pub fn block(cid: &str) -> Bytes {
    BLOCKS.get(cid).unwrap_or_else(|| panic!("no fixture has {cid}")).clone()
}

/// The content of a file whose leaves are raw blocks.
pub fn file(cid: &str) -> Bytes {
    let parsed = content::cid::parse(cid).expect("a CID");
    if parsed.codec() == codec::RAW {
        return block(cid);
    }
    links(cid).iter().flat_map(|(_, leaf)| block(leaf)).collect()
}

/// The names and CIDs of a dag-pb block's links, in their order.
pub fn links(cid: &str) -> Vec<(String, String)> {
    let node = PbNode::decode(block(cid)).expect("dag-pb");
    let links = node.links().map(|link| {
        let link = link.expect("a good link");
        (String::from_utf8_lossy(link.name).into_owned(), link.cid().expect("a good CID").to_string())
    });
    links.collect()
}

/// The bytes inside an inline CID at the end of a path.
pub fn inline(path: &str) -> Bytes {
    let cid = content::cid::parse(path.trim_start_matches("/ipfs/")).expect("a CID");
    content::Block::inline(&cid).expect("an identity CID").data().clone()
}

#[test]
fn the_fixtures_match_the_tables() {
    assert_eq!(file(MULTIBLOCK).len(), 1026);
    assert_eq!(links(MULTIBLOCK).into_iter().map(|(_, cid)| cid).collect::<Vec<_>>(), LEAVES);
    assert_eq!(links(NESTED[0]), [("root2".to_owned(), NESTED[1].to_owned())]);
    assert_eq!(links(HAMT).len(), 252);
    assert!(!BLOCKS.contains_key(&links(MISSING)[1].1));
    assert_eq!(inline(KEY_V2.1), b"v2-only record"[..]);
    assert_eq!(records().len(), 12);
}
