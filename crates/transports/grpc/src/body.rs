//! The bodies of calls. The outgoing body of a unary call is sent in pieces, so that it can be stopped. Incoming
//! bodies are watched as their bytes arrive, because gRPC gives out a message only when all of it is there.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::task::{ready, Context, Poll};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::sync::watch;
use tonic::body::Body;
use tonic::Status;

use crate::chunks::Chunks;
use crate::shared::LinkState;

/// Bytes of a message that HTTP/2 gets at a time.
const PIECE: usize = 64 << 10;

/// Stops the sending of a message. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop(Arc<watch::Sender<bool>>);

impl Stop {
    pub(crate) fn stop(&self) {
        self.0.send_replace(true);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        *self.0.borrow()
    }

    pub(crate) async fn stopped(&self) {
        // This fails only if the `watch` sender was dropped, and that sender is a field of `self`.
        let _ = self.0.subscribe().wait_for(|stopped| *stopped).await;
    }
}

/// A body that is sent piece by piece. When it is stopped, HTTP/2 resets its stream.
pub(crate) struct Pieces {
    body: Body,
    rest: Bytes,
    stop: Stop,
}

impl Pieces {
    pub(crate) fn of(body: Body, stop: Stop) -> Body {
        Body::new(Self { body, rest: Bytes::new(), stop })
    }
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.stop.is_stopped() {
            return Poll::Ready(Some(Err(Status::cancelled("nobody wants it any more"))));
        }
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                end => return Poll::Ready(end),
            }
        }
        let piece = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }
}

/// An incoming body. It counts its bytes for the link as they arrive.
pub(crate) struct Watched {
    body: Incoming,
    shared: Arc<LinkState>,
    /// Follows the chunks of a link's stream; `None` for the body of a unary call.
    chunks: Option<Chunks>,
}

impl Watched {
    /// The body of a unary call: all its bytes count.
    pub(crate) fn call(body: Incoming, shared: Arc<LinkState>) -> Self {
        Self { body, shared, chunks: None }
    }

    /// The body of a link's stream: payloads of chunks count.
    pub(crate) fn stream(body: Incoming, shared: Arc<LinkState>) -> Self {
        Self { body, shared, chunks: Some(Chunks::default()) }
    }

    fn arrived(&mut self, data: &[u8]) {
        if let Some(chunks) = &mut self.chunks {
            self.shared.arriving.fetch_add(chunks.pass(data), Ordering::Relaxed);
        } else if let Some(unary) = &self.shared.unary {
            unary.arrived(data.len() as u64);
        }
    }
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        if let Some(data) = data {
            self.arrived(data);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
