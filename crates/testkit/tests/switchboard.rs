//! Tests of the switchboard itself.
#![allow(clippy::unwrap_used, clippy::panic)] // a panic is how tests report

use std::sync::Arc;

use bytes::Bytes;
use thalweg_messages::{Care, Carrier, Event, Mailbox, MemberId, Message, Post, Side};
use thalweg_testkit::switchboard::{Habits, Switchboard};
use thalweg_transport::{Address, ErrorKind, Options};

fn address() -> Address {
    Address::parse("board://test:0").unwrap()
}

async fn read(carrier: &Arc<dyn Carrier>) -> Bytes {
    match carrier.next().await.unwrap() {
        Event::Letter(letter) => letter.bytes,
        Event::Departed { why, .. } => Bytes::from(why),
        Event::Refused(error) => panic!("{error}"),
    }
}

fn message(body: &[u8]) -> Message<'_> {
    Message { head: b"head ", body, care: Care::Bulk }
}

#[tokio::test]
async fn carries_to_one_to_all_and_to_the_listener() {
    let board = Switchboard::new(Habits::default());
    let listener = board.open(Side::Listener, &address(), &Options::default()).await.unwrap();
    let place = listener.address();
    let ids = [MemberId::random().unwrap(), MemberId::random().unwrap()];
    let mut members = Vec::new();
    for id in ids {
        members.push(board.open(Side::Member(id), &place, &Options::default()).await.unwrap());
    }
    listener.publish(Mailbox::Group, message(b"all")).await.unwrap();
    listener.publish(Mailbox::Member(ids[1]), message(b"one")).await.unwrap();
    assert_eq!(read(&members[0]).await, "head all");
    assert_eq!(read(&members[1]).await, "head all");
    assert_eq!(read(&members[1]).await, "head one");
    members[0].publish(Mailbox::Listener, message(b"back")).await.unwrap();
    members[0].close().await;
    assert_eq!(read(&listener).await, "head back");
    assert_eq!(read(&listener).await, "the member has hung up");
    board.cut(Mailbox::Group, "the broker restarts");
    for carrier in [&members[1], &listener] {
        let error = carrier.next().await.unwrap_err();
        assert_eq!((error.kind(), error.to_string().contains("restarts")), (ErrorKind::Closed, true));
        assert!(carrier.publish(Mailbox::Listener, message(b"late")).await.is_err());
    }
}

#[tokio::test]
async fn loses_and_repeats_by_seed() {
    let habits = Habits { loss: 200_000, duplication: 100_000, seed: 7, ..Habits::default() };
    let run = async || {
        let board = Switchboard::new(habits);
        let listener = board.open(Side::Listener, &address(), &Options::default()).await.unwrap();
        let id = MemberId::random().unwrap();
        let member = board.open(Side::Member(id), &listener.address(), &Options::default()).await.unwrap();
        for n in 0..200_u8 {
            member.publish(Mailbox::Listener, message(&[n])).await.unwrap();
        }
        member.flush().await.unwrap();
        member.close().await;
        let mut received = Vec::new();
        while let Event::Letter(letter) = listener.next().await.unwrap() {
            received.push(letter.bytes[5]);
        }
        received
    };
    let received = run().await;
    let twice = received.windows(2).filter(|pair| pair[0] == pair[1]).count();
    let lost = (0..200).filter(|n| !received.contains(n)).count();
    assert!((20..60).contains(&lost) && (8..30).contains(&twice), "{lost} lost, {twice} twice");
    assert_eq!(received, run().await);
}
