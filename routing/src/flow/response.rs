//! Ids that engines give their answers (`/v1/responses`): learned from an answer's body, so that a later request which names one
//! comes to the session it belongs to.
//!
//! An id is kept as a hash, in the page of cached bindings and at the service. Only `rankpin-full.wasm` sees answers' bodies.

use super::{Effect, Env, Here, PageChange, RequestFlow, State, reference};
use crate::contract::Entry;
use crate::directory::{Directory, Pool};
use crate::engine::Surface;
use crate::hash;
use crate::header::http;
use crate::id::{PoolName, SessionId};
use crate::json::{Paths, Progress, Reader};
use crate::page::{self, Record};
use crate::session::{self, RequestView, Session};
use crate::vm::Vm;
use std::sync::Arc;

/// Most bytes of an answer that are looked at for its id: it stands in front.
pub const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// Where an answer, and the first event of a streamed one, have the id.
const IDS: [&str; 2] = ["/response/id", "/id"];
const STORED: &[u8] = b"/v1/responses/";

/// Looks for the id in one answer.
#[derive(Debug)]
pub(super) struct Watch {
    session: Session,
    pool: PoolName,
    scope: Vec<u8>,
    seen: usize,
    answer: Answer,
}

#[derive(Debug)]
enum Answer {
    /// Nothing but blanks so far.
    Unbegun,
    /// One JSON document.
    Whole(Box<Reader>),
    /// Events: the line that is being read.
    Events(Vec<u8>),
}

/// The id in `/v1/responses/ID` and `/v1/responses/ID/cancel`.
pub(super) fn in_path(path: &[u8]) -> Option<&[u8]> {
    let path = path.split(|b| *b == b'?').next()?;
    let at = path.windows(STORED.len()).position(|part| part == STORED)?;
    let id = path.get(at + STORED.len()..)?.split(|b| *b == b'/').next()?;
    // Paths of their own beside the stored answers.
    (!matches!(id, b"" | b"compact" | b"input_tokens")).then_some(id)
}

/// The pool of the worker that has a stored answer, where neither its request nor its path tells.
pub(super) fn pool_of<'a>(
    env: &Env<'_>,
    head: &impl super::Head,
    directory: &'a Directory,
) -> Option<&'a Pool> {
    let path = head.header(http::PATH)?;
    let scope = session::scope(&env.config.scope, head);
    let alias = hash::response_id(&env.config.hash_secret, &scope, in_path(&path)?);
    let session = resolve(env, head, alias)?;
    let page = head.page(page::page_of(session.id, env.config.page_count))?;
    let (_, worker) = directory.worker_by_hash(page::find(&page, session.id)?.worker_hash)?;
    directory.pools.get(worker.pool)
}

/// The session of an answer whose id was learned on this Envoy.
pub(super) fn resolve(env: &Env<'_>, head: &impl super::Head, alias: SessionId) -> Option<Session> {
    let page = head.page(page::page_of(alias, env.config.page_count))?;
    page::find(&page, alias)?.aliased()
}

/// Begins to watch the answer, where its id will be worth knowing.
pub(super) fn watch(
    env: &Env<'_>,
    here: Here<'_>,
    head: &impl RequestView,
    session: Session,
) -> Option<Watch> {
    (env.config.response_ids && here.turn.surface == Surface::Responses).then(|| Watch {
        session,
        pool: here.pool.name.clone(),
        scope: session::scope(&env.config.scope, head),
        seen: 0,
        answer: Answer::Unbegun,
    })
}

impl RequestFlow {
    /// Whether the answer's body is wanted: most answers pass unseen.
    #[must_use]
    pub fn wants_response_body(&self) -> bool {
        let State::Placed(placed) = &self.state else { return false };
        let begins = self.booked.as_ref().is_some_and(|booked| booked.awaits_first_byte());
        begins || placed.accepted && placed.response.is_some()
    }

    /// Bytes of the answer's body that were not shown before.
    pub fn response_body(&mut self, env: &mut Env<'_>, chunk: &[u8], end: bool, out: &mut Vec<Effect>) {
        let State::Placed(placed) = &mut self.state else { return };
        if let Some(booked) = self.booked.as_mut().filter(|_| !chunk.is_empty()) {
            booked.first_byte(env.vm);
        }
        let Some(watch) = &mut placed.response else { return };
        let found = watch.feed(chunk, end);
        if let Some(id) = &found {
            learn(env.config.hash_secret.as_slice(), watch, id, env.vm, Record::seconds(env.now), out);
        }
        if found.is_some() || end || watch.seen >= RESPONSE_BYTES_MAX {
            placed.response = None;
        }
    }
}

fn learn(secret: &[u8], watch: &Watch, id: &[u8], vm: &mut Vm, touched_s: u32, out: &mut Vec<Effect>) {
    let alias = hash::response_id(secret, &watch.scope, id);
    out.push(Effect::Page(PageChange::Put(Record::alias(alias, watch.session, touched_s))));
    let (session, pool) = (reference(watch.session), watch.pool.clone());
    vm.reports.push(Entry::Alias { alias, session, pool });
    // The next request of the chain may come to another Envoy at once.
    out.push(Effect::ReportNow);
}

impl Watch {
    fn feed(&mut self, chunk: &[u8], end: bool) -> Option<Vec<u8>> {
        let room = RESPONSE_BYTES_MAX.saturating_sub(self.seen);
        let chunk = chunk.get(..room).unwrap_or(chunk);
        self.seen += chunk.len();
        let last = end || self.seen >= RESPONSE_BYTES_MAX;
        if matches!(self.answer, Answer::Unbegun) {
            match chunk.iter().find(|b| !b.is_ascii_whitespace())? {
                b'{' => self.answer = Answer::Whole(Box::new(reader())),
                _ => self.answer = Answer::Events(Vec::new()),
            }
        }
        match &mut self.answer {
            Answer::Unbegun => None,
            Answer::Whole(reader) => {
                let whole = reader.feed(chunk) != Progress::More;
                (whole || last).then(|| id_of(std::mem::replace(reader, Box::new(self::reader())))).flatten()
            }
            Answer::Events(line) => events(line, chunk, last),
        }
    }
}

/// The id in the first event that has one. `last`: no more is looked at; an event that repeats a long prompt has its id in front.
fn events(line: &mut Vec<u8>, chunk: &[u8], last: bool) -> Option<Vec<u8>> {
    for part in chunk.split_inclusive(|b| *b == b'\n') {
        line.extend_from_slice(part);
        if !part.ends_with(b"\n") {
            break;
        }
        let found = in_line(&std::mem::take(line));
        if found.is_some() {
            return found;
        }
    }
    last.then(|| in_line(line)).flatten()
}

fn in_line(line: &[u8]) -> Option<Vec<u8>> {
    let mut reader = Box::new(reader());
    reader.feed(line.strip_prefix(b"data:")?);
    id_of(reader)
}

fn reader() -> Reader {
    let mut paths = Paths::default();
    for pointer in IDS {
        // Both are pointers.
        let _ = paths.add(pointer);
    }
    Reader::new(&Arc::new(paths))
}

fn id_of(reader: Box<Reader>) -> Option<Vec<u8>> {
    let fields = reader.so_far();
    IDS.iter().find_map(|pointer| fields.text(pointer)).map(<[u8]>::to_vec)
}
