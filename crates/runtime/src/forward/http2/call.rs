//! One call of HTTP/2, from its request to its response.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::request::Parts;
use http::{Request, Response};

use super::answers::Promise;
use super::order::Turn;
use super::pump::{pump, reason, Broken};
use super::End;

/// A call that has arrived.
pub(super) struct Call {
    head: Parts,
    body: RecvStream,
    respond: SendResponse<Bytes>,
    /// Near end: the answer that it gives itself; `None` if the server answers.
    promise: Option<Promise>,
    /// Far end: which calls this call must follow.
    turn: Turn,
}

impl Call {
    /// Starts a call that has arrived. Calls must be started in the order of their arrival.
    pub fn new(request: Request<RecvStream>, respond: SendResponse<Bytes>, end: &End) -> Self {
        let (mut head, body) = request.into_parts();
        let (promise, turn) = match end {
            End::Near(promises) => (promises.enter(&mut head), Turn::default()),
            End::Far(order) => (None, order.enter(&mut head.headers)),
        };
        Self { head, body, respond, promise, turn }
    }

    /// Carries the call to its end. Returns whether the server takes further calls of this connection.
    pub async fn carry(self, server: SendRequest<Bytes>, end: Arc<End>) -> bool {
        let Self { head, mut body, mut respond, promise, turn } = self;
        tokio::select! {
            () = turn.comes() => {}
            _ = poll_fn(|context| respond.poll_reset(context)) => return true,
        }
        let whole = body.is_end_stream();
        let begun = match server.ready().await {
            Ok(mut server) => server.send_request(Request::from_parts(head, ()), whole),
            Err(error) => Err(error),
        };
        let Ok((mut response, mut upload)) = begun else {
            // Refuse the call: the server has not seen it, so the program may retry it elsewhere.
            respond.send_reset(Reason::REFUSED_STREAM);
            return false;
        };
        let mut uploading = pin!(async {
            match whole {
                true => Ok(()),
                false => pump(&mut body, &mut upload).await,
            }
        });
        let mut uploaded = false;
        let response = loop {
            tokio::select! {
                biased;
                response = &mut response => break response,
                done = &mut uploading, if !uploaded => match (done, &*end) {
                    (Err(Broken::Source), _) => return true,
                    // Count the upload as finished: the server does not want the rest, and its response says
                    // why.
                    (Err(Broken::Sink), _) => uploaded = true,
                    (Ok(()), End::Near(promises)) => match promise {
                        Some(promise) => {
                            promises.keep(promise, respond, response).await;
                            return true;
                        }
                        None => uploaded = true,
                    }
                    (Ok(()), End::Far(_)) => uploaded = true,
                },
                // Dropping the request here cancels it at the server.
                _ = poll_fn(|context| respond.poll_reset(context)) => return true,
            }
        };
        let (head, mut body) = match response {
            Ok(response) => response.into_parts(),
            Err(error) => {
                respond.send_reset(reason(&error));
                return true;
            }
        };
        let whole = body.is_end_stream();
        let Ok(mut download) = respond.send_response(Response::from_parts(head, ()), whole) else {
            return true;
        };
        if whole {
            return true;
        }
        let mut downloading = pin!(pump(&mut body, &mut download));
        loop {
            tokio::select! {
                _ = &mut downloading => return true,
                done = &mut uploading, if !uploaded => match done {
                    Err(Broken::Source) => return true,
                    _ => uploaded = true,
                },
            }
        }
    }
}
