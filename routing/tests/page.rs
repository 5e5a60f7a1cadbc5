//! Cached bindings in pages of bytes: versions, tombstones, eviction, hostile bytes.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use routing::id::{Rank, RankHash, SessionId, Version};
use routing::page::{self, Certainty, RECORD_BYTES, Record, page_of};
use routing::policy::mix;
use routing::time::{Millis, Timestamp};
use std::collections::BTreeMap;

const BYTES: usize = 2048;

fn record(id: u128, seq: u64, certainty: Certainty) -> Record {
    Record {
        id: SessionId(id),
        rank_hash: RankHash(77),
        version: Version { seq, writer: 3 },
        worker_hash: 5,
        rank: Some(Rank(2)),
        touched_s: 10,
        generation: 1,
        certainty,
    }
}

fn page_with(records: &[Record]) -> Vec<u8> {
    records.iter().fold(page::empty(), |page, record| page::with(&page, record, BYTES).unwrap())
}

fn find(page: &[u8], id: u128) -> Option<Record> {
    page::find(page, SessionId(id))
}

#[test]
fn what_was_put_is_found_in_every_field() {
    for certainty in [Certainty::Bound, Certainty::Held, Certainty::Gone] {
        for rank in [None, Some(Rank(0)), Some(Rank(u32::MAX - 1))] {
            let extreme = Record {
                id: SessionId(u128::MAX - 1),
                rank_hash: RankHash(u64::MAX),
                version: Version { seq: u64::MAX, writer: u64::MAX - 1 },
                worker_hash: 1 << 63,
                rank,
                touched_s: u32::MAX,
                generation: u16::MAX,
                certainty,
            };
            let page = page_with(&[record(1, 1, Certainty::Bound), extreme]);
            assert_eq!(find(&page, u128::MAX - 1), Some(extreme));
            assert_eq!(find(&page, 1), Some(record(1, 1, Certainty::Bound)));
            assert_eq!(find(&page, 2), None);
            assert_eq!(page::all(&page).count(), 2);
        }
    }
}

#[test]
fn the_layout_is_pinned() {
    let page = page_with(&[record(0x0102, 9, Certainty::Held)]);
    let mut expected = vec![1, 0, 0, 0];
    for field in [&[2u8, 1][..], &[0; 14], &[77], &[0; 7], &[9], &[0; 7], &[3], &[0; 7], &[5], &[0; 7]] {
        expected.extend_from_slice(field);
    }
    expected.extend_from_slice(&[2, 0, 0, 0, 10, 0, 0, 0, 1, 0, 1, 0]);
    expected.resize(4 + RECORD_BYTES, 0);
    assert_eq!(page, expected, "another layout needs another first byte");
}

#[test]
fn a_newer_version_replaces_and_an_older_one_changes_nothing() {
    let page = page_with(&[record(1, 5, Certainty::Bound)]);
    for certainty in [Certainty::Bound, Certainty::Held, Certainty::Gone] {
        assert_eq!(page::with(&page, &record(1, 4, certainty), BYTES), None);
        let newer = page::with(&page, &record(1, 6, certainty), BYTES).unwrap();
        assert_eq!(find(&newer, 1), Some(record(1, 6, certainty)));
        assert_eq!(page::all(&newer).count(), 1, "replaced, not added");
    }
    let by_writer = |writer| Record { version: Version { seq: 5, writer }, ..record(1, 5, Certainty::Bound) };
    assert_eq!(page::with(&page, &by_writer(2), BYTES), None);
    assert!(page::with(&page, &by_writer(4), BYTES).is_some(), "the writer breaks the tie");
}

#[test]
fn of_equal_versions_the_surer_one_stays() {
    use Certainty::{Bound, Gone, Held};
    for (old, new, written) in [
        (Held, Bound, true),
        (Held, Gone, true),
        (Bound, Gone, true),
        (Bound, Held, false),
        (Gone, Held, false),
        (Gone, Bound, false),
    ] {
        let page = page_with(&[record(1, 5, old)]);
        let after = page::with(&page, &record(1, 5, new), BYTES);
        assert_eq!(after.is_some(), written, "{old:?} then {new:?}");
        if let Some(after) = after {
            assert_eq!(find(&after, 1).map(|r| r.certainty), Some(new));
        }
    }
    let page = page_with(&[record(1, 5, Bound)]);
    assert_eq!(page::with(&page, &record(1, 5, Bound), BYTES), None, "the same again is no write");
    let touched = Record { touched_s: 11, ..record(1, 5, Bound) };
    assert_eq!(find(&page::with(&page, &touched, BYTES).unwrap(), 1), Some(touched));
}

