//! Another program's data under our names: named errors, nothing of it written over, the rest goes on.

use anyhow::Result;
use e2e::Redis;
use routing::id::WorkerId;
use routing::time::Millis;
use state_service::state::Outcome;
use state_service::store::{Claim, Standing, Store, StoreError, StreamId};

use crate::support::{bound, claim_one, config, fresh, session, store};

fn key(number: u64) -> String {
    format!("test:{{rankpin}}:s:{}", session(number).id)
}

fn is_foreign<T: std::fmt::Debug>(result: &Result<T, StoreError>) {
    assert!(matches!(result, Err(StoreError::Foreign { .. })), "{result:?}");
}

/// Texts that are almost ours.
fn texts() -> Vec<String> {
    let ours = state_service::store::record::with_deadline(&bound(1, (1, 1), "w", 0), 1 << 40);
    vec![
        String::new(),
        "hello".to_owned(),
        "x".repeat(100_000),
        ours.to_uppercase(),
        format!("{ours} "),
        ours.replacen('|', "/", 1),
        ours.replace("|w", "|ä"),
        ours.replacen('b', "r", 1),
        format!("r{}", &ours[1..]),
        "\0".repeat(110),
    ]
}

#[tokio::test]
async fn a_record_that_is_not_ours_costs_only_its_own_session() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store(&redis, 1).await?;
    // In a binding's place, in a claim's, and in one beside the other.
    let ours = state_service::store::record::with_deadline(&bound(1, (1, 1), "w", 0), 1 << 40);
    let places = ["", "\n", &format!("{ours}\n")].map(str::to_owned);
    for text in places.iter().flat_map(|place| texts().into_iter().map(move |text| format!("{place}{text}")))
    {
        redis.command::<()>(&["DEL", &key(1), &key(2)]).await?;
        redis.command::<()>(&["SET", &key(1), &text]).await?;
        let proposals = [bound(1, (1, 1), "w", 0), bound(2, (1, 1), "w", 0)];
        let claims = store.claim(&fresh(&proposals)).await?;
        assert_eq!(claims[0], Claim::Unusable, "{text:.120}");
        assert!(matches!(claims[1], Claim::Claimed(_)));
        let outcomes = store.merge(&proposals, &[]).await?.outcomes;
        assert_eq!(outcomes, [Outcome::Rejected, Outcome::Inserted], "{text:.120}");
        assert_eq!(store.read(&[session(1).id, session(2).id]).await?.len(), 1);
        let version = bound(1, (1, 1), "w", 0).version;
        assert_eq!(store.unclaim(&[(session(1).id, version)]).await?, [false]);
        let kept: String = redis.command(&["GET", &key(1)]).await?;
        assert_eq!(kept, text, "written over");
    }
    assert!(store.figures().foreign_records >= 20);
    Ok(())
}

#[tokio::test]
async fn a_key_of_another_type_costs_only_its_own_session() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store(&redis, 1).await?;
    let kinds: [&[&str]; 5] = [
        &["SET", "KEY", "x"],
        &["RPUSH", "KEY", "x"],
        &["HSET", "KEY", "b", "x"],
        &["ZADD", "KEY", "1", "x"],
        &["XADD", "KEY", "*", "b", "x"],
    ];
    for kind in kinds {
        let words: Vec<String> =
            kind.iter().map(|word| if *word == "KEY" { key(1) } else { (*word).to_owned() }).collect();
        redis.command::<()>(&["DEL", &key(1), &key(2)]).await?;
        redis.command::<redis::Value>(&words).await?;
        let both = [bound(1, (1, 1), "w", 0), bound(2, (1, 1), "w", 0)];
        assert_eq!(claim_one(&store, &both[0]).await?, Claim::Unusable);
        assert_eq!(store.merge(&both, &[]).await?.outcomes, [Outcome::Rejected, Outcome::Inserted]);
        let mut snapshot = store.snapshot().await?;
        assert_eq!(snapshot.next().await?.map(|page| page.len()), Some(1));
        assert_eq!(snapshot.next().await?, None);
    }
    Ok(())
}

