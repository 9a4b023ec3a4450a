//! A link of a datagram transport on a path that lets no datagrams through: the control connection carries the
//! chunks too.

use std::sync::Arc;

use thalweg_transport::{Carrier, Carriers, Link, LinkLayer, NoChunks, Result};

use crate::hello::{self, Dialect};

/// A link that is only the control connection, and reports that in its notice.
pub(crate) struct OverTcp {
    inner: Arc<dyn Link>,
    name: &'static str,
}

impl OverTcp {
    /// Makes such a link of the control connection's link.
    pub(crate) fn link(inner: Arc<dyn Link>, dialect: &Dialect) -> Arc<dyn Link> {
        Arc::new(Self { inner, name: dialect.name })
    }
}

impl LinkLayer for OverTcp {
    fn inner(&self) -> &dyn Link {
        &*self.inner
    }

    fn carriers(&self) -> Option<Carriers> {
        Some(Carriers { control: Carrier::Tcp, chunks: Carrier::Tcp })
    }

    fn notice(&self) -> Option<String> {
        let name = self.name;
        Some(format!(
            "no datagrams pass between a client and its server, so their {name} link carries everything over \
             TCP; let UDP through the firewall, or take tcp"
        ))
    }
}

/// Asks the listener's end to carry the chunks over the control connection.
pub(crate) async fn ask(inner: Arc<dyn Link>, dialect: &Dialect) -> Result<Arc<dyn Link>> {
    hello::check_offer(&inner.receive(&NoChunks).await?, dialect)?;
    inner.send_control(dialect.magic.to_vec().into()).await?;
    Ok(OverTcp::link(inner, dialect))
}
