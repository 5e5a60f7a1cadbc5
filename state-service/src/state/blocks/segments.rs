//! Chains of blocks, cut into segments of at most 64: each block has exactly one place, and who holds it is one bit there.
//!
//! A segment begins where a chain begins, where one leaves another, or where the one before is full; it is found by the chained hash
//! of its first block, which says all that came before. So nothing is ever split or moved, a chain's holes are plain zero bits, and a
//! prompt is matched 64 blocks at a time: if the last hash is equal, all are. Knows neither handles nor events.

use super::super::kv_event::Tier;
use super::table::{Table, VACANT};
use super::{SlotId, TIERS};

/// Blocks of a segment: bits of a mask.
const BLOCKS: usize = u64::BITS as usize;
const OFFSET_BITS: u32 = 6;
const OFFSET_MASK: u32 = (1 << OFFSET_BITS) - 1;
/// Segments there can be; one less, so that no place looks vacant.
const SEGMENTS_MAX: usize = (VACANT >> OFFSET_BITS) as usize;
/// Hashes a segment grows by when its chain does block by block.
const GROWTH: usize = 8;

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(u32);

impl Place {
    const fn new(segment: u32, offset: usize) -> Self {
        Self(segment << OFFSET_BITS | (offset as u32 & OFFSET_MASK))
    }

    /// The block `count` after it in the same segment.
    pub(super) const fn plus(self, count: usize) -> Self {
        Self(self.0 + count as u32)
    }

    pub(super) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u32 {
        self.0
    }

    pub(super) const fn segment(self) -> usize {
        (self.0 >> OFFSET_BITS) as usize
    }

    pub(super) const fn offset(self) -> usize {
        (self.0 & OFFSET_MASK) as usize
    }

    const fn bit(self) -> u64 {
        1 << (self.0 & OFFSET_MASK)
    }
}

/// Blocks of one segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stretch {
    segment: u32,
    bits: u64,
}

impl Stretch {
    /// No block yet, of the segment of `place`.
    pub(super) const fn none(place: Place) -> Self {
        Self { segment: place.0 >> OFFSET_BITS, bits: 0 }
    }

    pub(super) const fn len(self) -> u32 {
        self.bits.count_ones()
    }

    /// Adds a block of the same segment.
    #[inline]
    pub(super) const fn add(&mut self, place: Place) {
        self.bits |= place.bit();
    }

    pub(super) fn places(self) -> impl Iterator<Item = Place> {
        (0..BLOCKS)
            .filter(move |offset| self.bits >> offset & 1 == 1)
            .map(move |at| Place::new(self.segment, at))
    }
}

/// A slot's tier: whose bits a mask has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lane(u32);

impl Lane {
    pub(super) const fn new(slot: SlotId, tier: Tier) -> Self {
        Self(slot.0 << 2 | tier as u32)
    }

    /// All lanes of a slot.
    pub(super) fn of(slot: SlotId) -> [Self; TIERS] {
        [Tier::Gpu, Tier::Host, Tier::Disk].map(|tier| Self::new(slot, tier))
    }

    pub(super) const fn slot(self) -> SlotId {
        SlotId(self.0 >> 2)
    }

    pub(super) const fn tier(self) -> usize {
        (self.0 & 3) as usize
    }
}

/// The blocks of a segment one lane holds; at least one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    pub(super) lane: Lane,
    /// The mask in two halves: 12 bytes, aligned to 4.
    low: u32,
    high: u32,
}

impl Holder {
    const fn new(lane: Lane, mask: u64) -> Self {
        Self { lane, low: mask as u32, high: (mask >> 32) as u32 }
    }

    #[inline]
    pub(super) const fn mask(self) -> u64 {
        (self.high as u64) << 32 | self.low as u64
    }
}

/// Consecutive blocks of a chain.
#[derive(Debug)]
pub(super) struct Segment {
    /// Seed of the chain's namespace, which what follows inherits.
    seed: u64,
    /// 1 to 64; none when the segment is free.
    hashes: Vec<u64>,
    /// By lane.
    holders: Vec<Holder>,
}

impl Segment {
    #[inline]
    pub(super) fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    #[inline]
    pub(super) fn holders(&self) -> &[Holder] {
        &self.holders
    }

    fn heap(&self) -> usize {
        self.hashes.capacity() * size_of::<u64>() + self.holders.capacity() * size_of::<Holder>()
    }

    #[inline]
    fn find(&self, lane: Lane) -> Result<usize, usize> {
        self.holders.binary_search_by_key(&lane, |holder| holder.lane)
    }

