//! First turns that race: one claim a session, versions that only grow, claims that end.

use std::collections::BTreeSet;

use anyhow::Result;
use e2e::Redis;
use routing::id::Version;
use routing::time::Millis;
use state_service::state::Binding;
use state_service::store::{Claim, Store};
use tokio::task::JoinSet;

use crate::support::{bound, claim_one, claimed, config, released, store, store_at};

#[tokio::test]
async fn of_32_that_claim_at_once_over_4_connections_one_may() -> Result<()> {
    let redis = Redis::start().await?;
    let mut stores: Vec<Store> = Vec::new();
    for writer in 1..=4 {
        stores.push(store(&redis, writer).await?);
    }
    for number in 0..20 {
        let mut claims = JoinSet::new();
        for nth in 0..32 {
            let (store, worker) = (stores[nth % 4].clone(), format!("w{nth}"));
            claims.spawn(async move {
                let proposal = bound(number, (1, store.config().writer), &worker, 0);
                claim_one(&store, &proposal).await.unwrap()
            });
        }
        let claims = claims.join_all().await;
        let slots: BTreeSet<_> = claims.iter().map(|claim| of(claim).target.unwrap()).collect();
        let versions: BTreeSet<_> = claims.iter().map(|claim| of(claim).version).collect();
        assert_eq!((slots.len(), versions.len()), (1, 1), "{slots:?} {versions:?}");
        let writers: BTreeSet<_> =
            claims.iter().filter(|c| matches!(c, Claim::Claimed(_))).map(|c| of(c).version.writer).collect();
        assert_eq!(writers.len(), 1);
        assert!(!claims.iter().any(|claim| matches!(claim, Claim::Bound(_))));
    }
    Ok(())
}

fn of(claim: &Claim) -> Binding {
    match claim {
        Claim::Bound(binding) | Claim::Held(binding) | Claim::Claimed(binding) => binding.clone(),
        Claim::Unusable => panic!("unusable"),
    }
}

/// A session leaves its binding at several replicas at once: it has one next place, and a binding they did not know goes first.
#[tokio::test]
async fn of_several_that_move_a_session_at_once_one_may() -> Result<()> {
    let redis = Redis::start().await?;
    let (a, b) = (store(&redis, 1).await?, store(&redis, 2).await?);
    a.merge(&[bound(1, (4, 7), "dead", 0)], &[]).await?;
    let leaves = |seq| Some(Version { seq, writer: 7 });
    let moves = async |store: &Store, writer, leaves| -> Result<Claim> {
        let proposal = (bound(1, (5, writer), &format!("w{writer}"), 0), leaves);
        Ok(store.claim(&[proposal]).await?.remove(0))
    };
    assert!(matches!(moves(&a, 1, leaves(3)).await?, Claim::Bound(_)), "bound anew since");
    assert!(matches!(moves(&a, 1, None).await?, Claim::Bound(_)), "it knew of none");
    let first = moves(&a, 1, leaves(4)).await?;
    assert_eq!(claimed(&first), Version { seq: 5, writer: 1 });
    let second = moves(&b, 2, leaves(4)).await?;
    assert!(matches!(&second, Claim::Held(_)), "{second:?}");
    assert_eq!((of(&second).target, of(&second).version), (of(&first).target, of(&first).version));
    // A touch of the old binding that comes late does not end the claim; the new binding does.
    let longer = Binding { expires_in_ms: Millis(90_000), ..bound(1, (4, 7), "dead", 0) };
    b.merge(&[longer], &[]).await?;
    assert!(matches!(moves(&b, 2, leaves(4)).await?, Claim::Held(_)));
    b.merge(&[of(&first)], &[]).await?;
    assert!(
        matches!(moves(&b, 2, leaves(4)).await?, Claim::Bound(other) if other.version == of(&first).version)
    );
    Ok(())
}

#[tokio::test]
async fn who_asks_again_is_told_of_its_own_claim() -> Result<()> {
    let redis = Redis::start().await?;
    let (a, b) = (store(&redis, 1).await?, store(&redis, 2).await?);
    let first = claim_one(&a, &bound(1, (1, 1), "w1", 0)).await?;
    let again = claim_one(&a, &bound(1, (9, 1), "w2", 0)).await?;
    assert_eq!((&of(&first).target, of(&first).version), (&of(&again).target, of(&again).version));
    assert!(matches!(again, Claim::Claimed(_)));
    assert!(
        matches!(claim_one(&b, &bound(1, (1, 2), "w2", 0)).await?, Claim::Held(other) if other.version.writer == 1)
    );
    Ok(())
}

