//! The service towards its replicas: claims before first answers, bindings applied and told, workers that others declared.

use super::{Service, done};
use crate::declare::{self, Faults, WorkerSpec};
use crate::http::problem::Problem;
use crate::metrics::Text;
use crate::replicas::{Replicas, Settled};
use crate::state::{Binding, Changes, Claiming, Command, Note, Outcome, Position, Proposal, Reply, Sharing};
use crate::store::{Claim, DECLARATION_BYTES_MAX, LAG_BUCKETS_MS, REASONS, Standing, StoreFigures};
use axum::http::StatusCode;
use routing::contract::{RouteReply, SessionRef};
use routing::id::{SessionId, Version, WorkerId};
use routing::time::Millis;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Longest that an answer waits for its claim: the caller's own deadline leaves time for the answer.
const CLAIM_WAIT_MAX: Millis = Millis(150);

impl Service {
    /// From now on it is one of several.
    pub fn join_replicas(&self, replicas: Arc<Replicas>) {
        // Set once, at the start.
        let _ = self.replicas.set(replicas);
    }

    /// What it shares with others, if it does.
    pub fn replicas(&self) -> Option<&Arc<Replicas>> {
        self.replicas.get()
    }

    /// What slots are loaded with, and whatever else only the state notes, is for the others to hear.
    pub(super) fn tell_loads(&self) {
        self.replicas().into_iter().for_each(|replicas| replicas.reported());
    }

    /// Makes an answer's holds known to all replicas before it goes out; where one of them is elsewhere by now, the question is to
    /// be asked again.
    pub(super) async fn settle(
        &self,
        sessions: [Option<SessionRef>; 2],
        reply: &RouteReply,
        deadline: Millis,
    ) -> Settled {
        let halves = [Some(reply), reply.prefill.as_deref()];
        let mut settled = Settled::AsAnswered;
        for (session, half) in sessions.into_iter().zip(halves) {
            let (Some(session), Some(half)) = (session, half) else { continue };
            if self.settle_half(session, half, deadline).await == Settled::Changed {
                settled = Settled::Changed;
            }
        }
        settled
    }

    async fn settle_half(&self, session: SessionRef, reply: &RouteReply, deadline: Millis) -> Settled {
        let Some(replicas) = self.replicas() else { return Settled::AsAnswered };
        let claiming = self.lock().claiming(session, reply);
        let proposal = match claiming {
            Claiming::Nothing => return Settled::AsAnswered,
            Claiming::Outdated => return Settled::Changed,
            Claiming::Propose(proposal) => proposal,
        };
        let Some(claimed) = replicas.propose(session, proposal) else { return Settled::AsAnswered };
        let wait = Millis(deadline.0 / 2).min(CLAIM_WAIT_MAX);
        match timeout(Duration::from_millis(wait.0), claimed).await {
            Ok(Ok(settled)) => settled,
            Ok(Err(_)) | Err(_) => Settled::AsAnswered,
        }
    }

    /// What the store says of a proposal. One that comes late counts all the same: who asks next is told of it.
    pub(crate) fn take_claim(&self, session: SessionRef, proposal: &Proposal, claim: Claim) -> Settled {
        let hold = proposal.hold;
        let (claim, changed) = match claim {
            Claim::Claimed(claim) => {
                let changed = claim.version != proposal.binding.version;
                (claim, changed)
            }
            Claim::Held(claim) => (claim, true),
            Claim::Bound(binding) => {
                let parked = self.apply_bindings(crate::replicas::STORE, vec![binding]) == [Outcome::Parked];
                // A hold that goes on leaves that very binding, or a newer one, which is no news here.
                let goes_on = !parked && self.lock().is_held(session.id, hold);
                return if goes_on { Settled::AsAnswered } else { Settled::Changed };
            }
            Claim::Unusable => return Settled::AsAnswered,
        };
        self.apply(Command::Claimed { session, hold, claim: Box::new(claim) });
        if changed { Settled::Changed } else { Settled::AsAnswered }
    }

    /// What is counted of the store, where there is one.
    pub(super) fn render_store(&self, text: &mut Text) {
        let Some(replicas) = self.replicas() else { return };
        let figures = replicas.figures();
        let up = u8::from(replicas.standing() == Standing::Up);
        text.single("rankpin_store_up", "gauge", "Whether the store can be asked.", up);
        for (name, help, count) in [
            ("calls", "Calls of the store, those that failed included.", figures.calls),
            ("commands", "Commands of the server that these took.", figures.commands),
            ("connects", "Connections to it.", figures.connects),
            ("foreign_records", "Records that another program wrote.", figures.foreign_records),
            ("unreadable", "Lines and declarations in it that are not ours to read.", figures.unreadable),
            ("entries", "Entries of its log that came.", figures.entries),
            ("gaps", "Times that its log did not reach back far enough.", figures.gaps),
            ("epoch_changes", "Times that it came back without its memory.", figures.epoch_changes),
            ("lost_writes", "Times that it came back without its last writes.", figures.lost_writes),
        ] {
            text.single(&format!("rankpin_store_{name}_total"), "counter", help, count);
        }
        text.family("rankpin_store_failures_total", "counter", "Calls that failed, by reason.");
        for (reason, count) in REASONS.iter().zip(figures.failures) {
            text.sample("rankpin_store_failures_total", &format!("reason=\"{reason}\""), count);
        }
        render_lag(text, &figures);
    }

    pub(crate) fn share(&self, sharing: Sharing) {
        self.apply(Command::Sharing(sharing));
    }

    /// Takes bindings of another writer.
    pub fn apply_bindings(&self, writer: u64, bindings: Vec<Binding>) -> Vec<Outcome> {
        match self.apply(Command::Apply { writer, bindings }) {
            Reply::Applied(outcomes) => outcomes,
            _ => Vec::new(),
        }
    }

