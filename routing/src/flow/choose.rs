//! Who may serve a turn, and who does: the pool's policy over workers that are open, meet the turn's demands, and are neither
//! in trouble nor overloaded as long as others are not.
//!
//! The service makes the same choices with everybody's load; what is chosen here follows this VM's view. Headers are `place`'s.

use super::place::{Slot, hashed};
use super::{Env, Head, Here};
use crate::contract::{Affinity, OnAllOverloaded, Policy, WorkerState, soft_stays};
use crate::demand::Offer;
use crate::directory::{Endpoint, Pool, Worker};
use crate::hash::Phase;
use crate::header;
use crate::id::Rank;
use crate::policy::{self, Chance};
use crate::session::Session;

/// Why nobody serves a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nobody {
    /// No worker of the pool is there.
    NoWorker,
    /// None meets the turn's demands.
    Unmet,
    /// All are overloaded, and the pool refuses then.
    Overloaded,
}

/// Workers among which the policy chooses, by id.
struct Candidates {
    at: Vec<usize>,
    /// There is none that is not overloaded.
    overloaded: bool,
}

/// Whether this worker may take the turn, as far as its demands go.
fn allowed(here: Here<'_>, worker: &Worker, session: Option<Session>) -> bool {
    let judged = here.pool.tainted || !here.turn.demands.is_empty();
    let rank = || session.and_then(|session| hashed(here, worker, session));
    !judged || here.turn.demands.allows(offer(here, worker, rank()))
}

/// What a worker offers at a rank. Without one any of its endpoints may serve, so all of them must be allowed.
fn offer<'a>(here: Here<'_>, worker: &'a Worker, rank: Option<Rank>) -> Offer<'a> {
    let offer = worker.offer(rank);
    if rank.is_some() || here.turn.demands.addresses.is_empty() {
        return offer;
    }
    let listed = |endpoint: &Endpoint| here.turn.demands.addresses.contains(&endpoint.address);
    let any = worker.endpoints.first().filter(|_| worker.endpoints.iter().all(listed));
    Offer { address: any.map(|endpoint| endpoint.address.as_str()), ..offer }
}

/// Whether a turn may go on where it is bound, as far as its demands go. What repels newcomers keeps its sessions.
pub(super) fn keeps(here: Here<'_>, slot: &Slot) -> bool {
    let offered = || here.directory.workers.get(slot.at).map(|worker| offer(here, worker, slot.rank));
    here.turn.demands.is_empty() || offered().is_some_and(|offer| here.turn.demands.keeps(offer))
}

/// Whether a bound turn's slot is overloaded.
pub(super) fn is_overloaded(env: &Env<'_>, here: Here<'_>, slot: &Slot) -> bool {
    here.directory.workers.get(slot.at).is_some_and(|worker| is_full(env, worker, slot.rank))
}

/// What the service says of a slot, or what this VM alone has in flight there: a burst must not wait for the news.
fn is_full(env: &Env<'_>, worker: &Worker, rank: Option<Rank>) -> bool {
    let own = |limit: u32| match rank {
        Some(_) => env.vm.loads.of_slot(worker.hash, rank) >= limit,
        None => {
            u64::from(env.vm.loads.of_worker(worker.hash))
                >= u64::from(limit) * u64::from(worker.dp_size.max(1))
        }
    };
    worker.is_overloaded(rank) || worker.in_flight_limit.is_some_and(own)
}

/// Whether a retry of the turn may go there.
pub(super) fn is_alternate(env: &Env<'_>, here: Here<'_>, worker: &Worker, session: Option<Session>) -> bool {
    let rank = session.and_then(|session| hashed(here, worker, session));
    let avoided = env.vm.troubles.avoids(env.now, worker.hash, rank);
    !avoided && !is_full(env, worker, rank) && allowed(here, worker, session)
}

/// Whether a bound turn goes on at its slot: always, but under `soft` only while its worker is no suspect and within the
/// margin of the best one. A move is the service's to make.
pub(super) fn stays(env: &Env<'_>, here: Here<'_>, slot: &Slot) -> bool {
    // In a `direct` pool only the caller moves anything.
    if here.pool.affinity != Affinity::Soft || here.pool.rules.policy == Policy::Direct {
        return true;
    }
    let Some(bound) = here.directory.workers.get(slot.at) else { return true };
    let load = |worker: &Worker| env.vm.load(env.now, worker);
    let bound_load = env.vm.standing_load(env.now, bound);
    if bound.state == WorkerState::Suspect || is_full(env, bound, slot.rank) {
        return false;
    }
    // Within the slack nobody else's load matters: the usual case of a fleet that is not busy.
    if soft_stays(here.pool.soft_margin_percent, bound_load, 0) {
        return true;
    }
    let open = here.directory.open_workers(here.pool, |worker| allowed(here, worker, None));
    let best = open.iter().filter_map(|at| here.directory.workers.get(*at)).map(load).min();
    best.is_none_or(|best| soft_stays(here.pool.soft_margin_percent, bound_load, best))
}

/// Without the service and without a binding: weighted rendezvous, the same on every Envoy.
pub(super) fn alone(here: Here<'_>, session: Session) -> Result<Slot, Nobody> {
    let open = here.directory.open_workers(here.pool, |worker| allowed(here, worker, Some(session)));
    if open.is_empty() {
        return Err(nobody(here));
    }
    // Overload is not looked at: it changes, and every Envoy must choose alike.
    rendezvous(here, session, &open).ok_or(Nobody::NoWorker)
}

