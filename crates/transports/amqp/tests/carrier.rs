//! The carrier against a real RabbitMQ: refusals, alarms, limits and restarts of the broker.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

mod common;

use std::future::Future;
use std::sync::Arc;

use common::{alone, job, login, options, shared, Node};
use thalweg_amqp::AmqpPost;
use thalweg_messages::{Care, Carrier, Event, Mailbox, MemberId, Message, Post, Side};
use thalweg_transport::{Address, ErrorKind, Login, Options, Value};

/// Time limit of a test, so that a hang becomes a failure.
const GUARD: std::time::Duration = std::time::Duration::from_secs(120);

fn run(test: impl Future<Output = ()>) {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    let runtime = builder.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(GUARD, test).await.unwrap() });
    runtime.shutdown_background();
}

fn own(name: &str, value: Value) -> Options {
    let options = options();
    Options { own: options.own.clone().with(name, value), ..options }
}

fn text(value: &str) -> Value {
    Value::Text(value.into())
}

async fn open(side: Side, address: &Address, options: &Options) -> Arc<dyn Carrier> {
    AmqpPost.open(side, address, options).await.unwrap()
}

fn place(node: &Node) -> Address {
    Address::parse(&format!("{}/{}", node.url(), job())).unwrap()
}

async fn say(from: &Arc<dyn Carrier>, to: Mailbox, body: &[u8], care: Care) {
    from.publish(to, Message { head: b"head:", body, care }).await.unwrap();
}

/// Returns the body of the next message.
async fn hear(at: &Arc<dyn Carrier>) -> Vec<u8> {
    match at.next().await.unwrap() {
        Event::Letter(letter) => letter.bytes.strip_prefix(b"head:").unwrap().to_vec(),
        other => panic!("{other:?} where a letter was due"),
    }
}

#[test]
fn every_exchange_reaches_one_all_and_the_listener_in_order() {
    let _alone = alone();
    let Some(node) = shared() else { return };
    run(async {
        for exchange in ["fanout", "direct", "topic"] {
            let (at, options) = (place(node), own("exchange", text(exchange)));
            let ids = [MemberId::random().unwrap(), MemberId::random().unwrap()];
            let listener = open(Side::Listener, &at, &options).await;
            let one = open(Side::Member(ids[0]), &at, &options).await;
            let other = open(Side::Member(ids[1]), &at, &options).await;
            say(&listener, Mailbox::Member(ids[0]), b"first", Care::Control).await;
            say(&listener, Mailbox::Group, &vec![7; 300_000], Care::Bulk).await;
            say(&listener, Mailbox::Member(ids[0]), b"last", Care::Control).await;
            say(&listener, Mailbox::Member(ids[1]), b"last", Care::Control).await;
            assert_eq!(hear(&one).await, b"first", "{exchange}");
            for member in [&one, &other] {
                assert_eq!(hear(member).await, vec![7; 300_000], "{exchange}");
                assert_eq!(hear(member).await, b"last", "{exchange}");
            }
            say(&one, Mailbox::Listener, b"thanks", Care::Control).await;
            assert_eq!(hear(&listener).await, b"thanks", "{exchange}");
            listener.flush().await.unwrap();
            listener.close().await;
        }
    });
}

#[test]
fn without_confirms_and_with_the_least_prefetch_all_comes() {
    let _alone = alone();
    let Some(node) = shared() else { return };
    run(async {
        let options = own("confirms", Value::Flag(false));
        let options = Options { own: options.own.clone().with("prefetch", Value::Number(1)), ..options };
        let (at, id) = (place(node), MemberId::random().unwrap());
        let listener = open(Side::Listener, &at, &options).await;
        let member = open(Side::Member(id), &at, &options).await;
        let sending = async {
            for n in 0..50u8 {
                say(&member, Mailbox::Listener, &vec![n; 100_000], Care::Bulk).await;
            }
            member.flush().await.unwrap();
        };
        let receiving = async {
            for n in 0..50u8 {
                assert_eq!(hear(&listener).await, vec![n; 100_000]);
            }
        };
        tokio::join!(sending, receiving);
    });
}

