//! [`Engines`]: the database and the storage of a site, and their faults.
//!
//! Commits wait for the standby, so that a failover loses nothing that was acknowledged.

use super::{Dice, TIMEOUT};
use crate::engines::relay::{Fault, Relay};
use crate::engines::server::{BUCKET, KEY_ID, SECRET, Server};
use crate::engines::support::Postgres;
use crate::support::causeway::Launch;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

const NAME: &str = "faults";
/// Of both servers. A walreceiver is a standby, and nothing else is, such as a backup that is being taken. Processes are
/// killed, and not the machine, so that nothing has to be synced, which takes a minute after each kill on a busy disk.
const SETTINGS: &str = "wal_level = replica\nsynchronous_standby_names = 'walreceiver'\n\
    wal_retrieve_retry_interval = '200ms'\nfsync = off";
/// The length of faults of the storage that requests have to meet.
const ERRORS_TIME_MAX: Duration = Duration::from_secs(5);

/// The database and the storage of a site.
pub struct Engines {
    primary: Postgres,
    standby: Postgres,
    storage: Storage,
}

enum Storage {
    Bucket { server: Server, relay: Relay, dir: TempDir },
    Folder { dir: TempDir },
}

impl Engines {
    pub async fn start(in_bucket: bool) -> Self {
        let primary = Postgres::with_settings(SETTINGS).await;
        let standby = primary.standby_with(None, SETTINGS).await;
        Self { primary, standby, storage: Storage::start(in_bucket).await }
    }

    /// A gateway with the lines of the site.
    pub fn gateway(&self, launch: Launch) -> Launch {
        let launch = launch
            .set("CAUSEWAY_SITE_NAME", NAME)
            .set("CAUSEWAY_SITE_DATABASE", self.database_url())
            .set("CAUSEWAY_SITE_STORE", self.storage.url());
        match &self.storage {
            Storage::Bucket { relay, dir, .. } => launch
                .set("CAUSEWAY_SITE_S3_ENDPOINT", format!("http://127.0.0.1:{}", relay.port))
                .set("CAUSEWAY_SITE_S3_CREDENTIALS_FILE", dir.path().join("credentials").display()),
            Storage::Folder { .. } => launch,
        }
    }

    /// The same lines for a test that opens the site itself, without the relay.
    pub fn settings(&self) -> config::Site {
        let settings = config::Site {
            name: NAME.to_owned(),
            database: self.database_url().as_str().into(),
            store: self.storage.url(),
            ..config::Site::default()
        };
        match &self.storage {
            Storage::Bucket { server, dir, .. } => config::Site {
                s3_endpoint: format!("http://127.0.0.1:{}", server.port),
                s3_credentials_file: dir.path().join("credentials"),
                ..settings
            },
            Storage::Folder { .. } => settings,
        }
    }

    fn database_url(&self) -> String {
        // In one order, whichever of them is the primary.
        let (one, other) = (self.primary.port.min(self.standby.port), self.primary.port.max(self.standby.port));
        format!("postgresql://causeway@127.0.0.1:{one},127.0.0.1:{other}/postgres")
    }

    /// The primary is lost, and its standby takes over. A new standby has the address of the former primary.
    pub async fn promote(&mut self) {
        self.primary.kill();
        self.standby.promote().await;
        std::mem::swap(&mut self.primary, &mut self.standby);
        self.standby = self.primary.standby_with(Some(self.standby.port), SETTINGS).await;
    }

    /// The primary is killed, and started again after a while.
    pub async fn restart_database(&mut self, after: Duration) {
        self.primary.kill();
        sleep(after).await;
        self.primary.restart().await;
    }

    /// The database cannot be reached for a while: neither of its servers.
    pub async fn lose_database(&mut self, length: Duration) {
        self.standby.stop();
        self.primary.stop();
        sleep(length).await;
        self.primary.restart().await;
        self.standby.restart().await;
    }

