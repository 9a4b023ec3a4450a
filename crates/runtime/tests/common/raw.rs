//! Test helper: a client that runs the session by hand over the memory transport, so that it can send
//! anything.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use thalweg_transport::memory::Memory;
use thalweg_transport::{Address, Cancel, Link, NoChunks, Options, Outgoing, Transport, UpdateId};
use thalweg_wire::control::{Content, Control, Hello, Holding, Interval, Parcel, Purpose, Welcome, VERSIONS};

use super::LIMIT;

/// A client whose messages and chunks a test chooses.
pub struct Raw {
    runtime: tokio::runtime::Runtime,
    link: Arc<dyn Link>,
    pub welcome: Welcome,
    /// Other messages that arrived while [`Raw::hear`] waited.
    heard: Mutex<Vec<Control>>,
}

impl Raw {
    /// Connects, and waits until the server has admitted it.
    pub fn join(address: &str, name: &str, instance: u64) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let address = Address::parse(address).unwrap();
        let link = runtime.block_on(Memory.connect(&address, &Options::default())).unwrap();
        let hello = |clock| {
            let (nonce, proof, layout, holding) = ([7; 32], None, None, Holding::Nothing);
            let name = name.into();
            Control::Hello(Hello {
                version: VERSIONS.1,
                name,
                instance,
                nonce,
                proof,
                layout,
                holding,
                clock,
                purpose: Purpose::Rounds,
            })
        };
        let said = runtime.block_on(async {
            let challenge = next(&*link).await;
            assert!(matches!(challenge, Control::Challenge(_)), "{challenge:?}");
            link.send_control(hello(0).encode().unwrap().into()).await.unwrap();
            next(&*link).await
        });
        let Control::Welcome(welcome) = said else { panic!("{said:?}") };
        Self { runtime, link, welcome, heard: Mutex::default() }
    }

    pub fn say(&self, message: &Control) {
        self.runtime.block_on(self.link.send_control(message.encode().unwrap().into())).unwrap();
    }

    /// Waits for the next message that satisfies `wanted`.
    pub fn hear(&self, what: &str, wanted: impl Fn(&Control) -> bool) -> Control {
        let hear = async {
            loop {
                match next(&*self.link).await {
                    message if wanted(&message) => return message,
                    Control::Ping { clock, .. } => {
                        self.link
                            .send_control(Control::Pong { clock }.encode().unwrap().into())
                            .await
                            .unwrap();
                    }
                    other => self.heard.lock().unwrap().push(other),
                }
            }
        };
        let heard = self.runtime.block_on(async { tokio::time::timeout(LIMIT, hear).await });
        heard.unwrap_or_else(|_| panic!("waiting in vain for {what}: {:?}", self.heard.lock().unwrap()))
    }

    /// Receives the model of a round, offers an update of `samples` samples, and waits for the grant.
    pub fn offer(&self, round: u32, samples: u64) {
        self.hear("the model", |m| matches!(m, Control::End { .. }));
        let received = Interval { start: 0, end: 1 };
        self.say(&Control::Received { parcel: round, received, duplicates: 0, missing: 0 });
        self.say(&self.offering(round, samples));
        self.hear("a grant", |m| matches!(m, Control::Grant { .. }));
    }

    pub fn offering(&self, round: u32, samples: u64) -> Control {
        let (head, content) = (b"{}".to_vec(), Content::Whole(self.welcome.layout.hash()));
        let (weight, same_as, deadline) = (samples as f64, None, None);
        Control::Offer(Parcel { number: round, pushed: false, head, content, same_as, weight, deadline })
    }

    /// Sends these ranges of an update, each as a chunk.
    pub fn send(&self, round: u32, update: &[u8], ranges: &[(usize, usize)]) {
        let id = UpdateId {
            job: self.welcome.job,
            round,
            sender: self.welcome.sender,
            layout: self.welcome.layout.hash(),
        };
        let bytes: Vec<u8> = ranges.iter().flat_map(|&(start, end)| &update[start..end]).copied().collect();
        let chunks = ranges.iter().map(|&(start, end)| (start as u64, (end - start) as u32));
        let update = Outgoing::packed(id, Bytes::from(bytes), chunks, Cancel::default());
        self.runtime.block_on(self.link.send_update(&update)).unwrap();
    }

    pub fn end(&self, round: u32) {
        self.say(&Control::End { parcel: round, sent: Interval { start: 0, end: 1 } });
    }

    /// Waits for the verdict on the update. `Err` is the reason of a refusal.
    pub fn verdict(&self) -> Result<(), String> {
        let verdict = |m: &Control| matches!(m, Control::Accepted { .. } | Control::Rejected { .. });
        match self.hear("a verdict", verdict) {
            Control::Rejected { reason, .. } => Err(reason),
            _ => Ok(()),
        }
    }

    /// Ends like a process that dies: closes the link without a farewell.
    pub fn die(self) {
        self.runtime.block_on(self.link.close());
        self.runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

async fn next(link: &dyn Link) -> Control {
    let message = tokio::time::timeout(LIMIT, link.receive(&NoChunks)).await.unwrap().unwrap();
    Control::decode(&message).unwrap()
}
