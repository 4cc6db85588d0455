//! The log of the process on standard error, and its level, which the operator can change at run time.
//!
//! A process has one log with one level, behind [`level`]. A change takes effect immediately, and may be temporary.

use config::{AccessLog, ConfigError, Loaded, LogFormat};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::task::JoinHandle;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;

/// Directives before the configured level, which can override them. libp2p's AutoNAT warns of malformed requests, and
/// yamux reports them as errors, which any untrusted peer can trigger; mDNS reports network interfaces without
/// multicast as errors.
const DEFAULT_DIRECTIVES: &str = "libp2p_autonat=error,yamux=off,libp2p_mdns=off";
/// The maximum length of a level, in bytes.
const LEVEL_BYTES_MAX: usize = 1024;

/// The directive of the access log, which the configured level can override.
const fn access_directive(access: AccessLog) -> &'static str {
    match access {
        AccessLog::Off => "access=off",
        AccessLog::Log => "access=info",
    }
}

/// An error and its causes, without repetitions: many errors repeat their cause in their message.
pub fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

static LEVEL: OnceLock<LogLevel> = OnceLock::new();

type Apply = Box<dyn Fn(EnvFilter) -> Result<(), String> + Send + Sync>;

/// The level of the log.
pub struct LogLevel {
    apply: Apply,
    access: AccessLog,
    state: Mutex<State>,
}

struct State {
    configured: String,
    now: String,
    /// When a temporary level ends, and the task that resets it.
    reset: Option<(SystemTime, JoinHandle<()>)>,
    /// The number of changes, so that a reset that races with a later change does not undo it.
    changes: u64,
}

/// The current level.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LevelNow {
    /// The level.
    pub level: String,
    /// The level of the settings.
    pub configured: String,
    /// When a temporary level ends.
    pub until: Option<SystemTime>,
}

/// Validates a level, as in `log.level`.
///
/// # Errors
/// Why the level is invalid.
pub fn read(level: &str) -> Result<(), String> {
    filter(level, AccessLog::Off).map(|_| ())
}

fn filter(level: &str, access: AccessLog) -> Result<EnvFilter, String> {
    if level.len() > LEVEL_BYTES_MAX {
        return Err(format!("the log level has more than {LEVEL_BYTES_MAX} bytes"));
    }
    let parts: Vec<&str> = level.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    for part in parts.iter().filter(|part| !part.contains('=')) {
        // A misspelt level would be parsed as the name of a module.
        if part.parse::<LevelFilter>().is_err() {
            return Err(format!("\"{part}\" is neither off, error, warn, info, debug nor trace, nor MODULE=LEVEL"));
        }
    }
    let access = access_directive(access);
    EnvFilter::try_new(format!("{DEFAULT_DIRECTIVES},{access},{}", parts.join(","))).map_err(|error| error.to_string())
}

/// Starts the log as configured. Called once in a process.
///
/// # Errors
/// [`ConfigError`] when the level is invalid.
pub fn start(loaded: &Loaded) -> Result<(), ConfigError> {
    let level = loaded.config.log.level.clone();
    let access = loaded.config.log.access;
    let filter = filter(&level, access).map_err(|reason| loaded.error("log.level", reason))?;
    let lines = tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(filter);
    let words = |error: tracing_subscriber::reload::Error| error.to_string();
    let apply: Apply = match loaded.config.log.format {
        LogFormat::Text => {
            let lines = lines.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()));
            let lines = lines.with_filter_reloading();
            let handle = lines.reload_handle();
            lines.init();
            Box::new(move |filter| handle.reload(filter).map_err(words))
        }
        LogFormat::Json => {
            let lines = lines.json().with_filter_reloading();
            let handle = lines.reload_handle();
            lines.init();
            Box::new(move |filter| handle.reload(filter).map_err(words))
        }
    };
    // The log is started only once.
    _ = LEVEL.set(LogLevel::new(level, access, apply));
    Ok(())
}

/// The level of the process's log, if it was started.
pub fn level() -> Option<&'static LogLevel> {
    LEVEL.get()
}

impl LogLevel {
    fn new(configured: String, access: AccessLog, apply: Apply) -> Self {
        let state = State { now: configured.clone(), configured, reset: None, changes: 0 };
        Self { apply, access, state: Mutex::new(state) }
    }

    /// The current level.
    pub fn now(&self) -> LevelNow {
        self.state().view()
    }

    /// Sets the level, temporarily if a duration is given. Must be called inside a Tokio runtime.
    ///
    /// # Errors
    /// Why the level is invalid.
    pub fn set(&'static self, level: &str, duration: Option<Duration>) -> Result<LevelNow, String> {
        let filter = filter(level, self.access)?;
        let mut state = self.state();
        (self.apply)(filter)?;
        level.clone_into(&mut state.now);
        if let Some((_, task)) = state.reset.take() {
            task.abort();
        }
        state.changes += 1;
        let change = state.changes;
        state.reset = duration.map(|duration| {
            let task = tokio::spawn(async move {
                tokio::time::sleep(duration).await;
                self.reset(change);
            });
            (SystemTime::now() + duration, task)
        });
        Ok(state.view())
    }

    /// Applies a new level of the settings. A temporary level stays until it ends.
    ///
    /// # Errors
    /// Why the level is invalid.
    pub fn configure(&self, level: &str) -> Result<(), String> {
        let filter = filter(level, self.access)?;
        let mut state = self.state();
        level.clone_into(&mut state.configured);
        if state.reset.is_none() {
            (self.apply)(filter)?;
            level.clone_into(&mut state.now);
        }
        Ok(())
    }

