//! What an operator declares about a worker: JSON in, [`WorkerSpec`] out, every fault at once with its path.
//!
//! Owns the fields, defaults and ranges of `PUT /v1/workers/ID`. Knows nothing of other workers (the state compares them),
//! of HTTP, of files, or of name resolution.

mod address;
mod fields;
mod json;
pub mod kv_events;
mod table;
#[cfg(test)]
mod tests;
mod unique;
mod url;

use address::ADDRESS_ALLOWED;
pub use address::{Address, AddressError, Host};
pub use fields::{Fault, Faults};
pub(crate) use fields::{Fields, document};
pub use table::fields;
pub(crate) use table::{integer, words};
pub use url::Told;

pub use routing::contract::Device;
use routing::contract::{Engine, RankIn, RankNumbering};
use routing::hash::Phase;
use routing::id::{PoolName, WorkerId};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What an id or a pool's name is made of.
pub(crate) const NAME_ALLOWED: &str = "1..=63 bytes of letters, digits, '-', '_', '.'";
/// Pool of a worker that names none.
pub const POOL_DEFAULT: &str = "default";
/// Most endpoints of one worker.
pub const ENDPOINTS_MAX: usize = 64;
/// Most ranks of one worker, over all its endpoints.
pub const RANKS_MAX: u32 = 1024;
/// Highest first rank: keeps every rank far from the end of `u32`.
pub const DP_START_MAX: u32 = 1 << 20;
/// Most models and most labels of one worker.
pub const TEXTS_MAX: usize = 64;
/// Longest model name, label value, SNI and CA path, in bytes.
pub const TEXT_BYTES_MAX: usize = 256;

/// Largest share in weighted choices.
pub const WEIGHT_MAX: u32 = 1000;
/// Longest engine version, in bytes.
pub const VERSION_BYTES_MAX: usize = 64;
/// Most tokens a block that an engine may tell.
pub const BLOCK_SIZE_MAX: u32 = 1 << 20;
/// Largest limit of requests in flight on one slot.
pub const IN_FLIGHT_LIMIT_MAX: u32 = 1_000_000;

/// A worker as declared. Stable across restarts of the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSpec {
    /// Its id.
    pub id: WorkerId,
    /// Its pool; `default` when not given.
    pub pool: PoolName,
    /// Model names it serves; empty: whatever the pool serves.
    pub models: Vec<String>,
    /// Its engine; decides how ranks are counted when an endpoint does not say.
    pub engine: Engine,
    /// Whether it was declared by its URL alone: then its engine is asked for ranks, version and block size, and what is here of them
    /// is what it told last.
    pub by_url: bool,
    /// Tokens a block of its cache, as its engine told; only of one that is asked.
    pub block_size: Option<u32>,
    /// 1..=[`ENDPOINTS_MAX`] addresses whose rank ranges join without gap or overlap.
    pub endpoints: Vec<EndpointSpec>,
    /// Share in weighted choices, 1..=1000, default 1.
    pub weight: u32,
    /// What it computes on.
    pub device: Device,
    /// Which half of a split pool it is.
    pub phase: Phase,
    /// Words of the operator that requests may ask for.
    pub labels: BTreeMap<String, String>,
    /// Version of its engine, as the engine writes it; absent: as new as any.
    pub engine_version: Option<String>,
    /// Where its engine reads a rank.
    pub rank_in: RankIn,
    /// Requests in flight from which on one of its slots counts as overloaded; absent: as its pool says.
    pub in_flight_limit: Option<u32>,
    /// Where its ranks publish what they cache.
    pub kv_events: kv_events::KvEvents,
}

/// One address of a worker and the ranks behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSpec {
    /// Where to dial.
    pub address: Address,
    /// How this endpoint counts ranks in the header.
    pub rank_numbering: RankNumbering,
    /// First global rank here, default 0.
    pub dp_start: u32,
    /// How many ranks, 1..=1024, default 1.
    pub dp_size: u32,
    /// TLS towards this endpoint; plain text when absent.
    pub tls: Option<Tls>,
}

/// TLS towards an endpoint, handed to Envoy as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// Name to ask for and to check.
    pub sni: Option<String>,
    /// Path of the CA file on Envoy's machine.
    pub ca: Option<String>,
}

impl WorkerSpec {
    /// Lowest global rank over all endpoints.
    #[must_use]
    pub fn rank_start(&self) -> u32 {
        self.endpoints.iter().map(|e| e.dp_start).min().unwrap_or(0)
    }

    /// Ranks over all endpoints; they are contiguous.
    #[must_use]
    pub fn rank_count(&self) -> u32 {
        self.endpoints.iter().map(|e| e.dp_size).sum()
    }

    /// The declaration as JSON with every field written out; [`parse`] reads it back unchanged.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json::worker(self)
    }

    /// The same for the file of declared workers, which an earlier version may have to read: without later fields that say nothing.
    #[must_use]
    pub fn to_saved(&self) -> Value {
        json::saved(self)
    }
}

