//! Hits as an engine counts them, balancing, time a prompt takes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Finish, Prefill, Ranks};
use crate::config::EngineConfig;
use crate::space::Space;

fn ranks(count: u32, change: impl FnOnce(&mut EngineConfig)) -> Arc<Ranks> {
    let mut config = EngineConfig { block_size: 32, ..EngineConfig::new(count) };
    change(&mut config);
    Arc::new(Ranks::new(&config))
}

fn run(from: u32, count: u32) -> Vec<u32> {
    (from..from + count).collect()
}

async fn ask(ranks: &Arc<Ranks>, rank: usize, prompt: &[u32], reply: &[u32]) -> Prefill {
    let mut turn = ranks.admit(Some(rank));
    let found = turn.prefill(&Arc::new(Space::new("tiny", None, None)), prompt).await;
    turn.extend(reply.iter().copied().take(reply.len().saturating_sub(1)));
    turn.finish(Finish::Length, reply.len());
    found
}

#[tokio::test]
async fn a_prompt_of_whole_blocks_recomputes_its_last() {
    let ranks = ranks(2, |_| {});
    assert_eq!(ask(&ranks, 0, &run(0, 96), &[1]).await.cached, 0);
    // Seen on a real engine: 64 of 96 with blocks of 32.
    assert_eq!(ask(&ranks, 0, &run(0, 96), &[1]).await.cached, 64);
    assert_eq!(ask(&ranks, 0, &run(0, 97), &[1]).await.cached, 96);
    assert_eq!(ask(&ranks, 1, &run(0, 97), &[1]).await.cached, 0, "ranks share nothing");
}

#[tokio::test]
async fn generated_tokens_fill_blocks_but_the_last_one() {
    let ranks = ranks(1, |_| {});
    let (prompt, reply) = (run(0, 20), run(500, 13));
    ask(&ranks, 0, &prompt, &reply[..12]).await;
    assert_eq!(ranks.figures()[0].cached_blocks, 0, "31 tokens computed");
    ask(&ranks, 0, &prompt, &reply).await;
    assert_eq!(ranks.figures()[0].cached_blocks, 1, "32 tokens computed");
    let next = [prompt, reply, run(900, 5)].concat();
    assert_eq!(ask(&ranks, 0, &next, &[1]).await.cached, 32);
}

#[tokio::test]
async fn figures_count_tokens_and_ends() {
    let ranks = ranks(1, |config| config.dp_start = 4);
    ask(&ranks, 0, &run(0, 40), &[1, 2]).await;
    ask(&ranks, 0, &run(0, 40), &[1, 2]).await;
    drop(ranks.admit(None));
    let figures = ranks.figures()[0];
    assert_eq!((figures.rank, figures.queried_tokens, figures.hit_tokens), (4, 80, 32));
    assert_eq!((figures.generated_tokens, figures.limited, figures.aborted), (4, 2, 1));
    assert_eq!((figures.running, figures.waiting, figures.used_blocks), (0, 0, 0));
}

#[tokio::test]
async fn without_a_wish_the_least_loaded_in_turn() {
    let ranks = ranks(3, |_| {});
    let order: Vec<usize> = (0..4).map(|_| ranks.admit(None).index()).collect();
    assert_eq!(order, vec![0, 1, 2, 0], "all idle: in turn");
    let busy = [ranks.admit(Some(1)), ranks.admit(Some(2)), ranks.admit(Some(2))];
    assert_eq!(ranks.admit(None).index(), 0);
    drop(busy);
    let one = ranks.admit(Some(0));
    assert_eq!(ranks.admit(None).index(), 1);
    drop(one);
}

#[tokio::test]
async fn a_cleared_cache_hits_nothing() {
    let ranks = ranks(1, |_| {});
    ask(&ranks, 0, &run(0, 64), &[1]).await;
    assert!(ranks.clear_caches());
    assert_eq!(ask(&ranks, 0, &run(0, 64), &[1]).await.cached, 0);
}

#[tokio::test(start_paused = true)]
async fn prompts_take_their_rank_one_after_the_other() {
    let ranks = ranks(2, |config| config.prefill_us_per_token = 1000);
    let start = Instant::now();
    let (first, second) = (run(0, 100), run(1000, 50));
    tokio::join!(ask(&ranks, 0, &first, &[1]), async {
        ask(&ranks, 0, &second, &[1]).await;
        assert!(start.elapsed() >= Duration::from_millis(150), "{:?}", start.elapsed());
    });
    let other = Instant::now();
    ask(&ranks, 1, &second, &[1]).await;
    assert!(other.elapsed() < Duration::from_millis(60), "another rank is free");
    let warm = Instant::now();
    ask(&ranks, 0, &first, &[1]).await;
    assert!(warm.elapsed() < Duration::from_millis(10), "96 of 100 were cached");
}

#[tokio::test(start_paused = true)]
async fn waiting_and_running_are_told_apart() {
    let ranks = ranks(1, |config| config.prefill_us_per_token = 1000);
    let (first, second) = (run(0, 100), run(1000, 50));
    tokio::join!(ask(&ranks, 0, &first, &[1]), ask(&ranks, 0, &second, &[1]), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let figures = ranks.figures()[0];
        assert_eq!((figures.running, figures.waiting), (1, 1));
    });
    let figures = ranks.figures()[0];
    assert_eq!((figures.running, figures.waiting), (0, 0));
}
