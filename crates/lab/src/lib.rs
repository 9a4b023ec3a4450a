//! Emulated networks for any program: hosts in network namespaces of their own with real kernel stacks, and a relay
//! that is all the links between them.
//!
//! ```text
//!   namespace "client-1"        relay, two threads         namespace "server"
//!   TCP/IP stack - eth0 (TUN) <-> fabric: queue, rate, <-> eth0 (TUN) - TCP/IP stack
//!                                 delay, loss, routes
//! ```
//!
//! [`Spec`] says what a lab is made of, [`Fabric`] is the network without IO or clock, [`Packet`] knows superpackets.
//! [`Lab`] makes it live: namespaces by netlink, TUN devices with segmentation offload, the relay's threads.
//! With [`Devices::Rdma`] the devices are TAP ones, with rxe over them.
//! Namespaces are held by nothing but file descriptors, so the kernel frees all of a lab when its process ends,
//! however it ends.

#[cfg(target_os = "linux")]
mod device;
#[cfg(target_os = "linux")]
mod egress;
mod error;
mod fabric;
mod histogram;
#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
mod live;
#[cfg(target_os = "linux")]
mod namespace;
mod packet;
#[cfg(target_os = "linux")]
mod rdma;
#[cfg(target_os = "linux")]
mod relay;
mod spec;

pub use error::{Error, ErrorKind, Result};
pub use fabric::{addresses, Arrival, Counters, Fabric, LineStatus, Sample, Time};
pub use histogram::{Histogram, Percentiles};
#[cfg(target_os = "linux")]
pub use live::Lab;
#[cfg(target_os = "linux")]
pub use namespace::{enter, Namespace};
pub use packet::{Destination, Packet, VNET};
pub use spec::{ChangeSpec, Devices, Direction, Egress, HostSpec, LinkSpec, Spec};
