//! The fleet as one VM knows it: look-ups, ranks on the wire (cases B1–B3), which workers take new sessions.

mod common;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use common::{endpoint, id, pool, pool_name, small_fleet, worker};
use routing::contract::{
    EndpointInfo, Engine, Fleet, RankNumbering, Topology, WorkerInfo, WorkerState, WorkerStatus,
};
use routing::directory::{Directory, Worker, worker_cluster};
use routing::engine::{OnWire, Surface};
use routing::hash::worker_hash;
use routing::id::{Rank, RankHash};

fn of(workers: &[WorkerInfo]) -> Directory {
    Directory::new(&Topology { version: 1, pools: vec![pool("chat")], workers: workers.to_vec() })
}

fn local(address: &str, start: u32, size: u32) -> EndpointInfo {
    EndpointInfo { rank_numbering: RankNumbering::Local, ..endpoint(address, start, size) }
}

/// Address dialled and header value sent for a rank; `None` for what is not there.
fn on_the_wire(worker: &Worker, rank: u32) -> (Option<&str>, Option<String>) {
    let endpoint = worker.endpoint(Some(Rank(rank)), 0);
    let wire = endpoint.and_then(|e| header(e.on_wire(worker, Surface::Chat, Some(Rank(rank)))));
    (endpoint.map(|e| e.address.as_str()), wire)
}

fn header(wire: OnWire) -> Option<String> {
    match wire {
        OnWire::Header { name: "x-data-parallel-rank", value } => Some(value),
        OnWire::Nothing => None,
        other => panic!("{other:?}"),
    }
}

fn status(name: &str, state: WorkerState, in_flight: u32) -> WorkerStatus {
    WorkerStatus { in_flight, ..WorkerStatus::idle(id(name), state) }
}

fn open(directory: &Directory) -> Vec<&str> {
    let pool = directory.pool(None).unwrap();
    directory.open_workers(pool, |_| true).iter().map(|at| directory.workers[*at].id.as_str()).collect()
}

#[test]
fn workers_are_found_by_id_hash_and_address() {
    let mut shuffled = small_fleet();
    shuffled.workers.reverse();
    let directory = Directory::new(&shuffled);
    assert_eq!(directory, Directory::new(&small_fleet()), "the order told decides nothing");
    for (at, name) in ["w0", "w1", "w2"].iter().enumerate() {
        assert_eq!(directory.worker_by_id(&id(name)).map(|(at, w)| (at, w.id.as_str())), Some((at, *name)));
        assert_eq!(directory.worker_by_hash(worker_hash(&id(name))).map(|(at, _)| at), Some(at));
        let (worker, endpoint) = directory.dialled(&format!("10.0.0.{}:80", at + 1)).unwrap();
        assert_eq!(
            (worker.id.as_str(), endpoint.cluster.as_str()),
            (*name, &*format!("rankpin-worker-{name}"))
        );
    }
    assert_eq!(directory.worker_by_id(&id("w3")), None);
    assert_eq!(directory.worker_by_hash(0), None);
    for unknown in ["", "10.0.0.9:80", "10.0.0.1", "10.0.0.1:8", "10.0.0.1:800"] {
        assert_eq!(directory.dialled(unknown), None, "{unknown}");
    }
}

#[test]
fn a_pool_is_found_by_name_or_by_being_the_only_one() {
    let one = Directory::new(&small_fleet());
    assert_eq!(
        one.pool(None).map(|p| (p.name.as_str(), p.cluster.as_str())),
        Some(("chat", "rankpin-pool-chat"))
    );
    assert!(one.pool(Some(&pool_name("chat"))).is_some());
    assert_eq!(one.pool(Some(&pool_name("embed"))), None);
    let mut topology = small_fleet();
    topology.pools.push(pool("embed"));
    let two = Directory::new(&topology);
    assert_eq!(two.pool(None), None, "two pools and no name: none is guessed");
    let slip = Topology { pools: vec![pool("default"), pool("defualt")], ..small_fleet() };
    let named = Directory::new(&slip);
    assert_eq!(
        named.pool(None).map(|p| p.name.as_str()),
        Some("default"),
        "a slip in one worker unpins nobody"
    );
    assert_eq!(two.pool(Some(&pool_name("embed"))).map(|p| p.members.len()), Some(0));
    assert_eq!(Directory::default().pool(None), None);
}

