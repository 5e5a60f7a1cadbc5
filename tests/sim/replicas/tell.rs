//! What a replica tells the store: claims that ended, changed bindings newest first told once, all of them after a loss, and notes.
//!
//! Mirrors `state-service/src/replicas/tell.rs`.

use crate::faults::Fault;
use crate::planted::Bug;
use crate::replicas::Life;
use crate::replicas::link::{Answer, Ask, Failure, Wants};
use crate::world::{Event, World};
use routing::id::SessionId;
use state_service::state::{Command, Position, Reply, STORE};

const GATHER: u64 = 5;
const NOTES: u64 = 100;
const RETRY: u64 = 50;

/// Where the teller is.
#[derive(Debug, Default)]
pub(crate) struct Telling {
    step: Step,
    /// The round that is due; earlier ones are not.
    due: u64,
    woken: bool,
    /// All is told, from a position before it was begun to be read: what is left begins with a session.
    retelling: Option<(Position, Option<SessionId>)>,
    gathered: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Step {
    #[default]
    Idle,
    Unclaim,
    Retell {
        next: Option<SessionId>,
    },
    Changes {
        position: Position,
        notes: usize,
    },
}

impl World {
    pub(crate) fn wake_teller(&mut self) {
        let telling = &mut self.service.link.telling;
        if telling.step == Step::Idle && !telling.woken {
            telling.woken = true;
            self.tell_after(GATHER);
        }
        self.service.link.telling.woken = true;
    }

    fn tell_after(&mut self, ms: u64) {
        let (due, life) = (self.new_call(), self.service.life);
        self.service.link.telling.due = due;
        self.after(ms, Event::TellDue { life, due });
    }

    pub(crate) fn tell_due(&mut self, life: Life, due: u64) {
        let telling = &mut self.service.link.telling;
        if life != self.service.life || telling.due != due || telling.step != Step::Idle {
            return;
        }
        telling.woken = false;
        telling.gathered = false;
        if self.is_linked() {
            self.tell_on();
        } else {
            // Goes on as soon as there is a connection.
            self.tell_after(NOTES);
        }
    }

    fn tell(&mut self, step: Step, ask: Ask) {
        self.service.link.telling.step = step;
        self.ask_store(Wants::Tell, ask);
    }

    /// The next thing to tell.
    fn tell_on(&mut self) {
        if !self.service.link.over.is_empty() {
            let count = self.service.link.over.len().min(self.plan.shared.batch);
            let batch = self.service.link.over.drain(..count).collect();
            return self.tell(Step::Unclaim, Ask::Unclaim(batch));
        }
        let forgets = self.bug == Some(Bug::NothingIsRetold);
        if std::mem::take(&mut self.service.link.retell) && !forgets {
            self.fired.count(Fault::AllRetold);
            self.begin_retelling();
        }
        if let Some((position, from)) = self.service.link.telling.retelling {
            match from {
                Some(from) => return self.retell_page(from),
                None => self.service.link.position = position,
            }
            self.service.link.telling.retelling = None;
        }
        self.gather_notes();
        self.tell_changes();
    }

    fn begin_retelling(&mut self) {
        let position = self.service.state.position();
        self.service.link.telling.retelling = Some((position, Some(SessionId(0))));
    }

    fn retell_page(&mut self, from: SessionId) {
        let (bindings, next) =
            self.service.state.bindings_from(self.service_now(), from, self.plan.shared.batch);
        self.tell(Step::Retell { next }, Ask::Merge { bindings, notes: Vec::new() });
    }

    fn tell_changes(&mut self) {
        let (after, now) = (self.service.link.position, self.service_now());
        let changes = self.service.state.changes(now, after, STORE, self.plan.shared.batch);
        if changes.gap {
            self.fired.count(Fault::JournalGap);
            self.begin_retelling();
            return self.tell_on();
        }
        let notes: Vec<_> = self.service.link.notes.iter().take(256).cloned().collect();
        if !changes.bindings.is_empty() || !notes.is_empty() {
            let step = Step::Changes { position: changes.position, notes: notes.len() };
            return self.tell(step, Ask::Merge { bindings: changes.bindings, notes });
        }
        if changes.position == after {
            return self.told_all();
        }
        self.service.link.position = changes.position;
        self.tell_changes();
    }

    fn gather_notes(&mut self) {
        if std::mem::replace(&mut self.service.link.telling.gathered, true) {
            return;
        }
        if self.now.0 - self.service.link.noted < NOTES {
            return;
        }
        self.service.link.noted = self.now.0;
        if let Reply::Notes(notes) = self.apply(Command::TakeNotes) {
            self.service.link.notes.extend(notes);
        }
    }

    fn told_all(&mut self) {
        self.service.link.telling.step = Step::Idle;
        let pause = if self.service.link.telling.woken { GATHER } else { NOTES };
        self.tell_after(pause);
    }

    pub(crate) fn told_store(&mut self, answer: &Result<Answer, Failure>) {
        let link = &mut self.service.link;
        let step = std::mem::take(&mut link.telling.step);
        if answer.is_err() {
            link.retell |= link.telling.retelling.take().is_some();
            link.telling.woken = true;
            return self.tell_after(RETRY);
        }
        match step {
            Step::Retell { next } => {
                let retelling = link.telling.retelling.take();
                link.telling.retelling = retelling.map(|(position, _)| (position, next));
            }
            Step::Changes { position, notes } => {
                link.notes.drain(..notes);
                if position == std::mem::replace(&mut link.position, position) {
                    return self.told_all();
                }
            }
            Step::Idle | Step::Unclaim => {}
        }
        self.tell_on();
    }
}
