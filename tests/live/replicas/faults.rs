//! What breaks under load, one thing after the other: the way to the store, the store, a replica, an Envoy. No turn fails, nobody who was
//! bound moves; who began or moved in a cut settles.

use super::load::Load;
use super::{all_say, clients, known, move_away, plan};
use crate::support::turn;
use e2e::client::Slot;
use e2e::{World, wait_for};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Sessions that are bound before anything breaks, and turns of each while things do.
const BOUND: usize = 200;
const TURNS: usize = 20;
/// Sessions that begin in each fault.
const BORN: usize = 12;
/// Sessions that move in the cut of one way.
const MOVED: usize = 3;
/// How long each fault lasts at least.
const FAULT: Duration = Duration::from_secs(2);

/// Where sessions were served in a fault, turn by turn.
type Served = BTreeMap<String, Vec<Slot>>;

/// 200 sessions take turns at two Envoys without end, while things break and mend.
#[tokio::test(flavor = "multi_thread")]
async fn everything_breaks_under_load() {
    let mut world = plan(2).start().await.unwrap();
    let homes = bind(&world, "bound", BOUND).await;
    let movers = bind(&world, "mover", MOVED).await;
    let load = Load::on(&world, &homes, TURNS);

    let born = cut_one(&world, &movers).await;
    settle(&world, &born, "cut of one way").await;

    let born = cut_both(&world).await;
    settle(&world, &born, "cut of both ways").await;

    let born = lose_store(&mut world).await;
    settle(&world, &born, "store").await;

    world.replica_mut(1).kill();
    let born = begin(&world, "replica").await;
    tokio::time::sleep(FAULT).await;
    world.replica_mut(1).start_again().await.unwrap();
    settle(&world, &born, "replica").await;

    lose_envoy(&mut world, &load, &homes).await;

    let done = load.ends().await;
    eprintln!("{done}");
    assert!(done.turns >= BOUND * TURNS, "{done}");
    assert!(done.wrong.is_empty() && done.failed.is_empty(), "{done}");
    // All replicas know all of them where they are, and of no request that is still in flight: not of the dead Envoy's either.
    for replica in 0..2 {
        for (key, home) in &homes {
            let said = known(&world, replica, key).await;
            assert_eq!(said["target"]["worker"], home.worker.as_str(), "replica {replica}, {key}: {said}");
        }
        for worker in world.names() {
            wait_for("no request in flight", async || {
                (world.replica(replica).in_flight(&worker).await.ok()? == 0).then_some(())
            })
            .await
            .unwrap();
        }
    }
}

/// The network between one replica and the store.
async fn cut_one(world: &World, movers: &BTreeMap<String, Slot>) -> Served {
    let ways = &world.shared.as_ref().unwrap().ways;
    ways[1].cut();
    is_away(world, 1).await;
    let mut served = begin(world, "cut-of-one").await;
    let clients = clients(world);
    for (key, home) in movers {
        let moved = move_away(world, 0, &clients[0], key, home).await;
        // The other Envoy cannot know.
        served.insert(key.clone(), vec![moved, turn(&clients[1], key).await]);
    }
    tokio::time::sleep(FAULT).await;
    ways[1].mend();
    served
}

/// The network between both replicas and the store, which lives on.
async fn cut_both(world: &World) -> Served {
    let ways = &world.shared.as_ref().unwrap().ways;
    ways.iter().for_each(|way| way.cut());
    for replica in 0..2 {
        is_away(world, replica).await;
    }
    let served = begin(world, "cut-of-both").await;
    tokio::time::sleep(FAULT).await;
    ways.iter().for_each(|way| way.mend());
    served
}

/// The store itself: killed, and started again without anything.
async fn lose_store(world: &mut World) -> Served {
    world.shared.as_mut().unwrap().redis.kill();
    for replica in 0..2 {
        is_away(world, replica).await;
    }
    let served = begin(world, "store").await;
    tokio::time::sleep(FAULT).await;
    world.shared.as_mut().unwrap().redis.restart().await.unwrap();
    served
}

