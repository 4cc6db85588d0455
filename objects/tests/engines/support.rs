//! Helpers of the tests.

use futures::TryStreamExt as _;
use objects::{ListedObject, ObjectError, Objects};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::Duration;
use tempfile::TempDir;

/// How long a test waits for anything.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes that differ with the number.
pub fn noise(number: u64, len: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// All objects below a prefix, sorted by name.
pub async fn listed(objects: &dyn Objects, prefix: &str) -> Vec<ListedObject> {
    let mut found: Vec<ListedObject> = objects.list(prefix).try_collect().await.expect("lists");
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// The names of all objects below a prefix, sorted.
pub async fn names(objects: &dyn Objects, prefix: &str) -> Vec<String> {
    listed(objects, prefix).await.into_iter().map(|object| object.name).collect()
}

/// Asserts that an operation was refused, in a sentence with these words.
pub fn assert_refused<T: std::fmt::Debug>(result: Result<T, ObjectError>, words: &str) {
    match result {
        Err(ObjectError::Refused { reason }) => assert!(reason.contains(words), "{words:?} is not in: {reason}"),
        other => panic!("not refused with {words:?}: {other:?}"),
    }
}

/// Asserts that an operation may be repeated later, with these words.
pub fn assert_unavailable<T: std::fmt::Debug>(result: Result<T, ObjectError>, words: &str) {
    match result {
        Err(ObjectError::Unavailable { reason }) => assert!(reason.contains(words), "{words:?} is not in: {reason}"),
        other => panic!("not unavailable with {words:?}: {other:?}"),
    }
}

/// The files of a certificate.
pub struct Certified {
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Writes a certificate for names, by an authority that no system trusts.
pub fn certificate(folder: &Path, names: &[&str]) -> Certified {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let [authority_key, key] = [(); 2].map(|()| KeyPair::generate().expect("a key"));
    let root = authority.self_signed(&authority_key).expect("a certificate");
    let issuer = Issuer::from_params(&authority, &authority_key);
    let named = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    let certificate = named.expect("is valid").signed_by(&key, &issuer).expect("a certificate");
    let write = |name: &str, text: String| {
        std::fs::write(folder.join(name), text).expect("the folder is ours");
        folder.join(name)
    };
    Certified {
        ca: write("ca.pem", root.pem()),
        certificate: write("server.pem", certificate.pem()),
        key: write("key.pem", key.serialize_pem()),
    }
}

/// A process that is killed when this is dropped.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// A folder in memory, if the system has one for that.
pub fn folder_in_memory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    tempfile::tempdir_in(parent).expect("it is writable")
}

/// Whether the tests run as root, whom no permission binds.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A copy of this program in a folder that every user can read, with the arguments that run one test in a child.
pub fn child(folder: &Path, test: &str) -> (PathBuf, [String; 4]) {
    let program = folder.join("test");
    std::fs::copy(std::env::current_exe().expect("it has a path"), &program).expect("copies");
    (program, child_args(test))
}

/// The arguments that run one test.
pub fn child_args(test: &str) -> [String; 4] {
    [test.to_owned(), "--exact".to_owned(), "--nocapture".to_owned(), "--test-threads=1".to_owned()]
}

/// Runs a child to its end.
pub fn run(command: &mut Command) -> Output {
    let output = command.output().expect("it starts");
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}
