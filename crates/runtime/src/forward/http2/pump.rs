//! Moves the bytes of one direction of a call, from its sender to its receiver.

use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};

/// Which side broke one direction of a call.
#[derive(Debug)]
pub(super) enum Broken {
    /// The sender broke it. The receiver has been notified.
    Source,
    /// The receiver broke it.
    Sink,
}

/// The reason code that the other side of a call gets for an error.
pub(super) fn reason(error: &h2::Error) -> Reason {
    error.reason().unwrap_or(Reason::CANCEL)
}

/// Moves a body and its trailers. The sender gets room only as the receiver consumes bytes, so little is
/// buffered here.
pub(super) async fn pump(from: &mut RecvStream, to: &mut SendStream<Bytes>) -> Result<(), Broken> {
    while let Some(data) = poll_fn(|context| poll_data(from, to, context)).await? {
        pass_on(data, from, to).await?;
    }
    match from.trailers().await {
        Ok(Some(trailers)) => to.send_trailers(trailers).map_err(|_| Broken::Sink),
        Ok(None) => to.send_data(Bytes::new(), true).map_err(|_| Broken::Sink),
        Err(error) => Err(broken(&error, to)),
    }
}

/// Resets the sink, because the source is broken.
fn broken(error: &h2::Error, to: &mut SendStream<Bytes>) -> Broken {
    to.send_reset(reason(error));
    Broken::Source
}

/// Returns the next bytes. Also notices if the sink does not want more bytes.
fn poll_data(
    from: &mut RecvStream,
    to: &mut SendStream<Bytes>,
    context: &mut Context<'_>,
) -> Poll<Result<Option<Bytes>, Broken>> {
    if to.poll_reset(context).is_ready() {
        return Poll::Ready(Err(Broken::Sink));
    }
    from.poll_data(context).map(|data| data.transpose().map_err(|error| broken(&error, to)))
}

async fn pass_on(mut data: Bytes, from: &mut RecvStream, to: &mut SendStream<Bytes>) -> Result<(), Broken> {
    while !data.is_empty() {
        to.reserve_capacity(data.len());
        while to.capacity() == 0 {
            let grown = poll_fn(|context| to.poll_capacity(context)).await;
            if !matches!(grown, Some(Ok(_))) {
                return Err(Broken::Sink);
            }
        }
        let part = data.split_to(to.capacity().min(data.len()));
        let length = part.len();
        to.send_data(part, false).map_err(|_| Broken::Sink)?;
        // Ignore an error: the stream has ended, so its sender needs no more room.
        let _ = from.flow_control().release_capacity(length);
    }
    Ok(())
}