#[test]
fn refusals_say_what_to_do() {
    let _alone = alone();
    let Some(node) = shared() else { return };
    run(async {
        let at = place(node);
        let wrong = Login { user: "thalweg".into(), password: "not it".into() };
        let guest = Login { user: "guest".into(), password: "guest".into() };
        let stranger = |login| Options { login, ..Options::default() };
        for (what, options, kind, word) in [
            ("a wrong password", stranger(Some(wrong)), ErrorKind::Security, "login_file"),
            ("guest", stranger(Some(guest)), ErrorKind::Security, "login_file"),
            ("no login", stranger(None), ErrorKind::Security, "login_file"),
            ("no such vhost", own("vhost", text("elsewhere")), ErrorKind::Address, "transport.options.vhost"),
            ("no such exchange", own("exchange", text("headers")), ErrorKind::Unsupported, "topic"),
            ("two streams", Options { streams: 2, ..options() }, ErrorKind::Unsupported, "streams"),
        ] {
            let error = AmqpPost.open(Side::Listener, &at, &options).await.err().unwrap();
            assert_eq!(error.kind(), kind, "{what}: {error}");
            assert!(error.to_string().contains(word), "{what}: {error}");
            assert!(!error.to_string().contains("not it"), "{what}: the password is in {error}");
        }
    });
}

#[test]
fn one_job_has_one_listener_and_members_need_it() {
    let _alone = alone();
    let Some(node) = shared() else { return };
    run(async {
        let at = place(node);
        let member = Side::Member(MemberId::random().unwrap());
        let early = AmqpPost.open(member, &at, &options()).await.err().unwrap();
        assert_eq!(early.kind(), ErrorKind::Unreachable, "{early}");
        let listener = open(Side::Listener, &at, &options()).await;
        let second = AmqpPost.open(Side::Listener, &at, &options()).await.err().unwrap();
        assert_eq!(second.kind(), ErrorKind::InUse, "{second}");
        let other = AmqpPost.open(member, &at, &own("exchange", text("topic"))).await.err().unwrap();
        assert_eq!(other.kind(), ErrorKind::Unreachable, "{other}");
        assert!(other.to_string().contains("transport.options"), "{other}");
        listener.close().await;
        let late = AmqpPost.open(member, &at, &options()).await.err().unwrap();
        assert_eq!(late.kind(), ErrorKind::Unreachable, "{late}");
        open(Side::Listener, &at, &options()).await;
    });
}

#[test]
fn both_sides_notice_who_is_gone() {
    let _alone = alone();
    let Some(node) = shared() else { return };
    run(async {
        let (at, id) = (place(node), MemberId::random().unwrap());
        let listener = open(Side::Listener, &at, &options()).await;
        let member = open(Side::Member(id), &at, &options()).await;
        say(&listener, Mailbox::Member(id), b"hello", Care::Control).await;
        assert_eq!(hear(&member).await, b"hello");
        // It does not say goodbye.
        drop(member);
        let Event::Departed { mailbox, .. } = listener.next().await.unwrap() else { panic!("no departure") };
        assert_eq!(mailbox, Mailbox::Member(id));
        let member = open(Side::Member(id), &at, &options()).await;
        drop(listener);
        let Event::Departed { mailbox, .. } = member.next().await.unwrap() else { panic!("no departure") };
        assert_eq!(mailbox, Mailbox::Listener);
    });
}