#[tokio::test]
async fn a_worker_whose_hash_is_not_its_names_is_not_believed() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store(&redis, 1).await?;
    let text = state_service::store::record::with_deadline(&bound(1, (1, 1), "w", 0), 1 << 50);
    redis.command::<()>(&["SET", &key(1), &text.replace("|w", "|v")]).await?;
    assert_eq!(claim_one(&store, &bound(1, (1, 1), "w", 0)).await?, Claim::Unusable);
    assert_eq!(store.read(&[session(1).id]).await?, []);
    assert_eq!(store.figures().unreadable, 1);
    Ok(())
}

#[tokio::test]
async fn a_log_that_is_no_stream_fails_before_anything_is_written() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store(&redis, 1).await?;
    redis.command::<()>(&["SET", "test:{rankpin}:log", "x"]).await?;
    is_foreign(&store.merge(&[bound(1, (1, 1), "w", 0)], &[]).await);
    let worker = WorkerId::parse("w").unwrap();
    is_foreign(&store.put_worker(&worker, &serde_json::json!({}), 0).await);
    is_foreign(&store.follow(StreamId::default(), Millis(0)).await);
    is_foreign(&store.snapshot().await.map(drop));
    assert_eq!(store.read(&[session(1).id]).await?, []);
    assert_eq!(store.workers().await?.workers, []);
    assert_eq!(store.status().standing, Standing::Up);
    Ok(())
}

#[tokio::test]
async fn entries_of_another_program_are_a_gap_and_lines_of_theirs_are_counted() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store(&redis, 1).await?;
    let log = "test:{rankpin}:log";
    redis.command::<String>(&["XADD", log, "*", "hello", "world"]).await?;
    assert!(store.follow(StreamId::default(), Millis(0)).await?.gap);
    let cursor = store.snapshot().await?.cursor;
    let previous = cursor.to_string();
    let added =
        ["XADD", log, "*", "p", &previous, "w", "zz", "b", "garbage\nmore garbage", "n", "\n", "odd", "x"];
    redis.command::<String>(&added).await?;
    store.merge(&[bound(1, (1, 1), "w", 0)], &[]).await?;
    let followed = store.follow(cursor, Millis(0)).await?;
    let seen: Vec<_> = followed.entries.iter().map(|entry| (entry.writer, entry.bindings.len())).collect();
    assert_eq!((seen, store.figures().unreadable), (vec![(0, 0), (1, 1)], 3));
    Ok(())
}

#[tokio::test]
async fn an_epoch_that_is_not_ours_keeps_us_away_and_says_so() -> Result<()> {
    let redis = Redis::start().await?;
    let epoch = "test:{rankpin}:epoch";
    let fill: [&[&str]; 3] =
        [&["SET", epoch, "hello"], &["SET", epoch, "zzzzzzzzzzzzzzzz"], &["RPUSH", epoch, "x"]];
    for words in fill {
        redis.command::<()>(&["DEL", epoch]).await?;
        redis.command::<redis::Value>(words).await?;
        let store = Store::open(&config(&redis, 1)).await?;
        let Standing::Away { reason } = store.status().standing else { panic!("up") };
        assert!(reason.contains("did not write"), "{reason}");
        assert!(matches!(store.epoch().await, Err(StoreError::Away { .. })));
    }
    Ok(())
}

#[tokio::test]
async fn declarations_that_are_not_ours_are_left_out() -> Result<()> {
    let redis = Redis::start().await?;
    let store = store(&redis, 1).await?;
    let workers = "test:{rankpin}:workers";
    let fields = [
        "HSET",
        workers,
        "a",
        "1 {}",
        "b",
        "hello",
        "c",
        "x {}",
        "d",
        "2 {",
        "not a name!",
        "1 {}",
        "#",
        "no number",
    ];
    redis.command::<()>(&fields).await?;
    let read = store.workers().await?;
    let ids: Vec<_> = read.workers.iter().map(|worker| worker.id.as_str()).collect();
    assert_eq!((ids, read.generation, store.figures().unreadable), (vec!["a"], 0, 4));
    is_foreign(&store.put_worker(&WorkerId::parse("w").unwrap(), &serde_json::json!({}), 0).await);
    redis.command::<()>(&["DEL", workers]).await?;
    redis.command::<()>(&["SET", workers, "x"]).await?;
    is_foreign(&store.workers().await);
    Ok(())
}
