//! Several pools behind one listener: which one a request belongs to, by the model it asks for, and what they serve together.
//!
//! Answers in OpenAI's shapes; names no worker and no pool.

use super::select::usual_pool;
use super::{Counter, Head, LocalReply};
use crate::config::{FilterConfig, MODEL, PoolBy};
use crate::demand::Demands;
use crate::directory::{Directory, Pool};
use crate::header::http;
use crate::id::PoolName;
use crate::json::BodyFields;
use crate::order;

/// Why a request belongs to no pool.
pub(super) enum NoPool {
    /// There is none yet.
    Unknown,
    /// It asks for no model, and there is no pool for such.
    NoModel,
    /// It is answered at once.
    Answered(LocalReply, Counter),
}

/// The pool of a request, and the model it asks for where the listener looks at it.
pub(super) fn pool<'a>(
    config: &FilterConfig,
    directory: &'a Directory,
    head: &impl Head,
    body: &BodyFields,
) -> Result<(&'a Pool, Option<String>), NoPool> {
    let by = match &config.pool_by {
        PoolBy::Only | PoolBy::Fixed(_) => None,
        PoolBy::Header(name) => Some(head.header(name).filter(|value| !value.trim_ascii().is_empty())),
        PoolBy::Body => Some(body.text(MODEL).map(<[u8]>::to_vec)),
    };
    let Some(asked) = by else { return Ok((usual_pool(config, directory).ok_or(NoPool::Unknown)?, None)) };
    // Where no pool says what it serves, only its engines can.
    if directory.pools.iter().any(|pool| !pool.models.is_empty()) && asks_for_list(head) {
        return Err(NoPool::Answered(list(directory), Counter::ModelsListed));
    }
    let Some(asked) = asked else {
        // As engines do: without a model the default one serves, if there is one.
        return usual_pool(config, directory).map(|pool| (pool, None)).ok_or(NoPool::NoModel);
    };
    let text = std::str::from_utf8(asked.trim_ascii()).unwrap_or_default();
    if let PoolBy::Header(_) = config.pool_by
        && let Some(pool) = PoolName::parse(text).ok().and_then(|name| directory.pool(Some(&name)))
    {
        return Ok((pool, None));
    }
    match directory.pool_of_model(text).filter(|pool| serves(directory, pool, text)) {
        Some(pool) => Ok((pool, Some(text.to_owned()))),
        None => Err(NoPool::Answered(LocalReply::model_unknown(), Counter::ModelUnknown)),
    }
}

/// Whether the pool serves a model that it lists only the base of: some worker has the adapter.
fn serves(directory: &Directory, pool: &Pool, model: &str) -> bool {
    let listed = pool.models.is_empty() || pool.models.iter().any(|one| one == model);
    let demands = Demands { model: Some(model.to_owned()), ..Demands::default() };
    let has = |at: &usize| directory.workers.get(*at).is_some_and(|w| demands.keeps(w.offer(None)));
    listed || pool.members.is_empty() || pool.members.iter().any(has)
}

fn asks_for_list(head: &impl Head) -> bool {
    let path = head.header(http::PATH).unwrap_or_default();
    let path = path.split(|b| *b == b'?').next().unwrap_or_default();
    matches!(path, b"/v1/models" | b"/v1/models/") && head.header(http::METHOD).as_deref() == Some(b"GET")
}

/// Every model of every pool, by name.
fn list(directory: &Directory) -> LocalReply {
    let names = directory.pools.iter().flat_map(|pool| &pool.models).collect();
    let names = order::by_text(names, |name: &&String| name);
    let entry = |name: &str| {
        let id = serde_json::to_string(name).unwrap_or_default();
        format!(r#"{{"id":{id},"object":"model","created":0,"owned_by":"rankpin"}}"#)
    };
    let data: Vec<String> = names.into_iter().map(|name| entry(name)).collect();
    LocalReply::ok(format!(r#"{{"object":"list","data":[{}]}}"#, data.join(",")))
}
