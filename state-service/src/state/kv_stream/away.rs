//! How a rank's events reach us, and for how long what they said is believed in when they do not.
//!
//! A connection that is cut short costs nothing: the replay after it tells what was missed. One that stays away, or a source that is
//! given up, leaves the slot empty and cold: its engine may be another by then, or have no cache at all.

use super::{Effect, KvStream, ReplayFailure};
use routing::time::{Millis, Timestamp};

/// What a rank was heard to cache is believed in for so long while nothing connects us with it.
pub const LINK_AWAY_MAX: Millis = Millis(10_000);

/// How the rank's events reach us, as the shell last told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// Declared off.
    Off,
    /// The engine says that it publishes none.
    NotPublished,
    /// Where they are published is not known: the engine does not tell, or does not answer.
    #[default]
    Undiscovered,
    /// No connection.
    Connecting,
    /// Connected and subscribed.
    Up,
    /// Somebody pushes them over HTTP.
    Pushed,
}

/// Why a rank is known to cache less than it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Its blocks are of another size than most of its pool's, which cannot be compared.
    OtherBlockSize,
    /// Nothing connects us with it, for longer than [`LINK_AWAY_MAX`].
    LinkAway,
    /// Nothing accepts connections where it replays.
    ReplayUnreachable,
    /// Its replays break off, or say nothing in time.
    ReplayBroken,
}

impl Trouble {
    /// Stable word for APIs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::OtherBlockSize => "other_block_size",
            Self::LinkAway => "link_away",
            Self::ReplayUnreachable => "replay_unreachable",
            Self::ReplayBroken => "replay_broken",
        }
    }
}

/// What became of the replay asked for last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Replays {
    #[default]
    Unknown,
    Work,
    /// The publisher has no replay socket.
    None,
    Unreachable,
    Broken,
}

impl From<ReplayFailure> for Replays {
    fn from(failure: ReplayFailure) -> Self {
        match failure {
            ReplayFailure::Unavailable => Self::None,
            ReplayFailure::Unreachable => Self::Unreachable,
            ReplayFailure::Broken => Self::Broken,
        }
    }
}

/// The way events come.
#[derive(Debug, Default)]
pub(super) struct Way {
    link: Link,
    /// Nothing was heard since that a replay has confirmed.
    away: Option<Timestamp>,
    /// The source is given up: what still comes of it is not believed.
    closed: bool,
}

impl Way {
    pub(super) const fn is_closed(&self) -> bool {
        self.closed
    }

    /// A connection was made; whether anybody wants it.
    pub(super) fn open(&mut self) -> bool {
        self.closed &= self.link == Link::Off;
        !self.closed
    }

    const fn is_down(&self) -> bool {
        matches!(self.link, Link::Undiscovered | Link::Connecting)
    }

    fn is_long_away(&self, now: Timestamp) -> bool {
        self.is_down() && self.away.is_some_and(|since| now.since(since) >= LINK_AWAY_MAX)
    }
}

impl KvStream {
    pub(super) fn linked(&mut self, now: Timestamp, link: Link, out: &mut Vec<Effect>) {
        self.way.link = link;
        match link {
            Link::Off | Link::NotPublished => self.gone(out),
            Link::Undiscovered | Link::Connecting => {
                self.way.away.get_or_insert(now);
                // A link that comes and goes may be up at each tick.
                self.leave(now, out);
            }
            // What it is worth is known once its replay was answered.
            Link::Up => {}
            Link::Pushed => self.way = Way { link, ..Way::default() },
        }
    }

    /// The source is given up.
    pub(super) fn gone(&mut self, out: &mut Vec<Effect>) {
        if !self.way.closed {
            self.way.closed = true;
            self.replays = Replays::Unknown;
            self.newest_live = None;
            self.check_at = None;
            self.give_up(out);
        }
        self.way.away = None;
    }

    /// Nothing connects us with the source: it is believed for a while.
    pub(super) fn leave(&mut self, now: Timestamp, out: &mut Vec<Effect>) {
        if self.way.is_long_away(now) {
            self.give_up(out);
        }
    }

    fn give_up(&mut self, out: &mut Vec<Effect>) {
        self.asking = None;
        self.retry = super::Retry::default();
        if self.next.is_some() {
            self.go_cold(out);
        }
        // Of one that was never heard nothing is known either.
        self.cold = true;
    }

    /// A replay was answered, or will not be: the slot is what it can be.
    pub(super) fn replay_settled(&mut self, replays: Replays) {
        self.replays = replays;
        if !self.way.is_down() {
            self.way.away = None;
        }
    }

    /// Why the slot may hold less than the engine; `None` while nothing is wrong, or nothing is known to be.
    #[must_use]
    pub fn trouble(&self, now: Timestamp) -> Option<Trouble> {
        match self.replays {
            _ if self.way.is_long_away(now) => Some(Trouble::LinkAway),
            Replays::Unreachable => Some(Trouble::ReplayUnreachable),
            Replays::Broken => Some(Trouble::ReplayBroken),
            Replays::Unknown | Replays::Work | Replays::None => None,
        }
    }

    /// Whether something connects us with the source.
    #[must_use]
    pub const fn is_listened_to(&self) -> bool {
        !self.way.closed && !self.way.is_down()
    }

    pub(super) const fn replay_is_unreachable(&self) -> bool {
        matches!(self.replays, Replays::Unreachable)
    }
}
