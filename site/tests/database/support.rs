//! A PostgreSQL server of a test.

use cache::metadata_store::MetadataLog;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use site::database::{Database, DatabaseLog, DatabaseOptions, LogOptions};
use std::cmp::Ordering;
use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio_postgres::NoTls;

/// How long a test waits for anything.
pub const TIMEOUT: Duration = Duration::from_secs(60);

/// A server with a cluster of its own, which ends with this.
pub struct Postgres {
    dir: TempDir,
    pub port: u16,
    /// It was started at the port before.
    is_known: bool,
    server: Option<Child>,
}

impl Postgres {
    /// Starts a server with a new cluster.
    pub async fn start() -> Self {
        Self::with_settings("").await
    }

    /// The same with lines for `postgresql.conf`.
    pub async fn with_settings(settings: &str) -> Self {
        let dir = server_folder();
        let data = dir.path().join("data");
        let mut init = Command::new(program("initdb"));
        init.args(["--no-sync", "--auth=trust", "--username=causeway", "--encoding=UTF8", "--no-locale", "-D"]);
        run(init.arg(&data));
        Self::of_cluster(dir, None, settings).await
    }

    /// Starts a server with the cluster of a folder, at a port that members know, or at a free one.
    async fn of_cluster(dir: TempDir, port: Option<u16>, settings: &str) -> Self {
        let mut server = Self { dir, port: port.unwrap_or_default(), is_known: port.is_some(), server: None };
        let own = "fsync = on\nshared_buffers = '16MB'\nmax_connections = 100\nmax_wal_senders = 4\n\
                   logging_collector = off\n";
        let file = server.data().join("causeway.conf");
        fs::write(&file, format!("{own}{settings}\n")).expect("the folder is ours");
        let main = server.data().join("postgresql.conf");
        let text = fs::read_to_string(&main).expect("initdb wrote it");
        if !text.contains("causeway.conf") {
            fs::write(&main, format!("{text}\ninclude 'causeway.conf'\n")).expect("the folder is ours");
        }
        server.restart().await;
        server
    }

    /// The folder of the cluster.
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Starts it at the port that it had, or at a free one.
    pub async fn restart(&mut self) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if self.port == 0 {
                self.port = free_port();
            }
            let log = File::create(self.dir.path().join("server.log")).expect("the folder is ours");
            let mut command = Command::new(program("postgres"));
            command.arg("-D").arg(self.data()).args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-k"]);
            command.arg(self.dir.path());
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            self.server = Some(unprivileged(&mut command).spawn().expect("postgres starts"));
            while Instant::now() < deadline {
                if self.sql("SELECT 1").await.is_ok() {
                    self.is_known = true;
                    return;
                }
                if let Some(Ok(Some(_))) = self.server.as_mut().map(Child::try_wait) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            self.server = None;
            assert!(Instant::now() < deadline, "it does not start:\n{}", self.log());
            // The port was taken, unless members know it already.
            if !self.is_known {
                self.port = 0;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// What it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("server.log")).unwrap_or_default()
    }

    /// Kills all of its processes at once.
    pub fn kill(&mut self) {
        if self.server.is_some() {
            self.signal(Signal::SIGKILL);
        }
        _ = self.server.take().map(|mut server| server.wait());
    }

    /// Suspends all of its processes: it accepts connections and does not answer.
    pub fn suspend(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Resumes them.
    pub fn resume(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        let main = i32::try_from(self.server.as_ref().expect("is running").id()).expect("process ids fit");
        for process in [main].into_iter().chain(children(main)) {
            _ = kill(Pid::from_raw(process), signal);
        }
    }

    /// Stops it, and lets a standby receive what it has written.
    pub fn stop(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        _ = kill(Pid::from_raw(i32::try_from(server.id()).expect("process ids fit")), Signal::SIGINT);
        _ = server.wait();
    }

    /// Suspends the processes that send changes to standbys, so that these do not get them.
    pub async fn cut_off_standbys(&self) {
        let senders = "SELECT pid::text FROM pg_stat_replication";
        for pid in self.sql(senders).await.expect("is asked") {
            kill(Pid::from_raw(pid.parse().expect("a process id")), Signal::SIGSTOP).expect("is suspended");
        }
    }

    /// A standby that follows this server.
    pub async fn standby(&self) -> Self {
        self.standby_with(None, "").await
    }

    /// The same at a port that members know, if one is given, and with lines for `postgresql.conf`.
    pub async fn standby_with(&self, port: Option<u16>, settings: &str) -> Self {
        let dir = server_folder();
        let mut copy = Command::new(program("pg_basebackup"));
        copy.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "causeway", "--write-recovery-conf"]);
        run(copy.args(["--checkpoint=fast", "--no-sync", "-D"]).arg(dir.path().join("data")));
        let standby = Self::of_cluster(dir, port, settings).await;
        let is_following = async || {
            let count = "SELECT count(*)::text FROM pg_stat_replication WHERE state = 'streaming'";
            self.sql(count).await.expect("is asked")[0] == "1"
        };
        until("the standby follows", is_following).await;
        standby
    }

