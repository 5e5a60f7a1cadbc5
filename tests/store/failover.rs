//! A master that dies, and a node of a cluster that does, or whose slot moves: each call ends in its named error, the store is found
//! again where it is now, and replicas tell it what it lost. Writes that were not replicated yet are lost without a word of the server.

use std::time::Duration;

use anyhow::Result;
use e2e::kept::{Vm, session_of};
use e2e::scratch::Scratch;
use e2e::wait::wait_within;
use e2e::{Redis, Service, ServicePlan, wait_for};
use routing::contract::Target;
use routing::time::Millis;
use serde_json::json;
use state_service::store::{Claim, Standing, Store, StoreError};

use crate::support::{bound, claim_one, patient};

/// Sessions bound while the second server follows, and while it does not.
const FOLLOWED: usize = 120;
const LOST: usize = 40;

/// A sentinel that finds itself late does nothing for half a minute.
const FAILED_OVER: Duration = Duration::from_secs(90);

/// A master, a server that follows it, and a sentinel that makes that one master when the first is gone.
struct Pair {
    master: Redis,
    second: Redis,
    sentinel: Redis,
}

impl Pair {
    async fn start() -> Result<Self> {
        let master = Redis::start().await?;
        let port = master.address().port().to_string();
        let second = Redis::start_with(&["--replicaof", "127.0.0.1", &port]).await?;
        let sentinel = Redis::sentinel("main", &master).await?;
        // Longer than a machine stands still that is only busy.
        for (name, ms) in [("down-after-milliseconds", "5000"), ("failover-timeout", "5000")] {
            sentinel.command::<()>(&["SENTINEL", "SET", "main", name, ms]).await?;
        }
        let pair = Self { master, second, sentinel };
        wait_for("the sentinel to know who follows", async || {
            let known = pair
                .sentinel
                .command::<Vec<redis::Value>>(&["SENTINEL", "REPLICAS", "main"])
                .await
                .ok()?
                .len();
            (known == 1).then_some(())
        })
        .await?;
        pair.is_followed().await?;
        Ok(pair)
    }

    fn url(&self) -> String {
        format!("redis-sentinel://{}/main", self.sentinel.address())
    }

    /// Until the second server has all that the master has.
    async fn is_followed(&self) -> Result<()> {
        wait_for("the second server to have everything", async || {
            let master: String = self.master.command(&["INFO", "replication"]).await.ok()?;
            let second: String = self.second.command(&["INFO", "replication"]).await.ok()?;
            let is_up = second.contains("master_link_status:up");
            (is_up && field(&master, "master_repl_offset")? == field(&second, "slave_repl_offset")?)
                .then_some(())
        })
        .await
    }

    /// From now on the second server hears nothing of what is written: stopped, it cannot follow again.
    async fn stop_following(&self) -> Result<()> {
        self.second.pause()?;
        self.master.command::<i64>(&["CLIENT", "KILL", "TYPE", "replica"]).await?;
        Ok(())
    }

