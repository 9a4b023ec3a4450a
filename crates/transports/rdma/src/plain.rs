//! A link that fell back to tcp, because one of its ends or the path has no RDMA.

use std::sync::Arc;

use thalweg_transport::{Capabilities, Link, LinkLayer, Transport};

use crate::Rdma;

pub(crate) struct Plain {
    pub(crate) inner: Arc<dyn Link>,
    /// The reason for the fallback, for people; `None` if the listener's notice gives it.
    pub(crate) notice: Option<String>,
}

impl LinkLayer for Plain {
    fn inner(&self) -> &dyn Link {
        &*self.inner
    }

    fn capabilities(&self) -> Capabilities {
        let Capabilities { ordered, settled, zero_copy, .. } = self.inner.capabilities();
        Capabilities { ordered, settled, zero_copy, ..Rdma::default().capabilities() }
    }

    fn notice(&self) -> Option<String> {
        self.notice.clone()
    }
}
