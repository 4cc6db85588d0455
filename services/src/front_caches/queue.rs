//! [`Queue`]: what caches in front are still to be told, on the disk.

use config::FrontCache;
use p2p_bridge::durable;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

/// Things that wait, over all caches.
pub const ITEMS_MAX: usize = 10_000;
/// Bytes of these.
const ITEM_BYTES_MAX: usize = 16 << 20;
/// The largest file that is read, in bytes: JSON may take several times what it says.
const FILE_BYTES_MAX: usize = 8 * ITEM_BYTES_MAX;

/// Something that one cache is to be told.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The cache, as settings have it.
    pub cache: String,
    /// The content: a path, percent-encoded.
    pub path: String,
    /// What logs call it.
    pub shown: String,
    /// How often the cache said that it will not.
    #[serde(default)]
    pub refusals: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Queue {
    file: PathBuf,
    items: VecDeque<Item>,
    dropped: u64,
}

impl Queue {
    /// What waited when the process ended. What was meant for a cache that is not configured any more is left out.
    ///
    /// # Errors
    /// What the system said, or that the file is damaged.
    pub fn open(data_dir: &Path, caches: &[FrontCache]) -> io::Result<Self> {
        let file = crate::front_caches::file(data_dir);
        let items: VecDeque<Item> = match durable::read(&file, FILE_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => VecDeque::new(),
            read => serde_json::from_slice(&read?).unwrap_or_else(|error| {
                tracing::error!(file = %file.display(), %error, "the queue of purge requests cannot be read and is left out");
                VecDeque::new()
            }),
        };
        let names: Vec<String> = caches.iter().map(ToString::to_string).collect();
        let (known, unknown): (VecDeque<_>, VecDeque<_>) =
            items.into_iter().partition(|item| names.contains(&item.cache));
        if !unknown.is_empty() {
            tracing::warn!(
                items = unknown.len(),
                "what was to be told to caches that are not configured any more is left out"
            );
        }
        Ok(Self { file, items: known, dropped: 0 })
    }

    /// Adds things behind those that wait. What waits already is not told twice; where there is no room, the oldest
    /// give way.
    pub fn add(&mut self, items: Vec<Item>) {
        for item in items {
            let is_same = |other: &Item| other.cache == item.cache && other.path == item.path;
            if self.items.iter().any(is_same) {
                continue;
            }
            let is_full = |queue: &Self| {
                queue.items.len() >= ITEMS_MAX
                    || queue.items.iter().map(bytes).sum::<usize>() + bytes(&item) > ITEM_BYTES_MAX
            };
            while is_full(self)
                && let Some(oldest) = self.items.pop_front()
            {
                self.dropped += 1;
                tracing::error!(
                    cache = oldest.cache,
                    content = oldest.shown,
                    "a purge request was dropped: the queue is full"
                );
            }
            self.items.push_back(item);
        }
    }

    /// What a cache is to be told next.
    pub fn next(&self, cache: &str) -> Option<Item> {
        self.items.iter().find(|item| item.cache == cache).cloned()
    }

    /// Takes something out that was told, or is given up.
    pub fn remove(&mut self, item: &Item) {
        self.items.retain(|other| other.cache != item.cache || other.path != item.path);
    }

    /// Puts something behind all others of its cache.
    pub fn put_off(&mut self, item: &Item) {
        self.remove(item);
        self.items.push_back(item.clone());
    }

    /// How much waits for a cache.
    pub fn waiting(&self, cache: &str) -> usize {
        self.items.iter().filter(|item| item.cache == cache).count()
    }

    /// How much had to give way.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Writes what waits. It is on the disk when this returns.
    ///
    /// # Errors
    /// What the system said.
    #[cfg(test)]
    pub fn save(&self) -> io::Result<()> {
        let (file, text) = self.written()?;
        durable::write(&file, &text)
    }

    /// What waits as it is written, and where.
    ///
    /// # Errors
    /// That it cannot be written as JSON.
    pub fn written(&self) -> io::Result<(PathBuf, Vec<u8>)> {
        Ok((self.file.clone(), serde_json::to_vec(&self.items).map_err(io::Error::other)?))
    }
}

fn bytes(item: &Item) -> usize {
    item.cache.len() + item.path.len() + item.shown.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(cache: &str, path: &str) -> Item {
        Item { cache: cache.to_owned(), path: path.to_owned(), shown: path.to_owned(), refusals: 0 }
    }

    fn caches(names: &[&str]) -> Vec<FrontCache> {
        let cache = |url: &&str| FrontCache {
            kind: config::CacheKind::Purge,
            url: (*url).to_owned(),
            hosts: Vec::new(),
            token_file: None,
            token_env: None,
        };
        names.iter().map(cache).collect()
    }

    #[test]
    fn what_waits_outlives_the_process() {
        let dir = tempfile::tempdir().expect("a folder");
        let (a, b) = ("purge+http://a", "purge+http://b");
        let mut queue = Queue::open(dir.path(), &caches(&["http://a", "http://b"])).expect("opens");
        queue.add(vec![item(a, "/1"), item(b, "/1"), item(a, "/2"), item(a, "/1")]);
        assert_eq!((queue.waiting(a), queue.waiting(b)), (2, 1), "nothing is told twice");
        queue.put_off(&Item { refusals: 1, ..item(a, "/1") });
        assert_eq!(queue.next(a).map(|item| item.path), Some("/2".to_owned()));
        queue.save().expect("writes");
        let mut again = Queue::open(dir.path(), &caches(&["http://a"])).expect("opens");
        assert_eq!((again.waiting(a), again.waiting(b)), (2, 0), "b is not configured any more");
        again.remove(&item(a, "/2"));
        assert_eq!(again.next(a), Some(Item { refusals: 1, ..item(a, "/1") }));
        std::fs::write(crate::front_caches::file(dir.path()), "nonsense").expect("writes");
        assert_eq!(Queue::open(dir.path(), &caches(&["http://a"])).expect("opens").waiting(a), 0);
    }

    #[test]
    fn the_oldest_give_way() {
        let dir = tempfile::tempdir().expect("a folder");
        let a = "purge+http://a";
        let mut queue = Queue::open(dir.path(), &caches(&["http://a"])).expect("opens");
        queue.items = (0..ITEMS_MAX).map(|number| item(a, &format!("/{number}"))).collect();
        queue.add(vec![item(a, "/new")]);
        assert_eq!((queue.waiting(a), queue.dropped()), (ITEMS_MAX, 1));
        assert_eq!(queue.next(a).map(|item| item.path), Some("/1".to_owned()));
    }

    /// However long they are, and however much longer as JSON, the next start reads them.
    #[test]
    fn what_waits_is_never_too_long_to_be_read_again() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut queue = Queue::open(dir.path(), &caches(&["http://a"])).expect("opens");
        let long = |n: usize| item("purge+http://a", &format!("{n:05}{}", "\u{1}".repeat(8_000)));
        queue.add((0..1_500).map(long).collect());
        let waiting = queue.items.len();
        assert!(
            queue.dropped() > 0 && (ITEM_BYTES_MAX / 17_000..ITEM_BYTES_MAX / 16_000).contains(&waiting),
            "{waiting}"
        );
        queue.save().expect("writes");
        assert_eq!(Queue::open(dir.path(), &caches(&["http://a"])).expect("opens").items, queue.items);
    }
}
