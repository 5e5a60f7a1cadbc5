//! This VM's state and its metrics. One VM is one thread, so a `RefCell` in thread-local storage is all the sharing there is.

use crate::host::abi;
use crate::seats::Seat;
use crate::{host, store};
use routing::config::{Module, PoolBy};
use routing::directory::Directory;
use routing::flow::Counter;
use routing::id::Epoch;
use routing::vm::Vm;
use routing::waits::Waits;
use routing::{header, policy};
use std::cell::RefCell;

/// Urgent reports a tick may send at once; more wait for the regular one.
const URGENT_PER_TICK_MAX: u32 = 64;

pub(crate) struct Shared {
    pub(crate) vm: Vm,
    /// Requests, and attempts, that wait for a body.
    pub(crate) waits: Waits,
    pub(crate) attempts: Waits,
    counters: Vec<(Counter, u32)>,
    snapshot: u32,
    workers: u32,
    seen: u64,
    urgent: u32,
    warned_role: bool,
    warned_cluster: bool,
    warned_pool: bool,
    warned_service: bool,
    warned_prompt: bool,
    pub(crate) seat: Seat,
    pub(crate) report_call: Option<u32>,
}

thread_local! {
    static SHARED: RefCell<Option<Shared>> = const { RefCell::new(None) };
}

/// Runs `f` on this VM's state; `None` before the first configure.
pub(crate) fn with<T>(f: impl FnOnce(&mut Shared) -> T) -> Option<T> {
    SHARED.with(|cell| cell.try_borrow_mut().ok()?.as_mut().map(f))
}

/// Creates the state at the first configure of this VM.
///
/// # Errors
/// One sentence for the operator.
pub(crate) fn start() -> Result<(), &'static str> {
    SHARED.with(|cell| {
        let mut shared = cell.try_borrow_mut().map_err(|_| "configured while a request runs")?;
        if shared.is_none() {
            *shared = Some(Shared::new()?);
        }
        Ok(())
    })
}

