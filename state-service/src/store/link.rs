//! One connection that is kept: whoever finds it gone fails at once, and a task makes it anew. Owns deadlines, the way from up to away
//! and back, and its pauses. Does not know what is asked.

use super::config::StoreConfig;
use super::connect::{Connection, connect};
use super::epoch::Epochs;
use super::error::{StoreError, ends_connection};
use super::figures::Counters;
use crate::chance::Chance;
use redis::RedisResult;
use routing::time::Millis;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// Pause after the first failed connection; doubled after each.
const PAUSE_FIRST_MS: u64 = 50;
/// Longest pause between two connections.
const PAUSE_MAX_MS: u64 = 2000;

/// Whether the store can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It answered last.
    Up,
    /// It cannot be asked now; calls fail at once.
    Away {
        /// Why.
        reason: String,
    },
}

/// A kept connection. Dropped, it is no more tried.
pub(super) struct Link {
    shared: Arc<Shared>,
    keeper: AbortHandle,
}

struct Shared {
    config: Arc<StoreConfig>,
    counters: Arc<Counters>,
    epochs: Arc<Epochs>,
    /// Longest that any answer over this link takes.
    patience: Millis,
    standing: watch::Sender<Standing>,
    current: Mutex<Current>,
    chance: Chance,
}

#[derive(Default)]
struct Current {
    /// Counts connections: what befell an older one says nothing about this one.
    number: u64,
    connection: Option<Connection>,
}

impl Link {
    /// Tries once, then goes on in the background. `longest` is the longest that an answer is waited for over this link; `beat`, how
    /// often it is looked at while it is up: a link on which others wait is not.
    pub(super) async fn open(
        config: &Arc<StoreConfig>,
        counters: &Arc<Counters>,
        epochs: &Arc<Epochs>,
        longest: Millis,
        beat: Option<Millis>,
    ) -> Self {
        let away = Standing::Away { reason: "not connected yet".to_owned() };
        let shared = Arc::new(Shared {
            config: Arc::clone(config),
            counters: Arc::clone(counters),
            epochs: Arc::clone(epochs),
            patience: longest,
            standing: watch::Sender::new(away),
            current: Mutex::default(),
            chance: Chance::from_system(),
        });
        shared.reconnect().await;
        let keeper = tokio::spawn(keep_connected(Arc::clone(&shared), beat)).abort_handle();
        Self { shared, keeper }
    }

    pub(super) fn standing(&self) -> watch::Receiver<Standing> {
        self.shared.standing.subscribe()
    }

    /// Asks within a deadline.
    pub(super) async fn call<T, F>(
        &self,
        call: &'static str,
        deadline: Millis,
        ask: impl FnOnce(Connection) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = RedisResult<T>>,
    {
        self.shared.counters.calls.fetch_add(1, Relaxed);
        let result = self.shared.call(call, deadline, ask).await;
        result.inspect_err(|error| self.shared.counters.failed(error))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl Shared {
    async fn call<T, F>(
        &self,
        call: &'static str,
        deadline: Millis,
        ask: impl FnOnce(Connection) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = RedisResult<T>>,
    {
        let (number, connection) = self.current()?;
        let answer = timeout(Duration::from_millis(deadline.0), ask(connection)).await;
        let Ok(answer) = answer else {
            let error = StoreError::Deadline { call, after_ms: deadline.0 };
            self.end(number, &error);
            return Err(error);
        };
        answer.map_err(|error| {
            let named = StoreError::of(call, &error);
            if ends_connection(&error) {
                self.end(number, &named);
            }
            named
        })
    }

    fn current(&self) -> Result<(u64, Connection), StoreError> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connection) = &current.connection {
            return Ok((current.number, connection.clone()));
        }
        match &*self.standing.borrow() {
            Standing::Away { reason } => Err(StoreError::Away { reason: reason.clone() }),
            Standing::Up => Err(StoreError::Away { reason: "the connection is being made".to_owned() }),
        }
    }

    /// A connection is of no use any more.
    fn end(&self, number: u64, why: &StoreError) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.number == number {
            current.connection = None;
            self.standing.send_replace(Standing::Away { reason: why.to_string() });
        }
    }

    /// One try; whether it is up now.
    async fn reconnect(&self) -> bool {
        let within = Duration::from_millis(self.config.connect.0);
        let made = timeout(within, self.connect()).await.unwrap_or_else(|_| {
            Err(StoreError::Deadline { call: "connect", after_ms: self.config.connect.0 })
        });
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        match made {
            Ok(connection) => {
                *current = Current { number: current.number + 1, connection: Some(connection) };
                self.counters.connects.fetch_add(1, Relaxed);
                self.standing.send_replace(Standing::Up);
                true
            }
            Err(error) => {
                self.counters.failed(&error);
                self.standing.send_replace(Standing::Away { reason: error.to_string() });
                false
            }
        }
    }

    /// Whether it is still there, with the memory it had. What is wrong is seen in the standing and in the epoch.
    async fn look(&self) {
        let ask = async |mut connection: Connection| self.epochs.ask(&self.config, &mut connection).await;
        if let Err(error) = self.call("beat", self.config.deadline, ask).await {
            self.counters.failed(&error);
        }
    }

    /// Connects and looks at the epoch: a store that lost its memory is known for one before anybody asks it anything.
    async fn connect(&self) -> Result<Connection, StoreError> {
        let named = |error| StoreError::of("connect", &error);
        let mut connection = connect(&self.config, self.patience).await.map_err(named)?;
        self.epochs.ask(&self.config, &mut connection).await.map_err(named)?;
        Ok(connection)
    }
}

async fn keep_connected(shared: Arc<Shared>, beat: Option<Millis>) {
    let mut standing = shared.standing.subscribe();
    let mut pause = PAUSE_FIRST_MS;
    loop {
        // The sender lives in `shared`: waiting cannot fail.
        let is_away = async { drop(standing.wait_for(|now| *now != Standing::Up).await) };
        let is_up = tokio::select! {
            () = is_away => false,
            () = pass(beat) => true,
        };
        if is_up {
            shared.look().await;
        } else if shared.reconnect().await {
            pause = PAUSE_FIRST_MS;
        } else {
            sleep(Duration::from_millis(shared.chance.jittered(pause).0)).await;
            pause = (pause * 2).min(PAUSE_MAX_MS);
        }
    }
}

async fn pass(beat: Option<Millis>) {
    match beat {
        Some(beat) => sleep(Duration::from_millis(beat.0)).await,
        None => std::future::pending().await,
    }
}
