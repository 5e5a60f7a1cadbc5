//! Declared workers on disk: `workers.json`, replaced whole by write, fsync and rename. Knows bytes and versions, not workers.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Mutex;

const FILE: &str = "workers.json";
/// Version of the file's shape; another one is not guessed at.
const VERSION: u32 = 1;
/// Copies of unusable files kept: `workers.json.corrupt-1 ..`; then the last is overwritten.
const ASIDE_MAX: u32 = 100;

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    workers: Vec<Value>,
}

/// What was found at start.
#[derive(Debug, Default)]
pub struct Loaded {
    /// Workers as they were declared.
    pub workers: Vec<Value>,
    /// Set when a file was there but could not be used; it was moved aside.
    pub fault: Option<String>,
    /// Set when a file was there: whether it could be used.
    pub earlier_life: Option<bool>,
}

/// The folder of declared workers; without one every call succeeds and keeps nothing.
pub struct Store {
    dir: Option<PathBuf>,
    /// Number of changes that should be on disk.
    wanted: AtomicU64,
    /// Number of changes that are; its lock is the only way to write.
    written: Arc<Mutex<u64>>,
}

impl Store {
    /// Opens (and creates) the folder.
    ///
    /// # Errors
    /// What the system said when the folder can neither be found nor made.
    pub fn open(dir: Option<&Path>) -> io::Result<Self> {
        dir.map(fs::create_dir_all).transpose()?;
        Ok(Self { dir: dir.map(Path::to_path_buf), wanted: AtomicU64::new(0), written: Arc::default() })
    }

    /// Reads what an earlier life declared.
    ///
    /// # Errors
    /// What the system said when the file is there but cannot be read, or a bad one not be moved: better not to start
    /// than to overwrite it.
    pub fn load(&self) -> io::Result<Loaded> {
        let Some(path) = self.path() else { return Ok(Loaded::default()) };
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Loaded::default()),
            other => other?,
        };
        match decode(&bytes) {
            Ok(workers) => Ok(Loaded { workers, fault: None, earlier_life: Some(true) }),
            Err(reason) => {
                let aside = move_aside(&path, "corrupt")?;
                let fault =
                    format!("{} could not be used ({reason}); moved to {}", path.display(), aside.display());
                Ok(Loaded { workers: Vec::new(), fault: Some(fault), earlier_life: Some(false) })
            }
        }
    }

    /// Keeps a copy of a file some of whose workers are not accepted any more, since the next write would lose them.
    ///
    /// # Errors
    /// What the system said.
    pub fn copy_aside(&self) -> io::Result<Option<PathBuf>> {
        let Some(path) = self.path() else { return Ok(None) };
        let aside = free_name(&path, "refused");
        fs::copy(&path, &aside)?;
        Ok(Some(aside))
    }

    /// Notes that the declared workers changed.
    pub fn mark_changed(&self) {
        self.wanted.fetch_add(1, Ordering::SeqCst);
    }

    /// Writes unless a write since the last change did already. When this returns `Ok`, every change marked before the
    /// call is on disk; callers that wait together share one write.
    ///
    /// # Errors
    /// What the system said; the change stays marked and the next call tries again.
    pub async fn flush(&self, workers: impl FnOnce() -> Vec<Value>) -> io::Result<()> {
        let Some(path) = self.path() else { return Ok(()) };
        let wanted = self.wanted.load(Ordering::SeqCst);
        let mut written = Arc::clone(&self.written).lock_owned().await;
        if *written >= wanted {
            return Ok(());
        }
        // Taken before the snapshot: a change in between is written twice rather than never.
        let covers = self.wanted.load(Ordering::SeqCst);
        let document = Document { version: VERSION, workers: workers() };
        // The lock goes along: a caller that hangs up must not let a second writer in.
        let write = move || {
            replace(&path, &serde_json::to_vec_pretty(&document)?)?;
            *written = covers;
            Ok(())
        };
        tokio::task::spawn_blocking(write).await.map_err(io::Error::other)?
    }

    fn path(&self) -> Option<PathBuf> {
        self.dir.as_ref().map(|dir| dir.join(FILE))
    }
}

fn decode(bytes: &[u8]) -> Result<Vec<Value>, String> {
    let document: Document = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    match document.version {
        VERSION => Ok(document.workers),
        other => Err(format!("version {other} is not {VERSION}")),
    }
}

fn move_aside(path: &Path, why: &str) -> io::Result<PathBuf> {
    let aside = free_name(path, why);
    fs::rename(path, &aside)?;
    Ok(aside)
}

fn free_name(path: &Path, why: &str) -> PathBuf {
    let name = |n: u32| path.with_file_name(format!("{FILE}.{why}-{n}"));
    (1..ASIDE_MAX).map(name).find(|candidate| !candidate.exists()).unwrap_or_else(|| name(ASIDE_MAX))
}

/// Replaces a file whole: a reader, or a restart after a crash, finds the old bytes or the new ones.
///
/// # Errors
/// What the system said; the old file is then untouched.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".tmp");
    let temporary = path.with_file_name(name);
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    // The rename itself must survive a power cut too.
    path.parent()
        .map_or(Ok(()), |dir| if dir.as_os_str().is_empty() { Ok(()) } else { File::open(dir)?.sync_all() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::atomic::AtomicUsize;

    #[tokio::test]
    async fn what_was_flushed_is_loaded_by_the_next_life() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Some(dir.path())).unwrap();
        let first = store.load().unwrap();
        assert_eq!((first.workers.len(), first.earlier_life), (0, None));
        store.mark_changed();
        store.flush(|| vec![json!({"id": "a"})]).await.unwrap();
        let next = Store::open(Some(dir.path())).unwrap().load().unwrap();
        assert_eq!((next.workers, next.fault), (vec![json!({"id": "a"})], None));
        assert_eq!(next.earlier_life, Some(true));
    }

    #[tokio::test]
    async fn nothing_is_written_twice_for_one_change() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Some(dir.path())).unwrap();
        let snapshots = AtomicUsize::new(0);
        let flush = || {
            store.flush(|| {
                snapshots.fetch_add(1, Ordering::SeqCst);
                Vec::new()
            })
        };
        store.mark_changed();
        flush().await.unwrap();
        flush().await.unwrap();
        assert_eq!(snapshots.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_failed_write_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Some(dir.path())).unwrap();
        fs::create_dir(dir.path().join("workers.json.tmp")).unwrap();
        store.mark_changed();
        assert!(store.flush(|| vec![json!(1)]).await.is_err());
        fs::remove_dir(dir.path().join("workers.json.tmp")).unwrap();
        store.flush(|| vec![json!(2)]).await.unwrap();
        assert_eq!(store.load().unwrap().workers, vec![json!(2)]);
    }

    #[test]
    fn unusable_files_are_kept_aside_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(Some(dir.path())).unwrap();
        for (n, text, reason) in
            [(1, "{\"version\":1,", "EOF"), (2, r#"{"version":2,"workers":[]}"#, "version 2 is not 1")]
        {
            fs::write(dir.path().join(FILE), text).unwrap();
            let loaded = store.load().unwrap();
            let aside = dir.path().join(format!("workers.json.corrupt-{n}"));
            assert_eq!(fs::read_to_string(&aside).unwrap(), text);
            let fault = loaded.fault.unwrap();
            assert!(fault.contains(reason) && fault.contains(&aside.display().to_string()), "{fault}");
            assert_eq!(loaded.earlier_life, Some(false));
            assert!(loaded.workers.is_empty() && !dir.path().join(FILE).exists());
        }
    }
}
