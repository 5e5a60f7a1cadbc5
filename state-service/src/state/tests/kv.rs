//! Choices by prompt: what events, bookings and expectations do to them, and that every booking ends.

use super::world::*;
use crate::config::{KvSettings, ServiceConfig};
use crate::state::kv_event::{EngineHash, KvBatch, KvEvent, Tier};
use crate::state::kv_stream::{Frame, Input};
use crate::state::{Command, Limits, SlotGauges, StateConfig};
use routing::block::{Chain, Namespace};
use routing::contract::*;
use routing::id::*;
use routing::policy::kv::Weights;
use routing::policy::mix;
use routing::time::{Millis, Timestamp};
use std::collections::BTreeMap;

const BLOCK: u32 = 16;

pub(super) struct Kv {
    pub(super) world: World,
    seqs: BTreeMap<(String, u32), u64>,
    pub(super) requests: u64,
}

impl Kv {
    /// Weighed as the worked example of the cost.
    pub(super) fn new(script: &str) -> Self {
        let settings = KvSettings { weights: Weights::default(), ..KvSettings::default() };
        Self::with(settings, |_| {}, script)
    }

    fn with(settings: KvSettings, set: impl FnOnce(&mut PoolInfo), script: &str) -> Self {
        let mut service = ServiceConfig::without_file();
        service.pools[0].policy = Policy::KvAware;
        set(&mut service.pools[0]);
        service.kv.insert(pool(), settings);
        let mut world = World::with(StateConfig { service, limits: Limits::SERVICE });
        world.play(script);
        Self { world, seqs: BTreeMap::new(), requests: 1000 }
    }

    /// The engine of a rank tells that it caches these tokens.
    fn caches(&mut self, worker: &str, rank: u32, tokens: &[u32]) {
        let hashes = (0..tokens.len() as u64 / u64::from(BLOCK)).map(|n| EngineHash(n + 1)).collect();
        self.tells(
            worker,
            rank,
            KvEvent::Stored {
                hashes,
                parent: None,
                tokens: tokens[..tokens.len() / BLOCK as usize * BLOCK as usize].to_vec(),
                block_size: BLOCK,
                tier: Tier::Gpu,
                lora: None,
                salt: None,
                extra: 0,
                group: 0,
                kind_ok: true,
            },
        );
    }

    fn tells(&mut self, worker: &str, rank: u32, event: KvEvent) {
        let seq = self.seqs.entry((worker.to_owned(), rank)).or_default();
        let frame = Frame { seq: *seq, stamp: *seq, batch: KvBatch { events: vec![event] } };
        *seq += 1;
        self.world.apply(Command::Kv { worker: worker_id(worker), rank, inputs: vec![Input::Live(frame)] });
    }

    pub(super) fn ask(&mut self, request: RouteRequest, tokens: &[u32]) -> RouteReply {
        let prompt = Some(Box::new(Chain::of(Namespace::default(), BLOCK, tokens)));
        let draw = mix(7, request.request.0);
        match self.world.apply(Command::Route { request, prompt, draw }) {
            crate::state::Reply::Route(reply) => reply,
            other => panic!("{other:?}"),
        }
    }

    /// A request without a session.
    pub(super) fn loose(&mut self, tokens: &[u32]) -> RouteReply {
        self.requests += 1;
        let request = RequestId(self.requests);
        self.ask(RouteRequest::new(caller("A"), request, pool(), Millis(250)), tokens)
    }

    pub(super) fn end(&mut self, request: u64) {
        self.world.report("A", vec![Entry::Ended { request: RequestId(request) }], Vec::new());
    }

    fn bookings(&self) -> usize {
        self.world.state.kv_booked()[0]
    }

    fn count(&self, word: &str) -> u64 {
        self.world.state.kv_bookings().find(|(name, _)| *name == word).unwrap().1
    }

    fn wait(&mut self, ms: u64) {
        self.world.now += Millis(ms);
        self.world.apply(Command::Expire);
    }
}

