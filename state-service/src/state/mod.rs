//! The whole fleet as one value: `apply(now, command) → reply + effects`.
//!
//! Owns workers and their states, sessions and their bindings, load, and what each Envoy may see of them. Deliberately knows
//! no clock, randomness, runtime, log, HTTP or file: time and chance are arguments, effects are values. Decisions iterate
//! sorted collections only and break ties by id or by the draw they were given.

mod alias;
mod answer;
mod binding;
pub mod blocks;
mod busy;
mod choice;
mod command;
mod counters;
mod error;
mod explain;
mod fleet;
mod gauges;
mod gone;
mod health;
mod journal;
mod judge;
mod kv;
pub mod kv_event;
pub mod kv_stream;
mod limits;
mod load;
mod named;
mod nodes;
mod offer;
mod overload;
mod parked;
mod replicated;
mod report;
mod route;
mod sessions;
mod settling;
mod shared;
mod slots;
mod soft;
mod tally;
#[cfg(test)]
mod tests;
mod touch;
mod upload;
mod verdict;
mod view;
mod vms;
mod waiting;
mod watch;
mod workers;

pub use busy::SlotView;
pub use command::{Command, Declared, Effect, Later, Readiness, Reply, Ticket, XdsResource};
pub use command::{ReservationId, Reserve, Reserved};
pub use counters::Counters;
pub use error::StateError;
pub use gauges::SlotGauges;
pub use journal::STORE;
pub use kv::{Booked, Carried, Hand, KvView, PIECES_AT_ONCE, SlotHead};
pub use limits::{Limits, StateConfig};
pub use replicated::{Binding, Changes, Outcome, Position};
pub use shared::{Claiming, EndElsewhere, NOTES_MAX, Note, Proposal, Sharing};
pub use view::{SessionState, SessionView, Sizes};
pub use workers::{Endpoint, Worker, cluster_name};

use alias::Aliases;
use gone::Gone;
use limits::EXPIRED_PER_TICK_MAX;
use nodes::Nodes;
use parked::Parked;
use routing::block::Chain;
use routing::contract::{Caller, Fleet, PoolInfo, RouteRequest, SessionRef};
use routing::id::{Epoch, PoolName, SessionId, WorkerId};
use routing::policy::mix;
use routing::time::Timestamp;
use sessions::Table;
use settling::{Settling, first_view};
use slots::Slots;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use vms::Vms;
use waiting::Waiting;
use watch::MoveLog;
use workers::Workers;

/// Everything the service knows.
#[derive(Debug)]
pub struct State {
    epoch: Epoch,
    config: StateConfig,
    counters: Counters,
    pools: BTreeMap<PoolName, PoolInfo>,
    /// Round robin of each pool, and of the prefill half of those that are split. Pools are bounded, so this is.
    turns: BTreeMap<(PoolName, bool), u64>,
    workers: Workers,
    gone: Gone,
    /// Version of what xDS serves.
    xds: u64,
    nodes: Nodes,
    /// Last version given to any view of the topology.
    views: u64,
    /// Version of the topology as such; a node's own view may be newer.
    topology: u64,
    fleet: Fleet,
    fleet_at: Timestamp,
    /// A worker's state or the set of workers changed since `fleet`.
    fleet_stale: bool,
    /// Load may have changed since `fleet`.
    load_changed: bool,
    /// Earliest deadline of a running drain.
    next_drain: Option<Timestamp>,
    vms: Vms,
    sessions: Table,
    aliases: Aliases,
    moves: MoveLog,
    parked: Parked,
    slots: Slots,
    waiting: Waiting,
    settling: Settling,
    kv: kv::Kv,
    sharing: Sharing,
    /// What the other replicas should hear.
    gone_untold: Vec<Caller>,
    aliases_untold: VecDeque<(SessionId, SessionRef, PoolName)>,
    ends_untold: VecDeque<Note>,
    /// Highest sequence of any version given here.
    clock: u64,
    next_hold: u64,
    /// Watchers have something new since the last command.
    news: bool,
    /// Workers to be probed at once, since the last command.
    doubted: BTreeSet<WorkerId>,
}

