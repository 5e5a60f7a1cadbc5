//! A TCP proxy on the way to somebody, which can be cut, held up and mended: what a network does to two that talk. Looks at no byte.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// Bytes carried at once.
const PART: usize = 64 << 10;

/// How the way is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Open,
    /// Connections are reset, new ones at once.
    Cut,
    /// Connections stay and carry nothing.
    Held,
}

/// A running proxy; gone when dropped, with all its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    way: Arc<watch::Sender<Way>>,
    accepted: Arc<AtomicUsize>,
    task: AbortHandle,
}

impl Proxy {
    /// Listens on a free port of loopback and carries to `to`.
    ///
    /// # Errors
    /// There is no port.
    pub async fn start(to: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (way, accepted) = (Arc::new(watch::Sender::new(Way::Open)), Arc::new(AtomicUsize::new(0)));
        let task = tokio::spawn(accept(listener, to, Arc::clone(&way), Arc::clone(&accepted))).abort_handle();
        Ok(Self { address, way, accepted, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections it has taken so far, those included that it reset at once.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Resets all connections, and new ones at once.
    pub fn cut(&self) {
        self.way.send_replace(Way::Cut);
    }

    /// Carries nothing any more, and tells nobody.
    pub fn hold(&self) {
        self.way.send_replace(Way::Held);
    }

    /// Carries again: what was held goes on, what was cut stays so.
    pub fn mend(&self) {
        self.way.send_replace(Way::Open);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(
    listener: TcpListener,
    to: SocketAddr,
    way: Arc<watch::Sender<Way>>,
    accepted: Arc<AtomicUsize>,
) {
    let mut open = JoinSet::new();
    // An error is one connection that went before it was taken.
    loop {
        if let Ok((near, _)) = listener.accept().await {
            accepted.fetch_add(1, Ordering::Relaxed);
            open.spawn(carry(near, to, way.subscribe()));
        }
        while open.try_join_next().is_some() {}
    }
}

async fn carry(mut near: TcpStream, to: SocketAddr, way: watch::Receiver<Way>) {
    if *way.borrow() == Way::Cut {
        return reset(&near);
    }
    let Ok(mut far) = TcpStream::connect(to).await else { return reset(&near) };
    // Both fail only when the connection is gone already.
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let mut cut = way.clone();
    let whole = {
        let ((near_in, near_out), (far_in, far_out)) = (near.split(), far.split());
        let both =
            async { tokio::join!(pump(near_in, far_out, way.clone()), pump(far_in, near_out, way.clone())) };
        tokio::select! {
            (up, down) = both => up && down,
            _ = cut.wait_for(|way| *way == Way::Cut) => false,
        }
    };
    if !whole {
        reset(&near);
        reset(&far);
    }
}

/// Carries one direction to its end; whether that was a clean one.
async fn pump(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, mut way: watch::Receiver<Way>) -> bool {
    let mut part = vec![0; PART];
    loop {
        if way.wait_for(|way| *way != Way::Held).await.is_err() {
            return false;
        }
        let read = tokio::select! {
            read = from.read(&mut part) => read,
            _ = way.wait_for(|way| *way == Way::Held) => continue,
        };
        match read {
            Ok(0) => return to.shutdown().await.is_ok(),
            Ok(read) => {
                if to.write_all(&part[..read]).await.is_err() {
                    return false;
                }
            }
            Err(_) => return false,
        }
    }
}

/// When it is dropped it ends with a reset instead of a close.
fn reset(stream: &TcpStream) {
    // It fails only when the connection is gone already.
    let _ = stream.set_zero_linger();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        address
    }

    async fn say(stream: &mut TcpStream) -> bool {
        let mut heard = [0; 2];
        stream.write_all(b"hi").await.is_ok() && stream.read_exact(&mut heard).await.is_ok()
    }

    #[tokio::test]
    async fn what_is_cut_is_reset_and_what_is_held_goes_on() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert!(say(&mut stream).await);
        proxy.hold();
        let mut heard = [0; 2];
        stream.write_all(b"ho").await.unwrap();
        let held = timeout(Duration::from_millis(50), stream.read_exact(&mut heard)).await;
        assert!(held.is_err(), "carried while held");
        proxy.mend();
        stream.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"ho");
        proxy.cut();
        let error = stream.read(&mut heard).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        let mut refused = TcpStream::connect(proxy.address()).await.unwrap();
        assert!(!say(&mut refused).await);
        proxy.mend();
        assert!(!say(&mut stream).await, "what was cut stays so");
        let mut fresh = TcpStream::connect(proxy.address()).await.unwrap();
        assert!(say(&mut fresh).await);
        assert_eq!(proxy.accepted(), 3);
    }

    #[tokio::test]
    async fn an_end_is_carried_each_way() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        stream.write_all(b"bye").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b"bye");
    }
}
