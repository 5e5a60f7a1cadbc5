//! The world: one clock, one queue of things to come, and everything that lives between them. One seed is one run.
//!
//! No IO, threads or real time. Messages wait in a map by (time, number), so that a run is the same each time.

use crate::client::Session;
use crate::envoy::{Envoy, VmCell};
pub(crate) use crate::event::Event;
use crate::faults::Fired;
use crate::invariants::Violation;
use crate::plan::{CHAOS_ENDS, Net, Plan};
use crate::planted::Bug;
use crate::prompts::Asked;
use crate::replicas::Life;
use crate::replicas::model::Model;
use crate::request::Request;
use crate::rng::Rng;
use crate::service::{Service, Standing};
use crate::worker::Worker;
use routing::contract::Target;
use routing::flow::{Counter, RouteFailure};
use routing::id::{Epoch, Version, WorkerId};
use routing::time::{Millis, Timestamp};
use state_service::state::Command;
use std::collections::BTreeMap;

/// The world's clock at its beginning: later than any clock jumps back.
const BEGINS: u64 = 100_000_000;
/// More events than any run needs.
const EVENTS_MAX: u64 = 400_000;
/// By then every run is quiet: patience, breaker and lost polls included.
const QUIET_BY: u64 = 90_000;
/// The state's lease of a VM, and a little.
const LEASES: u64 = 33_000;

/// Word of dead VMs, retried.
const SETTLED: u64 = 4_000;

/// One turn on each Envoy, its report and what the watch says of it.
const FINALS: u64 = 4_000;

/// Where slots are few, turns wait for one another: so many quarters of a second more.
const FINALS_MORE: u32 = 120;

/// A VM with nothing to say reports this often: until then a choice whose turn is over already counts as load.
const HEARTBEAT: u64 = 6_500;
/// An eighth of the pool's ttl: a pinned turn after it tells the service.
const TOUCH_DUE: u64 = 21_000;

/// One life of one VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VmAt {
    pub(crate) envoy: usize,
    pub(crate) vm: usize,
    pub(crate) life: u64,
}

/// What a run is worth.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stats {
    pub(crate) events: u64,
    pub(crate) requests: u64,
    pub(crate) accepted: u64,
    pub(crate) told: u64,
    pub(crate) sessions: u64,
    pub(crate) sessions_without_cost: u64,
    /// Of which it was sure that they had ended.
    pub(crate) ended: u64,
    pub(crate) counters: BTreeMap<Counter, u64>,
}

/// Version, target and whether it is released, as last seen.
pub(crate) type BindingSeen = (Version, Option<Target>, bool);

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) bug: Option<Bug>,
    pub(crate) rng: Rng,
    pub(crate) now: Timestamp,
    queue: BTreeMap<(Timestamp, u64), Event>,
    calls: u64,
    pub(crate) faults_on: bool,
    pub(crate) in_finals: bool,
    pub(crate) envoys: Vec<Envoy>,
    /// The replica at hand: the only one in most worlds.
    pub(crate) service: Box<Service>,
    /// The others, each at its number.
    pub(crate) others: Vec<Option<Box<Service>>>,
    /// The number of each worker's last declaration.
    pub(crate) generations: BTreeMap<WorkerId, u64>,
    pub(crate) store: Model,
    pub(crate) store_standing: Standing,
    /// Who waits at the store for news after a cursor.
    pub(crate) followers: Vec<(Life, u64, u64)>,
    /// Something between replicas and store is felt until then.
    pub(crate) troubled_until: Timestamp,
    pub(crate) workers: Vec<Worker>,
    pub(crate) sessions: Vec<Session>,
    pub(crate) requests: BTreeMap<u64, Request>,
    pub(crate) asked: Asked,
    pub(crate) fired: Fired,
    pub(crate) stats: Stats,
    pub(crate) violation: Option<Violation>,
    trace: Option<Vec<String>>,
}

fn workers(plan: &Plan) -> Vec<Worker> {
    let tainted = |n: usize| plan.extra.tainted == Some(n);
    let all = plan.workers.iter().cloned().enumerate();
    all.map(|(n, plan)| Worker::new(n, plan, tainted(n))).collect()
}

