//! The service is killed under load and comes back, with what it had written down and without: no turn fails, nobody moves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use e2e::client::Slot;
use e2e::{Client, EngineSpec, Steering, World, WorldPlan, wait_for};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::support::{binding, in_flight, three_engines, turn};

/// How long it is away.
const AWAY: Duration = Duration::from_secs(10);
/// Pause of each client between two turns: enough load to notice a failure, little enough for any machine.
const PAUSE: Duration = Duration::from_millis(40);
/// Pause of the operator who declares the workers again, before each of them: longer than any service takes a silence for the end.
const DECLARING: Duration = Duration::from_millis(1500);
const BOUND: usize = 24;
/// Sessions that begin while it is away.
const NEW: usize = 24;

/// What the service still has when it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum File {
    Kept,
    Lost,
}

/// F5, in all four ways at once: they wait for the same ten seconds.
#[tokio::test(flavor = "multi_thread")]
async fn ten_seconds_away_under_load() {
    tokio::join!(
        away_and_back(Steering::Cluster, File::Kept),
        away_and_back(Steering::Cluster, File::Lost),
        away_and_back(Steering::Endpoints, File::Kept),
        away_and_back(Steering::Endpoints, File::Lost),
    );
}

async fn away_and_back(steering: Steering, file: File) {
    let told = format!("{steering:?}, file {file:?}");
    let mut world = WorldPlan::new(steering, &three_engines()).envoys(2).start().await.unwrap();
    let clients = [0, 1].map(|n| Client::fresh_connections(world.envoys[n].address()).unwrap());
    let mut homes = BTreeMap::new();
    for n in 0..BOUND {
        let key = format!("bound-{n}");
        homes.insert(key.clone(), turn(&clients[n % 2], &key).await);
        binding(&world, &key).await;
        // The other Envoy learns it while there is somebody to learn from.
        assert_eq!(turn(&clients[(n + 1) % 2], &key).await, homes[&key], "{told}");
    }
    let load = Load::on(&clients, &homes);
    world.service.kill();
    let killed = Instant::now();
    let begun = begin(&clients, &told).await;
    tokio::time::sleep_until(killed + AWAY).await;
    come_back(&mut world, file).await;
    homes.extend(begun);
    // Turns while it learns, and when it has.
    for _ in 0..3 {
        for (key, home) in &homes {
            for client in &clients {
                assert_eq!(&turn(client, key).await, home, "{told}: {key}");
            }
        }
    }
    known_again(&world, &clients, &homes).await;
    for (key, home) in &homes {
        assert_eq!(&turn(&clients[0], key).await, home, "{told}: {key}");
    }
    load.ends(&told).await;
    counts_are_right(&world).await;
}

/// Sessions that nobody has seen before, each at both Envoys: placed alike, and by no service.
async fn begin(clients: &[Client; 2], told: &str) -> BTreeMap<String, Slot> {
    let mut begun = BTreeMap::new();
    for n in 0..NEW {
        let key = format!("begun-{n}");
        let slots = [turn(&clients[n % 2], &key).await, turn(&clients[(n + 1) % 2], &key).await];
        assert_eq!(slots[0], slots[1], "{told}: two Envoys placed {key} apart");
        begun.insert(key, slots[0].clone());
    }
    begun
}

/// Starts it again; without its file, workers are declared anew one after the other, as an operator's script would.
async fn come_back(world: &mut World, file: File) {
    if file == File::Lost {
        world.service.lose_file().unwrap();
    }
    world.service.start_again().await.unwrap();
    if file == File::Lost {
        assert!(world.service.topology("nobody").await.unwrap().is_empty(), "the file is not lost");
        for engine in &world.engines {
            // The load goes on: turns at both Envoys, of sessions whose workers nobody has told the service of.
            tokio::time::sleep(DECLARING).await;
            world.service.register(engine).await.unwrap();
        }
    }
}

/// Until the service has every session where it is; turns go on meanwhile, and none is elsewhere.
async fn known_again(world: &World, clients: &[Client; 2], homes: &BTreeMap<String, Slot>) {
    for (key, home) in homes {
        wait_for(&format!("{key} to be known again"), async || {
            let said = world.service.session(key).await.ok()?.body;
            if said["state"] == "bound" {
                assert_eq!(said["target"]["worker"], home.worker.as_str(), "{key}: {said}");
                return Some(());
            }
            assert_eq!(&turn(&clients[0], key).await, home, "{key}");
            None
        })
        .await
        .unwrap();
    }
}

async fn counts_are_right(world: &World) {
    for engine in &world.engines {
        in_flight(world, engine.name(), 0).await;
    }
}

/// Turns of bound sessions, all the time, each judged.
struct Load {
    stop: Arc<AtomicBool>,
    turns: JoinSet<usize>,
}

impl Load {
    fn on(clients: &[Client; 2], homes: &BTreeMap<String, Slot>) -> Self {
        let (stop, mut turns) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
        for (n, client) in clients.iter().enumerate() {
            let (stop, client, homes) = (Arc::clone(&stop), client.clone(), homes.clone());
            turns.spawn(async move {
                let mut count = 0;
                for (key, home) in homes.iter().cycle().skip(n) {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    assert_eq!(&turn(&client, key).await, home, "{key}, turn {count} under load");
                    // And one that has no session.
                    assert_eq!(client.chat(None, "x").await.unwrap().status, 200);
                    count += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                count
            });
        }
        Self { stop, turns }
    }

    async fn ends(self, told: &str) {
        self.stop.store(true, Ordering::Relaxed);
        let count: usize = self.turns.join_all().await.into_iter().sum();
        assert!(count > 20, "{told}: only {count} turns in all that time");
    }
}

/// Envoy itself starts while the service is down: it serves by its default route, and steers once the service is there.
#[tokio::test]
async fn envoy_started_without_the_service() {
    for steering in [Steering::Cluster, Steering::Endpoints] {
        let engines = [EngineSpec::new("w0", 4), EngineSpec::new("w1", 4).from(4)];
        let plan = WorldPlan::new(steering, &engines).without_service();
        let mut world = plan.start().await.unwrap();
        let client = world.client();
        for n in 0..8 {
            turn(&client, &format!("early-{n}")).await;
        }
        assert_eq!(world.envoy().requests("no_topology").await.unwrap(), 8, "{steering:?}");
        world.service.start_again().await.unwrap();
        world.warm_one(0, &world.names()).await.unwrap();
        let slot = turn(&client, "session-1").await;
        assert!(slot.rank.is_some() && turn(&client, "session-1").await == slot, "{steering:?}");
    }
}
