//! Mistakes built in on purpose: each must be noticed, by the invariant that is there for it.

use crate::planted::Bug;
use crate::play;

/// Seeds within which each planted bug must be noticed.
const BUG_SEEDS: std::ops::Range<u64> = 0..160;

fn is_noticed(bug: Bug, by: &[&str]) {
    is_noticed_in(BUG_SEEDS, bug, by);
}

fn is_noticed_in(seeds: std::ops::Range<u64>, bug: Bug, by: &[&str]) {
    let mut found = seeds.clone().filter_map(|seed| Some((seed, play(seed, Some(bug), false).violation?)));
    let Some((seed, violation)) = found.next() else { panic!("{bug:?} went unnoticed in {seeds:?}") };
    println!("{bug:?}: seed {seed}");
    assert!(
        by.contains(&violation.invariant),
        "{bug:?} in seed {seed} broke another invariant: {violation:?}"
    );
}

#[test]
fn pages_that_ignore_versions_are_noticed() {
    is_noticed(Bug::PagesIgnoreVersions, &["a cached binding never goes back"]);
}

#[test]
fn commits_that_come_again_with_another_slot_are_noticed() {
    is_noticed(Bug::CommitsTwiceElsewhere, &["a session keeps its slot"]);
}

#[test]
fn a_rank_that_stays_on_a_retry_is_noticed() {
    let by = ["no undeclared rank is on the wire", "a session's rank is its own on each worker"];
    is_noticed(Bug::RankStaysOnRetry, &by);
}

#[test]
fn lost_ends_are_noticed() {
    is_noticed(
        Bug::EndsAreLost,
        &["load counts each placed request once", "a plan lives as long as its request"],
    );
}

#[test]
fn dropped_moves_are_noticed() {
    let by = ["Envoys agree in the end", "a session keeps its slot", "pages are where the service is"];
    is_noticed(Bug::MovesAreDropped, &by);
}

#[test]
fn a_pinned_turn_that_asks_is_noticed() {
    is_noticed(Bug::SecondVmSeesNoPages, &["a pinned turn makes no call"]);
}

#[test]
fn gauges_that_nobody_takes_over_are_noticed() {
    is_noticed(Bug::NewWatcherTrustsGauges, &["gauges return to 0"]);
}

#[test]
fn dead_vms_that_are_not_told_are_noticed() {
    is_noticed(Bug::DeadVmsAreNotTold, &["the service hears of dead VMs"]);
}

#[test]
fn an_exact_target_that_is_missed_is_noticed() {
    is_noticed(
        Bug::RefusedAttemptsGoOn,
        &["a named target is served exactly or not at all", "a session keeps its slot"],
    );
}

#[test]
fn a_named_rank_that_is_dropped_is_noticed() {
    let by = ["a named rank is the one on the wire", "a session's rank is its own on each worker"];
    is_noticed(Bug::NamedRanksAreDropped, &by);
}

#[test]
fn lost_touches_are_noticed() {
    is_noticed(
        Bug::TouchesAreLost,
        &["a session in use does not grow old", "Envoys agree in the end", "no version has two slots"],
    );
}

#[test]
fn spilled_turns_that_move_their_session_are_noticed() {
    is_noticed(Bug::SpillsMove, &["a session keeps its slot"]);
}

#[test]
fn an_envoy_that_does_not_hear_of_new_ranks_is_noticed() {
    is_noticed(Bug::TopologiesAreDropped, &["every VM learns the fleet"]);
}

#[test]
fn pages_that_are_not_uploaded_are_noticed() {
    // Rare: a service without its memory, and a session that only the pages of an Envoy still know.
    is_noticed_in(780..900, Bug::NoUploads, &["a session keeps its slot"]);
}

#[test]
fn touches_without_a_slot_are_noticed() {
    // Rare: a retry's commit is told, and the first slot's dies with its VM.
    is_noticed_in(
        1330..1430,
        Bug::TouchesNameNoSlot,
        &["no version has two slots", "pages are where the service is", "Envoys agree in the end"],
    );
}

