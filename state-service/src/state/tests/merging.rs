//! The algebra of records: whatever the order and however often, the end is the same.

use crate::state::binding::{Merged, Place, Record, Slot, merge};
use proptest::prelude::*;
use routing::id::{Rank, Version};
use routing::time::Timestamp;

fn record() -> impl Strategy<Value = Record> {
    let place = prop_oneof![
        4 => (0..3u64, proptest::option::of(0..3u32)).prop_map(|(w, r)| Place::Bound(Slot::new(w, r.map(Rank)))),
        1 => Just(Place::Released),
    ];
    ((0..4u64, 0..3u64), place, 0..5u64).prop_map(|((seq, writer), place, deadline)| Record {
        version: Version { seq, writer },
        place,
        deadline: Timestamp(deadline),
    })
}

fn fold(records: &[Record]) -> Option<Record> {
    records.iter().fold(None, |ours, theirs| Some(merge(ours, *theirs).0))
}

proptest! {
    #[test]
    fn order_and_duplicates_do_not_matter(
        (records, shuffled) in prop::collection::vec(record(), 1..8).prop_flat_map(|records| {
            let twice: Vec<_> = records.iter().chain(&records).copied().collect();
            (Just(records), Just(twice).prop_shuffle())
        })
    ) {
        prop_assert_eq!(fold(&records), fold(&shuffled));
    }

    #[test]
    fn grouping_does_not_matter(a in record(), b in record(), c in record()) {
        let left = merge(Some(merge(Some(a), b).0), c).0;
        let right = merge(Some(a), merge(Some(b), c).0).0;
        prop_assert_eq!(left, right);
        prop_assert_eq!(merge(Some(a), b).0, merge(Some(b), a).0);
        prop_assert_eq!(merge(Some(a), a), (a, Merged::Refreshed));
    }

    #[test]
    fn the_deadline_never_decides_between_versions(ours in record(), theirs in record()) {
        let (joined, merged) = merge(Some(ours), theirs);
        prop_assert_eq!(joined.version, ours.version.max(theirs.version));
        let newer = theirs.version > ours.version;
        prop_assert_eq!(merged == Merged::ReplacedNewer, newer);
        if newer {
            prop_assert_eq!(joined, theirs);
        }
    }
}
