//! Faults with a time of their own.

use routing::time::Millis;

/// A fault with a time of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Timed {
    VmDies {
        envoy: usize,
        vm: usize,
    },
    ServiceRestarts {
        silent: bool,
        down: u64,
        /// The file with the workers is there when it comes back.
        keeps_file: bool,
    },
    WorkerRefuses {
        worker: usize,
        lasts: u64,
    },
    WorkerHangs {
        worker: usize,
        lasts: u64,
    },
    WorkerAnswers {
        worker: usize,
        status: u16,
        lasts: u64,
    },
    WorkerBusy {
        worker: usize,
        status: u16,
        lasts: u64,
    },
    WorkerRemoved {
        worker: usize,
        lasts: u64,
        moves: bool,
    },
    RanksChange {
        worker: usize,
    },
    /// At the same address.
    RanksGrow {
        worker: usize,
    },
    RanksShrink {
        worker: usize,
    },
    /// Dies and is there again at the same address.
    WorkerRestarts {
        worker: usize,
        lasts: u64,
    },
    WorkerJoins {
        worker: usize,
    },
    /// Envoy loses a worker's hosts although it is declared.
    HostsVanish {
        envoy: usize,
        worker: usize,
        lasts: u64,
    },
    /// Takes no new sessions for a while; from the deadline on it serves none.
    WorkerDrains {
        worker: usize,
        deadline: Option<u64>,
        lasts: u64,
    },
    /// Its cache is full, as its gauges show.
    CacheFills {
        worker: usize,
        lasts: u64,
    },
    /// Nobody hears of its gauges any more.
    GaugesStop {
        worker: usize,
    },
    EnvoyClockJumps {
        envoy: usize,
        by_ms: i64,
    },
    ServiceClockLeaps {
        by: Millis,
    },
    ReplicaDies {
        replica: usize,
        silent: bool,
        down: u64,
    },
    /// From the store.
    ReplicaCut {
        replica: usize,
        silent: bool,
        lasts: u64,
    },
    StoreDies {
        silent: bool,
        /// It comes back with nothing.
        forgets: bool,
        lasts: u64,
    },
    StoreFlushed,
    /// To a copy of its own that is so late.
    StoreFailsOver {
        lag: u64,
    },
    /// It takes a replica that lives for dead.
    EnvoyShuns {
        envoy: usize,
        replica: usize,
        lasts: u64,
    },
}
