//! [`findings`]: the state of the node as sentences. Without I/O, and without a clock.

use super::memory::MemoryLimit;
use super::{CertificateState, EngineFailure, SiteEngine};
use api::health::{FindingLevel, HealthFindingView};
use api::text::{count, size};
use cache::StoreStats;
use p2p_bridge::no_peers::ADVICE;
use p2p_bridge::reachability::Verdict;
use services::health::{Degraded, Stage};
use services::pinning::index::Counts;
use services::process::{FileSystemSpace, ProcessUsage};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A node without peers is given this time after the start to find some.
const PEERS_AFTER: Duration = Duration::from_secs(10);
/// The share of a limit that is reported.
const NEAR_LIMIT: f64 = 0.9;
/// A certificate of files that expires sooner should have been renewed.
const EXPIRES_SOON: Duration = Duration::from_hours(7 * 24);
/// The clock is wrong before this time (2026-01-01), when no release of Causeway existed.
const EARLIEST: Duration = Duration::from_secs(1_767_225_600);
/// The clock was set back if it is behind the time since the start by more than this.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(10);

/// The state of the node.
pub(super) struct Facts {
    pub stage: Stage,
    /// The essential task that has ended.
    pub failed: Option<&'static str>,
    pub degraded: Vec<Degraded>,
    pub store: StoreStats,
    /// Whether the store is on a disk.
    pub is_on_disk: bool,
    /// The free space to leave (`cache.disk_free_bytes_min`).
    pub disk_free_bytes_min: u64,
    pub space: Option<FileSystemSpace>,
    pub usage: Option<ProcessUsage>,
    pub memory: Option<MemoryLimit>,
    /// Connected peers; `None` if the node is offline.
    pub peers: Option<usize>,
    pub reachability: Verdict,
    /// Whether the operator announces addresses (`p2p.announce`).
    pub announces: bool,
    pub pins: Counts,
    pub pins_read_only: bool,
    pub lists: Vec<ListState>,
    pub certificates: Vec<CertificateState>,
    /// The engines of the site that cannot be used.
    pub site: Vec<EngineFailure>,
    pub uptime: Duration,
    pub started_at: SystemTime,
    pub now: SystemTime,
}

/// The state of a denylist or an allowlist.
pub(super) struct ListState {
    pub id: String,
    /// Whether it was ever read.
    pub was_read: bool,
    pub error: Option<String>,
    /// Invalid rules.
    pub malformed: u64,
    pub cut_off: bool,
}

/// What is wrong, the most severe first.
pub(super) fn findings(facts: &Facts) -> Vec<HealthFindingView> {
    let mut found = Findings::default();
    found.process(facts);
    found.store(facts);
    let is_refusing = facts.degraded.iter().any(|degraded| degraded.part == "site");
    facts.site.iter().for_each(|failure| found.site(failure, is_refusing));
    found.disk(facts);
    found.memory(facts);
    found.clock(facts);
    found.network(facts);
    found.pins(facts);
    found.lists(facts);
    facts.certificates.iter().for_each(|certificate| found.certificate(certificate, facts.now));
    // Findings of one level stay in this order.
    found.0.sort_by_key(|finding| finding.level);
    found.0
}

#[derive(Default)]
struct Findings(Vec<HealthFindingView>);

impl Findings {
    fn add(&mut self, level: FindingLevel, subject: &str, text: impl Into<String>, advice: Option<&str>) {
        self.0.push(HealthFindingView {
            level,
            subject: subject.to_owned(),
            text: sentence(&text.into()),
            advice: advice.map(sentence),
        });
    }

    fn error(&mut self, subject: &str, text: impl Into<String>, advice: &str) {
        self.add(FindingLevel::Error, subject, text, Some(advice));
    }

    fn warning(&mut self, subject: &str, text: impl Into<String>, advice: &str) {
        self.add(FindingLevel::Warning, subject, text, Some(advice));
    }

