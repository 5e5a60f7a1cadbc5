//! The long poll: asks the state, and asks again at each change until there is an answer, the wait ends or the service stops.

use super::problem::Problem;
use super::show::json;
use crate::service::Service;
use axum::extract::{Query, State};
use axum::http::Uri;
use axum::response::Response;
use routing::contract::{WATCH_HOLD_MS_MAX, WatchQuery, WatchReply};
use routing::id::Cursor;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// Long polls held at once: one per Envoy is the rule. Above it they are refused and come again.
pub const WATCHERS_MAX: usize = 1024;

/// `GET /v1/watch`.
pub async fn watch(State(service): State<Arc<Service>>, uri: Uri) -> Result<Response, Problem> {
    let query = parse(&uri)?;
    if service.is_stopping() {
        return Err(Problem::busy("stopping", "the service is stopping"));
    }
    let Ok(_place) = service.watchers.try_acquire() else {
        return Err(Problem::busy("watchers_full", format!("{WATCHERS_MAX} long polls are waiting")));
    };
    Ok(json(&wait(&service, &query).await))
}

fn parse(uri: &Uri) -> Result<WatchQuery, Problem> {
    let query = Query::<WatchQuery>::try_from_uri(uri);
    query.map(|Query(query)| query).map_err(|e| Problem::malformed(e.body_text()))
}

async fn wait(service: &Service, query: &WatchQuery) -> WatchReply {
    let deadline = Instant::now() + Duration::from_millis(query.wait_ms.min(WATCH_HOLD_MS_MAX));
    let mut changes = service.changes();
    let mut stopping = service.stopping();
    loop {
        // Marked seen before asking: a change in between wakes us at once instead of being missed.
        changes.borrow_and_update();
        if let Some(news) = service.watch(query) {
            return news;
        }
        tokio::select! {
            _ = changes.changed() => {}
            _ = stopping.wait_for(|stopping| *stopping) => return nothing_new(service, query),
            () = sleep_until(deadline) => return nothing_new(service, query),
        }
    }
}

/// Had anything been lost or changed, the state would have answered: the caller's cursor still holds.
fn nothing_new(service: &Service, query: &WatchQuery) -> WatchReply {
    WatchReply {
        epoch: service.epoch,
        cursor: Cursor(query.after),
        salt: service.chance.draw(),
        gap: false,
        topology: None,
        fleet: None,
        moves: Vec::new(),
        upload: false,
    }
}
