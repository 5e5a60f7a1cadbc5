//! What every request of one engine shares. Owns the parts, not what is done with them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::config::EngineConfig;
use crate::door::Door;
use crate::fault::FaultBoard;
use crate::gauges::GaugeBoard;
use crate::kv_events::Source;
use crate::model::Model;
use crate::ranks::Ranks;
use crate::record::RequestLog;
use crate::store::Store;

/// One engine's state.
pub(crate) struct Shared {
    pub(crate) config: EngineConfig,
    pub(crate) model: Arc<Model>,
    pub(crate) ranks: Arc<Ranks>,
    pub(crate) log: RequestLog,
    pub(crate) faults: FaultBoard,
    pub(crate) door: Door,
    pub(crate) gauges: GaugeBoard,
    pub(crate) responses: Store,
    sources: OnceLock<Vec<Source>>,
    in_flight: AtomicUsize,
    ids: AtomicUsize,
}

/// A request between its head and the end of its answer's head; counts while it lives.
pub(crate) struct InFlight(Arc<Shared>);

impl Shared {
    pub(crate) fn new(config: EngineConfig) -> anyhow::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            model: Model::shared()?,
            ranks: Arc::new(Ranks::new(&config)),
            config,
            log: RequestLog::default(),
            faults: FaultBoard::default(),
            door: Door::new(),
            gauges: GaugeBoard::default(),
            responses: Store::default(),
            sources: OnceLock::new(),
            in_flight: AtomicUsize::new(0),
            ids: AtomicUsize::new(0),
        }))
    }

    /// A fresh id as the engine makes them: the prefix and 16 hex digits.
    pub(crate) fn fresh_id(&self, prefix: &str) -> String {
        let count = self.ids.fetch_add(1, Ordering::Relaxed) as u64;
        // Spread, so that ids of two engines started in one second differ.
        let mixed = (count ^ unix_nanos()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        format!("{prefix}{:016x}", mixed ^ (mixed >> 31))
    }

    /// The publishers of all ranks, by rank; none when no events are published.
    pub(crate) fn sources(&self) -> &[Source] {
        self.sources.get().map_or(&[], Vec::as_slice)
    }

    /// Tells the publishers, once.
    pub(crate) fn publishes(&self, sources: Vec<Source>) {
        let _ = self.sources.set(sources);
    }

    pub(crate) fn enter(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Seconds since 1970, the engine's `created`.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

pub(crate) fn unix_nanos() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
