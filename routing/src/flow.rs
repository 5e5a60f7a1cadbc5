//! One request's life in the filter, from its headers to its end.
//!
//! ```text
//!   AwaitHead ─head: session_hash, no session, cached, named─► Placed ─head of the answer─► Placed ─end─► Done
//!       │                                                        ▲
//!       └─head: first turn, soft past its margin─► Routing ─reply | late | failed┘─► Refused
//!       └─head: key too long, target that cannot be served─► Refused        └─head: no topology─► Passed
//! ```
//! A pinned turn goes AwaitHead → Placed at once: no call, no body. Inputs that make no sense in a state are named in
//! [`Ignored`] and counted. Time and chance come in; everything to be done goes out as [`Effect`]s, in order.
//!
//! Here: the states, and what the head alone decides. `ask` is the way through the service, `finish` the answer and the end,
//! `named` the targets that callers name, `place` slots and headers.

mod ask;
mod effect;
mod finish;
mod named;
mod place;

pub use effect::{Counter, Effect, Ignored, LocalReply, Next, PageChange};
pub use finish::{AnswerHead, By, Ending, EnvoyReason};

use crate::config::{FilterConfig, NoTopology};
use crate::contract::{Affinity, Outcome, Policy, SessionRef, Target};
use crate::directory::{Directory, Pool};
use crate::header;
use crate::id::{HoldId, PoolName, RequestId, Version};
use crate::page::{self, Record};
use crate::session::{self, Found, RequestView, Session};
use crate::time::Timestamp;
use crate::vm::{PlanRef, Vm};
use place::{Choice, Slot};

/// What a step may look at besides its input.
#[derive(Debug)]
pub struct Env<'a> {
    /// The listener's config.
    pub config: &'a FilterConfig,
    /// The VM the request runs in.
    pub vm: &'a mut Vm,
    /// Now.
    pub now: Timestamp,
}

/// A request as seen at its head: headers, and pages of cached bindings, each read only when needed.
pub trait Head: RequestView {
    /// The bytes of page `n` of cached bindings.
    fn page(&self, n: u32) -> Option<Vec<u8>>;
    /// The next number of round-robin position `n` ([`crate::header::shared::CURSORS`] of them), shared by all VMs of an Envoy.
    fn next_in_turn(&self, n: u32) -> u64;
}

/// Why `route` gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RouteFailure {
    /// Nothing within the deadline.
    Timeout,
    /// The call could not be made or was answered with an error.
    Failed,
    /// The answer was not contract v1.
    Malformed,
}

#[derive(Debug)]
enum State {
    AwaitHead,
    Routing(Routing),
    Placed(Placed),
    Refused,
    Passed,
    Done,
}

/// A turn that waits for the service.
#[derive(Debug)]
struct Routing {
    session: Session,
    pool: PoolName,
    request: RequestId,
    cached: Option<Record>,
    /// The target its caller named.
    named: Option<Target>,
    /// Newest version heard of: what is placed alone must be newer.
    seen: Option<Version>,
    /// What the service said, if it was heard.
    outcome: Option<Outcome>,
}

impl Routing {
    /// Unless the service said otherwise, it may hold a slot for this request, now or when the question arrives at last.
    const fn may_own_hold(&self) -> bool {
        matches!(self.outcome, None | Some(Outcome::Held))
    }
}

/// A request that has its slot.
#[derive(Debug)]
struct Placed {
    slot: Slot,
    plan: Option<PlanRef>,
    pending: Option<Pending>,
    why: Counter,
}

/// What an accepted answer will commit.
#[derive(Debug)]
struct Pending {
    session: Session,
    pool: PoolName,
    request: RequestId,
    hold: Option<HoldId>,
    version: Version,
    /// This turn's held record stands in the page and must go if the turn fails; one that joined leaves it to its owner.
    cached: bool,
}

/// The fleet and the pool a step is about.
#[derive(Clone, Copy)]
struct Here<'a> {
    directory: &'a Directory,
    pool: &'a Pool,
}

