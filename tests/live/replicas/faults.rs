//! What breaks under load, one thing after the other: the way to the store, the store, a replica, an Envoy. No turn fails, nobody who was
//! bound moves; who began in a cut settles.

use super::{all_say, clients, plan};
use crate::support::turn;
use e2e::client::Slot;
use e2e::{Client, World, wait_for};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Sessions that are bound before anything breaks, and turns of each while things do.
const BOUND: usize = 200;
/// Clients that take their turns.
const CLIENTS: usize = 8;
/// Sessions that begin in each fault.
const BORN: usize = 12;
/// How long each fault lasts.
const FAULT: Duration = Duration::from_secs(2);

/// 200 sessions take turns at two Envoys without end, while things break and mend.
#[tokio::test(flavor = "multi_thread")]
async fn everything_breaks_under_load() {
    let mut world = plan(2).start().await.unwrap();
    let homes = bind(&world).await;
    let load = Load::on(&world, &homes);

    let born = cut(&world).await;
    settle(&world, &born, "cut").await;

    let born = lose_store(&mut world).await;
    settle(&world, &born, "store").await;

    world.replica_mut(1).kill();
    let born = begin(&world, "replica").await;
    tokio::time::sleep(FAULT).await;
    world.replica_mut(1).start_again().await.unwrap();
    settle(&world, &born, "replica").await;

    let turns = load.ends().await;
    assert!(turns >= BOUND * 20, "{turns} turns only");
    // All replicas know all of them where they are.
    for (key, home) in &homes {
        for replica in 0..2 {
            let said = super::known(&world, replica, key).await;
            assert_eq!(said["target"]["worker"], home.worker.as_str(), "replica {replica}, {key}: {said}");
        }
    }
}

/// The network between one replica and the store.
async fn cut(world: &World) -> BTreeMap<String, Vec<Slot>> {
    let way = &world.shared.as_ref().unwrap().ways[1];
    way.cut();
    let said = wait_for("the second replica to say that the store is away", async || {
        let said = world.replica(1).call("GET", "/readyz", None).await.ok()?;
        said.body.to_string().contains("store_away").then_some(said)
    });
    assert_eq!(said.await.unwrap().status, 200, "it goes on from memory");
    let born = begin(world, "cut").await;
    tokio::time::sleep(FAULT).await;
    way.mend();
    born
}

/// The store itself: killed, and started again without anything.
async fn lose_store(world: &mut World) -> BTreeMap<String, Vec<Slot>> {
    world.shared.as_mut().unwrap().redis.kill();
    for replica in 0..2 {
        wait_for("a replica to say that the store is away", async || {
            let said = world.replica(replica).call("GET", "/readyz", None).await.ok()?;
            said.body.to_string().contains("store_away").then_some(())
        })
        .await
        .unwrap();
    }
    let born = begin(world, "store").await;
    tokio::time::sleep(FAULT).await;
    world.shared.as_mut().unwrap().redis.restart().await.unwrap();
    born
}

async fn bind(world: &World) -> BTreeMap<String, Slot> {
    let clients = clients(world);
    let mut homes = BTreeMap::new();
    for n in 0..BOUND {
        let key = format!("bound-{n}");
        homes.insert(key.clone(), turn(&clients[n % 2], &key).await);
    }
    for key in homes.keys() {
        all_say(world, key, "bound").await;
    }
    // Each Envoy has learned of each while all is well.
    for (key, home) in &homes {
        for client in &clients {
            assert_eq!(&turn(client, key).await, home);
        }
    }
    homes
}

/// Sessions that begin now, each at both Envoys.
async fn begin(world: &World, fault: &str) -> BTreeMap<String, Vec<Slot>> {
    let clients = clients(world);
    let mut born = BTreeMap::new();
    for n in 0..BORN {
        let key = format!("{fault}-{n}");
        let slots = vec![turn(&clients[n % 2], &key).await, turn(&clients[(n + 1) % 2], &key).await];
        born.insert(key, slots);
    }
    born
}

/// Until both Envoys serve each at one slot; it is one of those it began at.
async fn settle(world: &World, born: &BTreeMap<String, Vec<Slot>>, fault: &str) {
    let (begun, clients) = (Instant::now(), clients(world));
    for (key, slots) in born {
        let what = format!("{key} to settle");
        let settled = wait_for(&what, async || {
            let (one, other) = (turn(&clients[0], key).await, turn(&clients[1], key).await);
            (one == other).then_some(one)
        })
        .await
        .unwrap();
        assert!(slots.contains(&settled), "{key} began at {slots:?} and is at {settled}");
        for client in &clients {
            assert_eq!(turn(client, key).await, settled, "{key} moved again");
        }
    }
    eprintln!("{fault}: {} sessions agree {} ms after it mended", born.len(), begun.elapsed().as_millis());
}

/// Turns without end, and what became of them.
struct Load {
    over: Arc<AtomicBool>,
    clients: JoinSet<usize>,
}

impl Load {
    fn on(world: &World, homes: &BTreeMap<String, Slot>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let mut clients = JoinSet::new();
        for n in 0..CLIENTS {
            let client = Client::new(world.envoys[n % world.envoys.len()].address()).unwrap();
            let own = homes.iter().skip(n).step_by(CLIENTS).map(|(key, home)| (key.clone(), home.clone()));
            let (over, own): (_, Vec<(String, Slot)>) = (Arc::clone(&over), own.collect());
            clients.spawn(async move { play(&client, &own, &over).await });
        }
        Self { over, clients }
    }

    /// How many turns there were; each was served where its session is bound.
    async fn ends(self) -> usize {
        self.over.store(true, Ordering::SeqCst);
        self.clients.join_all().await.into_iter().sum()
    }
}

async fn play(client: &Client, own: &[(String, Slot)], over: &AtomicBool) -> usize {
    let mut turns = 0;
    while !over.load(Ordering::SeqCst) || turns < own.len() * 20 {
        for (key, home) in own {
            assert_eq!(&turn(client, key).await, home, "{key}, after {turns} turns");
            turns += 1;
        }
    }
    turns
}
