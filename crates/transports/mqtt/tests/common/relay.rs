//! A relay between a party and its broker that drops or repeats messages to the party.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// How often to pass on a packet, by its number.
pub type Habit = Arc<dyn Fn(usize) -> usize + Send + Sync>;

/// Starts a relay to the broker at `port`, and returns its own port. The relay passes on each PUBLISH packet
/// of at least 1,000 bytes from the broker as often as `habit` says. `habit` gets the packet's number, from
/// 0.
pub async fn between(port: u16, habit: Habit) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((party, _)) = listener.accept().await {
            let broker = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            tokio::spawn(relay(party, broker, habit.clone()));
        }
    });
    own
}

async fn relay(party: TcpStream, broker: TcpStream, habit: Habit) {
    let (mut from_party, mut to_party) = party.into_split();
    let (mut from_broker, mut to_broker) = broker.into_split();
    let up = async {
        let _ = tokio::io::copy(&mut from_party, &mut to_broker).await;
    };
    let down = async {
        let mut number = 0;
        while let Ok(packet) = packet(&mut from_broker).await {
            let times = if packet[0] >> 4 == 3 && packet.len() >= 1_000 {
                number += 1;
                habit(number - 1)
            } else {
                1
            };
            for _ in 0..times {
                if to_party.write_all(&packet).await.is_err() {
                    return;
                }
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

async fn packet(stream: &mut (impl AsyncReadExt + Unpin)) -> std::io::Result<Vec<u8>> {
    let mut packet = vec![stream.read_u8().await?];
    let (mut remaining, mut shift) = (0_usize, 0);
    loop {
        let byte = stream.read_u8().await?;
        packet.push(byte);
        remaining |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            break;
        }
    }
    let begin = packet.len();
    packet.resize(begin + remaining, 0);
    stream.read_exact(&mut packet[begin..]).await?;
    Ok(packet)
}
