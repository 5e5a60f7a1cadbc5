//! Clients: conversations that play turn by turn on any Envoy and VM, and what became of each turn.

use crate::chains::Chain;
use crate::faults::{Cost, Fault};
use crate::world::{Event, World};
use routing::id::{SessionId, WorkerId};
use std::collections::{BTreeMap, BTreeSet};

/// Global rank, where the wire tells one.
pub(crate) type Landing = (WorkerId, Option<u32>);

/// One conversation.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) key: Option<String>,
    /// What names it, computed as `rankpin hash` would.
    pub(crate) id: Option<SessionId>,
    pub(crate) rank_hash: u64,
    /// The same of its prefill half, in a split pool.
    pub(crate) prefill_id: Option<SessionId>,
    pub(crate) pool: &'static str,
    /// What it says to come there: a pool, or a model of one.
    pub(crate) asks_for: &'static str,
    /// It has no key, and hangs on response ids.
    pub(crate) chain: Option<Chain>,
    /// A turn of it asked for workers that repel others.
    pub(crate) tolerated: bool,
    /// Its client ended it, and no turn was accepted since.
    pub(crate) ended: bool,
    pub(crate) turns_left: u64,
    pub(crate) begun: bool,
    /// Requests of the present turn that are not over.
    pub(crate) open: usize,
    /// Slots that accepted a turn, and how many turns each.
    pub(crate) landings: BTreeMap<Landing, u64>,
    /// The same of its prefill half.
    pub(crate) prefill_landings: BTreeMap<Landing, u64>,
    /// Worker that its caller names, and the rank.
    pub(crate) home: Option<(usize, Option<u32>)>,
    /// Slots that its caller named.
    pub(crate) named: BTreeSet<(WorkerId, u32)>,
    pub(crate) costs: BTreeSet<Cost>,
    /// Envoys that still have to serve it once all is quiet, and what served it there.
    pub(crate) finals_left: Vec<usize>,
    pub(crate) finals: Vec<Final>,
    /// Times a final turn was refused because others were there.
    pub(crate) refusals: u32,
}

/// What became of one of the last turns of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Final {
    Served(Landing),
    /// Its slot was busy, or nobody knows its session: served anywhere this once.
    Elsewhere,
    Unserved,
}

/// A final turn that is refused tries again so often, and after so many ms.
const AGAIN: (u32, u64) = (60, 250);

impl Session {
    /// All ids under which it is kept.
    pub(crate) fn ids(&self) -> impl Iterator<Item = SessionId> {
        self.id.into_iter().chain(self.prefill_id)
    }

    /// It hung on an answer that nobody knew: its requests belong to no session any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.chain.is_some() && self.costs.contains(&Cost::ChainBroken)
    }

    /// On how many Envoys its last turn was served.
    pub(crate) fn finals_served(&self) -> usize {
        self.finals.iter().filter(|one| **one != Final::Unserved).count()
    }
}

impl World {
    pub(crate) fn cost(&mut self, session: usize, cost: Cost) {
        self.sessions[session].costs.insert(cost);
    }

    /// A fault whose reach is not known in advance touches every conversation that has begun.
    pub(crate) fn cost_all(&mut self, cost: Cost) {
        for session in self.sessions.iter_mut().filter(|session| session.begun) {
            session.costs.insert(cost);
        }
    }

    /// The next turn: mostly one request, sometimes several at once.
    pub(crate) fn begin_turn(&mut self, session: usize) {
        // Without an answer to hang on, each of several would begin a conversation of its own.
        let alone = self.sessions[session].chain.as_ref().is_some_and(|chain| chain.last.is_none());
        let burst =
            if self.sessions[session].begun { self.rng.per_mille(150) } else { self.rng.per_mille(400) };
        let burst = burst && !alone;
        let requests = if burst { 2 + self.rng.below(4) } else { 1 };
        self.cost_of_split(session);
        let state = &mut self.sessions[session];
        state.begun = true;
        state.turns_left -= 1;
        state.open = requests;
        if self.some_worker_is_off() {
            self.cost(session, Cost::WorkerChanged);
        }
        for _ in 0..requests {
            let envoy = self.rng.below(self.envoys.len());
            let vm = self.rng.below(self.envoys[envoy].vms.len());
            let after = if burst { self.rng.within(0, 12) } else { 0 };
            self.after(after, Event::Request { session, envoy, vm });
        }
    }

    /// One request of a turn is over, in whatever way.
    pub(crate) fn request_over(&mut self, session: usize, outcome: Final) {
        if self.in_finals {
            self.sessions[session].finals.push(outcome);
            return self.next_final(session);
        }
        let state = &mut self.sessions[session];
        state.open -= 1;
        if state.open == 0 && state.turns_left > 0 {
            let think = self.rng.within(10, 900);
            self.after(think, Event::Turn { session });
        }
    }

    /// One of the last turns was refused for others' sake: as its client is told, it tries again.
    pub(crate) fn final_refused(&mut self, session: usize, envoy: usize) {
        self.sessions[session].refusals += 1;
        if self.sessions[session].refusals > AGAIN.0 {
            return self.request_over(session, Final::Unserved);
        }
        self.after(AGAIN.1, Event::FinalAgain { session, envoy });
    }

    /// One turn on each Envoy after the other.
    pub(crate) fn next_final(&mut self, session: usize) {
        if let Some(envoy) = self.sessions[session].finals_left.pop() {
            self.play_final(session, envoy);
        }
    }

    pub(crate) fn play_final(&mut self, session: usize, envoy: usize) {
        let vm = self.rng.below(self.envoys[envoy].vms.len());
        self.after(3, Event::Request { session, envoy, vm });
    }

    /// Whether each has had all of its last turns.
    pub(crate) fn finals_over(&self) -> bool {
        let envoys = self.envoys.len();
        self.sessions.iter().all(|session| session.finals.len() >= envoys)
    }

    /// How long the client waits before it leaves, and whether that is a fault.
    pub(crate) fn patience(&mut self) -> u64 {
        let leave = self.plan.clients_leave;
        if self.faults_on && self.rng.per_mille(leave) {
            // Short enough to meet a route call, a wait for the answer, or a stream.
            return if self.rng.per_mille(400) { self.rng.within(0, 8) } else { self.rng.within(8, 260) };
        }
        self.rng.within(6_000, 20_000)
    }

    pub(crate) fn count_leaving(&mut self, deciding: bool, streaming: bool) {
        self.fired.count(match (deciding, streaming) {
            (true, _) => Fault::ClientLeftWhileDeciding,
            (_, true) => Fault::ClientLeftWhileStreaming,
            _ => Fault::ClientLeftWhileWaiting,
        });
    }
}