/// Reads one declaration. `id` is the one in the request's path, which the body may repeat but not change.
///
/// # Errors
/// [`Faults`]: everything wrong with it, in the order of its fields; the caller answers 400 and changes nothing.
pub fn parse(body: &[u8], id: Option<&str>) -> Result<WorkerSpec, Faults> {
    let mut faults = Faults::default();
    let value = document(body, &mut faults);
    let spec = value.and_then(|value| worker(&value, "", id, &mut faults));
    faults.or(spec)
}

/// Reads one declaration at `path` of a larger document. `None` when it could not be made out; the faults say why.
pub(crate) fn worker(value: &Value, path: &str, id: Option<&str>, faults: &mut Faults) -> Option<WorkerSpec> {
    let mut fields = Fields::open(path, value, faults)?;
    let id = worker_id(&mut fields, id, faults);
    let pool = fields.parsed(faults, table::POOL.name(), NAME_ALLOWED, PoolName::parse);
    let pool = pool.or_else(|| PoolName::parse(POOL_DEFAULT).ok());
    let models = fields.texts(faults, table::MODELS.name(), TEXTS_MAX, TEXT_BYTES_MAX);
    let engine = fields.word(faults, &table::ENGINE, json::ENGINES);
    let url = fields.parsed(faults, table::URL.name(), url::URL_ALLOWED, url::parse);
    let block_size = fields.optional_number(faults, table::BLOCK_SIZE.name(), 1..=BLOCK_SIZE_MAX);
    let endpoints = match fields.has(table::URL.name()) {
        true => endpoint_of_url(&mut fields, url.as_ref(), engine, faults),
        false => endpoints(&mut fields, engine, faults),
    };
    let weight = fields.integer(faults, &table::WEIGHT);
    let device = fields.word(faults, &table::DEVICE, json::DEVICES);
    let phase = fields.word(faults, &table::PHASE, json::PHASES);
    let labels = fields.labels(faults, table::LABELS.name(), TEXTS_MAX, TEXT_BYTES_MAX);
    let engine_version = fields.short_text(faults, table::ENGINE_VERSION.name(), VERSION_BYTES_MAX);
    let rank_in = rank_in(&mut fields, engine, faults);
    let limits = 1..=IN_FLIGHT_LIMIT_MAX;
    let in_flight_limit = fields.optional_number(faults, table::IN_FLIGHT_LIMIT.name(), limits);
    let rank_end = endpoints.iter().map(|e| e.dp_start.saturating_add(e.dp_size)).max().unwrap_or(0);
    let kv_events = kv_events::parse(&mut fields, rank_end, faults);
    fields.close(faults);
    Some(WorkerSpec {
        id: id?,
        pool: pool?,
        models,
        engine,
        by_url: url.is_some(),
        // Left over in a PATCH that takes the URL away.
        block_size: block_size.filter(|_| url.is_some()),
        endpoints,
        weight,
        device,
        phase,
        labels,
        engine_version,
        rank_in,
        in_flight_limit,
        kv_events,
    })
}

fn rank_in(fields: &mut Fields<'_>, engine: Engine, faults: &mut Faults) -> RankIn {
    let stated = fields.word(faults, &table::RANK_IN, json::RANKS_IN);
    if stated == RankIn::Body && engine != Engine::Sglang {
        faults.add(
            &fields.at(table::RANK_IN.name()),
            "only sglang reads a rank in the body".to_owned(),
            "header",
        );
    }
    stated
}

fn worker_id(fields: &mut Fields<'_>, path_id: Option<&str>, faults: &mut Faults) -> Option<WorkerId> {
    let at = fields.at(table::ID.name());
    let stated = fields.text(faults, table::ID.name());
    if let (Some(stated), Some(path_id)) = (stated, path_id)
        && stated != path_id
    {
        faults.add(&at, format!("{stated:?} is not the id in the path"), path_id);
    }
    match path_id.or(stated) {
        None => {
            faults.add(&at, "is missing".to_owned(), NAME_ALLOWED);
            None
        }
        Some(text) => WorkerId::parse(text).map_err(|e| faults.add(&at, e.to_string(), NAME_ALLOWED)).ok(),
    }
}

fn endpoints(fields: &mut Fields<'_>, engine: Engine, faults: &mut Faults) -> Vec<EndpointSpec> {
    let at = fields.at("endpoints");
    let values = fields.list(faults, "endpoints", 1, ENDPOINTS_MAX);
    let read: Vec<Option<EndpointSpec>> = values
        .iter()
        .enumerate()
        .map(|(i, value)| endpoint(value, &format!("{at}[{i}]"), engine, faults))
        .collect();
    // A fault inside one endpoint is told already; comparing the rest would only add noise.
    let complete: Option<Vec<EndpointSpec>> = read.into_iter().collect();
    let Some(endpoints) = complete else { return Vec::new() };
    check_addresses(&at, &endpoints, faults);
    check_ranks(&at, &endpoints, faults);
    endpoints
}

