//! Block sizes of a pool's ranks: the index goes by what most publish, and whoever loses by it is known to.

use super::world::*;
use crate::config::ServiceConfig;
use crate::state::kv_event::{EngineHash, KvBatch, KvEvent, Tier};
use crate::state::kv_stream::{Attempt, Frame, Input, Link, Trouble};
use crate::state::{Command, Effect, KvView, Limits, StateConfig};
use routing::contract::{Policy, Target};
use std::collections::BTreeMap;

struct Fleet {
    world: World,
    seqs: BTreeMap<String, u64>,
    /// The replay that each worker is asked for.
    asked: BTreeMap<String, (Attempt, u64)>,
}

impl Fleet {
    /// Every worker is subscribed to, and its ring was asked and had nothing.
    fn of(workers: &[&str]) -> Self {
        let mut service = ServiceConfig::without_file();
        service.pools[0].policy = Policy::KvAware;
        let world = World::with(StateConfig { service, limits: Limits::SERVICE });
        let mut fleet = Self { world, seqs: BTreeMap::new(), asked: BTreeMap::new() };
        for worker in workers {
            fleet.world.play(&format!("worker {worker}"));
            fleet.apply(Command::KvLink { worker: worker_id(worker), rank: 0, link: Link::Up });
            fleet.connect(worker);
        }
        fleet
    }

    fn connect(&mut self, worker: &str) {
        self.input(worker, Input::Connected);
        let (attempt, _) = self.asked.remove(worker).unwrap();
        self.input(worker, Input::ReplayEnd(attempt));
    }

    fn apply(&mut self, command: Command) {
        for effect in self.world.effects(command) {
            if let Effect::Replay { worker, attempt, from, .. } = effect {
                self.asked.insert(worker.to_string(), (attempt, from));
            }
        }
    }

    fn input(&mut self, worker: &str, input: Input) {
        self.apply(Command::Kv { worker: worker_id(worker), rank: 0, inputs: vec![input] });
    }

    /// The worker's next batch: so many blocks of that size, of which the last token is `named`.
    fn stores(&mut self, worker: &str, size: u32, blocks: u32) {
        let seq = self.seqs.entry(worker.to_owned()).or_default();
        let frame = stored(*seq, size, blocks);
        *seq += 1;
        self.input(worker, Input::Live(frame));
    }

    /// It begins anew, and says so with its first batch.
    fn restarts(&mut self, worker: &str) {
        self.seqs.remove(worker);
    }

    fn view(&self, worker: &str) -> KvView {
        let target = Target { worker: worker_id(worker), rank: None };
        self.world.state.kv_view(self.world.now, &target).unwrap()
    }

    fn held(&self, worker: &str) -> usize {
        self.view(worker).blocks[0]
    }

    fn size(&self) -> u32 {
        self.world.state.kv_index(&pool()).unwrap().block_size()
    }

    fn changes(&self) -> u64 {
        let (_, counts) = self.world.state.kv_counts();
        counts.into_iter().find(|(word, _)| *word == "block_size_changed").unwrap().1
    }
}

fn stored(seq: u64, size: u32, blocks: u32) -> Frame {
    let first = seq * 1000;
    let event = KvEvent::Stored {
        hashes: (first..first + u64::from(blocks)).map(EngineHash).collect(),
        parent: None,
        tokens: (0..size * blocks).map(|at| at + u32::try_from(first).unwrap()).collect(),
        block_size: size,
        tier: Tier::Gpu,
        lora: None,
        salt: None,
        extra: 0,
        group: 0,
        kind_ok: true,
    };
    Frame { seq, stamp: seq ^ u64::from(size) << 32, batch: KvBatch { events: vec![event] } }
}

#[test]
fn an_engine_that_restarts_with_smaller_blocks_is_indexed_by_them() {
    let mut fleet = Fleet::of(&["a"]);
    fleet.stores("a", 64, 3);
    fleet.stores("a", 64, 30);
    fleet.restarts("a");
    fleet.stores("a", 16, 5);
    assert_eq!((fleet.size(), fleet.held("a"), fleet.changes()), (16, 5, 1));
    assert_eq!((fleet.view("a").cold, fleet.view("a").trouble), (false, None));
}

