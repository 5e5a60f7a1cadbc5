//! Every recorded payload, read as an independent decoder reads it; and the awkward ones by hand.

use crate::oracle::{self, flat};
use crate::samples::{Sample, recorded, recordings, synthetic, synthetic_named};
use bytes::Bytes;
use state_service::kv_events::decode::{Decoded, decode};
use state_service::kv_events::frames::{self, Answer};
use state_service::kv_events::skips::Skips;
use state_service::state::kv_event::{EngineHash, KvEvent, Tier};
use std::collections::BTreeSet;

fn read(payload: &[u8]) -> (Decoded, Skips) {
    let mut skips = Skips::default();
    let decoded = decode(payload, &mut skips);
    (decoded, skips)
}

fn named(name: &str) -> (Vec<KvEvent>, Skips) {
    let (decoded, skips) = read(synthetic_named(name).payload());
    (decoded.batch.events, skips)
}

fn stored(hashes: &[u64], parent: Option<u64>, tokens: &[u32], block_size: u32) -> KvEvent {
    KvEvent::Stored {
        hashes: hashes.iter().copied().map(EngineHash).collect(),
        parent: parent.map(EngineHash),
        tokens: tokens.to_vec(),
        block_size,
        tier: Tier::Gpu,
        lora: None,
        salt: None,
        extra: 0,
        group: 0,
        kind_ok: true,
    }
}

fn removed(hashes: &[u64]) -> KvEvent {
    KvEvent::Removed { hashes: hashes.iter().copied().map(EngineHash).collect(), tier: Tier::Gpu, group: 0 }
}

fn check(sample: &Sample) -> (usize, Skips) {
    let (decoded, skips) = read(sample.payload());
    let Some(theirs) = oracle::events(sample.payload()) else {
        assert_eq!(decoded.batch.events, [KvEvent::Cleared], "{}", sample.name);
        return (0, skips);
    };
    let left_out = theirs.iter().filter(|event| event.is_none()).count();
    assert_eq!(skips.total(), left_out as u64, "{}: {skips:?}", sample.name);
    assert_eq!(flat(decoded.batch.events), flat(theirs.into_iter().flatten().collect()), "{}", sample.name);
    (1, skips)
}

#[test]
fn every_frame_of_real_engines_and_publishers_is_read_in_full() {
    let (mut read, mut files) = (0, 0);
    for file in recordings() {
        files += 1;
        for sample in recorded(&file).iter().filter(|sample| !sample.is_end()) {
            let (batches, skips) = check(sample);
            assert_eq!((batches, skips), (1, Skips::default()), "{}", sample.name);
            read += batches;
        }
    }
    assert_eq!(files, 15);
    assert_eq!(read, 136, "{read} batches");
}

/// E1: vLLM up to 0.25 and SGLang up to 0.5.21 answer without the topic.
#[test]
fn e1_replays_are_read_in_either_framing() {
    let mut widths = BTreeSet::new();
    for file in recordings() {
        let replays = recorded(&file).into_iter().filter(|sample| {
            sample.kind.as_ref().is_some_and(|kind| kind.contains("dealer") || kind == "DEALER")
        });
        let mut last = None;
        for sample in replays {
            let frames: Vec<Bytes> = sample.frames.iter().cloned().map(Bytes::from).collect();
            let answer = frames::answer(&frames).unwrap_or_else(|| panic!("{}", sample.name));
            match &answer {
                Answer::End => assert!(sample.is_end(), "{}", sample.name),
                Answer::Batch(batch) => {
                    widths.insert(frames.len());
                    assert_eq!(batch.payload, sample.payload(), "{}", sample.name);
                }
            }
            last = Some(answer);
        }
        assert!(matches!(last, None | Some(Answer::End)), "{file}: a replay ends with its mark");
    }
    assert_eq!(widths, BTreeSet::from([3, 4]));
}

#[test]
fn live_messages_are_three_frames_with_a_number() {
    for file in recordings().iter().filter(|file| !file.contains("replay")) {
        for sample in
            recorded(file).iter().filter(|sample| sample.kind.as_ref().is_none_or(|kind| kind == "live"))
        {
            let frames: Vec<Bytes> = sample.frames.iter().cloned().map(Bytes::from).collect();
            let numbered = frames::live(&frames).unwrap_or_else(|| panic!("{}", sample.name));
            assert_eq!(numbered.payload, sample.payload());
        }
    }
    let bad = synthetic_named("edge/two_frames").frames.into_iter().map(Bytes::from).collect::<Vec<_>>();
    assert_eq!(frames::live(&bad), None);
}

