//! When a slot is overloaded, and when it is not any more.
//!
//! ```text
//!            in flight >= limit, or kv usage >= 95 %
//!    fine ───────────────────────────────────────────► overloaded
//!      ◄───────────────────────────────────────────────
//!            each sign that was seen is 10 % below its limit
//! ```
//! Pure: numbers in, marks out. Judged per slot (affinity section 9): one busy rank does not shut its worker, one idle rank
//! does not hide a busy one. The slot without a rank stands for the worker as a whole, whose engine balances.

use routing::id::Rank;
use std::collections::BTreeMap;

/// Share of the KV cache from which on a slot is overloaded, in thousandths.
pub(super) const KV_PERMILLE: u32 = 950;

/// What a slot is judged by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Signs {
    /// Requests in flight, choices that no report covers yet among them.
    pub(super) in_flight: u64,
    /// How many of them it takes, if that is limited; at least 1.
    pub(super) limit: Option<u64>,
    /// Share of the KV cache in use, in thousandths, if the engine says.
    pub(super) kv_permille: Option<u32>,
}

/// Which signs of overload a slot shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    requests: bool,
    cache: bool,
}

impl Mark {
    fn after(self, signs: Signs) -> Self {
        let requests = signs.limit.is_some_and(|limit| holds(self.requests, signs.in_flight, limit));
        let cache = signs.kv_permille.is_some_and(|kv| holds(self.cache, kv.into(), KV_PERMILLE.into()));
        Self { requests, cache }
    }

    const fn is_overloaded(self) -> bool {
        self.requests || self.cache
    }
}

/// Whether a sign is seen: from the limit on, and then until the value is a tenth below it.
fn holds(seen: bool, value: u64, limit: u64) -> bool {
    let (value, limit) = (u128::from(value), u128::from(limit));
    if seen { value * 10 > limit * 9 } else { value >= limit }
}

/// The slots of one worker that show a sign.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Overload {
    marks: BTreeMap<Option<Rank>, Mark>,
    /// Ranks among them that are overloaded; kept because each choice asks for it.
    ranks: u32,
}

impl Overload {
    /// Judges one slot; true when that changed whether it is overloaded.
    pub(super) fn judge(&mut self, rank: Option<Rank>, signs: Signs) -> bool {
        let before = self.marks.get(&rank).copied().unwrap_or_default();
        let after = before.after(signs);
        if after == Mark::default() {
            self.marks.remove(&rank);
        } else {
            self.marks.insert(rank, after);
        }
        let changed = before.is_overloaded() != after.is_overloaded();
        if changed && rank.is_some() {
            self.ranks = if after.is_overloaded() { self.ranks + 1 } else { self.ranks.saturating_sub(1) };
        }
        changed
    }

    /// Whether one slot shows a sign of its own.
    pub(super) fn is_marked(&self, rank: Option<Rank>) -> bool {
        self.marks.get(&rank).is_some_and(|mark| mark.is_overloaded())
    }

    /// Whether any slot shows a sign.
    pub(super) fn has_any(&self) -> bool {
        !self.marks.is_empty()
    }

    /// How many ranks are overloaded.
    pub(super) const fn rank_count(&self) -> u32 {
        self.ranks
    }

    /// Ranks that are overloaded, ascending.
    pub(super) fn ranks(&self) -> impl Iterator<Item = Rank> {
        self.marks.iter().filter(|(_, mark)| mark.is_overloaded()).filter_map(|(rank, _)| *rank)
    }

    /// Slots that show a sign, overloaded or about to be judged anew.
    pub(super) fn slots(&self) -> impl Iterator<Item = Option<Rank>> {
        self.marks.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(seen: bool, in_flight: u64, limit: u64) -> bool {
        let mark = Mark { requests: seen, cache: false };
        mark.after(Signs { in_flight, limit: Some(limit), kv_permille: None }).is_overloaded()
    }

    #[test]
    fn a_limit_is_reached_at_it_and_left_a_tenth_below() {
        for (limit, leaves_at) in [(1, 0), (2, 1), (9, 8), (10, 9), (11, 9), (20, 18), (100, 90)] {
            for seen in [false, true] {
                assert!(mark(seen, limit, limit) && mark(seen, u64::MAX, limit), "{limit}");
                assert!(!mark(seen, leaves_at, limit), "{limit}");
            }
            let between = leaves_at + 1;
            assert!(mark(true, between, limit), "{limit}");
            assert_eq!(mark(false, between, limit), between >= limit, "{limit}");
        }
    }

    #[test]
    fn the_cache_is_full_at_95_percent_and_free_a_tenth_below() {
        let cache = |seen, kv| {
            let mark = Mark { requests: false, cache: seen };
            mark.after(Signs { in_flight: u64::MAX, limit: None, kv_permille: kv }).is_overloaded()
        };
        let said: Vec<(bool, bool)> = [Some(949), Some(950), Some(855), Some(856), Some(1000), None]
            .map(|kv| (cache(false, kv), cache(true, kv)))
            .to_vec();
        let expected =
            [(false, true), (true, true), (false, false), (false, true), (true, true), (false, false)];
        assert_eq!(said, expected, "without a gauge there is no such sign, however many are in flight");
    }

    #[test]
    fn one_sign_that_clears_leaves_the_other() {
        let mut overload = Overload::default();
        let signs = |in_flight, kv| Signs { in_flight, limit: Some(10), kv_permille: Some(kv) };
        let rank = Some(Rank(3));
        assert!(overload.judge(rank, signs(10, 960)), "both");
        assert!(!overload.judge(rank, signs(10, 0)), "still too many");
        assert!(
            !overload.judge(rank, signs(10, 960)) && !overload.judge(rank, signs(0, 960)),
            "still too full"
        );
        assert!(overload.is_marked(rank) && overload.ranks().eq([Rank(3)]) && overload.rank_count() == 1);
        assert!(overload.judge(rank, signs(0, 855)));
        assert_eq!(overload, Overload::default(), "nothing is kept of a slot that is fine");
    }
}
