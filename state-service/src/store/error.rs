//! Why a call of the store did not do what it should: a few reasons that a person can act upon, each counted. Owns how the client's
//! errors become these. Never has a password or a session in its text.

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Longest text of a server that is repeated, in bytes.
const REASON_BYTES_MAX: usize = 200;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Nothing was sent: there is no connection now; one is being made.
    #[error("the store is away: {reason}")]
    Away {
        /// Why the last connection ended or could not be made.
        reason: String,
    },
    /// No answer in time; what was asked may have been done, or not.
    #[error("the store did not answer `{call}` within {after_ms} ms")]
    Deadline {
        /// What was asked.
        call: &'static str,
        /// How long it was waited for.
        after_ms: u64,
    },
    /// The connection broke before the answer; what was asked may have been done, or not.
    #[error("the connection to the store broke during `{call}`: {reason}")]
    Lost {
        /// What was asked.
        call: &'static str,
        /// What the system said.
        reason: String,
    },
    /// The user or password is wrong, or the user may not do this.
    #[error("the store lets us not: {reason}; check user, password and ACL")]
    Denied {
        /// What the server said.
        reason: String,
    },
    /// Another program's data are under one of our names.
    #[error(
        "a key of the store holds what rankpin did not write: {reason}; use another key prefix or remove it"
    )]
    Foreign {
        /// What was found.
        reason: String,
    },
    /// The server refuses for now: out of memory, loading, a replica that may not be written.
    #[error("the store refused `{call}`: {reason}")]
    Refused {
        /// What was asked.
        call: &'static str,
        /// What the server said.
        reason: String,
    },
    /// The store lost its memory while it was read: read it again.
    #[error("the store came back without its memory while it was read")]
    EpochChanged,
    /// More than one call takes.
    #[error("{what}: {count}, at most {max}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// Given.
        count: usize,
        /// Allowed.
        max: usize,
    },
    /// What was given cannot be used.
    #[error("{0}")]
    Config(String),
}

/// Names of the reasons, as counted.
pub const REASONS: [&str; 9] =
    ["away", "deadline", "lost", "denied", "foreign", "refused", "epoch_changed", "too_many", "config"];

impl StoreError {
    /// Its place among [`REASONS`].
    #[must_use]
    pub const fn reason(&self) -> usize {
        match self {
            Self::Away { .. } => 0,
            Self::Deadline { .. } => 1,
            Self::Lost { .. } => 2,
            Self::Denied { .. } => 3,
            Self::Foreign { .. } => 4,
            Self::Refused { .. } => 5,
            Self::EpochChanged => 6,
            Self::TooMany { .. } => 7,
            Self::Config(_) => 8,
        }
    }

    /// What the client said about a call.
    pub(super) fn of(call: &'static str, error: &RedisError) -> Self {
        let reason = short(&error.to_string());
        let code = error.code().unwrap_or_default();
        if error.kind() == ErrorKind::AuthenticationFailed || is_denial(code, &reason) {
            return Self::Denied { reason };
        }
        if reason.contains("WRONGTYPE") || reason.contains("FOREIGN") {
            return Self::Foreign { reason };
        }
        match error.kind() {
            ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => Self::Lost { call, reason },
            ErrorKind::UnexpectedReturnType | ErrorKind::Parse => Self::Foreign { reason },
            _ => Self::Refused { call, reason },
        }
    }

    /// An answer that no script of ours gives.
    pub(super) fn answer(call: &'static str) -> Self {
        Self::Foreign { reason: format!("the answer to `{call}` is not of our script") }
    }
}

/// Whether the connection should be made anew: the server is not, or not any more, one that serves us.
pub(super) fn ends_connection(error: &RedisError) -> bool {
    let kind = error.kind();
    let moved = matches!(
        kind,
        ErrorKind::Server(
            ServerErrorKind::ReadOnly | ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown
        )
    );
    // In a script, a replica's refusal comes as an error of the script.
    moved || kind == ErrorKind::Io || error.is_unrecoverable_error() || error.to_string().contains("READONLY")
}

fn is_denial(code: &str, reason: &str) -> bool {
    ["NOAUTH", "WRONGPASS", "NOPERM"].iter().any(|word| code == *word || reason.contains(word))
}

fn short(text: &str) -> String {
    let mut end = text.len().min(REASON_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().replace(['\r', '\n'], " ")
}