    /// The storage cannot be reached for a while.
    pub async fn lose_storage(&self, length: Duration) {
        match &self.storage {
            Storage::Bucket { relay, .. } => {
                relay.always(Some(Fault::Refuse));
                sleep(length).await;
                relay.always(None);
            }
            Storage::Folder { .. } => {
                let (mounted, aside) = (self.storage.folder("mounted"), self.storage.folder("aside"));
                fs::rename(&mounted, &aside).expect("is moved");
                fs::create_dir(&mounted).expect("a mount point");
                sleep(length).await;
                fs::remove_dir(&mounted).expect("nothing was written into the mount point");
                fs::rename(&aside, &mounted).expect("is moved back");
            }
        }
    }

    /// Requests to the storage fail, break off or lose their answers, and others among them are slow. A folder cannot be
    /// reached, several times.
    pub async fn disturb_storage(&self, dice: &mut Dice) {
        let Storage::Bucket { relay, .. } = &self.storage else {
            for _ in 0..3 {
                self.lose_storage(dice.millis_below(400)).await;
                sleep(dice.millis_below(400)).await;
            }
            return;
        };
        let faults: Vec<Fault> = (0..20 + dice.below(60)).map(|_| request_fault(dice)).collect();
        let (count, deadline) = (faults.len(), Instant::now() + ERRORS_TIME_MAX);
        let mut met = 0;
        relay.connections();
        relay.next(faults);
        while met < count && Instant::now() < deadline {
            sleep(Duration::from_millis(20)).await;
            met += relay.connections();
        }
        relay.next([]);
    }

    /// All requests to a bucket are slow for a while.
    pub async fn slow_storage(&self, dice: &mut Dice, length: Duration) {
        if let Storage::Bucket { relay, .. } = &self.storage {
            relay.always(Some(Fault::Delay(Duration::from_millis(50) + dice.millis_below(300))));
            sleep(length).await;
            relay.always(None);
        }
    }

    /// The rows of a statement, in which `SITE` stands for the tables of the site.
    pub async fn sql(&self, statement: &str) -> Vec<String> {
        let statement = statement.replace("SITE", &format!("\"causeway_{NAME}\""));
        tokio::time::timeout(TIMEOUT, self.primary.sql(&statement)).await.expect("in time").expect("is answered")
    }
}

impl Storage {
    async fn start(in_bucket: bool) -> Self {
        let dir = TempDir::new().expect("the temporary folder is writable");
        if !in_bucket {
            fs::create_dir(dir.path().join("mounted")).expect("the folder is ours");
            return Self::Folder { dir };
        }
        let keys = format!("[default]\naws_access_key_id = {KEY_ID}\naws_secret_access_key = {SECRET}\n");
        fs::write(dir.path().join("credentials"), keys).expect("the folder is ours");
        let server = Server::start().await;
        let relay = Relay::before(server.port).await;
        Self::Bucket { server, relay, dir }
    }

    fn url(&self) -> String {
        match self {
            Self::Bucket { .. } => format!("s3://{BUCKET}/a/prefix"),
            Self::Folder { .. } => format!("file://{}", self.folder("mounted").display()),
        }
    }

    fn folder(&self, name: &str) -> PathBuf {
        let (Self::Bucket { dir, .. } | Self::Folder { dir }) = self;
        dir.path().join(name)
    }
}

/// What happens to a request to the bucket. More than half of them succeed, after a while.
fn request_fault(dice: &mut Dice) -> Fault {
    let bytes = usize::try_from(dice.below(3_000)).expect("fits");
    match dice.below(12) {
        0 => Fault::CutAnswer(bytes),
        1 => Fault::LoseAnswer,
        2 => Fault::Refuse,
        3 => Fault::error("503 Slow Down", "SlowDown", ""),
        4 => Fault::error("500 Internal Server Error", "InternalError", ""),
        _ => Fault::Delay(dice.millis_below(150)),
    }
}