/// Soft sessions move by load, so of them only the pages tell.
#[test]
fn dropped_moves_show_in_the_pages() {
    let mut found = (0..400).filter_map(|seed| play(seed, Some(Bug::MovesAreDropped), false).violation);
    assert!(found.any(|violation| violation.invariant == "pages are where the service is"));
}

#[test]
fn requests_that_wait_and_are_not_woken_are_noticed() {
    is_noticed(Bug::WaitersAreNotWoken, &["who waits is known"]);
}

#[test]
fn prefill_load_that_leaks_is_noticed() {
    is_noticed(Bug::PrefillLeaksOnLeaving, &["load counts each placed request once"]);
}

#[test]
fn releases_that_end_a_later_binding_are_noticed() {
    is_noticed(Bug::ReleasesAreNotFenced, &["a late release ends nothing"]);
}

#[test]
fn demands_that_do_not_arrive_are_noticed() {
    is_noticed(Bug::DemandsAreDropped, &["an excluded slot is not used"]);
}

#[test]
fn drains_that_do_not_arrive_are_noticed() {
    is_noticed(Bug::DrainsAreForgotten, &["a draining worker takes nobody new"]);
}

#[test]
fn response_ids_of_another_session_are_noticed() {
    is_noticed(Bug::AliasesAreMixedUp, &["a response id that was told is known"]);
}

#[test]
fn endings_that_are_not_told_are_noticed() {
    is_noticed(
        Bug::EndingsAreNotTold,
        &["every question has its ending", "nothing is counted for what is over"],
    );
}

/// Seeds of worlds with replicas within which a planted bug must be noticed.
const REPLICA_SEEDS: std::ops::Range<u64> = crate::plan::REPLICAS_FROM..crate::plan::REPLICAS_FROM + 100;

#[test]
fn a_store_that_goes_by_ends_is_noticed() {
    let by = ["replicas agree in the end", "a session keeps its slot", "Envoys agree in the end"];
    is_noticed_in(REPLICA_SEEDS, Bug::LaterEndsWin, &by);
}

#[test]
fn first_turns_without_a_claim_are_noticed() {
    is_noticed_in(REPLICA_SEEDS, Bug::NothingIsClaimed, &["a session keeps its slot"]);
}

#[test]
fn a_store_without_its_memory_that_is_told_nothing_is_noticed() {
    let by = ["replicas agree in the end", "a session keeps its slot"];
    is_noticed_in(REPLICA_SEEDS, Bug::NothingIsRetold, &by);
}

#[test]
fn bindings_left_aside_for_a_slot_of_tomorrow_are_noticed() {
    let by = ["a session keeps its slot", "replicas agree in the end"];
    is_noticed_in(REPLICA_SEEDS, Bug::UnknownSlotsAreIgnored, &by);
}

#[test]
fn gaps_that_are_ignored_are_noticed() {
    let by = ["replicas agree in the end", "a session keeps its slot", "pages are where the service is"];
    is_noticed_in(REPLICA_SEEDS, Bug::GapsAreIgnored, &by);
}

/// Whoever sees a seed fail can play it again.
#[test]
fn a_failure_says_how_to_play_it_again() {
    let bug = Some(Bug::WaitersAreNotWoken);
    let mut found = BUG_SEEDS.filter_map(|seed| Some((seed, play(seed, bug, false).violation?)));
    let (seed, violation) = found.next().unwrap();
    let text = crate::explain(seed, bug, &violation);
    let command = format!("SIM_SEED={seed} cargo test -p e2e --test sim -- --exact replay");
    let said = [violation.invariant, "same again: true", &command, "commit: "];
    assert!(said.iter().all(|part| text.contains(part)), "{text}");
    assert!(text.contains(&format!("sim/{seed}.jsonl")), "{text}");
}
