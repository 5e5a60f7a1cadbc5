//! Reading everything, in pages of bounded size. The log's end is taken first: whoever follows from there misses nothing that was
//! written while the pages were read.

use super::connect::Connection;
use super::{BATCH_MAX, Store, StoreError, StreamId, record, reply, scripts};
use crate::state::Binding;
use redis::{Cmd, RedisResult, Value};
use routing::id::SessionId;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

/// Keys looked at in one step; other programs' keys count too.
const LOOK_AT: usize = 1000;

/// A reading that is under way.
pub struct Snapshot {
    store: Store,
    /// Follow from here once all pages are read.
    pub cursor: StreamId,
    epoch: Option<u64>,
    /// The server's place; `None`: all was looked at.
    place: Option<String>,
    found: VecDeque<SessionId>,
}

/// One page.
pub type Page = Vec<Binding>;

impl Store {
    /// Begins to read everything.
    ///
    /// # Errors
    /// Any of [`StoreError`].
    pub async fn snapshot(&self) -> Result<Snapshot, StoreError> {
        let cursor = self.tail().await?;
        let (epoch, place) = (self.inner.epochs.known(), Some("0".to_owned()));
        Ok(Snapshot { store: self.clone(), cursor, epoch, place, found: VecDeque::new() })
    }

    /// The place of the log's last entry.
    pub(super) async fn tail(&self) -> Result<StreamId, StoreError> {
        let config = &self.inner.config;
        let mut call = scripts::TAIL.prepare_invoke();
        call.key(&config.keys.epoch).key(&config.keys.log).arg(config.clock.argument());
        let (_, answers) = self.ask("tail", &call).await?;
        let last = answers.first().and_then(reply::text).and_then(StreamId::parse);
        last.ok_or_else(|| StoreError::answer("tail"))
    }

    async fn scan(&self, place: &str) -> Result<(String, Vec<SessionId>), StoreError> {
        let keys = &self.inner.config.keys;
        let mut command = Cmd::new();
        command.arg("SCAN").arg(place).arg("MATCH").arg(keys.sessions()).arg("COUNT").arg(LOOK_AT);
        self.inner.counters.commands.fetch_add(1, Relaxed);
        let ask = |mut connection: Connection| async move {
            let answer: RedisResult<Value> = connection.ask_node_of(&keys.log, command).await;
            answer
        };
        let answer = self.inner.calls.call("scan", self.inner.config.deadline, ask).await?;
        let read = || {
            let [next, names] = <[Value; 2]>::try_from(reply::list(answer)?).ok()?;
            let names = reply::list(names)?;
            let found = names.iter().filter_map(|name| keys.session_of(reply::text(name)?)).collect();
            Some((reply::text(&next)?.to_owned(), found))
        };
        read().ok_or_else(|| StoreError::answer("scan"))
    }

    /// The bindings of these sessions that are not over; at most [`BATCH_MAX`] sessions.
    ///
    /// # Errors
    /// Any of [`StoreError`].
    pub async fn read(&self, sessions: &[SessionId]) -> Result<Page, StoreError> {
        super::at_most("sessions", sessions.len(), BATCH_MAX)?;
        let config = &self.inner.config;
        let mut call = scripts::READ.prepare_invoke();
        call.key(&config.keys.epoch).arg(config.clock.argument());
        for session in sessions {
            call.key(config.keys.session(*session));
        }
        let (now, answers) = self.ask("read", &call).await?;
        let mut page = Page::new();
        for (session, answer) in sessions.iter().zip(&answers) {
            let text = reply::text(answer).ok_or_else(|| StoreError::answer("read"))?;
            if text == "-" {
                continue;
            }
            match text.strip_prefix('b').and_then(|text| record::read(*session, text, now)) {
                Some(binding) => page.push(binding),
                None => _ = self.inner.counters.unreadable.fetch_add(1, Relaxed),
            }
        }
        page.retain(|binding| binding.expires_in_ms.0 > 0);
        Ok(page)
    }
}

impl Snapshot {
    /// The next page, of at most [`BATCH_MAX`] bindings; `None`: that was all. A binding may come twice.
    ///
    /// # Errors
    /// Any of [`StoreError`]; [`StoreError::EpochChanged`]: begin anew. After any other the same page may be asked for again.
    pub async fn next(&mut self) -> Result<Option<Page>, StoreError> {
        while self.found.is_empty() {
            let Some(place) = &self.place else { return Ok(None) };
            let (next, found) = self.store.scan(place).await?;
            self.place = (next != "0").then_some(next);
            self.found.extend(found);
        }
        let count = self.found.len().min(BATCH_MAX);
        let sessions: Vec<SessionId> = self.found.iter().take(count).copied().collect();
        let page = self.store.read(&sessions).await?;
        if self.store.inner.epochs.known() != self.epoch {
            return Err(StoreError::EpochChanged);
        }
        self.found.drain(..count);
        Ok(Some(page))
    }
}
