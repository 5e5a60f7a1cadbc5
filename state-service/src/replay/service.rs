//! The state service as a replay uses it: declares slots, asks where requests go, and tells what became of them as a filter does.
//!
//! Owns a [`State`] and one VM's reports to it: absolute counts and entries, every [`REPORT_EVERY`] while there is something to
//! tell. Decides nothing itself.

use super::args::{POOL, ReplayArgs};
use super::error::ReplayError;
use crate::declare;
use crate::state::kv_event::KvBatch;
use crate::state::kv_stream::{Frame, Input};
use crate::state::{Command, Effect, Reply, State, StateConfig};
use routing::block::Chain;
use routing::contract::{
    Affinity, Caller, Entry, InFlight, Outcome, Policy, REPORT_ENTRIES_MAX, Report, RouteRequest, SessionRef,
    Target,
};
use routing::hash::{self, Phase};
use routing::id::{Epoch, HoldId, PoolName, Rank, RequestId, SessionId, Version, WorkerId};
use routing::policy::mix;
use routing::time::{Millis, Timestamp};
use std::collections::HashMap;

/// A filter tells what happened this often.
pub(super) const REPORT_EVERY: Millis = Millis(100);
/// It says that it is alive this often.
const ALIVE_EVERY: Millis = Millis(5000);
/// The service's own housekeeping.
const EXPIRE_EVERY: Millis = Millis(1000);
const DEADLINE: Millis = Millis(250);
/// Tells draws of placements from other uses of the seed.
const DRAWS: u64 = 0x6472_6177;

/// A request that was placed.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    /// Number of the slot.
    pub(super) slot: usize,
    /// Leading blocks that the service thinks are cached there.
    pub(super) promised: Option<u32>,
    id: RequestId,
    /// What its commit will say.
    commit: Option<Commit>,
}

#[derive(Clone, Copy, Debug)]
struct Commit {
    session: SessionRef,
    hold: Option<HoldId>,
    version: Version,
    ttl: Millis,
}

/// A request to be placed.
#[derive(Clone, Debug)]
pub(super) struct Question<'a> {
    /// Number of the request.
    pub(super) number: usize,
    /// Its session's key.
    pub(super) key: Option<&'a str>,
    /// Its prompt, where [`Service::wants_prompt`].
    pub(super) prompt: Option<Chain>,
}

/// One rank as its worker declares it.
#[derive(Debug)]
struct Slot {
    target: Target,
    rank: u32,
    in_flight: u32,
    /// Number of its next batch of events.
    seq: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Service {
    state: State,
    pool: PoolName,
    caller: Caller,
    policy: Policy,
    affinity: Affinity,
    slots: Vec<Slot>,
    /// A worker's first slot; its ranks follow.
    first_slots: HashMap<WorkerId, usize>,
    /// Sessions whose turns bring no prompt, as their filter knows where they are bound, and until when.
    bound: HashMap<SessionId, Timestamp>,
    entries: Vec<Entry>,
    stale: bool,
    reports: u64,
    reported: Timestamp,
    expired: Timestamp,
    draws: u64,
    seed: u64,
}

impl Service {
    /// A service that knows the slots asked for, and nothing else.
    ///
    /// # Errors
    /// The arguments make no fleet.
    pub(super) fn new(args: &ReplayArgs) -> Result<Self, ReplayError> {
        let config = args.config()?;
        let pool = config.pools.first().ok_or_else(|| ReplayError::Arguments("no pool".to_owned()))?.clone();
        let mut service = Self {
            state: State::new(Epoch(1), StateConfig::new(config)),
            pool: pool.name,
            caller: Caller { node: "replay".to_owned(), vm: Epoch(1) },
            policy: pool.policy,
            affinity: pool.affinity,
            slots: Vec::new(),
            first_slots: HashMap::new(),
            bound: HashMap::new(),
            entries: Vec::new(),
            stale: false,
            reports: 0,
            reported: Timestamp(0),
            expired: Timestamp(0),
            draws: 0,
            seed: mix(args.seed, DRAWS),
        };
        for number in 0..args.slots / args.ranks {
            service.declare(number, args.ranks)?;
        }
        Ok(service)
    }

