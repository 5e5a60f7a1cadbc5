//! What a replica hears of the store: all of it first and after a gap, then what changes.
//!
//! Mirrors `state-service/src/replicas/hear.rs`.

use crate::faults::Fault;
use crate::planted::Bug;
use crate::replicas::Life;
use crate::replicas::link::{Answer, Ask, Failure, Wants};
use crate::replicas::model::Entry;
use crate::world::{Event, World};
use routing::id::SessionId;
use state_service::state::{Binding, Command, Outcome, Reply, STORE};

const RETRY: u64 = 50;

/// Where the hearer is.
#[derive(Debug, Default)]
pub(crate) struct Hearing {
    step: Step,
    pub(crate) waits_for_store: bool,
    /// The store's memory that was loaded last.
    life: Option<u64>,
    /// And that is followed.
    followed: Option<u64>,
}

#[derive(Clone, Debug, Default)]
enum Step {
    /// To be loaded.
    #[default]
    Begin,
    Loading {
        cursor: u64,
        left: Vec<SessionId>,
    },
    Following {
        cursor: u64,
    },
}

impl World {
    pub(crate) fn hear_on_if_waiting(&mut self) {
        if std::mem::take(&mut self.service.link.hearing.waits_for_store) {
            self.hear_on();
        }
    }

    pub(crate) fn hear_again(&mut self, life: Life) {
        if self.lives(life) {
            self.hear_on();
        }
    }

    fn hear_on(&mut self) {
        if !self.is_linked() {
            self.service.link.hearing.waits_for_store = true;
            return;
        }
        let hearing = &mut self.service.link.hearing;
        let ask = match &mut hearing.step {
            Step::Following { .. } if hearing.followed != self.service.link.memory => {
                hearing.step = Step::Begin;
                Ask::Snapshot
            }
            Step::Following { cursor } => Ask::Follow { cursor: *cursor },
            Step::Loading { left, .. } => {
                Ask::Read(left.split_off(left.len().saturating_sub(self.plan.shared.batch)))
            }
            Step::Begin => Ask::Snapshot,
        };
        self.ask_store(Wants::Hear, ask);
    }

    pub(crate) fn heard_store(&mut self, answer: Result<Answer, Failure>) {
        let life = self.service.life;
        let Ok(answer) = answer else {
            let hearing = &mut self.service.link.hearing;
            if !matches!(hearing.step, Step::Following { .. }) {
                hearing.step = Step::Begin;
            }
            return self.after(RETRY, Event::HearAgain { life });
        };
        match (answer, std::mem::take(&mut self.service.link.hearing.step)) {
            (Answer::Snapshot(cursor, left), _) => {
                self.fired.count(Fault::SnapshotRead);
                self.service.link.hearing.step = Step::Loading { cursor, left };
                self.loaded_if_all();
            }
            (Answer::Page(bindings), step) => {
                self.service.link.hearing.step = step;
                self.take_bindings(bindings);
                self.loaded_if_all();
            }
            (Answer::Followed(Some((entries, cursor))), _) => {
                self.service.link.hearing.step = Step::Following { cursor };
                self.take_entries(entries);
            }
            (Answer::Followed(None), Step::Following { .. }) => self.gap(),
            (answer, step) => {
                self.violate("the store answers what is asked", &format!("{step:?} {answer:?}"))
            }
        }
        self.hear_on();
    }

    fn gap(&mut self) {
        self.fired.count(Fault::LogGap);
        if self.bug == Some(Bug::GapsAreIgnored) {
            let (cursor, _) = self.store.sessions();
            self.service.link.hearing.step = Step::Following { cursor };
        }
    }

    /// The last page is in: from now on changes are followed.
    fn loaded_if_all(&mut self) {
        let link = &mut self.service.link;
        let Step::Loading { cursor, left } = &link.hearing.step else { return };
        if !left.is_empty() {
            return;
        }
        link.hearing.step = Step::Following { cursor: *cursor };
        let memory = link.memory;
        link.retell |= link.hearing.life.is_some_and(|before| memory != Some(before));
        link.hearing.life = memory.or(link.hearing.life);
        link.hearing.followed = memory;
        link.ready = true;
        self.wake_teller();
    }

    fn take_entries(&mut self, entries: Vec<Entry>) {
        let own = self.service.state.epoch().0;
        for entry in entries.into_iter().filter(|entry| entry.writer != own) {
            self.take_bindings(entry.bindings);
            for note in entry.notes {
                self.apply(Command::Note(Box::new(note)));
            }
        }
    }

    fn knows_slot(&self, binding: &Binding) -> bool {
        let Some(target) = &binding.target else { return true };
        let declared = self.service.declared.get(&target.worker);
        declared.is_some_and(|spec| {
            let ranks = spec.rank_start()..spec.rank_start() + spec.rank_count();
            target.rank.is_none_or(|rank| ranks.contains(&rank.0))
        })
    }

    pub(crate) fn take_bindings(&mut self, bindings: Vec<Binding>) -> Vec<Outcome> {
        let mut bindings = bindings;
        if self.bug == Some(Bug::UnknownSlotsAreIgnored) {
            bindings.retain(|binding| self.knows_slot(binding));
        }
        if bindings.is_empty() {
            return Vec::new();
        }
        let Reply::Applied(outcomes) = self.apply(Command::Apply { writer: STORE, bindings }) else {
            return Vec::new();
        };
        for outcome in &outcomes {
            self.fired.count(match outcome {
                Outcome::Inserted | Outcome::ReplacedNewer => Fault::BindingHeard,
                Outcome::Parked => Fault::BindingParked,
                _ => Fault::BindingHeardAgain,
            });
        }
        outcomes
    }
}
