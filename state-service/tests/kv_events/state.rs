//! Decoded events in the state: ranks and pools kept apart, changes of workers, and what an overlap then is.

use crate::samples::{recorded, synthetic_named};
use routing::block::{Chain, Namespace};
use routing::contract::Target;
use routing::id::{Epoch, PoolName, Rank, WorkerId};
use routing::time::Timestamp;
use serde_json::json;
use state_service::config::ServiceConfig;
use state_service::declare;
use state_service::kv_events::decode::decode;
use state_service::kv_events::skips::Skips;
use state_service::state::blocks::Overlaps;
use state_service::state::kv_event::KvEvent;
use state_service::state::kv_stream::{Attempt, Frame, Input, Link};
use state_service::state::{Command, Effect, Reply, State, StateConfig};

struct World {
    state: State,
    now: Timestamp,
    asked: Vec<(String, u32, Attempt, u64)>,
}

impl World {
    fn new() -> Self {
        let config = StateConfig::new(ServiceConfig::without_file());
        Self { state: State::new(Epoch(1), config), now: Timestamp(0), asked: Vec::new() }
    }

    fn apply(&mut self, command: Command) -> Reply {
        let mut effects = Vec::new();
        let reply = self.state.apply(self.now, command, &mut effects);
        for effect in effects {
            if let Effect::Replay { worker, rank, attempt, from } = effect {
                self.asked.push((worker.to_string(), rank, attempt, from));
            }
        }
        reply
    }

    fn declare(&mut self, id: &str, pool: &str, port: u16, ranks: u32) {
        let endpoint = json!({ "address": format!("10.0.0.1:{port}"), "dp_size": ranks });
        let body = json!({ "pool": pool, "endpoints": [endpoint] }).to_string();
        let spec = declare::parse(body.as_bytes(), Some(id)).unwrap();
        assert!(matches!(self.apply(Command::PutWorker { spec }), Reply::Declared(_)));
    }

    /// Live frames of a stream that was heard from its beginning.
    fn hear(&mut self, id: &str, rank: u32, payloads: &[Vec<u8>]) -> Reply {
        let frame = |(seq, payload): (u64, &Vec<u8>)| {
            let batch = decode(payload, &mut Skips::default()).batch;
            Input::Live(Frame { seq, stamp: seq, batch })
        };
        let inputs = (0..).zip(payloads).map(frame).collect();
        self.apply(Command::Kv { worker: worker(id), rank, inputs })
    }

    fn overlap(&self, id: &str, rank: Option<u32>, tokens: &[u32]) -> u32 {
        let pool = self.state.worker(&worker(id)).unwrap().spec().pool.clone();
        let Some(index) = self.state.kv_index(&pool) else { return 0 };
        let Some(slot) = self.state.kv_slot(&target(id, rank)) else { return 0 };
        let chain = Chain::of(Namespace::default(), index.block_size(), tokens);
        let mut overlaps = Overlaps::default();
        index.find(&chain.hashes, &mut overlaps);
        overlaps.of(slot).gpu
    }
}

fn worker(id: &str) -> WorkerId {
    WorkerId::parse(id).unwrap()
}

fn target(id: &str, rank: Option<u32>) -> Target {
    Target { worker: worker(id), rank: rank.map(Rank) }
}

fn payloads(file: &str, port: u64) -> Vec<Vec<u8>> {
    let of_port = recorded(file).into_iter().filter(|sample| sample.port == Some(port));
    of_port.map(|sample| sample.payload().to_vec()).collect()
}

const REAL: &str = "real_vllm0.32.0_dp2_int_hashes_topic_kv-events.jsonl";

/// The tokens of the first store of a recording.
fn first_tokens(payload: &[u8]) -> Vec<u32> {
    let batch = decode(payload, &mut Skips::default()).batch;
    let KvEvent::Stored { tokens, .. } = &batch.events[0] else { panic!() };
    tokens.clone()
}

#[test]
fn b8_a_real_engines_ranks_are_kept_apart() {
    let (zero, one) = (payloads(REAL, 5557), payloads(REAL, 5558));
    let mut world = World::new();
    world.declare("w0", "p", 8000, 2);
    assert_eq!(world.hear("w0", 0, &zero[..1]), Reply::Done);
    let tokens = first_tokens(&zero[0]);
    assert_eq!(tokens.len(), 64, "two blocks of 32");
    assert_eq!(world.overlap("w0", Some(0), &tokens), 2);
    assert_eq!(world.overlap("w0", Some(1), &tokens), 0);
    world.hear("w0", 1, &one);
    assert!(world.overlap("w0", Some(1), &first_tokens(&one[1])) > 0);
    // The reset of rank 0 is its own: what stands after it in the same batch is all there is.
    let held = |world: &World| world.state.kv_view(world.now, &target("w0", Some(0))).unwrap().blocks[0];
    world.hear("w0", 0, &zero[..7]);
    let before = held(&world);
    world.hear("w0", 0, &zero[..8]);
    let after = decode(&zero[7], &mut Skips::default()).batch.events;
    let [KvEvent::Cleared, KvEvent::Stored { hashes, .. }] = &after[..] else { panic!("{after:?}") };
    assert_eq!(held(&world), hashes.len());
    assert!(hashes.len() < before);
    assert!(world.overlap("w0", Some(1), &first_tokens(&one[1])) > 0);
}