#[test]
fn an_odd_worker_with_larger_blocks_empties_nobody_else() {
    let mut fleet = Fleet::of(&["a", "b", "odd"]);
    for worker in ["a", "b"] {
        fleet.stores(worker, 16, 2);
    }
    for _ in 0..20 {
        fleet.stores("odd", 64, 20);
    }
    assert_eq!((fleet.size(), fleet.held("a"), fleet.held("b"), fleet.held("odd")), (16, 2, 2, 0));
    let odd = fleet.view("odd");
    assert_eq!((odd.cold, odd.trouble), (true, Some(Trouble::OtherBlockSize)));
    assert_eq!((fleet.view("a").cold, fleet.view("a").trouble), (false, None));
    assert!(fleet.asked.is_empty());
    // Neither does one of two.
    fleet.world.play("remove b");
    fleet.stores("odd", 64, 1);
    assert_eq!((fleet.size(), fleet.held("a")), (16, 2));
    // Once nobody else publishes, its blocks are what there is; what it published before is asked for.
    fleet.apply(Command::KvLink { worker: worker_id("a"), rank: 0, link: Link::NotPublished });
    fleet.stores("odd", 64, 1);
    assert_eq!(fleet.size(), 64);
    let (attempt, from) = fleet.asked.remove("odd").unwrap();
    assert_eq!(from, 0);
    for seq in 0..22 {
        fleet.input("odd", Input::Replayed(attempt, stored(seq, 64, 1)));
    }
    fleet.input("odd", Input::ReplayEnd(attempt));
    let odd = fleet.view("odd");
    assert_eq!((odd.blocks[0], odd.cold, odd.trouble), (22, false, None));
}

#[test]
fn a_fleet_that_is_restarted_one_by_one_changes_with_most_of_it_and_once() {
    let workers = ["a", "b", "c"];
    let mut fleet = Fleet::of(&workers);
    workers.iter().for_each(|worker| fleet.stores(worker, 64, 4));
    fleet.restarts("a");
    fleet.stores("a", 16, 3);
    assert_eq!((fleet.size(), fleet.held("a"), fleet.held("b")), (64, 0, 4));
    fleet.restarts("b");
    fleet.stores("b", 16, 3);
    assert_eq!((fleet.size(), fleet.changes()), (16, 1));
    // What was ignored of both is asked for; the one that lost is cold, and its replay would be ignored.
    assert_eq!(fleet.asked.keys().map(String::as_str).collect::<Vec<_>>(), ["a"]);
    assert_eq!((fleet.held("b"), fleet.view("b").cold), (3, false));
    let loser = fleet.view("c");
    assert_eq!((loser.blocks[0], loser.cold), (0, true));
    // Whatever else comes of it changes nothing.
    for _ in 0..3 {
        fleet.stores("c", 64, 40);
        fleet.stores("b", 16, 1);
    }
    assert_eq!((fleet.size(), fleet.changes()), (16, 1));
    assert_eq!(fleet.view("c").trouble, Some(Trouble::OtherBlockSize));
    fleet.restarts("c");
    fleet.stores("c", 16, 2);
    assert_eq!((fleet.held("c"), fleet.view("c").cold, fleet.view("c").trouble), (2, false, None));
}

#[test]
fn short_tails_before_and_after_whole_blocks_are_nobodys_size() {
    let mut fleet = Fleet::of(&["a"]);
    fleet.stores("a", 5, 1);
    fleet.stores("a", 64, 1);
    for tail in [5, 5, 63] {
        fleet.stores("a", tail, 1);
        fleet.stores("a", 64, 20);
    }
    assert_eq!((fleet.size(), fleet.held("a")), (64, 61));
    assert_eq!((fleet.view("a").cold, fleet.view("a").trouble, fleet.asked.len()), (false, None, 0));
    // A larger one, once the size is known, is as odd.
    fleet.stores("a", 128, 1);
    assert_eq!((fleet.size(), fleet.held("a")), (64, 61));
}
