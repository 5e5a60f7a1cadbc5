//! What a replica is told that joins late, or that comes back behind a gap of the log: who drains, and what response ids stand for.

use anyhow::{Context, Result};
use e2e::kept::{Kept, session_of};
use e2e::scratch::Scratch;
use e2e::{Redis, Service, wait_for};
use routing::contract::{
    Caller, Entry, Outcome, REPORT_PATH, ROUTE_PATH, Report, RouteReply, RouteRequest, Target,
};
use routing::id::{Epoch, PoolName, RequestId, SessionId};
use routing::time::Millis;
use serde_json::json;

use crate::replicas::{replica, start};

const LOG: &str = "rankpin:{rankpin}:log";

/// A paused replica's log goes on without it, and is not there when it comes back.
async fn miss(redis: &Redis, replica: &Service, until: &[&str]) -> Result<()> {
    wait_for("the store to know", async || (redis.command::<u64>(until).await.ok()? == 1).then_some(()))
        .await?;
    redis.command::<u64>(&["DEL", LOG]).await?;
    replica.resume()
}

async fn is_draining(replica: &Service, id: &str) -> Option<bool> {
    let said = replica.call("GET", &format!("/v1/workers/{id}"), None).await.ok()?;
    said.body["draining"].as_bool()
}

async fn until_drains(replica: &Service, id: &str, draining: bool) -> Result<()> {
    wait_for(&format!("{id} to drain: {draining}"), async || {
        (is_draining(replica, id).await? == draining).then_some(())
    })
    .await
}

