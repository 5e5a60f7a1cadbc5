//! The service towards those who look: workers, pools, sessions, readiness and numbers. Changes nothing.

use super::{Service, Warning};
use crate::explain::{Question, Shown};
use crate::http::problem::Problem;
use crate::http::show;
use crate::kv_events::hub::Rank;
use crate::metrics::Text;
use crate::replicas::Replicas;
use crate::state::{Readiness, SessionView, StateError, Worker};
use crate::store::Standing;
use routing::contract::{Fleet, Outcome, PoolInfo, RouteReply, Target, Topology, WorkerState};
use routing::directory::Directory;
use routing::id::{Cursor, PoolName, SessionId, WorkerId};
use serde::Serialize;
use serde_json::Value;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// Answer of `/readyz`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReadyReport {
    /// Whether requests can be placed.
    pub ready: bool,
    /// Why not.
    pub reasons: Vec<Warning>,
    /// What is wrong although they can.
    pub warnings: Vec<Warning>,
}

/// States in the order they are shown in metrics.
const STATES: [(WorkerState, &str); 5] = [
    (WorkerState::Joining, "joining"),
    (WorkerState::Ready, "ready"),
    (WorkerState::Suspect, "suspect"),
    (WorkerState::Draining, "draining"),
    (WorkerState::Down, "down"),
];

impl Service {
    /// Whether a worker is declared.
    pub fn has_worker(&self, id: &WorkerId) -> bool {
        self.lock().worker(id).is_some()
    }

    /// All workers for people.
    pub fn show_workers(&self) -> Vec<Value> {
        self.lock().workers().map(show::worker).collect()
    }

    /// One worker for people.
    ///
    /// # Errors
    /// [`Problem`]: not declared.
    pub fn show_worker(&self, id: &WorkerId) -> Result<Value, Problem> {
        let state = self.lock();
        let worker = state.worker(id).ok_or_else(|| unknown_worker(id))?;
        let (now, slot) = (self.clock.now(), |target: &_| state.slot(target));
        let kv = |target: &Target| {
            let rank = target.rank.map_or_else(|| worker.spec().rank_start(), |rank| rank.0);
            let rank = Rank { worker: target.worker.clone(), rank };
            Some((state.kv_view(now, target)?, self.kv_hub.sockets(&rank)))
        };
        Ok(show::worker_with_slots(worker, slot, |target| state.kv_booked_on(target), kv))
    }

    /// One worker as declared.
    ///
    /// # Errors
    /// [`Problem`]: not declared.
    pub fn declaration(&self, id: &WorkerId) -> Result<Value, Problem> {
        self.lock().worker(id).map(|worker| worker.spec().to_json()).ok_or_else(|| unknown_worker(id))
    }

    /// All pools for people.
    pub fn show_pools(&self) -> Vec<Value> {
        let state = self.lock();
        let shown = |pool: &PoolInfo| {
            let members = state.workers().filter(|worker| worker.spec().pool == pool.name);
            let members: Vec<&WorkerId> = members.map(Worker::id).collect();
            let mut shown = show::pool(pool, members.len());
            self.tokenizers.show(&pool.name, &members, &mut shown);
            shown
        };
        state.pools_with_models().iter().map(shown).collect()
    }

    /// What one Envoy may use now, and states and load.
    pub fn topology(&self, node: &str) -> (Topology, Fleet) {
        let state = self.lock();
        (state.topology_for(node), state.fleet().clone())
    }

    /// One session.
    ///
    /// # Errors
    /// [`Problem`]: not known.
    pub fn session(&self, id: SessionId) -> Result<SessionView, Problem> {
        let state = self.lock();
        let unknown = || Problem::from(&StateError::UnknownSession { prefix: id.prefix() });
        state.session(self.clock.now(), id).ok_or_else(unknown)
    }

    /// Whether there is such a pool, where one is named.
    ///
    /// # Errors
    /// [`Problem`]: there is not; it names those there are.
    pub fn check_pool(&self, named: Option<&PoolName>) -> Result<(), Problem> {
        let state = self.lock();
        let unknown = named.filter(|named| state.pools().all(|pool| pool.name != **named));
        let Some(pool) = unknown.cloned() else { return Ok(()) };
        let declared = state.pools().map(|pool| pool.name.as_str()).collect::<Vec<_>>().join(", ");
        Err(Problem::from(&StateError::UnknownPool { pool, declared }))
    }

    /// What would become of a described request. Nothing is changed, counted or kept.
    pub async fn explain(&self, question: &Question) -> Shown {
        let (topology, fleet) = self.topology("");
        let mut directory = Directory::new(&topology);
        directory.update(&fleet);
        let (now, draw) = (self.clock.now(), self.chance.draw());
        let mut asked = None;
        question.run(directory.clone(), (now, draw), |request| {
            asked = Some(request.clone());
            RouteReply::nowhere(Outcome::Unsure, Cursor(0), self.epoch, "")
        });
        let prompt = match &mut asked {
            // One that is too long is shown as if it had none.
            Some(request) => self.blocks_of(request).await.ok().flatten(),
            None => None,
        };
        let prompt = prompt.map(|chain| *chain);
        question.run(directory, (now, draw), |request| self.lock().dry_run(now, request, prompt, draw))
    }

