//! The engine's door: its listener, its connections, and resetting them. Knows sockets, not requests.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::{JoinHandle, JoinSet};

use crate::config::EngineConfig;
use crate::route::serve;
use crate::shared::Shared;

/// Connections at once; the next one waits in the listener's queue.
const CONNECTIONS_MAX: usize = 16_384;
/// Longest a request's head may take to arrive; also how long an idle connection is kept.
const HEAD_READ_MAX: Duration = Duration::from_secs(300);
/// Largest request head.
const HEAD_BYTES_MAX: usize = 512 << 10;

/// A running engine. Dropping it closes its port and all its connections.
pub struct Engine {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Engine {
    /// Starts an engine on the current tokio runtime; it accepts connections when this returns.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub async fn spawn(config: EngineConfig) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(config.listen).await?;
        let address = listener.local_addr()?;
        let shared = Shared::new(config)?;
        let accepting = tokio::spawn(accept(listener, shared));
        Ok(Self { address, accepting })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://` and the address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Serves until the process ends.
    pub async fn serve(mut self) {
        let _ = (&mut self.accepting).await;
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Connections die with this set, and the set with this task.
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let shared = Arc::clone(&shared);
                connections.spawn(async move {
                    connection(stream, shared).await;
                    drop(place);
                });
            }
            // Out of descriptors: closing connections will free some.
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Serves one connection until it ends or a fault asks for its reset.
async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    let _ = stream.set_nodelay(true);
    let reset = Arc::new(Notify::new());
    let switch = Arc::clone(&reset);
    let service = service_fn(move |request| serve(Arc::clone(&shared), Arc::clone(&switch), request));
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_READ_MAX)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let mut wanted = pin!(reset.notified());
    tokio::select! {
        // The connection first: what a stream has written leaves before the reset.
        biased;
        _ = &mut connection => return,
        () = &mut wanted => {}
    }
    let stream = connection.into_parts().io.into_inner();
    // Closing with unsent data thrown away is what sends RST instead of FIN.
    let _ = stream.set_zero_linger();
}
