//! [`NameStore`]: the keys of a node and its published names, wherever they are stored.
//!
//! | | keys | publications |
//! |---|---|---|
//! | of the node itself: files | [`Keystore`] | [`PublicationStore`] |
//! | of all gateways of a site, if they share them | [`SharedNames`] | the same |
//!
//! Goals: callers need not know where a key is. With shared names, a new key is one of the site; the key `self`, and
//! those that the gateway had before, stay its own. If the site has the same key as the gateway, that of the site is
//! used, and the file is left as it is.
//!
//! Non-goals: putting records ([`super::publish`]).

use super::key_format::{KeyFormat, KeyKind, Secret};
use super::keystore::{KeyError, KeyInfo, Keystore, LoadedKey, SELF, check_not_self, missing};
use super::publish::{PublicationStore, PublishError, Published};
use super::shared::{self, ChangeFor, KnownNames, SharedNames};
use content::names::Key;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use libp2p::identity::Keypair;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// A change of a publication: what replaces the current one, or `None` if it stays. It may be asked again.
pub type PublicationChange<'a> = dyn Fn(Option<&Published>, &Keypair) -> Result<Option<Published>, PublishError> + 'a;

/// The keys of a node and its published names. Changes wait for the disk or for other gateways, and are made on threads
/// of Tokio's that may block.
pub struct NameStore {
    own: Keystore,
    book: PublicationStore,
    shared: Option<Arc<dyn SharedNames>>,
    /// The keys of the gateway that the site has as well, as far as they were logged.
    logged: Mutex<BTreeSet<Key>>,
}

/// Where a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Own,
    Shared,
}

impl NameStore {
    /// The keys and publications below a folder, whose keystore the caller has opened, and the shared ones.
    ///
    /// # Errors
    /// [`PublishError::Io`] if the publications cannot be read.
    pub fn open(state_dir: &Path, own: Keystore, shared: Option<Arc<dyn SharedNames>>) -> Result<Self, PublishError> {
        let store = Self { own, book: PublicationStore::open(state_dir)?, shared, logged: Mutex::default() };
        store.log_unused();
        Ok(store)
    }

    /// Reads a private key without the lock of the keystore below a folder.
    ///
    /// # Errors
    /// [`KeyError::Missing`], [`KeyError::Ambiguous`], or an error of reading it.
    pub fn peek(
        state_dir: &Path,
        shared: Option<&dyn SharedNames>,
        name: &str,
        format: KeyFormat,
    ) -> Result<Vec<u8>, KeyError> {
        let in_file = || Keystore::peek(state_dir, name, format);
        let Some(shared) = shared else { return in_file() };
        check_not_self(name)?;
        let known = Arc::clone(&shared.watch().borrow());
        let own = Keystore::peek(state_dir, name, KeyFormat::Protobuf).ok().and_then(|bytes| key_of(&bytes));
        let of_site = known.get(name).map(|(info, _)| info);
        match (own.filter(|key| !known.has(key)), of_site) {
            (Some(own), Some(of_site)) => Err(KeyError::Ambiguous { name: of_site.name, own, of_site: of_site.key }),
            (Some(_), None) => in_file(),
            (None, of_site) => {
                let by_id = || Key::parse(name).and_then(|key| known.find(&key)).map(|(info, _)| info);
                let secret = of_site.or_else(by_id).and_then(|info| known.secret(&info.name).cloned());
                secret.map_or_else(in_file, |secret| Ok(secret.write(format)?))
            }
        }
    }

    /// Logs the keys of the gateway that the site has as well, each once: another gateway may have imported one.
    pub(super) fn log_unused(&self) {
        let Some(known) = self.known() else { return };
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        for info in self.own.list() {
            let Some((of_site, _)) = known.find(&info.key) else { continue };
            if logged.insert(info.key) {
                self.log_unused_key(&info, &of_site.name);
            }
        }
    }

