//! Counts what the sender of an update says to its peer.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

use std::sync::Mutex;

use thalweg_conformance::{outgoing, pattern, update_id, Factory, Pump, Recorder};
use thalweg_transport::memory::Memory;
use thalweg_transport::{LinkLayer, Outgoing as Update, SendReport};
use thalweg_verbs::pretend::{Behaviour, Fabric, Pretend};

use super::*;
use crate::words::Word;

/// An inner link that keeps the words it sends.
struct Overheard {
    inner: Arc<dyn Link>,
    words: Arc<Mutex<Vec<Word>>>,
}

impl LinkLayer for Overheard {
    fn inner(&self) -> &dyn Link {
        &*self.inner
    }

    async fn send_update(&self, update: &Update) -> Result<SendReport> {
        for chunk in update.chunks() {
            let (_, payload) = update.frame(chunk).unwrap();
            self.words.lock().unwrap().extend(Word::decode_all(&payload).unwrap());
        }
        self.inner.send_update(update).await
    }
}

/// Sends an update of 12 chunks. Returns the words of its sender.
async fn words(mode: &str) -> Vec<Word> {
    let device: Arc<dyn Device> = Arc::new(Pretend::new(&Arc::new(Fabric::default()), Behaviour::default()));
    let pair = Factory::new(Arc::new(Memory), "memory://extent:0").pair().await;
    let own = serde_json::from_str(&format!(r#"{{"mode": "{mode}"}}"#)).unwrap();
    let choices = Choices::read(&Options { own, ..Options::default() }).unwrap();
    let words = Arc::new(Mutex::new(Vec::new()));
    let client = Arc::new(Overheard { inner: pair.client.clone(), words: words.clone() });
    let (client, server) = tokio::join!(
        finish(client, End::Connecting, Ok(device.clone()), &choices, false),
        finish(pair.server.clone(), End::Listening, Ok(device), &choices, false),
    );
    let (client, server) = (client.unwrap(), server.unwrap());
    assert!(client.notice().unwrap().contains("RDMA device"));
    let source = pattern(3 << 20, 1);
    let recorder = Arc::new(Recorder::new(source.len()).preparing(|_| true));
    let _pump = Pump::start(&server, &recorder);
    client.send_update(&outgoing(&source, update_id(1), 256 << 10)).await.unwrap();
    recorder.check(&source);
    assert_eq!(recorder.seen().ranges.bytes(), source.len());
    let words = words.lock().unwrap().clone();
    words
}

#[tokio::test]
async fn an_update_has_one_offer() {
    let baselines: &[(&str, usize)] = if cfg!(feature = "baselines") { &[("fedrdma", 0)] } else { &[] };
    let modes = [("window", 11), ("pull", 0), ("fedrdma-e", 0), ("whole", 0)];
    for &(mode, others) in modes.iter().chain(baselines) {
        let words = words(mode).await;
        let offers: Vec<_> = words
            .iter()
            .filter_map(|word| {
                if let Word::Offer { number, extent } = word {
                    Some((*number, *extent))
                } else {
                    None
                }
            })
            .collect();
        let [(0, extent)] = offers[..] else { panic!("{mode}: {offers:?}") };
        let whole = !["window", "pull"].contains(&mode);
        assert_eq!((extent.all.bytes, extent.all.count(), extent.whole), (3 << 20, 12, whole), "{mode}");
        let ready = words.iter().filter(|word| matches!(word, Word::Ready { .. })).count();
        assert_eq!(ready, others, "{mode}: the parts behind the first");
        let lent = words.iter().filter(|word| matches!(word, Word::Lent { .. })).count();
        assert_eq!(lent, if mode == "pull" { 12 } else { 0 });
    }
}