    pub(crate) fn changed_bindings(&self, after: Position, not_of: u64, max: usize) -> Changes {
        let state = self.lock();
        state.changes(self.clock.now(), after, not_of, max)
    }

    pub(crate) fn position(&self) -> Position {
        self.lock().position()
    }

    pub(crate) fn bindings_from(&self, from: SessionId, max: usize) -> (Vec<Binding>, Option<SessionId>) {
        let state = self.lock();
        state.bindings_from(self.clock.now(), from, max)
    }

    pub(crate) fn claims(
        &self,
        from: SessionId,
        max: usize,
    ) -> (Vec<(SessionId, Version)>, Option<SessionId>) {
        self.lock().claims(from, max)
    }

    pub(crate) fn take_notes(&self) -> Vec<Note> {
        match self.apply(Command::TakeNotes) {
            Reply::Notes(notes) => notes,
            _ => Vec::new(),
        }
    }

    pub(crate) fn hear(&self, note: Note) {
        self.apply(Command::Note(Box::new(note)));
    }

    /// A worker's declaration as others may read it; `None`: it is not declared, or by this replica's own config file.
    pub(crate) fn shared_declaration(&self, id: &WorkerId) -> Option<Value> {
        if self.config_workers.contains(id) {
            return None;
        }
        self.lock().worker(id).map(|worker| worker.spec().to_json())
    }

    /// Whether other replicas could be told of a declaration.
    pub(super) fn fits_store(&self, spec: &WorkerSpec) -> Result<(), Problem> {
        let bytes = self.replicas().map_or(0, |_| spec.to_json().to_string().len());
        if bytes <= DECLARATION_BYTES_MAX {
            return Ok(());
        }
        let detail =
            format!("{bytes} bytes as other replicas would read it, at most {DECLARATION_BYTES_MAX}");
        Err(Problem::new(StatusCode::BAD_REQUEST, "worker_too_large", "The declaration is too large", detail))
    }

    pub(crate) fn number_declaration(&self, id: &WorkerId, generation: u64) {
        // It may be gone by now.
        self.apply(Command::Generation { worker: id.clone(), generation });
    }

    /// All declarations up to this number were read.
    pub(crate) fn declared_up_to(&self, generation: u64) {
        self.apply(Command::DeclaredUpTo { generation });
    }

    /// Another replica was told of a worker. What this one's config file says of it goes first.
    pub(crate) fn take_shared(&self, id: &WorkerId, declaration: &Value, generation: u64) {
        if self.config_workers.contains(id) {
            return;
        }
        let mut faults = Faults::default();
        let spec = declare::worker(declaration, "worker", Some(id.as_str()), &mut faults);
        let Some(spec) = spec.filter(|_| faults.list.is_empty()) else {
            tracing::error!(worker = %id, %faults, "another replica's declaration is not understood here");
            return;
        };
        match self.apply(Command::PutWorker { spec }) {
            Reply::Refused(error) => tracing::error!(worker = %id, %error, "a shared worker was refused"),
            _ => self.number_declaration(id, generation),
        }
    }

    /// Another replica was told that a worker is gone.
    pub(crate) fn forget_shared(&self, id: &WorkerId) {
        if !self.config_workers.contains(id) {
            // It may be gone already.
            self.apply(Command::RemoveWorker { id: id.clone() });
        }
    }

    /// Whether a worker drains here, and how long yet.
    pub(crate) fn drain_left(&self, id: &WorkerId) -> Option<Option<Millis>> {
        let state = self.lock();
        state.worker(id).and_then(|worker| worker.drain_left(self.clock.now()))
    }

    /// Another replica was told that a worker drains, or drains no more; false: it is not declared here.
    pub(crate) fn take_drain(&self, id: &WorkerId, drain: Option<Option<Millis>>) -> bool {
        let id = id.clone();
        let command = match drain {
            Some(deadline) => Command::DrainWorker { id, deadline },
            None => Command::ResumeWorker { id },
        };
        !matches!(self.apply(command), Reply::Refused(_))
    }

    /// The others hear that a worker drains, or drains no more, as soon as the store can be told.
    pub(super) fn share_drain(&self, id: WorkerId) {
        if let Some(replicas) = self.replicas() {
            replicas.drained(id);
        }
    }

    /// The declared worker is in the store when this returns.
    pub(super) async fn share_declaration(&self, id: &WorkerId) -> Result<(), Problem> {
        let Some(replicas) = self.replicas() else { return done(Reply::Done) };
        replicas.declared(id.clone());
        replicas.settle_declared(self).await.map_err(|error| {
            tracing::warn!(%error, "declared workers could not be shared");
            replicas.wake();
            let detail = "the change is in effect here, but the store did not take it: other replicas hear of it once it does";
            Problem::busy("store_away", detail)
        })
    }
}

/// How late changes of other replicas came.
fn render_lag(text: &mut Text, figures: &StoreFigures) {
    const NAME: &str = "rankpin_store_lag_seconds";
    text.family(
        NAME,
        "histogram",
        "From when another replica's change was in the store until it was read here.",
    );
    let mut below = 0;
    for (count, bound) in figures.lag.iter().zip(LAG_BUCKETS_MS) {
        below += count;
        text.sample(&format!("{NAME}_bucket"), &format!("le=\"{}\"", bound as f64 / 1000.0), below);
    }
    let all: u64 = figures.lag.iter().sum();
    text.sample(&format!("{NAME}_bucket"), "le=\"+Inf\"", all);
    text.sample(&format!("{NAME}_sum"), "", figures.lag_sum_ms as f64 / 1000.0);
    text.sample(&format!("{NAME}_count"), "", all);
}
