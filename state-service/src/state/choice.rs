//! Which worker and rank: the workers of a pool with what leaves each out, those left given to `routing::policy`, and who
//! comes next.
//!
//! Owns who may be a candidate, and the rank of what is placed anew. Changes nothing: what was chosen is done in `route.rs`.
//! The choice of a worker itself is in `routing`, where the filter makes it too.

use super::State;
use super::binding::Slot;
use super::judge::Asked;
use super::kv::slots_of;
use super::limits::{ALTERNATES_MAX, ALTERNATES_WINDOW};
use super::shared::Sharing;
use super::workers::Worker;
use routing::contract::{
    Affinity, OnAllOverloaded, Policy, PoolInfo, RANK_PICK_MARGIN, RankPick, Ranks, Removal, SessionRef,
    WorkerState,
};
use routing::demand::Demands;
use routing::hash::Phase;
use routing::id::{PoolName, Rank, RankHash, SessionId, WorkerId};
use routing::policy::{Candidate, Chance, Rules, choose, least_loaded, mix, rendezvous, uniform};

/// Tells the draw of a rank from that of its worker.
const RANK_DRAW: u64 = 0x7261_6e6b;

/// One worker of the pool and phase asked for.
pub(super) struct Considered<'a> {
    pub(super) worker: &'a Worker,
    pub(super) load: u64,
    /// Every reason for which it is left out.
    pub(super) removed_by: Vec<Removal>,
}

/// All workers of the pool and phase asked for, by id.
pub(super) struct Field<'a> {
    pub(super) all: Vec<Considered<'a>>,
    /// Nobody else takes new sessions.
    pub(super) only_suspects: bool,
    /// Of those left each is overloaded.
    pub(super) all_overloaded: bool,
}

/// What the pool's policy says.
pub(super) struct Choice {
    pub(super) chosen: Chosen,
    /// The slot, where the policy compares slots.
    pub(super) slot: Option<Slot>,
    /// Where the pool's round robin stands after this choice, if it was asked.
    pub(super) turn: Option<u64>,
}

/// Who is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chosen {
    /// The worker of this hash, and the rule that chose it.
    Worker(u64, Policy),
    /// Only the caller chooses here.
    Caller,
    /// There is nobody.
    Nobody,
    /// Somebody might, but for the request's demands.
    Unmet,
    /// All are overloaded, and the pool refuses then.
    Overloaded,
}

impl Considered<'_> {
    fn is_left(&self) -> bool {
        self.removed_by.is_empty()
    }

    /// Left, or left out only because others have more of what is preferred.
    fn may_serve(&self) -> bool {
        self.removed_by.iter().all(|removal| *removal == Removal::Preference)
    }

    /// Whether its state and its load would let it serve.
    fn only_demands_are_in_the_way(&self) -> bool {
        let of_demands =
            |removal: &Removal| !matches!(removal, Removal::State | Removal::Overload | Removal::Load);
        !self.removed_by.is_empty() && self.removed_by.iter().all(of_demands)
    }

    fn candidate(&self) -> Candidate {
        let Worker { hash, spec, .. } = self.worker;
        Candidate { worker_hash: *hash, weight: spec.weight, load: self.load, device: spec.device }
    }
}

impl Choice {
    const fn of(chosen: Chosen) -> Self {
        Self { chosen, slot: None, turn: None }
    }
}

impl Field<'_> {
    /// Those the policy chooses from.
    pub(super) fn candidates(&self) -> Vec<Candidate> {
        self.all.iter().filter(|one| one.is_left()).map(Considered::candidate).collect()
    }

    /// The least load of a worker that takes new sessions.
    pub(super) fn best_load(&self) -> Option<u64> {
        let left = self.all.iter().filter(|one| one.is_left() && !self.only_suspects);
        left.map(|one| one.load).min()
    }

    /// Why there is no candidate.
    fn nobody(&self) -> Chosen {
        let unmet = self.all.iter().any(Considered::only_demands_are_in_the_way);
        if unmet { Chosen::Unmet } else { Chosen::Nobody }
    }
}

