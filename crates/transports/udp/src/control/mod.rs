//! The control stream of a link, over datagrams. It replaces the TCP control connection on paths that block
//! TCP, or lose so many packets that TCP makes no progress.
//!
//! 1. The connecting end sends an open with a random id, and repeats it.
//! 2. The listener answers with a [cookie] and keeps nothing.
//! 3. The connecting end sends its first segments, with the cookie, which shows that it receives at its
//!    address. Only now does the listener make its end of the [stream].
//!
//! If a packet of the stream comes from another address, the listener sends a challenge there. Once the peer has
//! [answered](crate::moving) from there, the listener's end sends to that address.
//!
//! The stream carries the same bytes as the TCP connection would: TLS if the job has it, and in it the tcp
//! transport's frames. So certificates, tokens and the keys of datagrams are as they are over TCP. With TLS a forged
//! packet can end the link, but changes nothing in it. Without TLS it can change the bytes, as over TCP.

pub(crate) mod cookie;
pub(crate) mod dial;
pub(crate) mod hub;
pub(crate) mod packet;
pub(crate) mod pipe;
pub(crate) mod stream;
