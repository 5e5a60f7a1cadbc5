//! Cached bindings in fixed pages of bytes: Envoy's shared data can neither delete nor evict, so nothing there may grow.
//!
//! A session hashes to one page; a page holds packed records and drops its least recently touched one when full.
//! These are pure functions from bytes to bytes; the caller does the compare-and-swap.

use crate::id::{Rank, RankHash, SessionId, Version};
use crate::session::Session;
use crate::time::{Millis, Timestamp};

/// Bytes of one packed record.
pub const RECORD_BYTES: usize = 64;
/// First byte of a page; a page of another layout is read as empty.
const LAYOUT: u8 = 1;
const HEADER_BYTES: usize = 4;
/// A held record that nobody committed or removed (its VM died) is believed this long, then the service is asked again.
pub const HELD_BELIEVED: Millis = Millis(10_000);

/// How sure the cached record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// An accepted answer committed it.
    Bound,
    /// Chosen, not answered yet; concurrent first turns join it.
    Held,
    /// Moved away or released: keeps an older answer from coming back.
    Gone,
    /// No binding: the id is an engine's response id, and the record tells its session ([`Record::alias`]).
    Alias,
}

/// One cached binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The session.
    pub id: SessionId,
    /// Its rank hash, so that a page can be uploaded to a service that lost its memory.
    pub rank_hash: RankHash,
    /// Version of the binding.
    pub version: Version,
    /// The worker; never a slot index, which may come back as another worker.
    pub worker_hash: u64,
    /// The bound rank; `None` for worker-only bindings.
    pub rank: Option<Rank>,
    /// When a turn last used it, in whole seconds of the filter's clock.
    pub touched_s: u32,
    /// Cache generation it was written under.
    pub generation: u16,
    /// How sure it is.
    pub certainty: Certainty,
}

impl Record {
    /// What tells the session of a response id: the session's id stands where others have a version.
    #[must_use]
    pub fn alias(alias: SessionId, session: Session, touched_s: u32) -> Self {
        let halves = session.id.0.to_le_bytes();
        let (low, high) = halves.split_at(8);
        let number = |half: &[u8]| half.try_into().map_or(0, u64::from_le_bytes);
        Self {
            id: alias,
            rank_hash: session.rank_hash,
            version: Version { seq: number(high), writer: number(low) },
            worker_hash: 0,
            rank: None,
            touched_s,
            generation: 0,
            certainty: Certainty::Alias,
        }
    }

    /// The session of a response id; `None` for bindings.
    #[must_use]
    pub fn aliased(&self) -> Option<Session> {
        let id = SessionId(u128::from(self.version.seq) << 64 | u128::from(self.version.writer));
        (self.certainty == Certainty::Alias).then_some(Session { id, rank_hash: self.rank_hash })
    }

    /// Seconds of a timestamp, as records keep them.
    #[must_use]
    pub fn seconds(now: Timestamp) -> u32 {
        u32::try_from(now.0 / 1000).unwrap_or(u32::MAX)
    }

    /// Time since the last touch; zero when the clock went back.
    #[must_use]
    pub fn idle(&self, now: Timestamp) -> Millis {
        Millis::from_secs(u64::from(Self::seconds(now).saturating_sub(self.touched_s)))
    }
}

/// Which page a session is on.
#[must_use]
pub fn page_of(id: SessionId, page_count: u32) -> u32 {
    let low = u64::try_from(id.0 & u128::from(u64::MAX)).unwrap_or(0);
    u32::try_from(low % u64::from(page_count.max(1))).unwrap_or(0)
}

/// An empty page, as every page is created at configure time.
#[must_use]
pub fn empty() -> Vec<u8> {
    vec![LAYOUT, 0, 0, 0]
}

/// The session's record, if the page has one. Malformed pages read as empty.
#[must_use]
pub fn find(page: &[u8], id: SessionId) -> Option<Record> {
    let needle = id.0.to_le_bytes();
    records(page).find(|record| record.starts_with(&needle)).and_then(decode)
}

/// Every readable record of a page.
pub fn all(page: &[u8]) -> impl Iterator<Item = Record> + '_ {
    records(page).filter_map(decode)
}

