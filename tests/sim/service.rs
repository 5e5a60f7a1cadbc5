//! The service: one `State` and a shell as thin as the real one. Mirrors `state-service/src/{service,http}`.
//!
//! Its death and its next life are in `restart.rs`.

use crate::envoy::Discovered;
use crate::faults::{Bug, Cost, Fault};
use crate::world::{Event, VmAt, World};
use routing::config::Steering;
use routing::contract::{
    Entry, PoolInfo, Report, RouteReply, RouteRequest, Target, WATCH_HOLD_MS_MAX, WatchQuery, WatchReply,
};
use routing::flow::RouteFailure;
use routing::id::{Cursor, Epoch, PoolName, WorkerId};
use routing::time::Millis;
use state_service::config::{OtherPools, ServiceConfig};
use state_service::declare::WorkerSpec;
use state_service::state::{Command, Effect, Limits, Reply, State, StateConfig, XdsResource, cluster_name};
use std::collections::BTreeMap;

/// Idle time of a binding.
pub(crate) const TTL: Millis = Millis::from_secs(160);

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
struct Poll {
    at: VmAt,
    call: u64,
    query: WatchQuery,
}

#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) state: State,
    pub(crate) standing: Standing,
    /// How far its clock is ahead of the world's.
    pub(crate) ahead: Millis,
    /// Answers of an earlier life never arrive.
    pub(crate) life: u64,
    /// Whether the next life finds the workers of this one.
    pub(crate) keeps_file: bool,
    pub(crate) declared: BTreeMap<WorkerId, WorkerSpec>,
    polls: Vec<Poll>,
}

impl Service {
    pub(crate) fn new(epoch: Epoch, config: StateConfig) -> Self {
        let state = State::new(epoch, config);
        Self {
            state,
            standing: Standing::Up,
            ahead: Millis(0),
            life: 1,
            keeps_file: true,
            declared: BTreeMap::new(),
            polls: Vec::new(),
        }
    }
}

impl World {
    pub(crate) fn state_config(&self) -> StateConfig {
        let mut pool = PoolInfo::with_defaults(PoolName::parse("chat").unwrap());
        pool.policy = self.plan.policy;
        (pool.affinity, pool.rank) = (self.plan.affinity, self.plan.rank);
        // Short, so that bindings are touched; longer than any idle time of a run.
        pool.ttl_ms = TTL;
        let service =
            ServiceConfig { pools: vec![pool], other_pools: OtherPools::Refused, workers: Vec::new() };
        StateConfig { service, limits: Limits { sessions_max: self.plan.sessions_max, ..Limits::SERVICE } }
    }

    /// The only way to the state: every command is followed by the checks that concern it.
    pub(crate) fn apply(&mut self, command: Command) -> Reply {
        let mut effects = Vec::new();
        let touches_bindings = matches!(command, Command::Route { .. } | Command::Report(_));
        let evicted = self.service.state.counters().sessions_evicted;
        let reply = self.service.state.apply(self.service_now(), command, &mut effects);
        for _ in evicted..self.service.state.counters().sessions_evicted {
            self.fired.count(Fault::SessionEvicted);
            self.cost_all(Cost::Evicted);
            // One report may evict a session and bring it back, with whatever version.
            self.bindings_seen.clear();
        }
        if touches_bindings {
            self.check_state();
        }
        if effects.contains(&Effect::Changed) {
            self.wake_polls();
        }
        reply
    }

    pub(crate) fn declare(&mut self, worker: usize) {
        let spec = self.workers[worker].spec();
        self.workers[worker].declared = true;
        self.service.declared.insert(spec.id.clone(), spec.clone());
        if self.service.standing == Standing::Up
            && let Reply::Refused(error) = self.apply(Command::PutWorker { spec })
        {
            self.violate("a proper declaration is taken", &error.to_string());
        }
    }

    pub(crate) fn undeclare(&mut self, worker: usize) {
        let id = self.workers[worker].id.clone();
        self.workers[worker].declared = false;
        self.service.declared.remove(&id);
        if self.service.standing == Standing::Up {
            self.apply(Command::RemoveWorker { id });
        }
    }

    pub(crate) fn stop_service(&mut self, standing: Standing) {
        self.service.standing = standing;
        self.service.life += 1;
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
        let Reply::Route(reply) = self.apply(Command::Route { request: body, draw }) else {
            return self.violate("a route is answered", "with something else");
        };
        self.check_route(&reply);
        let lost = self.net().route_reply_lost;
        if self.rng.per_mille(lost) {
            return self.fired.count(Fault::RouteReplyLost);
        }
        let twice = self.net().reply_twice;
        let copies = if self.rng.per_mille(twice) { 2 } else { 1 };
        for copy in 0..copies {
            let (delay, life) = (self.rng.within(1, 6) + copy * 3, Some(self.service.life));
            let answer = Ok(Box::new(reply.clone()));
            self.after(delay, Event::RouteAnswered { request, call, life, answer });
        }
    }

