//! Where a request goes, and the headers that bring it there.
//!
//! A rank is sent only where its worker declares it and its endpoint serves it; headers are always set or removed, never left.

use super::{Counter, Effect, Env, Head};
use crate::config::Steering;
use crate::contract::{Policy, Target};
use crate::directory::{Directory, Pool, Worker};
use crate::header;
use crate::id::{PoolName, Rank, RankHash, WorkerId};
use crate::page::{Certainty, HELD_BELIEVED, Record};
use crate::policy::{self, Chance};
use crate::session::Session;
use crate::time::Timestamp;
use crate::vm::{Plan, PlanRef, Vm};

/// Entries in an endpoint list: the slot and two alternates, as the shipped `num_retries: 2` uses.
const LIST_MAX: usize = 3;

/// A worker and the rank a request goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) worker: WorkerId,
    pub(super) hash: u64,
    /// Index in the directory the slot was chosen from.
    pub(super) at: usize,
    /// The rank to send and to count.
    pub(super) rank: Option<Rank>,
    /// The rank the binding holds; `None` keeps a worker-only binding worker-only.
    pub(super) bound_rank: Option<Rank>,
}

/// What the cache says of a session.
pub(super) enum Choice {
    Bound(Slot, Record),
    Held(Slot, Record),
    Unknown,
}

fn slot(at: usize, worker: &Worker, bound_rank: Option<Rank>, hash: RankHash) -> Slot {
    let rank = bound_rank.or_else(|| worker.hashed_rank(hash));
    Slot { worker: worker.id.clone(), hash: worker.hash, at, rank, bound_rank }
}

/// A cached binding, if it may still be used: not expired, of this generation, its worker alive and its rank declared.
pub(super) fn from_record(
    directory: &Directory,
    pool: &Pool,
    record: Option<&Record>,
    generation: u16,
    now: Timestamp,
) -> Choice {
    let usable = record.and_then(|record| {
        let limit = if record.certainty == Certainty::Held { HELD_BELIEVED } else { pool.ttl };
        (record.generation == generation && record.idle(now) <= limit).then_some(record)
    });
    let Some(record) = usable else { return Choice::Unknown };
    let Some((at, worker)) = eligible(directory, pool, record) else { return Choice::Unknown };
    let slot = slot(at, worker, record.rank, record.rank_hash);
    match record.certainty {
        Certainty::Bound => Choice::Bound(slot, *record),
        Certainty::Held => Choice::Held(slot, *record),
        Certainty::Gone => Choice::Unknown,
    }
}

fn eligible<'a>(directory: &'a Directory, pool: &Pool, record: &Record) -> Option<(usize, &'a Worker)> {
    let (at, worker) = directory.worker_by_hash(record.worker_hash)?;
    let here = directory.pools.get(worker.pool).is_some_and(|p| p.name == pool.name);
    let declared = record.rank.is_none_or(|rank| worker.declares(rank));
    (here && declared && worker.state.serves_bound()).then_some((at, worker))
}

/// The slot the service named, if this VM knows it.
pub(super) fn from_target(
    directory: &Directory,
    pool: &Pool,
    target: &Target,
    session: Session,
) -> Option<Slot> {
    let (at, worker) = directory.worker_by_id(&target.worker)?;
    let here = directory.pools.get(worker.pool).is_some_and(|p| p.name == pool.name);
    let declared = target.rank.is_none_or(|rank| worker.declares(rank));
    (here && declared).then(|| slot(at, worker, target.rank, session.rank_hash))
}

/// Without the service: the cached binding whatever its generation, else weighted rendezvous, the same on every Envoy.
pub(super) fn alone(
    directory: &Directory,
    pool: &Pool,
    session: Session,
    cached: Option<&Record>,
) -> Option<Slot> {
    if let Some((at, worker)) = cached.and_then(|record| eligible(directory, pool, record)) {
        return Some(slot(at, worker, cached.and_then(|r| r.rank), session.rank_hash));
    }
    let open = directory.open_workers(pool);
    let candidates = directory.candidates(&open, |_| 0);
    let at = *open.get(policy::rendezvous(&candidates, session.id)?)?;
    let worker = directory.workers.get(at)?;
    // A rank of its own: what was placed alone is bound to the rank that served it.
    Some(slot(at, worker, worker.hashed_rank(session.rank_hash), session.rank_hash))
}

/// Without a session: the pool's policy over present load; the engine balances the ranks.
pub(super) fn spread(directory: &Directory, pool: &Pool, head: &impl Head, vm: &mut Vm) -> Option<Slot> {
    let open = directory.open_workers(pool);
    let candidates = directory.candidates(&open, |worker| vm.load(worker));
    let cursor = match pool.rules.policy {
        // Costs a compare-and-swap, so only those ask who need it.
        Policy::RoundRobin => head.next_in_turn(cursor_of(&pool.name)),
        _ => 0,
    };
    let chance = Chance { draw: vm.draw(), cursor };
    let at = *open.get(policy::choose(pool.rules, &candidates, None, chance)?)?;
    let worker = directory.workers.get(at)?;
    Some(Slot { worker: worker.id.clone(), hash: worker.hash, at, rank: None, bound_rank: None })
}