impl State {
    /// The workers that might serve. `home` is the slot where the session is bound, in the place of the one it would get there.
    pub(super) fn field(&self, asked: &Asked, home: Option<Slot>) -> Field<'_> {
        let of_pool = self.workers.iter().filter(|worker| asked.concerns(worker));
        // Most of a fleet is of one pool: room for all of it is had at once.
        let mut all: Vec<Considered<'_>> = Vec::with_capacity(self.workers.len());
        all.extend(of_pool.map(|worker| Considered {
            worker,
            load: worker.load_at(asked.now),
            removed_by: self.unmet_demands(asked, worker, home),
        }));
        let only_suspects = !all.iter().any(|one| one.is_left() && one.worker.state().takes_new());
        let fits = |state: WorkerState| state.takes_new() || only_suspects && state == WorkerState::Suspect;
        remove(&mut all, Removal::State, |one| !fits(one.worker.state()));
        let all_overloaded = self.remove_overloaded(asked, home, &mut all);
        keep_preferred(&asked.demands, &mut all);
        Field { all, only_suspects, all_overloaded }
    }

    fn unmet_demands(&self, asked: &Asked, worker: &Worker, home: Option<Slot>) -> Vec<Removal> {
        let by_address = !asked.demands.addresses.is_empty();
        if by_address && asked.compares_slots() {
            return self.unmet_everywhere(asked, worker);
        }
        let rank = by_address.then(|| self.slot_there(asked, worker, home).rank()).flatten();
        super::offer::refuses(&asked.demands, worker, rank)
    }

    /// Where each slot is a candidate of its own, a worker is left out if all of its slots are.
    fn unmet_everywhere(&self, asked: &Asked, worker: &Worker) -> Vec<Removal> {
        let refused =
            slots_of(asked, worker).map(|slot| super::offer::refuses(&asked.demands, worker, slot.rank()));
        refused.min_by_key(Vec::len).unwrap_or_default()
    }

    /// Leaves out who is overloaded while others are not; whether all are.
    fn remove_overloaded(&self, asked: &Asked, home: Option<Slot>, all: &mut [Considered<'_>]) -> bool {
        let is_busy = |one: &Considered<'_>| self.is_busy_there(asked, one.worker, home);
        let left = || all.iter().filter(|one| one.is_left());
        if left().all(is_busy) {
            return left().next().is_some();
        }
        remove(all, Removal::Overload, is_busy);
        false
    }

    fn is_busy_there(&self, asked: &Asked, worker: &Worker, home: Option<Slot>) -> bool {
        worker.has_overload()
            && match asked.compares_slots() {
                true => slots_of(asked, worker).all(|slot| worker.is_overloaded(slot)),
                false => worker.is_overloaded(self.slot_there(asked, worker, home)),
            }
    }

    /// The slot this request would get on a worker.
    pub(super) fn slot_there(&self, asked: &Asked, worker: &Worker, home: Option<Slot>) -> Slot {
        match (home.filter(|home| home.worker == worker.hash), asked.pinned()) {
            (Some(home), _) => home,
            (None, Some(session)) => self.new_slot(&asked.pool, worker.hash, session.rank_hash, asked.draw),
            (None, None) => self.plain_slot(&asked.pool, worker.hash, asked.session),
        }
    }

    /// What the pool's policy says of those left.
    pub(super) fn choose(&self, asked: &Asked, field: &Field<'_>) -> Choice {
        let policy = match (asked.pool.policy, field.all_overloaded) {
            (Policy::Direct, _) => return Choice::of(Chosen::Caller),
            (_, true) if asked.pool.on_all_overloaded == OnAllOverloaded::Refuse => {
                return Choice::of(Chosen::Overloaded);
            }
            (_, true) => Policy::LeastLoaded,
            // Whoever is asked places a new session at the same slot.
            (_, false) if self.sharing == Sharing::Apart && asked.pinned().is_some() => Policy::SessionHash,
            (policy, false) => policy,
        };
        if policy == Policy::KvAware && asked.looked.is_some() {
            return self.choose_by_prompt(asked, field);
        }
        let candidates = field.candidates();
        let turn = (policy == Policy::RoundRobin).then(|| self.next_turn(asked));
        let rules = Rules { policy, device_ratio: asked.pool.device_ratio };
        let chance = Chance { draw: asked.draw, cursor: turn.unwrap_or(0) };
        let chosen = choose(rules, &candidates, asked.session_id(), chance);
        let chosen = chosen.and_then(|at| candidates.get(at));
        let chosen = chosen.map_or_else(|| field.nobody(), |one| Chosen::Worker(one.worker_hash, policy));
        Choice { chosen, slot: None, turn }
    }

    fn choose_by_prompt(&self, asked: &Asked, field: &Field<'_>) -> Choice {
        let slot = self.choose_slot(asked, field);
        let chosen = slot.map_or_else(|| field.nobody(), |slot| Chosen::Worker(slot.worker, Policy::KvAware));
        Choice { chosen, slot, turn: None }
    }

    /// Next position of the pool's round robin.
    pub(super) fn next_turn(&self, asked: &Asked) -> u64 {
        self.turns.get(&asked.turn_key()).copied().unwrap_or(0).wrapping_add(1)
    }

    /// The slot of a new binding on a worker.
    pub(super) fn new_slot(&self, pool: &PoolInfo, worker: u64, hash: RankHash, draw: u64) -> Slot {
        match (pool.ranks(), self.workers.by_hash(worker)) {
            (Ranks::Pinned, Some(worker))
                if pool.rank_pick == RankPick::LeastLoaded && self.sharing != Sharing::Apart =>
            {
                idle_slot(worker, hash, draw)
            }
            (Ranks::Pinned, Some(worker)) => worker.slot_for(hash),
            (Ranks::Bound | Ranks::Engine, _) | (_, None) => Slot::new(worker, None),
        }
    }

    /// The slot of a turn that binds nothing: the hashed rank where sessions pin ranks, else the engine balances.
    pub(super) fn plain_slot(&self, pool: &PoolInfo, worker: u64, session: Option<SessionRef>) -> Slot {
        let pinned = pool.affinity != Affinity::Off && pool.ranks() == Ranks::Pinned;
        let slot = |session: SessionRef| Some(self.workers.by_hash(worker)?.slot_for(session.rank_hash));
        session.filter(|_| pinned).and_then(slot).unwrap_or_else(|| Slot::new(worker, None))
    }

    /// Whether a session may be served there: the worker is there, of this pool, not down, and has that rank.
    pub(super) fn usable(&self, pool: &PoolName, slot: Slot) -> Option<&Worker> {
        let worker = self.workers.by_hash(slot.worker)?;
        (worker.spec.pool == *pool && worker.is_usable() && worker.has_rank(slot.rank())).then_some(worker)
    }

    /// Other workers to try, best first: by rendezvous for a session, so that every Envoy names the same; by load without.
    pub(super) fn alternates(&self, asked: &Asked, home: Option<Slot>, chosen: u64) -> Vec<WorkerId> {
        let field = self.field(asked, home);
        let others = field.all.iter().filter(|one| one.may_serve() && one.worker.hash != chosen);
        let mut left: Vec<Candidate> = Vec::with_capacity(field.all.len());
        left.extend(others.map(Considered::candidate));
        let session = asked.session_id();
        narrow(&mut left, session);
        let mut order = Vec::with_capacity(ALTERNATES_MAX);
        while order.len() < ALTERNATES_MAX {
            let next = match session {
                Some(session) => rendezvous(&left, session),
                None => least_loaded(&left, asked.draw),
            };
            let Some(next) = next.filter(|next| *next < left.len()) else { break };
            let next = left.remove(next);
            order.extend(self.workers.by_hash(next.worker_hash).map(|worker| worker.spec.id.clone()));
        }
        order
    }
}

