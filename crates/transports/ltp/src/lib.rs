//! The ltp transport: chunks travel as datagrams that are acknowledged one by one, control messages over a TCP
//! connection. Each chunk is sent once; what was lost is sent again while time permits, which its receiver decides: it
//! closes an update early by share or deadline. That is LTP as UniFL describes it (section 2.2). Repair packets, where
//! asked for, save the round trips in which an update's last chunks would be sent again.
//!
//! Sockets, handshake, sealing and the order of chunks and messages are those of `udp`; when what is sent is decided by
//! [`thalweg_sending::ltp`].
#![forbid(unsafe_code)]

mod critical;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod link;
mod options;
mod packet;
mod receive;
mod repair;
mod send;

use std::sync::Arc;

use async_trait::async_trait;
use thalweg_transport::{Address, Capabilities, Link, Listener, Options, Result, Setting, Transport};
use thalweg_udp::connect::connect;
use thalweg_udp::hello::{self, Dialect, Ends};
use thalweg_udp::listener::listen;

use crate::link::LtpLink;
use crate::options::SETTINGS;

/// Bytes of payload in a chunk, at most: with all headers it fits an Ethernet frame, under IPv6 too.
pub const CHUNK: u32 = 1344;

const DIALECT: Dialect = Dialect { name: "ltp", magic: *b"tlwl\x02", settings: SETTINGS };

/// Datagrams that may be lost: `ltp://host:port`. The port is the control connection's.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ltp;

#[async_trait]
impl Transport for Ltp {
    fn name(&self) -> &'static str {
        DIALECT.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            settled: true,
            encrypted: true,
            remote: true,
            retransmissions: true,
            max_chunk: CHUNK,
            preferred_chunk: CHUNK,
            ..Capabilities::default()
        }
    }

    fn settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    async fn listen(&self, address: &Address, options: &Options) -> Result<Box<dyn Listener>> {
        check("listen", address, options)?;
        Ok(Box::new(listen(address, options, &DIALECT, link).await?))
    }

    async fn connect(&self, address: &Address, options: &Options) -> Result<Arc<dyn Link>> {
        check("connect", address, options)?;
        link(connect(address, options, &DIALECT).await?, options)
    }
}

fn link(ends: Ends, options: &Options) -> Result<Arc<dyn Link>> {
    Ok(Arc::new(LtpLink::new(ends, options::read(options)?)))
}

fn check(operation: &'static str, address: &Address, options: &Options) -> Result<()> {
    hello::check(operation, address, options, &DIALECT)?;
    options::read(options).map(drop)
}