/// So many tokens of a prompt of this name.
pub(super) fn tokens(name: u32, n: u32) -> Vec<u32> {
    (0..n).map(|at| name * 1_000_000 + at).collect()
}

fn place(reply: &RouteReply) -> (String, Option<u32>) {
    let target = reply.target.as_ref().unwrap();
    (target.worker.to_string(), target.rank.map(|rank| rank.0))
}

fn said(reply: &RouteReply) -> String {
    let overlap = reply.overlap.map(|found| format!(" {}/{}", found.blocks, found.of)).unwrap_or_default();
    let (worker, rank) = place(reply);
    format!("{worker}/{} {}{overlap}", rank.map_or("-".to_owned(), |rank| rank.to_string()), reply.reason)
}

#[test]
fn a_prompt_goes_to_the_rank_that_caches_most_of_it_with_or_without_a_session() {
    let mut kv = Kv::new("worker w0 ranks=0..4; worker w1 ranks=0..4");
    let prompt = tokens(1, 160);
    kv.caches("w1", 2, &prompt[..128]);
    kv.caches("w0", 3, &prompt[..32]);
    assert_eq!(said(&kv.loose(&prompt)), "w1/2 overlap 8/10");
    let asked = RouteRequest { deadline_ms: Millis(250), ..route_request("a", 1, "A") };
    assert_eq!(said(&kv.ask(asked, &prompt)), "w1/2 overlap 8/10");
    assert_eq!(kv.loose(&tokens(9, 64)).reason, "kv_aware");
}

/// One token is always computed: what is cached whole is told as the engine will tell it.
#[test]
fn the_last_block_is_no_hit_when_the_prompt_ends_with_it() {
    let mut kv = Kv::new("worker w0; worker w1");
    kv.caches("w0", 0, &tokens(1, 64));
    assert_eq!(said(&kv.loose(&tokens(1, 64))), "w0/- overlap 3/4");
    assert_eq!(said(&kv.loose(&tokens(1, 65))), "w0/- overlap 4/4");
}

#[test]
fn the_worked_example_of_the_cost_is_decided_by_what_slots_do() {
    let decided = |prefill_scale| {
        let weights = Weights { prefill_scale, predicted: 0, ..Weights::default() };
        // Load alone decides nothing here.
        let settings = KvSettings { weights, load_cap: 10_000, ..KvSettings::default() };
        let mut kv = Kv::with(settings, |_| {}, "worker a");
        kv.caches("a", 0, &tokens(1, 128));
        // Twenty blocks are being decoded there: eight are the prompt's.
        for (name, of) in [(1, 128), (2, 192)] {
            let reply = kv.loose(&tokens(name, of));
            assert_eq!(place(&reply).0, "a");
            let request = RequestId(kv.requests);
            kv.world.report("A", vec![Entry::Prefilled { request }], Vec::new());
        }
        kv.world.play("worker b");
        place(&kv.loose(&tokens(1, 160))).0
    };
    assert_eq!(decided(100), "b");
    assert_eq!(decided(200), "a");
}

#[test]
fn a_bound_turn_is_told_what_its_slot_holds_and_books_there() {
    let mut kv = Kv::new("worker w0 ranks=0..2; worker w1 ranks=0..2");
    kv.caches("w0", 1, &tokens(1, 64));
    let first = kv.ask(route_request("a", 1, "A"), &tokens(1, 80));
    assert_eq!(said(&first), "w0/1 overlap 4/5");
    let commit = Entry::Committed {
        session: session("a"),
        pool: pool(),
        request: RequestId(1),
        hold: first.hold,
        target: first.target.clone().unwrap(),
        version: first.version,
    };
    kv.world.report("A", vec![commit, Entry::Ended { request: RequestId(1) }], Vec::new());
    assert_eq!(kv.bookings(), 0);
    // Better cached elsewhere: bound all the same.
    kv.caches("w1", 0, &tokens(1, 160));
    assert_eq!(said(&kv.ask(route_request("a", 2, "A"), &tokens(1, 170))), "w0/1 bound 4/10");
    assert_eq!(kv.bookings(), 1);
}

