//! A request's body that counts the bytes that the connection took.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// Bytes of a frame.
const FRAME_BYTES: usize = 64 << 10;

/// A body of known length. The connection takes it in frames of at most 64 KiB, each when the one before is written.
#[derive(Debug)]
pub struct CountedBody {
    rest: Bytes,
    taken: Arc<AtomicU64>,
}

impl CountedBody {
    /// A body that adds the bytes that the connection takes to `taken`.
    pub fn new(bytes: Bytes, taken: Arc<AtomicU64>) -> CountedBody {
        CountedBody { rest: bytes, taken }
    }
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let length = self.rest.len().min(FRAME_BYTES);
        let frame = self.rest.split_to(length);
        self.taken.fetch_add(length as u64, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
