//! The longest chunk under layers, if a listener's broker accepts only messages that are shorter than the
//! transport's limit.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::sync::Arc;

use async_trait::async_trait;
use thalweg_layers::{Compress, Format, Layer, Rate, Throttle};
use thalweg_transport::memory::Memory;
use thalweg_transport::{Address, Capabilities, Link, Listener, Options, Pending, Result, Transport};

const ROOM: u32 = 20_000;

struct Narrow;

struct NarrowListener(Box<dyn Listener>);

#[async_trait]
impl Transport for Narrow {
    fn name(&self) -> &'static str {
        Memory.name()
    }

    fn capabilities(&self) -> Capabilities {
        Memory.capabilities()
    }

    async fn listen(&self, address: &Address, options: &Options) -> Result<Box<dyn Listener>> {
        Ok(Box::new(NarrowListener(Memory.listen(address, options).await?)))
    }

    async fn connect(&self, address: &Address, options: &Options) -> Result<Arc<dyn Link>> {
        Memory.connect(address, options).await
    }
}

#[async_trait]
impl Listener for NarrowListener {
    fn address(&self) -> Address {
        self.0.address()
    }

    fn max_chunk(&self) -> u32 {
        ROOM
    }

    async fn accept(&self) -> Result<Pending> {
        self.0.accept().await
    }
}

async fn room_of(transport: Arc<dyn Transport>, name: &str) -> u32 {
    let address = Address::parse(&format!("memory://{name}")).unwrap();
    transport.listen(&address, &Options::default()).await.unwrap().max_chunk()
}

#[tokio::test]
async fn a_layer_leaves_room_for_what_it_adds() {
    let slow = Throttle::new(Rate::parse("1gbit").unwrap());
    assert_eq!(room_of(slow.wrap(Arc::new(Narrow)), "slow").await, ROOM, "it adds nothing");
    let compress = Compress::from(Format::F16);
    let left = compress.capabilities(Capabilities { max_chunk: ROOM, ..Memory.capabilities() }).max_chunk;
    assert_ne!(left, ROOM);
    assert_eq!(room_of(compress.wrap(slow.wrap(Arc::new(Narrow))), "both").await, left);
    let free = compress.wrap(slow.wrap(Arc::new(Memory)));
    assert_eq!(room_of(free, "free").await, u32::MAX, "the transport's own limit holds");
}
