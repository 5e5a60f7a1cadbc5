//! `/control/…`: what tests ask and order. No engine has these; no fault touches them.

use hyper::{Method, StatusCode};
use serde_json::json;

use crate::answer::{Answer, Refusal, json as json_answer, ok};
use crate::json::{Raw, object};
use crate::shared::Shared;

pub(crate) fn answer(shared: &Shared, method: &Method, path: &str, body: &[u8]) -> Answer {
    match (method.as_str(), path) {
        ("GET", "/control/requests") => ok(shared.log.listing()),
        ("POST", "/control/requests/clear") => {
            shared.log.clear();
            done()
        }
        ("GET", "/control/state") => ok(state(shared)),
        ("POST", "/control/gauges") => gauges(shared, body),
        ("DELETE", "/control/gauges") => {
            shared.gauges.clear();
            done()
        }
        ("GET", "/control/fault") => ok(standing(shared)),
        ("POST", "/control/fault") => order(shared, body),
        ("DELETE", "/control/fault") => {
            shared.faults.clear();
            done()
        }
        _ => Refusal::plain(StatusCode::NOT_FOUND).answer(),
    }
}

fn done() -> Answer {
    ok(object! { "ok": true })
}

fn order(shared: &Shared, body: &[u8]) -> Answer {
    let ordered = serde_json::from_slice(body)
        .map_err(|error| error.to_string())
        .and_then(|order| shared.faults.order(order));
    match ordered {
        Ok(()) => done(),
        Err(sentence) => json_answer(StatusCode::BAD_REQUEST, object! { "error": sentence }),
    }
}

fn gauges(shared: &Shared, body: &[u8]) -> Answer {
    let set = serde_json::from_slice(body)
        .map_err(|error| error.to_string())
        .and_then(|gauges| shared.gauges.set(gauges));
    match set {
        Ok(()) => done(),
        Err(sentence) => json_answer(StatusCode::BAD_REQUEST, object! { "error": sentence }),
    }
}

fn standing(shared: &Shared) -> Raw {
    let entry = |standing: crate::fault::Standing| {
        let order = standing.order;
        object! { "fault": order.fault, "times": order.times, "path": order.path }
    };
    object! { "faults": shared.faults.standing().into_iter().map(entry).collect::<Vec<_>>() }
}

fn state(shared: &Shared) -> Raw {
    let rank = |f: crate::ranks::RankFigures| {
        json!({
            "rank": f.rank, "running": f.running, "waiting": f.waiting, "cached_blocks": f.cached_blocks,
            "used_blocks": f.used_blocks, "queried_tokens": f.queried_tokens, "hit_tokens": f.hit_tokens,
            "generated_tokens": f.generated_tokens, "aborted": f.aborted,
        })
    };
    let ranks: Vec<_> = shared.ranks.figures().into_iter().map(rank).collect();
    object! { "name": shared.config.name, "in_flight": shared.in_flight(), "ranks": ranks }
}
