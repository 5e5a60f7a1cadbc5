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
use tokio::task::JoinSet;

use crate::config::EngineConfig;
use crate::door::Port;
use crate::kv_events;
use crate::route::{Side, serve};
use crate::shared::Shared;

/// Connections at once; the next one waits in the listener's queue.
const CONNECTIONS_MAX: usize = 16_384;
/// Longest a request's head may take to arrive; also how long an idle connection is kept.
const HEAD_READ_MAX: Duration = Duration::from_secs(300);
/// Largest request head.
const HEAD_BYTES_MAX: usize = 512 << 10;
/// Pause before the next try when there is no descriptor left.
const DESCRIPTORS_WAIT: Duration = Duration::from_millis(10);

/// A running engine. Dropping it closes its port and all its connections.
pub struct Engine {
    address: SocketAddr,
    control: Option<SocketAddr>,
    tasks: JoinSet<()>,
}

impl Engine {
    /// Starts an engine on the current tokio runtime; it accepts connections when this returns.
    ///
    /// # Errors
    /// An address cannot be listened on.
    pub async fn spawn(config: EngineConfig) -> anyhow::Result<Self> {
        let (port, listener) = Port::bind(config.listen, config.control.is_some())?;
        let control = config.control.map(|address| Port::bind(address, false)).transpose()?;
        let events = kv_events::ports::bind(&config)?;
        let (address, shared) = (port.address(), Shared::new(config)?);
        let mut tasks = JoinSet::new();
        let sources = kv_events::publish(&shared.config, shared.ranks.feeds(), events, &mut tasks).await?;
        shared.publishes(sources);
        tasks.spawn(keep(port, listener, Arc::clone(&shared)));
        let control = control.map(|(port, listener)| {
            tasks.spawn(accept(listener, shared, Side::Control));
            port.address()
        });
        Ok(Self { address, control, tasks })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it answers `/control/…` besides, if it was told to.
    #[must_use]
    pub fn control_address(&self) -> Option<SocketAddr> {
        self.control
    }

    /// `http://` and the address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Serves until the process ends.
    pub async fn serve(mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Accepts while the port shall be open. Closing ends the connections as well: their tasks die with [`accept`].
async fn keep(port: Port, listener: TcpListener, shared: Arc<Shared>) {
    let mut listener = Some(listener);
    loop {
        if let Some(listener) = listener.take() {
            shared.door.told(true);
            tokio::select! {
                () = accept(listener, Arc::clone(&shared), Side::Engine) => return,
                () = shared.door.wanted(false), if port.is_closable() => {}
            }
            shared.door.told(false);
        }
        shared.door.wanted(true).await;
        match port.open() {
            Ok(opened) => listener = Some(opened),
            // Out of descriptors, as below.
            Err(_) => tokio::time::sleep(DESCRIPTORS_WAIT).await,
        }
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, side: Side) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Connections die with this set, and the set with this task.
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let shared = Arc::clone(&shared);
                connections.spawn(async move {
                    connection(stream, shared, side).await;
                    drop(place);
                });
            }
            // Out of descriptors: closing connections will free some.
            Err(_) => tokio::time::sleep(DESCRIPTORS_WAIT).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

/// Serves one connection until it ends or a fault asks for its reset.
async fn connection(stream: TcpStream, shared: Arc<Shared>, side: Side) {
    let _ = stream.set_nodelay(true);
    let reset = Arc::new(Notify::new());
    let switch = Arc::clone(&reset);
    let service = service_fn(move |request| serve(Arc::clone(&shared), side, Arc::clone(&switch), request));
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
