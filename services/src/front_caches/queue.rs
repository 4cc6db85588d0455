//! [`Queue`]: the purge requests for caches in front, on the disk.

use config::FrontCache;
use p2p_bridge::durable;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

/// The maximum number of queued requests, over all caches.
pub const ITEMS_MAX: usize = 10_000;
/// The maximum total size of their texts, in bytes.
const ITEM_BYTES_MAX: usize = 16 << 20;
/// The maximum size of the file, in bytes: JSON escapes can multiply the size of a text.
const FILE_BYTES_MAX: usize = 8 * ITEM_BYTES_MAX;

/// A purge request for one cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The cache, as in the settings.
    pub cache: String,
    /// The content: a path, percent-encoded.
    pub path: String,
    /// The CIDs of blocks below that path which are to be purged, whatever their paths, instead of the path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<String>,
    /// The content in logs.
    pub shown: String,
    /// How often the cache has rejected the request.
    #[serde(default)]
    pub refusals: u32,
}

impl Item {
    /// Whether both are the same request for the same cache.
    fn is_same(&self, other: &Self) -> bool {
        self.cache == other.cache && self.path == other.path && self.blocks == other.blocks
    }
}

/// The queue.
#[derive(Debug)]
pub struct Queue {
    file: PathBuf,
    items: VecDeque<Item>,
    dropped: u64,
}

impl Queue {
    /// Opens the queue of a data directory. Requests for caches that are no longer configured are dropped.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn open(data_dir: &Path, caches: &[FrontCache]) -> io::Result<Self> {
        let file = crate::front_caches::file(data_dir);
        let items: VecDeque<Item> = match durable::read(&file, FILE_BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => VecDeque::new(),
            read => serde_json::from_slice(&read?).unwrap_or_else(|error| {
                tracing::error!(file = %file.display(), %error, "the queue of purge requests is invalid: ignored");
                VecDeque::new()
            }),
        };
        let names: Vec<String> = caches.iter().map(ToString::to_string).collect();
        let (known, unknown): (VecDeque<_>, VecDeque<_>) =
            items.into_iter().partition(|item| names.contains(&item.cache));
        if !unknown.is_empty() {
            tracing::warn!(
                items = unknown.len(),
                "purge requests for caches that are no longer configured are dropped"
            );
        }
        Ok(Self { file, items: known, dropped: 0 })
    }

    /// Adds requests, except those that are already queued. Those for the many blocks of a deep take-down have lower
    /// priority: others precede them, and when the queue is full, the oldest of them are dropped first.
    pub fn add(&mut self, items: Vec<Item>) {
        for item in items {
            if self.items.iter().any(|other| other.is_same(&item)) {
                continue;
            }
            let precedes =
                |other: &Item| item.blocks.is_empty() && item.cache == other.cache && !other.blocks.is_empty();
            let at = self.items.iter().position(precedes).unwrap_or(self.items.len());
            self.items.insert(at, item);
            self.drop_excess();
        }
    }

    fn drop_excess(&mut self) {
        let mut total: usize = self.items.iter().map(bytes).sum();
        while self.items.len() > ITEMS_MAX || total > ITEM_BYTES_MAX {
            let at = self.items.iter().position(|item| !item.blocks.is_empty()).unwrap_or_default();
            let Some(dropped) = self.items.remove(at) else { return };
            total -= bytes(&dropped);
            self.dropped += 1;
            let Item { cache, shown, .. } = dropped;
            tracing::error!(cache, content = shown, "a purge request was dropped: the queue is full");
        }
    }

    /// The next request for a cache.
    pub fn next(&self, cache: &str) -> Option<Item> {
        self.items.iter().find(|item| item.cache == cache).cloned()
    }

    /// Removes a request.
    pub fn remove(&mut self, item: &Item) {
        self.items.retain(|other| !other.is_same(item));
    }

    /// Moves a request to the end of the queue, and replaces it by what is left of it.
    pub fn put_off(&mut self, item: &Item, left: Item) {
        self.remove(item);
        self.items.push_back(left);
    }

    /// Replaces a request by what is left of it.
    pub fn replace(&mut self, item: &Item, left: Item) {
        if let Some(queued) = self.items.iter_mut().find(|other| other.is_same(item)) {
            *queued = left;
        }
    }

    /// The number of queued requests for a cache.
    pub fn waiting(&self, cache: &str) -> usize {
        self.items.iter().filter(|item| item.cache == cache).count()
    }

    /// The number of dropped requests.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Writes the queue to the disk, durably.
    ///
    /// # Errors
    /// The error of the file system.
    #[cfg(test)]
    pub fn save(&self) -> io::Result<()> {
        let (file, text) = self.written()?;
        durable::write(&file, &text)
    }

    /// The path and the content of the file.
    ///
    /// # Errors
    /// When serialisation fails.
    pub fn written(&self) -> io::Result<(PathBuf, Vec<u8>)> {
        Ok((self.file.clone(), serde_json::to_vec(&self.items).map_err(io::Error::other)?))
    }
}