#[test]
fn every_synthetic_layout_is_read_as_the_other_decoder_reads_it() {
    let batches: usize =
        synthetic().iter().filter(|sample| !sample.is_end()).map(|sample| check(sample).0).sum();
    assert!(batches > 115, "{batches} batches");
}

/// What `payload_decoded` says was put in: a third witness, of the number of events and of the ranks.
#[test]
fn ranks_and_numbers_of_events_are_those_that_were_encoded() {
    for sample in synthetic() {
        let Some(shown) = sample.shown.as_ref().filter(|shown| shown[0].is_number()) else { continue };
        let (decoded, skips) = read(sample.payload());
        let rank = shown.get(2).and_then(serde_json::Value::as_u64).and_then(|rank| u32::try_from(rank).ok());
        assert_eq!(decoded.rank, rank, "{}", sample.name);
        let total = flat(decoded.batch.events).len() as u64 + skips.total();
        assert_eq!(total, shown[1].as_array().unwrap().len() as u64, "{}", sample.name);
    }
}

#[test]
fn real_frames_name_the_rank_of_their_port() {
    for file in recordings().iter().filter(|file| file.starts_with("real_vllm")) {
        for sample in recorded(file).iter().filter(|sample| !sample.is_end()) {
            let rank = sample.port.map(|port| u32::try_from(port % 100 - 57).unwrap());
            assert_eq!(read(sample.payload()).0.rank, rank, "{}", sample.name);
        }
    }
}

#[test]
fn e8_maps_arrays_and_every_width_of_hash_are_one_event() {
    let tokens: Vec<u32> = (0..8).collect();
    let expected = stored(&[0xf00d_face_0000_0001, 0x0123_4567_89ab_cdef], None, &tokens, 4);
    for file in recordings().iter().filter(|file| file.starts_with("real_publisher_vllm")) {
        let first = &recorded(file)[0];
        assert_eq!(read(first.payload()).0.batch.events, std::slice::from_ref(&expected), "{}", first.name);
    }
    // SGLang's are signed: the same 64 bits.
    for file in recordings().iter().filter(|file| file.starts_with("real_publisher_sglang")) {
        let batches: Vec<_> =
            recorded(file).iter().map(|sample| read(sample.payload()).0.batch.events).collect();
        assert_eq!(batches[0], [stored(&[0xaaaa_aaaa_aaaa_aaaa, 12345], None, &tokens, 4)], "{file}");
        assert_eq!(batches[1], [stored(&[u64::MAX], Some(12345), &[8, 9, 10, 11], 4)], "{file}");
        assert_eq!(batches[2], [removed(&[u64::MAX])], "{file}");
        assert_eq!(batches[3], [KvEvent::Cleared], "{file}");
    }
    // Of 32 bytes the last eight.
    let (events, _) = named("vllm-0.30..0.32/bytes_hashes");
    let KvEvent::Stored { hashes, .. } = &events[0] else { panic!("{events:?}") };
    assert_eq!(hashes[0].0, 0x1819_1a1b_1c1d_1e1f);
    let (events, skips) = named("edge/mixed_hash_types");
    assert_eq!(events, [stored(&[1, 0], Some(0x0101_0101_0101_0101), &[1, 2, 3, 4], 2)]);
    assert_eq!(skips, Skips::default());
}

#[test]
fn e8_what_is_not_known_costs_itself_only() {
    let (events, skips) = named("edge/unknown_event_type_map");
    assert_eq!((events, skips), (vec![removed(&[1])], Skips { unknown_type: 1, ..Skips::default() }));
    for name in ["edge/unknown_fields_map", "edge/array_more_fields", "edge/key_order_shuffled"] {
        assert_eq!(named(name), (vec![stored(&[1], None, &[1, 2], 2)], Skips::default()), "{name}");
    }
}

#[test]
fn tokens_that_are_no_token_ids_are_not_indexable() {
    for name in ["edge/bigram_token_ids", "trtllm-main-2026-10(zmq)/mm_keys"] {
        assert_eq!(named(name), (vec![], Skips { not_indexable: 1, ..Skips::default() }), "{name}");
    }
}

