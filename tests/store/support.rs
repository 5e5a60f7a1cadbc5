//! Short ways to say things in these tests: a store on a server, a binding, a clock. Asserts nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use e2e::Redis;
use routing::contract::{SessionRef, Target};
use routing::id::{Rank, RankHash, SessionId, Version, WorkerId};
use routing::time::Millis;
use state_service::state::Binding;
use state_service::store::{Claim, Standing, Store, StoreClock, StoreConfig, StoreError};

/// The prefix of all keys here.
pub(crate) const PREFIX: &str = "test";
/// Generous: a machine that is busy is not a server that is gone.
const PATIENCE: Millis = Millis(20_000);
/// What is seen here is seen by the calls that are made.
const NEVER: Millis = Millis(3_600_000);

/// A config with deadlines that only a server that does not answer reaches, and without beats.
pub(crate) fn patient(url: &str) -> Result<StoreConfig, StoreError> {
    let mut config = StoreConfig::new(url, PREFIX, 1)?;
    (config.deadline, config.connect, config.beat) = (PATIENCE, PATIENCE, NEVER);
    Ok(config)
}

/// The config of a replica on a server.
pub(crate) fn config(redis: &Redis, writer: u64) -> StoreConfig {
    let mut config = patient(&redis.url()).unwrap();
    config.writer = writer;
    config
}

/// A replica's store.
pub(crate) async fn store(redis: &Redis, writer: u64) -> Result<Store> {
    Ok(Store::open(&config(redis, writer)).await?)
}

/// As [`store`], by a clock of the test's.
pub(crate) async fn store_at(redis: &Redis, writer: u64, now: u64) -> Result<(Store, Clock)> {
    let clock = Clock(Arc::new(AtomicU64::new(now)));
    let mut config = config(redis, writer);
    config.clock = StoreClock::Given(Arc::clone(&clock.0));
    Ok((Store::open(&config).await?, clock))
}

/// A test's clock, ms.
pub(crate) struct Clock(Arc<AtomicU64>);

impl Clock {
    pub(crate) fn pass(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }
}

pub(crate) fn session(number: u64) -> SessionRef {
    SessionRef { id: SessionId(u128::from(number) << 64 | 0xabc), rank_hash: RankHash(number * 31) }
}

/// A binding for a minute.
pub(crate) fn bound(number: u64, version: (u64, u64), worker: &str, rank: u32) -> Binding {
    let target = Target { worker: WorkerId::parse(worker).unwrap(), rank: Some(Rank(rank)) };
    Binding {
        session: session(number),
        version: Version { seq: version.0, writer: version.1 },
        target: Some(target),
        expires_in_ms: Millis(60_000),
        generation: 3,
    }
}

/// A release for a minute.
pub(crate) fn released(number: u64, version: (u64, u64)) -> Binding {
    Binding { target: None, generation: 0, ..bound(number, version, "none", 0) }
}

pub(crate) async fn claim_one(store: &Store, proposal: &Binding) -> Result<Claim, StoreError> {
    Ok(store.claim(&fresh(std::slice::from_ref(proposal))).await?.remove(0))
}

/// Proposals of sessions that leave no binding.
pub(crate) fn fresh(proposals: &[Binding]) -> Vec<(Binding, Option<Version>)> {
    proposals.iter().map(|proposal| (proposal.clone(), None)).collect()
}

/// The version of a claim that was given.
pub(crate) fn claimed(claim: &Claim) -> Version {
    match claim {
        Claim::Claimed(binding) => binding.version,
        other => panic!("{other:?}"),
    }
}

/// Every key the server has.
pub(crate) async fn keys(redis: &Redis) -> Result<Vec<String>> {
    redis.command(&["KEYS", "*"]).await
}

/// Waits until the store is away, and says why.
pub(crate) async fn until_away(store: &Store) -> String {
    let mut standing = store.standing();
    let now = standing.wait_for(|now| *now != Standing::Up).await.unwrap().clone();
    match now {
        Standing::Away { reason } => reason,
        Standing::Up => unreachable!(),
    }
}
