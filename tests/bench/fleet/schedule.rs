//! Who sends what when: users that play sessions of a trace one after the other, each turn at its time in the trace on a faster clock.
//! The same plan gives the same traffic to every fleet. Sends nothing.

use std::collections::HashSet;
use std::time::Duration;

use super::trace::{Block, Trace};

/// Between two sessions of a user, in seconds of the trace: as between two of its turns (the median).
const BETWEEN_S: f64 = 17.0;
/// Users begin within this share of the time.
const RAMP: f64 = 0.1;

/// How the trace is played.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Play {
    /// Sessions at once.
    pub(crate) users: usize,
    /// How many times faster than it was recorded.
    pub(crate) speed: f64,
    /// Seconds of ours.
    pub(crate) seconds: f64,
    /// A longer pause is cut to so many seconds of the trace.
    pub(crate) idle_max_s: f64,
    /// Which sessions come first.
    pub(crate) seed: u64,
}

/// A turn to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    /// Since the start.
    pub(crate) at: Duration,
    pub(crate) session: usize,
    /// How often this session was played before.
    pub(crate) pass: u32,
    pub(crate) turn: usize,
}

/// Each user's turns, in order.
pub(crate) fn schedule(trace: &Trace, play: &Play) -> Vec<Vec<Due>> {
    let order = shuffled(trace.sessions.len(), play.seed);
    (0..play.users).map(|user| turns_of(user, trace, play, &order)).collect()
}

fn turns_of(user: usize, trace: &Trace, play: &Play, order: &[usize]) -> Vec<Due> {
    let mut dues = Vec::new();
    let mut clock = play.seconds * RAMP * user as f64 / play.users as f64;
    for nth in (user..).step_by(play.users) {
        let (session, pass) = (order[nth % order.len()], (nth / order.len()) as u32);
        let mut before = 0.0;
        for (turn, asked) in trace.sessions[session].iter().enumerate() {
            clock += (asked.at - before).clamp(0.0, play.idle_max_s) / play.speed;
            before = asked.at;
            if clock >= play.seconds {
                return dues;
            }
            dues.push(Due { at: Duration::from_secs_f64(clock), session, pass, turn });
        }
        clock += BETWEEN_S / play.speed;
    }
    dues
}

/// Distinct blocks of all these turns, and blocks in all.
pub(crate) fn blocks(trace: &Trace, schedule: &[Vec<Due>]) -> (usize, usize) {
    let (mut distinct, mut all) = (HashSet::new(), 0);
    for due in schedule.iter().flatten() {
        let own: &[Block] = &trace.sessions[due.session][due.turn].blocks;
        all += own.len();
        distinct.extend(own.iter().map(|block| block.tokens(due.pass)));
    }
    (distinct.len(), all)
}

fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut keyed: Vec<(u64, usize)> = (0..count)
        .map(|nth| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state, nth)
        })
        .collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, nth)| nth).collect()
}

#[cfg(test)]
mod tests {
    use super::super::trace::Turn;
    use super::*;

    #[test]
    fn users_play_at_their_own_time_and_pauses_are_cut() {
        let turn = |at| Turn { at, blocks: Vec::new() };
        let trace = Trace { sessions: vec![vec![turn(0.0), turn(10.0), turn(5000.0)]] };
        let play = Play { users: 2, speed: 10.0, seconds: 10.0, idle_max_s: 50.0, seed: 1 };
        let all = schedule(&trace, &play);
        let first: Vec<_> = all[0].iter().map(|due| (due.at.as_secs_f64(), due.pass, due.turn)).collect();
        assert_eq!(first, [(0.0, 0, 0), (1.0, 0, 1), (6.0, 0, 2), (7.7, 2, 0), (8.7, 2, 1)]);
        assert_eq!((all[1][0].at.as_secs_f64(), all[1][0].pass), (0.5, 1));
    }
}
