//! Whether the engine's port is open. A closed one refuses like that of an engine that is gone, and is still this
//! engine's: nobody else can take it meanwhile. Knows no requests.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// What tests want of the port, and what it is.
pub(crate) struct Door {
    wanted: watch::Sender<bool>,
    is_open: watch::Sender<bool>,
}

impl Door {
    pub(crate) fn new() -> Self {
        Self { wanted: watch::Sender::new(true), is_open: watch::Sender::new(true) }
    }

    /// Opens or closes the port; returns once it is so.
    pub(crate) async fn set(&self, open: bool) {
        self.wanted.send_replace(open);
        // Fails only when the sender is gone, and that is this.
        let _ = self.is_open.subscribe().wait_for(|is| *is == open).await;
    }

    pub(crate) fn told(&self, open: bool) {
        self.is_open.send_replace(open);
    }

    /// Waits until the port shall be so.
    pub(crate) async fn wanted(&self, open: bool) {
        let _ = self.wanted.subscribe().wait_for(|wanted| *wanted == open).await;
    }
}

/// A port that can be closed and opened again.
pub(crate) struct Port {
    address: SocketAddr,
    /// Bound and never listening: keeps the port while it is closed. Without one the port stays open for ever.
    reserve: Option<TcpSocket>,
}

impl Port {
    /// Binds a port and listens; `closable` ones share it with their own reserve.
    pub(crate) fn bind(address: SocketAddr, closable: bool) -> std::io::Result<(Self, TcpListener)> {
        if !closable {
            let listener = socket(address, false)?.listen(BACKLOG)?;
            return Ok((Self { address: listener.local_addr()?, reserve: None }, listener));
        }
        let reserve = socket(address, true)?;
        let address = reserve.local_addr()?;
        let listener = socket(address, true)?.listen(BACKLOG)?;
        Ok((Self { address, reserve: Some(reserve) }, listener))
    }

    /// A port over a socket that is bound to it and shared.
    pub(crate) fn over(reserve: TcpSocket) -> std::io::Result<Self> {
        Ok(Self { address: reserve.local_addr()?, reserve: Some(reserve) })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn is_closable(&self) -> bool {
        self.reserve.is_some()
    }

    /// Listens again.
    pub(crate) fn open(&self) -> std::io::Result<TcpListener> {
        socket(self.address, self.is_closable())?.listen(BACKLOG)
    }
}

fn socket(address: SocketAddr, shared: bool) -> std::io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(shared)?;
    socket.bind(address)?;
    Ok(socket)
}