fn bytes(item: &Item) -> usize {
    let blocks: usize = item.blocks.iter().map(String::len).sum();
    item.cache.len() + item.path.len() + blocks + item.shown.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(cache: &str, path: &str) -> Item {
        Item { cache: cache.to_owned(), path: path.to_owned(), blocks: Vec::new(), shown: path.to_owned(), refusals: 0 }
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
    fn queued_requests_survive_a_restart() {
        let dir = tempfile::tempdir().expect("a folder");
        let (a, b) = ("purge+http://a", "purge+http://b");
        let mut queue = Queue::open(dir.path(), &caches(&["http://a", "http://b"])).expect("opens");
        queue.add(vec![item(a, "/1"), item(b, "/1"), item(a, "/2"), item(a, "/1")]);
        assert_eq!((queue.waiting(a), queue.waiting(b)), (2, 1), "duplicates are not queued");
        queue.put_off(&item(a, "/1"), Item { refusals: 1, ..item(a, "/1") });
        assert_eq!(queue.next(a).map(|item| item.path), Some("/2".to_owned()));
        queue.save().expect("writes");
        let mut again = Queue::open(dir.path(), &caches(&["http://a"])).expect("opens");
        assert_eq!((again.waiting(a), again.waiting(b)), (2, 0), "b is no longer configured");
        again.remove(&item(a, "/2"));
        assert_eq!(again.next(a), Some(Item { refusals: 1, ..item(a, "/1") }));
        std::fs::write(crate::front_caches::file(dir.path()), "nonsense").expect("writes");
        assert_eq!(Queue::open(dir.path(), &caches(&["http://a"])).expect("opens").waiting(a), 0);
    }

    #[test]
    fn requests_for_many_blocks_have_lower_priority() {
        let dir = tempfile::tempdir().expect("a folder");
        let a = "purge+http://a";
        let mut queue = Queue::open(dir.path(), &caches(&["http://a"])).expect("opens");
        let blocks = |name: &str| Item { blocks: vec![name.to_owned()], ..item(a, "/deep") };
        queue.add(vec![blocks("1"), blocks("2"), blocks("1"), item(a, "/deep"), item(a, "/other")]);
        assert_eq!(queue.waiting(a), 4, "each is queued once");
        queue.save().expect("writes");
        let mut queue = Queue::open(dir.path(), &caches(&["http://a"])).expect("opens");
        for expected in [item(a, "/deep"), item(a, "/other"), blocks("1"), blocks("2")] {
            assert_eq!(queue.next(a).as_ref(), Some(&expected));
            queue.remove(&expected);
        }
        assert_eq!(queue.waiting(a), 0);
    }

    #[test]
    fn a_request_that_is_put_off_delays_no_blocks() {
        let dir = tempfile::tempdir().expect("a folder");
        let a = "purge+http://a";
        let mut queue = Queue::open(dir.path(), &caches(&["http://a"])).expect("opens");
        let blocks =
            |names: &[&str]| Item { blocks: names.iter().map(|name| (*name).to_owned()).collect(), ..item(a, "/deep") };
        queue.add(vec![blocks(&["1", "2"]), item(a, "/fails")]);
        queue.put_off(&item(a, "/fails"), item(a, "/fails"));
        assert_eq!(queue.next(a), Some(blocks(&["1", "2"])));
        queue.replace(&blocks(&["1", "2"]), blocks(&["2"]));
        assert_eq!((queue.next(a), queue.waiting(a)), (Some(blocks(&["2"])), 2));
        queue.add(vec![item(a, "/new")]);
        let order: Vec<_> = queue.items.iter().cloned().collect();
        assert_eq!(order, [item(a, "/new"), blocks(&["2"]), item(a, "/fails")]);
    }

    #[test]
    fn blocks_are_dropped_before_other_requests() {
        let dir = tempfile::tempdir().expect("a folder");
        let a = "purge+http://a";
        let mut queue = Queue::open(dir.path(), &caches(&["http://a"])).expect("opens");
        let many = |n: usize| Item { blocks: vec![format!("{n:05}").repeat(2_000)], ..item(a, "/deep") };
        queue.add(vec![item(a, "/first")]);
        queue.add((0..1_700).map(many).collect());
        let (dropped, waiting) = (queue.dropped(), queue.waiting(a));
        assert!(dropped > 0, "it is full");
        queue.add(vec![item(a, &"/second".repeat(2_000))]);
        assert!(queue.dropped() > dropped && queue.waiting(a) <= waiting);
        let kept: Vec<_> = queue.items.iter().filter(|item| item.blocks.is_empty()).map(|item| &*item.path).collect();
        assert_eq!(kept, ["/first", &"/second".repeat(2_000)]);
        let oldest = usize::try_from(queue.dropped()).expect("few");
        assert_eq!(queue.items.get(2), Some(&many(oldest)), "the oldest blocks are dropped");
    }

    #[test]
    fn the_oldest_requests_are_dropped() {
        let dir = tempfile::tempdir().expect("a folder");
        let a = "purge+http://a";
        let mut queue = Queue::open(dir.path(), &caches(&["http://a"])).expect("opens");
        queue.items = (0..ITEMS_MAX).map(|number| item(a, &format!("/{number}"))).collect();
        queue.add(vec![item(a, "/new")]);
        assert_eq!((queue.waiting(a), queue.dropped()), (ITEMS_MAX, 1));
        assert_eq!(queue.next(a).map(|item| item.path), Some("/1".to_owned()));
    }

    /// However long the requests are, also as JSON, the next start can read them.
    #[test]
    fn the_file_never_exceeds_its_maximum_size() {
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
