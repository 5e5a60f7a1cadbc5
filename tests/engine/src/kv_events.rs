//! Cache events as engines publish them: each rank's feed, its sockets, and what tests order of them. Written from the engines'
//! recorded frames; shares no code with what reads them.

mod dialect;
mod event;
mod feed;
mod msgpack;
mod names;
mod orders;
mod poll;
pub(crate) mod ports;
mod publisher;
mod ring;

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::dialect::Dialect;
pub(crate) use self::feed::{Feed, Tokens};
pub(crate) use self::orders::answer;
use self::poll::Poll;
use self::ports::RankPorts;
use self::publisher::{ORDERS_MAX, Order, Publisher};
use crate::config::{EngineConfig, HashForm, Kind};

/// Where one rank's sockets are, and who is told to close them.
pub(crate) struct Source {
    pub(crate) live: u16,
    pub(crate) replay: Option<u16>,
    pub(crate) feed: Arc<Feed>,
    orders: mpsc::Sender<Order>,
}

/// The feeds of all ranks; none when no events are published nor polled.
pub(crate) fn feeds(config: &EngineConfig) -> Vec<Arc<Feed>> {
    let (hash, steps) =
        config.kv_events.as_ref().map_or((HashForm::Int, 0), |events| (events.hash, events.buffer_steps));
    // Who publishes keeps nothing for others.
    let polled = config.kv_poll.filter(|_| config.kind == Kind::Trtllm && config.kv_events.is_none());
    if config.kv_events.is_none() && polled.is_none() {
        return Vec::new();
    }
    let feed = |index| {
        let rank = (config.ranks > 1).then_some(index);
        let poll = polled
            .map(|max| Poll::new(max, config.block_size, rank, config.max_model_len, config.cache_blocks));
        Arc::new(Feed::new(ports::offset(config, index), Dialect::new(config, hash), steps, poll))
    };
    (0..config.ranks.max(1)).map(feed).collect()
}

/// Opens every rank's sockets and publishes what its feed gets.
///
/// # Errors
/// A socket cannot be opened.
pub(crate) async fn publish(
    config: &EngineConfig,
    feeds: &[Arc<Feed>],
    ports: Vec<RankPorts>,
    tasks: &mut JoinSet<()>,
) -> anyhow::Result<Vec<Source>> {
    let topic = config.kv_events.as_ref().map_or("", |events| events.topic.as_str());
    let mut sources = Vec::with_capacity(ports.len());
    for (feed, ports) in feeds.iter().zip(ports) {
        let (orders, taken) = mpsc::channel(ORDERS_MAX);
        let live = ports.live.address().port();
        let replay = ports.replay.as_ref().map(|port| port.address().port());
        let publisher = Publisher::open(Arc::clone(feed), ports, topic, taken).await?;
        tasks.spawn(publisher.run());
        sources.push(Source { live, replay, feed: Arc::clone(feed), orders });
    }
    Ok(sources)
}
