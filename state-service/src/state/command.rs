//! What the shell may ask of the state, what it is answered, and what it is told to do.

use super::error::StateError;
use super::gauges::SlotGauges;
use super::kv_stream::{Attempt, Input, Link};
use super::replicated::{Binding, Outcome};
use super::shared::{Note, Sharing};
use crate::declare::{Address, Told, WorkerSpec};
use routing::block::Chain;
use routing::contract::{
    Overlap, PageUpload, Report, RouteReply, RouteRequest, SessionRef, Target, WatchQuery, WatchReply,
};
use routing::id::{HoldId, PoolName, SessionId, Version, WorkerId};
use routing::time::Millis;
use std::net::SocketAddr;

/// One thing for the state to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Declares a worker, or declares it anew. Declaring the same again changes nothing, a drain included.
    PutWorker {
        /// The declaration.
        spec: WorkerSpec,
    },
    /// What the engine of a worker that is declared by its URL told of itself. Of another worker it is ignored.
    Told {
        /// The worker.
        worker: WorkerId,
        /// Whom was asked.
        address: Address,
        /// What it told.
        told: Told,
    },
    /// Forgets a worker; its sessions re-bind on their next turn.
    RemoveWorker {
        /// Which.
        id: WorkerId,
    },
    /// The worker keeps its sessions and takes no new ones; at the deadline its sessions re-bind.
    DrainWorker {
        /// Which.
        id: WorkerId,
        /// From now; without one it drains until it is removed or resumed.
        deadline: Option<Millis>,
    },
    /// Ends a drain.
    ResumeWorker {
        /// Which.
        id: WorkerId,
    },
    /// What a host name of an endpoint resolves to now; `None`: it does not.
    Resolved {
        /// The worker.
        worker: WorkerId,
        /// Index of the endpoint in its declaration.
        endpoint: usize,
        /// Where to dial.
        address: Option<SocketAddr>,
    },
    /// One active probe of an endpoint ended.
    Probe {
        /// The worker.
        worker: WorkerId,
        /// Index of the endpoint in its declaration.
        endpoint: usize,
        /// What it found.
        healthy: bool,
    },
    /// What an endpoint's engine shows of itself.
    Gauges {
        /// The worker.
        worker: WorkerId,
        /// Index of the endpoint in its declaration.
        endpoint: usize,
        /// What it shows, slot by slot.
        slots: Vec<SlotGauges>,
        /// Ranks it shows that the endpoint does not declare.
        strays: usize,
    },
    /// What happened to the events of a rank, in order.
    Kv {
        /// The worker.
        worker: WorkerId,
        /// Its global rank.
        rank: u32,
        /// What happened.
        inputs: Vec<Input>,
    },
    /// How a rank's events reach us now.
    KvLink {
        /// The worker.
        worker: WorkerId,
        /// Its global rank.
        rank: u32,
        /// How.
        link: Link,
    },
    /// A request asks where it goes.
    Route {
        /// The question; its own prompt is not looked at.
        request: RouteRequest,
        /// The blocks of its prompt, where they are known; where they are not, at least how long it is.
        prompt: Option<Box<Chain>>,
        /// Uniformly random: breaks ties.
        draw: u64,
    },
    /// A host that dispatches itself asks where to, and books the load.
    Reserve(Box<Reserve>),
    /// The first byte of its answer came.
    ReservationPrefilled {
        /// Which.
        id: ReservationId,
    },
    /// It is over.
    ReleaseReservation {
        /// Which; one that is not there yet will not be booked.
        id: ReservationId,
    },
    /// A VM tells what happened.
    Report(Report),
    /// An Envoy uploads the bindings it has cached.
    Pages(PageUpload),
    /// The declaration of a worker has a number among all it ever had, the same for all replicas.
    Generation {
        /// The worker.
        worker: WorkerId,
        /// Its number, > 0.
        generation: u64,
    },
    /// Every declaration that all replicas know up to this number was told: a worker that is not declared now is gone.
    DeclaredUpTo {
        /// The number.
        generation: u64,
    },
    /// What another writer, a replica or a host, knows of sessions.
    Apply {
        /// Who: not 0. It is not told of its own changes.
        writer: u64,
        /// What.
        bindings: Vec<Binding>,
    },
    /// How the state stands with other replicas.
    Sharing(Sharing),
    /// All replicas know of a hold: here, under this version.
    Claimed {
        /// The session.
        session: SessionRef,
        /// The hold that was proposed.
        hold: HoldId,
        /// What they know.
        claim: Box<Binding>,
    },
    /// What should the other replicas hear?
    TakeNotes,
    /// What another replica heard.
    Note(Box<Note>),
    /// There was an earlier life: its traces are on disk.
    EarlierLife {
        /// Every worker it had is declared again by now.
        all_told: bool,
    },
    /// An Envoy asks what is new.
    Watch {
        /// The question.
        query: WatchQuery,
        /// Random: seeds the filter.
        salt: u64,
    },
    /// An operator ends a session by hand.
    ReleaseSession {
        /// Which.
        id: SessionId,
    },
    /// A node's xDS poll carried a `version_info` of another life of the service: it has what was served then, and so is
    /// taken to have what is declared now. Without this a restart of the service would hide every worker for a poll.
    NodeReturned {
        /// Envoy's `node.id`.
        node: String,
        /// What it polled.
        resource: XdsResource,
    },
    /// A node's xDS poll carried this `version_info` (0 when it had none).
    NodeAck {
        /// Envoy's `node.id`.
        node: String,
        /// What it polled.
        resource: XdsResource,
        /// The version it has applied.
        version: u64,
    },
    /// Whoever waited for this ticket's answer is gone.
    Leave {
        /// The ticket.
        ticket: Ticket,
    },
    /// The time of a [`Later`] is up.
    Due,
    /// Time passes; sent every 100 ms.
    Expire,
}