/// The page with `record` in it, or `None` when the page already knows a newer version (nothing to write).
///
/// Of equal versions a bound or gone record is not undone by a held one. A full page drops its least recently touched record.
#[must_use]
pub fn with(page: &[u8], record: &Record, page_bytes: usize) -> Option<Vec<u8>> {
    let old = find(page, record.id);
    if old.is_some_and(|old| !supersedes(record, &old)) {
        return None;
    }
    let mut kept: Vec<[u8; RECORD_BYTES]> = others(page, record.id).collect();
    let room = (page_bytes.saturating_sub(HEADER_BYTES) / RECORD_BYTES).max(1);
    while kept.len() >= room {
        drop_oldest(&mut kept);
    }
    kept.push(encode(record));
    Some(assemble(&kept))
}

/// The page without the session's held record, when that has exactly this version; `None` when there is nothing to remove.
///
/// A bound record stays although its version is the same: another turn of the same hold was accepted.
#[must_use]
pub fn without(page: &[u8], id: SessionId, version: Version) -> Option<Vec<u8>> {
    find(page, id).filter(|old| old.version == version && old.certainty == Certainty::Held)?;
    let kept: Vec<[u8; RECORD_BYTES]> = others(page, id).collect();
    Some(assemble(&kept))
}

fn supersedes(new: &Record, old: &Record) -> bool {
    if new.version != old.version {
        return new.version > old.version;
    }
    match (old.certainty, new.certainty) {
        (Certainty::Gone, _) | (Certainty::Bound, Certainty::Held) => false,
        _ => new != old,
    }
}

fn drop_oldest(records: &mut Vec<[u8; RECORD_BYTES]>) {
    let age = |bytes: &[u8; RECORD_BYTES]| decode(bytes).map_or(0, |record| record.touched_s);
    if let Some((at, _)) = records.iter().enumerate().min_by_key(|(_, bytes)| age(bytes)) {
        records.swap_remove(at);
    }
}

fn records(page: &[u8]) -> impl Iterator<Item = &[u8; RECORD_BYTES]> {
    let body = match page.split_at_checked(HEADER_BYTES) {
        Some((head, body)) if head.first() == Some(&LAYOUT) => body,
        _ => &[],
    };
    body.as_chunks::<RECORD_BYTES>().0.iter()
}

fn others(page: &[u8], id: SessionId) -> impl Iterator<Item = [u8; RECORD_BYTES]> + '_ {
    let needle = id.0.to_le_bytes();
    records(page).filter(move |record| !record.starts_with(&needle)).copied()
}

fn assemble(records: &[[u8; RECORD_BYTES]]) -> Vec<u8> {
    let mut page = empty();
    page.reserve(records.len() * RECORD_BYTES);
    for record in records {
        page.extend_from_slice(record);
    }
    page
}

const NO_RANK: u32 = u32::MAX;

fn encode(record: &Record) -> [u8; RECORD_BYTES] {
    let certainty: u16 = match record.certainty {
        Certainty::Bound => 0,
        Certainty::Held => 1,
        Certainty::Gone => 2,
        Certainty::Alias => 3,
    };
    let mut out = [0; RECORD_BYTES];
    let fields: [&[u8]; 9] = [
        &record.id.0.to_le_bytes(),
        &record.rank_hash.0.to_le_bytes(),
        &record.version.seq.to_le_bytes(),
        &record.version.writer.to_le_bytes(),
        &record.worker_hash.to_le_bytes(),
        &record.rank.map_or(NO_RANK, |rank| rank.0).to_le_bytes(),
        &record.touched_s.to_le_bytes(),
        &record.generation.to_le_bytes(),
        &certainty.to_le_bytes(),
    ];
    for (to, from) in out.iter_mut().zip(fields.into_iter().flatten()) {
        *to = *from;
    }
    out
}

fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Record> {
    let mut reader = Reader(bytes);
    let (id, rank_hash) =
        (SessionId(u128::from_le_bytes(reader.take()?)), RankHash(u64::from_le_bytes(reader.take()?)));
    let version =
        Version { seq: u64::from_le_bytes(reader.take()?), writer: u64::from_le_bytes(reader.take()?) };
    let worker_hash = u64::from_le_bytes(reader.take()?);
    let rank = u32::from_le_bytes(reader.take()?);
    let touched_s = u32::from_le_bytes(reader.take()?);
    let generation = u16::from_le_bytes(reader.take()?);
    let certainty = match u16::from_le_bytes(reader.take()?) {
        0 => Certainty::Bound,
        1 => Certainty::Held,
        2 => Certainty::Gone,
        3 => Certainty::Alias,
        _ => return None,
    };
    let rank = (rank != NO_RANK).then_some(Rank(rank));
    Some(Record { id, rank_hash, version, worker_hash, rank, touched_s, generation, certainty })
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
}
