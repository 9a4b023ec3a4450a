//! Tests with both ends of a forwarded path in one process, and real TCP programs.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Receiver};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{json, Value};
use thalweg_pki as pki;
use thalweg_runtime::Forwarder;

/// Timeout that turns a hang into a failure.
const LIMIT: Duration = Duration::from_secs(60);

/// One end of a forwarded path. It serves on its own thread.
struct End {
    listening: Value,
    events: Receiver<Value>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl End {
    fn start(config: &Value) -> Result<Self, String> {
        let mut forwarder = Forwarder::open(&config.to_string()).map_err(|e| e.to_string())?;
        let listening = serde_json::from_str(forwarder.listening()).unwrap();
        let (sender, events) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            let outcome = forwarder.serve(|event| {
                if let Some(event) = event {
                    let _ = sender.send(serde_json::from_str(event).unwrap());
                }
                !stopped.load(Ordering::SeqCst)
            });
            outcome.map_err(|e| e.to_string())
        });
        Ok(Self { listening, events, stop, thread: Some(thread) })
    }

    fn address(&self) -> String {
        self.listening["listen"].as_str().unwrap().into()
    }

    /// Waits for the next event of this kind.
    fn next(&self, kind: &str) -> Value {
        loop {
            let event = self.events.recv_timeout(LIMIT).unwrap();
            if event["event"] == kind {
                return event;
            }
        }
    }

    fn end(mut self) -> Result<(), String> {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn merged(mut base: Value, more: Value) -> Value {
    base.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    base
}

/// A far end for `target`, and a near end that is connected to it. Both have these options.
fn path(scheme: &str, target: &str, options: &Value) -> (End, End) {
    let far = json!({"listen": format!("{scheme}://127.0.0.1:0"), "to": target});
    let far = End::start(&merged(far, options.clone())).unwrap();
    let near = json!({"listen": "127.0.0.1:0", "via": far.address()});
    let near = End::start(&merged(near, options.clone())).unwrap();
    (near, far)
}

fn connect(near: &End) -> TcpStream {
    connect_to(&near.address())
}

fn connect_to(near: &str) -> TcpStream {
    let program = TcpStream::connect(near).unwrap();
    program.set_read_timeout(Some(LIMIT)).unwrap();
    program
}

/// A target that hands each connection to `serve`.
fn target(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            let serve = serve.clone();
            std::thread::spawn(move || serve(connection));
        }
    });
    address
}

/// A target that reads everything, and answers it in reverse once the program has ended its direction.
fn reverser() -> String {
    target(|mut connection| {
        let mut asked = Vec::new();
        connection.read_to_end(&mut asked).unwrap();
        asked.reverse();
        connection.write_all(&asked).unwrap();
    })
}

fn question(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|n| (n * 31 + n / 251 + seed * 7) as u8).collect()
}

/// Sends `asked`, ends its direction, and returns the answer.
fn ask(near: &str, asked: &[u8]) -> Vec<u8> {
    let mut program = connect_to(near);
    let (mut writing, asked) = (program.try_clone().unwrap(), asked.to_vec());
    let writer = std::thread::spawn(move || {
        writing.write_all(&asked).unwrap();
        writing.shutdown(Shutdown::Write).unwrap();
    });
    let mut answer = Vec::new();
    program.read_to_end(&mut answer).unwrap();
    writer.join().unwrap();
    answer
}

fn carries(scheme: &str, options: &Value, length: usize) {
    let (near, far) = path(scheme, &reverser(), options);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let near = near.address();
            scope.spawn(move || {
                let mut asked = question(seed, length + seed);
                let answer = ask(&near, &asked);
                asked.reverse();
                assert!(answer == asked, "{scheme}: {} bytes of {}", answer.len(), asked.len());
            });
        }
    });
    assert_eq!(far.next("link")["up"], true);
    for end in [&near, &far] {
        let mut sent: Vec<u64> = (0..4)
            .map(|_| {
                let event = end.next("end");
                assert!(event["error"].is_null(), "{event}");
                assert_eq!(event["sent"], event["received"]);
                event["sent"].as_u64().unwrap() - length as u64
            })
            .collect();
        sent.sort_unstable();
        assert_eq!(sent, [0, 1, 2, 3]);
    }
    near.end().unwrap();
    assert_eq!(far.next("link")["up"], false);
    far.end().unwrap();
}

