//! Plays conversations: turn after turn, each with all that was said before, by one of several ways to a worker. Prints
//! nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use e2e::client::{Slot, send};
use e2e::{Client, World};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::text::{self, Conversation};

/// Conversations under way at once; the next one begins when one is through.
const AT_ONCE: usize = 5;
/// People think before they ask again.
const THINKING: Duration = Duration::from_millis(120);
/// Tokens of an answer.
const ANSWER_TOKENS: u32 = 24;

/// A way to a worker.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    clients: Arc<Vec<Client>>,
    next: Arc<AtomicUsize>,
    session: bool,
}

impl Route {
    /// Every turn by this client, without a session header.
    pub(crate) fn through(client: Client) -> Self {
        Self::in_turn(vec![client])
    }

    /// Each turn by the next client.
    pub(crate) fn in_turn(clients: Vec<Client>) -> Self {
        Self { clients: Arc::new(clients), next: Arc::default(), session: false }
    }

    /// With a session header.
    pub(crate) fn with_session(self) -> Self {
        Self { session: true, ..self }
    }

    fn client(&self) -> &Client {
        &self.clients[self.next.fetch_add(1, Ordering::Relaxed) % self.clients.len()]
    }
}

/// One answered turn.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) slot: Slot,
    pub(crate) prompt: u64,
    pub(crate) cached: u64,
    pub(crate) took: Duration,
    pub(crate) at: Instant,
}

/// One conversation to its end.
#[derive(Clone, Debug)]
pub(crate) struct Played {
    pub(crate) name: String,
    pub(crate) turns: Vec<Told>,
}

impl Played {
    /// Every turn was served where the first was.
    pub(crate) fn kept_its_slot(&self) -> bool {
        self.turns.len() == text::TURNS && self.turns.iter().all(|turn| turn.slot == self.turns[0].slot)
    }
}

/// The third worker's arrival.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Joining {
    /// From the answer to its declaration to its first turn; `None` when it got none.
    pub(crate) first_turn_after: Option<Duration>,
    /// Turns others were answered meanwhile.
    pub(crate) turns_meanwhile: usize,
}

/// All conversations through rankpin; the third worker is declared while the first of them run.
pub(crate) async fn rankpin(world: &World, route: Route) -> Result<(Vec<Played>, Joining)> {
    let conversations = tokio::spawn(async move { all('A', &route).await });
    tokio::time::sleep(THINKING * 2).await;
    let newcomer = world.engines.last().context("three engines")?;
    world.service.register(newcomer).await?;
    let declared = Instant::now();
    let played = conversations.await??;
    let turns = || played.iter().flat_map(|one| &one.turns);
    let began = |turn: &Told| turn.at.checked_duration_since(declared);
    let first = turns().filter(|turn| turn.slot.worker == newcomer.name()).filter_map(began).min();
    let meanwhile = |turn: &&Told| began(turn).is_some_and(|after| first.is_none_or(|first| after < first));
    let joining = Joining { first_turn_after: first, turns_meanwhile: turns().filter(meanwhile).count() };
    Ok((played, joining))
}

/// All conversations by one way. `book` makes its texts other than another way's, whose prefixes are cached by now.
pub(crate) async fn all(book: char, route: &Route) -> Result<Vec<Played>> {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = JoinSet::new();
    for (index, one) in text::conversations(book).into_iter().enumerate() {
        // The first ones do not all come at the same moment, so nor do those that follow them.
        let late = THINKING * u32::try_from(index.min(AT_ONCE)).unwrap_or(0);
        let (route, room) = (route.clone(), Arc::clone(&room));
        running.spawn(async move {
            tokio::time::sleep(late).await;
            let _place = room.acquire().await?; // fair: in the order of asking
            Ok::<_, anyhow::Error>((index, converse(&route, one).await?))
        });
    }
    let mut played = running.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;
    played.sort_by_key(|(index, _)| *index);
    Ok(played.into_iter().map(|(_, one)| one).collect())
}

async fn converse(route: &Route, conversation: Conversation) -> Result<Played> {
    let key = conversation.key();
    let mut messages = vec![json!({"role": "system", "content": conversation.system()})];
    let mut turns = Vec::with_capacity(text::TURNS);
    for turn in 0..text::TURNS {
        messages.push(json!({"role": "user", "content": conversation.question(turn)}));
        let (told, answer) = ask(route, &key, &Value::Array(messages.clone())).await?;
        messages.push(json!({"role": "assistant", "content": answer}));
        turns.push(told);
        tokio::time::sleep(THINKING).await;
    }
    Ok(Played { name: conversation.name(), turns })
}

async fn ask(route: &Route, key: &str, messages: &Value) -> Result<(Told, String)> {
    let session = route.session.then_some(key);
    let at = Instant::now();
    let turn = send(route.client().messages(session, messages, ANSWER_TOKENS)).await?;
    ensure!(turn.status == 200, "a turn got {}: {}", turn.status, String::from_utf8_lossy(&turn.body));
    let answer = turn.json()["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned();
    let slot = turn.slot().context("an answer that names no engine")?;
    let told =
        Told { slot, prompt: turn.prompt_tokens(), cached: turn.cached_tokens(), took: at.elapsed(), at };
    Ok((told, answer))
}
