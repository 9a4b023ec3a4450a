//! Emulated networks for any program. Each host is a network namespace with a real kernel stack. A relay
//! carries packets between the hosts and is all the links.
//!
//! ```text
//!   namespace "client-1"        relay, two threads         namespace "server"
//!   TCP/IP stack - eth0 (TUN) <-> fabric: queue, rate, <-> eth0 (TUN) - TCP/IP stack
//!                                 delay, loss, routes
//! ```
//!
//! [`Spec`] describes a lab. [`Fabric`] is the network without IO or clock. [`Packet`] handles superpackets.
//! [`Lab`] runs it: it makes namespaces by netlink and TUN devices with segmentation offload, and starts the
//! relay's threads. With [`Devices::Rdma`] the devices are TAP devices with the kernel's soft RDMA device
//! (rxe) on top. Only file descriptors hold the namespaces. So the kernel frees everything when the lab's
//! process ends, in whatever way.

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