    /// Whether requests can be placed, and what else there is to say.
    pub fn ready(&self) -> ReadyReport {
        let mut reasons = self.askable().reasons;
        match self.lock().ready() {
            Readiness::Ready => {}
            Readiness::NoWorker => reasons.push(said("no_worker", "no worker is declared")),
            Readiness::AllDown => reasons.push(said("all_down", "every worker is down")),
        }
        let mut warnings = self.warnings.lock().unwrap_or_else(PoisonError::into_inner).clone();
        warnings.extend(self.tokenizers.warnings());
        if let Some(Standing::Away { reason }) = self.replicas().map(|replicas| replicas.standing()) {
            let detail = format!("the store is away ({reason}): bindings of other replicas are not heard of");
            warnings.push(Warning { code: "store_away", detail });
        }
        let missing = self.upstream_role_missing.load(Ordering::Relaxed);
        if missing > 0 {
            let detail =
                format!("{missing} answers came without the filter's upstream role: no rank was set on them");
            warnings.push(Warning { code: "upstream_role_missing", detail });
        }
        ReadyReport { ready: reasons.is_empty(), reasons, warnings }
    }

    /// Whether Envoys should ask this replica, whatever it can answer.
    pub fn askable(&self) -> ReadyReport {
        let mut reasons = Vec::new();
        if self.is_stopping() {
            reasons.push(said("stopping", "the service is stopping"));
        }
        reasons.extend(self.replicas().and_then(|replicas| self.still_loads(replicas)));
        ReadyReport { ready: reasons.is_empty(), reasons, warnings: Vec::new() }
    }

    /// What a replica still waits for. One that never read the store is asked once workers are declared at it: without, any other
    /// replica knows more.
    fn still_loads(&self, replicas: &Replicas) -> Option<Warning> {
        let empty = || self.lock().workers().next().is_none();
        if let Some(reason) = replicas.never_loaded().filter(|_| !replicas.has_loaded() || empty()) {
            let detail = format!("what other replicas know is not loaded from the store yet: {reason}");
            return Some(Warning { code: "loading", detail });
        }
        let joins = !replicas.has_joined();
        joins.then(|| said("loading", "the index of caches is being read from another replica"))
    }

    /// All numbers as Prometheus text.
    pub fn render_metrics(&self) -> String {
        let mut text = Text::default();
        text.single("rankpin_uptime_seconds", "gauge", "Time since the start.", self.clock.uptime().0 / 1000);
        self.render_state(&mut text);
        self.render_kv(&mut text);
        self.render_store(&mut text);
        self.replicas().into_iter().for_each(|replicas| replicas.render_index(&mut text));
        self.tokenizers.render(&mut text);
        let waiting = crate::http::watch::WATCHERS_MAX - self.watchers.available_permits();
        text.single("rankpin_watchers", "gauge", "Long polls held.", waiting);
        self.hosts.render(&mut text);
        let missing = self.upstream_role_missing.load(Ordering::Relaxed);
        let help = "Answers without the filter's upstream role, as reported.";
        text.single("rankpin_upstream_role_missing_total", "counter", help, missing);
        text.family("rankpin_scrapes_total", "counter", "Scrapes of engines' gauges by what became of them.");
        for (finding, count) in self.scrapes.iter() {
            text.sample("rankpin_scrapes_total", &format!("finding=\"{finding}\""), count);
        }
        let rejections = self.xds_rejections.load(Ordering::Relaxed);
        text.single(
            "rankpin_xds_rejections_total",
            "counter",
            "Discovery answers an Envoy refused.",
            rejections,
        );
        self.http.render(&mut text);
        text.finish()
    }

    fn render_state(&self, text: &mut Text) {
        let state = self.lock();
        for (name, help, count) in state.counters().described() {
            text.single(&format!("rankpin_{name}_total"), "counter", help, count);
        }
        let sizes = state.sizes();
        for (name, size) in [
            ("sessions", sizes.sessions),
            ("holds", sizes.holds),
            ("tombstones", sizes.tombstones),
            ("aliases", sizes.aliases),
            ("vms", sizes.vms),
            ("nodes", sizes.nodes),
            ("moves", sizes.moves),
            ("parked", sizes.parked),
            ("journal", sizes.journal),
            ("waiting", sizes.waiting),
        ] {
            text.single(&format!("rankpin_{name}"), "gauge", "How many there are now.", size);
        }
        text.family("rankpin_workers", "gauge", "Declared workers by state.");
        for (word, name) in STATES {
            let count = state.workers().filter(|worker| worker.state() == word).count();
            text.sample("rankpin_workers", &format!("state=\"{name}\""), count);
        }
        let each = |text: &mut Text, name: &str, help: &str, value: fn(&Worker) -> u32| {
            text.family(name, "gauge", help);
            for worker in state.workers() {
                text.sample(name, &format!("worker=\"{}\"", worker.id()), value(worker));
            }
        };
        let help = "Requests in flight, as reported by all Envoys.";
        each(text, "rankpin_worker_in_flight", help, Worker::in_flight);
        let help = "Requests its engine has taken and not begun, as scraped.";
        each(text, "rankpin_worker_waiting", help, Worker::waiting);
        let help = "Slots that are overloaded.";
        each(text, "rankpin_worker_overloaded_slots", help, Worker::overloaded_slots);
    }
}

fn said(code: &'static str, detail: &str) -> Warning {
    Warning { code, detail: detail.to_owned() }
}

fn unknown_worker(id: &WorkerId) -> Problem {
    Problem::from(&StateError::UnknownWorker { id: id.clone() })
}
