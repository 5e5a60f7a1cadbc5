//! Ends a whole process group when this process ends, however it does: vLLM's ranks outlive their server, at gigabytes each.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process_group};

/// Waits for the end of its input, which is ours, and kills the group.
const SCRIPT: &str = "read line; kill -9 -$1";

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

#[cfg(test)]
mod tests {
    use super::*;

    /// As when this process is killed: its end of the pipe closes, and nothing is dropped.
    #[tokio::test]
    async fn a_group_ends_when_the_guards_input_does() {
        let mut leader = Command::new("sh");
        // It ends; what it started goes on in its group.
        leader.args(["-c", "sleep 600 >/dev/null 2>&1 &"]).process_group(0);
        let mut leader = leader.spawn().unwrap();
        leader.wait().unwrap();
        let mut guard = Guard::over(leader.id()).unwrap();
        assert!(rustix::process::test_kill_process_group(guard.group).is_ok(), "nothing is left to guard");
        drop(guard.process.stdin.take());
        e2e::wait_for("the end of the group", async || {
            rustix::process::test_kill_process_group(guard.group).is_err().then_some(())
        })
        .await
        .unwrap();
    }
}