    fn log_unused_key(&self, own: &KeyInfo, of_site: &str) {
        if own.name == SELF {
            tracing::warn!(
                of_site,
                "the site has the identity of this gateway as one of its keys: remove that key from the site \
                 (\"causeway key rm\"), since the name is that of this gateway"
            );
            return;
        }
        let (file, published) = (self.own.path(&own.name), self.book.path(&own.key));
        tracing::warn!(
            own = own.name,
            of_site,
            file = %file.display(),
            published = %published.display(),
            "the site has this key of the gateway as well: that of the site is used, and what the gateway published \
             with its own is not renewed. Publish it again, then stop the gateway and delete both files, or else the \
             gateway uses them again when the key is removed from the site"
        );
    }

    fn known(&self) -> Option<Arc<KnownNames>> {
        self.shared.as_ref().map(|shared| Arc::clone(&shared.watch().borrow()))
    }

    /// The shared keys and publications, as they change.
    pub(super) fn watch(&self) -> Option<watch::Receiver<Arc<KnownNames>>> {
        self.shared.as_ref().map(|shared| shared.watch())
    }

    /// Publishes the admin address of this process ([`Keystore::publish_admin_address`]).
    ///
    /// # Errors
    /// [`KeyError::Io`] if the lock file cannot be written.
    pub fn publish_admin_address(&self, admin_address: &str) -> Result<(), KeyError> {
        self.own.publish_admin_address(admin_address)
    }

    /// All keys including `self`, sorted by name. Others of the gateway that the site has as well are left out.
    pub fn list(&self) -> Vec<KeyInfo> {
        let mut keys = self.own.list();
        if let Some(known) = self.known() {
            keys.retain(|info| info.name == SELF || !known.has(&info.key));
            keys.extend(known.list());
            keys.sort_by(|one, other| one.name.cmp(&other.name));
        }
        keys
    }

    /// The key with a name or, if none has it, with an ID.
    ///
    /// # Errors
    /// [`KeyError::Missing`] if there is none, [`KeyError::Ambiguous`] if the gateway and its site each have one of that
    /// name, and [`KeyError::Unavailable`] if only the site can tell.
    pub fn get(&self, name: &str) -> Result<(KeyInfo, Keypair), KeyError> {
        let (_, key, pair) = self.locate(name)?;
        Ok((key, pair))
    }

    /// The key of an IPNS name.
    pub fn find(&self, key: &Key) -> Option<(KeyInfo, Keypair)> {
        self.known().and_then(|known| known.find(key)).or_else(|| self.own.find(key))
    }

    /// The key with a name or an ID, and where it is. One that is not known may just have been created at another
    /// gateway.
    fn locate(&self, name: &str) -> Result<(Place, KeyInfo, Keypair), KeyError> {
        let located = self.locate_known(name);
        let (Err(KeyError::Missing(_)), Some(shared)) = (&located, &self.shared) else { return located };
        shared::change(&**shared, ChangeFor::Request, |_| Ok::<_, KeyError>((Vec::new(), ())))?;
        self.locate_known(name)
    }

    fn locate_known(&self, name: &str) -> Result<(Place, KeyInfo, Keypair), KeyError> {
        let known = self.known();
        let is_hidden = |key: &Key| name != SELF && known.as_ref().is_some_and(|known| known.has(key));
        let own = self.own.get(name).ok().filter(|(info, _)| !is_hidden(&info.key));
        match (own, known.as_ref().and_then(|known| known.get(name))) {
            (Some((own, _)), Some((of_site, _))) => {
                Err(KeyError::Ambiguous { name: own.name, own: own.key, of_site: of_site.key })
            }
            (Some((info, pair)), None) => Ok((Place::Own, info, pair)),
            (None, Some((info, pair))) => Ok((Place::Shared, info, pair)),
            (None, None) => {
                let by_id = Key::parse(name).and_then(|key| self.find(&key));
                let (info, pair) = by_id.ok_or_else(|| missing(name))?;
                Ok((if info.of_site { Place::Shared } else { Place::Own }, info, pair))
            }
        }
    }