fn cursor_of(pool: &PoolName) -> u32 {
    let hash = xxhash_rust::xxh3::xxh3_64(pool.as_str().as_bytes());
    u32::try_from(hash % u64::from(header::shared::CURSORS)).unwrap_or(0)
}

/// Removes every header that steers: the request goes on as if the filter were not there.
pub(super) fn strip(out: &mut Vec<Effect>) {
    out.extend(header::STRIPPED.iter().map(|name| Effect::RemoveHeader(name)));
}

/// Sets the headers of a placed request. What else steers was stripped natively before the filter ran (the shipped configs do, and
/// a test holds them to it): each removal here would cost every turn a hostcall. Under `endpoints` steering, leaves a plan for the upstream role.
#[expect(clippy::too_many_arguments, reason = "everything a placement consists of meets here")]
pub(super) fn steer(
    env: &mut Env<'_>,
    directory: &Directory,
    pool: &Pool,
    session: Option<Session>,
    slot: &Slot,
    why: Counter,
    pending: bool,
    out: &mut Vec<Effect>,
) -> Option<PlanRef> {
    match env.config.steering {
        Steering::Cluster => {
            to_cluster(env.vm, directory, slot, out);
            out.push(Effect::Note(note(None, session, slot, why)));
            None
        }
        Steering::Endpoints => {
            let plan = env.vm.plans.insert(Plan {
                rank_hash: session.map(|s| s.rank_hash),
                worker: slot.hash,
                rank: slot.rank,
                pending,
                attempts: 0,
                served: None,
            });
            let list = endpoint_list(env.vm, directory, pool, session, slot);
            out.push(Effect::SetHeader(header::CLUSTER, pool.cluster.clone()));
            out.push(Effect::SetHeader(header::ENDPOINTS, list));
            out.push(Effect::Note(note(plan, session, slot, why)));
            plan
        }
    }
}

fn to_cluster(vm: &mut Vm, directory: &Directory, slot: &Slot, out: &mut Vec<Effect>) {
    let worker = directory.workers.get(slot.at);
    let draw = if slot.rank.is_none() { vm.draw() } else { 0 };
    let endpoint =
        worker.and_then(|worker| worker.endpoint(slot.rank, draw).map(|endpoint| (worker, endpoint)));
    if let Some((worker, endpoint)) = endpoint {
        out.push(Effect::SetHeader(header::CLUSTER, endpoint.cluster.clone()));
        out.push(match endpoint.wire_rank(worker.engine, worker.dp_size, slot.rank) {
            Some(rank) => Effect::SetHeader(rank.header, rank.value),
            None => Effect::RemoveHeader(header::VLLM_RANK),
        });
    } else {
        strip(out);
    }
}

/// The slot's endpoint first, then alternates: further open workers, begun at a place the session alone decides.
fn endpoint_list(
    vm: &mut Vm,
    directory: &Directory,
    pool: &Pool,
    session: Option<Session>,
    slot: &Slot,
) -> String {
    let spread = session.map_or_else(|| vm.draw(), |s| s.rank_hash.0);
    let mut list = String::with_capacity(72);
    let mut entries = 0;
    let mut push = |worker: Option<&Worker>, rank: Option<Rank>| {
        let endpoint = worker.and_then(|worker| worker.endpoint(rank, spread));
        // A host name that did not resolve yet has no address to dial.
        if let Some(endpoint) = endpoint.filter(|endpoint| !endpoint.address.is_empty()) {
            if entries > 0 {
                list.push(',');
            }
            list.push_str(&endpoint.address);
            entries += 1;
        }
        entries >= LIST_MAX
    };
    push(directory.workers.get(slot.at), slot.rank);
    let n = pool.members.len();
    let start = policy::uniform(n, policy::mix(spread, 0)).unwrap_or(0);
    for step in 0..n {
        let Some(&at) = pool.members.get((start + step) % n) else { break };
        let worker = directory.workers.get(at).filter(|w| at != slot.at && w.state.takes_new());
        let rank = worker.zip(session).and_then(|(worker, session)| worker.hashed_rank(session.rank_hash));
        if push(worker, rank) {
            break;
        }
    }
    list
}

/// Text for the stream's filter state: `PLAN;s=1a2b3c4d;w=w0;r=5;why=pinned`. Also what access logs show.
fn note(plan: Option<PlanRef>, session: Option<Session>, slot: &Slot, why: Counter) -> String {
    let mut text = String::with_capacity(64);
    let dash = || "-".to_owned();
    text.push_str(&plan.map_or_else(dash, PlanRef::to_text));
    text.push_str(";s=");
    text.push_str(&session.map_or_else(dash, |session| session.id.prefix()));
    text.push_str(";w=");
    text.push_str(slot.worker.as_str());
    text.push_str(";r=");
    text.push_str(&slot.rank.map_or_else(dash, |rank| rank.to_string()));
    text.push_str(";why=");
    text.push_str(why.word());
    text
}
