//! Bytes nobody should send: no panic, no memory beyond what was sent, and no removal forgotten.

use crate::oracle::{self, flat};
use crate::samples::{recorded, recordings, synthetic};
use proptest::prelude::*;
use rmpv::Value;
use state_service::kv_events::decode::{PAYLOAD_BYTES_MAX, decode};
use state_service::kv_events::skips::Skips;
use state_service::state::kv_event::{KvBatch, KvEvent};

fn events(payload: &[u8]) -> (Vec<KvEvent>, Skips) {
    let mut skips = Skips::default();
    let batch: KvBatch = decode(payload, &mut skips).batch;
    (batch.events, skips)
}

fn every_payload() -> Vec<Vec<u8>> {
    let recorded = recordings().into_iter().flat_map(|file| recorded(&file));
    recorded.chain(synthetic()).map(|sample| sample.payload().to_vec()).collect()
}

#[test]
fn a_payload_cut_anywhere_ends_in_clearing() {
    for payload in every_payload() {
        let Some(whole) = oracle::events(&payload).map(|events| events.len()) else { continue };
        for cut in 0..payload.len() {
            let (events, skips) = events(&payload[..cut]);
            let complete = skips.torn + skips.not_a_batch == 0;
            assert!(complete || events.last() == Some(&KvEvent::Cleared), "cut at {cut} of {payload:02x?}");
            // Only what follows the events may be missing unseen.
            assert!(!complete || flat(events).len() as u64 + skips.total() >= whole as u64, "cut at {cut}");
        }
    }
}

/// Lengths of 2³² − 1 in every place that has one, and nothing behind them.
#[test]
fn declared_lengths_allocate_nothing_that_was_not_sent() {
    let longest = [0xdd_u8, 0xdf, 0xdb, 0xc6, 0xc9];
    let before: [&[u8]; 6] = [
        b"\x93\x01",
        b"\x92\x01\x91\x9a\xabBlockStored",
        b"\x92\x01\x91\x9a\xabBlockStored\x91\x01\xc0",
        b"\x92\x01\x91\x82\xa4type\xabBlockStored\xa9token_ids",
        b"\x92\x01\x91\x82\xa4type\xacBlockRemoved\xacblock_hashes",
        b"\x92\x01\x91\x82\xa4type\xabBlockStored\xaaextra_keys",
    ];
    for (head, tag) in before.iter().flat_map(|head| longest.map(|tag| (head, tag))) {
        let payload = [head, &[tag, 0xff, 0xff, 0xff, 0xff][..]].concat();
        let (events, skips) = events(&payload);
        assert_eq!(events.last(), Some(&KvEvent::Cleared), "{payload:02x?}");
        assert_eq!(skips.total(), 1, "{payload:02x?}");
    }
    let nested = [&b"\x92\x01\x91"[..], &[0x91; 1 << 20]].concat();
    assert_eq!(events(&nested).1.torn, 1, "a deep nest is stepped over without a stack");
}

#[test]
fn a_payload_past_the_limit_is_no_batch() {
    let mut payload = b"\x93\x01\x90".to_vec();
    payload.resize(PAYLOAD_BYTES_MAX + 1, 0xc0);
    assert_eq!(events(&payload).1.not_a_batch, 1);
    payload.truncate(PAYLOAD_BYTES_MAX);
    assert_eq!(events(&payload).1.not_a_batch, 0);
}

/// One store must not become a million: each block of it with a key of its own.
#[test]
fn a_store_that_would_be_split_too_often_is_left_out() {
    let numbers = |count: u32| Value::Array((0..count).map(Value::from).collect());
    let store = |blocks: u32| {
        let keys = (0..blocks).map(|key| Value::Array(vec![Value::from(key)])).collect();
        let event = Value::Map(vec![
            ("type".into(), "BlockStored".into()),
            ("block_hashes".into(), numbers(blocks)),
            ("token_ids".into(), numbers(blocks)),
            ("block_size".into(), 1.into()),
            ("extra_keys".into(), Value::Array(keys)),
        ]);
        bytes(&Value::Array(vec![1.into(), Value::Array(vec![event])]))
    };
    assert_eq!(events(&store(4096)).0.len(), 4096);
    assert_eq!(events(&store(4097)), (vec![], Skips { not_indexable: 1, ..Skips::default() }));
}

#[test]
fn a_removal_that_cannot_be_read_clears() {
    let batch = |event: Value| bytes(&Value::Array(vec![1.into(), Value::Array(vec![event, good()])]));
    let good_events = events(&bytes(&Value::Array(vec![1.into(), Value::Array(vec![good()])]))).0;
    let bad_hash = Value::Array(vec![1.into(), "x".into(), 2.into()]);
    let unreadable = [
        Value::Array(vec!["BlockRemoved".into(), bad_hash.clone()]),
        Value::Map(vec![("block_hashes".into(), bad_hash.clone()), ("type".into(), "BlockRemoved".into())]),
        Value::Map(vec![("type".into(), "BlockRemoved".into())]),
        Value::Array(vec!["BlockRemoved".into()]),
    ];
    for event in unreadable {
        let (events, skips) = events(&batch(event.clone()));
        assert_eq!(events[0], KvEvent::Cleared, "{event}");
        assert_eq!(events[1..], good_events[..], "{event}");
        assert_eq!(skips, Skips { unreadable_removal: 1, ..Skips::default() }, "{event}");
    }
    for event in [Value::Array(vec!["BlockStored".into(), bad_hash]), Value::from(7), Value::Array(vec![])] {
        let (events, skips) = events(&batch(event.clone()));
        assert_eq!(events, good_events, "{event}");
        assert_eq!(skips, Skips { malformed: 1, ..Skips::default() }, "{event}");
    }
}

