//! A replica's connections to the store: made, given up, made again; and what it does by the clock while they last.

use crate::faults::Fault;
use crate::replicas::Life;
use crate::replicas::link::{Ask, Failure, Link, Wants};
use crate::service::Standing;
use crate::world::{Event, World};
use routing::id::SessionId;
use state_service::state::{Command, Sharing};

/// Pauses between two tries to connect.
const CONNECT: (u64, u64) = (50, 2000);
/// A store that is up is looked at this often.
const BEAT: u64 = 1000;
/// Claims are renewed this often.
const RENEW: u64 = 1666;
/// A replica that finds no store at its start serves after so long.
const START_APART: u64 = 10_000;

impl World {
    /// A replica begins to share.
    pub(crate) fn join_store(&mut self) {
        let cut = self.service.link.cut;
        self.service.link = Link { cut, ..Link::default() };
        self.apply(Command::Sharing(Sharing::Apart));
        let life = self.service.life;
        for waits in [false, true] {
            self.after(1, Event::Reconnect { life, waits, pause: CONNECT.0 });
        }
        self.after(RENEW, Event::RenewDue { life });
        self.after(BEAT, Event::BeatDue { life });
        self.after(START_APART, Event::ReadyAnyway { life });
        self.service.link.hearing.waits_for_store = true;
        self.wake_teller();
    }

    /// Whatever waits on it gets no answer; another one is made.
    pub(crate) fn lose_connection(&mut self, waits: bool) {
        let link = &mut self.service.link;
        let up = if waits { &mut link.waits_up } else { &mut link.calls_up };
        if !std::mem::replace(up, false) {
            return;
        }
        let life = self.service.life;
        self.after(CONNECT.0, Event::Reconnect { life, waits, pause: CONNECT.0 });
        if !waits {
            self.fired.count(Fault::ReplicaApart);
            self.apply(Command::Sharing(Sharing::Apart));
        }
        let of_it = |(call, (wants, on)): (&u64, &(Wants, bool))| (*on == waits).then_some((*call, *wants));
        let cut: Vec<_> = self.service.link.pending.iter().filter_map(of_it).collect();
        for (call, wants) in cut {
            self.service.link.pending.remove(&call);
            self.store_told(call, wants, Err(Failure::Lost));
        }
    }

    pub(crate) fn reconnect(&mut self, life: Life, waits: bool, pause: u64) {
        if !self.lives(life) || self.service.standing != Standing::Up {
            return;
        }
        if !self.is_store_there() {
            let pause = (pause * 2).min(CONNECT.1);
            return self.after(pause, Event::Reconnect { life, waits, pause });
        }
        let link = &mut self.service.link;
        *(if waits { &mut link.waits_up } else { &mut link.calls_up }) = true;
        if !waits {
            self.apply(Command::Sharing(Sharing::Together));
            self.ask_store(Wants::Nothing, Ask::Beat);
        }
        if self.is_linked() {
            self.hear_on_if_waiting();
            self.wake_teller();
        }
    }

    /// It looks at the store, so that one without its memory is known though nobody asks it.
    pub(crate) fn beat_due(&mut self, life: Life) {
        if !self.lives(life) {
            return;
        }
        if self.service.link.calls_up {
            self.ask_store(Wants::Nothing, Ask::Beat);
        }
        self.after(BEAT, Event::BeatDue { life });
    }

    pub(crate) fn renew_due(&mut self, life: Life) {
        if !self.lives(life) {
            return;
        }
        let (claims, _) = self.service.state.claims(SessionId(0), 256);
        if !claims.is_empty() {
            self.ask_store(Wants::Nothing, Ask::Renew(claims));
        }
        self.after(RENEW, Event::RenewDue { life });
    }

    pub(crate) fn ready_anyway(&mut self, life: Life) {
        if self.lives(life) && !std::mem::replace(&mut self.service.link.ready, true) {
            self.fired.count(Fault::ReadyWithoutStore);
            self.cost_all(crate::faults::Cost::Unshared);
        }
    }

    /// A connection is refused or reset: noticed at once.
    pub(crate) fn break_links(&mut self, replica: usize) {
        self.turn_to(replica);
        if self.service.standing == Standing::Up {
            self.lose_connection(false);
            self.lose_connection(true);
        }
    }
}
