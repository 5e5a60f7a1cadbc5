//! Response bodies: whole, streamed, or cut off by a fault. Knows frames; does not know what is in them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Sleep, sleep};

/// Frames a stream may be ahead of its reader.
pub(crate) const STREAM_FRAMES_MAX: usize = 64;
/// Frames of a stream that arrive before [`Cut`] cuts.
const FRAMES_BEFORE_CUT: usize = 3;
/// From the last frame to the reset, so that what was written is read first.
const PAUSE_BEFORE_CUT: Duration = Duration::from_millis(20);

/// Asks a connection's task to reset it.
pub(crate) type ResetSwitch = Arc<Notify>;

/// A response body.
pub(crate) enum Body {
    /// Known from the start.
    Whole(Option<Bytes>),
    /// Comes as it is generated.
    Stream(mpsc::Receiver<Bytes>),
    /// One of the above that ends in a reset.
    Cut(Box<Cut>),
}

/// A body that never ends well: some of it, then the connection is reset.
pub(crate) struct Cut {
    inner: Body,
    promised: SizeHint,
    frames_left: usize,
    pause: Option<Pin<Box<Sleep>>>,
    reset: ResetSwitch,
}

impl Body {
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()))
    }

    /// The same body, cut off in the middle.
    pub(crate) fn cut(self, reset: ResetSwitch) -> Self {
        let promised = self.size_hint();
        let inner = match self {
            Self::Whole(Some(bytes)) => Self::whole(bytes.slice(..bytes.len() / 2)),
            other => other,
        };
        Self::Cut(Box::new(Cut { inner, promised, frames_left: FRAMES_BEFORE_CUT, pause: None, reset }))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let next = match &mut *self {
            Self::Whole(bytes) => bytes.take(),
            Self::Stream(frames) => ready!(frames.poll_recv(cx)),
            Self::Cut(cut) => return cut.poll(cx),
        };
        Poll::Ready(next.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Stream(_) => SizeHint::default(),
            Self::Cut(cut) => cut.promised,
        }
    }
}

impl Cut {
    /// Frames while there are some to give, then a pause, then the reset; never an end.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, std::convert::Infallible>>> {
        if self.frames_left > 0 {
            if let Some(frame) = ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
                self.frames_left -= 1;
                return Poll::Ready(Some(frame));
            }
            self.frames_left = 0;
        }
        let pause = self.pause.get_or_insert_with(|| Box::pin(sleep(PAUSE_BEFORE_CUT)));
        ready!(pause.as_mut().poll(cx));
        self.reset.notify_one();
        Poll::Pending
    }
}
