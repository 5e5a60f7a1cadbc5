//! Whole replays of the made traces: that they are what placements are known to do, and the same each time.

use super::super::args::Format;
use super::super::driver::Driver;
use super::super::figures::Figures;
use super::{args_of, made, read};

fn play(format: Format, text: &str) -> Figures {
    let (name, lines) = match format {
        Format::Mooncake => ("mooncake", made::MOONCAKE),
        Format::Weka => ("weka", made::WEKA),
    };
    let trace = read(format, lines).unwrap();
    Driver::new(&args_of(name, text), &trace).unwrap().run().unwrap()
}

fn mooncake(text: &str) -> Figures {
    // Slow engines: a few requests are always under way.
    play(Format::Mooncake, &format!("--prefill-rate 10000 --decode-rate 10 {text}"))
}

fn weka(text: &str) -> Figures {
    play(Format::Weka, text)
}

/// Blocks that a cache which forgets nothing finds, of all that are listed.
fn ideal(format: Format, lines: &str) -> f64 {
    let trace = read(format, lines).unwrap();
    let (mut seen, mut path, mut found, mut listed) =
        (vec![false; trace.forest.len()], Vec::new(), 0u32, 0u32);
    let mut order: Vec<_> = trace.requests.iter().collect();
    order.sort_by_key(|request| request.at);
    for request in order {
        trace.forest.path(request.leaf, &mut path);
        let most = (request.tokens - 1) / trace.forest.block_size();
        found += path.iter().take_while(|node| seen[node.0 as usize]).count().min(most as usize) as u32;
        path.iter().for_each(|node| seen[node.0 as usize] = true);
        listed += request.listed;
    }
    f64::from(found) / f64::from(listed)
}

#[test]
fn one_slot_that_forgets_nothing_finds_all_there_is_to_find() {
    let figures = mooncake("--slots 1 --policy round_robin");
    assert_eq!(figures.requests, 210);
    assert!((figures.hit_ratio - ideal(Format::Mooncake, made::MOONCAKE)).abs() < 1e-4, "{figures}");
    assert_eq!((figures.max_over_mean, figures.evicted_blocks), (1.0, 0));
    let figures = weka("--slots 1 --policy random --affinity off --spread-s 60");
    assert_eq!(figures.requests, 84);
    assert!((figures.hit_ratio - ideal(Format::Weka, made::WEKA)).abs() < 1e-4, "{figures}");
}

#[test]
fn the_same_seed_gives_the_same_figures_and_another_one_others() {
    for policy in ["random", "kv_aware", "least_loaded", "power_of_two"] {
        let of =
            |seed: u32| mooncake(&format!("--slots 4 --policy {policy} --cache-fraction 0.3 --seed {seed}"));
        assert_eq!(of(5), of(5), "{policy}");
        assert_ne!(of(5), of(6), "{policy} draws nothing");
    }
}

#[test]
fn kv_aware_finds_more_than_policies_that_do_not_look() {
    let [aware, least, turns] = ["kv_aware", "least_loaded", "round_robin"]
        .map(|policy| mooncake(&format!("--slots 4 --policy {policy}")));
    assert!(aware.hit_ratio > least.hit_ratio + 0.2, "{aware}\n\n{least}");
    assert!(aware.hit_ratio > turns.hit_ratio + 0.2, "{aware}\n\n{turns}");
    // Of thirty conversations seven or eight are a slot's share; nobody gets more than ten.
    assert!(aware.max_over_mean <= 1.34, "{aware}");
    assert!(aware.promises_kept.is_some_and(|kept| kept > 0.9), "{aware}");
    assert_eq!((least.promises_kept, turns.max_over_mean), (None, 1.0095));
}

#[test]
fn less_cache_finds_less_and_evicts() {
    let of = |fraction: &str| mooncake(&format!("--slots 4 --policy kv_aware {fraction}"));
    let (all, some, little) = (of(""), of("--cache-fraction 0.5"), of("--cache-fraction 0.1"));
    assert!(
        all.hit_ratio > some.hit_ratio && some.hit_ratio > little.hit_ratio,
        "{all}\n\n{some}\n\n{little}"
    );
    assert!(all.evicted_blocks == 0 && some.evicted_blocks > 0 && little.evicted_blocks > 0);
    let each = some.working_set_blocks.div_ceil(8);
    assert_eq!(some.slot_capacity_blocks, Some(each));
}

#[test]
fn pinned_sessions_find_what_was_theirs() {
    let of = |affinity: &str| {
        weka(&format!("--slots 4 --policy least_loaded --affinity {affinity} --spread-s 60"))
    };
    let (hard, off) = (of("hard"), of("off"));
    assert!(hard.hit_ratio > off.hit_ratio + 0.1, "{hard}\n\n{off}");
    assert!(of("soft").hit_ratio > off.hit_ratio);
}

#[test]
fn a_session_waits_for_its_own_answer() {
    // So slow that every answer is written after the next request's time.
    let slow = weka("--slots 4 --policy least_loaded --decode-rate 1 --spread-s 1");
    // Six answers of 40 tokens, one after the other.
    assert!(slow.simulated_s >= 240.0, "{slow}");
    assert_eq!(
        slow.hit_ratio,
        weka("--slots 4 --policy least_loaded --decode-rate 1 --spread-s 1 --speed 50").hit_ratio
    );
}

#[test]
fn ranks_are_slots_too() {
    for policy in ["kv_aware", "least_loaded", "session_hash"] {
        let figures = weka(&format!("--slots 4 --ranks 2 --policy {policy} --affinity hard --spread-s 60"));
        assert_eq!(figures.requests, 84, "{policy}");
        // What sessions share may be computed once on each slot.
        assert!(figures.hit_ratio > ideal(Format::Weka, made::WEKA) - 0.1, "{policy}: {figures}");
        assert!(figures.max_over_mean < 3.0, "{policy}: {figures}");
    }
}

#[test]
fn figures_are_one_line_of_json() {
    let figures = mooncake("--slots 2 --policy round_robin");
    let json: serde_json::Value = serde_json::from_str(&figures.json()).unwrap();
    assert_eq!(json["requests"], 210);
    assert_eq!(json["hit_ratio"], figures.hit_ratio);
    assert_eq!(json["max_over_mean"], 1.0);
    assert!(!figures.json().contains('\n'));
}
