//! Targets that trusted callers name (affinity section 6): served exactly there, or refused with the reason.
//!
//! Read only on listeners declared trusted; elsewhere the shipped configs strip these headers before the filter runs.

use super::ask::Question;
use super::decide::{found_now, joined};
use super::finish::touch;
use super::place::{self, Choice, Slot};
use super::prefill::Unchosen;
use super::{Counter, Effect, Env, Head, Here, LocalReply, Next, Placement, RequestFlow, choose};
use crate::contract::{Affinity, Policy, Refusal, Target};
use crate::demand::{self, Demands, Label};
use crate::directory::{Directory, Pool};
use crate::hash::Phase;
use crate::header;
use crate::id::{Rank, WorkerId};
use crate::page::Record;
use crate::session::Session;

/// The targets that a caller named, as they were written.
#[derive(Debug, Default)]
pub(super) struct Said {
    /// For no half in particular.
    usual: Option<Target>,
    prefill: Option<Target>,
    decode: Option<Target>,
}

impl Said {
    pub(super) const fn is_nothing(&self) -> bool {
        self.usual.is_none() && self.prefill.is_none() && self.decode.is_none()
    }

    /// The targets of the half that answers and of the prefill half. What was named for no half in particular is meant for
    /// the half that it works for.
    pub(super) fn by_half(&self, directory: &Directory, pool: &Pool) -> (Option<Target>, Option<Target>) {
        let prefills = |target: &&Target| {
            let worker = directory.worker_by_id(&target.worker).map(|(_, worker)| worker.phase);
            pool.prefill.is_some() && self.prefill.is_none() && worker == Some(Phase::Prefill)
        };
        let usual = self.usual.as_ref();
        let serving = self.decode.as_ref().or_else(|| usual.filter(|target| !prefills(target)));
        let prefill = self.prefill.as_ref().or_else(|| usual.filter(prefills));
        (serving.cloned(), prefill.cloned())
    }
}

/// The targets that a trusted caller named.
///
/// # Errors
/// What to answer: the worker or rank is no such thing, or a rank came without a worker.
pub(super) fn read(head: &impl Head) -> Result<Said, LocalReply> {
    let [prefill, decode] = header::PHASE_TARGETS;
    Ok(Said {
        usual: pair(head, header::TARGET_WORKER, header::TARGET_RANK, Phase::Aggregated)?,
        prefill: pair(head, prefill.0, prefill.1, Phase::Prefill)?,
        decode: pair(head, decode.0, decode.1, Phase::Decode)?,
    })
}

fn pair(head: &impl Head, worker: &str, rank: &str, phase: Phase) -> Result<Option<Target>, LocalReply> {
    let text = |name| head.header(name).map(|value| value.trim_ascii().to_vec()).filter(|v| !v.is_empty());
    let (worker, rank) = (text(worker), text(rank));
    let Some(worker) = worker else {
        return if rank.is_some() { Err(refusal(phase, Refusal::WorkerRequired)) } else { Ok(None) };
    };
    let id = std::str::from_utf8(&worker).ok().and_then(|text| WorkerId::parse(text).ok());
    let worker = id.ok_or_else(|| refusal(phase, Refusal::WorkerUnknown))?;
    let rank = match rank {
        None => None,
        Some(text) => Some(number(&text).ok_or_else(|| refusal(phase, Refusal::RankUndeclared))?),
    };
    Ok(Some(Target { worker, rank }))
}

/// What a trusted caller demands of the worker.
///
/// # Errors
/// What to answer: a list that cannot be read. To read it as no demand would send the request where it must not go.
pub(super) fn demands(head: &impl Head) -> Result<Demands, LocalReply> {
    let text = |name| head.header(name).map(|value| String::from_utf8_lossy(&value).into_owned());
    let labels = |name| text(name).map_or(Ok(Vec::new()), |text| Label::parse_list(&text));
    let addresses = text(header::SUBSET).map_or(Ok(Vec::new()), |text| demand::parse_addresses(&text));
    let wrong = |problem| LocalReply::malformed("demands_malformed", problem);
    Ok(Demands {
        addresses: addresses.map_err(wrong)?,
        require: labels(header::REQUIRE).map_err(wrong)?,
        prefer: labels(header::PREFER).map_err(wrong)?,
        model: None,
    })
}

fn number(text: &[u8]) -> Option<Rank> {
    std::str::from_utf8(text).ok()?.parse().ok().map(Rank)
}

/// What a refusal says to the client; in a split pool it names the half.
pub(super) fn refusal(phase: Phase, refusal: Refusal) -> LocalReply {
    let of = |message: &str| match phase {
        Phase::Aggregated => message.to_owned(),
        Phase::Prefill | Phase::Decode => format!("{}: {message}", phase.as_str()),
    };
    match refusal {
        Refusal::WorkerRequired => LocalReply::target(400, "worker_id_required", &of("worker id required")),
        Refusal::WorkerUnknown => {
            LocalReply::target(404, "worker_unknown", &of("no such worker in this pool"))
        }
        Refusal::RankUndeclared => {
            LocalReply::target(400, "rank_undeclared", &of("the worker does not declare that rank"))
        }
        Refusal::BoundElsewhere => LocalReply::target(
            400,
            "session_bound_elsewhere",
            &of("the session is bound to another target; name that one, or none"),
        ),
        Refusal::Excluded => LocalReply::target(
            403,
            "target_excluded",
            &of("the session is bound to a worker that this request's demands exclude"),
        ),
        Refusal::Unmet => LocalReply::unmet(),
        Refusal::Overloaded => LocalReply::overloaded(None),
        Refusal::WorkerUnavailable => LocalReply::target_gone(&of("the named worker is not available")),
    }
}

