//! The eBPF back end. The kernel's own TCP receives the data. Programs at the devices remove masked bytes
//! from its sequence numbers (`crates/ebpf/programs/unifl.c`). So a socket delivers the stream without its
//! holes. This module puts the holes back.
//!
//! ```text
//! device -> inward program -> kernel's TCP -> socket -> tcp's link with holes -> the session's sink
//!             |    ^                                      ^
//!             |    +--- wishes: window, budget <--- flow -+
//!             +-------- events: holes ----------------^
//! ```

mod flow;
mod layout;
mod programs;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use thalweg_masking::Rate;
use thalweg_sockets::door::{self, Doorkeeper};
use thalweg_tcp::line::{HoledStreams, Holes};
use thalweg_transport::trace::TraceFile;
use thalweg_transport::{Address, Listener, Options, Pending, Result, UnauthenticatedPeer};
use tokio::net::TcpStream;

use crate::settings::Limits;
use flow::Flow;
use programs::Programs;

/// Listens at `address`, which resolves to `at`, with the programs in front of the kernel's TCP. The inner
/// error says why this machine cannot do that.
///
/// # Errors
pub(crate) async fn listen(
    address: &Address,
    at: SocketAddr,
    options: &Options,
    limits: Limits,
    trace: Option<TraceFile>,
    rate: &Rate,
) -> Result<std::result::Result<Box<dyn Listener>, String>> {
    if at.ip().is_loopback() {
        return Ok(Err("the loopback loses nothing".into()));
    }
    let programs = match Programs::attach(at.ip()).await {
        Ok(programs) => Arc::new(programs),
        Err(why) => return Ok(Err(why)),
    };
    let limit = options.connect_timeout();
    let keeper = Keeper {
        programs: programs.clone(),
        limits,
        trace,
        rate: rate.clone(),
        lines: HoledStreams::new(options)?,
        limit,
    };
    let door = door::open(address, options, keeper).await?;
    let port = door.address().port.unwrap_or(at.port());
    Ok(programs.serve(port).map(|()| Box::new(door) as Box<dyn Listener>))
}

/// Accepts connections, each with the source of its holes.
struct Keeper {
    programs: Arc<Programs>,
    limits: Limits,
    trace: Option<TraceFile>,
    rate: Rate,
    lines: HoledStreams,
    limit: Duration,
}

#[async_trait]
impl Doorkeeper for Keeper {
    async fn admit(
        &self,
        stream: TcpStream,
        from: SocketAddr,
        unauthenticated_peer: Option<UnauthenticatedPeer>,
    ) -> Result<Option<Pending>> {
        // If the programs did not see the connection begin, it is an ordinary one, without holes.
        let local = stream.local_addr().ok();
        let trace = self.trace.as_ref().map(|file| file.of(&from.to_string()));
        let flow =
            local.and_then(|local| Flow::open(&self.programs, (from, local), self.limits, &self.rate, trace));
        let holes = flow.map(|flow| Arc::new(flow) as Arc<dyn Holes>);
        self.lines.admit_socket(stream, holes, from.to_string(), unauthenticated_peer, self.limit).await
    }
}