    pub(crate) fn report_arrives(&mut self, at: VmAt, call: u64, mut report: Report) {
        if self.service.standing != Standing::Up {
            return;
        }
        if self.bug == Some(Bug::CommitsTwiceElsewhere) {
            let again: Vec<Entry> = report.entries.iter().filter_map(|entry| self.elsewhere(entry)).collect();
            report.entries.extend(again);
        }
        self.spoil_touches(&mut report);
        self.apply(Command::Report(report));
        let lost = self.net().report_lost;
        if self.rng.per_mille(lost) {
            return self.fired.count(Fault::ReportReplyLost);
        }
        for delay in self.reply_delays(Fault::ReportReplyTwice, Fault::ReportReplyLate) {
            self.after(delay, Event::ReportAnswered { at, call, good: true });
        }
    }

    fn spoil_touches(&self, report: &mut Report) {
        if self.bug == Some(Bug::TouchesAreLost) {
            report.entries.retain(|entry| !matches!(entry, Entry::Touched { .. }));
        }
        for entry in report.entries.iter_mut().filter(|_| self.bug == Some(Bug::TouchesNameNoSlot)) {
            if let Entry::Touched { slot, .. } = entry {
                *slot = None;
            }
        }
    }

    /// When a reply arrives, and whether it does so again.
    fn reply_delays(&mut self, twice: Fault, late: Fault) -> Vec<u64> {
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

    fn elsewhere(&self, entry: &Entry) -> Option<Entry> {
        let mut again = entry.clone();
        let Entry::Committed { target, version, .. } = &mut again else { return None };
        let other = self.workers.iter().find(|worker| worker.id != target.worker)?;
        *target = Target { worker: other.id.clone(), rank: None };
        version.seq += 1;
        Some(again)
    }

    pub(crate) fn watch_arrives(&mut self, at: VmAt, call: u64, query: WatchQuery) {
        match self.service.standing {
            Standing::Silent => return,
            Standing::Refusing => return self.after(1, Event::WatchAnswered { at, call, reply: None }),
            Standing::Up => {}
        }
        let hold = query.wait_ms.min(WATCH_HOLD_MS_MAX);
        self.service.polls.push(Poll { at, call, query });
        self.after(hold, Event::WatchHeld { call });
        self.wake_polls();
    }

    pub(crate) fn watch_held(&mut self, call: u64) {
        let Some(at) = self.service.polls.iter().position(|poll| poll.call == call) else { return };
        let poll = self.service.polls.remove(at);
        let (epoch, cursor, salt) = (self.service.state.epoch(), Cursor(poll.query.after), self.rng.next());
        let nothing = WatchReply {
            epoch,
            cursor,
            salt,
            gap: false,
            topology: None,
            fleet: None,
            moves: Vec::new(),
            upload: false,
        };
        self.answer_poll(&poll, &nothing);
    }

    fn wake_polls(&mut self) {
        for poll in std::mem::take(&mut self.service.polls) {
            let (query, salt) = (poll.query.clone(), self.rng.next());
            let mut effects = Vec::new();
            match self.service.state.apply(self.service_now(), Command::Watch { query, salt }, &mut effects) {
                Reply::Watch(Some(news)) => self.answer_poll(&poll, &news),
                _ => self.service.polls.push(poll),
            }
        }
    }

    fn answer_poll(&mut self, poll: &Poll, news: &WatchReply) {
        let lost = self.net().watch_lost;
        let (at, call) = (poll.at, poll.call);
        if self.rng.per_mille(lost) {
            self.fired.count(Fault::WatchReplyLost);
            return self.after(40, Event::WatchAnswered { at, call, reply: None });
        }
        for delay in self.reply_delays(Fault::WatchReplyTwice, Fault::WatchReplyLate) {
            self.after(delay, Event::WatchAnswered { at, call, reply: Some(Box::new(news.clone())) });
        }
    }

    pub(crate) fn xds_arrives(&mut self, envoy: usize, known: (Epoch, u64)) {
        if self.service.standing != Standing::Up {
            return;
        }
        let resource = match self.plan.steering {
            Steering::Cluster => XdsResource::Cluster,
            Steering::Endpoints => XdsResource::Endpoint(PoolName::parse("chat").unwrap()),
        };
        let node = self.envoys[envoy].node.clone();
        let version = if known.0 == self.service.state.epoch() { known.1 } else { 0 };
        if !self.envoys[envoy].by_files {
            self.apply(Command::NodeAck { node, resource, version });
        }
        let state = &self.service.state;
        // An Envoy of another life keeps what it has.
        if state.is_gathering() && known.0 != Epoch(0) && known.0 != state.epoch() {
            return;
        }
        if version == state.xds_version() {
            return;
        }
        let clusters = state
            .workers()
            .flat_map(|worker| worker.endpoints().iter().enumerate().map(move |(n, e)| (worker.id(), n, e)))
            .filter_map(|(id, n, endpoint)| Some((cluster_name(id, n), endpoint.resolved?.to_string())))
            .collect();
        let discovered = Discovered { epoch: state.epoch(), version: state.xds_version(), clusters };
        let delay = self.rng.within(1, 6);
        self.after(delay, Event::XdsAnswered { envoy, discovered: Box::new(discovered) });
    }

    /// Two bad endpoints make one bad worker; each is asked by itself.
    pub(crate) fn probe(&mut self, worker: usize, healthy: bool) {
        if self.service.standing != Standing::Up || !self.workers[worker].declared {
            return;
        }
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
