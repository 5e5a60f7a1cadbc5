//! One child process: its output goes to a file, it ends with us (PR_SET_PDEATHSIG) and is killed by its pid on drop.
//! Knows nothing of what it runs.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child as Process, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, Signal, kill_process};

/// Lines of a log shown when a child ends before it should.
const TAIL_LINES: usize = 25;

/// A running child.
#[derive(Debug)]
pub struct Child {
    process: Process,
    name: String,
    log: PathBuf,
}

impl Child {
    /// Starts `command`; what it prints goes to `log`.
    ///
    /// # Errors
    /// The log cannot be made, or the program not be started.
    pub fn spawn(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let out = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let process = spawn_from_lasting_thread(command).with_context(|| format!("cannot start {name}"))?;
        Ok(Self { process, name: name.to_owned(), log: log.to_path_buf() })
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Everything it printed so far.
    #[must_use]
    pub fn output(&self) -> String {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Its exit, once it ended.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().ok().flatten()
    }

    /// Nothing while it runs.
    ///
    /// # Errors
    /// It ended; with the last lines it printed.
    pub fn check_running(&mut self) -> Result<()> {
        match self.exited() {
            None => Ok(()),
            Some(status) => Err(anyhow!("{} ended with {status}:\n{}", self.name, self.tail())),
        }
    }

    /// Kills it and waits for its end; nothing when it ended before.
    pub fn kill(&mut self) {
        // Both fail only when it is gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Stops it in its tracks: connections stay, nothing is answered.
    ///
    /// # Errors
    /// It is gone.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets a paused one go on.
    ///
    /// # Errors
    /// It is gone.
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).context("no process id")?;
        Ok(kill_process(pid, signal)?)
    }

    fn tail(&self) -> String {
        let output = self.output();
        let lines: Vec<&str> = output.lines().collect();
        lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

type Order = (Command, Sender<io::Result<Process>>);

/// The kernel sends the parent-death signal when the *thread* that forked ends, not the process: so all children are
/// made by one thread that never ends.
fn spawn_from_lasting_thread(command: Command) -> Result<Process> {
    static ORDERS: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (send, receive) = channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in receive {
                die_with_parent(&mut command);
                // Whoever asked is gone when this fails; the child then dies on drop of nothing but with us.
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(send)
    });
    let (send, receive) = channel();
    orders
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .send((command, send))
        .map_err(|_| anyhow!("the thread that starts children is gone"))?;
    Ok(receive.recv().context("the thread that starts children is gone")??)
}

#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
fn die_with_parent(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    let set = || {
        // SAFETY: prctl with PR_SET_PDEATHSIG reads only its integer arguments and is async-signal-safe.
        let code = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    // SAFETY: the closure makes one system call between fork and exec and allocates nothing.
    unsafe { command.pre_exec(set) };
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent(_command: &mut Command) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_early_end_shows_what_was_printed() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo why; exit 3"]);
        let mut child = Child::spawn("sh", command, &folder.path().join("log")).unwrap();
        child.process.wait().unwrap();
        let error = child.check_running().unwrap_err().to_string();
        assert!(error.contains("why") && error.contains('3'), "{error}");
    }

    #[test]
    fn a_dropped_child_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sleep");
        command.arg("600");
        let child = Child::spawn("sleep", command, &folder.path().join("log")).unwrap();
        let proc = PathBuf::from(format!("/proc/{}", child.pid()));
        assert!(!cfg!(target_os = "linux") || proc.exists());
        drop(child);
        assert!(!proc.exists());
    }
}
