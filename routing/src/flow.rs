//! One request's life in the filter, from its headers to its end.
//!
//! ```text
//!   AwaitHead ─head: session_hash, no session, cached, named─► Placed ─head of the answer─► Placed ─end─► Done
//!     │    │                                                     ▲
//!     │    ├─head: first turn, soft past its margin─► Routing ─reply | late | failed┘─► Refused
//!     │    └─head: key too long, target that cannot be served─► Refused        └─head: no topology─► Passed
//!     └─head: key or pool in the body; the service is to be asked, and wants the prompt─► Reading ─end | budget | missing: as from the head
//! ```
//! A pinned turn goes AwaitHead → Placed at once: no call, no body. Inputs that make no sense in a state are named in
//! [`Ignored`] and counted. Time and chance come in; everything to be done goes out as [`Effect`]s, in order.
//!
//! Here: the states. `select` reads what a request says of itself, `decide` is what this VM decides alone, `ask` the way through
//! the service, `prompt` what it is told of a prompt and books for it, `alone` the way without it, `spread` turns without a session, `prefill`, `seek`
//! and `half` the other half of a split pool, `finish` the answer and the end, `named` the targets that callers name, `choose` who may serve, `place` slots and headers.

mod alone;
mod ask;
mod choose;
mod decide;
mod effect;
mod finish;
mod half;
mod models;
mod named;
mod place;
mod prefill;
mod prompt;
mod response;
mod seek;
mod select;
mod spilled;
mod spread;

pub use effect::{Counter, Effect, Ignored, LocalReply, Next, PageChange};
pub use finish::{AnswerHead, By, Ending, EnvoyReason};
pub use prompt::PROMPT_WIRE_BYTES_MAX;
pub use response::RESPONSE_BYTES_MAX;

use crate::config::FilterConfig;
use crate::contract::{KeyShown, Outcome, SessionRef, Target};
use crate::demand::Demands;
use crate::directory::{Directory, Pool};
use crate::engine::Surface;
use crate::id::{HoldId, PoolName, Rank, RequestId, SessionId, Version};
use crate::page::Record;
use crate::session::{RequestView, Session};
use crate::time::{Millis, Timestamp};
use crate::vm::{PlanRef, RunRef, Vm};
use place::Slot;

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
    /// Whether a body follows the head that can be read.
    fn body_follows(&self) -> bool;
    /// Whether one follows that cannot: this build of the filter sees none.
    fn body_hidden(&self) -> bool {
        false
    }
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
    Reading(Box<select::Reading>),
    Routing(Box<Routing>),
    Placed(Box<Placed>),
    Refused,
    Passed,
    Done,
}

/// What a request says of itself, read once.
#[derive(Debug, Default)]
struct Turn {
    /// What is asked of the engine.
    surface: Surface,
    /// The session, and that of its prefill half in a split pool.
    session: Option<Session>,
    prefill: Option<Session>,
    /// The targets its caller named: as they were written, then by half.
    said: named::Said,
    named: Option<Target>,
    named_prefill: Option<Target>,
    /// What a worker must have.
    demands: Demands,
    /// What it hangs on, where its session is not known here: an engine's response id.
    alias: Option<SessionId>,
    /// Only the decision is wanted.
    dry_run: bool,
    /// The session ends with this turn.
    last: bool,
    /// Its body did not come in time.
    body_late: bool,
    /// A body follows the head.
    has_body: bool,
    /// The key as a dry run may show it.
    key: Option<KeyShown>,
}

/// A turn that waits for the service.
#[derive(Debug)]
struct Routing {
    session: Session,
    pool: PoolName,
    request: RequestId,
    cached: Option<Record>,
    /// Newest version heard of: what is placed alone must be newer.
    seen: Option<Version>,
    /// What the service said, if it was heard.
    outcome: Option<Outcome>,
    /// How long the service may keep it waiting for its overloaded slot.
    wait: Millis,
    /// The prefill half, where it must be asked for too.
    prefill: Option<prefill::Wanted>,
    /// It belongs to no session, and `session` only stands in; for this reason.
    loose: Option<Counter>,
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
    /// The rank it counts at: none where the engine chooses.
    carried: Option<Rank>,
    plan: Option<PlanRef>,
    pending: Option<Pending>,
    /// It keeps the binding it runs under alive.
    running: Option<RunRef>,
    /// The binding it runs under, once there is one.
    binding: Option<Binding>,
    prefill: Option<half::Half>,
    /// The prefill half's binding, where it ends with the turn.
    prefill_ends: Option<half::Ends>,
    response: Option<response::Watch>,
    /// An engine's accepting answer came.
    accepted: bool,
    /// The session ends with this turn.
    last: bool,
    why: Counter,
}

/// A binding that a turn runs under.
#[derive(Clone, Debug)]
struct Binding {
    session: Session,
    pool: PoolName,
    version: Version,
}

impl Binding {
    /// The one that a commit makes.
    fn of(pending: &Pending) -> Self {
        Self { session: pending.session, pool: pending.pool.clone(), version: pending.version }
    }
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

/// The fleet and the pool a step is about, and what the turn says of itself.
#[derive(Clone, Copy)]
struct Here<'a> {
    directory: &'a Directory,
    pool: &'a Pool,
    turn: &'a Turn,
}

/// A decision about to be carried out.
struct Placement {
    session: Option<Session>,
    slot: Slot,
    why: Counter,
    pending: Option<Pending>,
    /// Version of the binding it runs under.
    version: Option<Version>,
    /// This slot or none.
    exact: bool,
}

impl Placement {
    /// Of a turn that belongs to no session.
    const fn loose(slot: Slot, why: Counter) -> Self {
        Self { session: None, slot, why, pending: None, version: None, exact: false }
    }
}

/// The machine of one request.
#[derive(Debug)]
pub struct RequestFlow {
    state: State,
    turn: Turn,
    /// The prefill half, decided before the half that answers.
    prefill: Option<half::Half>,
    /// What there is of its prompt.
    prompt: prompt::Gathered,
    /// What the service may count for it until it is over.
    booked: Option<Box<prompt::Booked>>,
}

impl Default for RequestFlow {
    fn default() -> Self {
        let prompt = prompt::Gathered::Unread;
        Self { state: State::AwaitHead, turn: Turn::default(), prefill: None, prompt, booked: None }
    }
}

fn reference(session: Session) -> SessionRef {
    SessionRef { id: session.id, rank_hash: session.rank_hash }
}