#[test]
fn what_fits_nowhere_is_left_out() {
    let mut stray = worker("stray", &[endpoint("10.0.0.8:80", 0, 1)]);
    stray.pool = pool_name("unknown");
    let directory = of(&[stray, worker("nowhere", &[]), worker("w0", &[endpoint("10.0.0.1:80", 0, 1)])]);
    assert_eq!(directory.workers.iter().map(|w| w.id.as_str()).collect::<Vec<_>>(), ["w0"]);
    assert_eq!(directory.dialled("10.0.0.8:80"), None);
}

#[test]
fn the_first_of_two_workers_with_one_id_counts() {
    let (first, second) = (endpoint("10.0.0.1:80", 0, 1), endpoint("10.0.0.2:80", 0, 1));
    let directory = of(&[worker("w0", &[first]), worker("w0", &[second])]);
    assert_eq!(directory.workers.len(), 1);
    assert_eq!(directory.pools[0].members, [0]);
    assert!(directory.dialled("10.0.0.1:80").is_some() && directory.dialled("10.0.0.2:80").is_none());
    let mut twice = small_fleet();
    twice.pools.push(pool("chat"));
    assert_eq!(Directory::new(&twice).pools.len(), 1);
}

#[test]
fn ranks_are_numbered_globally() {
    let directory = of(&[
        worker("global", &[endpoint("10.0.0.1:80", 8, 8)]),
        worker("local", &[local("10.0.0.2:80", 8, 8)]),
    ]);
    let [global, locally] = &directory.workers[..] else { panic!("two workers") };
    for rank in 8..16 {
        assert_eq!(on_the_wire(global, rank), (Some("10.0.0.1:80"), Some(rank.to_string())));
        assert_eq!(on_the_wire(locally, rank), (Some("10.0.0.2:80"), Some((rank - 8).to_string())));
        assert!(global.declares(Rank(rank)));
    }
    for rank in [0, 7, 16, u32::MAX] {
        assert_eq!(on_the_wire(global, rank), (None, None), "{rank}");
        assert_eq!(on_the_wire(locally, rank), (None, None), "{rank}");
        assert!(!global.declares(Rank(rank)));
    }
}

#[test]
fn a_rank_goes_to_the_endpoint_that_serves_it() {
    let directory = of(&[
        worker("global", &[endpoint("10.0.0.1:80", 0, 4), endpoint("10.0.0.2:80", 4, 4)]),
        // Told in another order than their ranks.
        worker("local", &[local("10.0.1.2:80", 4, 4), local("10.0.1.1:80", 0, 4)]),
    ]);
    let [global, locally] = &directory.workers[..] else { panic!("two workers") };
    assert_eq!((locally.dp_start, locally.dp_size), (0, 8));
    assert_eq!(on_the_wire(global, 5), (Some("10.0.0.2:80"), Some("5".to_owned())));
    assert_eq!(on_the_wire(locally, 5), (Some("10.0.1.2:80"), Some("1".to_owned())));
    assert_eq!(on_the_wire(global, 3), (Some("10.0.0.1:80"), Some("3".to_owned())));
    assert_eq!(on_the_wire(locally, 3), (Some("10.0.1.1:80"), Some("3".to_owned())));
    assert_eq!(on_the_wire(global, 8), (None, None));
    // Clusters are numbered as declared, whatever the ranks: the service names them so.
    let cluster = |rank| locally.endpoint(Some(Rank(rank)), 0).map(|e| e.cluster.as_str());
    assert_eq!((cluster(5), cluster(0)), (Some("rankpin-worker-local"), Some("rankpin-worker-local.1")));
    assert_eq!(worker_cluster(&id("w0"), 2), "rankpin-worker-w0.2");
}

