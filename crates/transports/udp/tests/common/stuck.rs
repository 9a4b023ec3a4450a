//! A control connection that is stuck, as TCP is where most packets are lost.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::Arc;

use thalweg_transport::{Address, Link, Listener, Options, Transport};
use tokio::io::{copy, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Both ends of a link: the connecting and the accepted one. Its control connection passes on nothing from the connecting
/// end once the flag is set.
pub async fn link(
    transport: &dyn Transport,
    listener: &dyn Listener,
    options: &Options,
) -> (Arc<dyn Link>, Arc<dyn Link>, Arc<AtomicBool>) {
    let stuck = Arc::new(AtomicBool::new(false));
    let (address, seen) = (listener.address(), stuck.clone());
    let to = address.authority();
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = between.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (client, _) = between.accept().await.unwrap();
        pass_on(client, TcpStream::connect(to).await.unwrap(), &seen).await;
    });
    let address = Address { port: Some(port), ..address };
    let accept = async { listener.accept().await.unwrap().await.unwrap() };
    let connect = async { transport.connect(&address, options).await.unwrap() };
    let (client, server) = tokio::join!(connect, accept);
    (client, server, stuck)
}

/// Passes on what both ends say until one of them closes its connection.
async fn pass_on(client: TcpStream, server: TcpStream, stuck: &AtomicBool) {
    let ((mut up, mut down), (mut back, mut to)) = (client.into_split(), server.into_split());
    let there = async {
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = up.read(&mut buffer).await {
            if !stuck.load(SeqCst) {
                to.write_all(&buffer[..count]).await.unwrap();
            }
        }
    };
    tokio::select! {
        () = there => {}
        _ = copy(&mut back, &mut down) => {}
    }
}
