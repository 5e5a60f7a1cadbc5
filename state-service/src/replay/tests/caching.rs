//! The cache of a fake engine, beside one that is as simple as can be.

use super::super::cache::Cache;
use super::super::trace::Node;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Blocks in the order of their last use, and pins.
#[derive(Default)]
struct Naive {
    capacity: usize,
    /// Oldest first, pinned ones too.
    order: Vec<Node>,
    pins: BTreeMap<Node, u32>,
}

impl Naive {
    fn pinned(&self, node: Node) -> bool {
        self.pins.get(&node).is_some_and(|pins| *pins > 0)
    }

    fn store(&mut self, node: Node, evicted: &mut Vec<Node>) -> bool {
        if !self.order.contains(&node) {
            if self.order.len() >= self.capacity {
                let Some(at) = self.order.iter().position(|held| !self.pinned(*held)) else { return false };
                evicted.push(self.order.remove(at));
            }
            self.order.push(node);
        }
        *self.pins.entry(node).or_default() += 1;
        true
    }

    fn release(&mut self, path: &[Node]) {
        for node in path.iter().rev() {
            let pins = self.pins.get_mut(node).unwrap();
            *pins -= 1;
            if *pins == 0 {
                self.order.retain(|held| held != node);
                self.order.push(*node);
            }
        }
    }
}

/// A prompt of one of few trees, and whether the oldest request under way ends before it.
fn step() -> impl Strategy<Value = (bool, Vec<Node>)> {
    let prompt = (0u32..4, 0u32..3, 1u32..9).prop_map(|(tree, branch, length)| {
        // The first two blocks of a tree are one, then its branches part.
        (0..length).map(|at| Node(tree * 100 + if at < 2 { at } else { 10 * (branch + 1) + at })).collect()
    });
    (any::<bool>(), prompt)
}

proptest! {
    #[test]
    fn a_bounded_cache_holds_and_evicts_what_a_naive_one_does(
        capacity in 1usize..24,
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut cache = Cache::new(Some(capacity));
        let mut naive = Naive { capacity, ..Naive::default() };
        let mut under_way: Vec<Vec<Node>> = Vec::new();
        for (ends, path) in steps {
            if ends && !under_way.is_empty() {
                let over = under_way.remove(0);
                cache.release(&over);
                naive.release(&over);
            }
            let run = cache.run(&path);
            let expected = path.iter().take_while(|node| naive.order.contains(node)).count();
            prop_assert_eq!(run, expected);
            cache.pin(&path[..run]);
            path[..run].iter().for_each(|node| *naive.pins.entry(*node).or_default() += 1);
            let (mut evicted, mut naively) = (Vec::new(), Vec::new());
            let mut pinned = run;
            for node in &path[run..] {
                let stored = cache.store(*node, &mut evicted);
                prop_assert_eq!(stored, naive.store(*node, &mut naively));
                if !stored {
                    break;
                }
                pinned += 1;
            }
            prop_assert_eq!(&evicted, &naively);
            prop_assert!(evicted.iter().all(|gone| !path[..pinned].contains(gone)), "a request lost its own block");
            prop_assert!(naive.order.len() <= capacity);
            under_way.push(path[..pinned].to_vec());
        }
    }
}

#[test]
fn what_is_left_of_a_prompt_is_its_beginning() {
    let path: Vec<Node> = (0..4).map(Node).collect();
    let mut cache = Cache::new(Some(5));
    let mut evicted = Vec::new();
    assert!(path.iter().all(|node| cache.store(*node, &mut evicted)));
    cache.release(&path);
    let other: Vec<Node> = (10..13).map(Node).collect();
    assert!(other.iter().all(|node| cache.store(*node, &mut evicted)));
    assert_eq!(evicted, [Node(3), Node(2)], "the last block goes first");
    assert_eq!(cache.run(&path), 2);
    assert!(other.iter().all(|node| cache.store(Node(node.0 + 10), &mut evicted)) || cache.run(&other) == 3);
}

#[test]
fn an_unbounded_cache_forgets_nothing() {
    let mut cache = Cache::new(None);
    let mut evicted = Vec::new();
    let path: Vec<Node> = [0, 63, 64, 100_000].map(Node).to_vec();
    assert_eq!(cache.run(&path), 0);
    assert!(path.iter().all(|node| cache.store(*node, &mut evicted)));
    cache.release(&path);
    assert_eq!((cache.run(&path), evicted.len()), (4, 0));
    assert!(!cache.holds(Node(1)) && !cache.holds(Node(65)));
}