#[test]
fn without_a_rank_every_endpoint_is_drawn() {
    let directory = of(&[worker("w0", &[endpoint("10.0.0.1:80", 4, 1), endpoint("10.0.0.2:80", 5, 3)])]);
    let mut counts = [0, 0];
    for draw in 0..400 {
        let endpoint = directory.workers[0].endpoint(None, draw).unwrap();
        counts[usize::from(endpoint.address == "10.0.0.2:80")] += 1;
    }
    assert_eq!(counts, [100, 300], "weighted by ranks");
}

#[test]
fn no_rank_is_sent_where_none_may_be() {
    let wire = |engine, numbering, ranks, rank: Option<u32>| {
        let info = EndpointInfo { rank_numbering: numbering, ..endpoint("10.0.0.1:80", 0, ranks) };
        let directory = of(&[WorkerInfo { engine, ..worker("w0", &[info]) }]);
        let worker = &directory.workers[0];
        header(worker.endpoints[0].on_wire(worker, Surface::Chat, rank.map(Rank)))
    };
    use Engine::{Custom, Sglang, Trtllm, Vllm};
    use RankNumbering::{Global, Local, None as NoHeader};
    for engine in [Vllm, Sglang, Custom] {
        assert_eq!(wire(engine, Global, 8, Some(3)).as_deref(), Some("3"));
        assert_eq!(wire(engine, Local, 8, Some(3)).as_deref(), Some("3"));
    }
    assert_eq!(wire(Trtllm, Global, 8, Some(3)), None, "TensorRT-LLM takes no rank over HTTP");
    assert_eq!(wire(Vllm, NoHeader, 8, Some(3)), None, "one endpoint, one rank");
    assert_eq!(wire(Vllm, Global, 1, Some(0)), None, "a single rank");
    assert_eq!(wire(Vllm, Global, 8, None), None, "no rank chosen");
    assert_eq!(wire(Vllm, Global, 8, Some(8)), None, "outside the range");
    let directory = Directory::new(&small_fleet());
    let worker = &directory.workers[1];
    let sent = |surface| header(worker.endpoints[0].on_wire(worker, surface, Some(Rank(7))));
    assert_eq!((sent(Surface::Chat).as_deref(), sent(Surface::Other)), (Some("7"), None));
}

#[test]
fn a_rank_counts_where_it_is_told_or_the_only_one() {
    let carried = |engine, info: EndpointInfo, surface, rank: Option<u32>| {
        let other = endpoint("10.0.0.2:80", 100, 2);
        let directory = of(&[WorkerInfo { engine, ..worker("w0", &[info, other]) }]);
        let worker = &directory.workers[0];
        worker.endpoints[0].carried(worker, surface, rank.map(Rank)).map(|rank| rank.0)
    };
    let (many, one) = (endpoint("10.0.0.1:80", 4, 4), endpoint("10.0.0.1:80", 4, 1));
    let silent = EndpointInfo { rank_numbering: RankNumbering::None, ..one.clone() };
    for (engine, info, surface, rank, expected) in [
        (Engine::Vllm, &many, Surface::Chat, Some(6), Some(6)),
        (Engine::Vllm, &many, Surface::Other, Some(6), None),
        (Engine::Vllm, &many, Surface::Chat, Some(8), None),
        (Engine::Vllm, &many, Surface::Chat, None, None),
        (Engine::Trtllm, &many, Surface::Chat, Some(6), None),
        // Whoever is the only rank of its endpoint serves what comes there.
        (Engine::Vllm, &silent, Surface::Other, Some(4), Some(4)),
        (Engine::Trtllm, &one, Surface::Chat, Some(4), Some(4)),
        (Engine::Trtllm, &one, Surface::Chat, Some(5), None),
    ] {
        let got = carried(engine, info.clone(), surface, rank);
        assert_eq!(got, expected, "{engine:?} {info:?} {surface:?} {rank:?}");
    }
}

