//! Where a request goes, and the headers that bring it there.
//!
//! A rank is sent only where its worker declares it and its endpoint serves it; headers are always set or removed, never left.

use super::choose;
use super::{Counter, Effect, Env, Here, Placement};
use crate::config::Steering;
use crate::contract::{Overlap, Ranks, Target};
use crate::directory::{Endpoint, Worker};
use crate::engine::{OnWire, Surface};
use crate::hash::Phase;
use crate::header;
use crate::id::{Rank, RankHash, WorkerId};
use crate::page::{Certainty, HELD_BELIEVED, Record};
use crate::policy;
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

/// The rank that a request for this slot is served by, as far as it is not the engine that chooses it: what counts as load.
pub(super) fn carried(steering: Steering, here: Here<'_>, slot: &Slot, surface: Surface) -> Option<Rank> {
    let worker = here.directory.workers.get(slot.at)?;
    let endpoint = worker.endpoint(Some(slot.rank?), 0)?;
    let in_body = || matches!(endpoint.on_wire(worker, surface, slot.rank), OnWire::Body { .. });
    // A body is rewritten by the upstream role alone, which `cluster` steering does without.
    let lost = steering == Steering::Cluster && in_body();
    endpoint.carried(worker, surface, slot.rank).filter(|_| !lost)
}

/// What the cache says of a session.
pub(super) enum Choice {
    Bound(Slot, Record),
    Held(Slot, Record),
    Unknown,
}

fn slot(here: Here<'_>, at: usize, worker: &Worker, bound_rank: Option<Rank>, hash: RankHash) -> Slot {
    let rank = match here.pool.ranks {
        Ranks::Pinned => bound_rank.or_else(|| worker.hashed_rank(hash)),
        Ranks::Bound => bound_rank,
        Ranks::Engine => None,
    };
    Slot { worker: worker.id.clone(), hash: worker.hash, at, rank, bound_rank }
}

/// The rank a session gets on a worker where nothing binds one: its hash, or the engine's choice.
pub(super) fn hashed(here: Here<'_>, worker: &Worker, session: Session) -> Option<Rank> {
    (here.pool.ranks == Ranks::Pinned).then(|| worker.hashed_rank(session.rank_hash)).flatten()
}

/// A cached binding, if it may still be used: not expired, of this generation, its worker alive and its rank declared.
pub(super) fn from_record(
    here: Here<'_>,
    record: Option<&Record>,
    generation: u16,
    now: Timestamp,
) -> Choice {
    let usable = record.and_then(|record| {
        let limit = if record.certainty == Certainty::Held { HELD_BELIEVED } else { here.pool.ttl };
        (record.generation == generation && record.idle(now) <= limit).then_some(record)
    });
    let Some(record) = usable else { return Choice::Unknown };
    let Some((at, worker)) = eligible(here, record) else { return Choice::Unknown };
    let slot = slot(here, at, worker, record.rank, record.rank_hash);
    match record.certainty {
        Certainty::Bound => Choice::Bound(slot, *record),
        Certainty::Held => Choice::Held(slot, *record),
        Certainty::Gone | Certainty::Alias => Choice::Unknown,
    }
}

fn eligible<'a>(here: Here<'a>, record: &Record) -> Option<(usize, &'a Worker)> {
    let (at, worker) = here.directory.worker_by_hash(record.worker_hash)?;
    let declared = record.rank.is_none_or(|rank| worker.declares(rank));
    (is_here(here, worker) && declared && worker.state.serves_bound()).then_some((at, worker))
}

pub(super) fn is_here(here: Here<'_>, worker: &Worker) -> bool {
    let its_half = (worker.phase == Phase::Prefill) == (here.pool.phase == Phase::Prefill);
    its_half && is_of_pool(here, worker)
}

/// Whether it serves this pool, in whichever half.
pub(super) fn is_of_pool(here: Here<'_>, worker: &Worker) -> bool {
    here.directory.pools.get(worker.pool).is_some_and(|pool| pool.name == here.pool.name)
}

/// The slot the service named, if this VM knows it.
pub(super) fn from_target(here: Here<'_>, target: &Target, session: Session) -> Option<Slot> {
    let (at, worker) = here.directory.worker_by_id(&target.worker)?;
    let declared = target.rank.is_none_or(|rank| worker.declares(rank));
    (is_here(here, worker) && declared).then(|| slot(here, at, worker, target.rank, session.rank_hash))
}

fn cached(here: Here<'_>, session: Session, record: &Record) -> Option<Slot> {
    let (at, worker) = eligible(here, record)?;
    Some(slot(here, at, worker, record.rank, session.rank_hash))
}

/// Where a turn that is placed alone is at home by what the cache says, whatever its generation and age; a held slot, too: its
/// first turn may still be generating there.
pub(super) fn home(here: Here<'_>, session: Session, record: Option<Record>) -> Option<(Slot, Record)> {
    let record = record.filter(|r| matches!(r.certainty, Certainty::Bound | Certainty::Held))?;
    let slot = cached(here, session, &record)?;
    choose::keeps(here, &slot).then_some((slot, record))
}

/// Removes every header that steers: the request goes on as if the filter were not there.
pub(super) fn strip(out: &mut Vec<Effect>) {
    out.extend(header::STRIPPED.iter().map(|name| Effect::RemoveHeader((*name).into())));
}