/// A reservation, by the hash of the id its host gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReservationId(pub u128);

/// A host asks for a slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Reserve {
    /// Names it from now on.
    pub id: ReservationId,
    /// The pool.
    pub pool: PoolName,
    /// The blocks of its prompt, or at least its length.
    pub prompt: Box<Chain>,
    /// This slot or none; its rank, where it names none, is the engine's to choose.
    pub named: Option<Target>,
    /// It ends by itself after so long.
    pub within: Millis,
    /// Uniformly random.
    pub draw: u64,
}

/// Where a host's request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The slot.
    pub target: Target,
    /// How much of the prompt it caches.
    pub overlap: Option<Overlap>,
    /// One word, as of a route.
    pub reason: String,
    /// Whether its load is booked: not if it was released before, or there are too many slots.
    pub booked: bool,
}

/// What an Envoy polls by xDS. Endpoints are polled pool by pool, each poll with a version of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum XdsResource {
    /// CDS: a cluster an endpoint of each worker.
    Cluster,
    /// EDS of `rankpin-pool-NAME`.
    Endpoint(PoolName),
}

/// Answer to a [`Command`].
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// It was done.
    Done,
    /// It was not, and nothing changed.
    Refused(StateError),
    /// Answer to [`Command::PutWorker`].
    Declared(Declared),
    /// Answer to [`Command::Route`].
    Route(RouteReply),
    /// Answer to [`Command::Reserve`].
    Reserved(Reserved),
    /// The same is answered by an [`Effect::Answer`] of a later command.
    Later(Later),
    /// Answer to [`Command::TakeNotes`].
    Notes(Vec<Note>),
    /// Answer to [`Command::Apply`]: one of each, in order.
    Applied(Vec<Outcome>),
    /// Answer to [`Command::Watch`]; `None`: nothing new yet, ask again on [`Effect::Changed`].
    Watch(Option<Box<WatchReply>>),
}

/// A question that waits: its answer will bear the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub(super) u64);

/// When a question will be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Later {
    /// Which.
    pub ticket: Ticket,
    /// At the latest after so long; a [`Command::Due`] is wanted then.
    pub within: Millis,
}

/// What a declaration did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    /// The worker is new.
    Created,
    /// It was known and is declared otherwise now.
    Replaced,
    /// It was declared just so.
    Unchanged,
}

/// Something for the shell to do. Emitted once a command at most, those about a worker once a worker, answers once each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Watchers may have something new: wake them.
    Changed,
    /// The declared workers changed: write them down.
    PersistWorkers,
    /// Resolve and probe this worker as declared now, from the start.
    WorkerUp(WorkerId),
    /// Stop resolving and probing this worker.
    WorkerGone(WorkerId),
    /// Connections to this worker fail: probe it at once, and often, until it is known to be good or down.
    ProbeNow(WorkerId),
    /// Ask a rank's publisher for the batches from a number on; what was asked for before is of no interest any more.
    Replay {
        /// The worker.
        worker: WorkerId,
        /// Its global rank.
        rank: u32,
        /// Bears the answers.
        attempt: Attempt,
        /// First number wanted.
        from: u64,
    },
    /// Records changed: the other replicas should hear of it.
    Recorded,
    /// Claims whose holds ended: nobody else need keep to them.
    ClaimsOver(Vec<(SessionId, Version)>),
    /// A question that waited is answered.
    Answer {
        /// As its [`Reply::Later`] said.
        ticket: Ticket,
        /// The answer.
        reply: Box<RouteReply>,
    },
}

/// Whether the service can place requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// At least one worker may be used.
    Ready,
    /// No worker is declared.
    NoWorker,
    /// Workers are declared, all are down.
    AllDown,
}