/// A decision about to be carried out.
struct Placement {
    session: Option<Session>,
    slot: Slot,
    why: Counter,
    pending: Option<Pending>,
    /// This slot or none.
    exact: bool,
}

/// The machine of one request.
#[derive(Debug)]
pub struct RequestFlow {
    state: State,
}

impl Default for RequestFlow {
    fn default() -> Self {
        Self { state: State::AwaitHead }
    }
}

impl RequestFlow {
    /// The request's head. Everything a pinned turn needs happens here.
    pub fn head(&mut self, env: &mut Env<'_>, head: &impl Head, out: &mut Vec<Effect>) -> Next {
        if !matches!(self.state, State::AwaitHead) {
            out.push(Effect::Count(Counter::Ignored(Ignored::SecondHead)));
            return Next::Continue;
        }
        if head.header(header::SPOOFED).is_some() {
            out.push(Effect::Count(Counter::Spoofed));
            out.push(Effect::RemoveHeader(header::SPOOFED));
        }
        let key = match session::find(&env.config.sources, head) {
            Found::TooLong => return self.refuse(LocalReply::key_too_long(), Counter::KeyTooLong, out),
            Found::Nothing => None,
            Found::Key(key) => Some(key),
        };
        let named = match named::read(env.config, head) {
            Ok(named) => named,
            Err(reply) => return self.refuse(reply, Counter::NamedRefused, out),
        };
        let Some(directory) = env.vm.directory.take() else {
            return self.without_topology(env, named.is_some(), out);
        };
        let next = match directory.pool(env.config.pool.as_ref()) {
            None => self.without_topology(env, named.is_some(), out),
            Some(pool) => {
                let session = key.map(|key| {
                    let scope = session::scope(&env.config.scope, head);
                    key.session(&env.config.hash_secret, &scope, pool.name.as_str())
                });
                let here = Here { directory: &directory, pool };
                match named {
                    Some(target) => self.named_turn(env, here, session, target, head, out),
                    None => self.in_pool(env, here, session, head, out),
                }
            }
        };
        env.vm.directory = Some(directory);
        next
    }

    fn in_pool(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        session: Option<Session>,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        let session = match (session, here.pool.affinity) {
            (Some(session), Affinity::Hard | Affinity::Soft) => session,
            (Some(_), Affinity::Off) => return self.unpinned(env, here, head, Counter::AffinityOff, out),
            (None, _) => return self.unpinned(env, here, head, Counter::SessionKeyMissing, out),
        };
        if matches!(here.pool.rules.policy, Policy::SessionHash) {
            return self.hashed(env, here, session, head, out);
        }
        let record = found_now(env, head, session);
        match place::from_record(here, record.as_ref(), env.vm.generation, env.now) {
            Choice::Bound(slot, record) if place::stays(env, here, &slot) => {
                self.pinned(env, here, session, slot, &record, head, out)
            }
            Choice::Held(slot, record) => self.join(env, here, session, slot, &record, out),
            Choice::Bound(..) | Choice::Unknown => self.ask(env, here, session, record, None, out),
        }
    }

    /// A turn under `session_hash`.
    fn hashed(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        session: Session,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        let Some(home) = place::by_hash(here, session) else { return self.without_worker(out) };
        let (slot, why) = home_or_spill(env, here, session, home, head, Counter::SessionHash);
        self.place(
            env,
            here,
            Placement { session: Some(session), slot, why, pending: None, exact: false },
            out,
        )
    }

    /// A turn whose slot is in the cache. The usual one.
    #[expect(clippy::too_many_arguments, reason = "one step of one machine, on the hottest path")]
    fn pinned(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        session: Session,
        slot: Slot,
        record: &Record,
        head: &impl Head,
        out: &mut Vec<Effect>,
    ) -> Next {
        finish::touch(env, here.pool, session, record, out);
        let exact = here.pool.rules.policy == Policy::Direct;
        let (slot, why) = if exact {
            (slot, Counter::Pinned)
        } else {
            home_or_spill(env, here, session, slot, head, Counter::Pinned)
        };
        self.place(env, here, Placement { session: Some(session), slot, why, pending: None, exact }, out)
    }