    /// The master dies; returns once the second server is one.
    async fn fail_over(&mut self) -> Result<()> {
        self.master.kill();
        self.second.resume()?;
        wait_within(FAILED_OVER, "the second server to be master", async || {
            let info: String = self.second.command(&["INFO", "replication"]).await.ok()?;
            info.contains("role:master").then_some(())
        })
        .await
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

/// Asks until it is done; and the errors on the way.
async fn at_last<T>(mut ask: impl AsyncFnMut() -> Result<T, StoreError>) -> Result<(T, Vec<StoreError>)> {
    let mut errors = Vec::new();
    let done = wait_for("a call that is answered", async || match ask().await {
        Ok(done) => Some(done),
        Err(error) => {
            errors.push(error);
            None
        }
    });
    Ok((done.await?, errors))
}

fn is_away(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Away { .. }
            | StoreError::Lost { .. }
            | StoreError::Deadline { .. }
            | StoreError::Refused { .. }
    )
}

#[tokio::test]
async fn who_is_master_now_is_found_and_lost_writes_are_noticed() -> Result<()> {
    let mut pair = Pair::start().await?;
    let mut config = patient(&pair.url())?;
    config.beat = Millis(50);
    let store = Store::open(&config).await?;
    store.merge(&[bound(1, (1, 1), "w", 0)], &[]).await?;
    let before = store.status();
    pair.is_followed().await?;
    pair.stop_following().await?;
    store.merge(&[bound(2, (1, 1), "w", 0)], &[]).await?;
    pair.fail_over().await?;
    let (merge, errors) = at_last(async || store.merge(&[], &["there again".to_owned()]).await).await?;
    assert!(merge.entry.is_some() && errors.iter().all(is_away), "{errors:?}");
    let status = store.status();
    assert_eq!(
        (status.standing.clone(), status.epoch, status.losses),
        (Standing::Up, before.epoch, before.losses + 1)
    );
    let (one, two) = (bound(1, (1, 1), "w", 0).session.id, bound(2, (1, 1), "w", 0).session.id);
    let found: Vec<_> = store.read(&[one, two]).await?.iter().map(|known| known.session.id).collect();
    assert_eq!(found, [one], "what was not replicated is lost");
    // It is said once: what was told again is there.
    store.epoch().await?;
    assert_eq!(store.status().losses, status.losses);
    Ok(())
}

#[tokio::test]
async fn a_failover_that_loses_nothing_is_no_loss() -> Result<()> {
    let mut pair = Pair::start().await?;
    let store = Store::open(&patient(&pair.url())?).await?;
    store.merge(&[bound(1, (1, 1), "w", 0)], &[]).await?;
    pair.is_followed().await?;
    pair.fail_over().await?;
    at_last(async || store.epoch().await).await?;
    assert_eq!((store.figures().lost_writes, store.figures().epoch_changes), (0, 0));
    Ok(())
}

/// Binds sessions at a replica, all at one VM.
async fn bind(
    replica: &Service,
    life: u64,
    names: impl Iterator<Item = usize>,
) -> Result<Vec<(usize, Target)>> {
    let mut vm = Vm::connect(replica.data(), &format!("envoy-{life}"), life).await?;
    let mut homes = Vec::new();
    for name in names {
        let reply = vm.turn(session_of(&format!("s{name}"))).await?;
        homes.push((name, reply.target.unwrap()));
    }
    vm.report(Vec::new()).await?;
    Ok(homes)
}

/// Until a replica says of each session where it is bound.
async fn knows(replica: &Service, homes: &[(usize, Target)]) -> Result<()> {
    for (name, home) in homes {
        wait_for(&format!("a replica to know s{name}"), async || {
            let said = replica.session(&format!("s{name}")).await.ok()?.body;
            let there: Target = serde_json::from_value(said["target"].clone()).ok()?;
            (said["state"] == "bound" && there == *home).then_some(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_tell_a_new_master_what_the_old_one_had_not_told_it() -> Result<()> {
    let (mut pair, scratch) = (Pair::start().await?, Scratch::new()?);
    let mut replicas = Vec::new();
    for nth in 0..2 {
        let folder = scratch.path().join(format!("replica-{nth}"));
        std::fs::create_dir_all(&folder)?;
        let store = Some(pair.url());
        let plan = ServicePlan { probe_interval_ms: 0, store, ..ServicePlan::default() };
        replicas.push(Service::start(&folder, &plan).await?);
    }
    let declare = async |replica: usize, worker: usize| {
        let body = json!({"endpoints": [{"address": format!("127.0.1.{}:9", worker + 1), "dp_size": 4}]})
            .to_string();
        replicas[replica].call("PUT", &format!("/v1/workers/w{worker}"), Some(&body)).await
    };
    for worker in 0..3 {
        declare(worker % 2, worker).await?;
    }
    until_both_know(&replicas, 3).await?;
    let mut homes = bind(&replicas[0], 1, 0..FOLLOWED).await?;
    knows(&replicas[1], &homes).await?;
    pair.is_followed().await?;

    pair.stop_following().await?;
    // A worker and sessions that the second server never hears of.
    declare(1, 3).await?;
    until_both_know(&replicas, 4).await?;
    homes.extend(bind(&replicas[0], 1 << 8, FOLLOWED..FOLLOWED + LOST).await?);
    homes.extend(bind(&replicas[1], 1 << 9, FOLLOWED + LOST..FOLLOWED + 2 * LOST).await?);
    for replica in &replicas {
        knows(replica, &homes).await?;
    }
    pair.fail_over().await?;
    for (name, _) in &homes {
        let key = format!("rankpin:{{rankpin}}:s:{}", session_of(&format!("s{name}")).id);
        wait_for("the new master to be told of each session", async || {
            let there: bool = pair.second.command(&["EXISTS", &key]).await.ok()?;
            there.then_some(())
        })
        .await
        .inspect_err(|_| eprintln!("s{name}\n{}\n{}", replicas[0].log(), replicas[1].log()))?;
    }
    wait_for("the new master to be told of the worker", async || {
        pair.second.command::<bool>(&["HEXISTS", "rankpin:{rankpin}:workers", "w3"]).await.ok()?.then_some(())
    })
    .await?;
    // Nobody moved, and no worker went.
    until_both_know(&replicas, 4).await?;
    for replica in &replicas {
        knows(replica, &homes).await?;
        wait_for("the loss to be noticed", async || {
            let lost = replica.metric("rankpin_store_lost_writes_total", &[]).await.ok()?;
            (lost >= 1.0).then_some(())
        })
        .await?;
        assert_eq!(replica.metric("rankpin_store_epoch_changes_total", &[]).await?, 0.0);
    }
    Ok(())
}

async fn until_both_know(replicas: &[Service], workers: usize) -> Result<()> {
    for replica in replicas {
        wait_for("a replica to know all workers and to be ready", async || {
            let ready = replica.call("GET", "/readyz", None).await.ok()?.status == 200;
            (ready && replica.topology("").await.ok()?.len() == workers).then_some(())
        })
        .await?;
    }
    Ok(())
}

/// Nodes of one cluster, a third of the slots each.
struct Cluster {
    nodes: Vec<Redis>,
    /// Which of them has our slot.
    ours: usize,
    slot: u16,
}

const SLOTS: u16 = 16_384;

impl Cluster {
    async fn start(count: u16) -> Result<Self> {
        let mut nodes = Vec::new();
        for nth in 0..count {
            let node =
                Redis::start_with(&["--cluster-enabled", "yes", "--cluster-node-timeout", "15000"]).await?;
            let slots: Vec<String> =
                (nth * SLOTS / count..(nth + 1) * SLOTS / count).map(|slot| slot.to_string()).collect();
            let words: Vec<&str> =
                ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str)).collect();
            node.command::<()>(&words).await?;
            node.command::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(nth + 1).to_string()]).await?;
            nodes.push(node);
        }
        for other in &nodes[1..] {
            let port = other.address().port().to_string();
            nodes[0].command::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port]).await?;
        }
        let slot: u16 = nodes[0].command(&["CLUSTER", "KEYSLOT", "{rankpin}"]).await?;
        let ours = (0..count).position(|nth| slot < (nth + 1) * SLOTS / count).unwrap();
        let cluster = Self { nodes, ours, slot };
        cluster.is_whole().await?;
        Ok(cluster)
    }