    fn process(&mut self, facts: &Facts) {
        const SUBJECT: &str = "process";
        if let Some(part) = facts.failed {
            let text = format!("{part} has ended because of a defect, so the gateway stops");
            self.error(SUBJECT, text, "restart the gateway, and report the panic in its log");
        }
        match facts.stage {
            Stage::Serving => {}
            Stage::Starting => self.add(FindingLevel::Info, SUBJECT, "the gateway is starting", None),
            Stage::Ending => self.add(FindingLevel::Info, SUBJECT, "the gateway is stopping", None),
            Stage::Draining => self.warning(
                SUBJECT,
                "the gateway drains: /readyz answers 503, so that load balancers send it no requests",
                "\"causeway drain --undo\" ends the drain",
            ),
        }
        let files = facts.usage.and_then(|usage| usage.open_files.zip(usage.open_files_max));
        if let Some((open, max)) = files.filter(|(open, max)| is_near(*open, *max)) {
            let text = format!("{open} of at most {max} files and sockets are open; at the limit, connections wait");
            self.warning(SUBJECT, text, "raise the limit of open files (LimitNOFILE in a systemd unit, ulimit -n)");
        }
    }

    fn store(&mut self, facts: &Facts) {
        const SUBJECT: &str = "store";
        for Degraded { part, message, .. } in &facts.degraded {
            // The message is what is wrong, and what to do about it.
            match message.split_once(": ") {
                Some((text, advice)) => self.error(part, text, advice),
                None => self.add(FindingLevel::Error, part, message.as_str(), None),
            }
        }
        let StoreStats { corrupt_blocks, index_rebuilds, .. } = facts.store;
        if corrupt_blocks > 0 {
            let text = format!("{} found since the start, and deleted", was(corrupt_blocks, "damaged block"));
            self.warning(SUBJECT, text, "check the health of the disk if the number grows");
        }
        if index_rebuilds > 0 {
            let text = "the index of the store was damaged at the start, and was rebuilt from the stored blocks";
            self.warning(SUBJECT, text, "check the health of the disk if it happens again");
        }
    }

    /// An engine that cannot be used. `is_refusing`: content is refused, as another finding says.
    fn site(&mut self, EngineFailure { engine, name, lasting, reason }: &EngineFailure, is_refusing: bool) {
        let (what, follows, advice) = match engine {
            SiteEngine::Database => (
                "database",
                match is_refusing {
                    true => "pins, tokens and take-downs cannot be changed",
                    false => "pins, tokens and take-downs cannot be changed, and what is stored is served",
                },
                "check that PostgreSQL runs and accepts changes at a host of site.database; the gateway connects by itself",
            ),
            SiteEngine::Storage => (
                "storage",
                "what neither this gateway's disk nor a peer has is not served, and nothing can be pinned",
                "check the server of site.store and its credentials, or the mount; the gateway tries again by itself",
            ),
        };
        let seconds = count(lasting.as_secs(), "second");
        self.error("site", format!("the {what} {name} cannot be used for {seconds} ({reason}): {follows}"), advice);
    }

    fn disk(&mut self, facts: &Facts) {
        let Some(space) = facts.space.filter(|_| facts.is_on_disk) else { return };
        let (left, min) = (space.available_bytes, facts.disk_free_bytes_min);
        let is_full = facts.degraded.iter().any(|degraded| degraded.part == "store");
        if left >= min.saturating_mul(2) || is_full {
            return;
        }
        let (shown, of) = (size(left), size(min));
        match left < min {
            true if facts.store.cached_bytes == 0 => self.error(
                "disk",
                format!("the disk has {shown} left, less than the {of} to leave free, and no cached blocks to evict"),
                "delete files on the disk, or unpin content: as long as it lasts, nothing is stored",
            ),
            true => self.warning(
                "disk",
                format!("the disk has {shown} left, less than the {of} to leave free, so the cache evicts blocks"),
                "delete files on the disk, or unpin content (cache.disk_free_bytes_min is the space to leave free)",
            ),
            false => self.add(
                FindingLevel::Info,
                "disk",
                format!("the disk has {shown} left; below {of} the cache evicts blocks"),
                Some("delete files on the disk, or lower cache.disk_bytes_max"),
            ),
        }
    }

    fn memory(&mut self, facts: &Facts) {
        let (Some(usage), Some(MemoryLimit { max_bytes })) = (facts.usage, facts.memory) else { return };
        if is_near(usage.resident_bytes, max_bytes) {
            let (used, max) = (size(usage.resident_bytes), size(max_bytes));
            let text = format!("the process uses {used} of the {max} of memory that its service or container may use");
            self.warning("memory", text, "raise that limit, or lower cache.ram_bytes_max and the other memory budgets");
        }
    }