#[test]
fn under_an_alarm_publishing_waits_and_receiving_goes_on() {
    let _alone = alone();
    let Some(node) = shared() else { return };
    run(async {
        let (at, id) = (place(node), MemberId::random().unwrap());
        let listener = open(Side::Listener, &at, &options()).await;
        let member = open(Side::Member(id), &at, &options()).await;
        for n in 0..40u8 {
            say(&listener, Mailbox::Member(id), &vec![n; 100_000], Care::Bulk).await;
            // more than a prefetch
        }
        listener.flush().await.unwrap();
        node.alarm(true);
        for n in 0..40u8 {
            assert_eq!(hear(&member).await, vec![n; 100_000]);
        }
        say(&listener, Mailbox::Member(id), b"waits", Care::Control).await;
        let until_held = async {
            while listener.held().is_none() {
                tokio::task::yield_now().await;
            }
        };
        let mut flushed = Box::pin(listener.flush());
        tokio::select! {
            _ = &mut flushed => panic!("the broker confirmed under an alarm"),
            () = until_held => assert_eq!(listener.held().as_deref(), Some("low on memory")),
        }
        node.alarm(false);
        flushed.await.unwrap();
        assert_eq!(hear(&member).await, b"waits");
        while listener.held().is_some() {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn a_message_over_the_brokers_limit_ends_the_carrier_with_the_hint() {
    let _alone = alone();
    let Some(node) = shared() else { return };
    run(async {
        node.evaluate("application:set_env(rabbit, max_message_size, 100000).");
        let (at, id) = (place(node), MemberId::random().unwrap());
        let listener = open(Side::Listener, &at, &options()).await;
        let member = open(Side::Member(id), &at, &options()).await;
        say(&listener, Mailbox::Member(id), &vec![1; 99_000], Care::Bulk).await;
        assert_eq!(hear(&member).await.len(), 99_000);
        say(&listener, Mailbox::Member(id), &vec![1; 101_000], Care::Bulk).await;
        let error = listener.flush().await.unwrap_err();
        node.evaluate("application:set_env(rabbit, max_message_size, 134217728).");
        assert_eq!(error.kind(), ErrorKind::Closed);
        assert!(error.to_string().contains("transport.chunk"), "{error}");
        let error = listener.next().await.unwrap_err();
        assert!(error.to_string().contains("transport.chunk"), "{error}");
    });
}

#[test]
fn a_cancelled_consumer_ends_the_carrier() {
    let _alone = alone();
    let Some(node) = shared() else { return };
    run(async {
        let (at, id) = (place(node), MemberId::random().unwrap());
        let listener = open(Side::Listener, &at, &options()).await;
        let member = open(Side::Member(id), &at, &options()).await;
        let queue = format!("thalweg.{}.member.{id}", at.job.as_ref().unwrap());
        let output = node.evaluate(&format!(
            "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<\"{queue}\">>)), \
             rabbit_amqqueue:delete(Q, false, false, <<\"test\">>)."
        ));
        assert!(output.contains("ok"), "{output}");
        let error = member.next().await.unwrap_err();
        assert!(error.to_string().contains("the queue was deleted"), "{error}");
        drop(listener);
    });
}

#[test]
fn a_broker_that_ends_ends_the_carriers_and_takes_new_ones_when_it_is_back() {
    let _alone = alone();
    let Some(mut node) = Node::start("") else { return };
    run(async {
        let (at, id) = (place(&node), MemberId::random().unwrap());
        let listener = open(Side::Listener, &at, &options()).await;
        let member = open(Side::Member(id), &at, &options()).await;
        node.stop();
        for carrier in [&listener, &member] {
            let error = carrier.next().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            assert!(carrier
                .publish(Mailbox::Group, Message { head: b"", body: b"", care: Care::Control })
                .await
                .is_err());
        }
        let error = AmqpPost.open(Side::Listener, &at, &options()).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        node.again();
        let listener = open(Side::Listener, &at, &options()).await;
        let member = open(Side::Member(id), &at, &options()).await;
        say(&listener, Mailbox::Group, b"again", Care::Bulk).await;
        assert_eq!(hear(&member).await, b"again");
    });
}

#[test]
fn somebody_who_speaks_another_protocol_is_no_broker() {
    run(async {
        let liar = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = format!("amqp://{}", liar.local_addr().unwrap());
        let lying = async {
            loop {
                let (mut stream, _) = liar.accept().await.unwrap();
                let lie = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
                // The client may close the connection meanwhile.
                let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, lie).await;
            }
        };
        let at = Address::parse(&at).unwrap();
        let options = Options { login: login(), connect_timeout_ms: 5_000, ..Options::default() };
        let error = tokio::select! {
            outcome = AmqpPost.open(Side::Listener, &at, &options) => outcome.err().unwrap(),
            () = lying => unreachable!(),
        };
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Closed), "{error}");
    });
}
