//! [`SharedNames`]: keys and published names that several gateways have, and that each of them may change.
//!
//! Goals: a change is decided on what all gateways have changed before, so that two gateways that publish a name at the
//! same time use different sequence numbers; what is known can be read without waiting, also while nothing can be
//! changed.
//!
//! Non-goals: where keys and publications are stored, and how private keys are protected there, which are matters of
//! the implementation; the key `self`, which is the identity of each gateway.

use super::key_format::{FormatError, Secret};
use super::keystore::{KEYS_MAX, KeyError, KeyInfo, LoadedKey, missing};
use super::publish::Published;
use content::names::Key;
use futures::future::BoxFuture;
use libp2p::identity::Keypair;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// A key, with its encoding.
struct SharedKey {
    loaded: LoadedKey,
    secret: Secret,
}

/// What is known of the shared keys and publications, as of some moment.
#[derive(Clone, Default)]
pub struct KnownNames {
    keys: BTreeMap<String, Arc<SharedKey>>,
    /// The names of keys that cannot be read. They stay taken.
    unreadable: BTreeSet<String>,
    publications: BTreeMap<Key, Published>,
}

impl fmt::Debug for KnownNames {
    /// Without private keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.keys.keys().collect();
        f.debug_struct("KnownNames").field("keys", &keys).field("publications", &self.publications.len()).finish()
    }
}

/// A change of the shared keys and publications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameChange {
    /// A key is added, or replaced by itself.
    PutKey {
        /// The name of the key.
        name: String,
        /// The private key.
        secret: Secret,
    },
    /// A key is removed.
    RemoveKey {
        /// The name of the key.
        name: String,
    },
    /// A publication is added or replaced.
    PutPublication(Box<Published>),
    /// A name is published no longer.
    RemovePublication(Key),
}

impl KnownNames {
    /// Adds a key.
    ///
    /// # Errors
    /// [`FormatError`] if the key material is invalid; nothing has changed then.
    pub fn put_key(&mut self, name: &str, secret: Secret) -> Result<(), FormatError> {
        let loaded = LoadedKey::of_site(name, secret.keypair()?);
        self.unreadable.remove(name);
        self.keys.insert(name.to_owned(), Arc::new(SharedKey { loaded, secret }));
        Ok(())
    }

    /// Adds a key that cannot be read: its name is taken.
    pub fn put_unreadable_key(&mut self, name: &str) {
        self.keys.remove(name);
        self.unreadable.insert(name.to_owned());
    }

    /// Removes a key.
    pub fn remove_key(&mut self, name: &str) {
        self.keys.remove(name);
        self.unreadable.remove(name);
    }

    /// Adds or replaces a publication.
    pub fn put_publication(&mut self, entry: Published) {
        self.publications.insert(entry.key, entry);
    }

    /// Removes a publication.
    pub fn remove_publication(&mut self, key: &Key) {
        self.publications.remove(key);
    }

    /// Applies a change.
    ///
    /// # Errors
    /// [`FormatError`] if the material of a key is invalid; nothing has changed then.
    pub fn apply(&mut self, change: NameChange) -> Result<(), FormatError> {
        match change {
            NameChange::PutKey { name, secret } => self.put_key(&name, secret)?,
            NameChange::RemoveKey { name } => self.remove_key(&name),
            NameChange::PutPublication(entry) => self.put_publication(*entry),
            NameChange::RemovePublication(key) => self.remove_publication(&key),
        }
        Ok(())
    }

    /// All keys, sorted by name.
    pub fn list(&self) -> Vec<KeyInfo> {
        self.keys.values().map(|key| key.loaded.info.clone()).collect()
    }

    /// The key with a name.
    pub fn get(&self, name: &str) -> Option<(KeyInfo, Keypair)> {
        self.keys.get(name).map(|key| key.loaded.public_and_pair())
    }

    /// The key of an IPNS name.
    pub fn find(&self, key: &Key) -> Option<(KeyInfo, Keypair)> {
        self.keys.values().find(|known| known.loaded.info.key == *key).map(|key| key.loaded.public_and_pair())
    }

    /// The private key with a name.
    pub fn secret(&self, name: &str) -> Option<&Secret> {
        self.keys.get(name).map(|key| &key.secret)
    }

    /// Whether there is a key of an IPNS name.
    pub fn has(&self, key: &Key) -> bool {
        self.keys.values().any(|known| known.loaded.info.key == *key)
    }

    /// The publication of a key.
    pub fn publication(&self, key: &Key) -> Option<&Published> {
        self.publications.get(key)
    }

