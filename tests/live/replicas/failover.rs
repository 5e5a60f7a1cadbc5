//! Envoys hear of moves and releases wherever they were made: of another replica than their own, of another one than before their own
//! died, and of one that was stopped for longer than claims live. What such a change costs is printed.

use super::{all_say, clients, known, move_away, plan, release};
use crate::support::turn;
use e2e::client::Slot;
use e2e::kept::{Vm, session_of};
use e2e::{Client, World, wait_for};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Sessions that an Envoy has in its cache.
const SESSIONS: usize = 60;
/// Longer than a claim lives, and than a binding that nobody touches.
const STOPPED: Duration = Duration::from_secs(9);

/// Sessions that begin now and are in the cache of each Envoy.
async fn bind(world: &World, count: usize) -> Vec<(String, Slot)> {
    let clients = clients(world);
    let mut homes = Vec::new();
    for n in 0..count {
        let key = format!("s{n}");
        let home = turn(&clients[n % clients.len()], &key).await;
        homes.push((key, home));
    }
    for (key, home) in &homes {
        all_say(world, key, "bound").await;
        for client in &clients {
            assert_eq!(&turn(client, key).await, home, "{key}");
        }
    }
    homes
}

/// What an Envoy asked its replica, by what it was answered; and what that replica was uploaded.
#[derive(Clone, Copy, Debug, Default)]
struct Costs {
    pinned: u64,
    bound: u64,
    held: u64,
    uploads: u64,
    gaps: u64,
}

impl Costs {
    async fn of(world: &World, envoy: usize, replica: usize) -> Self {
        let (envoy, replica) = (&world.envoys[envoy], world.replica(replica));
        Self {
            pinned: envoy.requests("pinned").await.unwrap(),
            bound: envoy.requests("routed_bound").await.unwrap(),
            held: envoy.requests("routed_held").await.unwrap(),
            uploads: replica.metric("rankpin_uploads_total", &[]).await.unwrap() as u64,
            gaps: replica.metric("rankpin_watch_gaps_total", &[]).await.unwrap() as u64,
        }
    }

    const fn asked(&self) -> u64 {
        self.bound + self.held
    }

    const fn since(self, before: Self) -> Self {
        Self {
            pinned: self.pinned - before.pinned,
            bound: self.bound - before.bound,
            held: self.held - before.held,
            uploads: self.uploads - before.uploads,
            gaps: self.gaps - before.gaps,
        }
    }
}

/// Until a session that moved is served there; then it stays.
async fn follows(client: &Client, key: &str, moved: &Slot) {
    wait_for(&format!("{key} to be served where it moved to"), async || {
        (turn(client, key).await == *moved).then_some(())
    })
    .await
    .unwrap();
    for _ in 0..3 {
        assert_eq!(&turn(client, key).await, moved, "{key} went back");
    }
}

/// A replica ends a session; then until a turn at `client` begins it anew, which `told` hears of. It stays there.
async fn ends_and_begins(world: &World, replica: usize, client: &Client, told: usize, key: &str) {
    let before = seq(&known(world, replica, key).await);
    release(world, replica, key).await;
    let mut slot = None;
    wait_for(&format!("{key} to begin anew"), async || {
        slot = Some(turn(client, key).await);
        let said = known(world, told, key).await;
        (said["state"] == "bound" && seq(&said) > before).then_some(())
    })
    .await
    .unwrap();
    follows(client, key, &slot.unwrap()).await;
}

/// Of a session's version.
fn seq(said: &Value) -> u64 {
    said["version"]["seq"].as_u64().unwrap_or_else(|| panic!("no version in {said}"))
}

/// Nothing fails: what a replica did is known at an Envoy that asks another one, before it asks.
#[tokio::test(flavor = "multi_thread")]
async fn moves_and_releases_of_one_replica_reach_the_envoys_of_another() {
    let world = plan(2).start().await.unwrap();
    let (homes, clients) = (bind(&world, 8).await, clients(&world));
    let before = Costs::of(&world, 0, 0).await;
    for (key, home) in &homes[..4] {
        let moved = move_away(&world, 1, &clients[1], key, home).await;
        follows(&clients[0], key, &moved).await;
    }
    for (key, _) in &homes[4..] {
        ends_and_begins(&world, 1, &clients[0], 0, key).await;
    }
    // It asks for its own first turns, and may between the news of an end and that of a new begin; a cache that was never told would not.
    let cost = Costs::of(&world, 0, 0).await.since(before);
    assert!(cost.asked() <= 16 && cost.uploads == 0 && cost.gaps == 0, "{cost:?}");
    eprintln!("4 that moved and 4 that ended cost the other Envoy {cost:?}");
}