#[test]
fn where_the_engine_chooses_ranks_the_worker_counts_with_the_mean_of_what_they_hold() {
    let engine = |pool: &mut PoolInfo| pool.rank = RankChoice::Engine;
    let mut kv = Kv::with(KvSettings::default(), engine, "worker w0 ranks=0..2; worker w1 ranks=0..2");
    kv.caches("w0", 0, &tokens(1, 128));
    kv.caches("w1", 0, &tokens(1, 96));
    kv.caches("w1", 1, &tokens(1, 96));
    assert_eq!(said(&kv.loose(&tokens(1, 160))), "w1/- overlap 6/10");
}

#[test]
fn a_burst_of_twins_is_neither_scattered_nor_piled_up() {
    let script = "worker w0 ranks=0..4; worker w1 ranks=0..4";
    for mut kv in [Kv::new(script), Kv::with(KvSettings::default(), |_| {}, script)] {
        burst(&mut kv);
    }
}

fn burst(kv: &mut Kv) {
    let mut placed: BTreeMap<_, u32> = BTreeMap::new();
    let first = place(&kv.loose(&tokens(1, 4096)));
    kv.wait(100);
    assert_eq!(place(&kv.loose(&tokens(1, 4096))), first, "a second twin goes along");
    placed.insert(first, 2);
    for _ in 2..500 {
        *placed.entry(place(&kv.loose(&tokens(1, 4096)))).or_default() += 1;
    }
    let most = f64::from(*placed.values().max().unwrap());
    assert!(most / (500.0 / 8.0) <= 1.5, "{placed:?}");
}

#[test]
fn what_was_just_sent_is_expected_there_for_a_while_and_events_take_its_place() {
    let mut kv = Kv::new("worker w0; worker w1; worker w2");
    let first = place(&kv.loose(&tokens(1, 512)));
    let request = kv.requests;
    kv.end(request);
    let twin = kv.loose(&tokens(1, 512));
    assert_eq!(place(&twin), first);
    assert_eq!(twin.overlap, Some(Overlap { blocks: 0, of: 32 }), "nobody has told of it");
    let request = kv.requests;
    kv.end(request);
    assert_eq!(kv.world.state.kv_booked(), [0, 2, kv.world.state.kv_booked()[2]]);
    kv.wait(2001);
    assert_eq!(kv.world.state.kv_booked(), [0, 0, 0], "nothing is left of either");
}

#[test]
fn a_cleared_slot_is_not_expected_to_hold_anything() {
    let mut kv = Kv::new("worker w0; worker w1");
    let first = place(&kv.loose(&tokens(1, 512))).0;
    let request = kv.requests;
    kv.end(request);
    kv.tells(&first, 0, KvEvent::Cleared);
    assert_eq!(kv.world.state.kv_booked(), [0, 0, 0]);
}

#[test]
fn every_booking_ends() {
    let mut kv = Kv::new("worker w0; worker w1");
    // By the end of its request, also told twice, and before its route.
    kv.loose(&tokens(1, 64));
    let request = kv.requests;
    (0..2).for_each(|_| kv.end(request));
    kv.end(request + 1);
    kv.loose(&tokens(1, 64));
    assert_eq!((kv.bookings(), kv.count("ended_first")), (0, 1));
    // By the death of its VM: told, or seen.
    kv.loose(&tokens(2, 64));
    kv.world.play("gone A");
    assert_eq!(kv.bookings(), 0);
    kv.loose(&tokens(3, 64));
    kv.wait(30_001);
    assert_eq!((kv.bookings(), kv.count("orphaned")), (0, 2));
    // By the removal of its worker, and of its rank.
    let gone = place(&kv.loose(&tokens(4, 64))).0;
    kv.world.play(&format!("remove {gone}"));
    assert_eq!(kv.bookings(), 0);
    kv.world.play("remove w0; remove w1; worker w2 ranks=0..2");
    let (_, rank) = place(&kv.loose(&tokens(5, 64)));
    let other = 1 - rank.unwrap();
    kv.world.play(&format!("worker w2 ranks={other}..{}", other + 1));
    assert_eq!(kv.bookings(), 0);
    // A request that asks again books once.
    let again = RouteRequest::new(caller("A"), RequestId(7), pool(), Millis(250));
    (0..3).for_each(|_| drop(kv.ask(again.clone(), &tokens(6, 64))));
    assert_eq!(kv.bookings(), 1);
    kv.end(7);
    kv.wait(2001);
    assert_eq!(kv.world.state.kv_booked(), [0, 0, 0]);
}