    /// The publications whose keys are known.
    pub fn publications(&self) -> impl Iterator<Item = &Published> {
        let keys: BTreeSet<&Key> = self.keys.values().map(|key| &key.loaded.info.key).collect();
        self.publications.values().filter(move |entry| keys.contains(&entry.key))
    }

    /// Whether a name is that of a key, which may be one that cannot be read.
    pub fn is_taken(&self, name: &str) -> bool {
        self.keys.contains_key(name) || self.unreadable.contains(name)
    }

    /// Decides on the addition of a key.
    pub(super) fn add(&self, info: &KeyInfo, secret: &Secret) -> Decided<(), KeyError> {
        let name = &info.name;
        if self.is_taken(name) {
            return Err(KeyError::Exists(name.clone()));
        }
        if let Some((known, _)) = self.find(&info.key) {
            return Err(KeyError::Known(known.name));
        }
        if self.keys.len() + self.unreadable.len() >= KEYS_MAX {
            return Err(KeyError::Full);
        }
        Ok((vec![NameChange::PutKey { name: name.clone(), secret: secret.clone() }], ()))
    }

    /// Decides on a new name for a key.
    pub(super) fn rename(&self, from: &KeyInfo, to: &str) -> Decided<KeyInfo, KeyError> {
        let known = self.keys.get(&from.name).filter(|known| known.loaded.info.key == from.key);
        let known = known.ok_or_else(|| missing(&from.name))?;
        if self.is_taken(to) {
            return Err(KeyError::Exists(to.to_owned()));
        }
        let remove = NameChange::RemoveKey { name: from.name.clone() };
        let put = NameChange::PutKey { name: to.to_owned(), secret: known.secret.clone() };
        Ok((vec![remove, put], KeyInfo { name: to.to_owned(), ..from.clone() }))
    }

    /// Decides on the removal of a key and its publication.
    pub(super) fn remove(&self, info: &KeyInfo) -> Decided<(), KeyError> {
        let known = self.keys.get(&info.name).filter(|known| known.loaded.info.key == info.key);
        if known.is_none() {
            return Err(missing(&info.name));
        }
        let name = info.name.clone();
        Ok((vec![NameChange::RemoveKey { name }, NameChange::RemovePublication(info.key)], ()))
    }
}

/// What was decided: the changes, and what is returned when they are made.
pub(super) type Decided<T, E> = Result<(Vec<NameChange>, T), E>;

/// What a change is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeFor {
    /// A request or a command, which is answered in bounded time.
    Request,
    /// The task of a name, which waits for its turn. Few of them work at a time ([`SharedNames::work`]).
    Task,
}

/// Keys and publications that several gateways have.
pub trait SharedNames: Send + Sync {
    /// What is known, as it changes.
    fn watch(&self) -> watch::Receiver<Arc<KnownNames>>;

    /// Makes the changes that `decide` decides on, all or none of them, on what all gateways have changed before.
    /// `decide` is called again if others have changed something meanwhile; the changes of its last call are made. When
    /// this returns, they are durable, and part of what is known here. Blocks the thread, which has to be one of
    /// Tokio's that may block.
    ///
    /// # Errors
    /// [`KeyError::Unavailable`] or [`KeyError::Shared`]. The changes may have been made nonetheless.
    fn change(
        &self,
        made_for: ChangeFor,
        decide: &mut dyn FnMut(&KnownNames) -> Vec<NameChange>,
    ) -> Result<(), KeyError>;

    /// Runs `work` for a name while no other gateway works for it: until it ends, for a limited time, or until another
    /// gateway has taken it over. The number of names that a gateway works for at a time is limited; others wait.
    ///
    /// # Errors
    /// How long to wait before the next attempt: another gateway works for the name, that is not known, or `work` was
    /// cancelled before its end.
    fn work<'a>(&'a self, key: Key, work: BoxFuture<'a, ()>) -> BoxFuture<'a, Result<(), Duration>>;
}

/// Makes the changes that are decided on, and returns what was decided with them.
///
/// # Errors
/// What was decided, or an error of [`SharedNames::change`].
pub(super) fn change<T, E: From<KeyError>>(
    shared: &dyn SharedNames,
    made_for: ChangeFor,
    decide: impl Fn(&KnownNames) -> Decided<T, E>,
) -> Result<T, E> {
    let mut decided = None;
    shared.change(made_for, &mut |known| {
        let (changes, result) = match decide(known) {
            Ok((changes, done)) => (changes, Ok(done)),
            Err(error) => (Vec::new(), Err(error)),
        };
        decided = Some(result);
        changes
    })?;
    decided.unwrap_or_else(|| Err(KeyError::Shared { reason: "nothing was decided".to_owned() }.into()))
}
