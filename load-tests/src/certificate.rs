//! A certificate that all servers of a row have.

use crate::directory::temp_dir;
use crate::timed;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// A self-signed certificate with an ECDSA key on P-256, as ACME clients request by default, in files that are deleted
/// with it.
pub struct Certificate(TempDir);

impl Certificate {
    pub fn make() -> Result<Self> {
        let made = Self(temp_dir("certificate")?);
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
        command.args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]);
        command.arg("-keyout").arg(made.key()).arg("-out").arg(made.path());
        timed::run(&mut command).context("openssl; `scripts/install-missing bench` installs it")?;
        Ok(made)
    }

    /// The file of the certificate.
    pub fn path(&self) -> PathBuf {
        self.0.path().join("certificate.pem")
    }

    /// The file of its key.
    pub fn key(&self) -> PathBuf {
        self.0.path().join("key.pem")
    }
}
