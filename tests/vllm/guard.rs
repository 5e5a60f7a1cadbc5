//! Ends a whole process group when this process ends, however it does: vLLM's ranks outlive their server, at gigabytes each.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};

/// Waits for the end of its input, which is ours, and kills the group.
const SCRIPT: &str = "read line; kill -9 -- -$1";

/// The guard of one group; dropped, the group is killed.
#[derive(Debug)]
pub(crate) struct Guard {
    group: Pid,
    process: Child,
}

impl Guard {
    /// Guards the group that process `leader` leads.
    pub(crate) fn over(leader: u32) -> Result<Self> {
        let group = i32::try_from(leader).ok().and_then(Pid::from_raw).context("no process has that id")?;
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "guard"]).arg(leader.to_string());
        // In a group of its own: Ctrl-C at a terminal must not take it first.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Ok(Self { group, process: command.spawn().context("cannot start sh")? })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Each fails only when what it ends is gone already.
        let _ = kill_process_group(self.group, Signal::KILL);
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
