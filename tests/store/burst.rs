//! D5: many bindings at two replicas as fast as they are taken; none is lost, and who joins afterwards knows them all. And sessions
//! whose worker goes, at both replicas at once: one next place for each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use e2e::kept::{DEADLINE, Vm, session_of};
use e2e::scratch::Scratch;
use e2e::{Redis, Service, wait_for};
use routing::contract::{Outcome, Target};
use state_service::store::REASONS;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::replicas::{known_of, replica, start};

/// The rate is the bench's; this is for what is lost.
const BURST: usize = 5_000;
/// VMs of each replica.
const VMS: usize = 4;
const PER_REPORT: usize = 50;
const MOVED: usize = 240;

fn keys(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|n| format!("{prefix}{n}")).collect()
}

/// One VM's share, one after the other.
async fn begin(mut vm: Vm, keys: Vec<String>) -> Result<Vec<(String, Target)>> {
    let mut told = Vec::new();
    for key in keys {
        let reply = vm.turn(session_of(&key)).await?;
        anyhow::ensure!(reply.outcome == Outcome::Held, "{reply:?}");
        told.push((key, reply.target.context("no target")?));
        if vm.entries.len() >= PER_REPORT {
            vm.report(Vec::new()).await?;
        }
    }
    vm.report(Vec::new()).await?;
    Ok(told)
}

/// Each session begins at one of the replicas.
async fn begin_all(replicas: &[Service], keys: &[String]) -> Result<BTreeMap<String, Target>> {
    let mut all = JoinSet::new();
    for nth in 0..replicas.len() * VMS {
        let share = keys.iter().skip(nth).step_by(replicas.len() * VMS).cloned().collect();
        let (which, life) = (nth % replicas.len(), nth as u64 + 1);
        let vm = Vm::connect(replicas[which].data(), &format!("envoy-{which}"), life).await?;
        all.spawn(begin(vm, share));
    }
    let mut told = BTreeMap::new();
    for one in all.join_all().await {
        told.extend(one?);
    }
    Ok(told)
}

async fn until_known(redis: &Redis, replicas: &[Service], count: usize) -> Result<()> {
    for replica in replicas {
        wait_for("every session to be known", async || {
            let sessions = replica.metric("rankpin_sessions", &[]).await.ok()?;
            let holds = replica.metric("rankpin_holds", &[]).await.ok()?;
            (sessions == count as f64 && holds == 0.0).then_some(())
        })
        .await?;
    }
    let kept: Vec<String> = redis.command(&["KEYS", "rankpin:{rankpin}:s:*"]).await?;
    assert_eq!(kept.len(), count, "sessions in the store");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn d5_of_a_burst_over_two_replicas_none_is_lost() -> Result<()> {
    let scratch = Scratch::new()?;
    let (redis, mut replicas) = start(&scratch).await?;
    let keys = keys("s", BURST);
    let told = begin_all(&replicas, &keys).await?;
    assert_eq!(told.len(), BURST);
    until_known(&redis, &replicas, BURST).await?;
    replicas.push(replica(&redis, &scratch, "late").await?);
    for replica in &replicas {
        let known = known_of(replica.control(), &keys).await?;
        let lost = keys.iter().zip(known).filter(|(key, known)| known.as_ref() != told.get(*key)).count();
        assert_eq!(lost, 0);
    }
    Ok(())
}

/// A session, where it was told to go, and how long that took.
type Told = (String, Option<Target>, Duration);

/// An answer within it did not give up its claim: that is waited for half the deadline of these VMs.
const IN_TIME: Duration = Duration::from_millis(DEADLINE.0 / 2 - 20);

/// Calls of the store that failed: then answers go out without a claim, however fast.
async fn failures(replicas: &[Service]) -> Result<f64> {
    let mut all = 0.0;
    for replica in replicas {
        for reason in REASONS {
            let label = format!("reason=\"{reason}\"");
            all += replica.metric("rankpin_store_failures_total", &[&label]).await?;
        }
    }
    Ok(all)
}

/// The next turn of each session, at both replicas at once.
async fn turn(mut vm: Vm, keys: Vec<String>, together: Arc<Barrier>) -> Result<Vec<Told>> {
    let mut told = Vec::new();
    for key in keys {
        together.wait().await;
        let begun = Instant::now();
        let reply = vm.turn(session_of(&key)).await?;
        told.push((key, reply.target, begun.elapsed()));
    }
    together.wait().await;
    vm.report(Vec::new()).await?;
    Ok(told)
}

async fn turn_all(replicas: &[Service], keys: &[String]) -> Result<BTreeMap<String, Vec<Told>>> {
    let mut all = JoinSet::new();
    for nth in 0..VMS {
        let together = Arc::new(Barrier::new(replicas.len()));
        let share: Vec<String> = keys.iter().skip(nth).step_by(VMS).cloned().collect();
        for (which, replica) in replicas.iter().enumerate() {
            let life = 100 + (which * VMS + nth) as u64;
            let vm = Vm::connect(replica.data(), &format!("envoy-{which}"), life).await?;
            all.spawn(turn(vm, share.clone(), Arc::clone(&together)));
        }
    }
    let mut told: BTreeMap<String, Vec<Told>> = BTreeMap::new();
    for one in all.join_all().await {
        one?.into_iter().for_each(|one| told.entry(one.0.clone()).or_default().push(one));
    }
    Ok(told)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_worker_goes_has_one_next_place_at_both_replicas_at_once() -> Result<()> {
    let scratch = Scratch::new()?;
    let (redis, replicas) = start(&scratch).await?;
    let keys = keys("m", MOVED);
    let homes = begin_all(&replicas, &keys).await?;
    until_known(&redis, &replicas, MOVED).await?;
    let said = replicas[0].call("DELETE", "/v1/workers/w0", None).await?;
    assert!(said.status < 300, "{said:?}");
    wait_for("both to know", async || {
        let known = [replicas[0].topology("").await.ok()?.len(), replicas[1].topology("").await.ok()?.len()];
        (known == [3, 3]).then_some(())
    })
    .await?;
    let moved: Vec<String> = keys.into_iter().filter(|key| homes[key].worker.as_str() == "w0").collect();
    assert!(moved.len() >= MOVED / 8, "{} were at the worker that went", moved.len());
    let before = failures(&replicas).await?;
    let told = turn_all(&replicas, &moved).await?;
    let failed = failures(&replicas).await? > before;
    let split: Vec<_> = told.values().filter(|both| both[0].1 != both[1].1).collect();
    eprintln!("{} of {} sessions were told two places at first", split.len(), moved.len());
    // On a machine that is so busy that a claim comes late an answer goes out without.
    let claimed = |both: &&Vec<Told>| !failed && both.iter().all(|(_, _, took)| *took < IN_TIME);
    let wrong: Vec<_> = split.into_iter().filter(claimed).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    wait_for("both replicas to have each at one of its places", async || {
        let one = known_of(replicas[0].control(), &moved).await.ok()?;
        let other = known_of(replicas[1].control(), &moved).await.ok()?;
        let settled =
            |(key, place): (&String, &Option<Target>)| told[key].iter().any(|told| told.1 == *place);
        (one == other && moved.iter().zip(&one).all(settled)).then_some(())
    })
    .await
}