/// Where `session_hash` has a session: computed anew on every turn, the same on every Envoy. Suspects keep theirs, as bound
/// sessions stay; workers that drain or are down serve none.
pub(super) fn by_hash(here: Here<'_>, session: Session) -> Result<Slot, Nobody> {
    let member = |worker: &Worker| worker.state.is_open() && allowed(here, worker, Some(session));
    let members = here.directory.members(here.pool, member);
    if members.is_empty() {
        return Err(nobody(here));
    }
    rendezvous(here, session, &members).ok_or(Nobody::NoWorker)
}

fn rendezvous(here: Here<'_>, session: Session, workers: &[usize]) -> Option<Slot> {
    let candidates = here.directory.candidates(workers, |_| 0);
    let at = *workers.get(policy::rendezvous(&candidates, session.id)?)?;
    let worker = here.directory.workers.get(at)?;
    // A rank of its own: what was placed alone is bound to the rank that served it.
    let rank = hashed(here, worker, session);
    Some(Slot { worker: worker.id.clone(), hash: worker.hash, at, rank, bound_rank: rank })
}

/// Without a session: the pool's policy over present load; the engine balances the ranks.
pub(super) fn spread(env: &mut Env<'_>, here: Here<'_>, head: &impl Head) -> Result<Slot, Nobody> {
    let candidates = candidates(env, here, None, None)?;
    if candidates.overloaded && here.pool.on_all_overloaded == OnAllOverloaded::Refuse {
        return Err(Nobody::Overloaded);
    }
    choose(env, here, &candidates.at, head).ok_or(Nobody::NoWorker)
}

/// A bound turn that cannot go home now: the pool's policy over the others. `None` when there is no other that is better off.
pub(super) fn spill(
    env: &mut Env<'_>,
    here: Here<'_>,
    session: Session,
    home: &Slot,
    head: &impl Head,
) -> Option<Slot> {
    let candidates = candidates(env, here, Some(session), Some(home.at)).ok()?;
    if candidates.overloaded {
        return None;
    }
    let slot = choose(env, here, &candidates.at, head)?;
    let rank = here.directory.workers.get(slot.at).and_then(|worker| hashed(here, worker, session));
    Some(Slot { rank, ..slot })
}

fn nobody(here: Here<'_>) -> Nobody {
    let none = here.directory.members(here.pool, |worker| worker.state.is_open()).is_empty();
    // Who comes instead of a pool's workers meets no demand.
    if none && !here.turn.demands.is_strict() { Nobody::NoWorker } else { Nobody::Unmet }
}

fn candidates(
    env: &Env<'_>,
    here: Here<'_>,
    session: Option<Session>,
    without: Option<usize>,
) -> Result<Candidates, Nobody> {
    let mut at = here.directory.open_workers(here.pool, |worker| allowed(here, worker, session));
    if at.is_empty() {
        return Err(nobody(here));
    }
    at.retain(|at| Some(*at) != without);
    let rank = |worker: &Worker| session.and_then(|session| hashed(here, worker, session));
    if !env.vm.troubles.is_empty() {
        keep_some(here, &mut at, |worker| !env.vm.troubles.avoids(env.now, worker.hash, rank(worker)));
    }
    let overloaded = !keep_some(here, &mut at, |worker| !is_full(env, worker, rank(worker)));
    // Last: a preferred worker in trouble gives way to one that is not.
    keep_preferred(here, &mut at);
    Ok(Candidates { at, overloaded })
}

/// Those that have most of the preferred labels.
fn keep_preferred(here: Here<'_>, at: &mut Vec<usize>) {
    if here.turn.demands.prefer.is_empty() {
        return;
    }
    let has = |at: &usize| {
        here.directory.workers.get(*at).map_or(0, |worker| here.turn.demands.preference(&worker.labels))
    };
    let most = at.iter().map(has).max().unwrap_or(0);
    at.retain(|at| has(at) == most);
}

/// Leaves out those that are not fine, unless none is; says whether one was.
fn keep_some(here: Here<'_>, at: &mut Vec<usize>, fine: impl Fn(&Worker) -> bool) -> bool {
    let fine = |at: &usize| here.directory.workers.get(*at).is_some_and(&fine);
    let some = at.iter().any(fine);
    if some {
        at.retain(fine);
    }
    some
}

fn choose(env: &mut Env<'_>, here: Here<'_>, open: &[usize], head: &impl Head) -> Option<Slot> {
    let candidates = here.directory.candidates(open, |worker| env.vm.load(env.now, worker));
    let cursor = match here.pool.rules.policy {
        // Costs a compare-and-swap, so only those ask who need it.
        Policy::RoundRobin => head.next_in_turn(cursor_of(here.pool)),
        _ => 0,
    };
    let chance = Chance { draw: env.vm.draw(), cursor };
    let at = *open.get(policy::choose(here.pool.rules, &candidates, None, chance)?)?;
    let worker = here.directory.workers.get(at)?;
    Some(Slot { worker: worker.id.clone(), hash: worker.hash, at, rank: None, bound_rank: None })
}

/// Each half of a split pool has its own: one turn for both would keep each of an even number on every second worker.
fn cursor_of(pool: &Pool) -> u32 {
    let hash = xxhash_rust::xxh3::xxh3_64(pool.name.as_str().as_bytes());
    let nth = hash.wrapping_add(u64::from(pool.phase == Phase::Prefill));
    u32::try_from(nth % u64::from(header::shared::CURSORS)).unwrap_or(0)
}