    async fn is_whole(&self) -> Result<()> {
        let known = format!("cluster_known_nodes:{}", self.nodes.len());
        for node in &self.nodes {
            wait_for("a whole cluster", async || {
                let info: String = node.command(&["CLUSTER", "INFO"]).await.ok()?;
                (info.contains("cluster_state:ok") && info.contains(&known)).then_some(())
            })
            .await?;
        }
        Ok(())
    }

    fn url(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(|node| node.address().to_string()).collect();
        format!("redis-cluster://{}", nodes.join(","))
    }

    /// Our slot goes to the next node, as an operator moves it: first a key or two, then the rest.
    async fn begin_to_move(&self) -> Result<Move<'_>> {
        let (from, to) = (&self.nodes[self.ours], &self.nodes[(self.ours + 1) % self.nodes.len()]);
        let ids: (String, String) =
            (from.command(&["CLUSTER", "MYID"]).await?, to.command(&["CLUSTER", "MYID"]).await?);
        let slot = self.slot.to_string();
        to.command::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids.0]).await?;
        from.command::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids.1]).await?;
        Ok(Move { from, to, owner: ids.1, slot })
    }
}

/// A slot that is being moved.
struct Move<'a> {
    from: &'a Redis,
    to: &'a Redis,
    owner: String,
    slot: String,
}

