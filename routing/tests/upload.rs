//! The upload of cached bindings: everything once, in bounded batches, again after a loss.

mod common;

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use routing::contract::{Caller, PageUpload, UPLOAD_BINDINGS_MAX};
use routing::id::{Epoch, Rank, RankHash, SessionId, Version};
use routing::page::{self, Certainty, Record};
use routing::time::{Millis, Timestamp};
use routing::upload::Upload;
use std::collections::BTreeSet;

const PAGES: u32 = 256;
const NOW: Timestamp = Timestamp(100_000);

fn pages(sessions: u128) -> Vec<Vec<u8>> {
    let mut pages = vec![page::empty(); PAGES as usize];
    for n in 0..sessions {
        let certainty = match n % 5 {
            3 => Certainty::Held,
            4 => Certainty::Gone,
            _ => Certainty::Bound,
        };
        let record = Record {
            id: SessionId(n),
            rank_hash: RankHash(7),
            version: Version { seq: 3, writer: 4 },
            worker_hash: 9,
            rank: Some(Rank(5)),
            touched_s: 40,
            generation: 0,
            certainty,
        };
        let place = &mut pages[page::page_of(record.id, PAGES) as usize];
        *place = page::with(place, &record, 65_536).unwrap();
    }
    pages
}

fn batch(upload: &mut Upload, pages: &[Vec<u8>]) -> Option<PageUpload> {
    let caller = Caller { node: "envoy-1".to_owned(), vm: Epoch(1) };
    upload.batch(&caller, PAGES, NOW, |n| pages.get(n as usize).cloned())
}

#[test]
fn every_bound_record_is_told_once() {
    let pages = pages(10_000);
    let mut upload = Upload::new(Epoch(8));
    let (mut told, mut batches) = (BTreeSet::new(), Vec::new());
    while let Some(batch) = batch(&mut upload, &pages) {
        assert!(batch.bindings.len() <= UPLOAD_BINDINGS_MAX);
        for binding in &batch.bindings {
            assert!(told.insert(binding.session.id), "twice");
            assert_eq!((binding.idle_ms, binding.slot.rank), (Millis(60_000), Some(Rank(5))));
        }
        batches.push(batch.last);
        upload.acknowledged(PAGES);
    }
    let bound: BTreeSet<SessionId> = (0..10_000).filter(|n| n % 5 < 3).map(SessionId).collect();
    assert_eq!(told, bound, "neither held nor gone ones");
    assert!(batches.len() > 3, "in batches");
    assert_eq!(batches.iter().position(|last| *last), Some(batches.len() - 1), "the last one says so");
}

#[test]
fn a_lost_batch_is_told_again_and_not_for_ever() {
    let pages = pages(5_000);
    let mut upload = Upload::new(Epoch(8));
    let first = batch(&mut upload, &pages);
    upload.lost();
    assert_eq!(batch(&mut upload, &pages), first);
    upload.acknowledged(PAGES);
    assert_ne!(batch(&mut upload, &pages), first);
    for _ in 0..10 {
        upload.lost();
    }
    assert_eq!(batch(&mut upload, &pages), None, "given up");
}

#[test]
fn an_envoy_that_knows_nothing_says_that_it_is_done() {
    let mut upload = Upload::new(Epoch(8));
    let only = batch(&mut upload, &[]).unwrap();
    assert!(only.last && only.bindings.is_empty());
    upload.acknowledged(PAGES);
    assert_eq!(batch(&mut upload, &[]), None);
}
