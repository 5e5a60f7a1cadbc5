//! The ports of every rank's sockets: at a base and counted up, or chosen by the kernel. Taken before the engine starts and kept while
//! a socket is closed. Knows addresses, not what is sent.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::Context;
use tokio::net::TcpSocket;

use crate::config::{EngineConfig, Kind, KvEndpoint, Version};
use crate::door::Port;

/// Tries to find free ports in a row.
const ROW_TRIES: usize = 200;

/// The ports of one rank.
pub(crate) struct RankPorts {
    pub(crate) live: Port,
    pub(crate) replay: Option<Port>,
}

/// The ports of all ranks, by rank; none when no events are published.
///
/// # Errors
/// A port is taken, or is none.
pub(crate) fn bind(config: &EngineConfig) -> anyhow::Result<Vec<RankPorts>> {
    let Some(events) = &config.kv_events else { return Ok(Vec::new()) };
    let live = of_all_ranks(config, &events.endpoint)?;
    let replay = match &events.replay {
        Some(endpoint) => of_all_ranks(config, endpoint)?.into_iter().map(Some).collect(),
        None => live.iter().map(|_| None).collect::<Vec<_>>(),
    };
    Ok(live.into_iter().zip(replay).map(|(live, replay)| RankPorts { live, replay }).collect())
}

/// What is added to the base: SGLang counts within the server, the others globally.
pub(crate) fn offset(config: &EngineConfig, index: u32) -> u32 {
    match config.kind {
        Kind::Sglang => index,
        Kind::Vllm | Kind::Trtllm => config.dp_start + index,
    }
}

/// Whether the engine tells each rank's endpoint by itself; others tell a base, or nothing.
pub(crate) fn tells_each(config: &EngineConfig) -> bool {
    config.kind == Kind::Vllm && config.version >= Version(0, 31, 0)
}

fn of_all_ranks(config: &EngineConfig, endpoint: &KvEndpoint) -> anyhow::Result<Vec<Port>> {
    let address = ip(&endpoint.host)?;
    let ranks = config.ranks.max(1);
    if endpoint.port != 0 {
        let port = |index| u16::try_from(u32::from(endpoint.port) + offset(config, index));
        let take = |index| -> anyhow::Result<Port> {
            let port = port(index).context("no port above 65535")?;
            reserve(SocketAddr::new(address, port))
                .with_context(|| format!("cannot take port {port} for events"))
        };
        return (0..ranks).map(take).collect();
    }
    if tells_each(config) {
        return (0..ranks).map(|_| Ok(reserve(SocketAddr::new(address, 0))?)).collect();
    }
    (0..ROW_TRIES).find_map(|_| row(address, ranks)).context("no free ports in a row")
}

fn row(address: IpAddr, ranks: u32) -> Option<Vec<Port>> {
    let first = reserve(SocketAddr::new(address, 0)).ok()?;
    let base = u32::from(first.address().port());
    let next = |index| reserve(SocketAddr::new(address, u16::try_from(base + index).ok()?)).ok();
    std::iter::once(Some(first)).chain((1..ranks).map(next)).collect()
}

fn ip(host: &str) -> anyhow::Result<IpAddr> {
    match host {
        "*" => Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        host => host.parse().with_context(|| format!("{host} is no address")),
    }
}

/// Alone first and shared with its own listeners only then: else another engine of this user could be on it.
fn reserve(address: SocketAddr) -> std::io::Result<Port> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A port that was told may still have connections of an engine that is gone.
    socket.set_reuseaddr(address.port() != 0)?;
    socket.bind(address)?;
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    Port::over(socket)
}