/// Sets the headers of a placed request. What else steers was stripped natively before the filter ran (the shipped configs do, and
/// a test holds them to it): each removal here would cost every turn a hostcall. Under `endpoints` steering, leaves a plan for the upstream role.
pub(super) fn steer(
    env: &mut Env<'_>,
    here: Here<'_>,
    placement: &Placement,
    (surface, overlap): (Surface, Option<Overlap>),
    out: &mut Vec<Effect>,
) -> Option<PlanRef> {
    let Placement { session, slot, why, exact, .. } = placement;
    if env.config.steering == Steering::Cluster {
        to_cluster(env.vm, here, *session, slot, surface, out);
        out.push(Effect::Note(note(None, *session, slot, *why, overlap)));
        return None;
    }
    let plan = env.vm.plans.insert(Plan {
        rank_hash: session.filter(|_| here.pool.ranks == Ranks::Pinned).map(|s| s.rank_hash),
        worker: slot.hash,
        rank: slot.rank,
        surface,
        body_bytes: None,
        exact: *exact,
        attempts: 0,
        last: None,
        counted: (slot.hash, carried(env.config.steering, here, slot, surface)),
    });
    let list = endpoint_list(env, here, placement);
    out.push(Effect::SetHeader(header::CLUSTER.into(), here.pool.cluster.clone()));
    out.push(Effect::SetHeader(header::ENDPOINTS.into(), list));
    out.push(Effect::Note(note(plan, *session, slot, *why, overlap)));
    plan
}

/// Which endpoint a request without a rank takes: always the same one for a session, so that it finds its cache again.
fn spread_of(vm: &mut Vm, session: Option<Session>) -> u64 {
    session.map_or_else(|| vm.draw(), |session| session.rank_hash.0)
}

fn to_cluster(
    vm: &mut Vm,
    here: Here<'_>,
    session: Option<Session>,
    slot: &Slot,
    surface: Surface,
    out: &mut Vec<Effect>,
) {
    let worker = here.directory.workers.get(slot.at);
    let draw = if slot.rank.is_none() { spread_of(vm, session) } else { 0 };
    let endpoint =
        worker.and_then(|worker| worker.endpoint(slot.rank, draw).map(|endpoint| (worker, endpoint)));
    if let Some((worker, endpoint)) = endpoint {
        out.push(Effect::SetHeader(header::CLUSTER.into(), endpoint.cluster.clone()));
        out.push(match endpoint.on_wire(worker, surface, slot.rank) {
            OnWire::Header { name, value } => Effect::SetHeader(name.into(), value),
            OnWire::Body { .. } | OnWire::Nothing => Effect::RemoveHeader(header::VLLM_RANK.into()),
        });
    } else {
        strip(out);
    }
}

/// The slot's endpoint first, then alternates: further open workers, begun at a place the session alone decides. An exact
/// target has no alternates: its own address again, so that a refused connection may be tried again there.
fn endpoint_list(env: &mut Env<'_>, here: Here<'_>, placement: &Placement) -> String {
    let Placement { session, slot, .. } = placement;
    let spread = spread_of(env.vm, *session);
    let mut list = List::default();
    let home = here.directory.workers.get(slot.at).and_then(|worker| worker.endpoint(slot.rank, spread));
    if placement.exact {
        (0..LIST_MAX).for_each(|_| list.push(home));
        return list.text;
    }
    list.push(home);
    let members = &here.pool.members;
    let start = policy::uniform(members.len(), policy::mix(spread, 0)).unwrap_or(0);
    for step in 0..members.len() {
        if list.entries >= LIST_MAX {
            break;
        }
        let Some(&at) = members.get((start + step) % members.len()) else { break };
        let open =
            here.directory.workers.get(at).filter(|w| {
                at != slot.at && w.state.takes_new() && choose::is_alternate(env, here, w, *session)
            });
        let rank = open.zip(*session).and_then(|(worker, session)| hashed(here, worker, session));
        list.push(open.and_then(|worker| worker.endpoint(rank, spread)));
    }
    list.text
}

/// An endpoint list as it is written.
#[derive(Default)]
struct List {
    text: String,
    entries: usize,
}

impl List {
    /// Adds an endpoint; a host name that did not resolve yet has no address to dial.
    fn push(&mut self, endpoint: Option<&Endpoint>) {
        let Some(endpoint) = endpoint.filter(|endpoint| !endpoint.address.is_empty()) else { return };
        if self.entries == 0 {
            self.text.reserve(72);
        } else {
            self.text.push(',');
        }
        self.text.push_str(&endpoint.address);
        self.entries += 1;
    }
}

/// The same text for a request that was refused: what access logs show of it.
pub(super) fn unplaced(why: Counter) -> String {
    format!("-;s=-;w=-;r=-;why={}", why.word())
}

/// `;blocks=41/52`: so much of the prompt is cached where it goes.
pub(super) fn blocks(overlap: Overlap) -> String {
    format!(";blocks={}/{}", overlap.blocks, overlap.of)
}

/// Text for the stream's filter state: `PLAN;s=1a2b3c4d;w=w0;r=5;why=pinned`. Also what access logs show.
fn note(
    plan: Option<PlanRef>,
    session: Option<Session>,
    slot: &Slot,
    why: Counter,
    overlap: Option<Overlap>,
) -> String {
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
    if let Some(overlap) = overlap {
        text.push_str(&blocks(overlap));
    }
    text
}