/// As many as a payload has room for: each costs the state a look at everything that is expected of its slot.
#[test]
fn clears_in_a_row_are_one() {
    let cleared = || Value::Array(vec!["AllBlocksCleared".into()]);
    let unreadable = Value::Array(vec!["BlockRemoved".into()]);
    let many = |events: Vec<Value>| events_of([events, vec![good(), cleared(), cleared()]].concat());
    let row = (0..100_000).map(|_| cleared()).chain([unreadable]).collect();
    let (events, skips) = many(row);
    let [KvEvent::Cleared, KvEvent::Removed { .. }, KvEvent::Cleared] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(skips.unreadable_removal, 1);
}

fn events_of(list: Vec<Value>) -> (Vec<KvEvent>, Skips) {
    events(&bytes(&Value::Array(vec![1.into(), Value::Array(list)])))
}

fn good() -> Value {
    Value::Array(vec!["BlockRemoved".into(), Value::Array(vec![5.into()])])
}

fn bytes(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, value).unwrap();
    bytes
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Nil),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0_u32..300).prop_map(Value::from),
        any::<f64>().prop_map(Value::F64),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Binary),
        prop_oneof![
            "BlockStored|BlockRemoved|AllBlocksCleared|GPU|cpu|DISK|tenant|.{0,8}",
            Just("full_attention".to_owned())
        ]
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
            prop::collection::vec((inner.clone(), inner), 0..4).prop_map(Value::Map),
        ]
    })
}

const NAMES: [&str; 11] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "cache_salt",
    "session_id",
];

/// An event of the right shape in which any field may be anything, or missing.
fn near_event() -> impl Strategy<Value = Value> {
    let list =
        |inner: BoxedStrategy<Value>| prop::collection::vec(inner, 0..6).prop_map(Value::Array).boxed();
    let number = (0_u32..400_000).prop_map(Value::from).boxed();
    let right: [BoxedStrategy<Value>; 11] = [
        list(any::<u64>().prop_map(Value::from).boxed()),
        any::<i64>().prop_map(Value::from).boxed(),
        list(number.clone()),
        (0_u32..5).prop_map(Value::from).boxed(),
        "GPU|CPU|Disk|tape".prop_map(Value::from).boxed(),
        "lora|".prop_map(Value::from).boxed(),
        list(prop_oneof![Just(Value::Nil), list("lora|salt".prop_map(Value::from).boxed())].boxed()),
        (0_u32..3).prop_map(Value::from).boxed(),
        "full_attention|mamba".prop_map(Value::from).boxed(),
        "salt|".prop_map(Value::from).boxed(),
        number,
    ];
    let fields: Vec<BoxedStrategy<Option<Value>>> = right
        .into_iter()
        .map(|right| {
            prop_oneof![20 => right.prop_map(Some), 2 => Just(None), 1 => any_value().prop_map(Some)].boxed()
        })
        .collect();
    let tag = "BlockStored|BlockRemoved|AllBlocksCleared|BlockMoved";
    (tag, fields, any::<bool>()).prop_map(|(tag, fields, positional)| {
        if positional {
            let places = fields.into_iter().take(9).map(|field| field.unwrap_or(Value::Nil));
            let mut list: Vec<Value> = std::iter::once(Value::from(tag)).chain(places).collect();
            list.insert(5.min(list.len()), Value::Nil);
            return Value::Array(list);
        }
        let named = NAMES.iter().zip(fields).filter_map(|(name, field)| Some(((*name).into(), field?)));
        Value::Map(std::iter::once(("type".into(), tag.into())).chain(named).collect())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn random_bytes_never_panic(payload in prop::collection::vec(any::<u8>(), 0..400)) {
        events(&payload);
    }

    #[test]
    fn a_recorded_payload_with_wrong_bytes_never_panics(
        which in 0_usize..10_000, at in prop::collection::vec((any::<usize>(), any::<u8>()), 1..6),
    ) {
        let all = every_payload_once();
        let mut payload = all[which % all.len()].clone();
        for (at, byte) in at {
            let len = payload.len().max(1);
            if let Some(place) = payload.get_mut(at % len) {
                *place = byte;
            }
        }
        events(&payload);
    }

    #[test]
    fn any_tree_is_read_as_the_other_decoder_reads_it(batch in prop::collection::vec(near_event(), 0..6)) {
        let payload = bytes(&Value::Array(vec![Value::F64(1.0), Value::Array(batch), 0.into()]));
        let (ours, skips) = events(&payload);
        let theirs = oracle::events(&payload).unwrap();
        let left_out = theirs.iter().filter(|event| event.is_none()).count() as u64;
        prop_assert_eq!(skips.total(), left_out, "{}", rmpv::decode::read_value(&mut &payload[..]).unwrap());
        if skips.unreadable_removal == 0 {
            prop_assert_eq!(flat(ours), flat(theirs.into_iter().flatten().collect()));
        }
    }
}

fn every_payload_once() -> &'static [Vec<u8>] {
    static ALL: std::sync::OnceLock<Vec<Vec<u8>>> = std::sync::OnceLock::new();
    ALL.get_or_init(every_payload)
}