impl State {
    /// An empty state in a new life. `epoch` is also the writer of the versions it gives.
    #[must_use]
    pub fn new(epoch: Epoch, config: StateConfig) -> Self {
        let pools = config.pools().iter().map(|p| (p.name.clone(), p.clone())).collect();
        let Limits { sessions_max, tombstones_max, journal_max, .. } = config.limits;
        let sessions = Table::new(sessions_max, tombstones_max, journal_max);
        let aliases = Aliases::new(config.limits.aliases_max);
        Self {
            epoch,
            counters: Counters::default(),
            pools,
            turns: BTreeMap::new(),
            workers: Workers::default(),
            gone: Gone::default(),
            // Versions start at 1: 0 is what a caller has that has nothing.
            xds: 1,
            nodes: Nodes::default(),
            views: first_view(epoch),
            topology: first_view(epoch),
            fleet: Fleet { version: 1, workers: Vec::new() },
            fleet_at: Timestamp::default(),
            fleet_stale: false,
            load_changed: false,
            next_drain: None,
            vms: Vms::default(),
            sessions,
            aliases,
            moves: MoveLog::default(),
            parked: Parked::default(),
            slots: Slots::default(),
            waiting: Waiting::default(),
            settling: Settling::default(),
            kv: kv::Kv::new(&config.service),
            sharing: Sharing::default(),
            gone_untold: Vec::new(),
            aliases_untold: VecDeque::new(),
            ends_untold: VecDeque::new(),
            clock: 0,
            // Apart from those of other replicas, and exact in JSON.
            next_hold: mix(epoch.0, 1) >> 16,
            news: false,
            doubted: BTreeSet::new(),
            config,
        }
    }

    /// Does one thing. `now` must not go backwards; effects are appended to `out`.
    pub fn apply(&mut self, now: Timestamp, command: Command, out: &mut Vec<Effect>) -> Reply {
        self.begin(now);
        self.end_drains(now);
        let position = self.position();
        let reply = self.dispatch(now, command, out);
        self.counters.tombstones_evicted += self.sessions.trim_graves();
        self.settle_waiting(now, out);
        self.settle_fleet(now);
        self.gather(now);
        out.extend(std::mem::take(&mut self.doubted).into_iter().map(Effect::ProbeNow));
        if self.sharing != Sharing::Single && self.position() != position {
            out.push(Effect::Recorded);
        }
        // Whose claim another one's hold keeps to gives it up.
        let mut over = self.sessions.take_claims_over();
        over.retain(|(_, version)| version.writer == self.epoch.0);
        if !over.is_empty() {
            out.push(Effect::ClaimsOver(over));
        }
        if std::mem::take(&mut self.news) {
            out.push(Effect::Changed);
        }
        reply
    }

