//! Answers of many lines: each is made when the connection has room for it, and how long a reader takes nothing is measured.
//!
//! Owns the pace. Knows neither what the lines say nor sockets: [`super::listener`] closes the connection of whoever takes nothing.

use axum::body::{Body, HttpBody};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::body::Frame;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// A reader that takes nothing for so long is not waited for any more.
pub(super) const READER_WAIT: Duration = Duration::from_secs(30);

/// Makes lines.
pub(super) trait Source: Send + Sized + Unpin + 'static {
    /// The next line, once there is one; `None`: there is no more.
    fn next(self) -> impl Future<Output = (Self, Option<Bytes>)> + Send;
    /// The reader took nothing for too long: what to say last, should it still listen.
    fn too_slow(&mut self) -> Bytes;
}

/// How an answer's reader keeps up.
#[derive(Debug)]
pub(super) struct Pace(Mutex<Pacing>);

#[derive(Debug)]
struct Pacing {
    wait: Duration,
    /// Since when there has been no room for a next line.
    given: Option<Instant>,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Pacing { wait: READER_WAIT, given: None }))
    }

    /// Waits so long for its reader.
    pub(super) fn wait(&self, wait: Duration) {
        self.lock().wait = wait;
    }

    pub(super) fn gave(&self) {
        self.lock().given = Some(Instant::now());
    }

    /// There is room again; whether it came too late.
    fn asked(&self) -> bool {
        let late = self.is_late(Duration::ZERO);
        self.lock().given = None;
        late
    }

    /// Whether nothing was taken for too long, and for so much longer.
    pub(super) fn is_late(&self, grace: Duration) -> bool {
        let pacing = self.lock();
        pacing.given.is_some_and(|given| given.elapsed() > pacing.wait + grace)
    }

    /// Nothing here can be left half done.
    fn lock(&self) -> MutexGuard<'_, Pacing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer with the lines of a source.
pub(super) fn answer(source: impl Source) -> Response {
    let pace = Arc::new(Pace::new());
    let body = Lines { stage: Stage::Idle(source), pace: Arc::clone(&pace) };
    let mut response = ([(header::CONTENT_TYPE, "application/x-ndjson")], Body::new(body)).into_response();
    response.extensions_mut().insert(pace);
    response
}

struct Lines<S: Source> {
    stage: Stage<S>,
    pace: Arc<Pace>,
}

enum Stage<S> {
    Idle(S),
    Making(Pin<Box<dyn Future<Output = (S, Option<Bytes>)> + Send>>),
    Ended,
}

impl<S: Source> HttpBody for Lines<S> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        let late = this.pace.asked();
        let mut making = match std::mem::replace(&mut this.stage, Stage::Ended) {
            Stage::Ended => return Poll::Ready(None),
            Stage::Idle(mut source) if late => return frame(source.too_slow()),
            Stage::Idle(source) => Box::pin(source.next()),
            Stage::Making(making) => making,
        };
        let Poll::Ready((source, line)) = making.as_mut().poll(cx) else {
            this.stage = Stage::Making(making);
            return Poll::Pending;
        };
        let Some(line) = line else { return Poll::Ready(None) };
        this.stage = Stage::Idle(source);
        this.pace.gave();
        frame(line)
    }
}

fn frame(line: Bytes) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
    Poll::Ready(Some(Ok(Frame::data(line))))
}

impl<S: Source> Drop for Lines<S> {
    /// The connection was closed on its reader.
    fn drop(&mut self) {
        if let Stage::Idle(source) = &mut self.stage
            && self.pace.is_late(Duration::ZERO)
        {
            source.too_slow();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct Count(u32, Arc<AtomicUsize>);

    impl Source for Count {
        async fn next(mut self) -> (Self, Option<Bytes>) {
            self.0 += 1;
            let line = (self.0 <= 2).then(|| Bytes::from(format!("{}\n", self.0)));
            (self, line)
        }
        fn too_slow(&mut self) -> Bytes {
            self.1.fetch_add(1, Ordering::Relaxed);
            Bytes::from_static(b"slow\n")
        }
    }

    async fn next(body: &mut Body) -> Option<Bytes> {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await;
        frame.map(|frame| frame.unwrap().into_data().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_line_is_made_when_it_is_taken_and_the_end_is_the_end() {
        let slow = Arc::new(AtomicUsize::new(0));
        let mut body = answer(Count(0, Arc::clone(&slow))).into_body();
        assert_eq!(next(&mut body).await.unwrap(), "1\n");
        tokio::time::advance(READER_WAIT).await;
        assert_eq!(next(&mut body).await.unwrap(), "2\n");
        assert_eq!(next(&mut body).await, None);
        tokio::time::advance(READER_WAIT * 2).await;
        drop(body);
        assert_eq!(slow.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_nothing_is_told_why_it_is_over_or_cut_off_and_counted() {
        let slow = Arc::new(AtomicUsize::new(0));
        let mut body = answer(Count(0, Arc::clone(&slow))).into_body();
        next(&mut body).await.unwrap();
        tokio::time::advance(READER_WAIT + Duration::from_millis(1)).await;
        assert_eq!(next(&mut body).await.unwrap(), "slow\n");
        assert_eq!(next(&mut body).await, None);
        drop(body);
        assert_eq!(slow.load(Ordering::Relaxed), 1);

        let mut body = answer(Count(0, Arc::clone(&slow))).into_body();
        next(&mut body).await.unwrap();
        tokio::time::advance(READER_WAIT * 2).await;
        drop(body);
        assert_eq!(slow.load(Ordering::Relaxed), 2);
    }
}
