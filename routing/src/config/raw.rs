//! From JSON to [`FilterConfig`]. Reads every field, so that one bad field never hides the next.

use super::document::{Document, header_name, short};
use super::fields as field;
use super::{ConfigErrors, FilterConfig, NoTopology, PoolBy, PrefillHeaders, Steering, Trust, Watcher};
use crate::id::PoolName;
use crate::session::{self, Source, Sources, Subagents};
use crate::time::Millis;

pub(super) fn parse(text: &[u8]) -> Result<FilterConfig, ConfigErrors> {
    let mut document = Document::new(text);
    let read = &mut document;
    let (service_cluster, service_token) = service(read);
    let body = read.flag(&field::BODY);
    let list = sources(read, body);
    let subagents = read.word(&field::SUBAGENTS, [Subagents::Own, Subagents::Parent]);
    let pool_by = pool_by(read);
    let response_ids = read.flag(&field::RESPONSE_IDS);
    let config = FilterConfig {
        service_cluster,
        service_token,
        route_deadline: Millis(read.integer(&field::ROUTE_DEADLINE)),
        route_prompt_deadline: Millis(read.integer(&field::ROUTE_PROMPT_DEADLINE)),
        tick: Millis(read.integer(&field::TICK)),
        sources: Sources::new(list, subagents, &asked(&pool_by, response_ids)),
        scope: read.sources(&field::SCOPE, Source::parse_scope).unwrap_or_default(),
        body,
        prompt_bytes_max: size(read.integer(&field::PROMPT_BYTES_MAX)),
        body_wait: Millis(read.integer(&field::BODY_WAIT)),
        final_headers: read.headers(&field::FINAL_HEADERS),
        hash_secret: read.text(&field::HASH_SECRET).into_bytes(),
        pool_by,
        response_ids,
        steering: read.word(&field::STEERING, [Steering::Cluster, Steering::Endpoints]),
        trust: read.word(&field::TRUST, [Trust::Nobody, Trust::Callers]),
        served_header: read.flag(&field::SERVED_HEADER),
        prefill_headers: PrefillHeaders {
            host_port: read.header(&field::PREFILL_HOST_PORT),
            rank: read.header(&field::PREFILL_RANK),
        },
        on_no_topology: read.word(&field::ON_NO_TOPOLOGY, [NoTopology::PassThrough, NoTopology::Unavailable]),
        page_count: u32::try_from(read.integer(&field::PAGE_COUNT)).unwrap_or(u32::MAX),
        page_bytes: size(read.integer(&field::PAGE_BYTES)),
        watcher: read.word(&field::WATCH, [Watcher::Elected, Watcher::Singleton]),
    };
    document.finish(config)
}

/// The table's limits are far below what a `usize` holds.
fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn service(read: &mut Document) -> (String, Option<String>) {
    let cluster = read.text(&field::SERVICE_CLUSTER);
    if cluster.is_empty() {
        read.fault(&field::SERVICE_CLUSTER, "is empty", "the name of an Envoy cluster");
    }
    let token = read.text(&field::SERVICE_TOKEN);
    if !token.bytes().all(|b| b.is_ascii_graphic()) {
        read.fault(&field::SERVICE_TOKEN, "has a byte outside visible ASCII", "visible ASCII");
    }
    (cluster, (!token.is_empty()).then_some(token))
}

fn sources(read: &mut Document, body: bool) -> Vec<Source> {
    let given = read.sources(&field::SOURCES, Source::parse);
    if given.as_ref().is_some_and(Vec::is_empty) {
        const ALLOWED: &str = "at least one source, or leave the field out for the default list";
        read.fault(&field::SOURCES, "is empty", ALLOWED);
    }
    let mut list = given.unwrap_or_else(|| {
        let mut list = session::default_sources();
        list.extend(body.then(session::default_body_sources).unwrap_or_default());
        list
    });
    if read.flag(&field::FALLBACK) {
        list.push(Source::Prompt);
    }
    list
}

/// What else than keys is read from a body.
fn asked(pool_by: &PoolBy, response_ids: bool) -> Vec<&'static str> {
    let model = (*pool_by == PoolBy::Body).then_some(super::MODEL);
    model.into_iter().chain(response_ids.then_some(super::PREVIOUS_RESPONSE)).collect()
}

fn pool_by(read: &mut Document) -> PoolBy {
    let text = read.form(&field::POOL_BY);
    let parsed = match text.split_once(' ') {
        None if text.is_empty() => Ok(PoolBy::Only),
        None if text == "body" => Ok(PoolBy::Body),
        Some(("fixed", name)) => PoolName::parse(name.trim())
            .map(PoolBy::Fixed)
            .map_err(|error| format!("names a pool that {error}")),
        Some(("header", name)) => {
            header_name(name.trim()).map(PoolBy::Header).ok_or_else(|| "names no header".to_owned())
        }
        _ => Err(format!("is {}", short(&format!("{text:?}")))),
    };
    parsed.unwrap_or_else(|problem| {
        read.fault(&field::POOL_BY, &problem, field::POOL_BY_FORMS);
        PoolBy::Only
    })
}
