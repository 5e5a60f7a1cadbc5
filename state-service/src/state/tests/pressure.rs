//! Any load, gauges, waits and departures in any order: marks follow their numbers, and each wait ends once.

use super::world::{World, caller, route_request, worker_id};
use crate::config::ServiceConfig;
use crate::state::SlotView;
use crate::state::{Command, Effect, Limits, Reply, SlotGauges, StateConfig, Ticket};
use proptest::prelude::*;
use routing::contract::{InFlight, OnOverload, PoolInfo, Report, RouteRequest, Target};
use routing::id::Rank;
use routing::time::{Millis, Timestamp};
use std::collections::BTreeMap;

const LIMIT: u32 = 3;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const WORKERS: [&str; 2] = ["w1", "w2"];

#[derive(Clone, Debug)]
enum Step {
    Declare { worker: usize, ranks: u32 },
    Remove { worker: usize },
    Probe { worker: usize, healthy: bool },
    Bind { name: usize, worker: usize, rank: u32 },
    Report { vm: usize, counts: Vec<(usize, Option<u32>, u32)> },
    Gauges { worker: usize, rank: Option<u32>, waiting: u32, kv: u32 },
    Route { name: usize, wait_ms: u64 },
    Leave { nth: usize },
    Pass { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let rank = || prop::option::of(0..3u32);
    let counts = prop::collection::vec((0..2usize, rank(), 0..6u32), 0..5);
    prop_oneof![
        1 => (0..2usize, 1..4u32).prop_map(|(worker, ranks)| Step::Declare { worker, ranks }),
        1 => (0..2usize).prop_map(|worker| Step::Remove { worker }),
        1 => (0..2usize, any::<bool>()).prop_map(|(worker, healthy)| Step::Probe { worker, healthy }),
        3 => (0..4usize, 0..2usize, 0..3u32).prop_map(|(name, worker, rank)| Step::Bind { name, worker, rank }),
        4 => (0..2usize, counts).prop_map(|(vm, counts)| Step::Report { vm, counts }),
        2 => (0..2usize, rank(), 0..5u32, prop::sample::select(vec![0, 850, 856, 949, 950, 1000]))
            .prop_map(|(worker, rank, waiting, kv)| Step::Gauges { worker, rank, waiting, kv }),
        6 => (0..4usize, prop::sample::select(vec![0, 50, 500, 5000]))
            .prop_map(|(name, wait_ms)| Step::Route { name, wait_ms }),
        1 => (0..8usize).prop_map(|nth| Step::Leave { nth }),
        2 => prop::sample::select(vec![10, 100, 3000, 11_000, 40_000]).prop_map(|ms| Step::Pass { ms }),
    ]
}

/// A world, and who waits in it until when.
struct Play {
    world: World,
    seqs: [u64; 2],
    requests: u64,
    waits: BTreeMap<Ticket, Timestamp>,
}

impl Play {
    fn new() -> Self {
        let mut service = ServiceConfig::without_file();
        let pool = PoolInfo {
            in_flight_limit: Some(LIMIT),
            on_overload: OnOverload::Wait,
            ..service.pools[0].clone()
        };
        service.pools[0] = pool;
        let world = World::with(StateConfig { service, limits: Limits::SERVICE });
        let mut play = Self { world, seqs: [0; 2], requests: 0, waits: BTreeMap::new() };
        play.world.play("worker w1 ranks=0..3; worker w2 ranks=0..2");
        play
    }

    fn apply(&mut self, command: Command) -> Reply {
        let mut effects = Vec::new();
        let reply = self.world.state.apply(self.world.now, command, &mut effects);
        if let Reply::Later(later) = &reply {
            self.waits.insert(later.ticket, self.world.now + later.within);
        }
        for effect in effects {
            if let Effect::Answer { ticket, .. } = effect {
                assert!(self.waits.remove(&ticket).is_some(), "answered twice, or never asked");
            }
        }
        reply
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Declare { worker, ranks } => {
                self.script(&format!("worker {} ranks=0..{ranks}", WORKERS[*worker]));
            }
            Step::Remove { worker } => {
                drop(self.apply(Command::RemoveWorker { id: worker_id(WORKERS[*worker]) }))
            }
            Step::Probe { worker, healthy } => {
                for _ in 0..3 {
                    let worker = worker_id(WORKERS[*worker]);
                    self.apply(Command::Probe { worker, endpoint: 0, healthy: *healthy });
                }
            }
            Step::Bind { name, worker, rank } => self.bind(NAMES[*name], WORKERS[*worker], *rank),
            Step::Report { vm, counts } => self.report(*vm, counts),
            Step::Gauges { worker, rank, waiting, kv } => {
                let told = SlotGauges {
                    rank: rank.map(Rank),
                    running: 0,
                    waiting: *waiting,
                    kv_permille: Some(*kv),
                };
                let worker = worker_id(WORKERS[*worker]);
                self.apply(Command::Gauges { worker, endpoint: 0, slots: vec![told], strays: 0 });
            }
            Step::Route { name, wait_ms } => {
                self.requests += 1;
                let request = route_request(NAMES[*name], self.requests, "A");
                let request = RouteRequest { wait_ms: Millis(*wait_ms), ..request };
                self.apply(Command::Route { request, prompt: None, draw: self.requests });
            }
            Step::Leave { nth } => {
                if let Some(ticket) = self.waits.keys().nth(*nth).copied() {
                    self.waits.remove(&ticket);
                    self.apply(Command::Leave { ticket });
                }
            }
            Step::Pass { ms } => {
                self.world.now += Millis(*ms);
                self.apply(Command::Expire);
            }
        }
    }