async fn drain(replica: &Service, id: &str, how: serde_json::Value) -> Result<()> {
    let said = replica.call("POST", &format!("/v1/workers/{id}/drain"), Some(&how.to_string())).await?;
    anyhow::ensure!(said.status < 300, "{said:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_is_known_to_who_joins_late_and_to_who_missed_it_and_outlives_the_stores_memory() -> Result<()>
{
    let scratch = Scratch::new()?;
    let (redis, replicas) = start(&scratch).await?;
    let has = |id| ["HEXISTS", "rankpin:{rankpin}:drains", id];
    drain(&replicas[0], "w1", json!({})).await?;
    until_drains(&replicas[1], "w1", true).await?;
    replicas[1].pause()?;
    drain(&replicas[0], "w2", json!({"deadline_s": 3600})).await?;
    miss(&redis, &replicas[1], &has("w2")).await?;
    until_drains(&replicas[1], "w2", true).await?;
    // At once, as soon as it may be asked.
    let late = replica(&redis, &scratch, "late").await?;
    for (id, draining) in [("w0", false), ("w1", true), ("w2", true), ("w3", false)] {
        assert_eq!(is_draining(&late, id).await, Some(draining), "{id}");
    }
    let end: u64 = redis.command::<String>(&["HGET", "rankpin:{rankpin}:drains", "w2"]).await?.parse()?;
    // Any replica may end it, and all hear of it.
    drain(&late, "w1", json!({"resume": true})).await?;
    for replica in &replicas {
        until_drains(replica, "w1", false).await?;
        assert_eq!(is_draining(replica, "w2").await, Some(true));
    }
    // Whoever lives tells it a store that lost its memory, and its end stays about where it was.
    redis.command::<()>(&["FLUSHALL"]).await?;
    wait_for("the drain to be told anew", async || {
        (redis.command::<u64>(&has("w2")).await.ok()? == 1).then_some(())
    })
    .await?;
    let again: u64 = redis.command::<String>(&["HGET", "rankpin:{rankpin}:drains", "w2"]).await?.parse()?;
    assert!(again.abs_diff(end) < 60_000, "{end} and {again}");
    let later = replica(&redis, &scratch, "later").await?;
    assert_eq!((is_draining(&later, "w1").await, is_draining(&later, "w2").await), (Some(false), Some(true)));
    // Its worker's end is the drain's.
    let said = later.call("DELETE", "/v1/workers/w2", None).await?;
    assert!(said.status < 300, "{said:?}");
    assert_eq!(redis.command::<u64>(&has("w2")).await?, 0);
    Ok(())
}

/// A VM that knows sessions by their answers' ids.
struct Chatter {
    kept: Kept,
    caller: Caller,
    asked: u64,
}

impl Chatter {
    async fn new(replica: &Service, node: &str) -> Result<Self> {
        let caller = Caller { node: node.to_owned(), vm: Epoch(7) };
        Ok(Self { kept: Kept::connect(replica.data()).await?, caller, asked: 0 })
    }

    async fn ask(&mut self, change: impl FnOnce(&mut RouteRequest)) -> Result<(RequestId, RouteReply)> {
        self.asked += 1;
        let (request, pool) = (RequestId(self.asked), PoolName::parse("default").unwrap());
        let mut asked = RouteRequest::new(self.caller.clone(), request, pool, Millis(20_000));
        change(&mut asked);
        let status = self.kept.call("POST", ROUTE_PATH, &serde_json::to_vec(&asked)?).await?;
        anyhow::ensure!(status == 200, "route: {status}");
        Ok((request, serde_json::from_slice(self.kept.body())?))
    }

    async fn tell(&mut self, entries: Vec<Entry>) -> Result<()> {
        self.asked += 1;
        let (caller, seq) = (self.caller.clone(), self.asked);
        let report = Report { caller, seq, in_flight: Vec::new(), entries, upstream_role_missing: 0 };
        let status = self.kept.call("POST", REPORT_PATH, &serde_json::to_vec(&report)?).await?;
        anyhow::ensure!(status == 204, "report: {status}");
        Ok(())
    }

    /// A turn that is answered under an id; where.
    async fn turn(&mut self, key: &str, alias: SessionId) -> Result<Target> {
        let (session, pool) = (session_of(key), PoolName::parse("default").unwrap());
        let (request, reply) = self.ask(|asked| asked.session = Some(session)).await?;
        let target = reply.target.context("no place")?;
        let (hold, version) = (reply.hold, reply.version);
        let committed =
            Entry::Committed { session, pool: pool.clone(), request, hold, target: target.clone(), version };
        self.tell(vec![committed, Entry::Alias { alias, session, pool }]).await?;
        Ok(target)
    }

    /// Where a turn goes that names an answer's id, and the session behind it.
    async fn by_alias(&mut self, alias: SessionId) -> Result<RouteReply> {
        Ok(self.ask(|asked| asked.alias = Some(alias)).await?.1)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_id_is_known_to_who_joins_late_and_to_who_missed_it() -> Result<()> {
    let scratch = Scratch::new()?;
    let (redis, replicas) = start(&scratch).await?;
    let mut first = Chatter::new(&replicas[0], "envoy-0").await?;
    let (before, missed, nobodys) = (SessionId(11), SessionId(22), SessionId(33));
    let key = |alias: SessionId| format!("rankpin:{{rankpin}}:a:{alias}");
    let home = first.turn("a", before).await?;
    wait_for("the store to know", async || {
        (redis.command::<u64>(&["EXISTS", &key(before)]).await.ok()? == 1).then_some(())
    })
    .await?;
    assert!(redis.command::<i64>(&["PTTL", &key(before)]).await? > 0, "it has an end");

    let late = replica(&redis, &scratch, "late").await?;
    let mut other = Chatter::new(&late, "envoy-1").await?;
    // An id is looked up for no longer than a first answer may wait.
    let reply = wait_for("the session of an answer from before", async || {
        let reply = other.by_alias(before).await.ok()?;
        reply.session.is_some().then_some(reply)
    });
    let reply = reply.await?;
    assert_eq!(
        (reply.session, reply.outcome, reply.target),
        (Some(session_of("a")), Outcome::Bound, Some(home))
    );

    replicas[1].pause()?;
    let home = first.turn("b", missed).await?;
    miss(&redis, &replicas[1], &["EXISTS", &key(missed)]).await?;
    let mut third = Chatter::new(&replicas[1], "envoy-2").await?;
    wait_for("its session", async || {
        let reply = third.by_alias(missed).await.ok()?;
        (reply.session == Some(session_of("b")) && reply.target == Some(home.clone())).then_some(())
    })
    .await?;
    // Nobody's is a turn without a session.
    assert_eq!(third.by_alias(nobodys).await?.session, None);
    // What another program has there is left alone, and no answer.
    redis.command::<()>(&["SET", &key(nobodys), "theirs"]).await?;
    assert_eq!(third.by_alias(nobodys).await?.session, None);
    first.turn("c", nobodys).await?;
    wait_for("it to be told", async || {
        (third.by_alias(nobodys).await.ok()?.session == Some(session_of("c"))).then_some(())
    })
    .await?;
    assert_eq!(redis.command::<String>(&["GET", &key(nobodys)]).await?, "theirs");
    Ok(())
}