    fn clock(&mut self, facts: &Facts) {
        const SUBJECT: &str = "clock";
        let advice = "set the clock of the machine, for example by NTP";
        let since = facts.now.duration_since(UNIX_EPOCH).unwrap_or_default();
        if since < EARLIEST {
            let text = "the clock of this machine is wrong, so certificates and IPNS records count as not yet valid";
            self.error(SUBJECT, text, advice);
            return;
        }
        let behind = (facts.started_at + facts.uptime).duration_since(facts.now).unwrap_or_default();
        if behind > CLOCK_TOLERANCE {
            let text = format!("the clock of this machine was set back by {} seconds", behind.as_secs());
            self.add(FindingLevel::Info, SUBJECT, text, Some("check that it is right now"));
        }
    }

    fn network(&mut self, facts: &Facts) {
        if facts.peers == Some(0) && facts.uptime > PEERS_AFTER {
            self.error("peers", "this node has no peers, so it serves only what it has stored", ADVICE);
        }
        if facts.peers.is_some() && facts.reachability == Verdict::Unreachable && !facts.announces {
            self.add(
                FindingLevel::Info,
                "reachability",
                "peers cannot open connections to this node: it fetches content, but few peers fetch from it",
                Some("forward its ports of p2p.listen (TCP and UDP) in the router or firewall, or set p2p.announce"),
            );
        }
    }

    fn pins(&mut self, facts: &Facts) {
        const SUBJECT: &str = "pins";
        let Counts { failed, withheld, incomplete_roots, .. } = facts.pins;
        if facts.pins_read_only {
            let text = "the pin metadata is damaged and can only be read: pinned content is served, but pins cannot be \
                        added or removed";
            self.error(SUBJECT, text, "free space on the disk, and restart the gateway");
        }
        if incomplete_roots > 0 {
            let text = format!("{} lost blocks, which are being fetched again", has(incomplete_roots, "pinned DAG"));
            let advice = "\"causeway pin ls --status queued,pinning\" lists them; check the health of the disk, and \
                          import the blocks that no peer has";
            self.warning(SUBJECT, text, advice);
        }
        if failed > 0 {
            let text = format!("{} failed", has(failed, "pin"));
            let advice = "\"causeway pin ls --status failed\" shows why; request them again, or remove them";
            self.warning(SUBJECT, text, advice);
        }
        if withheld > 0 {
            let verb = if withheld == 1 { "lacks" } else { "lack" };
            let text = format!("{} {verb} blocks that a denylist withholds", count(withheld, "pin"));
            self.add(FindingLevel::Info, SUBJECT, text, None);
        }
    }

    fn lists(&mut self, facts: &Facts) {
        const SUBJECT: &str = "denylists";
        for ListState { id, was_read, error, malformed, cut_off } in &facts.lists {
            if let Some(error) = error {
                let advice = "\"causeway block ls\" shows each list, and \"causeway block reload\" tries again";
                match was_read {
                    true => {
                        let text = format!("the list {id} could not be checked, so its last rules stay: {error}");
                        self.warning(SUBJECT, text, advice);
                    }
                    false => self.error(SUBJECT, format!("the list {id} could not be read: {error}"), advice),
                }
            }
            if *cut_off {
                let text = format!("the list {id} exceeds the maximum size, so its end is ignored");
                self.warning(SUBJECT, text, "raise policy.list_bytes_max");
            }
            if *malformed > 0 {
                let verb = if *malformed == 1 { "is" } else { "are" };
                let text = format!("{} of the list {id} {verb} ignored", count(*malformed, "invalid rule"));
                self.add(FindingLevel::Info, SUBJECT, text, Some("\"causeway block ls\" shows the first of them"));
            }
        }
    }

