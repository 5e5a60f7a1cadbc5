//! Bindings for hosts that keep their own: a stream of what changes, a snapshot of all, and what a host applies.
//!
//! Owns how it looks on the wire. Who may follow, and from where, is `service/bindings.rs`'s.

mod read;

use super::body::DataBody;
use super::lines::{self, Source};
use super::problem::{Fault, Problem};
use super::show::json;
use crate::service::{Became, Cursor, Ended, Following, Reading, SNAPSHOT_PATH, Service};
use crate::state::{Binding, Outcome};
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use bytes::Bytes;
use read::Told;
use serde::{Deserialize, Serialize};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};

/// Most changes in one line of a stream, and most sessions in one page of a snapshot.
pub const LINE_BINDINGS_MAX: usize = 256;
/// A line without news after so long, so that a dead peer is seen.
pub const HEARTBEAT: Duration = Duration::from_secs(5);
/// How long changes are gathered into one line.
const GATHERING: Duration = Duration::from_millis(5);
/// The cursor is told at the latest after so many looks that found changes, but none for the host to hear.
const UNTOLD_MAX: usize = 16;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Follow {
    writer: String,
    #[serde(default)]
    after: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Whose {
    writer: Option<String>,
}

/// One line.
#[derive(Default, Serialize)]
struct Line<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    writer: Option<u64>,
    bindings: &'a [Binding],
    #[serde(skip_serializing_if = "Option::is_none")]
    closed: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<&'static str>,
    /// Of a whole snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
}

/// `GET /v1/bindings/stream?writer=ID&after=CURSOR`.
pub async fn stream(State(service): State<Arc<Service>>, uri: Uri) -> Result<Response, Problem> {
    let Query(Follow { writer, after }) =
        Query::<Follow>::try_from_uri(&uri).map_err(|e| Problem::malformed(e.body_text()))?;
    let writer = service.writer(host("writer", &writer)?);
    let after = match after {
        None => service.beginning(),
        Some(text) => Cursor::parse(&text).ok_or_else(|| {
            invalid("after", "is no cursor".to_owned(), "a cursor as a stream or a snapshot gave it")
        })?,
    };
    Ok(lines::answer(Stream { following: service.follow(writer, after)?, stage: Stage::Begin }))
}

/// `GET /v1/bindings/snapshot?writer=ID`.
pub async fn snapshot(State(service): State<Arc<Service>>, uri: Uri) -> Result<Response, Problem> {
    let Query(Whose { writer }) =
        Query::<Whose>::try_from_uri(&uri).map_err(|e| Problem::malformed(e.body_text()))?;
    let writer = match writer {
        Some(writer) => Some(service.writer(host("writer", &writer)?)),
        None => None,
    };
    let (cursor, reading) = service.snapshot()?;
    let first = Line { cursor: Some(cursor.to_string()), writer, ..Line::default() };
    Ok(lines::answer(Snapshot { first: Some(bytes(&first)), reading, total: 0, ended: false }))
}

/// One outcome of an apply.
#[derive(Serialize)]
struct Become {
    outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    known: Option<Binding>,
}

impl From<Became> for Become {
    fn from(became: Became) -> Self {
        let Became { outcome, reason, known } = became;
        Self { outcome, reason: reason.map(str::to_owned), known }
    }
}

/// Answer of `POST /v1/bindings/apply`.
#[derive(Serialize)]
struct Applied {
    writer: u64,
    outcomes: Vec<Become>,
}

/// `POST /v1/bindings/apply`.
pub async fn apply(
    State(service): State<Arc<Service>>,
    DataBody(body): DataBody,
) -> Result<Response, Problem> {
    let read::Asked { host, bindings } =
        read::body(&body).map_err(|fault| refused(fault).nothing_changed())?;
    let writer = service.writer(self::host("writer", &host).map_err(Problem::nothing_changed)?);
    let told: Vec<Told> = bindings.iter().map(|binding| read::binding(binding, writer)).collect();
    let good = told.iter().filter_map(|told| told.as_ref().ok()).cloned().collect();
    let mut applied = service.apply_of_host(writer, good)?.into_iter();
    let outcomes = told.into_iter().filter_map(|told| match told {
        Ok(_) => applied.next().map(Become::from),
        Err(reason) => Some(Become { outcome: Outcome::Rejected, reason: Some(reason), known: None }),
    });
    Ok(json(&Applied { writer, outcomes: outcomes.collect() }))
}