    /// Sets bits; gives back those that were set.
    fn set(&mut self, lane: Lane, bits: u64) -> u64 {
        match self.find(lane) {
            Err(at) => {
                if self.holders.len() == self.holders.capacity() {
                    self.holders.reserve_exact(self.holders.len() / 2 + 1);
                }
                self.holders.insert(at, Holder::new(lane, bits));
                0
            }
            Ok(at) => self.holders.get_mut(at).map_or(0, |holder| {
                let mask = holder.mask();
                *holder = Holder::new(lane, mask | bits);
                mask & bits
            }),
        }
    }

    /// The bits that were set among `bits`; they are clear now.
    fn unset(&mut self, lane: Lane, bits: u64) -> u64 {
        let Ok(at) = self.find(lane) else { return 0 };
        let Some(holder) = self.holders.get_mut(at) else { return 0 };
        let (mask, left) = (holder.mask(), holder.mask() & !bits);
        *holder = Holder::new(lane, left);
        if left == 0 {
            self.holders.remove(at);
            if self.holders.len() * 2 < self.holders.capacity() {
                self.holders.shrink_to(self.holders.len() + self.holders.len() / 4);
            }
        }
        mask & bits
    }

    /// Hashes up to the last one anybody holds.
    fn held(&self) -> usize {
        let last = self.hashes.len().saturating_sub(1);
        if self.holders.iter().any(|holder| holder.mask() >> last & 1 == 1) {
            return last + 1;
        }
        let union = self.holders.iter().fold(0, |union, holder| union | holder.mask());
        (u64::BITS - union.leading_zeros()) as usize
    }
}

/// All segments, found by their first hash.
#[derive(Debug)]
pub(super) struct Segments {
    list: Vec<Segment>,
    free: Vec<u32>,
    heads: Table,
    /// Bytes of all hashes and holders.
    heap: usize,
}