    fn certificate(&mut self, certificate: &CertificateState, now: SystemTime) {
        const SUBJECT: &str = "certificates";
        let CertificateState { subject, by_acme, expires_at, is_overdue, failure } = certificate;
        let advice = match by_acme {
            true => "the log has the reason of each failed order; \"systemctl reload\" (SIGHUP) orders again at once",
            false => "check the program that renews the files; new ones are used without a restart",
        };
        let why = failure.as_ref().map(|failure| format!(": {failure}")).unwrap_or_default();
        let Some(expires_at) = expires_at else {
            self.error(SUBJECT, format!("there is no certificate for {subject} yet, so TLS fails for it{why}"), advice);
            return;
        };
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let left = Duration::from_secs(u64::try_from(*expires_at).unwrap_or_default()).checked_sub(now);
        match left {
            None => self.error(SUBJECT, format!("the certificate of {subject} has expired{why}"), advice),
            Some(left) if *is_overdue || (!by_acme && left < EXPIRES_SOON) => {
                let text = format!("the certificate of {subject} expires in {}{why}", brief(left));
                self.warning(SUBJECT, text, advice);
            }
            Some(_) => {
                if let Some(failure) = failure {
                    let text = match by_acme {
                        true => format!("the certificate of {subject} could not be renewed: {failure}"),
                        false => format!("the new certificate of {subject} cannot be used: {failure}"),
                    };
                    self.warning(SUBJECT, text, advice);
                }
            }
        }
    }
}

/// Whether a value is near a limit, or beyond it.
fn is_near(value: u64, max: u64) -> bool {
    value as f64 >= max as f64 * NEAR_LIMIT
}

/// A count with its noun and "was" or "were".
fn was(number: u64, what: &str) -> String {
    format!("{} {}", count(number, what), if number == 1 { "was" } else { "were" })
}

/// The same with "has" or "have".
fn has(number: u64, what: &str) -> String {
    format!("{} {}", count(number, what), if number == 1 { "has" } else { "have" })
}

/// A time in days, or in hours if it is less than two days.
fn brief(time: Duration) -> String {
    let hours = time.as_secs() / 3600;
    if hours >= 48 { count(hours / 24, "day") } else { count(hours, "hour") }
}