struct Stream {
    following: Following,
    stage: Stage,
}

enum Stage {
    Begin,
    Running,
    Over,
}

impl Stream {
    async fn line(&mut self) -> Option<Bytes> {
        match self.stage {
            Stage::Over => None,
            Stage::Begin => {
                self.stage = Stage::Running;
                Some(self.told(&[], Some(self.following.writer)))
            }
            Stage::Running => Some(self.news().await),
        }
    }

    /// Waits for news, or for a time without.
    async fn news(&mut self) -> Bytes {
        let heartbeat = Instant::now() + HEARTBEAT;
        let mut stopping = pin!(self.following.stopping());
        loop {
            if let Some(line) = self.read() {
                return line;
            }
            tokio::select! {
                () = self.following.changed() => {}
                () = stopping.as_mut() => return self.end(Ended::Stopping),
                () = sleep_until(heartbeat) => return self.told(&[], None),
            }
            sleep(GATHERING).await;
        }
    }

    /// What is there to tell now.
    fn read(&mut self) -> Option<Bytes> {
        for _ in 0..UNTOLD_MAX {
            let before = self.following.cursor();
            let changes = self.following.read(LINE_BINDINGS_MAX);
            if changes.gap {
                return Some(self.end(Ended::Gap));
            }
            if !changes.bindings.is_empty() {
                return Some(self.told(&changes.bindings, None));
            }
            if self.following.cursor() == before {
                return None;
            }
        }
        Some(self.told(&[], None))
    }

    fn told(&self, bindings: &[Binding], writer: Option<u64>) -> Bytes {
        let cursor = Some(self.following.cursor().to_string());
        bytes(&Line { cursor, writer, bindings, ..Line::default() })
    }

    fn end(&mut self, why: Ended) -> Bytes {
        self.stage = Stage::Over;
        self.following.end(why);
        let cursor = Some(self.following.cursor().to_string());
        let snapshot = (why == Ended::Gap).then_some(SNAPSHOT_PATH);
        bytes(&Line { cursor, closed: Some(why.word()), snapshot, ..Line::default() })
    }
}

impl Source for Stream {
    async fn next(mut self) -> (Self, Option<Bytes>) {
        let line = self.line().await;
        (self, line)
    }
    fn too_slow(&mut self) -> Bytes {
        self.end(Ended::Slow)
    }
}

struct Snapshot {
    first: Option<Bytes>,
    reading: Reading,
    total: u64,
    ended: bool,
}

impl Snapshot {
    fn page(&mut self) -> Bytes {
        if self.reading.is_stopping() {
            return self.end(Some(Ended::Stopping.word()));
        }
        match self.reading.page(LINE_BINDINGS_MAX) {
            Some(bindings) => {
                self.total += u64::try_from(bindings.len()).unwrap_or(u64::MAX);
                bytes(&Line { bindings: &bindings, ..Line::default() })
            }
            None => self.end(None),
        }
    }

    fn end(&mut self, closed: Option<&'static str>) -> Bytes {
        self.ended = true;
        let total = closed.is_none().then_some(self.total);
        bytes(&Line { closed, total, ..Line::default() })
    }
}

impl Source for Snapshot {
    async fn next(mut self) -> (Self, Option<Bytes>) {
        let first = self.first.take();
        let line = if self.ended { None } else { first.or_else(|| Some(self.page())) };
        (self, line)
    }
    fn too_slow(&mut self) -> Bytes {
        self.end(Some(Ended::Slow.word()))
    }
}

fn bytes(line: &Line<'_>) -> Bytes {
    // Our own types always serialise.
    let mut text = serde_json::to_vec(line).unwrap_or_default();
    text.push(b'\n');
    text.into()
}

/// Longest name of a host.
const HOST_BYTES_MAX: usize = 64;

fn host<'a>(path: &str, name: &'a str) -> Result<&'a str, Problem> {
    let good = (1..=HOST_BYTES_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
    let problem = || format!("{} bytes that name no host", name.len());
    if good { Ok(name) } else { Err(invalid(path, problem(), "1..=64 visible ASCII characters")) }
}

fn invalid(path: &str, problem: String, allowed: &str) -> Problem {
    refused(Fault { path: path.to_owned(), problem, allowed: allowed.to_owned() })
}

fn refused(fault: Fault) -> Problem {
    let title = "The request about bindings is not valid";
    Problem::new(StatusCode::BAD_REQUEST, "bindings_invalid", title, "1 fault").with_errors(vec![fault])
}
