//! The signals that end the demo: SIGINT (Ctrl-C) and SIGTERM. Knows nothing of what is to be tidied up.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C reaches the demo's children too, so a failure may be seen a moment before the signal that caused it.
const MOMENT: Duration = Duration::from_millis(200);

/// Listens from its making on; until then a signal ends the process at once.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(crate) fn listen() -> Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for one; the exit code that shells expect of it.
    pub(crate) async fn next(&mut self) -> ExitCode {
        let number = tokio::select! {
            _ = self.interrupt.recv() => 2,
            _ = self.terminate.recv() => 15,
        };
        ExitCode::from(128 + number)
    }

    /// The exit code, when one came already or comes in a moment.
    pub(crate) async fn soon(&mut self) -> Option<ExitCode> {
        tokio::time::timeout(MOMENT, self.next()).await.ok()
    }
}
