//! How things look in JSON answers of the control listener. Shapes only.

use crate::state::kv_stream::{Cause, Link, Trouble};
use crate::state::{Booked, Endpoint, KvView, SessionState, SessionView, SlotView, Worker};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use routing::contract::{PoolInfo, Target};
use routing::header::gauge::slot_in_flight;
use serde::Serialize;
use serde_json::{Value, json};

/// A JSON answer.
pub fn json(value: &impl Serialize) -> Response {
    // Our own types always serialise: no maps with other keys than text, no failing impls.
    let text = serde_json::to_vec(value).unwrap_or_default();
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// Where a rank is listened to: its event socket, and its replay socket if it has one.
pub type Sockets = (String, Option<String>);

/// A worker as it is; `declared` is what a PUT would take to declare it just so.
#[must_use]
pub fn worker(worker: &Worker) -> Value {
    json!({
        "id": worker.id(),
        "pool": worker.spec().pool,
        "state": worker.state(),
        "draining": worker.is_draining(),
        "in_flight": worker.in_flight(),
        "reserved": worker.reserved(),
        "waiting": worker.waiting(),
        "overloaded_slots": worker.overloaded_slots(),
        "endpoints": worker.endpoints().iter().map(endpoint).collect::<Vec<_>>(),
        "declared": worker.spec().to_json(),
    })
}

/// The same with its slots: there may be a thousand, so a list of workers goes without.
#[must_use]
pub fn worker_with_slots(
    worker: &Worker,
    view: impl Fn(&Target) -> SlotView,
    booked: impl Fn(&Target) -> Option<Booked>,
    kv: impl Fn(&Target) -> Option<(KvView, Option<Sockets>)>,
) -> Value {
    let slot = |(target, number): (Target, Option<u32>)| {
        slot(&target, number, (&view(&target), booked(&target)), kv(&target))
    };
    let all = worker.slots().filter_map(|(target, _)| booked(&target)).reduce(Booked::plus);
    let mut shown = self::worker(worker);
    if let Some(fields) = shown.as_object_mut() {
        fields.extend(all.map(|all| ("booked".to_owned(), self::booked(all))));
        fields.insert("slots".to_owned(), worker.slots().map(slot).collect());
    }
    shown
}

/// What the engine says is absent when it says nothing, or said it too long ago; so are its events when nobody listens.
fn slot(
    target: &Target,
    number: Option<u32>,
    (slot, booked): (&SlotView, Option<Booked>),
    kv: Option<(KvView, Option<Sockets>)>,
) -> Value {
    let usage = slot.gauges.and_then(|told| told.kv_permille);
    let mut shown = json!({
        "rank": target.rank,
        "in_flight": slot.in_flight,
        "load": slot.load,
        "running": slot.gauges.map(|told| told.running),
        "waiting": slot.gauges.map(|told| told.waiting),
        "kv_usage": usage.map(|permille| f64::from(permille) / 1000.0),
        "overloaded": slot.overloaded,
        "gauge": number.map(slot_in_flight),
    });
    if let (Some(booked), Some(fields)) = (booked, shown.as_object_mut()) {
        fields.insert("booked".to_owned(), self::booked(booked));
    }
    if let (Some((kv, sockets)), Some(fields)) = (kv, shown.as_object_mut()) {
        fields.insert("kv_events".to_owned(), kv_events(kv, sockets));
    }
    shown
}

/// How a rank's events do; `silent` says why nothing is heard although it serves, `trouble` why less may be known than it caches.
fn kv_events(kv: KvView, sockets: Option<Sockets>) -> Value {
    let [gpu, host, disk] = kv.blocks;
    let (endpoint, replay_endpoint) = sockets.unzip();
    json!({
        "link": link(kv.link),
        "endpoint": endpoint,
        "replay_endpoint": replay_endpoint.flatten(),
        "events": kv.events,
        "last_seq": kv.last_seq,
        "heard_ms_ago": kv.heard_ago,
        "cold": kv.cold,
        "silent": kv.silent.map(Cause::word),
        "trouble": kv.trouble.map(Trouble::word),
        "blocks": { "gpu": gpu, "host": host, "disk": disk },
    })
}

/// What requests that were placed with their prompt load it with until they are over.
fn booked(booked: Booked) -> Value {
    json!({
        "requests": booked.requests,
        "by_hosts": booked.by_hosts,
        "prefill_tokens": booked.prefill_tokens,
        "blocks": booked.blocks,
    })
}

const fn link(link: Link) -> &'static str {
    match link {
        Link::Off => "off",
        Link::NotPublished => "not_published",
        Link::Undiscovered => "undiscovered",
        Link::Connecting => "connecting",
        Link::Up => "up",
        Link::Pushed => "pushed",
    }
}

fn endpoint(endpoint: &Endpoint) -> Value {
    let note = endpoint
        .resolved
        .is_none()
        .then_some("the host name does not resolve: left out of endpoints steering");
    json!({"address": endpoint.spec.address.to_string(), "resolved": endpoint.resolved, "note": note})
}

/// A pool and how many workers it has.
#[must_use]
pub fn pool(pool: &PoolInfo, workers: usize) -> Value {
    json!({
        "name": pool.name,
        "policy": pool.policy,
        "affinity": pool.affinity,
        "ttl_s": pool.ttl_ms.0 / 1000,
        "device_ratio": pool.device_ratio,
        "rank": pool.rank,
        "rank_pick": pool.rank_pick,
        "soft_margin_percent": pool.soft_margin_percent,
        "on_overload": pool.on_overload,
        "wait_ms": pool.wait_ms,
        "on_all_overloaded": pool.on_all_overloaded,
        "in_flight_limit": pool.in_flight_limit,
        "models": pool.models,
        "workers": workers,
    })
}

/// A session.
#[must_use]
pub fn session(session: &SessionView) -> Value {
    let (state, owners) = match session.state {
        SessionState::Held { owners } => ("held", Some(owners)),
        SessionState::Bound => ("bound", None),
        SessionState::Released => ("released", None),
    };
    json!({
        "id": session.id,
        "rank_hash": session.rank_hash,
        "state": state,
        "owners": owners,
        "target": session.target,
        "version": session.version,
        "expires_in_ms": session.expires_in,
        "alias": session.alias,
    })
}