#[test]
fn salts_are_found_wherever_they_stand() {
    let salts = |name| {
        let salt = |event: &KvEvent| match event {
            KvEvent::Stored { salt, extra, lora, .. } => (salt.clone(), *extra != 0, lora.clone()),
            other => panic!("{other:?}"),
        };
        named(name).0.iter().map(salt).collect::<Vec<_>>()
    };
    let a = Some(Box::from("tenant-a"));
    assert_eq!(salts("edge/sglang_0.5.18_salted_8th_elem"), [(a.clone(), false, None)]);
    assert_eq!(salts("sglang-0.5.22..0.5.23/session"), [(a.clone(), false, None)]);
    // An image in both blocks, at another offset in each: two parts, the salt of the sequence on both.
    assert_eq!(salts("vllm-0.33/mm_and_salt"), [(a.clone(), true, None), (a, true, None)]);
    // The adapter's name among the keys is no salt.
    assert_eq!(salts("vllm-0.33/lora"), [(None, false, Some(Box::from("sql-adapter")))]);
}

#[test]
fn blocks_that_differ_in_what_tokens_do_not_say_are_told_apart() {
    let (events, skips) = named("vllm-0.17..0.19/mm_and_salt");
    let [
        KvEvent::Stored { hashes, parent: None, tokens, extra: one, .. },
        KvEvent::Stored { hashes: more, parent, extra: other, .. },
    ] = events.as_slice()
    else {
        panic!("{events:?}")
    };
    assert_eq!((hashes.len(), tokens.len(), more.len()), (1, 16, 1));
    assert_eq!(*parent, hashes.last().copied(), "the second part follows the first");
    assert!(*one != 0 && *other != 0 && one != other);
    assert_eq!(skips, Skips::default());
}

#[test]
fn tiers_and_groups_are_those_of_the_wire() {
    let tier = |event: &KvEvent| match event {
        KvEvent::Stored { tier, .. } | KvEvent::Removed { tier, .. } => *tier,
        KvEvent::Cleared => panic!("cleared"),
    };
    let tiers = |name| named(name).0.iter().map(tier).collect::<Vec<_>>();
    assert_eq!(tiers("edge/sglang_media")[..3], [Tier::Host, Tier::Gpu, Tier::Disk]);
    assert_eq!(tiers("edge/mooncake_lowercase_medium"), [Tier::Host]);
    assert_eq!(tiers("edge/offload_placeholder"), [Tier::Host]);
    assert_eq!(tiers("vllm-0.33/cpu_remote_tier")[..2], [Tier::Host, Tier::Disk]);
    let kind = |event: &KvEvent| match event {
        KvEvent::Stored { group, kind_ok, .. } => (*group, *kind_ok),
        other => panic!("{other:?}"),
    };
    let kinds = named("vllm-0.33/hybrid_two_groups").0.iter().map(kind).collect::<Vec<_>>();
    assert_eq!(kinds, [(0, true), (1, false)]);
    let gone =
        KvEvent::Removed { hashes: vec![EngineHash(0x0123_4567_89ab_cdef)], tier: Tier::Gpu, group: 1 };
    assert_eq!(named("vllm-0.29/hybrid_removed").0, [gone]);
}

#[test]
fn placeholders_and_odd_counts_are_handed_on_as_they_are() {
    let (events, _) = named("edge/hash_count_mismatch");
    let KvEvent::Stored { hashes, tokens, block_size: 4, group: 1, kind_ok: false, .. } = &events[0] else {
        panic!("{events:?}")
    };
    assert_eq!((hashes.len(), tokens.len()), (2, 12));
    let (events, _) = named("edge/offload_placeholder");
    assert!(matches!(&events[..], [KvEvent::Stored { tokens, block_size: 0, .. }] if tokens.is_empty()));
}

#[test]
fn what_is_no_batch_clears_and_is_counted() {
    let none = Skips { not_a_batch: 1, ..Skips::default() };
    assert_eq!(named("load/sglang_loadstat"), (vec![KvEvent::Cleared], none));
    let (events, skips) = named("edge/truncated_payload");
    assert_eq!(events.last(), Some(&KvEvent::Cleared));
    assert_eq!(skips.total(), 1);
    for payload in [&b""[..], b"\xc0", b"\x90", b"\x91\x01", b"\x92\x01\x01", b"{}"] {
        assert_eq!(read(payload).0.batch.events, [KvEvent::Cleared], "{payload:?}");
        assert_eq!(read(payload).1, none, "{payload:?}");
    }
    assert_eq!(read(b"\x92\x01\xc0"), (Decoded::default(), Skips::default()), "no events are none");
}
