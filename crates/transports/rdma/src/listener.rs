//! The listener: it accepts tcp links and shakes hands on each.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use thalweg_tcp::Tcp;
use thalweg_transport::{Address, Error, ErrorKind, Link, Listener, Options, Pending, Result, Transport};
use tokio::task::JoinHandle;

use crate::device::Source;
use crate::hello::End;
use crate::plain::Plain;
use crate::settings::Choices;
use crate::{as_tcp, finish, inner};

const ACCEPT: &str = "accept";

struct RdmaListener {
    address: Address,
    inner: Box<dyn Listener>,
    source: Source,
    choices: Choices,
    /// Why links here are tcp, known before any peer connects.
    refusal: Option<String>,
    warning: Option<&'static str>,
    limit: Duration,
    has_admission_queue: bool,
}

/// The task of a handshake. It is aborted when its [`Pending`] is dropped.
struct AbortOnDrop(JoinHandle<Result<Arc<dyn Link>>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(crate) async fn listen(
    source: Source,
    address: &Address,
    options: &Options,
) -> Result<Box<dyn Listener>> {
    let choices = Choices::read(options)?;
    let inner = Tcp.listen(&as_tcp(address), &inner(options)).await?;
    let address = Address { port: inner.address().port, ..address.clone() };
    let refusal = choices.refusal(options).or_else(|| source.missing());
    let warning = choices.warning(options).filter(|_| refusal.is_none());
    let (limit, has_admission_queue) = (options.connect_timeout(), options.admission_queue.is_some());
    Ok(Box::new(RdmaListener {
        address,
        inner,
        source,
        choices,
        refusal,
        warning,
        limit,
        has_admission_queue,
    }))
}

#[async_trait]
impl Listener for RdmaListener {
    fn address(&self) -> Address {
        self.address.clone()
    }

    fn notice(&self) -> Option<String> {
        let refusal = self.refusal.as_ref().map(|why| format!("{} is served as tcp: {why}", self.address));
        refusal.or_else(|| self.warning.map(|warning| format!("{}: {warning}", self.address)))
    }

    async fn accept(&self) -> Result<Pending> {
        let pending = self.inner.accept().await?;
        let (source, choices, refusal) = (self.source.clone(), self.choices, self.refusal.clone());
        let (limit, has_admission_queue) = (self.limit, self.has_admission_queue);
        // Shake hands in a task of its own, even while nobody awaits the `Pending`: the peer's `connect`
        // waits for it.
        let shaken = tokio::spawn(async move {
            let inner = pending.await?;
            let who = inner.peer().address.clone();
            let said = refusal.is_some();
            let device = refusal.map_or_else(|| source.towards(&who), Err);
            let shaking = finish(inner.clone(), End::Listening, device, &choices, has_admission_queue);
            let late = |_| {
                let context = format!("{who} did not finish its handshake in time");
                Err(Error::new(ErrorKind::Timeout, ACCEPT, context))
            };
            let link = tokio::time::timeout(limit, shaking).await.unwrap_or_else(late)?;
            // The listener's notice gives the reason. Do not repeat it for each link.
            Ok(if said { Arc::new(Plain { inner, notice: None }) as Arc<dyn Link> } else { link })
        });
        let mut shaken = AbortOnDrop(shaken);
        Ok(Box::pin(async move {
            let stopped = |_| Error::closed(ACCEPT, "the handshake was stopped");
            (&mut shaken.0).await.map_err(stopped)?
        }))
    }
}
