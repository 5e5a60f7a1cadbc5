//! Turns of bound sessions without end, at several Envoys; whose Envoy dies goes to another one. What became of them is counted.

use e2e::client::Slot;
use e2e::{Client, World};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokio::task::JoinSet;

/// Clients that take their turns.
const CLIENTS: usize = 8;

/// A client of each Envoy; none of one that is dead.
type Doors = Mutex<Vec<Option<Client>>>;

/// Turns that go on until it ends.
pub(super) struct Load {
    over: Arc<AtomicBool>,
    doors: Arc<Doors>,
    clients: JoinSet<Done>,
}

/// What became of turns.
#[derive(Default)]
pub(super) struct Done {
    /// All that were answered.
    pub(super) turns: usize,
    /// Served where the session is not bound.
    pub(super) wrong: Vec<String>,
    /// Answered by an error, or not at all by an Envoy that lives.
    pub(super) failed: Vec<String>,
    /// Broken off by the death of their Envoy, and repeated at another.
    broken_off: usize,
    /// At another Envoy than usual.
    elsewhere: usize,
}

impl fmt::Display for Done {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { turns, wrong, failed, broken_off, elsewhere } = self;
        let few = |all: &[String]| format!("{} {:?}", all.len(), &all[..all.len().min(5)]);
        let (wrong, failed) = (few(wrong), few(failed));
        write!(
            out,
            "{turns} turns, {elsewhere} at another Envoy than usual; wrong {wrong}, failed {failed}, "
        )?;
        write!(out, "{broken_off} broken off with their Envoy and repeated")
    }
}

impl Load {
    /// Each session takes so many turns at least, all of them at one Envoy while that lives.
    pub(super) fn on(world: &World, homes: &BTreeMap<String, Slot>, rounds: usize) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let doors = super::clients(world).into_iter().map(Some).collect();
        let doors: Arc<Doors> = Arc::new(Mutex::new(doors));
        let mut clients = JoinSet::new();
        for nth in 0..CLIENTS {
            let own = homes.iter().skip(nth).step_by(CLIENTS).map(|(key, home)| (key.clone(), home.clone()));
            let (over, doors, own): (_, _, Vec<(String, Slot)>) =
                (Arc::clone(&over), Arc::clone(&doors), own.collect());
            clients.spawn(async move {
                let mut done = Done::default();
                while !over.load(Ordering::SeqCst) || done.turns < own.len() * rounds {
                    for (key, home) in &own {
                        done.turn(&doors, nth, key, home).await;
                    }
                }
                done
            });
        }
        Self { over, doors, clients }
    }

    /// An Envoy is about to die.
    pub(super) fn leaves(&self, envoy: usize) {
        self.doors.lock().unwrap()[envoy] = None;
    }

    /// It is there again.
    pub(super) fn returns(&self, envoy: usize, world: &World) {
        self.doors.lock().unwrap()[envoy] = Some(super::clients(world).remove(envoy));
    }

    /// What became of all turns.
    pub(super) async fn ends(self) -> Done {
        self.over.store(true, Ordering::SeqCst);
        let mut all = Done::default();
        for one in self.clients.join_all().await {
            all.turns += one.turns;
            all.wrong.extend(one.wrong);
            all.failed.extend(one.failed);
            all.broken_off += one.broken_off;
            all.elsewhere += one.elsewhere;
        }
        all
    }
}

impl Done {
    async fn turn(&mut self, doors: &Doors, nth: usize, key: &str, home: &Slot) {
        loop {
            let (envoy, client) = door(doors, nth);
            match client.chat(Some(key), "go on").await {
                Err(_) if doors.lock().unwrap()[envoy].is_none() => {
                    self.broken_off += 1;
                    continue;
                }
                Err(error) => self.failed.push(format!("{key}: {error:#}")),
                Ok(turn) if turn.status != 200 => self.failed.push(format!("{key}: {}", turn.status)),
                Ok(turn) if turn.slot().as_ref() != Some(home) => {
                    self.wrong.push(format!("{key}: {:?}, not {home}, by Envoy {envoy}", turn.slot()));
                }
                Ok(_) => {}
            }
            self.turns += 1;
            self.elsewhere += usize::from(envoy != nth % doors.lock().unwrap().len());
            return;
        }
    }
}

/// The Envoy of a client, or the next one that lives.
fn door(doors: &Doors, nth: usize) -> (usize, Client) {
    let doors = doors.lock().unwrap();
    let mut alive = (nth..nth + doors.len()).map(|at| at % doors.len());
    alive.find_map(|at| Some((at, doors[at].clone()?))).expect("an Envoy that lives")
}