    /// Creates a key.
    ///
    /// # Errors
    /// [`KeyError`] if the name is invalid or taken, or there are too many keys.
    pub fn create(&self, name: &str, kind: KeyKind) -> Result<KeyInfo, KeyError> {
        self.add(name, &Secret::generate(kind)?)
    }

    /// Imports a key. Without a format it is detected. With shared names it becomes one of the site.
    ///
    /// # Errors
    /// [`KeyError`] if the name or the key is invalid or taken, or there are too many keys. With shared names, also if
    /// this gateway has the key as one of its own: its publication would stay in a file.
    pub fn import(&self, name: &str, format: Option<KeyFormat>, bytes: &[u8]) -> Result<KeyInfo, KeyError> {
        let format = format.unwrap_or_else(|| KeyFormat::guess(bytes));
        self.add(name, &Secret::read(format, bytes)?)
    }

    fn add(&self, name: &str, secret: &Secret) -> Result<KeyInfo, KeyError> {
        let Some(shared) = &self.shared else { return self.own.add(name, secret) };
        check_not_self(name)?;
        let info = LoadedKey::of_site(name, secret.keypair()?).info;
        self.check_own_names(name, &info.key)?;
        self.check_not_own(&info.key)?;
        shared::change(&**shared, ChangeFor::Request, |known| known.add(&info, secret))?;
        Ok(info)
    }

    /// A key that this gateway alone has becomes none of the site.
    fn check_not_own(&self, key: &Key) -> Result<(), KeyError> {
        match self.own.find(key) {
            Some((own, _)) if own.name == SELF => Err(KeyError::Known(own.name)),
            Some((own, _)) if !self.is_shared(key) => Err(KeyError::OwnKey(own.name)),
            _ => Ok(()),
        }
    }

    /// A name that another key of this gateway has would be ambiguous here.
    fn check_own_names(&self, name: &str, key: &Key) -> Result<(), KeyError> {
        match self.own.get(name) {
            Ok((own, _)) if own.key != *key => Err(KeyError::OfGateway(own.name)),
            _ => Ok(()),
        }
    }

    /// The encoded private key.
    ///
    /// # Errors
    /// [`KeyError`] if the key is missing or reserved, or does not support the format.
    pub fn export(&self, name: &str, format: KeyFormat) -> Result<Vec<u8>, KeyError> {
        check_not_self(name)?;
        match (self.locate(name), self.known()) {
            (Ok((Place::Shared, info, _)), Some(known)) => {
                let secret = known.secret(&info.name).ok_or_else(|| missing(name))?;
                Ok(secret.write(format)?)
            }
            (Ok((_, info, _)), _) => self.own.export(&info.name, format),
            // The error of the file, if there is one.
            (Err(KeyError::Missing(_)), _) => self.own.export(name, format),
            (Err(error), _) => Err(error),
        }
    }

    /// Renames a key. Its publication is not affected.
    ///
    /// # Errors
    /// [`KeyError`] if a name is invalid, missing or taken.
    pub fn rename(&self, from: &str, to: &str) -> Result<KeyInfo, KeyError> {
        check_not_self(from)?;
        check_not_self(to)?;
        let (place, info, _) = self.locate(from)?;
        match (place, &self.shared) {
            (Place::Shared, Some(shared)) => {
                self.check_own_names(to, &info.key)?;
                shared::change(&**shared, ChangeFor::Request, |known| known.rename(&info, to))
            }
            _ if self.known().is_some_and(|known| known.is_taken(to)) => Err(KeyError::Exists(to.to_owned())),
            _ => self.own.rename(&info.name, to),
        }
    }