/// An Envoy: its clients go to the other one, and come back when it is there again, having forgotten everything.
async fn lose_envoy(world: &mut World, load: &Load, homes: &BTreeMap<String, Slot>) {
    load.leaves(1);
    world.envoys[1].kill();
    let clients_left = &clients(world)[..1];
    let mut born = BTreeMap::new();
    for n in 0..BORN {
        let key = format!("envoy-{n}");
        born.insert(key.clone(), turn(&clients_left[0], &key).await);
    }
    tokio::time::sleep(FAULT).await;
    world.envoys[1].start_again().await.unwrap();
    let begun = Instant::now();
    // Who sends it traffic waits until it knows the workers: before that it passes requests through.
    world.warm_one(1, &world.names()).await.unwrap();
    load.returns(1, world);
    let back = &clients(world)[1];
    for (key, home) in homes.iter().chain(&born) {
        assert_eq!(&turn(back, key).await, home, "{key} at the Envoy that is new");
    }
    eprintln!(
        "Envoy: {} sessions are home {} ms after it is there",
        homes.len() + born.len(),
        begun.elapsed().as_millis()
    );
}

async fn is_away(world: &World, replica: usize) {
    let what = format!("replica {replica} to say that the store is away");
    let said = wait_for(&what, async || {
        let said = world.replica(replica).call("GET", "/readyz", None).await.ok()?;
        said.body.to_string().contains("store_away").then_some(said)
    });
    assert_eq!(said.await.unwrap().status, 200, "it goes on from memory");
}

/// Sessions that begin while all is well; each Envoy has learned of each.
async fn bind(world: &World, name: &str, count: usize) -> BTreeMap<String, Slot> {
    let clients = clients(world);
    let mut homes = BTreeMap::new();
    for n in 0..count {
        let key = format!("{name}-{n}");
        homes.insert(key.clone(), turn(&clients[n % 2], &key).await);
    }
    for (key, home) in &homes {
        all_say(world, key, "bound").await;
        for client in &clients {
            assert_eq!(&turn(client, key).await, home);
        }
    }
    homes
}

/// Sessions that begin now, each at both Envoys.
async fn begin(world: &World, fault: &str) -> Served {
    let clients = clients(world);
    let mut born = BTreeMap::new();
    for n in 0..BORN {
        let key = format!("{fault}-{n}");
        let slots = vec![turn(&clients[n % 2], &key).await, turn(&clients[(n + 1) % 2], &key).await];
        born.insert(key, slots);
    }
    born
}

/// Until both replicas say one slot of each, and both Envoys serve it there: one of those it was at, and no Envoy's turns moved twice.
async fn settle(world: &World, served: &Served, fault: &str) {
    let (begun, clients) = (Instant::now(), clients(world));
    for key in served.keys() {
        wait_for(&format!("replicas to agree on {key}"), async || {
            let (one, other) = (known(world, 0, key).await, known(world, 1, key).await);
            let agree = one["state"] == "bound"
                && one["target"] == other["target"]
                && one["version"] == other["version"];
            agree.then_some(())
        })
        .await
        .unwrap();
    }
    let agreed = begun.elapsed();
    let mut moved = 0;
    for (key, slots) in served {
        let mut turns = vec![Vec::new(); clients.len()];
        wait_for(&format!("Envoys to agree on {key}"), async || {
            for (client, turns) in clients.iter().zip(&mut turns) {
                turns.push(turn(client, key).await);
            }
            (turns[0].last() == turns[1].last()).then_some(())
        })
        .await
        .unwrap();
        let settled = turns[0].last().unwrap().clone();
        assert!(slots.contains(&settled), "{key} was at {slots:?} and is at {settled}");
        for (client, turns) in clients.iter().zip(&mut turns) {
            turns.push(turn(client, key).await);
            turns.dedup();
            assert!(
                turns.len() <= 2 && turns.last() == Some(&settled),
                "{key} moved more than once: {turns:?}"
            );
        }
        moved += usize::from(slots.iter().any(|slot| *slot != settled));
    }
    eprintln!(
        "{fault}: replicas agree on {} sessions {} ms after it mended, Envoys after {} ms; {moved} of them moved",
        served.len(),
        agreed.as_millis(),
        begun.elapsed().as_millis()
    );
}