#[test]
fn an_engine_with_nothing_waiting_has_prefilled_what_was_placed_a_while_ago() {
    let mut kv = Kv::new("worker w0");
    kv.loose(&tokens(1, 640));
    let told = |waiting| SlotGauges { rank: None, running: 1, waiting, kv_permille: None };
    let gauges = |kv: &mut Kv, waiting| {
        let slots = vec![told(waiting)];
        kv.world.apply(Command::Gauges { worker: worker_id("w0"), endpoint: 0, slots, strays: 0 });
    };
    gauges(&mut kv, 0);
    assert_eq!(kv.count("prefilled_by_gauges"), 0, "it may not have come there yet");
    kv.wait(3000);
    gauges(&mut kv, 1);
    assert_eq!(kv.count("prefilled_by_gauges"), 0);
    gauges(&mut kv, 0);
    assert_eq!(kv.count("prefilled_by_gauges"), 1);
}

/// Turns that never asked load their slots too.
#[test]
fn requests_of_which_no_prompt_is_known_count_as_typical_ones() {
    let mut kv = Kv::new("worker w0; worker w1");
    kv.caches("w0", 0, &tokens(1, 64));
    let busy = InFlight { target: Target { worker: worker_id("w0"), rank: None }, count: 3 };
    let idle = InFlight { target: Target { worker: worker_id("w1"), rank: None }, count: 2 };
    kv.world.report("B", Vec::new(), vec![busy, idle]);
    assert_eq!(place(&kv.loose(&tokens(1, 160))).0, "w1");
}

#[test]
fn without_a_prompt_the_least_loaded_is_taken_and_nothing_is_booked() {
    let mut kv = Kv::new("worker w0; worker w1; worker w2");
    let mut placed: BTreeMap<_, u32> = BTreeMap::new();
    for request in 0..30 {
        let request = RouteRequest::new(caller("A"), RequestId(request), pool(), Millis(250));
        let reply = kv.world.route(request.clone(), mix(3, request.request.0));
        assert_eq!((reply.reason.as_str(), reply.overlap), ("kv_aware", None));
        *placed.entry(place(&reply)).or_default() += 1;
    }
    assert_eq!(placed.into_values().collect::<Vec<_>>(), [10, 10, 10]);
    assert_eq!(kv.bookings(), 0);
}

#[test]
fn a_dry_run_books_nothing_and_shows_every_slot() {
    let mut kv = Kv::new("worker w0 ranks=0..2; worker w1");
    kv.caches("w0", 1, &tokens(1, 128));
    let before = kv.world.state.kv_booked();
    let request =
        RouteRequest { dry_run: true, ..RouteRequest::new(caller("A"), RequestId(1), pool(), Millis(250)) };
    let reply = kv.ask(request, &tokens(1, 160));
    assert_eq!(kv.world.state.kv_booked(), before);
    let shown: Explanation = serde_json::from_str(&reply.explained.unwrap().text(None)).unwrap();
    let each = shown.candidates.iter().map(|one| {
        let rank = one.rank.map_or(-1, |rank| i64::from(rank.0));
        (one.worker.to_string(), rank, one.score.unwrap() / 10_000, one.overlap.unwrap().blocks)
    });
    let expected = [("w0", 0, 20, 0), ("w0", 1, 12, 8), ("w1", -1, 20, 0)];
    assert_eq!(
        each.collect::<Vec<_>>(),
        expected.map(|(id, rank, cost, held)| (id.to_owned(), rank, cost, held))
    );
    assert_eq!((shown.reason.as_str(), reply.overlap.unwrap().blocks), ("overlap", 8));
}