#[test]
fn a_hold_is_removed_only_under_its_own_version() {
    let page = page_with(&[record(1, 5, Certainty::Held), record(2, 5, Certainty::Held)]);
    let version = |seq| Version { seq, writer: 3 };
    assert_eq!(page::without(&page, SessionId(1), version(4)), None);
    assert_eq!(page::without(&page, SessionId(1), version(6)), None);
    assert_eq!(page::without(&page, SessionId(3), version(5)), None);
    let after = page::without(&page, SessionId(1), version(5)).unwrap();
    assert_eq!((find(&after, 1), find(&after, 2).is_some()), (None, true));
    assert_eq!(after.len(), 4 + RECORD_BYTES);
}

#[test]
fn a_failed_turn_takes_back_neither_a_commit_nor_a_tombstone() {
    for certainty in [Certainty::Bound, Certainty::Gone] {
        let page = page_with(&[record(1, 5, certainty)]);
        assert_eq!(page::without(&page, SessionId(1), Version { seq: 5, writer: 3 }), None, "{certainty:?}");
    }
}

#[test]
fn a_tombstone_keeps_an_older_answer_out() {
    let page = page_with(&[record(1, 5, Certainty::Bound), record(1, 6, Certainty::Gone)]);
    for (seq, certainty) in [(5, Certainty::Bound), (6, Certainty::Bound), (6, Certainty::Held)] {
        assert_eq!(page::with(&page, &record(1, seq, certainty), BYTES), None);
    }
    assert!(page::with(&page, &record(1, 7, Certainty::Held), BYTES).is_some());
}

#[test]
fn a_full_page_drops_its_least_recently_touched_record() {
    let room = (256 - 4) / RECORD_BYTES;
    assert_eq!(room, 3);
    let mut page = page::empty();
    for (id, touched_s) in [(1, 50), (2, 20), (3, 90), (4, 60)] {
        let new = Record { touched_s, ..record(id, 1, Certainty::Bound) };
        page = page::with(&page, &new, 256).unwrap();
    }
    let kept: Vec<bool> = (1..=4).map(|id| find(&page, id).is_some()).collect();
    assert_eq!(kept, [true, false, true, true]);
    // A record that is there already needs no room.
    let again = Record { touched_s: 99, ..record(1, 1, Certainty::Bound) };
    let page = page::with(&page, &again, 256).unwrap();
    assert_eq!(page::all(&page).count(), 3);
}

#[test]
fn a_page_that_shrank_by_config_is_cut_at_the_next_write() {
    let mut page = page::empty();
    for id in 1..=20u32 {
        let new = Record { touched_s: id, ..record(u128::from(id), 1, Certainty::Bound) };
        page = page::with(&page, &new, BYTES).unwrap();
    }
    let page = page::with(&page, &record(99, 1, Certainty::Bound), 256).unwrap();
    assert!(page.len() <= 256);
    assert!(find(&page, 99).is_some() && find(&page, 20).is_some() && find(&page, 1).is_none());
}

#[test]
fn foreign_pages_read_as_empty() {
    let good = page_with(&[record(1, 5, Certainty::Bound)]);
    let mut other_layout = good.clone();
    other_layout[0] = 2;
    for foreign in [&[][..], &[1], &[1, 0, 0], &[0; 100], b"rankpin", &other_layout, &good[1..]] {
        assert_eq!(page::all(foreign).count(), 0, "{foreign:?}");
        let after = page::with(foreign, &record(2, 1, Certainty::Held), BYTES).unwrap();
        assert_eq!(find(&after, 2), Some(record(2, 1, Certainty::Held)));
        assert_eq!(page::without(foreign, SessionId(1), Version { seq: 5, writer: 3 }), None);
    }
}

#[test]
fn a_truncated_page_loses_only_what_is_cut() {
    let page = page_with(&[record(1, 5, Certainty::Bound), record(2, 5, Certainty::Bound)]);
    for len in 0..page.len() {
        let cut = &page[..len];
        let whole = len.saturating_sub(4) / RECORD_BYTES;
        assert_eq!(page::all(cut).count(), whole, "{len}");
        assert_eq!(find(cut, 1).is_some(), whole > 0);
        assert_eq!(find(cut, 2), None);
    }
}

#[test]
fn an_unreadable_record_is_absent_and_goes_first() {
    let mut page = page_with(&[record(1, 5, Certainty::Bound), record(2, 5, Certainty::Bound)]);
    page[4 + 58] = 9;
    assert_eq!(find(&page, 1), None);
    assert_eq!(page::all(&page).count(), 1);
    let page = page::with(&page, &record(3, 1, Certainty::Bound), 4 + 2 * RECORD_BYTES).unwrap();
    assert!(find(&page, 2).is_some() && find(&page, 3).is_some());
    let mut page = page_with(&[record(1, 5, Certainty::Bound)]);
    page[4 + 58] = 9;
    let page = page::with(&page, &record(1, 1, Certainty::Held), BYTES).unwrap();
    assert_eq!(page::all(&page).collect::<Vec<_>>(), [record(1, 1, Certainty::Held)]);
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| mix(seed, n).to_le_bytes()[0]).collect()
}

