//! The choice in process: the service's state alone, on one thread, by its CPU time.

use anyhow::{Result, anyhow, ensure};
use routing::block::{Chain, Namespace};
use routing::contract::{Caller, Entry, Report, RouteRequest};
use routing::id::{Epoch, PoolName, RequestId, WorkerId};
use routing::time::{Millis, Timestamp};
use state_service::config;
use state_service::declare;
use state_service::state::kv_event::{EngineHash, KvBatch, KvEvent, Tier};
use state_service::state::kv_stream::{Frame, Input};
use state_service::state::{Command, Reply, State, StateConfig};

use super::Found;
use crate::index::cpu_ns;
use crate::index::shape::{BLOCK_TOKENS, Draws, Step, Traffic};

/// Requests under way at any time.
const UNDER_WAY: u64 = 128;

/// A state with its one caller.
struct Fleet {
    state: State,
    caller: Caller,
    pool: PoolName,
    reports: u64,
    /// Of each worker's next batch.
    seqs: Vec<u64>,
}

/// Chooses, books and ends so many requests; CPU microseconds each, with and without the making of hashes from tokens.
///
/// # Errors
/// A worker is refused, or a request goes nowhere.
pub(super) fn measure(workers: u32, traffic: &Traffic, requests: u32, found: &mut Found) -> Result<()> {
    let mut fleet = Fleet::new(workers)?;
    traffic.steps.iter().for_each(|step| fleet.store(step));
    let (mut draws, mut hashing, mut choosing, mut overlaps) = (Draws::new(3), 0.0, 0.0, 0u64);
    for request in 0..u64::from(requests) {
        let ids = &traffic.prompts[draws.below(traffic.prompts.len() as u64) as usize];
        let began = cpu_ns();
        let chain = Chain::of(Namespace::default(), BLOCK_TOKENS, ids);
        let hashed = cpu_ns();
        overlaps += fleet.choose(request, chain, draws.below(u64::MAX))?;
        if let Some(over) = request.checked_sub(UNDER_WAY) {
            fleet.end(over);
        }
        hashing += hashed - began;
        choosing += cpu_ns() - hashed;
    }
    ensure!(overlaps > 0, "nothing was found cached");
    let each = |ns: f64| ns / 1000.0 / f64::from(requests);
    found.push((format!("select_cpu_us_{workers}"), each(hashing + choosing)));
    found.push((format!("select_hashes_cpu_us_{workers}"), each(choosing)));
    Ok(())
}

impl Fleet {
    fn new(workers: u32) -> Result<Self> {
        let config = br#"{"pools": [{"name": "default", "policy": "kv_aware", "affinity": "off"}]}"#;
        let config = config::parse(config).map_err(|faults| anyhow!("{faults}"))?;
        let caller = Caller { node: "bench".to_owned(), vm: Epoch(1) };
        let pool = PoolName::parse("default")?;
        let state = State::new(Epoch(1), StateConfig::new(config));
        let mut fleet = Self { state, caller, pool, reports: 0, seqs: vec![0; workers as usize] };
        for worker in 0..workers {
            let body = format!(r#"{{"endpoints": [{{"address": "w{worker}.test:1"}}]}}"#);
            let spec = declare::parse(body.as_bytes(), Some(name(worker).as_str()));
            let spec = spec.map_err(|faults| anyhow!("{faults}"))?;
            let reply = fleet.apply(Command::PutWorker { spec });
            ensure!(matches!(reply, Reply::Declared(_)), "{reply:?}");
        }
        Ok(fleet)
    }

    fn apply(&mut self, command: Command) -> Reply {
        self.state.apply(Timestamp(1), command, &mut Vec::new())
    }

    fn store(&mut self, step: &Step) {
        let stored = KvEvent::Stored {
            hashes: step.hashes.iter().copied().map(EngineHash).collect(),
            parent: step.parent.map(EngineHash),
            tokens: step.tokens.clone(),
            block_size: BLOCK_TOKENS,
            tier: Tier::Gpu,
            lora: None,
            salt: None,
            extra: 0,
            group: 0,
            kind_ok: true,
        };
        let seq = &mut self.seqs[step.worker as usize];
        let frame = Frame { seq: *seq, stamp: *seq, batch: KvBatch { events: vec![stored] } };
        *seq += 1;
        self.apply(Command::Kv { worker: name(step.worker), rank: 0, inputs: vec![Input::Live(frame)] });
    }

    /// Blocks that are cached where it goes.
    fn choose(&mut self, request: u64, chain: Chain, draw: u64) -> Result<u64> {
        let (caller, pool) = (self.caller.clone(), self.pool.clone());
        let request = RouteRequest::new(caller, RequestId(request), pool, Millis(250));
        let reply = self.apply(Command::Route { request, prompt: Some(Box::new(chain)), draw });
        let Reply::Route(reply) = reply else { return Err(anyhow!("{reply:?}")) };
        ensure!(reply.target.is_some(), "placed nowhere: {}", reply.reason);
        Ok(reply.overlap.map_or(0, |overlap| overlap.blocks.into()))
    }

    fn end(&mut self, request: u64) {
        self.reports += 1;
        let entries = vec![Entry::Ended { request: RequestId(request) }];
        let (caller, seq) = (self.caller.clone(), self.reports);
        let report = Report { caller, seq, in_flight: Vec::new(), entries, upstream_role_missing: 0 };
        self.apply(Command::Report(report));
    }
}

fn name(worker: u32) -> WorkerId {
    WorkerId::parse(&format!("w{worker:03}")).unwrap_or_else(|_| unreachable!("letters and digits"))
}
