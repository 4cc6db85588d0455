//! Keys and publications, in files and in a site, pass the same checks; and what is particular to a site.

use super::key_format::{KeyFormat, KeyKind};
use super::keystore::{KEYS_MAX, KeyError, Keystore, SELF};
use super::publish::{KnownRecords, PublishError, Published, Terms, sign};
use super::shared::{ChangeFor, KnownNames, NameChange, SharedNames};
use super::store::NameStore;
use content::names::Key;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use tokio::sync::watch;

const VALUE: &str = "/ipfs/bafkqaddjnzzxazldoqwxizltoq";

/// The shared names of a site, in memory. Its gateways have the same one.
#[derive(Default)]
pub struct MemorySite {
    known: watch::Sender<Arc<KnownNames>>,
    /// Held while something is changed.
    changing: Mutex<()>,
    /// The names that a gateway works for.
    claimed: Mutex<HashSet<Key>>,
    /// How often each name was claimed.
    claims: Mutex<HashMap<Key, usize>>,
    /// How often work was cancelled under a claim.
    cancelled: AtomicUsize,
    /// It cannot be reached.
    pub is_away: AtomicBool,
}

impl MemorySite {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Whether a gateway works for a name.
    pub fn is_claimed(&self, key: &Key) -> bool {
        self.claimed.lock().expect("no panics").contains(key)
    }

    /// How often a name was claimed.
    pub fn claims(&self, key: &Key) -> usize {
        self.claims.lock().expect("no panics").get(key).copied().unwrap_or_default()
    }

    /// How often work was cancelled under a claim, which would not have been released in a database.
    pub fn cancelled(&self) -> usize {
        self.cancelled.load(Ordering::Relaxed)
    }
}

/// Releases a claim when the work ends, or is cancelled.
struct Release<'a> {
    site: &'a MemorySite,
    key: Key,
    has_ended: bool,
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.site.claimed.lock().expect("no panics").remove(&self.key);
        self.site.cancelled.fetch_add(usize::from(!self.has_ended), Ordering::Relaxed);
    }
}

impl SharedNames for MemorySite {
    fn watch(&self) -> watch::Receiver<Arc<KnownNames>> {
        self.known.subscribe()
    }

    fn change(&self, _: ChangeFor, decide: &mut dyn FnMut(&KnownNames) -> Vec<NameChange>) -> Result<(), KeyError> {
        if self.is_away.load(Ordering::Relaxed) {
            return Err(KeyError::Unavailable { reason: "no route".to_owned() });
        }
        let _changing = self.changing.lock().expect("no panics");
        // A first decision is made on what is out of date.
        _ = decide(&KnownNames::default());
        let mut known = KnownNames::clone(&self.known.borrow());
        for change in decide(&known) {
            known.apply(change).expect("a valid key");
        }
        self.known.send_replace(Arc::new(known));
        Ok(())
    }

