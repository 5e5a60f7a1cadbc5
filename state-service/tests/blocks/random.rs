//! Random lives of the index beside the model's.

use super::ops;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn index_and_model_agree(bytes in proptest::collection::vec(any::<u8>(), 0..1500)) {
        ops::run(&bytes);
    }
}

/// The same longer and seeded: what the fuzz target does when nobody fuzzes.
#[test]
fn index_and_model_agree_for_long() {
    let mut state = 42_u64;
    for length in [2_000, 4_000, 8_000] {
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let bytes: Vec<u8> = (0..length).map(|_| byte()).collect();
        ops::run(&bytes);
    }
}