#[tokio::test]
async fn a_bound_session_is_told_and_not_claimed() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store_at(&redis, 1, 1_000_000).await?.0;
    let binding = bound(1, (5, 7), "w1", 3);
    store.merge(std::slice::from_ref(&binding), &[]).await?;
    assert_eq!(claim_one(&store, &bound(1, (9, 1), "w2", 0)).await?, Claim::Bound(binding));
    Ok(())
}

#[tokio::test]
async fn a_claim_on_what_is_over_or_released_has_a_version_above_it() -> Result<()> {
    let redis = Redis::start().await?;
    let (store, clock) = store_at(&redis, 1, 1_000_000).await?;
    store.merge(&[bound(1, (40, 7), "w1", 3), released(2, (u64::from(u32::MAX), 7))], &[]).await?;
    let over = |seq| Version { seq, writer: 1 };
    assert_eq!(claimed(&claim_one(&store, &bound(2, (3, 1), "w2", 0)).await?), over(1 << 32));
    // Nobody gave this claim up: the next has a version above it all the same.
    clock.pass(60_000);
    assert!(matches!(claim_one(&store, &bound(1, (3, 1), "w2", 0)).await?, Claim::Bound(_)));
    clock.pass(1);
    assert_eq!(claimed(&claim_one(&store, &bound(1, (3, 1), "w2", 0)).await?), over(41));
    assert_eq!(claimed(&claim_one(&store, &bound(2, (3, 1), "w2", 0)).await?), over((1 << 32) + 1));
    assert_eq!(claimed(&claim_one(&store, &bound(3, (77, 1), "w2", 0)).await?), over(77));
    Ok(())
}

#[tokio::test]
async fn a_version_that_nothing_is_above_cannot_be_claimed() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store(&redis, 1).await?;
    store.merge(&[released(1, (u64::MAX, 1))], &[]).await?;
    assert_eq!(claim_one(&store, &bound(1, (1, 1), "w1", 0)).await?, Claim::Unusable);
    Ok(())
}

#[tokio::test]
async fn a_claim_is_given_up_only_under_its_own_version() -> Result<()> {
    let redis = Redis::start().await?;
    let (a, b) = (store(&redis, 1).await?, store(&redis, 2).await?);
    let own = claimed(&claim_one(&a, &bound(1, (1, 1), "w1", 0)).await?);
    let id = bound(1, (0, 0), "w1", 0).session.id;
    let others = [Version { seq: own.seq, writer: 2 }, Version { seq: own.seq + 1, writer: 1 }];
    for other in others {
        assert_eq!(b.unclaim(&[(id, other)]).await?, [false]);
        assert_eq!(b.renew_claims(&[(id, other)]).await?, [false]);
    }
    assert!(matches!(claim_one(&b, &bound(1, (1, 2), "w2", 0)).await?, Claim::Held(_)));
    assert_eq!(b.unclaim(&[(id, own), (id, own)]).await?, [true, false]);
    assert!(matches!(claim_one(&b, &bound(1, (1, 2), "w2", 0)).await?, Claim::Claimed(_)));
    Ok(())
}

#[tokio::test]
async fn a_claim_ends_unless_it_is_renewed() -> Result<()> {
    let redis = Redis::start().await?;
    let (a, clock) = store_at(&redis, 1, 1_000_000).await?;
    let mut config = config(&redis, 2);
    config.clock = a.config().clock.clone();
    let b = Store::open(&config).await?;
    let life = a.config().claim.0;
    let id = bound(1, (0, 0), "w1", 0).session.id;
    let own = claimed(&claim_one(&a, &bound(1, (1, 1), "w1", 0)).await?);
    clock.pass(life);
    assert_eq!(a.renew_claims(&[(id, own)]).await?, [true]);
    clock.pass(life);
    assert!(matches!(claim_one(&b, &bound(1, (1, 2), "w2", 0)).await?, Claim::Held(_)));
    clock.pass(1);
    let next = claimed(&claim_one(&b, &bound(1, (1, 2), "w2", 0)).await?);
    assert_eq!(next, Version { seq: own.seq + 1, writer: 2 });
    assert_eq!(a.renew_claims(&[(id, own)]).await?, [false]);
    Ok(())
}

#[tokio::test]
async fn a_merge_ends_claims_up_to_its_version_and_no_newer_one() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store(&redis, 1).await?;
    let own = claimed(&claim_one(&store, &bound(1, (5, 1), "w1", 0)).await?);
    let id = bound(1, (0, 0), "w1", 0).session.id;
    store.merge(&[released(1, (4, 9))], &[]).await?;
    assert_eq!(store.renew_claims(&[(id, own)]).await?, [true]);
    store.merge(&[bound(1, (5, 1), "w1", 0)], &[]).await?;
    assert_eq!(store.renew_claims(&[(id, own)]).await?, [false]);
    assert!(matches!(claim_one(&store, &bound(1, (6, 1), "w2", 0)).await?, Claim::Bound(_)));
    Ok(())
}
