//! A port that stays somebody's while nobody listens there: connections are refused, and the kernel gives it to nobody else.

use std::net::SocketAddr;

use tokio::net::TcpSocket;

/// A bound socket that does not listen. Whoever binds with `SO_REUSEADDR`, as servers do, gets the port all the same.
#[derive(Debug)]
pub struct Held {
    _socket: TcpSocket,
}

impl Held {
    /// Keeps the port of a server that has just ended; `None` where somebody was faster.
    #[must_use]
    pub fn hold(address: SocketAddr) -> Option<Self> {
        let socket = TcpSocket::new_v4().ok()?;
        socket.set_reuseaddr(true).ok()?;
        socket.bind(address).ok()?;
        Some(Self { _socket: socket })
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn what_is_held_refuses_and_can_be_listened_on_again() {
        let first = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = first.local_addr().unwrap();
        assert!(Held::hold(address).is_none(), "somebody listens");
        drop(first);
        let _held = Held::hold(address).unwrap();
        assert_eq!(TcpStream::connect(address).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
        let second = TcpListener::bind(address).await.unwrap();
        TcpStream::connect(address).await.unwrap();
        second.accept().await.unwrap();
    }
}