    fn script(&mut self, line: &str) {
        let id = line.split_whitespace().nth(1).unwrap();
        let ranks: u32 = line.rsplit("..").next().unwrap().parse().unwrap();
        let json = serde_json::json!({"endpoints": [{"address": format!("{id}.test:1"), "dp_size": ranks}]});
        let spec = crate::declare::parse(json.to_string().as_bytes(), Some(id)).unwrap();
        self.apply(Command::PutWorker { spec });
    }

    fn bind(&mut self, name: &str, worker: &str, rank: u32) {
        self.requests += 1;
        let entry = routing::contract::Entry::Committed {
            session: super::world::session(name),
            pool: super::world::pool(),
            request: routing::id::RequestId(self.requests),
            hold: None,
            target: Target { worker: worker_id(worker), rank: Some(Rank(rank)) },
            version: routing::id::Version { seq: 1000 + self.requests, writer: 3 },
        };
        self.tell(0, vec![], vec![entry]);
    }

    fn report(&mut self, vm: usize, counts: &[(usize, Option<u32>, u32)]) {
        let slot = |(worker, rank, count): &(usize, Option<u32>, u32)| InFlight {
            target: Target { worker: worker_id(WORKERS[*worker]), rank: rank.map(Rank) },
            count: *count,
        };
        self.tell(vm, counts.iter().map(slot).collect(), vec![]);
    }

    fn tell(&mut self, vm: usize, in_flight: Vec<InFlight>, entries: Vec<routing::contract::Entry>) {
        self.seqs[vm] += 1;
        let caller = caller(["A", "B"][vm]);
        let seq = self.seqs[vm];
        self.apply(Command::Report(Report { caller, seq, in_flight, entries, upstream_role_missing: 0 }));
    }

    fn check(&self) {
        let state = &self.world.state;
        state.waiting.check();
        assert_eq!(state.sizes().waiting, self.waits.len(), "those who wait are those who were told to");
        assert!(self.waits.values().all(|until| *until > self.world.now), "nobody waits past his time");
        for (worker, status) in state.workers().zip(&state.fleet().workers) {
            let views: Vec<(Target, SlotView)> =
                worker.slots().map(|(target, _)| (target.clone(), state.slot(&target))).collect();
            for (target, view) in &views {
                let told = status.all_overloaded
                    || target.rank.is_some_and(|rank| status.overloaded.contains(&rank));
                assert_eq!(view.overloaded, told, "{target:?}: the fleet knows");
                check_mark(worker.spec().rank_count(), target, view);
            }
            let waiting: u64 =
                views.iter().filter_map(|(_, view)| Some(u64::from(view.gauges?.waiting))).sum();
            assert_eq!(u64::from(worker.waiting()), waiting);
        }
    }
}

/// A rank at its limit is overloaded; one far below every limit is not, unless the whole worker is.
fn check_mark(ranks: u32, target: &Target, view: &SlotView) {
    if ranks > 1 && target.rank.is_none() {
        return;
    }
    let requests = view.load - view.gauges.map_or(0, |told| told.waiting.into());
    let kv = view.gauges.and_then(|told| told.kv_permille).unwrap_or(0);
    if requests >= LIMIT.into() && (ranks > 1) || kv >= 950 {
        assert!(view.overloaded, "{target:?} {view:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]
    #[test]
    fn marks_follow_their_numbers_and_each_wait_ends_once(steps in prop::collection::vec(step(), 1..60)) {
        let mut play = Play::new();
        for step in &steps {
            play.step(step);
            play.check();
        }
        // Twice: whoever waited is placed at the end of the first.
        for _ in 0..2 {
            play.step(&Step::Pass { ms: 60_000 });
            play.check();
        }
        prop_assert!(play.waits.is_empty());
        let idle = play.world.state.fleet().workers.iter().all(|status| status.waiting == 0 && !status.all_overloaded);
        prop_assert!(idle, "VMs and gauges are forgotten, and their overload with them");
    }
}

/// The property above would hold of a world in which nobody ever waits.
#[test]
fn the_steps_make_turns_wait_and_serve_them() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = prop::collection::vec(step(), 60);
    let (mut begun, mut cleared, mut over) = (0, 0, 0);
    for _ in 0..200 {
        let mut play = Play::new();
        let steps = proptest::strategy::ValueTree::current(&strategy.new_tree(&mut runner).unwrap());
        steps.iter().for_each(|step| play.step(step));
        let counters = play.world.state.counters();
        (begun, cleared, over) =
            (begun + counters.wait_begun, cleared + counters.wait_cleared, over + counters.wait_over);
    }
    assert!(begun > 100 && cleared > 20 && over > 20, "{begun} {cleared} {over}");
}
