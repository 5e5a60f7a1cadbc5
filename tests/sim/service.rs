//! The service: one `State` and a shell as thin as the real one. Mirrors `state-service/src/{service,http}`.
//!
//! Its death and its next life are in `restart.rs`.

use crate::faults::{Cost, Fault};
use crate::plan::{OTHER_MODEL, OTHER_POOL, POOL};
use crate::planted::Bug;
use crate::polls::Poll;
use crate::replicas::Life;
use crate::replicas::link::Link;
use crate::waiting::Held;
use crate::world::{BindingSeen, Event, World};
use routing::contract::{PoolInfo, RouteReply, RouteRequest, SessionRef, Target};
use routing::demand::Demands;
use routing::flow::RouteFailure;
use routing::id::{Epoch, PoolName, SessionId, WorkerId};
use routing::time::{Millis, Timestamp};
use state_service::config::{OtherPools, ServiceConfig};
use state_service::declare::WorkerSpec;
use state_service::state::{
    Command, Effect, Limits, Reply, SessionState, SessionView, Sizes, State, StateConfig, Ticket,
};
use state_service::tokenize::Tokens;
use std::collections::BTreeMap;

/// Idle time of a binding.
pub(crate) const TTL: Millis = Millis::from_secs(160);

/// Response ids that are remembered: fewer than some worlds have.
pub(crate) const ALIASES_MAX: usize = 40;

/// Whether calls get through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Up,
    /// Connections are refused.
    Refusing,
    /// Packets vanish.
    Silent,
}

#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) state: State,
    pub(crate) standing: Standing,
    /// How far its clock is ahead of the world's.
    pub(crate) ahead: Millis,
    /// Answers of an earlier life never arrive.
    pub(crate) life: Life,
    /// Whether the next life finds the workers of this one.
    pub(crate) keeps_file: bool,
    pub(crate) declared: BTreeMap<WorkerId, WorkerSpec>,
    pub(crate) polls: Vec<Poll>,
    /// Requests that wait for their slot.
    pub(crate) held: BTreeMap<Ticket, Held>,
    /// Bindings as last seen here.
    pub(crate) bindings_seen: BTreeMap<SessionId, BindingSeen>,
    /// Its side of the store, where there is one.
    pub(crate) link: Link,
    /// Response ids that this life was told of, when, and whose they are.
    pub(crate) aliases: BTreeMap<SessionId, (Timestamp, SessionRef)>,
}

impl Service {
    pub(crate) fn new(epoch: Epoch, config: StateConfig) -> Self {
        let state = State::new(epoch, config);
        Self {
            state,
            standing: Standing::Up,
            ahead: Millis(0),
            life: Life { replica: 0, nth: 1 },
            keeps_file: true,
            declared: BTreeMap::new(),
            polls: Vec::new(),
            held: BTreeMap::new(),
            bindings_seen: BTreeMap::new(),
            link: Link::default(),
            aliases: BTreeMap::new(),
        }
    }
}

impl World {
    pub(crate) fn state_config(&self) -> StateConfig {
        let mut pools = vec![self.pool_info(POOL)];
        if self.plan.extra.pools {
            // One that names none would serve whatever is asked for.
            pools[0].models = vec!["chat-8b".to_owned()];
            pools.push(PoolInfo { models: vec![OTHER_MODEL.to_owned()], ..self.pool_info(OTHER_POOL) });
        }
        let reading =
            self.reads_prompts(POOL).then(|| (PoolName::parse(POOL).unwrap(), Tokens::approximate()));
        let tokens = reading.into_iter().collect();
        let service = ServiceConfig {
            pools,
            other_pools: OtherPools::Refused,
            tokens,
            ..ServiceConfig::without_file()
        };
        let limits = Limits {
            sessions_max: self.plan.sessions_max,
            aliases_max: ALIASES_MAX,
            journal_max: self.plan.shared.journal_max,
            ..Limits::SERVICE
        };
        StateConfig { service, limits }
    }

    fn pool_info(&self, name: &str) -> PoolInfo {
        let mut pool = PoolInfo::with_defaults(PoolName::parse(name).unwrap());
        pool.policy = self.plan.policy;
        pool.reads_prompt = self.reads_prompts(name);
        (pool.affinity, pool.rank) = (self.plan.affinity, self.plan.rank);
        // Short, so that bindings are touched; longer than any idle time of a run.
        pool.ttl_ms = TTL;
        if let Some(overload) = self.plan.extra.overload {
            pool.in_flight_limit = Some(overload.limit);
            (pool.on_overload, pool.on_all_overloaded) = (overload.on, overload.on_all);
            pool.wait_ms = Millis(overload.wait);
        }
        pool
    }

    /// The only way to the state: every command is followed by the checks that concern it.
    pub(crate) fn apply(&mut self, command: Command) -> Reply {
        self.apply_for(None, command)
    }