    fn declare(&mut self, number: u32, ranks: u32) -> Result<(), ReplayError> {
        let id = format!("w{number:04}");
        let body = serde_json::json!({ "pool": POOL, "endpoints": [{ "address": format!("{id}.replay:8000"), "dp_size": ranks }] });
        let spec = declare::parse(body.to_string().as_bytes(), Some(&id))
            .map_err(|faults| ReplayError::Arguments(format!("worker {id}: {faults}")))?;
        let worker = spec.id.clone();
        if let Reply::Refused(error) = self.apply(Timestamp(0), Command::PutWorker { spec }) {
            return Err(ReplayError::Arguments(error.to_string()));
        }
        self.first_slots.insert(worker.clone(), self.slots.len());
        for rank in 0..ranks {
            let target = Target { worker: worker.clone(), rank: (ranks > 1).then_some(Rank(rank)) };
            self.slots.push(Slot { target, rank, in_flight: 0, seq: 0 });
        }
        Ok(())
    }

    /// Whether the service is told what engines cache: only one policy asks.
    pub(super) fn hears_events(&self) -> bool {
        self.policy == Policy::KvAware
    }

    /// Whether a request brings its prompt: where the policy looks for it, unless its filter knows where the session is bound.
    pub(super) fn wants_prompt(&self, now: Timestamp, key: Option<&str>) -> bool {
        let pinned =
            || key.and_then(|key| self.bound.get(&session(key).id)).is_some_and(|until| now < *until);
        self.policy == Policy::KvAware && !(self.affinity == Affinity::Hard && pinned())
    }

    /// Asks where a request goes.
    ///
    /// # Errors
    /// The service did not say where.
    pub(super) fn place(&mut self, now: Timestamp, question: Question<'_>) -> Result<Placed, ReplayError> {
        let number = question.number;
        let failed = |reason: String| ReplayError::NotPlaced { number, at_ms: now.0, reason };
        let id = RequestId(number as u64);
        let session = question.key.map(session);
        let mut request = RouteRequest::new(self.caller.clone(), id, self.pool.clone(), DEADLINE);
        request.session = session;
        let prompt = question.prompt.map(Box::new);
        self.draws += 1;
        let command = Command::Route { request, prompt, draw: mix(self.seed, self.draws) };
        let reply = match self.apply(now, command) {
            Reply::Route(reply) => reply,
            other => return Err(failed(format!("{other:?}"))),
        };
        let slot = reply.target.as_ref().and_then(|target| self.slot_of(target));
        let slot = slot.ok_or_else(|| failed(format!("{:?}, {}", reply.outcome, reply.reason)))?;
        if let Some(slot) = self.slots.get_mut(slot) {
            slot.in_flight += 1;
        }
        self.stale = true;
        let (hold, version, ttl) = (reply.hold, reply.version, reply.ttl_ms);
        if let Some(session) = session.filter(|_| reply.outcome == Outcome::Bound) {
            self.bound.insert(session.id, now + ttl);
        }
        let commit = session.filter(|_| reply.outcome == Outcome::Held);
        let commit = commit.map(|session| Commit { session, hold, version, ttl });
        Ok(Placed { slot, promised: reply.overlap.map(|overlap| overlap.blocks), id, commit })
    }

    /// Number of a slot. Where the engine balances its ranks itself, the one with the fewest requests.
    fn slot_of(&self, target: &Target) -> Option<usize> {
        let first = *self.first_slots.get(&target.worker)?;
        let of_worker = self.slots.iter().enumerate().skip(first);
        let mut ranks = of_worker.take_while(|(_, slot)| slot.target.worker == target.worker);
        match target.rank {
            Some(Rank(rank)) => ranks.find(|(_, slot)| slot.rank == rank).map(|(at, _)| at),
            None => ranks.min_by_key(|(_, slot)| slot.in_flight).map(|(at, _)| at),
        }
    }