/// Whether a worker of one phase answers questions about another: prefill is a question of its own.
pub(super) const fn concerns(asked: Phase, worker: Phase) -> bool {
    matches!(asked, Phase::Prefill) == matches!(worker, Phase::Prefill)
}

fn remove(all: &mut [Considered<'_>], why: Removal, whom: impl Fn(&Considered<'_>) -> bool) {
    for one in all {
        if whom(one) {
            one.removed_by.push(why);
        }
    }
}

/// Leaves out who has fewer of the preferred labels than others that might serve.
fn keep_preferred(demands: &Demands, all: &mut [Considered<'_>]) {
    if demands.prefer.is_empty() {
        return;
    }
    let has = |one: &Considered<'_>| demands.preference(&one.worker.spec.labels);
    let most = all.iter().filter(|one| one.is_left()).map(has).max().unwrap_or(0);
    remove(all, Removal::Preference, |one| has(one) < most);
}

/// The hashed rank, unless it has more than [`RANK_PICK_MARGIN`] requests above the least loaded, or is overloaded: then
/// that, ties uniform. Overloaded ranks are left out while others are not.
fn idle_slot(worker: &Worker, hash: RankHash, draw: u64) -> Slot {
    let hashed = worker.slot_for(hash);
    let start = worker.spec.rank_start();
    let ranks = start..start + worker.spec.rank_count();
    let mut slots: Vec<Slot> = ranks.map(|rank| worker.slot_of(Some(Rank(rank)))).collect();
    if worker.has_overload() && !worker.all_overloaded() {
        slots.retain(|slot| !worker.is_overloaded(*slot));
    }
    let loads: Vec<(Slot, u64)> = slots.iter().map(|slot| (*slot, worker.load_on(*slot))).collect();
    let least = loads.iter().map(|(_, load)| *load).min().unwrap_or(0);
    let within = worker.load_on(hashed) <= least.saturating_add(RANK_PICK_MARGIN);
    if within && slots.contains(&hashed) {
        return hashed;
    }
    let mut idle = loads.iter().filter(|(_, load)| *load == least);
    let nth = uniform(idle.clone().count(), mix(draw, RANK_DRAW));
    nth.and_then(|nth| idle.nth(nth)).map_or(hashed, |(slot, _)| *slot)
}

/// Rendezvous over a thousand workers would take longer than the whole route; any few of them do as alternates.
fn narrow(candidates: &mut Vec<Candidate>, session: Option<SessionId>) {
    let (Some(session), true) = (session, candidates.len() > ALTERNATES_WINDOW) else { return };
    let len = u128::try_from(candidates.len()).unwrap_or(1);
    candidates.rotate_left(usize::try_from(session.0 % len).unwrap_or(0));
    candidates.truncate(ALTERNATES_WINDOW);
}

/// Whether sessions of this pool are kept here.
pub(super) fn pins(pool: &PoolInfo) -> bool {
    pool.affinity != Affinity::Off && pool.policy != Policy::SessionHash
}