impl World {
    pub(crate) fn new(seed: u64, bug: Option<Bug>, traced: bool) -> Self {
        let plan = Plan::of(seed);
        let mut world = Self {
            bug,
            rng: Rng::new(seed),
            now: Timestamp(BEGINS),
            queue: BTreeMap::new(),
            calls: 0,
            faults_on: true,
            in_finals: false,
            envoys: Vec::new(),
            service: Box::new(Service::new(
                Epoch(seed << 8 | 1),
                state_service::state::StateConfig::new(state_service::config::ServiceConfig::without_file()),
            )),
            others: Vec::new(),
            generations: BTreeMap::new(),
            store: Model::new(1, plan.shared.log_max),
            store_standing: Standing::Up,
            followers: Vec::new(),
            troubled_until: Timestamp(0),
            workers: workers(&plan),
            sessions: Vec::new(),
            requests: BTreeMap::new(),
            asked: Asked::default(),
            fired: Fired::default(),
            stats: Stats::default(),
            violation: None,
            trace: traced.then(Vec::new),
            plan,
        };
        world.service = Box::new(Service::new(Epoch(seed << 8 | 1), world.state_config()));
        world.add_replicas();
        world.set_up();
        world
    }

    pub(crate) fn after(&mut self, ms: u64, event: Event) {
        let number = self.new_call();
        self.queue.insert((self.now + Millis(ms), number), event);
    }

    pub(crate) const fn new_call(&mut self) -> u64 {
        self.calls += 1;
        self.calls
    }

    /// Chances of the moment.
    pub(crate) fn net(&self) -> Net {
        if self.faults_on { self.plan.net } else { Net::default() }
    }