    /// A request has its first byte: what was held for it is bound.
    pub(super) fn answered(&mut self, now: Timestamp, placed: &Placed) {
        if let (Some(commit), Some(slot)) = (placed.commit, self.slots.get(placed.slot)) {
            let Commit { session, hold, version, ttl } = commit;
            self.bound.insert(session.id, now + ttl);
            let (pool, target) = (self.pool.clone(), slot.target.clone());
            self.entries.push(Entry::Committed { session, pool, request: placed.id, hold, target, version });
        }
        if self.policy == Policy::KvAware {
            self.entries.push(Entry::Prefilled { request: placed.id });
        }
        self.stale = true;
    }

    /// A request is over.
    pub(super) fn ended(&mut self, placed: &Placed) {
        if let Some(slot) = self.slots.get_mut(placed.slot) {
            slot.in_flight = slot.in_flight.saturating_sub(1);
        }
        if self.policy == Policy::KvAware {
            self.entries.push(Entry::Ended { request: placed.id });
        }
        self.stale = true;
    }

    /// A slot's engine tells what it cached and evicted.
    pub(super) fn events(&mut self, now: Timestamp, slot: usize, batch: KvBatch) {
        let Some(slot) = self.slots.get_mut(slot) else { return };
        let frame = Frame { seq: slot.seq, stamp: stamp(slot.seq), batch };
        slot.seq += 1;
        let (worker, rank) = (slot.target.worker.clone(), slot.rank);
        self.apply(now, Command::Kv { worker, rank, inputs: vec![Input::Live(frame)] });
    }

    /// Time passes: tells what there is to tell, and lets the service keep house.
    pub(super) fn tick(&mut self, now: Timestamp) {
        if self.stale || now.since(self.reported) >= ALIVE_EVERY {
            self.report(now);
        }
        if now.since(self.expired) >= EXPIRE_EVERY {
            self.expired = now;
            self.apply(now, Command::Expire);
        }
    }

    fn report(&mut self, now: Timestamp) {
        (self.stale, self.reported) = (false, now);
        let mut entries = std::mem::take(&mut self.entries);
        loop {
            let rest = if entries.len() > REPORT_ENTRIES_MAX {
                entries.split_off(REPORT_ENTRIES_MAX)
            } else {
                Vec::new()
            };
            self.reports += 1;
            let busy = self.slots.iter().filter(|slot| slot.in_flight > 0);
            let in_flight =
                busy.map(|slot| InFlight { target: slot.target.clone(), count: slot.in_flight }).collect();
            let (caller, seq) = (self.caller.clone(), self.reports);
            self.apply(
                now,
                Command::Report(Report { caller, seq, in_flight, entries, upstream_role_missing: 0 }),
            );
            entries = rest;
            if entries.is_empty() {
                return;
            }
        }
    }

    /// Does one thing, and answers what the service asks of publishers: whatever they have, it has got.
    fn apply(&mut self, now: Timestamp, command: Command) -> Reply {
        let mut effects = Vec::new();
        let reply = self.state.apply(now, command, &mut effects);
        for effect in effects {
            let Effect::Replay { worker, rank, attempt, from } = effect else { continue };
            let first = self.first_slots.get(&worker).copied().unwrap_or(usize::MAX);
            let last =
                self.slots.get(first.saturating_add(rank as usize)).and_then(|slot| slot.seq.checked_sub(1));
            let again =
                |seq| Input::Replayed(attempt, Frame { seq, stamp: stamp(seq), batch: KvBatch::default() });
            let inputs =
                last.filter(|last| *last == from).map(again).into_iter().chain([Input::ReplayEnd(attempt)]);
            self.state.apply(now, Command::Kv { worker, rank, inputs: inputs.collect() }, &mut Vec::new());
        }
        reply
    }
}

fn session(key: &str) -> SessionRef {
    let id = hash::session_id(b"", b"", POOL, Phase::Aggregated, key.as_bytes());
    SessionRef { id, rank_hash: hash::rank_hash(key.as_bytes()) }
}

/// One publisher's life: a number has one stamp.
fn stamp(seq: u64) -> u64 {
    mix(0, seq)
}