/// A text as a sentence: with a capital letter and a full stop.
fn sentence(text: &str) -> String {
    let text = text.trim();
    let mut chars = text.chars();
    let first: String = chars.next().map(|first| first.to_uppercase().collect()).unwrap_or_default();
    let end = if text.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{first}{}{end}", chars.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use FindingLevel::{Error, Info, Warning};

    const DAY: u64 = 24 * 3600;

    /// A node where all is well.
    fn well() -> Facts {
        let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        Facts {
            stage: Stage::Serving,
            failed: None,
            degraded: Vec::new(),
            store: StoreStats { cached_bytes: 1 << 30, ..StoreStats::default() },
            is_on_disk: true,
            disk_free_bytes_min: 1 << 30,
            space: Some(FileSystemSpace { available_bytes: 50 << 30, size_bytes: 100 << 30 }),
            usage: Some(usage(100, 1024)),
            memory: Some(MemoryLimit { max_bytes: 4 << 30 }),
            peers: Some(20),
            reachability: Verdict::Reachable,
            announces: false,
            pins: Counts { pinned: 7, ..Counts::default() },
            pins_read_only: false,
            lists: vec![list(None)],
            certificates: vec![certificate(true, Some(60 * DAY)), certificate(false, Some(30 * DAY))],
            site: Vec::new(),
            uptime: Duration::from_secs(3600),
            started_at: now - Duration::from_secs(3600),
            now,
        }
    }

    fn usage(open_files: u64, open_files_max: u64) -> ProcessUsage {
        ProcessUsage {
            cpu_seconds: 1.0,
            resident_bytes: 1 << 30,
            virtual_bytes: 8 << 30,
            threads: 9,
            open_files: Some(open_files),
            open_files_max: Some(open_files_max),
        }
    }

    fn list(error: Option<&str>) -> ListState {
        let error = error.map(str::to_owned);
        ListState { id: "a.deny".to_owned(), was_read: true, error, malformed: 0, cut_off: false }
    }

    /// A certificate that expires after so many seconds.
    fn certificate(by_acme: bool, left: Option<u64>) -> CertificateState {
        CertificateState {
            subject: "example.org".to_owned(),
            by_acme,
            expires_at: left.map(|left| 1_800_000_000 + i64::try_from(left).expect("short")),
            is_overdue: false,
            failure: None,
        }
    }

    fn engine_failure(engine: SiteEngine) -> EngineFailure {
        EngineFailure {
            engine,
            name: "x at a, b".to_owned(),
            lasting: Duration::from_secs(1),
            reason: "refused".to_owned(),
        }
    }

    /// How the state differs from that of a node where all is well.
    type Change = Box<dyn Fn(&mut Facts)>;

    fn space(facts: &mut Facts, mebibytes: u64) {
        facts.space = Some(FileSystemSpace { available_bytes: mebibytes << 20, size_bytes: 100 << 30 });
    }

    fn one(of: CertificateState) -> Vec<CertificateState> {
        vec![of]
    }

    #[test]
    fn a_node_where_all_is_well_has_no_findings() {
        assert_eq!(findings(&well()), []);
        // Nor has one that is offline, or without the figures of the operating system.
        let unknown = Facts { peers: None, space: None, usage: None, memory: None, ..well() };
        assert_eq!(findings(&Facts { reachability: Verdict::Unknown, ..unknown }), []);
    }

    #[test]
    fn each_trouble_is_a_finding_of_its_level() {
        let acme = || certificate(true, Some(10 * DAY));
        let table: Vec<(Change, FindingLevel, &str, &str)> = vec![
            (Box::new(|f| f.failed = Some("the store's writer")), Error, "process", "The store's writer has ended"),
            (Box::new(|f| f.stage = Stage::Starting), Info, "process", "is starting."),
            (Box::new(|f| f.stage = Stage::Ending), Info, "process", "is stopping."),
            (Box::new(|f| f.stage = Stage::Draining), Warning, "process", "drains"),
            (Box::new(|f| f.usage = Some(usage(922, 1024))), Warning, "process", "922 of at most 1024 files"),
            (
                Box::new(|f| {
                    let message = "the disk is full, so nothing is stored: delete files on it".to_owned();
                    f.degraded = vec![Degraded { part: "store", reason: "full", message }];
                    space(f, 0);
                }),
                Error,
                "store",
                "The disk is full, so nothing is stored.",
            ),
            (Box::new(|f| f.store.corrupt_blocks = 1), Warning, "store", "1 damaged block was found"),
            (Box::new(|f| f.store.index_rebuilds = 1), Warning, "store", "was rebuilt"),
            (
                Box::new(|f| f.site = vec![engine_failure(SiteEngine::Database)]),
                Error,
                "site",
                "The database x at a, b cannot be used for 1 second (refused): pins, tokens and take-downs",
            ),
            (
                Box::new(|f| {
                    let message = "the rules could not be read, so content is refused: check the database".to_owned();
                    f.degraded = vec![Degraded { part: "site", reason: "isolated", message }];
                }),
                Error,
                "site",
                "The rules could not be read, so content is refused.",
            ),
            (
                Box::new(|f| f.site = vec![engine_failure(SiteEngine::Storage)]),
                Error,
                "site",
                "The storage x at a, b cannot be used for 1 second (refused): what neither",
            ),
            (Box::new(|f| space(f, 2047)), Info, "disk", "has 2.0 GiB left; below 1.0 GiB"),
            (Box::new(|f| space(f, 1023)), Warning, "disk", "has 1023.0 MiB left, less than the 1.0 GiB"),
            (
                Box::new(|f| {
                    space(f, 1023);
                    f.store.cached_bytes = 0;
                }),
                Error,
                "disk",
                "and no cached blocks to evict",
            ),
            (Box::new(|f| f.memory = Some(MemoryLimit { max_bytes: 1 << 30 })), Warning, "memory", "1.0 GiB of the"),
            (Box::new(|f| f.now = UNIX_EPOCH + Duration::from_secs(9)), Error, "clock", "is wrong"),
            (Box::new(|f| f.started_at += Duration::from_secs(60)), Info, "clock", "set back by 60 seconds"),
            (Box::new(|f| f.peers = Some(0)), Error, "peers", "has no peers"),
            (Box::new(|f| f.reachability = Verdict::Unreachable), Info, "reachability", "cannot open connections"),
            (Box::new(|f| f.pins_read_only = true), Error, "pins", "can only be read"),
            (Box::new(|f| f.pins.incomplete_roots = 1), Warning, "pins", "1 pinned DAG has lost blocks"),
            (Box::new(|f| f.pins.failed = 3), Warning, "pins", "3 pins have failed."),
            (Box::new(|f| f.pins.withheld = 2), Info, "pins", "2 pins lack blocks"),
            (Box::new(|f| f.lists = vec![list(Some("404"))]), Warning, "denylists", "a.deny could not be checked"),
            (
                Box::new(|f| f.lists = vec![ListState { was_read: false, ..list(Some("404")) }]),
                Error,
                "denylists",
                "a.deny could not be read: 404.",
            ),
            (
                Box::new(|f| f.lists = vec![ListState { cut_off: true, ..list(None) }]),
                Warning,
                "denylists",
                "exceeds the maximum size",
            ),
            (
                Box::new(|f| f.lists = vec![ListState { malformed: 2, ..list(None) }]),
                Info,
                "denylists",
                "2 invalid rules of the list a.deny are ignored",
            ),
            (
                Box::new(|f| f.certificates = one(certificate(true, None))),
                Error,
                "certificates",
                "no certificate for example.org yet",
            ),
            (
                Box::new(|f| f.certificates[0].expires_at = Some(1_799_999_999)),
                Error,
                "certificates",
                "of example.org has expired.",
            ),
            (
                Box::new(|f| f.certificates = one(certificate(false, Some(6 * DAY)))),
                Warning,
                "certificates",
                "expires in 6 days.",
            ),
            (
                Box::new(move |f| {
                    f.certificates = one(CertificateState { is_overdue: true, ..acme() });
                    f.certificates[0].failure = Some("no DNS".to_owned());
                }),
                Warning,
                "certificates",
                "expires in 10 days: no DNS.",
            ),
            (
                Box::new(|f| f.certificates[0].failure = Some("no DNS".to_owned())),
                Warning,
                "certificates",
                "could not be renewed: no DNS.",
            ),
            (
                Box::new(|f| f.certificates[1].failure = Some("no PEM".to_owned())),
                Warning,
                "certificates",
                "cannot be used: no PEM.",
            ),
        ];
        for (change, level, subject, text) in table {
            let mut facts = well();
            change(&mut facts);
            let found = findings(&facts);
            let [finding] = &found[..] else { panic!("{subject} {text}: {found:?}") };
            assert_eq!((finding.level, &*finding.subject), (level, subject), "{found:?}");
            assert!(finding.text.contains(text), "{text} is not in {}", finding.text);
            for part in [Some(&finding.text), finding.advice.as_ref()].into_iter().flatten() {
                assert!(part.ends_with('.') && !part.starts_with(char::is_lowercase), "{part}");
            }
        }
    }

    #[test]
    fn what_is_not_trouble_is_no_finding() {
        let table: Vec<Change> = vec![
            // A node that has just started looks for peers.
            Box::new(|f| {
                (f.peers, f.uptime, f.started_at) = (Some(0), Duration::from_secs(5), f.now - Duration::from_secs(5));
            }),
            // The operator knows better than AutoNAT.
            Box::new(|f| (f.reachability, f.announces) = (Verdict::Unreachable, true)),
            // The store in memory does not care about the disk.
            Box::new(|f| {
                f.is_on_disk = false;
                space(f, 1);
            }),
            // By ACME, the lifetime decides: some authorities issue certificates of a few days.
            Box::new(|f| f.certificates = one(certificate(true, Some(3 * DAY)))),
            // A machine that was suspended.
            Box::new(|f| f.now += Duration::from_secs(9999)),
        ];
        for (place, change) in table.into_iter().enumerate() {
            let mut facts = well();
            change(&mut facts);
            assert_eq!(findings(&facts), [], "{place}");
        }
    }

    #[test]
    fn the_most_severe_findings_come_first() {
        let mut facts = well();
        facts.pins.withheld = 1;
        facts.pins.failed = 1;
        facts.peers = Some(0);
        facts.certificates = one(certificate(true, None));
        let found = findings(&facts);
        let order: Vec<_> = found.iter().map(|finding| (finding.level, &*finding.subject)).collect();
        assert_eq!(order, [(Error, "peers"), (Error, "certificates"), (Warning, "pins"), (Info, "pins")]);
    }
}