fn survives(bytes: &[u8], page_bytes: usize) {
    let known: Vec<Record> = page::all(bytes).collect();
    for old in known.iter().take(3) {
        let _ = page::find(bytes, old.id);
        let _ = page::without(bytes, old.id, old.version);
    }
    let new = record(0xfeed, u64::MAX, Certainty::Bound);
    if let Some(after) = page::with(bytes, &new, page_bytes) {
        assert!(after.len() <= page_bytes.max(4 + RECORD_BYTES));
        assert_eq!(page::find(&after, new.id), Some(new));
    }
}

#[test]
fn no_bytes_hurt() {
    for seed in 0..400u64 {
        let len = usize::try_from(mix(seed, 0) % 2300).unwrap();
        let mut bytes = noise(seed, len);
        survives(&bytes, BYTES);
        if let Some(first) = bytes.first_mut() {
            *first = 1;
        }
        // Make some of the records readable: their certainty is then a valid one.
        for at in (0..len / RECORD_BYTES).step_by(2) {
            if let Some(certainty) = bytes.get_mut(4 + at * RECORD_BYTES + 58..4 + at * RECORD_BYTES + 60) {
                certainty.copy_from_slice(&[2, 0]);
            }
        }
        survives(&bytes, BYTES);
        survives(&bytes, 256);
    }
}

#[cfg(not(target_arch = "wasm32"))]
proptest::proptest! {
    #[test]
    fn no_bytes_hurt_at_all(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..3000), room in 0usize..4096) {
        survives(&bytes, room);
    }
}

/// What a page should be while nothing is evicted: the join of all records put, without the holds removed.
#[derive(Default)]
struct Model(BTreeMap<u128, Record>);

impl Model {
    fn put(&mut self, new: Record) {
        let rank = |c: Certainty| match c {
            Certainty::Held => 0,
            Certainty::Bound => 1,
            Certainty::Gone => 2,
            Certainty::Alias => 3,
        };
        let wins = self.0.get(&new.id.0).is_none_or(|old| {
            (new.version, rank(new.certainty)) > (old.version, rank(old.certainty))
                || (new.version == old.version
                    && new.certainty == old.certainty
                    && new.certainty != Certainty::Gone)
        });
        if wins {
            self.0.insert(new.id.0, new);
        }
    }

    fn remove(&mut self, id: u128, version: Version) {
        if self.0.get(&id).is_some_and(|old| old.version == version && old.certainty == Certainty::Held) {
            self.0.remove(&id);
        }
    }
}

#[test]
fn a_page_does_what_a_map_would_do() {
    for seed in 0..60u64 {
        let (mut page, mut model) = (page::empty(), Model::default());
        for step in 0..120u64 {
            let draw = mix(seed, step);
            let id = u128::from(draw % 20);
            let version = Version { seq: (draw >> 8) % 4, writer: (draw >> 16) % 2 };
            if (draw >> 24).is_multiple_of(4) {
                page = page::without(&page, SessionId(id), version).unwrap_or(page);
                model.remove(id, version);
            } else {
                let certainty = [Certainty::Bound, Certainty::Held, Certainty::Gone]
                    [usize::try_from((draw >> 32) % 3).unwrap()];
                let touched_s = u32::try_from(step).unwrap();
                let new = Record { version, touched_s, ..record(id, 0, certainty) };
                page = page::with(&page, &new, BYTES).unwrap_or(page);
                model.put(new);
            }
            assert!(page.len() <= BYTES);
            let got: BTreeMap<u128, Record> = page::all(&page).map(|r| (r.id.0, r)).collect();
            assert_eq!(got, model.0, "seed {seed} step {step}");
        }
    }
}

#[test]
fn sessions_spread_over_pages() {
    let mut counts = [0u32; 16];
    for n in 0..16_000u64 {
        let id = SessionId((u128::from(mix(1, n)) << 64) | u128::from(mix(2, n)));
        counts[page_of(id, 16) as usize] += 1;
    }
    assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    assert_eq!(page_of(SessionId(u128::MAX), 0), 0, "no page count divides by zero");
}

#[test]
fn idle_time_is_zero_when_the_clock_goes_back() {
    let record = record(1, 1, Certainty::Bound);
    assert_eq!(record.idle(Timestamp(25_999)), Millis(15_000));
    assert_eq!(record.idle(Timestamp(9_000)), Millis(0));
    assert_eq!(Record::seconds(Timestamp(u64::MAX)), u32::MAX);
}
