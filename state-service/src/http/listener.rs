//! Accepts connections and serves them: a stated number at once, without Nagle, none of them for nothing.
//!
//! A connection that sends no whole request head in time is closed, as is one that takes nothing of a long answer. One more than
//! there may be makes the quietest go, so that silent peers, however many, keep nobody out. Knows nothing of what is asked on them.

use super::guests::{Guest, Place, Room};
use super::lines::{Pace, READER_WAIT};
use axum::Router;
use axum::extract::Request;
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower::Service;

/// What was sent may be unacknowledged for so long. Above the wait for a reader, which can be told why.
const UNACKNOWLEDGED_MS_MAX: u32 = 45_000;
const _: () = assert!(UNACKNOWLEDGED_MS_MAX as u128 > READER_WAIT.as_millis() + 10_000);

/// How much a listener bears with.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Connections at once; at it the quietest goes, and when all are busy new ones wait in the backlog.
    pub connections_max: usize,
    /// From a connection's start to its first request, and from the first byte of a later head to its end.
    pub head_wait: Duration,
    /// How long the reader of a long answer may take nothing.
    pub reader_wait: Duration,
}

impl Patience {
    /// That of a real service: 64 Envoys of 16 threads, each with a few.
    pub const SERVICE: Self =
        Self { connections_max: 4096, head_wait: Duration::from_secs(10), reader_wait: READER_WAIT };
}

/// Serves until `closing` says true and every request that runs then is answered.
pub async fn serve(
    mut listener: TcpListener,
    router: Router,
    closing: watch::Receiver<bool>,
    patience: Patience,
) {
    let room = Arc::new(Room::new(patience.connections_max));
    let mut open = JoinSet::new();
    let admit = async {
        loop {
            let (stream, peer) = Listener::accept(&mut listener).await;
            if let Err(error) = stream.set_nodelay(true).and_then(|()| give_up_on_the_dead(&stream)) {
                tracing::debug!(%peer, %error, "no TCP_NODELAY, or no end of waiting for a dead peer");
            }
            let place = room.enter().await;
            open.spawn(converse(stream, router.clone(), place, closing.clone(), patience));
            while open.try_join_next().is_some() {}
        }
    };
    tokio::select! {
        () = closed(closing.clone()) => {}
        () = admit => {}
    }
    drop(listener);
    while open.join_next().await.is_some() {}
}

/// A peer that lost its power or its network says no goodbye: what it does not acknowledge ends its connection, and not after the quarter
/// of an hour that is usual.
#[cfg(target_os = "linux")]
fn give_up_on_the_dead(stream: &TcpStream) -> io::Result<()> {
    Ok(rustix::net::sockopt::set_tcp_user_timeout(stream, UNACKNOWLEDGED_MS_MAX)?)
}

#[cfg(not(target_os = "linux"))]
fn give_up_on_the_dead(_stream: &TcpStream) -> io::Result<()> {
    Ok(())
}

/// An error means that the sender is gone: the end as well.
async fn closed(mut closing: watch::Receiver<bool>) {
    let _ = closing.wait_for(|closed| *closed).await;
}

async fn converse(
    stream: TcpStream,
    router: Router,
    place: Place,
    closing: watch::Receiver<bool>,
    patience: Patience,
) {
    let guest = place.guest();
    let io = TokioIo::new(Heard { stream, guest: Arc::clone(guest) });
    let service = service_fn(|request: Request<Incoming>| {
        let turn = Guest::begin(guest, request.version());
        let answer = router.clone().call(request);
        let guest = Arc::clone(guest);
        async move {
            let answer = answer.await;
            drop(turn);
            if let Ok(Some(pace)) = answer.as_ref().map(|answer| answer.extensions().get::<Arc<Pace>>()) {
                pace.wait(patience.reader_wait);
                guest.reads(pace);
            }
            answer
        }
    });
    let builder = Builder::new(TokioExecutor::new());
    let mut connection = pin!(builder.serve_connection(io, service));
    let mut unwanted = pin!(guest.unwanted(patience.head_wait));
    tokio::select! {
        ended = connection.as_mut() => return note(ended),
        () = unwanted.as_mut() => return,
        () = closed(closing) => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        ended = connection => note(ended),
        () = unwanted => {}
    }
}

fn note(ended: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// A connection that tells its guest when bytes come.
struct Heard {
    stream: TcpStream,
    guest: Arc<Guest>,
}

impl AsyncRead for Heard {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            this.guest.heard();
        }
        read
    }
}

impl AsyncWrite for Heard {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, buf)
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, bufs)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
