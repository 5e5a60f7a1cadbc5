//! What the shell may ask of the state, what it is answered, and what it is told to do.

use super::gauges::SlotGauges;
use super::kv_stream::{Attempt, Input, Link};
use crate::declare::{Address, Told, WorkerSpec};
use routing::block::Chain;
use routing::contract::{PageUpload, Report, RouteReply, RouteRequest, WatchQuery, WatchReply};
use routing::id::{PoolName, SessionId, WorkerId};
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
    /// A VM tells what happened.
    Report(Report),
    /// An Envoy uploads the bindings it has cached.
    Pages(PageUpload),
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
    /// The same is answered by an [`Effect::Answer`] of a later command.
    Later(Later),
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
    /// A question that waited is answered.
    Answer {
        /// As its [`Reply::Later`] said.
        ticket: Ticket,
        /// The answer.
        reply: Box<RouteReply>,
    },
}

/// Why a command was refused. Every one is the caller's fault; nothing changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// No such worker.
    #[error("worker {id} is not declared")]
    UnknownWorker {
        /// As asked.
        id: WorkerId,
    },
    /// The worker has no endpoint of that index.
    #[error("worker {worker} has no endpoint {endpoint}")]
    UnknownEndpoint {
        /// The worker.
        worker: WorkerId,
        /// As asked.
        endpoint: usize,
    },
    /// The worker does not declare that rank, or too many ranks have events already.
    #[error("worker {worker} has no rank {rank} whose events could be taken")]
    UnknownRank {
        /// The worker.
        worker: WorkerId,
        /// As asked.
        rank: u32,
    },
    /// The pool is not in the config file.
    #[error("pool {pool} is not in the config; declared pools: {declared}")]
    UnknownPool {
        /// As asked.
        pool: PoolName,
        /// Names, by comma.
        declared: String,
    },
    /// The fleet is full.
    #[error("{max} workers are declared already, no more are taken")]
    TooManyWorkers {
        /// The limit.
        max: usize,
    },
    /// Too many pools sprang up.
    #[error("there are {max} pools already, no more are taken")]
    TooManyPools {
        /// The limit.
        max: usize,
    },
    /// Envoy keys hosts by address, so one address is one slot.
    #[error("address {address} belongs to worker {worker}")]
    AddressTaken {
        /// The address.
        address: String,
        /// Who has it.
        worker: WorkerId,
    },
    /// `w.1` is what the second endpoint of `w` is called.
    #[error("Envoy cluster {cluster} belongs to worker {worker}; choose another id")]
    ClusterTaken {
        /// The cluster's name.
        cluster: String,
        /// Who has it.
        worker: WorkerId,
    },
    /// Two ids with one xxh3_64: bindings could not tell them apart.
    #[error("worker id {id} cannot be told from {other} in a binding; choose another id")]
    HashTaken {
        /// As asked.
        id: WorkerId,
        /// Who has it.
        other: WorkerId,
    },
    /// No such session, or only a memory of one.
    #[error("session {prefix}… is not bound")]
    UnknownSession {
        /// First eight hex digits.
        prefix: String,
    },
}

impl StateError {
    /// Stable code for API clients.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::UnknownWorker { .. } => "unknown_worker",
            Self::UnknownEndpoint { .. } => "unknown_endpoint",
            Self::UnknownRank { .. } => "unknown_rank",
            Self::UnknownPool { .. } => "unknown_pool",
            Self::TooManyWorkers { .. } => "too_many_workers",
            Self::TooManyPools { .. } => "too_many_pools",
            Self::AddressTaken { .. } => "address_taken",
            Self::ClusterTaken { .. } => "cluster_taken",
            Self::HashTaken { .. } => "worker_hash_taken",
            Self::UnknownSession { .. } => "unknown_session",
        }
    }

    /// The same in words, for people; the sentence of [`fmt::Display`](std::fmt::Display) names what it is about.
    #[must_use]
    pub const fn title(&self) -> &'static str {
        match self {
            Self::UnknownWorker { .. } => "No such worker",
            Self::UnknownEndpoint { .. } => "No such endpoint",
            Self::UnknownRank { .. } => "No such rank",
            Self::UnknownPool { .. } => "No such pool",
            Self::TooManyWorkers { .. } => "Too many workers",
            Self::TooManyPools { .. } => "Too many pools",
            Self::AddressTaken { .. } => "The address is taken",
            Self::ClusterTaken { .. } => "The cluster name is taken",
            Self::HashTaken { .. } => "The id cannot be told from another",
            Self::UnknownSession { .. } => "No such session",
        }
    }

    /// HTTP status that fits: 404 for what is not there, 409 for what collides, 507 for what is full.
    #[must_use]
    pub const fn status(&self) -> u16 {
        match self {
            Self::UnknownWorker { .. }
            | Self::UnknownEndpoint { .. }
            | Self::UnknownRank { .. }
            | Self::UnknownSession { .. } => 404,
            Self::UnknownPool { .. } => 422,
            Self::AddressTaken { .. } | Self::ClusterTaken { .. } | Self::HashTaken { .. } => 409,
            Self::TooManyWorkers { .. } | Self::TooManyPools { .. } => 507,
        }
    }
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