#[test]
fn streams_arrive_whole_over_every_transport_of_this_machine() {
    for scheme in ["memory", "tcp", "grpc", "zmq", "udp", "ltp"] {
        carries(scheme, &json!({}), 300_000);
    }
}

#[test]
fn a_window_smaller_than_a_read_is_kept() {
    carries("tcp", &json!({"window": 4096}), 100_000);
}

#[test]
fn several_connections_of_one_link_carry_streams() {
    carries("tcp", &json!({"transport": {"streams": 4}}), 1_000_000);
}

#[test]
fn what_the_link_loses_or_damages_is_sent_again() {
    let fault = json!({"loss": 0.2, "corrupt": 0.05, "duplicate": 0.1, "reorder": 0.2});
    carries("memory", &json!({"layers": {"fault": fault}, "seed": 7}), 2_000_000);
    carries("tcp", &json!({"layers": {"fault": {"loss": 0.1}}, "seed": 7}), 2_000_000);
    carries("udp", &json!({"layers": {"fault": {"loss": 0.1}}, "seed": 7}), 300_000);
}

#[test]
fn ltp_and_grpc_carry_streams_through_a_link_that_loses_and_delays() {
    let shape = json!({"rate": 200_000_000, "delay": 0.005, "loss": 0.05});
    let emulate = json!({"up": shape, "down": shape});
    for scheme in ["ltp", "grpc"] {
        carries(scheme, &json!({"layers": {"emulate": emulate}, "seed": 3}), 200_000);
    }
}

#[test]
fn a_program_that_does_not_read_holds_up_nobody_else() {
    let target = target(|mut connection| {
        let mut first = [0];
        if connection.read_exact(&mut first).is_ok() && first == *b"e" {
            connection.write_all(b"echo").unwrap();
        } else {
            let _ = connection.write_all(&vec![1; 32 << 20]); // until it is reset
        }
    });
    let (near, _far) = path("tcp", &target, &json!({"window": 65536}));
    let mut slow = connect(&near);
    slow.write_all(b"s").unwrap();
    for _ in 0..20 {
        let mut quick = connect(&near);
        quick.write_all(b"e").unwrap();
        let mut answer = Vec::new();
        quick.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"echo");
    }
    let mut all = Vec::new();
    slow.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), 32 << 20, "it reads in the end");
}

#[test]
fn sixty_four_programs_at_once_share_the_places_there_are() {
    let (near, far) = path("tcp", &reverser(), &json!({"connections": 8}));
    let address = near.address();
    std::thread::scope(|scope| {
        for seed in 0..64 {
            let near = &address;
            scope.spawn(move || {
                let mut asked = question(seed, 20_000);
                let answer = ask(near, &asked);
                asked.reverse();
                assert!(answer == asked);
            });
        }
    });
    for end in [near, far] {
        (0..64).for_each(|_| assert!(end.next("end")["error"].is_null()));
        end.stop.store(true, Ordering::SeqCst);
        assert_eq!(end.next("stopped")["connections"], 64);
        end.end().unwrap();
    }
}

#[test]
fn a_program_that_sends_nothing_is_reset_in_time() {
    for grpc in [false, true] {
        let (near, _far) = path("tcp", &reverser(), &json!({"first_byte": 0.05, "grpc": grpc}));
        let error = connect(&near).read(&mut [0; 4]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        assert_eq!(near.next("end")["error"], "accept: it sent nothing in time");
    }
}

#[test]
fn a_program_may_wait_for_the_server_to_speak_first() {
    let greets = target(|mut connection| connection.write_all(b"welcome").unwrap());
    let (near, _far) = path("tcp", &greets, &json!({}));
    let mut greeting = [0; 7];
    connect(&near).read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"welcome");
}

