//! `kill -9` while objects are written to a folder: what was acknowledged is there, and nothing is there in part.
//!
//! The test runs its own program as a child, which writes objects on a few threads, and prints the name of each
//! that was acknowledged.

use crate::support::{Killed, child_args, folder_in_memory, listed, noise};
use bytes::Bytes;
use objects::{Objects, StoreOptions};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

const DIR: &str = "CAUSEWAY_OBJECTS_CRASH_DIR";
const ROUND: &str = "CAUSEWAY_OBJECTS_CRASH_ROUND";
const ROUNDS: usize = 5;
/// How many objects each of the four tasks of a child writes at most: together some 40 MB.
const OBJECTS: usize = 16;

fn open(folder: &Path) -> Arc<dyn Objects> {
    objects::open(&format!("file://{}", folder.display()), &StoreOptions::default()).expect("opens")
}

/// The bytes of an object, by its name `ROUND/FOLDER/NUMBER`.
fn data(name: &str) -> Bytes {
    let number: u64 = name.bytes().fold(0, |sum, byte| sum * 131 % 1_000_003 + u64::from(byte));
    Bytes::from(noise(number, 10_000).repeat(10 + usize::try_from(number % 100).expect("small")))
}

/// All listed objects are whole.
async fn all_are_whole(objects: &dyn Objects, prefix: &str) -> usize {
    let all = listed(objects, prefix).await;
    for object in &all {
        let found = objects.get(&object.name).await.expect("reads").expect("is listed");
        assert!(found.len() as u64 == object.bytes && found == data(&object.name), "{}", object.name);
    }
    all.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_are_whole_or_absent_after_kill_9() {
    // Where most of the time is spent with writing, and not with syncing.
    let dir = folder_in_memory();
    let objects = open(dir.path());
    for round in 0..ROUNDS {
        let command = Command::new(std::env::current_exe().expect("it has a path"))
            .args(child_args("crash::child_writes"))
            .env(DIR, dir.path())
            .env(ROUND, round.to_string())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = Killed(command.expect("starts"));
        let lines = BufReader::new(child.0.stdout.take().expect("is piped")).lines().map_while(Result::ok);
        let mut names = lines.filter_map(|line| line.strip_prefix("put ").map(str::to_owned));
        let mut acknowledged: Vec<_> = names.by_ref().take(3 + 7 * round).collect();
        // To others while it writes, and to all after it was killed.
        let prefix = format!("{round}/");
        all_are_whole(&*objects, &prefix).await;
        drop(child);
        acknowledged.extend(names);
        assert!(acknowledged.len() >= 3, "{acknowledged:?}");
        assert!(all_are_whole(&*objects, &prefix).await >= acknowledged.len());
        for name in &acknowledged {
            assert!(objects.get(name).await.expect("reads") == Some(data(name)), "{name}");
        }
        std::fs::remove_dir_all(dir.path().join(round.to_string())).expect("removes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn child_writes() {
    let (Some(dir), Ok(round)) = (std::env::var_os(DIR), std::env::var(ROUND)) else { return };
    let objects = open(Path::new(&dir));
    let tasks = (0..4).map(|task| {
        let (objects, round) = (Arc::clone(&objects), round.clone());
        tokio::spawn(async move {
            for number in 0..OBJECTS {
                let name = format!("{round}/{:x}{task}/{number}", number % 5);
                objects.put(&name, data(&name)).await.expect("puts");
                println!("put {name}");
            }
        })
    });
    futures::future::join_all(tasks.collect::<Vec<_>>()).await;
}
