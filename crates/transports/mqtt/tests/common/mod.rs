//! A real Mosquitto for tests: one process with a login and limits of its own. It ends with the test's
//! process.

#![allow(dead_code)] // each test file uses its part

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

use thalweg_transport::{Address, Login, Options, Value};

pub mod relay;

pub const USER: &str = "ada";
const PASSWORD: &str = "correct horse";
/// A shell script that runs the broker. When its standard input ends, which is when the test's process ends,
/// it kills the broker. It repeats that until the broker is gone: a Mosquitto that is still starting may
/// ignore the signal.
const KEEPER: &str = r#""$0" -c "$1" & broker=$!; exec 3<&0
(cat <&3 >/dev/null; while kill $broker; do sleep 0.05; done) 2>/dev/null & wait $broker"#;
const PROGRAMS: [&str; 4] = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];

/// A running broker. Dropping it ends its process and removes its folder.
pub struct Broker {
    pub port: u16,
    folder: PathBuf,
    tls: bool,
    process: Mutex<Option<(Child, ChildStdin)>>,
}

/// The path of a program, or the reason to skip tests that need it.
pub fn program(name: &str) -> Result<PathBuf, String> {
    let places = PROGRAMS.iter().map(|place| Path::new(place).join(name));
    places.into_iter().find(|path| path.exists()).ok_or(format!("{name} is not installed: make system"))
}

impl Broker {
    /// Starts a broker; `more` has lines for its configuration. The error is the reason to skip the test.
    pub fn start(more: &str) -> Result<Self, String> {
        Self::start_with(more, None)
    }

    /// The same with TLS; `tls` has authority, certificate and key in PEM.
    pub fn start_with(more: &str, tls: Option<[&str; 3]>) -> Result<Self, String> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        program("mosquitto")?;
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("thalweg-test-broker-{}-{number}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let passwords = folder.join("passwords");
        fs::write(&passwords, format!("{USER}:{PASSWORD}\n")).unwrap();
        let hashed = Command::new(program("mosquitto_passwd")?).arg("-U").arg(&passwords).status().unwrap();
        assert!(hashed.success());
        let mut lines = format!("{}\n{more}\n", own_lines(&passwords));
        for (name, text) in ["cafile", "certfile", "keyfile"].iter().zip(tls.into_iter().flatten()) {
            fs::write(folder.join(name), text).unwrap();
            lines += &format!("{name} {}\n", folder.join(name).display());
        }
        fs::write(folder.join("rest"), lines).unwrap();
        let mut broker = Self { port: 0, folder, tls: tls.is_some(), process: Mutex::default() };
        while broker.port == 0 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            if broker.run(port) {
                broker.port = port;
            }
        }
        Ok(broker)
    }

    /// Starts the process. Returns false if another program has taken the port.
    fn run(&self, port: u16) -> bool {
        let rest = fs::read_to_string(self.folder.join("rest")).unwrap();
        let path = self.folder.join("mosquitto.conf");
        fs::write(&path, format!("listener {port} 127.0.0.1\n{rest}")).unwrap();
        let mut child = Command::new("sh")
            .args(["-c", KEEPER])
            .arg(program("mosquitto").unwrap())
            .arg(&path)
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let ready = until_running(child.stderr.take().unwrap());
        *self.process.lock().unwrap() = Some((child, stdin));
        if !ready {
            self.stop();
        }
        ready
    }

    /// Ends the process.
    pub fn stop(&self) {
        if let Some((mut child, stdin)) = self.process.lock().unwrap().take() {
            drop(stdin);
            child.wait().unwrap();
        }
    }

    /// Starts the process again at the same port.
    pub fn start_again(&self) {
        assert!(self.run(self.port), "the port was taken while the broker was away");
    }

    /// An address with a job of its own.
    pub fn address(&self) -> Address {
        self.address_at(self.port)
    }

    /// The same at another port, such as that of a relay.
    pub fn address_at(&self, port: u16) -> Address {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let job = format!("test-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let host = if self.tls { "localhost" } else { "127.0.0.1" };
        assert!((host, port).to_socket_addrs().is_ok());
        Address::parse(&format!("mqtt://{host}:{port}/{job}")).unwrap()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop();
        fs::remove_dir_all(&self.folder).unwrap();
    }
}

fn own_lines(passwords: &Path) -> String {
    let user = std::env::var("USER").unwrap_or_else(|_| "root".into());
    let lines = [
        "allow_anonymous false",
        &format!("password_file {}", passwords.display()),
        &format!("user {user}"),
        "persistence false",
        "log_dest stderr",
        "sys_interval 0",
        "set_tcp_nodelay true",
        "max_queued_messages 4096",
    ];
    lines.join("\n")
}

/// Reads the broker's log until it is running; returns false if it ends first. A thread reads on, so that the
/// broker is never blocked.
fn until_running(log: ChildStderr) -> bool {
    let mut lines = BufReader::new(log).lines();
    let ready = lines.by_ref().any(|line| line.unwrap().ends_with(" running"));
    std::thread::spawn(move || lines.for_each(drop));
    ready
}

/// The options of a party with the right login.
pub fn options(own: &[(&str, Value)]) -> Options {
    let login = Login { user: USER.into(), password: PASSWORD.into() };
    let mut options = Options { login: Some(login), ..Options::default() };
    for (name, value) in own {
        options.own = options.own.with(name, value.clone());
    }
    options
}

pub fn version(text: &str) -> (&'static str, Value) {
    ("version", Value::Text(text.into()))
}

pub fn qos(level: u64) -> (&'static str, Value) {
    ("qos", Value::Number(level))
}