#[test]
fn a_target_that_refuses_resets_the_program_and_says_so_at_both_ends() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (near, far) = path("tcp", &nobody, &json!({}));
    let error = connect(&near).read(&mut [0; 9]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    for end in [&near, &far] {
        let error = end.next("end")["error"].as_str().unwrap().to_owned();
        assert!(error.contains(&nobody) && error.contains("refused"), "{error}");
    }
}

#[test]
fn a_reset_at_one_end_is_a_reset_at_the_other() {
    let (sender, seen) = channel();
    let target = target(move |mut connection| {
        connection.write_all(b"hello").unwrap();
        let _ = sender.send(connection.read(&mut [0; 9]).map_err(|e| e.kind()));
    });
    let (near, _far) = path("tcp", &target, &json!({}));
    let program = connect(&near);
    // Closing a connection with unread bytes resets it.
    while program.peek(&mut [0; 5]).unwrap() < 5 {}
    drop(program);
    assert_eq!(seen.recv_timeout(LIMIT).unwrap(), Err(ErrorKind::ConnectionReset));
}

#[test]
fn when_the_far_end_ends_programs_are_reset_and_a_new_one_is_found() {
    let echo = target(|mut connection| {
        let mut buffer = [0; 5];
        while connection.read_exact(&mut buffer).is_ok() {
            let _ = connection.write_all(&buffer);
        }
    });
    let (near, far) = path("tcp", &echo, &json!({}));
    let mut program = connect(&near);
    program.write_all(b"hello").unwrap();
    program.read_exact(&mut [0; 5]).unwrap();
    let listen = far.address();
    far.end().unwrap();
    assert_eq!(program.read(&mut [0; 9]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let why = near.next("end")["error"].as_str().unwrap().to_owned();
    assert!(why.contains("the far end was stopped"), "{why}");
    // A program that connects now waits for the new link.
    let mut waiting = connect(&near);
    waiting.write_all(b"again").unwrap();
    let _far = End::start(&json!({"listen": listen, "to": echo})).unwrap();
    let mut answer = [0; 5];
    waiting.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"again");
}

#[test]
fn only_who_has_the_token_gets_in() {
    let secret = pki::Secret::generate().unwrap();
    let far = json!({"listen": "tcp://127.0.0.1:0", "to": "127.0.0.1:9", "issuer": secret.issuer().to_hex()});
    let far = End::start(&far).unwrap();
    let near = |name: &str, token: Option<String>| {
        let mut config = json!({"listen": "127.0.0.1:0", "via": far.address(), "name": name});
        if let Some(token) = token {
            config["token"] = token.into();
        }
        End::start(&config).map(drop)
    };
    let token = secret.issue(pki::Role::Forward, "site-1").unwrap().to_hex();
    near("site-1", Some(token.clone())).unwrap();
    assert!(near("site-2", Some(token)).unwrap_err().contains("token of \"site-2\" is wrong"));
    let client = secret.issue(pki::Role::Client, "site-1").unwrap().to_hex();
    let why = near("site-1", Some(client)).unwrap_err();
    assert!(why.contains("for the role client") && why.contains("--role forward"), "{why}");
    assert!(near("site-1", None).unwrap_err().contains("neither token nor certificate"));
    let open = json!({"listen": "tcp://0.0.0.0:0", "to": "127.0.0.1:9"});
    assert!(End::start(&open).err().unwrap().contains("thalweg pki init"));
}

#[test]
fn ends_that_are_none_are_told_apart() {
    let config = json!({"listen": "127.0.0.1:0", "via": "tcp://127.0.0.1:9", "timeout": 0});
    let error = End::start(&config).err().unwrap();
    assert!(error.contains("start the server first"), "{error}");
    let config = json!({"listen": "tcp://127.0.0.1:0", "to": "nowhere"});
    assert!(End::start(&config).err().unwrap().contains("host:port"));
}
