//! Which rank a request asks for: where each engine in its version looks, what it ignores and what it refuses.
//! Written from the engines' own behaviour; does not know the router's table of the same.

use hyper::{HeaderMap, StatusCode};
use serde_json::Value;

use crate::answer::Refusal;
use crate::ask::Fields;
use crate::config::{Kind, Version};
use crate::rank_header::{self, RankAsk, python_int};
use crate::record::{Outcome, RANK_HEADER};
use crate::shared::Shared;

/// Headers TensorRT-LLM takes a conversation's id from, in its order.
const CONVERSATION_HEADERS: [&str; 4] =
    ["x-session-id", "x-correlation-id", "x-session-affinity", "x-multi-turn-session-id"];

/// SGLang's header over all others, from 0.5.15 on.
const OVERRIDE_HEADER: &str = "x-override-routed-dp-rank";

/// Endpoints that differ in whether and where they read a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Chat,
    Completions,
    Messages,
    Responses,
    /// SGLang's `/generate`.
    Native,
}

/// The rank asked for, counted from 0 inside the engine; `None` leaves it to the engine.
pub(crate) fn rank(
    shared: &Shared,
    endpoint: Endpoint,
    headers: &HeaderMap,
    fields: &Fields,
    outcome: &Outcome,
) -> Result<Option<usize>, Refusal> {
    match shared.config.kind {
        Kind::Vllm => vllm(shared, endpoint, headers),
        Kind::Sglang => sglang(shared, endpoint, headers, fields),
        Kind::Trtllm => Ok(trtllm(shared, headers, fields, outcome)),
    }
}

fn vllm(shared: &Shared, endpoint: Endpoint, headers: &HeaderMap) -> Result<Option<usize>, Refusal> {
    let since = match endpoint {
        Endpoint::Chat | Endpoint::Completions | Endpoint::Messages => Version(0, 11, 1),
        Endpoint::Responses => Version(0, 33, 0),
        Endpoint::Native => return Ok(None),
    };
    if shared.config.version < since {
        return Ok(None);
    }
    let value = headers.get(RANK_HEADER).map(|value| value.as_bytes());
    match rank_header::read(value, shared.config.first_header_rank(), shared.config.ranks) {
        RankAsk::Any => Ok(None),
        RankAsk::Rank(rank) => Ok(Some(rank)),
        RankAsk::OutOfRange(message) => Err(Refusal::bad_request(message, None)),
    }
}

/// The header where it is read, else the body where that is read.
fn sglang(
    shared: &Shared,
    endpoint: Endpoint,
    headers: &HeaderMap,
    fields: &Fields,
) -> Result<Option<usize>, Refusal> {
    let version = shared.config.version;
    let by_header = match endpoint {
        Endpoint::Chat | Endpoint::Completions | Endpoint::Messages => version >= Version(0, 5, 10),
        Endpoint::Responses => version >= Version(0, 5, 20),
        Endpoint::Native => false,
    };
    let by_body = match endpoint {
        Endpoint::Chat | Endpoint::Completions => version >= Version(0, 5, 7),
        Endpoint::Native => version >= Version(0, 4, 9),
        Endpoint::Messages | Endpoint::Responses => false,
    };
    let over = headers.get(OVERRIDE_HEADER).filter(|_| version >= Version(0, 5, 15));
    if let Some(value) = over.or_else(|| headers.get(RANK_HEADER).filter(|_| by_header)) {
        let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
        let number = python_int(value.as_bytes()).ok_or_else(|| not_an_integer(&text))?;
        return in_range(shared, &number);
    }
    match body_rank(version, fields).filter(|_| by_body) {
        Some(value) if value.is_i64() || value.is_u64() => in_range(shared, &value.to_string()),
        Some(_) => Err(Refusal::bad_request("routed_dp_rank: Input should be a valid integer", None)),
        None => Ok(None),
    }
}

/// The body's field: renamed in 0.5.10, where the old name is still understood.
pub(crate) fn body_rank(version: Version, fields: &Fields) -> Option<&Value> {
    let told = |name: &str| fields.get(name).filter(|value| !value.is_null());
    let new = told("routed_dp_rank").filter(|_| version >= Version(0, 5, 10));
    new.or_else(|| told("data_parallel_rank"))
}

fn not_an_integer(text: &str) -> Refusal {
    let message = format!("Invalid X-Data-Parallel-Rank header: must be an integer, got '{text}'");
    Refusal::new(StatusCode::BAD_REQUEST, "BadRequest", message)
}

fn in_range(shared: &Shared, number: &str) -> Result<Option<usize>, Refusal> {
    let ranks = shared.config.ranks;
    match number.parse::<usize>().ok().filter(|rank| *rank < ranks as usize) {
        Some(rank) => Ok(Some(rank)),
        None => {
            let message = format!("routed_dp_rank={number} out of range [0, {ranks})");
            Err(Refusal::new(StatusCode::BAD_REQUEST, "BadRequest", message))
        }
    }
}

/// A conversation always has the same rank; what has none goes anywhere.
fn trtllm(shared: &Shared, headers: &HeaderMap, fields: &Fields, outcome: &Outcome) -> Option<usize> {
    let conversation = conversation(headers, fields)?;
    let hash = conversation.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    outcome.conversation(conversation);
    usize::try_from(hash % u64::from(shared.config.ranks.max(1))).ok()
}

/// The conversation's id: in the body, else the first header that is not empty.
fn conversation(headers: &HeaderMap, fields: &Fields) -> Option<String> {
    let in_body = fields.get("conversation_params").and_then(|params| params.get("conversation_id"));
    let in_body = in_body.and_then(Value::as_str).map(str::to_owned);
    let in_header = |name: &&str| headers.get(*name)?.to_str().ok().map(str::to_owned);
    let in_headers = || CONVERSATION_HEADERS.iter().filter_map(in_header).find(|id| !id.is_empty());
    in_body.filter(|id| !id.is_empty()).or_else(in_headers)
}
