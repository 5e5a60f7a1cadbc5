//! What `/metrics` shall say of a rank instead of the truth: tests set load that nobody has to make.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Deserialize;

/// Ranks that may be set.
const RANKS_MAX: usize = 4096;

/// The body of `POST /control/gauges`; what is left out is the truth.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Gauges {
    /// Global number of the rank; without one all ranks.
    #[serde(default)]
    pub(crate) rank: Option<u32>,
    /// Requests that run.
    #[serde(default)]
    pub(crate) running: Option<u64>,
    /// Requests that wait.
    #[serde(default)]
    pub(crate) waiting: Option<u64>,
    /// Share of the cache in use, 0..=1.
    #[serde(default)]
    pub(crate) kv_usage: Option<f64>,
    /// Leave the rank's series out altogether.
    #[serde(default)]
    pub(crate) absent: bool,
}

/// What was set.
#[derive(Default)]
pub(crate) struct GaugeBoard {
    set: Mutex<BTreeMap<Option<u32>, Gauges>>,
}

impl GaugeBoard {
    /// Sets a rank's gauges, in place of what was set of it before.
    ///
    /// # Errors
    /// A sentence for the caller.
    pub(crate) fn set(&self, gauges: Gauges) -> Result<(), String> {
        let mut set = self.lock();
        if set.len() >= RANKS_MAX {
            return Err(format!("{RANKS_MAX} ranks are set already"));
        }
        set.insert(gauges.rank, gauges);
        Ok(())
    }

    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    /// What was set of a rank: for itself, else for all.
    pub(crate) fn of(&self, rank: u32) -> Gauges {
        let set = self.lock();
        set.get(&Some(rank)).or_else(|| set.get(&None)).copied().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Option<u32>, Gauges>> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