/// An Envoy's replica is killed, and comes back: what others move and release meanwhile and afterwards reaches it all the same. It
/// checks each binding in its cache once by asking, and uploads them once; all are where they were.
#[tokio::test(flavor = "multi_thread")]
async fn an_envoy_whose_replica_was_killed_hears_of_moves_from_the_next() {
    let mut world = plan(3).start().await.unwrap();
    let (homes, clients) = (bind(&world, SESSIONS).await, clients(&world));
    let (changed, still) = homes.split_at(8);

    world.replica_mut(0).kill();
    let before = Costs::of(&world, 0, 1).await;
    let begun = Instant::now();
    changes(&world, &clients, &changed[..2]).await;
    eprintln!("killed: the Envoy knows {} ms later what moved", begun.elapsed().as_millis());
    stay(&clients[0], still).await;
    uploaded(&world, 1, before).await;
    let once = Costs::of(&world, 0, 1).await.since(before);
    eprintln!("killed: {} bindings in the cache cost {once:?}", SESSIONS);
    assert!(once.asked() <= SESSIONS as u64 && once.uploads == 1 && once.gaps == 1, "{once:?}");
    stay(&clients[0], still).await;
    changes(&world, &clients, &changed[2..4]).await;
    let after = Costs::of(&world, 0, 1).await.since(before);
    assert!(after.asked() <= once.asked() + 4, "{after:?}: told, not asked");
    assert_eq!((after.uploads, after.gaps), (1, 1), "{after:?}");

    // What the replica counts begins anew with it.
    let before = Costs { uploads: 0, gaps: 0, ..Costs::of(&world, 0, 1).await };
    world.replica_mut(0).start_again().await.unwrap();
    uploaded(&world, 0, before).await;
    changes(&world, &clients, &changed[4..6]).await;
    stay(&clients[0], still).await;
    let back = Costs::of(&world, 0, 0).await.since(before);
    eprintln!("back: they cost {back:?}");
    assert!(back.asked() <= SESSIONS as u64 && back.uploads == 1 && back.gaps == 1, "{back:?}");
    changes(&world, &clients, &changed[6..]).await;
    let after = Costs::of(&world, 0, 0).await.since(before);
    assert!(after.asked() <= back.asked() + 4, "{after:?}: told, not asked");
    assert_eq!((after.uploads, after.gaps), (1, 1), "{after:?}");
}

/// Until the first Envoy has told a replica what is in its cache.
async fn uploaded(world: &World, replica: usize, before: Costs) {
    wait_for("the Envoy's upload", async || {
        (Costs::of(world, 0, replica).await.since(before).uploads > 0).then_some(())
    })
    .await
    .unwrap();
}

/// At the last replica one session moves and one is released; the first Envoy comes to know.
async fn changes(world: &World, clients: &[Client], two: &[(String, Slot)]) {
    let [(moves, home), (ends, _)] = two else { panic!("{two:?}") };
    let moved = move_away(world, 2, &clients[2], moves, home).await;
    follows(&clients[0], moves, &moved).await;
    ends_and_begins(world, 2, &clients[0], 2, ends).await;
}

async fn stay(client: &Client, still: &[(String, Slot)]) {
    for (key, home) in still {
        assert_eq!(&turn(client, key).await, home, "{key}");
    }
}

/// A replica is stopped for longer than claims and bindings live, and goes on with the clock and the memory it had: it pulls nobody off,
/// and a session that it had promised a slot is where it began in the meantime.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_was_stopped_pulls_nobody_off() {
    let world = plan(2).pool(json!({"ttl_s": 6})).start().await.unwrap();
    let (homes, clients) = (bind(&world, 16).await, clients(&world));
    let replica = world.replica(1);
    let mut vm = Vm::connect(replica.data(), "elsewhere", 1).await.unwrap();
    let promised = vm.turn(session_of("promised")).await.unwrap();

    replica.pause().unwrap();
    let (begun, mut began) = (Instant::now(), None);
    while begun.elapsed() < STOPPED {
        for (key, home) in &homes {
            for client in &clients {
                assert_eq!(&turn(client, key).await, home, "{key} after {:?}", begun.elapsed());
            }
        }
        // The claim's end is what lets it begin elsewhere.
        if begun.elapsed() > STOPPED.mul_f32(0.8) {
            let slot = turn(&clients[0], "promised").await;
            assert_eq!(began.get_or_insert_with(|| slot.clone()), &slot);
        }
    }
    replica.resume().unwrap();
    // What it is asked first it answers as if it had been there.
    let (mut late, mut answers) = (Vm::connect(replica.data(), "late", 2).await.unwrap(), BTreeMap::new());
    for (key, _) in &homes {
        let reply = late.turn(session_of(key)).await.unwrap();
        answers.insert(key.clone(), reply.target.unwrap());
    }
    late.report(Vec::new()).await.unwrap();
    // Late as it is, the turn was served: it is told.
    vm.report(Vec::new()).await.unwrap();
    for (key, home) in &homes {
        assert_eq!(answers[key].worker.as_str(), home.worker, "{key}");
        for client in &clients {
            assert_eq!(&turn(client, key).await, home, "{key}");
        }
    }
    let began = began.unwrap();
    for replica in 0..2 {
        wait_for(&format!("replica {replica} to know where the promised session began"), async || {
            let said = known(&world, replica, "promised").await;
            (said["state"] == "bound" && said["target"]["worker"] == began.worker.as_str()).then_some(())
        })
        .await
        .unwrap();
    }
    eprintln!("promised {:?}, began at {began}", promised.target);
    for client in &clients {
        assert_eq!(turn(client, "promised").await, began);
    }
}