/// Whether a cached binding is the named target: the same worker, and the same rank if one is named. A binding to a worker
/// alone takes the session's hashed rank and no other.
pub(super) fn agrees(here: Here<'_>, target: &Target, slot: &Slot, record: &Record) -> bool {
    let hashed = || here.directory.workers.get(slot.at).and_then(|w| w.hashed_rank(record.rank_hash));
    target.worker == slot.worker
        && target.rank.is_none_or(|rank| record.rank.or_else(hashed).is_none_or(|bound| bound == rank))
}

/// The slot with the rank its caller named, which goes on the wire whoever chooses ranks otherwise.
pub(super) fn exactly(here: Here<'_>, slot: Slot, target: Option<&Target>) -> Slot {
    let rank = target.and_then(|target| target.rank).filter(|_| slot_has_ranks(here, &slot));
    Slot { rank: rank.or(slot.rank), ..slot }
}

/// The named slot, unless its worker drains or is down; without a named rank the one its session gets there.
pub(super) fn slot(here: Here<'_>, target: &Target, session: Option<Session>) -> Option<Slot> {
    let (at, worker) = here.directory.worker_by_id(&target.worker)?;
    if !worker.state.is_open() {
        return None;
    }
    let hashed = session.and_then(|session| place::hashed(here, worker, session));
    // A single rank is not named on the wire, so it is not part of a binding either.
    let rank = target.rank.filter(|_| worker.dp_size > 1).or(hashed);
    Some(Slot { worker: worker.id.clone(), hash: worker.hash, at, rank, bound_rank: rank })
}

impl RequestFlow {
    pub(super) fn named_turn(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        target: &Target,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        if let Err(why) = known(here, target) {
            return self.refuse_by(here.pool.phase, why, out);
        }
        let keeps = here.pool.affinity != Affinity::Off && here.pool.rules.policy != Policy::SessionHash;
        let Some(session) = here.turn.session.filter(|_| keeps) else {
            return self.unkept(env, here, target, head, out);
        };
        let asks_prefill = match self.choose_prefill(env, here, head, out) {
            Ok(()) => false,
            Err(Unchosen::Asks) => true,
            Err(Unchosen::Refused(why)) => return self.refuse_prefill(why, out),
        };
        let record = found_now(env, head, session);
        let (slot, record, held) = match place::from_record(here, record.as_ref(), env.vm.generation, env.now)
        {
            Choice::Bound(slot, record) => (slot, record, false),
            Choice::Held(slot, record) => (slot, record, true),
            // Whether a draining worker may go on with it, only the service knows: it may be bound there.
            Choice::Unknown => return self.ask(env, here, Question::plain(session, record), head, out),
        };
        if asks_prefill || !agrees(here, target, &slot, &record) || !choose::keeps(here, &slot) {
            // This cache may be old: the service knows whether the session is still bound there.
            return self.ask(env, here, Question::plain(session, Some(record)), head, out);
        }
        let slot = exactly(here, slot, Some(target));
        let pending = held.then(|| {
            let request = env.vm.next_request();
            joined(session, here.pool.name.clone(), request, &record)
        });
        touch(env, here.pool, session, &record, out);
        let (session, why) = (Some(session), Counter::Named);
        let version = (!held).then_some(record.version);
        self.place(env, here, Placement { session, slot, why, pending, version, exact: true }, head, out)
    }

    /// Without a binding to keep: exactly there, and nothing remembered.
    fn unkept(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        target: &Target,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        // Without affinity there is no rank of a session's own either.
        let session = here.turn.session.filter(|_| here.pool.affinity != Affinity::Off);
        let Some(slot) = slot(here, target, session) else {
            let gone = refusal(here.pool.phase, Refusal::WorkerUnavailable);
            return self.refuse(gone, Counter::NamedRefused, out);
        };
        if !choose::keeps(here, &slot) {
            let excluded = refusal(here.pool.phase, Refusal::Excluded);
            return self.refuse(excluded, Counter::NamedRefused, out);
        }
        if let Err(why) = self.prefill_alone(env, here, head, out) {
            return self.refuse_prefill(why, out);
        }
        let why = Counter::Named;
        let placement = Placement { session, slot, why, pending: None, version: None, exact: true };
        self.place(env, here, placement, head, out)
    }
}

fn slot_has_ranks(here: Here<'_>, slot: &Slot) -> bool {
    here.directory.workers.get(slot.at).is_some_and(|worker| worker.dp_size > 1)
}

/// Whether the worker is one of the pool and half, declares the rank and is not down.
pub(super) fn known(here: Here<'_>, target: &Target) -> Result<(), Refusal> {
    let Some((_, worker)) = here.directory.worker_by_id(&target.worker) else {
        // Declared a moment ago, and not yet dialled by this Envoy: not unknown, but not available either.
        let coming = here.directory.coming.contains(&target.worker);
        return Err(if coming { Refusal::WorkerUnavailable } else { Refusal::WorkerUnknown });
    };
    if !place::is_here(here, worker) {
        return Err(Refusal::WorkerUnknown);
    }
    if target.rank.is_some_and(|rank| !worker.declares(rank)) {
        return Err(Refusal::RankUndeclared);
    }
    if worker.state.serves_bound() { Ok(()) } else { Err(Refusal::WorkerUnavailable) }
}