    /// Resets the level to that of the settings, unless it was changed again.
    fn reset(&self, change: u64) {
        let mut state = self.state();
        if state.changes != change {
            return;
        }
        let configured = state.configured.clone();
        match filter(&configured, self.access).and_then(|filter| (self.apply)(filter)) {
            Ok(()) => tracing::info!(level = configured, "the temporary log level has ended"),
            Err(error) => tracing::warn!(error, "resetting the log level failed"),
        }
        state.now = configured;
        state.reset = None;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn view(&self) -> LevelNow {
        let until = self.reset.as_ref().map(|(at, _)| *at);
        LevelNow { level: self.now.clone(), configured: self.configured.clone(), until }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn causes_are_not_repeated() {
        let error = anyhow::anyhow!("no such file");
        let error = error.context("it cannot be read: no such file").context("nothing was imported");
        assert_eq!(format!("{error:#}"), "nothing was imported: it cannot be read: no such file: no such file");
        assert_eq!(chain(&error), "nothing was imported: it cannot be read: no such file");
    }

    #[test]
    fn levels_are_parsed_strictly() {
        let long = format!("info,{}=debug", "a".repeat(LEVEL_BYTES_MAX));
        let table = [
            ("info", true),
            ("info,libp2p=warn", true),
            ("OFF", true),
            (" debug , p2p_bridge=trace", true),
            ("gateway=debug", true),
            ("infoo", false),
            ("gateway", false),
            ("gateway=loud", false),
            (&long, false),
        ];
        for (level, good) in table {
            assert_eq!(read(level).is_ok(), good, "{level}: {:?}", read(level).err());
        }
    }

    #[test]
    fn the_access_log_follows_its_setting_and_the_level() {
        for (level, access, written) in [
            ("info", AccessLog::Off, false),
            ("trace", AccessLog::Off, false),
            ("error", AccessLog::Log, true),
            ("info,access=debug", AccessLog::Off, true),
            ("info,access=off", AccessLog::Log, false),
        ] {
            let filter = filter(level, access).expect("is good");
            let subscriber = tracing_subscriber::fmt().with_writer(std::io::sink).with_env_filter(filter).finish();
            let enabled = tracing::subscriber::with_default(
                subscriber,
                || tracing::enabled!(target: "access", tracing::Level::INFO),
            );
            assert_eq!(enabled, written, "{level} {access:?}");
        }
    }

    #[tokio::test]
    async fn a_level_is_set_permanently_or_temporarily() {
        let applied = Arc::<Mutex<Vec<String>>>::default();
        let notes = Arc::clone(&applied);
        let apply = move |filter: EnvFilter| {
            notes.lock().expect("is sound").push(filter.to_string());
            Ok(())
        };
        let level: &'static LogLevel =
            Box::leak(Box::new(LogLevel::new("info".to_owned(), AccessLog::Off, Box::new(apply))));
        assert!(level.set("nonsense", None).is_err() && applied.lock().expect("is sound").is_empty());
        let set = level.set("debug", None).expect("is good");
        assert_eq!((set.level.as_str(), set.configured.as_str(), set.until), ("debug", "info", None));
        assert!(level.set("trace", Some(Duration::from_secs(60))).expect("is good").until.is_some());
        // The second temporary level replaces the first.
        assert_eq!(level.set("warn", Some(Duration::from_millis(500))).expect("is good").level, "warn");
        let begun = std::time::Instant::now();
        while level.now().until.is_some() {
            assert!(begun.elapsed() < Duration::from_secs(20), "it is not reset");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(level.now(), LevelNow { level: "info".to_owned(), configured: "info".to_owned(), until: None });
        let applied = applied.lock().expect("is sound").clone();
        let words: Vec<&str> = ["debug", "trace", "warn", "info"].into_iter().collect();
        assert!(
            applied.len() == 4 && applied.iter().zip(words).all(|(filter, word)| filter.contains(word)),
            "{applied:?}"
        );
    }

    #[tokio::test]
    async fn a_new_level_of_the_settings_applies_after_a_temporary_level() {
        let level: &'static LogLevel =
            Box::leak(Box::new(LogLevel::new("info".to_owned(), AccessLog::Off, Box::new(|_| Ok(())))));
        level.configure("warn").expect("is good");
        assert_eq!((level.now().level.as_str(), level.now().configured.as_str()), ("warn", "warn"));
        level.set("trace", Some(Duration::from_secs(60))).expect("is good");
        level.configure("error").expect("is good");
        assert_eq!((level.now().level.as_str(), level.now().configured.as_str()), ("trace", "error"));
        let change = level.state().changes;
        level.reset(change);
        assert_eq!(level.now().level, "error");
        assert!(level.configure("nonsense").is_err() && level.now().configured == "error");
    }

    #[tokio::test]
    async fn a_late_reset_undoes_nothing() {
        let apply: Apply = Box::new(|_| Ok(()));
        let level: &'static LogLevel = Box::leak(Box::new(LogLevel::new("info".to_owned(), AccessLog::Off, apply)));
        level.set("debug", Some(Duration::from_secs(60))).expect("is good");
        let first = level.state().changes;
        level.set("warn", Some(Duration::from_secs(60))).expect("is good");
        level.reset(first);
        assert!(level.now().level == "warn" && level.now().until.is_some());
        level.reset(first + 1);
        assert!(level.now().level == "info" && level.now().until.is_none());
    }
}
