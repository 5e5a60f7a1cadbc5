//! A folder for one test: logs, sockets' addresses, state. Gone after success; kept and named after a failure.

use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};
use tempfile::TempDir;

/// The folder. Dropped while its test panics, it stays and says where it is.
#[derive(Debug)]
pub struct Scratch {
    folder: Option<TempDir>,
}

impl Scratch {
    /// A new empty folder.
    ///
    /// # Errors
    /// The system gives none.
    pub fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("rankpin-").tempdir().context("no temporary folder")?;
        Ok(Self { folder: Some(folder) })
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.as_ref().map_or(Path::new("."), TempDir::path)
    }

    /// A path inside it.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// Leaves the folder for people to read.
    pub fn keep(&mut self) {
        if let Some(folder) = self.folder.take() {
            eprintln!("logs: {}", folder.keep().display());
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if thread::panicking() {
            self.keep();
        }
    }
}
