//! Why the state refused a command: codes, sentences and statuses of what callers get wrong.

use routing::id::{PoolName, WorkerId};

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
    /// The pool does not choose by prompts: nothing is booked there.
    #[error("pool {pool} is not kv_aware")]
    NotByPrompt {
        /// As asked.
        pool: PoolName,
    },
    /// Nothing is booked under that id, or not any more.
    #[error("no such reservation")]
    UnknownReservation,
    /// No slot, or not the named one, takes the request.
    #[error("it cannot be placed: {reason}")]
    NoPlace {
        /// The word of a route.
        reason: &'static str,
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
            Self::NotByPrompt { .. } => "not_kv_aware",
            Self::UnknownReservation => "unknown_reservation",
            Self::NoPlace { .. } => "no_place",
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
            Self::NotByPrompt { .. } => "The pool does not choose by prompts",
            Self::UnknownReservation => "No such reservation",
            Self::NoPlace { .. } => "No slot takes it",
            Self::UnknownSession { .. } => "No such session",
        }
    }

    /// HTTP status that fits: 404 for what is not there, 409 for what collides, 507 for what is full.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::UnknownWorker { .. }
            | Self::UnknownEndpoint { .. }
            | Self::UnknownRank { .. }
            | Self::UnknownSession { .. } => 404,
            Self::UnknownReservation | Self::NoPlace { reason: "worker_unknown" } => 404,
            Self::UnknownPool { .. }
            | Self::NotByPrompt { .. }
            | Self::NoPlace { reason: "rank_undeclared" } => 422,
            Self::NoPlace { reason: "overloaded" } => 429,
            Self::NoPlace { .. } => 503,
            Self::AddressTaken { .. } | Self::ClusterTaken { .. } | Self::HashTaken { .. } => 409,
            Self::TooManyWorkers { .. } | Self::TooManyPools { .. } => 507,
        }
    }
}