    /// The same for a question, which may have to wait for its answer.
    pub(crate) fn apply_for(&mut self, asker: Option<(u64, u64)>, command: Command) -> Reply {
        let mut effects = Vec::new();
        let touches_bindings =
            matches!(command, Command::Route { .. } | Command::Report(_) | Command::Apply { .. });
        let is_due = command == Command::Due;
        let asked =
            if let Command::Route { request, .. } = &command { self.asks_about(request) } else { None };
        let before = self.service.state.counters().clone();
        let reply = self.service.state.apply(self.service_now(), command, &mut effects);
        let counters = self.service.state.counters();
        let overloaded = counters.slots_overloaded - before.slots_overloaded;
        let evicted = counters.sessions_evicted - before.sessions_evicted;
        if counters.alias_evicted > before.alias_evicted {
            self.fired.count(Fault::AliasEvicted);
            self.service.aliases.clear();
        }
        self.fired.count_many(Fault::SlotOverloaded, overloaded);
        for _ in 0..evicted {
            self.fired.count(Fault::SessionEvicted);
            self.cost_all(Cost::Evicted);
            // One report may evict a session and bring it back, with whatever version.
            self.service.bindings_seen.clear();
        }
        if let (Some(asker), Reply::Later(later)) = (asker, &reply) {
            self.hold(asker, asked, *later);
        }
        self.share_effects(&effects);
        self.answer_held(&effects, is_due);
        self.check_waiting();
        if touches_bindings {
            self.check_state();
        }
        if effects.contains(&Effect::Changed) {
            self.wake_polls();
        }
        reply
    }

    /// The binding a question may have to wait for, as far as the service knows it: its caller may know better.
    fn asks_about(&self, request: &RouteRequest) -> Option<Target> {
        let behind = || Some(self.service.aliases.get(&request.alias?)?.1.id);
        let id = request.session.map(|session| session.id).or_else(behind)?;
        let view = self.service.state.session(self.service_now(), id)?;
        let newer = request.cached.is_some_and(|cached| cached.version > view.version);
        view.target.filter(|_| view.state == SessionState::Bound && !newer)
    }

    pub(crate) fn stop_service(&mut self, standing: Standing) {
        self.service.standing = standing;
        self.service.life.nth += 1;
        self.service.aliases.clear();
        self.cut_waiting(standing == Standing::Silent);
        self.service.link = Link { cut: self.service.link.cut, ..Link::default() };
        for poll in std::mem::take(&mut self.service.polls) {
            self.after(1, Event::WatchAnswered { at: poll.at, call: poll.call, reply: None });
        }
    }

    pub(crate) fn route_arrives(&mut self, request: u64, call: u64, body: RouteRequest) {
        match self.service.standing {
            Standing::Silent => return,
            Standing::Refusing => {
                let answer = Err(RouteFailure::Failed);
                return self.after(1, Event::RouteAnswered { request, call, life: None, answer });
            }
            Standing::Up => {}
        }
        let draw = self.rng.next();
        let alias = body.alias;
        let dry = body.dry_run.then(|| {
            // Any command ends waits whose time is up, and a wait may end in the very ms of a dry run: first what is due anyway.
            self.apply(Command::Due);
            self.look_at(&body)
        });
        let asked = self.spoil_demands(body);
        let prompt = self.blocks_of(&asked);
        self.ask_claims_for((request, call), &asked, prompt.as_deref());
        match self.apply_for(Some((request, call)), Command::Route { request: asked.clone(), prompt, draw }) {
            Reply::Route(reply) => {
                if let Some(alias) = alias {
                    self.check_alias(alias, &reply);
                }
                self.tell_route((request, call), &reply);
            }
            Reply::Later(_) => {}
            other => self.violate("a route is answered", &format!("{other:?}")),
        }
        if dry.is_some_and(|before| before != self.look_at(&asked)) {
            self.violate("a dry run changes nothing", &format!("{asked:?}"));
        }
    }

    /// All that a dry run must leave as it is.
    fn look_at(&self, asked: &RouteRequest) -> (Sizes, Option<SessionView>) {
        let session =
            asked.session.and_then(|session| self.service.state.session(self.service_now(), session.id));
        (self.service.state.sizes(), session)
    }

    fn spoil_demands(&self, mut asked: RouteRequest) -> RouteRequest {
        if self.bug == Some(Bug::DemandsAreDropped) {
            asked.demands = Demands::default();
        }
        asked
    }

    /// When a reply arrives, and whether it does so again.
    pub(crate) fn reply_delays(&mut self, twice: Fault, late: Fault) -> Vec<u64> {
        let net = self.net();
        let mut delays = vec![self.rng.within(1, 6)];
        if self.rng.per_mille(net.reply_late) {
            self.fired.count(late);
            delays = vec![self.rng.within(100, 4000)];
        }
        if self.rng.per_mille(net.reply_twice) {
            self.fired.count(twice);
            let again = self.rng.within(1, 2000);
            delays.push(delays[0] + again);
        }
        delays
    }

    /// Two bad endpoints make one bad worker; each is asked by itself.
    pub(crate) fn probe(&mut self, worker: usize, healthy: bool) {
        if self.workers[worker].declared {
            self.at_each_up(|world| world.probe_here(worker, healthy));
        }
    }

    fn probe_here(&mut self, worker: usize, healthy: bool) {
        let id = self.workers[worker].id.clone();
        let before = self.service.state.counters().workers_down;
        for endpoint in 0..self.workers[worker].live_endpoints().count() {
            self.apply(Command::Probe { worker: id.clone(), endpoint, healthy });
        }
        if self.service.state.counters().workers_down > before {
            self.fired.count(Fault::WorkerProbedDown);
            self.cost_all(Cost::WorkerChanged);
        }
    }

    pub(crate) fn check_route(&mut self, reply: &RouteReply) {
        if let Some(prefill) = &reply.prefill {
            self.check_route(prefill);
        }
        self.check_newcomer(reply);
        let Some(target) = &reply.target else { return };
        let declared = self.service.declared.get(&target.worker);
        let in_range = declared.is_some_and(|spec| {
            let ranks = spec.rank_start()..spec.rank_start() + spec.rank_count();
            target.rank.is_none_or(|rank| ranks.contains(&rank.0))
        });
        if !in_range {
            self.violate("a route names a declared slot", &format!("{target:?}"));
        }
    }
}