    /// Makes a standby accept changes.
    pub async fn promote(&self) {
        self.sql("SELECT pg_promote()::text").await.expect("is promoted");
    }

    /// The first column of the result of a statement, as text.
    pub async fn sql(&self, statement: &str) -> Result<Vec<String>, String> {
        // The socket in its own folder: the port may be that of another server.
        let folder = self.dir.path().display();
        let url = format!("host={folder} port={} user=causeway dbname=postgres connect_timeout=5", self.port);
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.map_err(|error| error.to_string())?;
        let driving = tokio::spawn(connection);
        let answer = client.simple_query(statement).await.map_err(|error| format!("{error:?}"));
        driving.abort();
        let rows = answer?.into_iter().filter_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or_default().to_owned()),
            _ => None,
        });
        Ok(rows.collect())
    }

    /// The settings of a site at this server.
    pub fn options(&self, site: &str) -> DatabaseOptions {
        let url = format!("postgresql://causeway@127.0.0.1:{}/postgres", self.port);
        DatabaseOptions { site: site.to_owned(), url, ca: PathBuf::new() }
    }

    /// The log of a site at this server.
    pub async fn open(&self, site: &str) -> DatabaseLog {
        open(&self.options(site)).await
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
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

/// Opens a log with the default options.
pub async fn open(options: &DatabaseOptions) -> DatabaseLog {
    open_with(options, LogOptions::default()).await
}

/// Opens a log.
pub async fn open_with(options: &DatabaseOptions, log_options: LogOptions) -> DatabaseLog {
    let database = Database::new(options).expect("the settings are valid");
    DatabaseLog::open(database, log_options).await.expect("opens")
}

/// The records of a log.
pub fn records(log: &dyn MetadataLog) -> Vec<(String, String)> {
    let mut records = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    log.read(&mut |key, content| records.push((text(key), text(content)))).expect("reads");
    records
}

/// Waits until a condition holds.
pub async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition().await {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The processes of a server, without the first one.
fn children(main: i32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{main}/task/{main}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|id| id.parse().ok()).collect()
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

/// A program of the latest PostgreSQL that is installed. Debian has them outside of `PATH`.
pub fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        versions.map(|version| version.path().join("bin").join(name)).filter(|path| path.exists()).collect();
    let version = |path: &PathBuf| path.iter().rev().nth(2).and_then(|version| version.to_str()?.parse::<f32>().ok());
    found.sort_by(|one, other| version(one).partial_cmp(&version(other)).unwrap_or(Ordering::Equal));
    found.pop().unwrap_or_else(|| name.into())
}

/// A folder that the server can use.
fn server_folder() -> TempDir {
    let dir = TempDir::new().expect("the temporary folder is writable");
    if let Some((user, group)) = unprivileged_user() {
        std::os::unix::fs::chown(dir.path(), Some(user), Some(group)).expect("root may");
    }
    dir
}

/// PostgreSQL refuses to run as root. Then it runs as the unprivileged user and group 65534.
fn unprivileged(command: &mut Command) -> &mut Command {
    match unprivileged_user() {
        Some((user, group)) => command.uid(user).gid(group),
        None => command,
    }
}

fn unprivileged_user() -> Option<(u32, u32)> {
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    is_root.then_some((65534, 65534))
}

fn run(command: &mut Command) {
    let output = unprivileged(command).output().unwrap_or_else(|error| {
        panic!("{} is not installed ({error}): install PostgreSQL", Path::new(command.get_program()).display())
    });
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