    /// The VM, while that life lasts.
    pub(crate) fn cell(&mut self, at: VmAt) -> Option<&mut VmCell> {
        let cell = &mut self.envoys[at.envoy].vms[at.vm];
        (cell.life == at.life).then_some(cell)
    }

    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        let at = self.now.0;
        if let Some(trace) = &mut self.trace {
            trace.push(serde_json::json!({"ms": at, "what": line()}).to_string());
        }
    }

    pub(crate) fn trace(&self) -> String {
        self.trace.as_deref().unwrap_or_default().join("\n")
    }

    /// The whole life of this world.
    pub(crate) fn run(&mut self) {
        self.until(CHAOS_ENDS);
        self.stop_faults();
        let deadline = self.now + Millis(QUIET_BY);
        while !self.is_quiet() && self.now < deadline && self.violation.is_none() {
            self.until(100);
        }
        if !self.is_quiet() {
            self.violate("all waits end", &format!("{} requests are open", self.requests.len()));
        }
        self.until(SETTLED);
        self.check_graves();
        self.until(LEASES);
        self.until_told();
        self.check_replicas();
        self.check_ended();
        self.check_quiet();
        self.check_overload();
        self.in_finals = true;
        // What a fault left split is seen until a touch of each side has met the other's binding.
        self.play_finals();
        self.until(TOUCH_DUE);
        self.play_finals();
        self.play_finals();
        self.check_agreement();
        self.check_replicas();
        self.check_versions();
        self.check_pages();
        self.check_touched();
        self.until(HEARTBEAT);
        self.until_told();
        self.check_quiet();
    }

    /// The fleet changes by itself, as penalties do: a VM hears of it with a later tick.
    fn until_told(&mut self) {
        for _ in 0..10 {
            if self.untold().is_some() {
                self.until(100);
            }
        }
    }

    /// One turn of each session on each Envoy, one after the other.
    fn play_finals(&mut self) {
        for session in 0..self.sessions.len() {
            self.sessions[session].finals.clear();
            self.sessions[session].refusals = 0;
            self.sessions[session].finals_left = (0..self.envoys.len()).collect();
            self.next_final(session);
        }
        self.until(FINALS);
        for _ in 0..FINALS_MORE {
            if !self.finals_over() {
                self.until(250);
            }
        }
        self.check_served();
    }

    fn until(&mut self, ms: u64) {
        let end = self.now + Millis(ms);
        while self.violation.is_none() {
            let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= end) else { break };
            let ((at, _), event) = entry.remove_entry();
            self.now = at;
            self.stats.events += 1;
            if self.stats.events > EVENTS_MAX {
                return self.violate("runs end", "too many events");
            }
            if !event.is_routine() {
                self.note(|| format!("{event:?}"));
            }
            self.happen(event);
            self.check_vms();
        }
        self.now = end;
    }

    fn happen(&mut self, event: Event) {
        if let Some(replica) = event.replica() {
            self.turn_to(replica);
        }
        match event {
            Event::Turn { session } => self.begin_turn(session),
            Event::Request { session, envoy, vm } => self.begin_request(session, envoy, vm),
            Event::BodyComes { request } => self.body_comes(request),
            Event::ClientLeaves { request } => self.client_leaves(request),
            Event::RouteArrives { to: _, request, call, body } => self.route_arrives(request, call, *body),
            Event::RouteAnswered { request, call, life, answer } => {
                // A reply of a service that died meanwhile is a broken connection.
                let cut = life.is_some_and(|life| !self.lives(life));
                self.route_answered(request, call, if cut { Err(RouteFailure::Failed) } else { answer });
            }
            Event::Answered { request, dial, head } => self.answered(request, dial, head),
            Event::Refused { request, dial } => self.refused(request, dial),
            Event::StreamEnds { request, broken } => self.stream_ends(request, broken),
            Event::Tick(at) => self.tick(at),
            Event::ReportArrives { to: _, at, call, report } => self.report_arrives(at, call, *report),
            Event::ReportAnswered { at, call, good } => self.report_answered(at, call, good),
            Event::WatchArrives { to: _, at, call, query } => self.watch_arrives(at, call, query),
            Event::WatchAnswered { at, call, reply } => {
                self.watch_answered(at, call, reply.map(|reply| *reply))
            }
            Event::WatchHeld { to: _, call } => self.watch_held(call),
            Event::PagesArrive { to: _, at, call, upload } => self.pages_arrive(at, call, *upload),
            Event::PagesAnswered { at, call, good } => self.pages_answered(at, call, good),
            Event::HostsBack { envoy, addresses } => {
                self.envoys[envoy].hidden.retain(|address| !addresses.contains(address));
            }
            Event::CheckBuried { envoy, dead } => self.check_buried(envoy, dead),
            Event::DeclaredAgain { life, spec } => self.declared_again(life, *spec),
            Event::MovesAgain { envoy, moves } => {
                moves.iter().for_each(|moved| self.change_page(envoy, moved));
            }
            Event::XdsPoll { envoy } => self.poll_xds(envoy),
            Event::XdsArrives { to: _, envoy, known } => self.xds_arrives(envoy, known),
            Event::XdsAnswered { envoy, discovered } => self.envoys[envoy].discovered = *discovered,
            Event::Probe { worker } => self.probe_due(worker),
            Event::Expire => {
                self.at_each_up(|world| drop(world.apply(Command::Expire)));
                self.after(100, Event::Expire);
            }
            Event::Fault(fault) => self.fault(fault),
            Event::Heal { worker } => self.heal(worker),
            Event::DrainOver { worker, life } => self.drain_over(worker, life),
            Event::Resume { worker, life } => self.resume(worker, life),
            Event::CacheClears { worker } => self.cache_clears(worker),
            Event::Scrape { worker } => self.scrape(worker),
            Event::Scraped { worker, endpoint, slots } => self.scraped(worker, endpoint, &slots),
            Event::WaitDue { life, ticket } => self.wait_due(life, ticket),
            Event::WaiterGone { life, ticket } => self.waiter_gone(life, ticket),
            Event::FinalAgain { session, envoy } => self.play_final(session, envoy),
            Event::ServiceIsBack { life } if self.lives(life) => self.restart_service(),
            Event::ServiceIsBack { .. } => {}
            of_replicas => self.happen_between(of_replicas),
        }
    }
}