#[test]
fn time_is_no_fault_of_a_booking_that_nobody_ends() {
    let mut kv = Kv::new("worker w0");
    kv.loose(&tokens(1, 64));
    for _ in 0..360 {
        kv.world.report("A", Vec::new(), Vec::new());
        kv.wait(10_001);
    }
    assert_eq!((kv.bookings(), kv.count("expired")), (0, 1));
    assert!(kv.world.now > Timestamp(3_600_000));
}

#[test]
fn a_soft_session_is_bound_to_the_rank_that_was_chosen_too() {
    let soft = |pool: &mut PoolInfo| pool.affinity = Affinity::Soft;
    let mut kv = Kv::with(KvSettings::default(), soft, "worker w0 ranks=0..4; worker w1 ranks=0..4");
    kv.caches("w1", 2, &tokens(1, 128));
    assert_eq!(said(&kv.ask(route_request("a", 1, "A"), &tokens(1, 160))), "w1/2 overlap 8/10");
}

#[test]
fn a_turn_whose_slot_is_overloaded_is_served_by_another_rank_of_its_worker_if_that_costs_least() {
    let limited = |pool: &mut PoolInfo| pool.in_flight_limit = Some(4);
    let mut kv = Kv::with(KvSettings::default(), limited, "worker w0 ranks=0..2; worker w1 ranks=0..2");
    kv.caches("w0", 0, &tokens(1, 144));
    kv.caches("w0", 1, &tokens(1, 128));
    let first = kv.ask(route_request("a", 1, "A"), &tokens(1, 160));
    assert_eq!(said(&first), "w0/0 overlap 9/10");
    let committed = Entry::Committed {
        session: session("a"),
        pool: pool(),
        request: RequestId(1),
        hold: first.hold,
        target: first.target.clone().unwrap(),
        version: first.version,
    };
    let full = InFlight { target: first.target.unwrap(), count: 4 };
    kv.world.report("A", vec![committed, Entry::Ended { request: RequestId(1) }], vec![full]);
    assert_eq!(said(&kv.ask(route_request("a", 2, "A"), &tokens(1, 170))), "w0/1 spilled 8/10");
    // Who has no slot there either goes where there is one.
    let also = InFlight { target: Target { worker: worker_id("w0"), rank: Some(Rank(1)) }, count: 4 };
    kv.world.report("B", Vec::new(), vec![also]);
    assert_eq!(place(&kv.ask(route_request("a", 3, "A"), &tokens(1, 170))).0, "w1");
}

#[test]
fn each_half_of_a_split_pool_is_chosen_and_booked_by_itself() {
    let mut kv = Kv::new("worker p0 phase=prefill; worker p1 phase=prefill; worker d0; worker d1");
    kv.caches("p1", 0, &tokens(1, 128));
    let ask =
        PrefillAsk { request: RequestId(2), session: None, cached: None, named: None, unsent: Vec::new() };
    let request = RouteRequest {
        prefill: Some(Box::new(ask)),
        ..RouteRequest::new(caller("A"), RequestId(1), pool(), Millis(250))
    };
    let reply = kv.ask(request, &tokens(1, 160));
    assert_eq!(said(reply.prefill.as_ref().unwrap()), "p1/- overlap 8/10");
    let sums =
        |kv: &Kv, worker: &str| kv.world.state.kv_sums(&Target { worker: worker_id(worker), rank: None });
    assert_eq!(sums(&kv, "p1"), [32, 10, 1]);
    assert_eq!(sums(&kv, &place(&reply).0), [0, 10, 1], "nothing is prefilled where it is decoded");
    kv.end(2);
    assert_eq!(kv.bookings(), 1);
    kv.end(1);
    assert_eq!(kv.bookings(), 0);
}