    fn work<'a>(&'a self, key: Key, work: BoxFuture<'a, ()>) -> BoxFuture<'a, Result<(), Duration>> {
        async move {
            if self.is_away.load(Ordering::Relaxed) || !self.claimed.lock().expect("no panics").insert(key) {
                return Err(Duration::from_millis(5));
            }
            *self.claims.lock().expect("no panics").entry(key).or_default() += 1;
            let mut release = Release { site: self, key, has_ended: false };
            work.await;
            release.has_ended = true;
            Ok(())
        }
        .boxed()
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

pub fn open(dir: &Path, site: Option<&Arc<MemorySite>>) -> NameStore {
    let own = Keystore::open(dir, Duration::ZERO).expect("opens");
    NameStore::open(dir, own, site.map(|site| Arc::clone(site) as _)).expect("opens")
}

fn names(store: &NameStore) -> Vec<String> {
    store.list().into_iter().map(|info| info.name).collect()
}

fn publish(store: &NameStore, name: &str) -> Result<Published, PublishError> {
    let key = store.get(name)?.0.key;
    let terms = Terms { lifetime: Duration::from_secs(3600), ttl: Duration::from_secs(60) };
    sign(store, &key, VALUE, terms, KnownRecords::default(), SystemTime::now())
}

/// What holds for keys in files and for those of a site.
fn check_keys(store: &NameStore, of_site: bool) {
    let blog = store.create("blog", KeyKind::Ed25519).expect("creates");
    let other = store.create("other", KeyKind::Secp256k1).expect("creates");
    assert!(blog.of_site == of_site && other.of_site == of_site);
    assert_eq!(names(store), ["blog", "other", SELF]);
    assert!(!store.get(SELF).expect("self").0.of_site);
    assert_eq!(store.get("blog").expect("is there").0, blog);
    assert_eq!(store.get(&blog.key.to_string()).expect("by its ID").0, blog);
    assert_eq!(store.find(&blog.key).expect("is there").0, blog);
    for refused in [store.create("blog", KeyKind::Ed25519).err(), store.rename("other", "blog").err()] {
        assert!(matches!(refused, Some(KeyError::Exists(_))), "{refused:?}");
    }
    for refused in [store.create(SELF, KeyKind::Ed25519).err(), store.rename("blog", SELF).err()] {
        assert!(matches!(refused, Some(KeyError::Reserved)), "{refused:?}");
    }
    assert!(matches!(store.remove(SELF), Err(PublishError::Key(KeyError::Reserved))));
    let own_id = store.get(SELF).expect("self").0.key.to_string();
    assert!(matches!(store.remove(&own_id), Err(PublishError::Key(KeyError::Reserved))));
    assert!(matches!(store.export(SELF, KeyFormat::Protobuf), Err(KeyError::Reserved)));
    for name in ["../x", "", ".hidden", "a b"] {
        assert!(matches!(store.create(name, KeyKind::Ed25519), Err(KeyError::Name(_))), "{name}");
    }
    let pem = store.export("blog", KeyFormat::Pem).expect("exports");
    assert!(matches!(store.import("again", None, &pem), Err(KeyError::Known(name)) if name == "blog"));

    assert_eq!(publish(store, "blog").expect("publishes").record.sequence(), 0);
    assert_eq!(publish(store, "blog").expect("publishes").record.sequence(), 1);
    assert!(matches!(publish(store, "missing"), Err(PublishError::Key(KeyError::Missing(_)))));
    let unchanged = store.change(&blog.key, &|before, _| {
        assert!(before.is_none_or(|before| before.record.sequence() == 1));
        Ok(None)
    });
    assert_eq!(unchanged.expect("nothing to do"), None);
    let refused = store.change(&blog.key, &|_, _| Err(PublishError::Loop));
    assert!(matches!(refused, Err(PublishError::Loop)));
    let renamed = store.rename("blog", "page").expect("renames");
    assert_eq!((renamed.name.as_str(), renamed.key), ("page", blog.key));
    assert_eq!(store.export("page", KeyFormat::Pem).expect("exports"), pem);
    let published = store.publication(&blog.key).expect("a new name is no matter");
    assert_eq!(store.publications(), [published]);
    assert!(matches!(store.rename("blog", "x"), Err(KeyError::Missing(_))));

    assert_eq!(store.remove("page").expect("removes").key, blog.key);
    assert!(store.publications().is_empty() && store.publication(&blog.key).is_none());
    assert!(matches!(store.remove("page"), Err(PublishError::Key(KeyError::Missing(_)))));
    assert!(matches!(store.change(&blog.key, &|_, _| Ok(None)), Err(PublishError::Key(KeyError::Missing(_)))));
    assert_eq!(store.import("blog", None, &pem).expect("imports").key, blog.key);
    assert_eq!(names(store), ["blog", "other", SELF]);
}

#[test]
fn keys_in_files_and_those_of_a_site_pass_the_same_checks() {
    let (dir, site) = (folder(), MemorySite::new());
    check_keys(&open(dir.path(), None), false);
    let dir = folder();
    check_keys(&open(dir.path(), Some(&site)), true);
    assert!(std::fs::read_dir(dir.path().join("keys")).expect("the folder").next().is_none(), "nothing is in files");
}

#[test]
fn keys_of_one_gateway_are_those_of_all() {
    let (site, dirs) = (MemorySite::new(), [folder(), folder()]);
    let [one, other] = [open(dirs[0].path(), Some(&site)), open(dirs[1].path(), Some(&site))];
    let blog = one.create("blog", KeyKind::Ed25519).expect("creates");
    assert_eq!(other.get("blog").expect("is there").0, blog);
    assert_eq!(publish(&one, "blog").expect("publishes").record.sequence(), 0);
    assert_eq!(publish(&other, "blog").expect("publishes").record.sequence(), 1);
    assert_ne!(one.get(SELF).expect("self").0, other.get(SELF).expect("self").0);
    let of_one = one.get(SELF).expect("self").0.key;
    assert!(publish(&one, SELF).is_ok() && other.publication(&of_one).is_none(), "self is not shared");
    other.remove("blog").expect("removes");
    assert!(one.publications().iter().all(|entry| entry.key == of_one));
}

/// A gateway that had keys before keeps them, and names that mean two keys are an error.
#[test]
fn keys_that_a_gateway_had_stay_its_own() {
    let (site, dirs) = (MemorySite::new(), [folder(), folder()]);
    let before = open(dirs[0].path(), None);
    let (blog, wiki) = (before.create("blog", KeyKind::Ed25519), before.create("wiki", KeyKind::Ed25519));
    let (blog, wiki) = (blog.expect("creates"), wiki.expect("creates"));
    let pem = before.export("wiki", KeyFormat::Pem).expect("exports");
    assert_eq!(publish(&before, "wiki").expect("publishes").record.sequence(), 0);
    drop(before);
    let [one, other] = [open(dirs[0].path(), Some(&site)), open(dirs[1].path(), Some(&site))];
    assert_eq!(names(&one), ["blog", SELF, "wiki"]);
    assert_eq!(names(&other), [SELF]);
    assert!(matches!(one.create("blog", KeyKind::Ed25519), Err(KeyError::OfGateway(name)) if name == "blog"));
    // Another gateway does not know of it.
    let of_site = other.create("blog", KeyKind::Ed25519).expect("creates");
    for refused in [one.get("blog").map(|_| ()), one.rename("blog", "x").map(|_| ())] {
        assert!(matches!(refused, Err(KeyError::Ambiguous { own, .. }) if own == blog.key), "{refused:?}");
    }
    assert!(matches!(one.export("blog", KeyFormat::Pem), Err(KeyError::Ambiguous { .. })));
    let peek = |name: &str| NameStore::peek(dirs[0].path(), Some(&*site), name, KeyFormat::Pem);
    assert!(matches!(peek("blog"), Err(KeyError::Ambiguous { .. })));
    assert!(matches!(one.rename("wiki", "blog"), Err(KeyError::Exists(_))));
    assert!(!one.rename(&blog.key.to_string(), "old-blog").expect("by its ID").of_site);
    assert_eq!(one.get("blog").expect("is clear now").0, of_site);

    // A key of a gateway becomes one of the site after it was removed there.
    for name in ["wiki", "page"] {
        assert!(matches!(one.import(name, None, &pem), Err(KeyError::OwnKey(own)) if own == "wiki"), "{name}");
    }
    assert_eq!(one.publication(&wiki.key).expect("is published").record.sequence(), 0);
    one.remove("wiki").expect("removes");
    let moved = one.import("wiki", None, &pem).expect("imports");
    assert!(moved.of_site && moved.key == wiki.key && names(&one) == ["blog", "old-blog", SELF, "wiki"]);
    assert_eq!((one.publication(&wiki.key), other.publication(&wiki.key)), (None, None));
    let published = publish(&other, "wiki").expect("publishes");
    assert_eq!(one.publication(&wiki.key), Some(published));
    assert_eq!(peek("wiki").expect("reads"), pem);
    assert_eq!(peek(&wiki.key.to_string()).expect("reads"), pem);
    assert!(peek("old-blog").is_ok() && matches!(peek("none"), Err(KeyError::Missing(_))));
    other.remove("wiki").expect("removes");
    assert!(one.publications().is_empty() && !names(&one).contains(&"wiki".to_owned()), "no file is left");
    // Another gateway imports a key that this one has: that of the site is used while there is one.
    let own = one.export("old-blog", KeyFormat::Pem).expect("exports");
    other.import("shared", None, &own).expect("imports");
    assert!(matches!(one.import("again", None, &own), Err(KeyError::Known(name)) if name == "shared"));
    assert_eq!(names(&one), ["blog", SELF, "shared"]);
    other.remove("shared").expect("removes");
    // The identity of a gateway is no key of the site.
    let own = Keystore::open(dirs[1].path(), Duration::ZERO);
    assert!(own.is_err(), "it is in use");
    let identity = one.get(SELF).expect("self").1.to_protobuf_encoding().expect("encodes");
    assert!(matches!(one.import("me", None, &identity), Err(KeyError::Known(name)) if name == SELF));
    // Another gateway cannot know that it is one.
    other.import("me", None, &identity).expect("imports");
    assert!(!one.get(SELF).expect("self").0.of_site && names(&one).contains(&SELF.to_owned()));
}

#[test]
fn what_is_known_can_be_read_while_the_site_cannot_be_changed() {
    let (site, dir) = (MemorySite::new(), folder());
    let store = open(dir.path(), Some(&site));
    let blog = store.create("blog", KeyKind::Ed25519).expect("creates");
    publish(&store, "blog").expect("publishes");
    site.is_away.store(true, Ordering::Relaxed);
    let is_away = |error: Option<KeyError>| matches!(error, Some(KeyError::Unavailable { .. }));
    assert!(is_away(store.create("other", KeyKind::Ed25519).err()));
    assert!(is_away(store.rename("blog", "x").err()));
    assert!(matches!(store.remove("blog"), Err(PublishError::Key(KeyError::Unavailable { .. }))));
    assert!(matches!(publish(&store, "blog"), Err(PublishError::Key(KeyError::Unavailable { .. }))));
    assert_eq!((names(&store).len(), store.publications().len()), (2, 1));
    assert!(store.get("blog").expect("is known").0 == blog && publish(&store, SELF).is_ok());
}

/// Names of a site are published for long enough that another gateway can continue.
#[test]
fn names_of_a_site_have_a_minimum_lifetime() {
    let (site, dir) = (MemorySite::new(), folder());
    let store = open(dir.path(), Some(&site));
    store.create("blog", KeyKind::Ed25519).expect("creates");
    for (name, lifetime, is_refused) in [("blog", 299, true), ("blog", 300, false), (SELF, 299, false)] {
        let key = store.get(name).expect("is there").0.key;
        let terms = Terms { lifetime: Duration::from_secs(lifetime), ttl: Duration::from_secs(60) };
        let signed = sign(&store, &key, VALUE, terms, KnownRecords::default(), SystemTime::now());
        assert_eq!(matches!(signed, Err(PublishError::SharedLifetime)), is_refused, "{name} {lifetime}");
        assert_eq!(store.publication(&key).is_some(), !is_refused, "{name} {lifetime}");
    }
}

#[test]
fn the_number_of_keys_is_limited_and_unreadable_ones_keep_their_names() {
    let (site, dir) = (MemorySite::new(), folder());
    let store = open(dir.path(), Some(&site));
    let mut known = KnownNames::default();
    (0..KEYS_MAX).for_each(|n| known.put_unreadable_key(&format!("key-{n}")));
    site.known.send_replace(Arc::new(known.clone()));
    assert!(matches!(store.create("more", KeyKind::Ed25519), Err(KeyError::Full)));
    known.remove_key("key-0");
    site.known.send_replace(Arc::new(known));
    assert!(matches!(store.create("key-1", KeyKind::Ed25519), Err(KeyError::Exists(_))));
    assert!(store.create("more", KeyKind::Ed25519).is_ok());
    assert_eq!(names(&store), ["more", SELF]);
}