    fn dispatch(&mut self, now: Timestamp, command: Command, out: &mut Vec<Effect>) -> Reply {
        match command {
            Command::PutWorker { spec } => {
                return self.put_worker(now, spec, out).map_or_else(Reply::Refused, Reply::Declared);
            }
            Command::Told { worker, address, told } => {
                return done(self.told(now, &worker, &address, &told, out));
            }
            Command::RemoveWorker { id } => return done(self.remove_worker(now, &id, out)),
            Command::DrainWorker { id, deadline } => return done(self.drain_worker(now, &id, deadline)),
            Command::ResumeWorker { id } => return done(self.resume_worker(&id)),
            Command::Generation { worker, generation } => {
                return done(self.number_declaration(now, &worker, generation));
            }
            Command::DeclaredUpTo { generation } => self.declared_up_to(now, generation),
            Command::Resolved { worker, endpoint, address } => {
                return done(self.resolved(&worker, endpoint, address));
            }
            Command::Probe { worker, endpoint, healthy } => {
                return done(self.probe(now, &worker, endpoint, healthy));
            }
            Command::Gauges { worker, endpoint, slots, strays } => {
                return done(self.gauges(now, &worker, endpoint, slots, strays));
            }
            Command::Kv { worker, rank, inputs } => return done(self.kv(now, &worker, rank, inputs, out)),
            Command::KvLink { worker, rank, link } => {
                return done(self.kv_link(now, &worker, rank, link, out));
            }
            Command::Route { request, prompt, draw } => {
                return self.route_or_wait(now, request, prompt, draw);
            }
            Command::Reserve(ask) => {
                return self.reserve_for_host(now, *ask).map_or_else(Reply::Refused, Reply::Reserved);
            }
            Command::ReservationPrefilled { id } => return done(self.reservation_prefilled(id)),
            Command::Watch { query, salt } => return Reply::Watch(self.watch(&query, salt)),
            Command::ReleaseSession { id } => return done(self.release_by_hand(now, id)),
            Command::Apply { writer, bindings } => {
                return Reply::Applied(self.apply_bindings(now, writer, &bindings));
            }
            Command::TakeNotes => return Reply::Notes(self.take_notes(now)),
            Command::ReleaseReservation { id } => self.release_reservation(now, id),
            Command::Leave { ticket } => self.leave(ticket),
            // Whoever's time is up is answered after every command.
            Command::Due => {}
            Command::Report(report) => self.report(now, report),
            Command::Pages(upload) => self.take_pages(now, upload),
            Command::Sharing(sharing) => self.sharing = sharing,
            Command::Claimed { session, hold, claim } => self.claimed(session, hold, &claim),
            Command::Note(note) => self.take_note(now, *note),
            Command::EarlierLife { all_told } => self.settling.earlier_life_told(all_told),
            Command::NodeReturned { node, resource } => self.node_returned(now, &node, resource),
            Command::NodeAck { node, resource, version } => self.node_ack(now, &node, resource, version),
            Command::Expire => self.expire(now, out),
        }
        Reply::Done
    }

    fn route_or_wait(
        &mut self,
        now: Timestamp,
        request: RouteRequest,
        prompt: Option<Box<Chain>>,
        draw: u64,
    ) -> Reply {
        self.take_back(&request);
        match self.wait_for_slot(now, &request, prompt.as_deref(), draw) {
            Some(later) => Reply::Later(later),
            None => Reply::Route(self.route(now, request, prompt.map(|chain| *chain), draw)),
        }
    }

    fn expire(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        let (sessions, tombstones) = self.sessions.expire(now, EXPIRED_PER_TICK_MAX);
        self.counters.sessions_expired += sessions;
        self.counters.tombstones_expired += tombstones;
        self.counters.nodes_expired += self.nodes.expire(now, &self.config.limits);
        self.expire_parked(now);
        self.expire_aliases(now);
        self.forget_gauges(now);
        let dead = self.vms.expire(now, &self.config.limits, &mut self.workers);
        if !dead.is_empty() {
            self.counters.vms_expired += u64::try_from(dead.len()).unwrap_or(u64::MAX);
            self.counters.holds_orphaned += self.sessions.bury_owners(&dead);
            self.end_bookings_of(&dead);
            self.load_changed = true;
        }
        // Whoever asks another replica now tells that one how its requests end, and what that one notes of it may be lost.
        let elsewhere = self.vms.gone_elsewhere(now, self.config.limits.vm_lease);
        if !elsewhere.is_empty() {
            self.counters.holds_orphaned += self.sessions.bury_owners(&elsewhere);
        }
        self.tick_kv(now, out);
    }

    /// This life.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// All workers, by id.
    pub fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter()
    }

    /// One worker.
    #[must_use]
    pub fn worker(&self, id: &WorkerId) -> Option<&Worker> {
        self.workers.by_id(id)
    }

    /// All pools, by name.
    pub fn pools(&self) -> impl Iterator<Item = &PoolInfo> {
        self.pools.values()
    }

    /// States and load.
    #[must_use]
    pub const fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Counts since this life began.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Grows with every change of what xDS serves.
    #[must_use]
    pub const fn xds_version(&self) -> u64 {
        self.xds
    }
}

fn done(result: Result<(), StateError>) -> Reply {
    result.map_or_else(Reply::Refused, |()| Reply::Done)
}