impl Segments {
    pub(super) const fn new() -> Self {
        Self { list: Vec::new(), free: Vec::new(), heads: Table::new(), heap: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        let lists = self.list.capacity() * size_of::<Segment>() + self.free.capacity() * size_of::<u32>();
        lists + self.heads.bytes() + self.heap
    }

    /// The segment that begins with the block `hash`.
    #[inline]
    pub(super) fn beginning_with(&self, hash: u64) -> Option<&Segment> {
        self.list.get(self.heads.get(hash)? as usize)
    }

    /// Hash and namespace of a block.
    pub(super) fn block(&self, place: Place) -> Option<(u64, u64)> {
        let segment = self.list.get(place.segment())?;
        Some((*segment.hashes.get(place.offset())?, segment.seed))
    }

    /// Seed and hashes of a segment up to a block.
    pub(super) fn up_to(&self, place: Place) -> Option<(u64, Vec<u64>)> {
        let segment = self.list.get(place.segment())?;
        Some((segment.seed, segment.hashes.get(..=place.offset())?.to_vec()))
    }

    /// Where a block is that follows `previous`, or begins a segment.
    pub(super) fn known(&self, previous: Option<Place>, hash: u64) -> Option<Place> {
        let inside = previous.and_then(|previous| self.inside(previous, &[hash]));
        inside.map(|(place, _)| place).or_else(|| Some(Place::new(self.heads.get(hash)?, 0)))
    }

    /// Places for the first of these blocks, which follow `previous`: how many lie in a row from which place. They are made where there
    /// are none; whoever asks then holds them, or asks again. `more` blocks follow these. `None` when there are too many segments.
    pub(super) fn stretch(
        &mut self,
        previous: Option<Place>,
        hashes: &[u64],
        seed: u64,
        more: usize,
    ) -> Option<(Place, usize)> {
        if let Some(found) = previous.and_then(|previous| self.inside(previous, hashes)) {
            return Some(found);
        }
        let first = *hashes.first()?;
        if let Some(id) = self.heads.get(first) {
            let equal = common(&self.list.get(id as usize)?.hashes, hashes);
            return Some((Place::new(id, 0), equal));
        }
        let tip = previous.filter(|previous| self.is_tip(*previous));
        let (start, taken) = match tip {
            Some(previous) => (Place(previous.0 + 1), previous.offset() + 1),
            None => (Place::new(self.begin(seed)?, 0), 0),
        };
        let room = hashes.get(..BLOCKS - taken).unwrap_or(hashes);
        // One that begins a segment elsewhere is there, not here; the first is known not to.
        let others = room.iter().skip(1).take_while(|hash| self.heads.get(**hash).is_none());
        let count = 1 + others.count();
        if tip.is_none() {
            self.heads.insert(first, start.bits() >> OFFSET_BITS);
        }
        self.append(start, hashes.get(..count)?, more);
        Some((start, count))
    }

    /// The blocks right after `previous`, as far as its segment has them.
    fn inside(&self, previous: Place, hashes: &[u64]) -> Option<(Place, usize)> {
        let segment = self.list.get(previous.segment())?;
        let equal = common(segment.hashes.get(previous.offset() + 1..)?, hashes);
        (equal > 0).then_some((Place(previous.0 + 1), equal))
    }

    /// Whether it is the last of its segment, and there is room for another.
    fn is_tip(&self, place: Place) -> bool {
        let next = place.offset() + 1;
        next < BLOCKS && self.list.get(place.segment()).is_some_and(|segment| segment.hashes.len() == next)
    }

    fn append(&mut self, start: Place, hashes: &[u64], more: usize) {
        let Some(segment) = self.list.get_mut(start.segment()) else { return };
        let (len, before) = (segment.hashes.len(), segment.hashes.capacity());
        if len + hashes.len() > before {
            // What is still to come with the same event; else a little for what decoding adds.
            let wanted = (hashes.len() + more).max(if len == 0 { 1 } else { GROWTH });
            segment.hashes.reserve_exact(wanted.min(BLOCKS - len));
        }
        segment.hashes.extend_from_slice(hashes);
        self.heap += (segment.hashes.capacity() - before) * size_of::<u64>();
    }

    /// An empty segment: its first block comes next.
    fn begin(&mut self, seed: u64) -> Option<u32> {
        self.keep(Segment { seed, hashes: Vec::new(), holders: Vec::new() })
    }

    fn keep(&mut self, segment: Segment) -> Option<u32> {
        if let Some(id) = self.free.pop() {
            *self.list.get_mut(id as usize)? = segment;
            return Some(id);
        }
        let id = u32::try_from(self.list.len()).ok().filter(|_| self.list.len() < SEGMENTS_MAX)?;
        self.list.push(segment);
        Some(id)
    }

    /// Gives blocks of a segment to a lane; those it had already.
    pub(super) fn hold(&mut self, blocks: Stretch, lane: Lane) -> Stretch {
        let Some(segment) = self.list.get_mut(blocks.segment as usize) else { return Stretch::default() };
        let before = segment.holders.capacity();
        let bits = segment.set(lane, blocks.bits);
        self.heap += (segment.holders.capacity() - before) * size_of::<Holder>();
        Stretch { bits, ..blocks }
    }

    /// Takes a block from a lane; whether it had it.
    pub(super) fn release(&mut self, place: Place, lane: Lane) -> bool {
        let last = |segment: &Segment| place.offset() + 1 == segment.hashes.len();
        self.take(place, lane, place.bit(), last) != 0
    }

    /// Takes all blocks of a segment from a lane; how many those were.
    pub(super) fn release_all(&mut self, place: Place, lane: Lane) -> usize {
        self.take(place, lane, u64::MAX, |_| true).count_ones() as usize
    }

    fn take(&mut self, place: Place, lane: Lane, bits: u64, trim: impl Fn(&Segment) -> bool) -> u64 {
        let Some(segment) = self.list.get_mut(place.segment()) else { return 0 };
        let before = segment.heap();
        let taken = segment.unset(lane, bits);
        if taken != 0 && (segment.holders.is_empty() || trim(segment)) {
            let (held, first) = (segment.held(), segment.hashes.first().copied());
            segment.hashes.truncate(held);
            if segment.hashes.capacity() - held > 2 * GROWTH || held == 0 {
                segment.hashes.shrink_to(if held == 0 { 0 } else { held + GROWTH });
            }
            self.heap = self.heap + segment.heap() - before;
            if let Some(first) = first.filter(|_| held == 0) {
                self.end(place, first);
            }
        } else {
            self.heap = self.heap + segment.heap() - before;
        }
        taken
    }

    /// Frees a segment nobody holds a block of.
    fn end(&mut self, place: Place, first: u64) {
        self.heads.remove(first);
        self.free.push(place.0 >> OFFSET_BITS);
        if self.free.len() == self.list.len() {
            (self.list, self.free) = (Vec::new(), Vec::new());
        }
    }
}

/// Leading hashes that are equal.
fn common(left: &[u64], right: &[u64]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}