impl Shared {
    fn new() -> Result<Self, &'static str> {
        gauges_work()?;
        let node = ["node\0id", "xds\0node\0id"]
            .iter()
            .find_map(|path| host::text_property(path))
            .unwrap_or_default();
        // No randomness in this module: time and a counter that all VMs of this Envoy share make lives differ.
        let seed = policy::mix(host::now_nanos(), store::next_number(header::shared::LIVES));
        let snapshot = host::gauge(header::gauge::SNAPSHOT).ok_or("a gauge could not be defined")?;
        let workers = host::gauge(header::gauge::WORKERS).ok_or("a gauge could not be defined")?;
        let define = |counter: &Counter| {
            let id = host::counter(&format!("rankpin.requests.{}", counter.word()));
            id.map(|id| (*counter, id)).ok_or("a counter could not be defined")
        };
        let counters = Counter::ALL.iter().map(define).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            vm: Vm::new(&node, Epoch(policy::mix(seed, 1)), policy::mix(seed, 2)),
            waits: Waits::default(),
            attempts: Waits::default(),
            counters,
            snapshot,
            workers,
            seen: 0,
            urgent: 0,
            warned_role: false,
            warned_cluster: false,
            warned_pool: false,
            warned_service: false,
            warned_prompt: false,
            seat: Seat::default(),
            report_call: None,
        })
    }

    /// Takes over a newer topology or fleet from shared data; one gauge read when there is none.
    pub(crate) fn refresh(&mut self) {
        let stored = host::metric_value(self.snapshot).unwrap_or(0);
        if stored != self.seen {
            store::load(&mut self.vm, self.seen, stored);
            self.seen = stored;
        }
    }

    /// Tells every VM of this Envoy that shared data holds something newer.
    pub(crate) fn publish(&mut self, gauge: u64) {
        host::record(self.snapshot, gauge);
    }

    /// Tells the operator how many workers this Envoy may use.
    pub(crate) fn publish_workers(&self) {
        let usable = self.vm.directory.as_ref().map_or(0, Directory::usable);
        host::record(self.workers, u64::try_from(usable).unwrap_or(u64::MAX));
    }

    fn metric(&self, counter: Counter) -> Option<u32> {
        self.counters.iter().find(|(known, _)| *known == counter).map(|(_, id)| *id)
    }

    pub(crate) fn count(&mut self, counter: Counter) {
        if let Some(id) = self.metric(counter) {
            host::increment(id, 1);
        }
        if counter == Counter::ClusterMissing && !self.warned_cluster {
            self.warned_cluster = true;
            log::warn!(
                "Envoy does not know a cluster that the filter named: '{}ID' of a declared worker under steering 'cluster', '{}NAME' \
                 of a pool under 'endpoints'; add it to Envoy's config (its access log says cluster_not_found)",
                header::cluster::WORKER_PREFIX,
                header::cluster::POOL_PREFIX
            );
        }
        if counter == Counter::PromptUnread {
            self.note_prompt_unread();
        }
        if counter == Counter::UpstreamRoleMissing && !self.warned_role {
            self.warned_role = true;
            log::warn!(
                "an answer came through a pool cluster without the role '{}': no rank is set there; add the wasm filter to \
                 the cluster's http_filters",
                header::root::UPSTREAM
            );
        }
    }

    /// Tells the operator once that this module is the wrong one for a pool that looks for prompts.
    fn note_prompt_unread(&mut self) {
        if abi::module() == Module::Headers && !self.warned_prompt {
            self.warned_prompt = true;
            log::warn!(
                "a pool of policy 'kv_aware' looks for prompts, and rankpin.wasm sees none: requests are placed there by load; load \
                 rankpin-body.wasm or rankpin-full.wasm"
            );
        }
    }

    /// Tells the operator once when the pool of this listener is none of the service's.
    pub(crate) fn check_pool(&mut self, by: &PoolBy) {
        let Some(directory) = &self.vm.directory else { return };
        let pool = match by {
            PoolBy::Only => None,
            PoolBy::Fixed(pool) => Some(pool),
            PoolBy::Header(_) | PoolBy::Body => return,
        };
        let known = directory.pools.is_empty() || directory.pool(pool).is_some();
        if !known && !self.warned_pool {
            let name = pool.map_or_else(|| "none".to_owned(), |pool| format!("'{pool}'"));
            log::warn!(
                "pool_by names {name}, and the service has several pools, none of that name: requests are not placed"
            );
        }
        self.warned_pool = !known;
    }

    /// Tells the operator once, each time it begins, that the service cannot be called at all.
    pub(crate) fn note_service(&mut self, cluster: &str, callable: bool) {
        if !callable && !self.warned_service {
            log::warn!(
                "Envoy has no cluster '{cluster}', or no host in it: the state service cannot be called"
            );
        }
        self.warned_service = !callable;
    }

    /// Contexts that have waited long enough for a body.
    pub(crate) fn overdue(&self) -> Vec<u32> {
        let now = host::now();
        [self.waits.overdue(now), self.attempts.overdue(now)].concat()
    }

    pub(crate) fn may_send_urgent(&mut self) -> bool {
        self.urgent += 1;
        self.urgent <= URGENT_PER_TICK_MAX
    }

    pub(crate) fn ticked(&mut self) {
        self.urgent = 0;
        let dropped = i64::try_from(self.vm.reports.newly_dropped()).unwrap_or(i64::MAX);
        if dropped > 0
            && let Some(id) = self.metric(Counter::EntryDropped)
        {
            host::increment(id, dropped);
        }
    }
}

/// One of these went on without its body, which did not come in time.
pub(crate) fn rescued(waits: &mut Waits, role: &str) {
    if waits.rescued() {
        log::warn!(
            "a body does not come to the role '{role}': is allow_on_headers_stop_iteration: true set beside its root_id? Until one \
             comes, most requests go on without theirs being read"
        );
    }
}

/// A `stats_matcher` that drops our gauges makes define, set and get succeed and stay 0: then nothing here would work.
fn gauges_work() -> Result<(), &'static str> {
    let gauge = host::gauge("rankpin.selftest").ok_or("a gauge could not be defined")?;
    host::record(gauge, 1);
    match host::metric_value(gauge) {
        Some(1) => Ok(()),
        _ => Err(
            "gauges do not keep their value: let stats_config.stats_matcher of the bootstrap include the prefix \
                  'wasmcustom.rankpin.'",
        ),
    }
}