    /// Removes a key permanently and its publication, in an order that is safe if the process crashes in between.
    ///
    /// # Errors
    /// [`PublishError`] if the key is missing or reserved, or could not be removed.
    pub fn remove(&self, name: &str) -> Result<KeyInfo, PublishError> {
        check_not_self(name)?;
        let (place, info, _) = self.locate(name)?;
        if info.name == SELF {
            return Err(KeyError::Reserved.into());
        }
        match (place, &self.shared) {
            (Place::Shared, Some(shared)) => {
                shared::change(&**shared, ChangeFor::Request, |known| known.remove(&info))?;
                Ok(info)
            }
            _ => {
                self.book.remove(&info.key)?;
                Ok(self.own.remove(&info.name)?)
            }
        }
    }

    /// Whether the key of an IPNS name is one of the site.
    pub(super) fn is_shared(&self, key: &Key) -> bool {
        self.known().is_some_and(|known| known.has(key))
    }

    /// The publication of a key.
    pub fn publication(&self, key: &Key) -> Option<Published> {
        match self.known().filter(|known| known.has(key)) {
            Some(known) => known.publication(key).cloned(),
            None => self.book.get(key),
        }
    }

    /// All publications.
    pub fn publications(&self) -> Vec<Published> {
        let mut entries = self.own_publications();
        if let Some(known) = self.known() {
            entries.extend(known.publications().cloned());
        }
        entries
    }

    /// The publications in the files, but for those with keys of the site.
    pub(super) fn own_publications(&self) -> Vec<Published> {
        let mut entries = self.book.list();
        if let Some(known) = self.known() {
            entries.retain(|entry| !known.has(&entry.key));
        }
        entries
    }

    /// Changes the publication of a key, and returns the new one if it was changed. When this returns, the change is
    /// durable.
    ///
    /// # Errors
    /// The error of `change`, [`KeyError::Missing`], or one of the disk or the shared store.
    pub fn change(&self, key: &Key, change: &PublicationChange<'_>) -> Result<Option<Published>, PublishError> {
        self.change_for(ChangeFor::Request, key, change)
    }

    /// [`Self::change`], for a request or a task.
    pub(super) fn change_for(
        &self,
        made_for: ChangeFor,
        key: &Key,
        change: &PublicationChange<'_>,
    ) -> Result<Option<Published>, PublishError> {
        if let Some(shared) = self.shared.as_ref().filter(|_| self.is_shared(key)) {
            return shared::change(&**shared, made_for, |known| decide_publication(known, key, change));
        }
        let (_, pair) = self.own.find(key).ok_or_else(|| missing(&key.to_string()))?;
        self.book.change(key, |before| change(before, &pair))
    }

    /// Runs the work for a published name: at once for one of this node, and for one of the site while no other gateway
    /// does ([`SharedNames::work`]).
    pub(super) fn work<'a>(&'a self, key: Key, work: BoxFuture<'a, ()>) -> BoxFuture<'a, Result<(), Duration>> {
        match self.shared.as_ref().filter(|_| self.is_shared(&key)) {
            Some(shared) => shared.work(key, work),
            None => work.map(Ok).boxed(),
        }
    }
}

/// The IPNS name of an encoded private key.
fn key_of(bytes: &[u8]) -> Option<Key> {
    let pair = Secret::read(KeyFormat::Protobuf, bytes).and_then(|secret| secret.keypair()).ok()?;
    Some(Key::from(pair.public().to_peer_id()))
}

/// Decides on a change of the publication of a key of the site.
fn decide_publication(
    known: &KnownNames,
    key: &Key,
    change: &PublicationChange<'_>,
) -> shared::Decided<Option<Published>, PublishError> {
    let (_, pair) = known.find(key).ok_or_else(|| missing(&key.to_string()))?;
    let changed = change(known.publication(key), &pair)?;
    let changes = changed.iter().cloned().map(|entry| shared::NameChange::PutPublication(Box::new(entry)));
    Ok((changes.collect(), changed))
}
