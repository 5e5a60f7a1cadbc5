//! Replicas of the service, processes of their own, on a real store: sessions that begin at two of them at once have one slot, and none
//! of them is lost. No Envoy: what filters ask and tell is sent as they do.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use e2e::kept::{Kept, Vm, session_of};
use e2e::scratch::Scratch;
use e2e::{Redis, Service, ServicePlan, wait_for};
use routing::contract::{Outcome, Target};
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

const SESSIONS: usize = 10_000;
/// VMs of each replica; the nth of both take the same sessions at the same time.
const VMS: usize = 8;
/// First turns between two reports of a VM.
const PER_REPORT: usize = 25;

/// The store, two replicas, and 16 slots that both know.
pub(crate) async fn start(scratch: &Scratch) -> Result<(Redis, Vec<Service>)> {
    let redis = Redis::start().await?;
    let replicas = vec![replica(&redis, scratch, "one").await?, replica(&redis, scratch, "other").await?];
    for worker in 0..4 {
        let address = format!("127.0.1.{}:9", worker + 1);
        let body = json!({"endpoints": [{"address": address, "dp_size": 4}]}).to_string();
        let said = replicas[worker % 2].call("PUT", &format!("/v1/workers/w{worker}"), Some(&body)).await?;
        anyhow::ensure!(said.status < 300, "{said:?}");
    }
    for replica in &replicas {
        wait_for("a replica to know all workers and to be ready", async || {
            let ready = replica.call("GET", "/readyz", None).await.ok()?.status == 200;
            (ready && replica.topology("").await.ok()?.len() == 4).then_some(())
        })
        .await?;
    }
    Ok((redis, replicas))
}

/// One replica on the store, ready.
pub(crate) async fn replica(redis: &Redis, scratch: &Scratch, name: &str) -> Result<Service> {
    let folder = scratch.path().join(name);
    std::fs::create_dir_all(&folder)?;
    let store = Some(redis.url());
    let plan = ServicePlan { probe_interval_ms: 0, store, ..ServicePlan::default() };
    let replica = Service::start(&folder, &plan).await?;
    wait_for("a replica to have read the store", async || {
        let said = replica.call("GET", "/readyz", None).await.ok()?;
        // Without a worker it is not ready, for that alone.
        let reasons = said.body["reasons"].as_array().map_or(0, Vec::len);
        (said.status == 200 || reasons == 1 && said.body["reasons"][0]["code"] == "no_worker").then_some(())
    })
    .await?;
    Ok(replica)
}

/// Where each session of one VM was told to go.
async fn begin(mut vm: Vm, nth: usize, together: Arc<Barrier>) -> Result<Vec<(usize, Target)>> {
    let mut told = Vec::new();
    for session in (nth..SESSIONS).step_by(VMS) {
        // Both VMs of a pair ask at once.
        together.wait().await;
        let reply = vm.turn(session_of(&format!("s{session}"))).await?;
        anyhow::ensure!(matches!(reply.outcome, Outcome::Held | Outcome::Bound), "{reply:?}");
        told.push((session, reply.target.context("no target")?));
        if vm.entries.len() >= PER_REPORT {
            vm.report(Vec::new()).await?;
        }
    }
    vm.report(Vec::new()).await?;
    Ok(told)
}

/// Every session begins at both replicas at once; what both told, by session.
async fn begin_all(replicas: &[Service]) -> Result<BTreeMap<usize, Vec<Target>>> {
    let mut all = JoinSet::new();
    for nth in 0..VMS {
        let together = Arc::new(Barrier::new(replicas.len()));
        for (which, replica) in replicas.iter().enumerate() {
            let life = (which * VMS + nth + 1) as u64;
            let vm = Vm::connect(replica.data(), &format!("envoy-{which}"), life).await?;
            all.spawn(begin(vm, nth, Arc::clone(&together)));
        }
    }
    let mut told: BTreeMap<usize, Vec<Target>> = BTreeMap::new();
    for one in all.join_all().await {
        for (session, target) in one? {
            told.entry(session).or_default().push(target);
        }
    }
    Ok(told)
}

/// What one replica knows of all sessions: the place of those that are bound.
async fn known(at: SocketAddr) -> Result<Vec<Option<Target>>> {
    let keys: Vec<String> = (0..SESSIONS).map(|session| format!("s{session}")).collect();
    known_of(at, &keys).await
}

/// The same of these.
pub(crate) async fn known_of(at: SocketAddr, keys: &[String]) -> Result<Vec<Option<Target>>> {
    let (mut kept, mut known) = (Kept::connect(at).await?, Vec::new());
    for key in keys {
        let id = session_of(key).id;
        let status = kept.call("GET", &format!("/v1/sessions/{id}"), b"").await?;
        let said: Value = if status == 200 { serde_json::from_slice(kept.body())? } else { Value::Null };
        let is_bound = said["state"] == "bound";
        known.push(is_bound.then(|| serde_json::from_value(said["target"].clone())).transpose()?);
    }
    Ok(known)
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_sessions_that_begin_at_both_replicas_at_once_have_one_slot_and_none_is_lost()
-> Result<()> {
    let scratch = Scratch::new()?;
    let (redis, replicas) = start(&scratch).await?;
    let told = begin_all(&replicas).await?;
    for replica in &replicas {
        wait_for("every session to be bound and no hold to be left", async || {
            let sessions = replica.metric("rankpin_sessions", &[]).await.ok()?;
            let holds = replica.metric("rankpin_holds", &[]).await.ok()?;
            (sessions == SESSIONS as f64 && holds == 0.0).then_some(())
        })
        .await?;
    }
    let both = [known(replicas[0].control()).await?, known(replicas[1].control()).await?];
    let mut split = 0;
    for (session, targets) in &told {
        let (one, other) = (&both[0][*session], &both[1][*session]);
        assert!(one.is_some() && one == other, "s{session}: {one:?} and {other:?}");
        assert!(
            targets.iter().any(|told| Some(told) == one.as_ref()),
            "s{session}: {targets:?}, not {one:?}"
        );
        split += usize::from(targets.iter().any(|told| Some(told) != one.as_ref()));
    }
    // On a machine that is so busy that a claim comes late an answer goes out without; without any claims most of them differ.
    eprintln!("{split} of {SESSIONS} sessions were told two slots at first");
    assert!(split <= SESSIONS / 10, "{split} sessions were told two slots");
    assert_eq!(told.len(), SESSIONS);
    // In the store, too, no claim outlives its binding.
    for session in (0..SESSIONS).step_by(97) {
        let key = format!("rankpin:{{rankpin}}:s:{}", session_of(&format!("s{session}")).id);
        let text: String = redis.command(&["GET", &key]).await?;
        assert_eq!(text.lines().count(), 1, "s{session}: {text:?}");
        assert!(!text.contains('\n'), "s{session}: {text:?}");
    }
    Ok(())
}
