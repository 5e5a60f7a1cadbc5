//! Block hashes that every filter, replica and language must compute alike.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use routing::block::{BlockHash, Chain, Namespace, first, next, seed, with_extra};
use std::collections::BTreeSet;

fn namespace<'a>(lora: Option<&'a str>, salt: Option<&'a str>) -> Namespace<'a> {
    Namespace { lora, salt }
}

fn tokens(count: u32) -> Vec<u32> {
    (0..count).map(|n| n.wrapping_mul(2_654_435_761)).collect()
}

#[test]
fn the_vectors_of_the_design_hold() {
    let plain = seed(Namespace::default());
    assert_eq!(plain, 1337);
    assert_eq!(first(plain, &[1, 2, 3, 4]), BlockHash(14_643_705_804_678_351_452));
    assert_eq!(first(plain, &[5, 6, 7, 8]), BlockHash(16_777_012_769_546_811_212));
    let chained = next(first(plain, &[1, 2, 3, 4]), plain, &[5, 6, 7, 8]);
    assert_eq!(chained, BlockHash(4_945_711_292_740_353_085));
    let lora = seed(namespace(Some("adapter-a"), None));
    assert_eq!(first(lora, &[1, 2, 3, 4]), BlockHash(11_381_080_598_872_079_209));
    let salt = seed(namespace(None, Some("tenant-a")));
    assert_eq!(first(salt, &[1, 2, 3, 4]), BlockHash(5_738_685_477_468_498_325));
}

#[test]
fn a_chain_is_its_full_blocks() {
    let chain = Chain::of(Namespace::default(), 4, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let expected = [14_643_705_804_678_351_452, 4_945_711_292_740_353_085].map(BlockHash);
    assert_eq!(chain, Chain { hashes: expected.to_vec(), block_size: 4, tokens: 9 });
    assert_eq!(Chain::of(Namespace::default(), 4, &[1, 2, 3]).hashes, []);
    assert_eq!(Chain::of(Namespace::default(), 4, &[]).tokens, 0);
    assert_eq!(Chain::of(Namespace::default(), 0, &[1, 2, 3]).hashes, [], "nothing is divided by 0");
}

#[test]
fn each_size_is_hashed_as_the_bytes_of_its_tokens() {
    for size in [1, 2, 15, 16, 17, 32, 60, 61, 64, 128, 255, 256, 257, 1024, 5000] {
        let tokens = tokens(size);
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        let expected = xxhash_rust::xxh3::xxh3_64_with_seed(&bytes, 1337);
        assert_eq!(first(1337, &tokens), BlockHash(expected), "{size}");
    }
}

#[test]
fn namespaces_and_contents_are_apart() {
    let named = [
        namespace(None, None),
        namespace(Some("a"), None),
        namespace(None, Some("a")),
        namespace(Some("a"), Some("a")),
        namespace(Some("a"), Some("b")),
        namespace(Some("b"), Some("a")),
        namespace(Some(""), None),
    ];
    let block = tokens(16);
    let firsts: BTreeSet<_> = named.iter().map(|&namespace| first(seed(namespace), &block)).collect();
    assert_eq!(firsts.len(), named.len());
    let plain = first(1337, &block);
    let extras: BTreeSet<_> = [0, 1, 2, u64::MAX].iter().map(|&extra| with_extra(plain, extra)).collect();
    assert_eq!(extras.len(), 4);
    assert_eq!(with_extra(plain, 0), plain);
}

#[test]
fn a_hash_names_all_blocks_before_it() {
    let (mut left, right) = (tokens(64), tokens(64));
    left[0] ^= 1;
    let (left, right) =
        (Chain::of(Namespace::default(), 16, &left), Chain::of(Namespace::default(), 16, &right));
    let equal = left.hashes.iter().zip(&right.hashes).filter(|(left, right)| left == right).count();
    assert_eq!((left.hashes.len(), equal), (4, 0));
}