    /// A turn beside a first turn that is not answered yet: the same slot.
    fn join(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        session: Session,
        slot: Slot,
        record: &Record,
        out: &mut Vec<Effect>,
    ) -> Next {
        let request = env.vm.next_request();
        let pending = joined(session, here.pool.name.clone(), request, record);
        let exact = here.pool.rules.policy == Policy::Direct;
        let (session, why) = (Some(session), Counter::Joined);
        self.place(env, here, Placement { session, slot, why, pending: Some(pending), exact }, out)
    }

    fn unpinned(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        head: &impl Head,
        why: Counter,
        out: &mut Vec<Effect>,
    ) -> Next {
        if here.pool.rules.policy == Policy::Direct {
            return self.refuse(LocalReply::worker_required(), Counter::NamedRefused, out);
        }
        match place::spread(env, here, head) {
            Some(slot) => {
                let placement = Placement { session: None, slot, why, pending: None, exact: false };
                self.place(env, here, placement, out)
            }
            None => self.without_worker(out),
        }
    }

    fn place(
        &mut self,
        env: &mut Env<'_>,
        here: Here<'_>,
        placement: Placement,
        out: &mut Vec<Effect>,
    ) -> Next {
        let plan = place::steer(env, here, &placement, out);
        let Placement { slot, pending, why, .. } = placement;
        env.vm.loads.add(slot.hash, slot.rank);
        out.push(Effect::Count(why));
        self.state = State::Placed(Placed { slot, plan, pending, why });
        Next::Continue
    }

    fn refuse(&mut self, reply: LocalReply, why: Counter, out: &mut Vec<Effect>) -> Next {
        self.state = State::Refused;
        out.push(Effect::Count(why));
        out.push(Effect::Note(place::unplaced(why)));
        out.push(Effect::Respond(reply));
        Next::Pause
    }

    fn without_topology(&mut self, env: &Env<'_>, named: bool, out: &mut Vec<Effect>) -> Next {
        match env.config.on_no_topology {
            // Passed through, a named target would be served by whoever comes.
            NoTopology::PassThrough if !named => self.pass(Counter::NoTopology, out),
            _ => self.refuse(LocalReply::no_topology(), Counter::NoTopology, out),
        }
    }

    /// No worker of the pool can serve: the default route may still know one.
    fn without_worker(&mut self, out: &mut Vec<Effect>) -> Next {
        self.pass(Counter::NoWorker, out)
    }

    fn pass(&mut self, why: Counter, out: &mut Vec<Effect>) -> Next {
        self.state = State::Passed;
        out.push(Effect::Count(why));
        place::strip(out);
        Next::Continue
    }
}

/// Home, unless it was just unreachable or said it is busy, and there is another place.
fn home_or_spill(
    env: &mut Env<'_>,
    here: Here<'_>,
    session: Session,
    home: Slot,
    head: &impl Head,
    why: Counter,
) -> (Slot, Counter) {
    let avoided = env.vm.troubles.avoids(env.now, home.hash, home.rank);
    let elsewhere = avoided.then(|| place::spill(env, here, session, &home, head)).flatten();
    elsewhere.map_or((home, why), |slot| (slot, Counter::Spilled))
}

/// What a turn commits that joined the hold of a cached record.
fn joined(session: Session, pool: PoolName, request: RequestId, record: &Record) -> Pending {
    Pending { session, pool, request, hold: None, version: record.version, cached: false }
}

/// The session's record as the page has it now.
fn found_now(env: &Env<'_>, head: &impl Head, session: Session) -> Option<Record> {
    let page = head.page(page::page_of(session.id, env.config.page_count))?;
    page::find(&page, session.id)
}

fn reference(session: Session) -> SessionRef {
    SessionRef { id: session.id, rank_hash: session.rank_hash }
}
