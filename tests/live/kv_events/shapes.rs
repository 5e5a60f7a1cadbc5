//! What a batch may carry beside blocks an index can use: each is left out by itself, counted, and costs nothing else.

use super::fleet::{BLOCK, Fleet, telling, tokens};
use e2e::wait_for;
use rmpv::Value;

/// A store of blocks named from `first` on, as a map; `change` makes it odd.
fn stored(
    first: u64,
    parent: Option<u64>,
    blocks: usize,
    change: impl FnOnce(&mut Vec<(Value, Value)>),
) -> Value {
    let ids = tokens(u32::try_from(first % 1000).unwrap(), blocks);
    let mut fields = vec![
        ("type".into(), "BlockStored".into()),
        ("block_hashes".into(), Value::Array((0..blocks as u64).map(|n| (first + n).into()).collect())),
        ("parent_block_hash".into(), parent.map_or(Value::Nil, Value::from)),
        ("token_ids".into(), Value::Array(ids.into_iter().map(Value::from).collect())),
        ("block_size".into(), BLOCK.into()),
        ("medium".into(), "GPU".into()),
    ];
    change(&mut fields);
    Value::Map(fields)
}

fn set(name: &'static str, value: impl Into<Value>) -> impl FnOnce(&mut Vec<(Value, Value)>) {
    let value = value.into();
    move |fields| match fields.iter_mut().find(|(key, _)| key.as_str() == Some(name)) {
        Some((_, old)) => *old = value,
        None => fields.push((name.into(), value)),
    }
}

fn plain(_: &mut Vec<(Value, Value)>) {}

fn removed(hashes: &[u64]) -> Value {
    let hashes = hashes.iter().map(|&hash| hash.into()).collect();
    Value::Map(vec![("type".into(), "BlockRemoved".into()), ("block_hashes".into(), Value::Array(hashes))])
}

fn batch(events: Vec<Value>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let batch = Value::Array(vec![1.0.into(), Value::Array(events), 0.into()]);
    rmpv::encode::write_value(&mut bytes, &batch).unwrap();
    bytes
}

async fn publish(fleet: &Fleet, events: Vec<Value>) {
    fleet.engine("w0").kv_publish(&batch(events), 0).await.unwrap();
}

/// E7: other block sizes, tails, placeholders, masked ranges. E10: of a hybrid's groups one kind counts. Nothing is divided by them.
#[tokio::test(flavor = "multi_thread")]
async fn e7_e10_blocks_that_cannot_be_compared_are_ignored_and_counted() {
    let fleet = Fleet::start(vec![telling("w0", 1)]).await;
    fleet.compute("w0", 0, 1, 20).await;
    fleet.holds("w0", 0, 20).await;
    let odd: [(&str, u64, Value); 5] = [
        ("other_block_size", 1, stored(100, None, 1, set("block_size", 32))),
        ("other_block_size", 1, stored(200, None, 1, set("block_size", 5))),
        (
            "placeholder",
            1,
            stored(300, None, 1, |fields| {
                set("token_ids", Value::Array(vec![]))(fields);
                set("block_size", 0)(fields);
                set("medium", "CPU")(fields);
            }),
        ),
        (
            "misshapen",
            2,
            stored(400, None, 2, set("token_ids", Value::Array((0..48).map(Value::from).collect()))),
        ),
        ("unknown_parent", 2, stored(500, Some(499), 2, plain)),
    ];
    for (reason, count, event) in odd {
        let before = fleet.counted("rankpin_kv_blocks_ignored_total", reason).await;
        publish(&fleet, vec![event]).await;
        fleet.holds("w0", 0, 20).await;
        let after = fleet.counted("rankpin_kv_blocks_ignored_total", reason).await;
        assert_eq!(after - before, count, "{reason}");
    }
    // One hash in two groups; the window's is not scored, and its removal takes nothing from the other.
    let group = |index: u64, kind: &'static str| {
        stored(600, None, 1, move |fields| {
            set("group_idx", index)(fields);
            set("kv_cache_spec_kind", kind)(fields);
        })
    };
    publish(&fleet, vec![group(0, "full_attention"), group(1, "sliding_window")]).await;
    fleet.holds("w0", 0, 21).await;
    let mut gone = removed(&[600]);
    if let Value::Map(fields) = &mut gone {
        fields.push(("group_idx".into(), 1.into()));
    }
    publish(&fleet, vec![gone]).await;
    fleet.holds("w0", 0, 21).await;
}

/// E6, E8: what cannot be read, and what is unknown, stands among what can.
#[tokio::test(flavor = "multi_thread")]
async fn e6_e8_one_bad_event_never_costs_its_batch() {
    let fleet = Fleet::start(vec![telling("w0", 2)]).await;
    fleet.compute("w0", 1, 1, 2).await;
    publish(
        &fleet,
        vec![
            stored(100, None, 2, plain),
            Value::Map(vec![
                ("type".into(), "BlockMoved".into()),
                ("block_hashes".into(), Value::Array(vec![])),
            ]),
            stored(200, None, 1, set("token_ids", "text")),
            Value::Array(vec!["BlockStored".into()]),
            stored(300, None, 1, set("medium", "TAPE")),
            // Hashes of every form in one chain.
            stored(102, Some(101), 3, |fields| {
                let mut long = vec![7_u8; 24];
                long.extend(104_u64.to_be_bytes());
                let hashes = vec![102.into(), (-103_i64).into(), Value::Binary(long)];
                set("block_hashes", Value::Array(hashes))(fields);
            }),
            stored(105, Some(104), 1, set("some_future_field", 3)),
        ],
    )
    .await;
    fleet.holds("w0", 0, 2 + 3 + 1).await;
    // Each bad one by itself, as often as its batch was read: a replay on a slow machine reads it once more.
    wait_for("one event of each kind to be counted for each reading", async || {
        let read = fleet.counted("rankpin_kv_events_skipped_total", "unknown_type").await;
        let tiers = fleet.counted("rankpin_kv_events_skipped_total", "unknown_tier").await;
        let skipped = fleet.service.metric("rankpin_kv_events_skipped_total", &[]).await.ok()?;
        (read > 0 && tiers == read && skipped == 4.0 * read as f64).then_some(())
    })
    .await
    .unwrap();
    // One of three is not known: the others go, and it is counted.
    publish(&fleet, vec![removed(&[105, 7777, 104])]).await;
    fleet.holds("w0", 0, 4).await;
    assert_eq!(fleet.counted("rankpin_kv_blocks_ignored_total", "unknown_removed").await, 1);
    // A torn batch: what was read counts, and as a removal may have been lost, the rank is cleared.
    let whole = batch(vec![stored(700, None, 1, plain), removed(&[100])]);
    fleet.engine("w0").kv_publish(&whole[..whole.len() - 12], 0).await.unwrap();
    fleet.holds("w0", 0, 0).await;
    // No batch at all.
    publish(&fleet, vec![stored(800, None, 2, plain)]).await;
    fleet.holds("w0", 0, 2).await;
    fleet.engine("w0").kv_publish(b"\xc1 no msgpack", 0).await.unwrap();
    fleet.holds("w0", 0, 0).await;
    // A billion events are announced and none comes.
    fleet.engine("w0").kv_publish(b"\x92\x00\xdd\x3b\x9a\xca\x00", 0).await.unwrap();
    publish(&fleet, vec![stored(900, None, 1, plain)]).await;
    fleet.holds("w0", 0, 1).await;
    fleet.holds("w0", 1, 2).await;
}
