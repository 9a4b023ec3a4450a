//! A transfer goes on where it was when the client gets another address.
#![allow(clippy::unwrap_used)] // a panic is how tests report

use std::sync::Arc;

use thalweg_conformance::{outgoing, pattern, update_id, Pump, Recorder, GUARD};
use thalweg_ltp::{Ltp, CHUNK};
use thalweg_transport::{Address, Link, Listener, Options, Transport};
use tokio::time::timeout;

#[path = "../../udp/tests/common/nat.rs"]
mod nat;
use nat::{Nat, AWAY, HOME};

const BYTES: u64 = 8 << 20;

async fn meet(listener: &dyn Listener, nat: &Nat) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let accept = async { listener.accept().await.unwrap().await.unwrap() };
    let (address, options) = (nat.address.clone(), Options::default());
    let connect = async { Ltp.connect(&address, &options).await.unwrap() };
    timeout(GUARD, async { tokio::join!(connect, accept) }).await.unwrap()
}

/// Sends an update, during which the NAT changes twice.
async fn transfer(nat: &Nat, from: &Arc<dyn Link>, to: &Arc<dyn Link>) {
    let source = pattern(BYTES, 1);
    let recorder = Arc::new(Recorder::new(source.len()));
    let pump = Pump::start(to, &recorder);
    let update = outgoing(&source, update_id(1), CHUNK);
    let moving = async {
        for (part, address) in [(BYTES / 4, AWAY), (BYTES / 2, HOME)] {
            recorder.until(|seen| seen.ranges.bytes() >= part).await;
            nat.change(address);
        }
    };
    let (sent, ()) = tokio::join!(from.send_update(&update), moving);
    sent.unwrap();
    recorder.until(|seen| seen.ranges.bytes() == source.len()).await;
    recorder.check(&source);
    pump.stop(from).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_goes_on_when_its_client_moves() {
    for is_upload in [true, false] {
        let address = Address::parse("ltp://127.0.0.1:0").unwrap();
        let listener = Ltp.listen(&address, &Options::default()).await.unwrap();
        let nat = Nat::before(&*listener, None).await;
        let (client, server) = meet(&*listener, &nat).await;
        let (from, to) = if is_upload { (&client, &server) } else { (&server, &client) };
        timeout(GUARD, transfer(&nat, from, to)).await.unwrap();
    }
}
