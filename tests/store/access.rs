//! Users, passwords and what they may do: clear errors, never with a password in them.

use anyhow::Result;
use e2e::Redis;
use state_service::store::{Standing, Store, StoreError};

use crate::support::{bound, config, patient};

const PASSWORD: &str = "s3cret-p@ss";

/// What docs/STORE.md says a user needs.
const ENOUGH: [&str; 4] = ["~test:{rankpin}:*", "+@all", "-@admin", "-@dangerous"];

async fn with_user(rules: &[&str]) -> Result<Redis> {
    let redis = Redis::start().await?;
    let password = format!(">{PASSWORD}");
    let words = [&["ACL", "SETUSER", "me", "reset", "on", &password][..], rules].concat();
    redis.command::<()>(&words).await?;
    Ok(redis)
}

/// The URL of a server with a user and a password, percent-encoded.
fn url(redis: &Redis, login: &str) -> String {
    format!("redis://{login}@{}", redis.address())
}

async fn open(redis: &Redis, login: &str) -> Result<Store> {
    Ok(Store::open(&patient(&url(redis, login))?).await?)
}

fn away(store: &Store) -> String {
    match store.status().standing {
        Standing::Away { reason } => reason,
        Standing::Up => panic!("up"),
    }
}

#[tokio::test]
async fn a_user_with_its_password_and_our_keys_is_enough() -> Result<()> {
    let redis = with_user(&ENOUGH).await?;
    let store = open(&redis, "me:s3cret-p%40ss").await?;
    assert_eq!(store.status().standing, Standing::Up);
    store.merge(&[bound(1, (1, 1), "w", 0)], &[]).await?;
    assert_eq!(store.snapshot().await?.next().await?.map(|page| page.len()), Some(1));
    store.follow(Default::default(), routing::time::Millis(0)).await?;
    Ok(())
}

#[tokio::test]
async fn a_wrong_password_is_named_and_not_repeated() -> Result<()> {
    let redis = with_user(&ENOUGH).await?;
    for login in ["me:wr0ng-one", "nobody:wr0ng-one"] {
        let store = open(&redis, login).await?;
        let reason = away(&store);
        assert!(reason.contains("check user, password") && !reason.contains("wr0ng"), "{reason}");
        let error = store.epoch().await.unwrap_err();
        assert!(matches!(&error, StoreError::Away { .. }) && !error.to_string().contains("wr0ng"), "{error}");
        assert!(store.figures().failures[3] > 0, "denied is counted");
    }
    Ok(())
}

#[tokio::test]
async fn a_server_that_wants_a_password_we_have_not_says_so() -> Result<()> {
    let redis = Redis::start_with(&["--requirepass", PASSWORD]).await?;
    let store = Store::open(&config(&redis, 1)).await?;
    assert!(away(&store).contains("check user, password"), "{}", away(&store));
    assert_eq!(open(&redis, ":s3cret-p%40ss").await?.status().standing, Standing::Up);
    Ok(())
}

#[tokio::test]
async fn a_user_that_may_not_write_our_keys_is_told_what_it_lacks() -> Result<()> {
    for rules in [&["~other:*", "+@all"][..], &["~*", "+@read", "+ping"]] {
        let redis = with_user(rules).await?;
        let reason = away(&open(&redis, "me:s3cret-p%40ss").await?);
        assert!(reason.contains("ACL"), "{reason}");
    }
    Ok(())
}