#[test]
fn one_endpoint_a_rank_is_steered_by_address_alone() {
    let single =
        |address, rank| EndpointInfo { rank_numbering: RankNumbering::None, ..endpoint(address, rank, 1) };
    let directory = of(&[worker("w0", &[single("10.0.0.1:80", 0), single("10.0.0.2:80", 1)])]);
    assert_eq!(on_the_wire(&directory.workers[0], 1), (Some("10.0.0.2:80"), None));
    assert_eq!(directory.workers[0].hashed_rank(RankHash(7)), Some(Rank(1)));
}

#[test]
fn a_gap_between_endpoints_declares_no_rank() {
    let directory = of(&[worker("w0", &[endpoint("10.0.0.1:80", 0, 2), endpoint("10.0.0.2:80", 8, 2)])]);
    let worker = &directory.workers[0];
    let declared: Vec<u32> = (0..12).filter(|rank| worker.declares(Rank(*rank))).collect();
    assert_eq!(declared, [0, 1, 8, 9]);
    for hash in 0..50 {
        let rank = worker.hashed_rank(RankHash(hash)).unwrap();
        assert!(worker.endpoint(Some(rank), 0).is_some(), "{rank} is served");
        assert!(worker.endpoint(None, hash).is_some());
    }
}

#[test]
fn impossible_ranges_do_no_harm() {
    let directory = of(&[
        worker("w0", &[endpoint("10.0.0.1:80", u32::MAX, 4)]),
        worker("w1", &[endpoint("10.0.0.2:80", 0, u32::MAX), endpoint("10.0.0.3:80", u32::MAX, 9)]),
        worker("w2", &[endpoint("10.0.0.4:80", 0, 0)]),
    ]);
    for worker in &directory.workers {
        for draw in [0, 1, 3, u64::MAX, u64::MAX - 1] {
            let _ = worker.endpoint(None, draw);
            let _ = worker.hashed_rank(RankHash(draw));
            let _ = worker.declares(Rank(u32::MAX));
        }
    }
    assert_eq!(directory.workers[2].dp_size, 1, "a size of zero counts as one");
}

#[test]
fn states_and_loads_come_from_the_fleet() {
    let mut directory = Directory::new(&small_fleet());
    assert!(directory.workers.iter().all(|w| w.state == WorkerState::Joining && w.fleet_in_flight == 0));
    directory.update(&Fleet {
        version: 2,
        workers: vec![status("w1", WorkerState::Down, 4), status("unknown", WorkerState::Ready, 9)],
    });
    assert_eq!((directory.workers[1].state, directory.workers[1].fleet_in_flight), (WorkerState::Down, 4));
    assert_eq!(directory.workers[0].state, WorkerState::Joining, "not listed: as it was");
    let candidates = directory.candidates(&[0, 1], |w| u64::from(w.fleet_in_flight));
    assert_eq!(
        candidates.iter().map(|c| (c.worker_hash, c.load)).collect::<Vec<_>>(),
        [(worker_hash(&id("w0")), 0), (worker_hash(&id("w1")), 4)]
    );
}

#[test]
fn suspects_take_new_sessions_only_as_a_last_resort() {
    use WorkerState::{Down, Draining, Joining, Ready, Suspect};
    let mut directory = Directory::new(&small_fleet());
    for (states, expected) in [
        ([Ready, Joining, Suspect], &["w0", "w1"][..]),
        ([Draining, Ready, Down], &["w1"]),
        ([Suspect, Suspect, Ready], &["w2"]),
        ([Suspect, Draining, Suspect], &["w0", "w2"]),
        ([Suspect, Down, Draining], &["w0"]),
        ([Draining, Down, Draining], &[]),
    ] {
        let workers =
            states.iter().enumerate().map(|(n, state)| status(&format!("w{n}"), *state, 0)).collect();
        directory.update(&Fleet { version: 2, workers });
        assert_eq!(open(&directory), expected, "{states:?}");
    }
    for (state, bound, new) in [
        (Joining, true, true),
        (Ready, true, true),
        (Suspect, true, false),
        (Draining, true, false),
        (Down, false, false),
    ] {
        assert_eq!((state.serves_bound(), state.takes_new()), (bound, new), "{state:?}");
    }
}
