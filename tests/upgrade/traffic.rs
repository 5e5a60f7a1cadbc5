//! Steady conversations through whichever Envoys are in front: long ones, and short ones that begin and end all the time. Each keeps the
//! slot of its first turn, or is counted. Knows nothing of versions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use e2e::client::{CHAT, Client, MODEL, Slot, Turn, send};
use e2e::wait_for;
use serde_json::json;
use tokio::task::JoinHandle;

/// Conversations that never end, and players of such as end after [`SHORT_TURNS`].
pub(crate) const LONG: usize = 24;
const SHORT: usize = 8;
const SHORT_TURNS: u64 = 4;
/// Every so many turns one is streamed.
const STREAMED: u64 = 3;
/// Between two turns of a player: the check is of what is said, not of how fast.
const THINKS: Duration = Duration::from_millis(60);
/// Faults that are told in full.
const TOLD_MAX: usize = 5;

/// What was seen so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Answers by status; 0 is no whole answer.
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// Turns of conversations whose slot was known.
    pub(crate) later: u64,
    /// Of these, on another one.
    pub(crate) wrong: u64,
    /// The first faults, in words.
    pub(crate) told: Vec<String>,
    /// The slot of each conversation's first turn.
    pub(crate) slots: BTreeMap<String, Slot>,
}

/// Running traffic.
#[derive(Debug)]
pub(crate) struct Traffic {
    shared: Arc<Shared>,
    players: Vec<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    fronts: Mutex<Vec<Client>>,
    stopped: AtomicBool,
    turns: Vec<AtomicU64>,
    seen: Mutex<Seen>,
}

/// Key of the long conversation of that number.
pub(crate) fn long(nth: usize) -> String {
    format!("long-{nth}")
}

impl Traffic {
    /// Begins it through these Envoys.
    pub(crate) fn start(fronts: Vec<Client>) -> Self {
        let turns = (0..LONG + SHORT).map(|_| AtomicU64::new(0)).collect();
        let shared = Arc::new(Shared { fronts: Mutex::new(fronts), turns, ..Shared::default() });
        let players = (0..LONG + SHORT).map(|nth| tokio::spawn(play(Arc::clone(&shared), nth))).collect();
        Self { shared, players }
    }

    /// Turns go to these from now on, in turn: a conversation's next one to the next Envoy. Returns once none is under way elsewhere.
    pub(crate) async fn through(&self, fronts: Vec<Client>) -> Result<()> {
        *lock(&self.shared.fronts) = fronts;
        self.rounds(2).await
    }

    /// Until each player has made so many turns more.
    pub(crate) async fn rounds(&self, count: u64) -> Result<()> {
        let turns = || self.shared.turns.iter().map(|turns| turns.load(Ordering::SeqCst));
        let goal: Vec<u64> = turns().map(|made| made + count).collect();
        wait_for("each conversation to go on", async || {
            turns().zip(&goal).all(|(made, goal)| made >= *goal).then_some(())
        })
        .await
    }

    /// What was seen so far.
    pub(crate) fn seen(&self) -> Seen {
        lock(&self.shared.seen).clone()
    }

    /// Ends it; every turn under way is answered first.
    pub(crate) async fn stop(self) -> Seen {
        self.shared.stopped.store(true, Ordering::SeqCst);
        for player in self.players {
            // A player that panicked has told so.
            let _ = player.await;
        }
        lock(&self.shared.seen).clone()
    }
}

async fn play(shared: Arc<Shared>, nth: usize) {
    let Some(own) = shared.turns.get(nth) else { return };
    while !shared.stopped.load(Ordering::SeqCst) {
        let turn = own.load(Ordering::SeqCst);
        let key = match nth.checked_sub(LONG) {
            None => long(nth),
            Some(short) => format!("short-{short}-{}", turn / SHORT_TURNS),
        };
        let front = {
            let fronts = lock(&shared.fronts);
            let at = usize::try_from(turn).unwrap_or(0).wrapping_add(nth) % fronts.len().max(1);
            fronts.get(at).cloned()
        };
        if let Some(front) = front {
            let answer = ask(&front, &key, turn.is_multiple_of(STREAMED)).await;
            lock(&shared.seen).take(&key, answer);
        }
        own.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(THINKS).await;
    }
}

/// One turn.
pub(crate) async fn ask(front: &Client, key: &str, streamed: bool) -> Result<Turn> {
    let messages = json!([{"role": "user", "content": format!("Go on with {key}, please.")}]);
    let body = json!({"model": MODEL, "messages": messages, "max_tokens": 4, "stream": streamed});
    send(front.post(CHAT, Some(key), &body)).await
}

impl Seen {
    fn take(&mut self, key: &str, answer: Result<Turn>) {
        let turn = match answer {
            Ok(turn) => turn,
            Err(error) => {
                *self.statuses.entry(0).or_default() += 1;
                return self.tell(format!("{key}: {error:#}"));
            }
        };
        *self.statuses.entry(turn.status).or_default() += 1;
        let Some(slot) = turn.slot().filter(|_| turn.status == 200) else {
            return self.tell(format!(
                "{key}: status {}: {}",
                turn.status,
                String::from_utf8_lossy(&turn.body)
            ));
        };
        let Some(first) = self.slots.get(key) else {
            self.slots.insert(key.to_owned(), slot);
            return;
        };
        self.later += 1;
        if *first != slot {
            self.wrong += 1;
            let fault = format!("{key}: on {slot}, not on {first}");
            self.tell(fault);
        }
    }

    fn tell(&mut self, fault: String) {
        if self.told.len() < TOLD_MAX {
            self.told.push(fault);
        }
    }

    /// Answers of any status.
    pub(crate) fn turns(&self) -> u64 {
        self.statuses.values().sum()
    }

    /// Those that are no 200.
    pub(crate) fn refused(&self) -> u64 {
        self.statuses.iter().filter(|(status, _)| **status != 200).map(|(_, count)| count).sum()
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(worker: &str) -> Result<Turn> {
        let mut headers = reqwest::header::HeaderMap::new();
        headers.insert("x-engine-name", worker.parse()?);
        Ok(Turn { status: 200, headers, body: Vec::new() })
    }

    #[test]
    fn a_turn_elsewhere_and_an_answer_that_is_none_are_counted() {
        let mut seen = Seen::default();
        for (key, worker) in [("a", "w0"), ("a", "w0"), ("b", "w1"), ("a", "w1")] {
            seen.take(key, served(worker));
        }
        assert_eq!((seen.turns(), seen.later, seen.wrong, seen.refused()), (4, 2, 1, 0));
        seen.take("a", Err(anyhow::anyhow!("no answer")));
        let away = Turn { status: 503, headers: reqwest::header::HeaderMap::new(), body: Vec::new() };
        seen.take("a", Ok(away));
        assert_eq!((seen.turns(), seen.wrong, seen.refused(), seen.told.len()), (6, 1, 2, 3));
    }
}
