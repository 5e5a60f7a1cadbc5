//! Turns that run under a binding, so that a long one keeps it alive: here, at the service, and so on every Envoy.
//!
//! Owns who runs, and when each was told of last. A slab: beginning and ending a turn cost next to nothing.

use super::Vm;
use crate::contract::{Entry, KeptSlot, SessionRef};
use crate::flow::PageChange;
use crate::page::Record;
use crate::time::{Millis, Timestamp};

/// Most turns at once; one beyond it does not keep its binding alive (an Envoy thread runs far fewer).
const RUNNING_MAX: usize = 1 << 20;
/// All of them are looked at this often.
const LOOK: Millis = Millis(250);

/// Names a turn that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunRef(u32);

/// All turns of a VM that run under a binding.
#[derive(Debug, Default)]
pub struct Running {
    bindings: Vec<Option<Record>>,
    free: Vec<u32>,
    looked: Timestamp,
}

impl Running {
    /// A turn begins; its binding as it is cached, and told of now.
    pub fn begin(&mut self, binding: Record) -> Option<RunRef> {
        if let Some(at) = self.free.pop() {
            *self.bindings.get_mut(at as usize)? = Some(binding);
            return Some(RunRef(at));
        }
        let at = u32::try_from(self.bindings.len()).ok().filter(|_| self.bindings.len() < RUNNING_MAX)?;
        self.bindings.push(Some(binding));
        Some(RunRef(at))
    }

    fn end(&mut self, run: RunRef) -> Option<Record> {
        let ended = self.bindings.get_mut(run.0 as usize)?.take()?;
        self.free.push(run.0);
        Some(ended)
    }

    /// Turns that run now.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bindings.len() - self.free.len()
    }

    /// Whether none runs.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Vm {
    /// Tells of the bindings of turns that have run for an eighth of their ttl since they were told of last; to be called often.
    pub fn keep_running(&mut self, now: Timestamp) -> Vec<PageChange> {
        if now.since(self.running.looked) < LOOK && now >= self.running.looked {
            return Vec::new();
        }
        self.running.looked = now;
        let mut bindings = std::mem::take(&mut self.running.bindings);
        let due = bindings.iter_mut().flatten();
        let changes = due.filter_map(|record| self.keep(now, record)).flatten().collect();
        self.running.bindings = bindings;
        changes
    }

    /// A turn is over: its session is idle from now on.
    pub fn stop_running(&mut self, now: Timestamp, run: RunRef) -> Option<PageChange> {
        let mut record = self.running.end(run)?;
        self.keep(now, &mut record).flatten()
    }

    /// `None`: it was told of just now. A page of another cache generation is left as it is: its record is to be checked first.
    fn keep(&mut self, now: Timestamp, record: &mut Record) -> Option<Option<PageChange>> {
        let directory = self.directory.as_ref()?;
        let (_, worker) = directory.worker_by_hash(record.worker_hash)?;
        let pool = directory.pools.get(worker.pool)?;
        let ahead = record.touched_s > Record::seconds(now);
        if !ahead && record.idle(now) < Millis(pool.ttl.0 / 8).max(Millis(1000)) {
            return None;
        }
        record.touched_s = Record::seconds(now);
        let told = Entry::Touched {
            session: SessionRef { id: record.id, rank_hash: record.rank_hash },
            pool: pool.name.clone(),
            version: record.version,
            slot: Some(KeptSlot { worker_hash: record.worker_hash, rank: record.rank }),
        };
        self.reports.push(told);
        Some((record.generation == self.generation).then_some(PageChange::Put(*record)))
    }
}