impl Move<'_> {
    async fn keys(&self, count: usize) -> Result<usize> {
        let keys: Vec<String> =
            self.from.command(&["CLUSTER", "GETKEYSINSLOT", &self.slot, &count.to_string()]).await?;
        let port = self.to.address().port().to_string();
        for key in &keys {
            self.from.command::<String>(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]).await?;
        }
        Ok(keys.len())
    }

    async fn end(&self) -> Result<()> {
        while self.keys(100).await? > 0 {}
        for node in [self.to, self.from] {
            node.command::<()>(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &self.owner]).await?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn a_slot_of_a_cluster_that_moves_is_followed() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let store = Store::open(&patient(&cluster.url())?).await?;
    let batch: Vec<_> = (1..100).map(|nth| bound(nth, (1, 1), "w", 0)).collect();
    let cursor = store.merge(&batch, &[]).await?.entry.unwrap();
    let moving = cluster.begin_to_move().await?;
    moving.keys(50).await?;
    // A script's keys are on two nodes: that has a name, and what is on one node alone is answered.
    let error = store.merge(&batch, &[]).await.unwrap_err();
    assert!(is_away(&error), "{error:?}");
    moving.end().await?;
    let (merge, errors) = at_last(async || store.merge(&[bound(100, (1, 1), "w", 0)], &[]).await).await?;
    assert!(merge.entry.is_some() && errors.iter().all(is_away), "{errors:?}");
    // Nothing is lost, and nothing is missed by who follows.
    let (followed, _) = at_last(async || store.follow(cursor, Millis(100)).await).await?;
    assert_eq!((followed.gap, followed.entries.len()), (false, 1));
    let (mut snapshot, mut count) = (store.snapshot().await?, 0);
    while let Some(page) = snapshot.next().await? {
        count += page.len();
    }
    assert_eq!((count, store.figures().epoch_changes, store.figures().lost_writes), (100, 0, 0));
    Ok(())
}

#[tokio::test]
async fn a_node_of_a_cluster_that_is_restarted_is_found_again() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let mut config = patient(&cluster.url())?;
    config.deadline = Millis(1000);
    let store = Store::open(&config).await?;
    store.merge(&[bound(1, (1, 1), "w", 0)], &[]).await?;
    let before = store.status().epoch;
    let ours = cluster.ours;
    cluster.nodes[ours].kill();
    let error = store.merge(&[bound(2, (1, 1), "w", 0)], &[]).await.unwrap_err();
    assert!(is_away(&error), "{error:?}");
    cluster.nodes[ours].restart().await?;
    cluster.is_whole().await?;
    let (claim, errors) = at_last(async || claim_one(&store, &bound(3, (1, 1), "w", 0)).await).await?;
    assert!(matches!(claim, Claim::Claimed(_)) && errors.iter().all(is_away), "{claim:?} {errors:?}");
    let after = store.status().epoch;
    assert!(after.is_some() && after != before, "it came back without its memory: {before:?} {after:?}");
    Ok(())
}
