//! A limit for the processor time of a process, by control groups: `cpu.max` of version 2, or the quota of version 1
//! where the controller is there.
//!
//! Goals: a group exists as long as its owner, and is removed with it. Non-goals: enabling controllers, which is the
//! system's own configuration; it takes root.

use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = "/sys/fs/cgroup";
/// How often the quota is granted, in microseconds: the kernel's default.
const PERIOD: u32 = 100_000;

/// A group with a limit. Dropping it removes it; its processes have to have ended.
#[derive(Debug)]
pub struct Group(PathBuf);

/// Where groups can be made.
#[derive(Debug, PartialEq, Eq)]
enum Controller {
    /// Version 2.
    Unified(PathBuf),
    /// Version 1.
    Own(PathBuf),
}

impl Group {
    /// A new group whose processes may use such a share of one core: 0.5 is half of it.
    pub fn new(name: &str, cores: f64) -> Result<Self> {
        ensure!((0.01..=64.0).contains(&cores), "{cores} is no share of a core");
        let controller = Controller::find(Path::new(ROOT)).context("no cgroup controller for processor time")?;
        let (Controller::Unified(parent) | Controller::Own(parent)) = &controller;
        let dir = parent.join(format!("causeway-bench-{}-{name}", std::process::id()));
        fs::create_dir(&dir).with_context(|| format!("{}: it takes root", dir.display()))?;
        let group = Self(dir);
        controller.limit(&group.0, cores)?;
        Ok(group)
    }

    /// Moves a process with all of its threads into the group.
    pub fn add(&self, process: u32) -> Result<()> {
        fs::write(self.0.join("cgroup.procs"), process.to_string()).with_context(|| self.0.display().to_string())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.0) {
            eprintln!("{}: {error}", self.0.display());
        }
    }
}

impl Controller {
    fn find(root: &Path) -> Option<Self> {
        let lists_cpu = |file: PathBuf| {
            fs::read_to_string(file).is_ok_and(|list| list.split_whitespace().any(|controller| controller == "cpu"))
        };
        if lists_cpu(root.join("cgroup.subtree_control")) {
            return Some(Self::Unified(root.to_owned()));
        }
        let own = root.join("cpu");
        own.join("cpu.cfs_quota_us").exists().then_some(Self::Own(own))
    }

    fn limit(&self, dir: &Path, cores: f64) -> Result<()> {
        let quota = quota(cores);
        let settings = match self {
            Self::Unified(_) => vec![("cpu.max", format!("{quota} {PERIOD}"))],
            Self::Own(_) => vec![("cpu.cfs_period_us", PERIOD.to_string()), ("cpu.cfs_quota_us", quota.to_string())],
        };
        for (file, value) in settings {
            let file = dir.join(file);
            fs::write(&file, value).with_context(|| file.display().to_string())?;
        }
        Ok(())
    }
}

/// Microseconds of each period.
fn quota(cores: f64) -> u32 {
    (cores * f64::from(PERIOD)).round() as u32
}

#[test]
fn either_version_is_found_and_limited() {
    let dir = tempfile::TempDir::new().expect("the temporary directory is writable");
    let root = dir.path();
    assert_eq!(Controller::find(root), None);
    let own = root.join("cpu");
    fs::create_dir(&own).expect("it is new");
    fs::write(own.join("cpu.cfs_quota_us"), "-1").expect("there is space");
    let older = Controller::find(root).expect("the controller of version 1");
    older.limit(&own, 0.25).expect("there is space");
    let read = |file: &str| fs::read_to_string(root.join(file)).expect("it was written");
    assert_eq!((read("cpu/cpu.cfs_quota_us"), read("cpu/cpu.cfs_period_us")), ("25000".into(), "100000".into()));
    fs::write(root.join("cgroup.subtree_control"), "cpuset io\n").expect("there is space");
    assert_eq!(Controller::find(root), Some(Controller::Own(own)), "cpuset is another one");
    fs::write(root.join("cgroup.subtree_control"), "cpuset cpu io\n").expect("there is space");
    let unified = Controller::find(root).expect("the controller of version 2");
    assert_eq!(unified, Controller::Unified(root.to_owned()));
    unified.limit(root, 0.5).expect("there is space");
    assert_eq!(read("cpu.max"), "50000 100000");
    assert!(Group::new("none", 0.0).is_err());
}
