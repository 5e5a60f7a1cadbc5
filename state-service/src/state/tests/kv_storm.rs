//! Bookings under storms: what slots are booked with is at every moment what the requests under way add up to, and in the end
//! nothing.

use super::kv::tokens;
use super::world::*;
use crate::config::ServiceConfig;
use crate::state::{Command, Limits, Reply, StateConfig};
use proptest::prelude::*;
use routing::block::{Chain, Namespace};
use routing::contract::*;
use routing::id::*;
use routing::policy::mix;
use routing::time::Millis;
use std::collections::{BTreeMap, BTreeSet};

const BLOCK: u32 = 16;
const VMS: [&str; 2] = ["A", "B"];
const WORKERS: [&str; 2] = ["w0", "w1"];

#[derive(Clone, Debug)]
enum Step {
    Route { vm: usize, request: u64, name: u32, eights: u32 },
    Prefilled { vm: usize, request: u64 },
    Ended { vm: usize, request: u64 },
    Gone { vm: usize },
    Put { worker: usize, ranks: u32 },
    Remove { worker: usize },
    Pass { ms: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (vm, request) = (0..VMS.len(), 0..12u64);
    let (one, two) = ((vm.clone(), request.clone()), (vm.clone(), request.clone()));
    let step = prop_oneof![
        8 => (vm.clone(), request, 1..4u32, 1..6u32)
            .prop_map(|(vm, request, name, eights)| Step::Route { vm, request, name, eights }),
        3 => one.prop_map(|(vm, request)| Step::Prefilled { vm, request }),
        5 => two.prop_map(|(vm, request)| Step::Ended { vm, request }),
        1 => vm.prop_map(|vm| Step::Gone { vm }),
        1 => (0..WORKERS.len(), 1..4u32).prop_map(|(worker, ranks)| Step::Put { worker, ranks }),
        1 => (0..WORKERS.len()).prop_map(|worker| Step::Remove { worker }),
        2 => (0..2500u64).prop_map(|ms| Step::Pass { ms }),
    ];
    prop::collection::vec(step, 1..120)
}

/// What the requests under way are known to be, told by the answers alone.
struct Model {
    world: World,
    under_way: BTreeMap<(usize, u64), (Target, u32, u32)>,
    /// Ended without having been routed, with the time.
    early: BTreeMap<(usize, u64), u64>,
}

impl Model {
    fn new() -> Self {
        let mut service = ServiceConfig::without_file();
        service.pools[0].policy = Policy::KvAware;
        let mut world = World::with(StateConfig { service, limits: Limits::SERVICE });
        world.play("worker w0 ranks=0..2; worker w1");
        Self { world, under_way: BTreeMap::new(), early: BTreeMap::new() }
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Route { vm, request, name, eights } => self.route((vm, request), name, eights * 8),
            Step::Prefilled { vm, request } => {
                self.world.report(
                    VMS[vm],
                    vec![Entry::Prefilled { request: RequestId(request) }],
                    Vec::new(),
                );
            }
            Step::Ended { vm, request } => {
                self.world.report(VMS[vm], vec![Entry::Ended { request: RequestId(request) }], Vec::new());
                if self.under_way.remove(&(vm, request)).is_none() {
                    self.early.insert((vm, request), self.world.now.0);
                }
            }
            Step::Gone { vm } => {
                // Told by another VM of its Envoy; its requests begin anew as another VM's.
                let dead = Entry::VmGone { vm: caller(VMS[vm]).vm };
                self.world.report("C", vec![dead], Vec::new());
                self.under_way.retain(|(of, _), _| *of != vm);
                self.early.retain(|(of, _), _| *of != vm);
            }
            Step::Put { worker, ranks } => {
                self.world.play(&format!("worker {} ranks=0..{ranks}", WORKERS[worker]));
                let stays = |rank: Option<Rank>| match ranks {
                    // The only rank is addressed without its number.
                    1 => rank.is_none(),
                    _ => rank.is_none_or(|rank| rank.0 < ranks),
                };
                self.under_way.retain(|_, (at, ..)| at.worker.as_str() != WORKERS[worker] || stays(at.rank));
            }
            Step::Remove { worker } => {
                self.world.play(&format!("remove {}", WORKERS[worker]));
                self.under_way.retain(|_, (at, ..)| at.worker.as_str() != WORKERS[worker]);
            }
            Step::Pass { ms } => {
                self.world.now += Millis(ms);
                VMS.iter().for_each(|vm| self.world.report(vm, Vec::new(), Vec::new()));
                self.world.apply(Command::Expire);
            }
        }
    }

    fn route(&mut self, key: (usize, u64), name: u32, blocks: u32) {
        let request = RouteRequest::new(caller(VMS[key.0]), RequestId(key.1), pool(), Millis(250));
        let prompt = Chain::of(Namespace::default(), BLOCK, &tokens(name, blocks * BLOCK));
        let draw = mix(key.1, self.world.now.0);
        let route = Command::Route { request, prompt: Some(Box::new(prompt)), draw };
        let Reply::Route(reply) = self.world.apply(route) else { panic!() };
        let Some(target) = reply.target else { return assert_eq!(reply.outcome, Outcome::NoWorker) };
        let early = self.early.remove(&key).is_some_and(|at| self.world.now.0 - at <= 5000);
        if !early {
            self.under_way.insert(key, (target, name, blocks));
        }
    }

    /// Of every slot that is there.
    fn check(&self) {
        let workers: Vec<_> = self.world.state.workers().flat_map(|worker| worker.slots()).collect();
        let mut booked = 0;
        for (slot, _) in workers {
            let [prefill, decode, bookings] = self.world.state.kv_sums(&slot);
            let there: Vec<_> = self.under_way.values().filter(|(at, ..)| *at == slot).collect();
            let held: BTreeSet<(u32, u32)> =
                there.iter().flat_map(|(_, name, blocks)| (0..*blocks).map(|at| (*name, at))).collect();
            assert_eq!((bookings, decode), (there.len() as u64, held.len() as u64), "{slot:?}");
            let most: u64 = there.iter().map(|(_, _, blocks)| u64::from(blocks * BLOCK)).sum();
            assert!(prefill <= most, "{slot:?}");
            booked += there.len();
        }
        assert_eq!(self.world.state.kv_booked()[0], booked);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn slots_are_booked_with_what_is_under_way(steps in steps()) {
        let mut model = Model::new();
        for step in &steps {
            model.run(step);
            model.check();
        }
        for (vm, request) in model.under_way.keys().copied().collect::<Vec<_>>() {
            model.run(&Step::Ended { vm, request });
        }
        model.run(&Step::Pass { ms: 2001 });
        prop_assert_eq!(model.world.state.kv_booked(), [0, 0, 0]);
        for (slot, _) in model.world.state.workers().flat_map(|worker| worker.slots()) {
            prop_assert_eq!(model.world.state.kv_sums(&slot), [0, 0, 0]);
        }
    }
}