#[test]
fn a_worker_with_one_rank_is_found_without_naming_it() {
    let zero = payloads(REAL, 5557);
    let mut world = World::new();
    world.declare("w0", "p", 8000, 1);
    world.hear("w0", 0, &zero[..1]);
    assert_eq!(world.overlap("w0", None, &first_tokens(&zero[0])), 2);
}

#[test]
fn ranks_that_are_not_declared_and_unknown_workers_are_refused() {
    let mut world = World::new();
    world.declare("w0", "p", 8000, 2);
    let tick = |id: &str, rank| Command::Kv { worker: worker(id), rank, inputs: vec![Input::Tick] };
    assert!(matches!(world.apply(tick("w0", 2)), Reply::Refused(error) if error.code() == "unknown_rank"));
    assert!(matches!(world.apply(tick("w1", 0)), Reply::Refused(error) if error.code() == "unknown_worker"));
}

#[test]
fn what_a_worker_held_goes_with_it() {
    let zero = payloads(REAL, 5557);
    let tokens = first_tokens(&zero[0]);
    let mut world = World::new();
    world.declare("w0", "p", 8000, 2);
    world.declare("w1", "p", 8001, 2);
    for id in ["w0", "w1"] {
        world.hear(id, 0, &zero[..1]);
    }
    world.apply(Command::RemoveWorker { id: worker("w0") });
    let resident = |world: &World| world.state.kv_sizes().map(|(_, resident, _)| resident).sum::<usize>();
    assert_eq!((world.overlap("w1", Some(0), &tokens), resident(&world)), (2, 2));
    // Another pool is another index; what the old one held is nobody's.
    world.declare("w1", "q", 8001, 2);
    assert_eq!((world.overlap("w1", Some(0), &tokens), resident(&world)), (0, 0));
    world.hear("w1", 0, &zero[..1]);
    assert_eq!(world.overlap("w1", Some(0), &tokens), 2);
    let pools: Vec<&PoolName> = world.state.kv_sizes().map(|(pool, _, _)| pool).collect();
    assert_eq!(pools, [&PoolName::parse("q").unwrap()]);
}

#[test]
fn a_gap_is_asked_of_that_rank_alone() {
    let mut world = World::new();
    world.declare("w0", "p", 8000, 4);
    let late = Frame { seq: 5, stamp: 5, batch: Default::default() };
    world.apply(Command::Kv { worker: worker("w0"), rank: 3, inputs: vec![Input::Live(late)] });
    assert_eq!(world.asked, [("w0".to_owned(), 3, Attempt(1), 0)]);
}

#[test]
fn e7_placeholders_tails_and_odd_counts_are_ignored_and_counted() {
    let mut world = World::new();
    world.declare("w0", "p", 8000, 1);
    let odd = ["edge/offload_placeholder", "edge/hash_count_mismatch", "edge/partial_block"];
    let mut batches = vec![payloads(REAL, 5557).remove(0)];
    batches.extend(odd.map(|name| synthetic_named(name).payload().to_vec()));
    world.hear("w0", 0, &batches);
    let (index, _) = world.state.kv_counts();
    assert_eq!(index.stored, 2, "the real ones");
    let ignored: u64 = index.ignored().iter().map(|(_, count)| count).sum();
    assert_eq!(ignored, 4, "1 + 2 + 1: {:?}", index.ignored());
}

/// A pool's first event may be a short tail, as SGLang's last pages are.
#[test]
fn a_short_tail_does_not_set_a_pools_block_size() {
    let mut world = World::new();
    world.declare("w0", "p", 8000, 1);
    let tail = synthetic_named("edge/page_size_1").payload().to_vec();
    let whole = payloads(REAL, 5557).remove(0);
    world.hear("w0", 0, &[tail, whole.clone()]);
    assert_eq!(world.state.kv_index(&PoolName::parse("p").unwrap()).unwrap().block_size(), 32);
    assert_eq!(world.overlap("w0", None, &first_tokens(&whole)), 2);
}

#[test]
fn e11_a_rank_that_serves_and_says_nothing_is_shown_with_its_cause() {
    let mut world = World::new();
    world.declare("w0", "p", 8000, 1);
    world.apply(Command::KvLink { worker: worker("w0"), rank: 0, link: Link::Undiscovered });
    let served = Command::Kv { worker: worker("w0"), rank: 0, inputs: vec![Input::Served(100)] };
    world.apply(served);
    world.now = Timestamp(60_000);
    let view = world.state.kv_view(world.now, &target("w0", None)).unwrap();
    assert_eq!(view.silent.map(|cause| cause.word()), Some("undiscovered"));
    assert_eq!(world.state.kv_silent(world.now), 1);
}
