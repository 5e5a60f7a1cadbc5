//! Batches that are lost, come twice or come late: a slot holds the truth, or less and is cold; never what is gone.

use super::fleet::{Fleet, telling};

/// E2: a gap is filled from the ring of that rank; what the ring no longer has, or never had, makes that rank cold and no other.
#[tokio::test(flavor = "multi_thread")]
async fn e2_what_is_lost_is_replayed_or_the_rank_goes_cold() {
    let specs =
        vec![telling("whole", 2), telling("short", 2).with(&["--kv-buffer-steps", "2"]), telling("holed", 2)];
    let fleet = Fleet::start(specs).await;
    for worker in ["whole", "short", "holed"] {
        for rank in [0, 1] {
            fleet.compute(worker, rank, 1, 3).await;
            fleet.holds(worker, rank, 3).await;
        }
    }
    let (gaps, short) = (fleet.stream("gap").await, fleet.stream("ring_short").await);
    lose(&fleet, "whole", "drop=2", 3).await;
    let shown = fleet.holds("whole", 0, 3 + 3 * 4).await;
    assert_eq!(shown["cold"], false, "all of it was replayed");
    assert_eq!(fleet.stream("gap").await, gaps + 1);
    assert_eq!(fleet.stream("ring_short").await, short);
    // Of six batches the ring has the last two, and the live one was the last.
    lose(&fleet, "short", "drop=5", 6).await;
    let shown = fleet.holds("short", 0, 2 * 4).await;
    assert_eq!(shown["cold"], true);
    lose(&fleet, "holed", "lose=1", 3).await;
    let shown = fleet.holds("holed", 0, 2 * 4).await;
    assert_eq!(shown["cold"], true, "the ring has a hole");
    assert_eq!(fleet.stream("ring_short").await, short + 2);
    for worker in ["whole", "short", "holed"] {
        let shown = fleet.holds(worker, 1, 3).await;
        assert_eq!(shown["cold"], false, "{worker}: the other rank has lost nothing");
    }
    // An emptied cache is known whole again.
    fleet.engine("short").reset_cache().await.unwrap();
    fleet.compute("short", 0, 50, 2).await;
    let shown = fleet.holds("short", 0, 2).await;
    assert_eq!(shown["cold"], false);
}

/// The next batches of rank 0 suffer that fault; so many prompts of four blocks each are computed.
async fn lose(fleet: &Fleet, worker: &str, fault: &str, prompts: u32) {
    fleet.engine(worker).kv_fault(fault, Some(0)).await.unwrap();
    for prompt in 0..prompts {
        assert_eq!(fleet.compute(worker, 0, 10 + prompt, 4).await, 0);
    }
}

/// E4: the batch that removes comes live, the one that stored it only later, by the replay.
#[tokio::test(flavor = "multi_thread")]
async fn e4_a_live_removal_wins_over_an_older_store_that_is_replayed() {
    let fleet = Fleet::start(vec![telling("w0", 1).with(&["--cache-blocks", "8"])]).await;
    fleet.engine("w0").kv_fault("drop=1", Some(0)).await.unwrap();
    fleet.compute("w0", 0, 1, 8).await;
    fleet.compute("w0", 0, 2, 8).await;
    let shown = fleet.holds("w0", 0, 8).await;
    assert_eq!(shown["cold"], false);
    // All eight are the second prompt's: of the third's five, five others go.
    fleet.compute("w0", 0, 3, 5).await;
    fleet.holds("w0", 0, 8).await;
}

/// E12: a block in two places is gone with the second one only. A batch that came twice is one.
#[tokio::test(flavor = "multi_thread")]
async fn e12_copies_are_counted_and_batches_that_come_twice_are_not() {
    let specs = ["copies", "twice"].map(|name| telling(name, 1).with(&["--cache-blocks", "8"]));
    let fleet = Fleet::start(specs.to_vec()).await;
    // The last block of a whole prompt is computed again: five places, four blocks.
    fleet.compute("copies", 0, 1, 4).await;
    assert_eq!(fleet.compute("copies", 0, 1, 4).await, 3);
    fleet.holds("copies", 0, 4).await;
    // Needs four places: the oldest copy goes.
    fleet.compute("copies", 0, 2, 4).await;
    fleet.holds("copies", 0, 8).await;
    assert_eq!(fleet.counted("rankpin_kv_blocks_total", "copy_removed").await, 1);

    fleet.engine("twice").kv_fault("duplicate=1", Some(0)).await.unwrap();
    fleet.compute("twice", 0, 1, 8).await;
    fleet.holds("twice", 0, 8).await;
    // Were the batch applied twice, one copy of each would stay.
    fleet.compute("twice", 0, 2, 8).await;
    fleet.holds("twice", 0, 8).await;
    assert!(fleet.stream("duplicate").await >= 1);
}

/// E5: a clear is told with a rank's next step, whenever that is, and clears that rank.
#[tokio::test(flavor = "multi_thread")]
async fn e5_a_clear_is_heard_when_it_is_told_and_clears_one_rank() {
    let fleet = Fleet::start(vec![telling("w0", 2)]).await;
    for rank in [0, 1] {
        fleet.compute("w0", rank, 1, 3).await;
        fleet.holds("w0", rank, 3).await;
    }
    fleet.engine("w0").reset_cache().await.unwrap();
    // First in a batch, then new stores; the other rank idles and has told nothing.
    fleet.compute("w0", 0, 2, 2).await;
    fleet.holds("w0", 0, 2).await;
    fleet.holds("w0", 1, 3).await;
    fleet.compute("w0", 1, 2, 1).await;
    fleet.holds("w0", 1, 1).await;
}