/// The one endpoint of a worker that is asked; its ranks may be given too, as they were told earlier.
fn endpoint_of_url(
    fields: &mut Fields<'_>,
    url: Option<&Address>,
    engine: Engine,
    faults: &mut Faults,
) -> Vec<EndpointSpec> {
    let given = match fields.take("endpoints") {
        Some(_) => endpoints(fields, engine, faults),
        None => Vec::new(),
    };
    let Some(address) = url.cloned() else { return given };
    match given.as_slice() {
        [] => {}
        [one] if one.address == address && one.tls.is_none() => return given,
        _ => {
            let problem = "is not the address of the only endpoint given".to_owned();
            faults.add(&fields.at(table::URL.name()), problem, "a URL, or endpoints");
        }
    }
    vec![EndpointSpec { address, rank_numbering: numbering_of(engine), dp_start: 0, dp_size: 1, tls: None }]
}

fn endpoint(value: &Value, path: &str, engine: Engine, faults: &mut Faults) -> Option<EndpointSpec> {
    let mut fields = Fields::open(path, value, faults)?;
    let address = fields.required(faults, table::ADDRESS.name(), ADDRESS_ALLOWED, Address::parse);
    let rank_numbering = numbering(&mut fields, engine, faults);
    let dp_start = fields.integer(faults, &table::DP_START);
    let dp_size = fields.integer(faults, &table::DP_SIZE);
    if rank_numbering == RankNumbering::None && dp_size > 1 {
        let problem =
            format!("{dp_size} ranks behind one endpoint cannot be told apart without a rank header");
        faults.add(
            &fields.at(table::DP_SIZE.name()),
            problem,
            "1 when rank_numbering is none (the default of trtllm and custom)",
        );
    }
    let tls = tls(&mut fields, faults);
    fields.close(faults);
    Some(EndpointSpec { address: address?, rank_numbering, dp_start, dp_size, tls })
}

const fn numbering_of(engine: Engine) -> RankNumbering {
    match engine {
        Engine::Vllm | Engine::Sglang => RankNumbering::Global,
        Engine::Trtllm | Engine::Custom => RankNumbering::None,
    }
}

fn numbering(fields: &mut Fields<'_>, engine: Engine, faults: &mut Faults) -> RankNumbering {
    let stated =
        fields.choice_or(faults, table::RANK_NUMBERING.name(), json::NUMBERINGS, numbering_of(engine));
    if engine == Engine::Trtllm && stated != RankNumbering::None {
        faults.add(
            &fields.at(table::RANK_NUMBERING.name()),
            "trtllm takes no rank over HTTP".to_owned(),
            "none",
        );
    }
    stated
}

fn tls(fields: &mut Fields<'_>, faults: &mut Faults) -> Option<Tls> {
    let at = fields.at(table::TLS.name());
    let mut inner = Fields::open(&at, fields.take(table::TLS.name())?, faults)?;
    let sni = inner.short_text(faults, "sni", TEXT_BYTES_MAX);
    let ca = inner.short_text(faults, "ca", TEXT_BYTES_MAX);
    inner.close(faults);
    Some(Tls { sni, ca })
}

/// Envoy keys hosts by address, so one address is one slot.
fn check_addresses(at: &str, endpoints: &[EndpointSpec], faults: &mut Faults) {
    let mut seen = BTreeSet::new();
    for (i, endpoint) in endpoints.iter().enumerate() {
        if !seen.insert(&endpoint.address) {
            let problem = format!("{} is the address of an earlier endpoint", endpoint.address);
            faults.add(&format!("{at}[{i}].address"), problem, "each address once");
        }
    }
}

fn check_ranks(at: &str, endpoints: &[EndpointSpec], faults: &mut Faults) {
    let mut order: Vec<(usize, &EndpointSpec)> = endpoints.iter().enumerate().collect();
    order.sort_by_key(|(i, e)| (e.dp_start, *i));
    for pair in order.windows(2) {
        let [(_, before), (i, after)] = pair else { continue };
        let next = before.dp_start + before.dp_size;
        if after.dp_start != next {
            let word = if after.dp_start < next { "overlap" } else { "leave a gap after" };
            let problem = format!(
                "ranks {}..{} {word} ranks {}..{}",
                after.dp_start,
                after.dp_start + after.dp_size,
                before.dp_start,
                next
            );
            faults.add(&format!("{at}[{i}].dp_start"), problem, "ranges that join without gap or overlap");
        }
    }
    let total: u32 = endpoints.iter().map(|e| e.dp_size).sum();
    if total > RANKS_MAX {
        faults.add(at, format!("{total} ranks in all are too many"), "1..=1024 ranks a worker");
    }
}
