//! The bodies of unary calls. The outgoing body is sent in pieces, so that it can be stopped. An incoming body is
//! watched as its bytes arrive, because gRPC gives out a message only when all of it is there.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{ready, Context, Poll};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::sync::watch;
use tonic::body::Body;
use tonic::Status;

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
            return Poll::Ready(Some(Err(Status::cancelled("the message is not wanted any more"))));
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

/// The incoming body of a unary call. It counts its bytes for the link as they arrive.
pub(crate) struct Watched {
    body: Incoming,
    shared: Arc<LinkState>,
}

impl Watched {
    pub(crate) fn new(body: Incoming, shared: Arc<LinkState>) -> Self {
        Self { body, shared }
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
        if let (Some(data), Some(unary)) = (data, &self.shared.unary) {
            unary.arrived(data.len() as u64);
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
