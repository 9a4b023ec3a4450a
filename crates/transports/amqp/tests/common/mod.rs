//! A private RabbitMQ node for tests, with ports, folders, cookie, epmd and login of its own. It ends with
//! the test process.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)] // each test binary uses its part; a panic is how tests report

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use ring::digest::{digest, SHA256};
use thalweg_transport::{Identity, Login, Options, Tls};

#[path = "../../../tcp/tests/common/trust.rs"]
mod certificates;
pub use certificates::Trust;

const NODE: &str = "thalweg-test@localhost";
const COOKIE: &str = "thalwegtestcookie";
/// The reason for skipping tests.
pub const MISSING: &str = "rabbitmq-server is not installed; as root: make system";
const USER: &str = "thalweg";
const PASSWORD: &str = "a password of tests";
/// A shell script that runs epmd and the node. It reads its standard input until the test process ends or
/// closes it, and then ends both. The shared node is never dropped, so the script removes the folder if the
/// test process is gone.
const WATCH: &str = r#"
epmd -port "$ERL_EPMD_PORT" -address 127.0.0.1 >/dev/null 2>&1 & epmd=$!
"$SERVER" 2>&1 & server=$!
read -r _
kill "$server"; wait "$server"; kill "$epmd"; wait "$epmd"
if ! kill -0 "$PARENT"; then rm -rf "$HOME"; fi
"#;

pub struct Node {
    pub port: u16,
    secure: u16,
    trust: Trust,
    distribution: u16,
    epmd: u16,
    folder: PathBuf,
    watcher: Option<Child>,
}

/// The path of the server. Debian's wrapper script would change the user, so do not use it. If there is no
/// server, prints why tests are skipped.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::iter::once(PathBuf::from("/usr/lib/rabbitmq/bin"))
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join("rabbitmq-server"))
        .find(|program| program.is_file());
    if found.is_none() {
        println!("skipped: {MISSING}");
    }
    found
}

/// The node that all tests of a process share, since a node takes seconds to start.
pub fn shared() -> Option<&'static Node> {
    static NODE: OnceLock<Option<Node>> = OnceLock::new();
    NODE.get_or_init(|| Node::start("")).as_ref()
}

/// Serialises tests that change the behaviour of the shared node.
pub fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    /// Starts a node; `more` has lines for its configuration. `None` if the server is not installed.
    pub fn start(more: &str) -> Option<Self> {
        let program = program()?;
        for _ in 0..3 {
            let mut node = Self::prepare(more);
            if node.run(&program) {
                return Some(node);
            }
        }
        panic!("rabbitmq-server does not start");
    }

    fn prepare(more: &str) -> Self {
        let ports: Vec<TcpListener> = (0..4).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = ports.iter().map(|p| p.local_addr().unwrap().port()).collect();
        let [port, secure, distribution, epmd] = ports[..] else { unreachable!() };
        let folder = std::env::temp_dir().join(format!("thalweg-amqp-test-{}-{port}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
        let write = |name: &str, text: &str| {
            let mut options = std::fs::OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(folder.join(name)).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        let trust = Trust::new();
        let own = trust.listen(true).tls.unwrap();
        let identity = own.identity.unwrap();
        write("ca.pem", &own.authority);
        write("server.pem", &identity.certificate);
        write("server.key", &identity.key);
        write(
            "rabbitmq.conf",
            &format!(
                "listeners.tcp.1 = 127.0.0.1:{port}\nload_definitions = {0}/definitions.json\nlog.console = true\nlog.file = false\n\
                 disk_free_limit.absolute = 50MB\n{more}\n\
                 listeners.ssl.1 = 127.0.0.1:{secure}\nssl_options.cacertfile = {0}/ca.pem\n\
                 ssl_options.certfile = {0}/server.pem\nssl_options.keyfile = {0}/server.key\n\
                 ssl_options.versions.1 = tlsv1.3\nssl_options.verify = verify_peer\n",
                folder.display(),
            ),
        );
        write("definitions.json", &definitions_text());
        write(".erlang.cookie", COOKIE);
        write("enabled_plugins", "[].\n");
        write("env.conf", "");
        Self { port, secure, trust, distribution, epmd, folder, watcher: None }
    }

    fn run(&mut self, program: &Path) -> bool {
        let at = |name: &str| self.folder.join(name);
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", WATCH])
            .env("SERVER", program)
            .env("PARENT", std::process::id().to_string())
            .env("HOME", &self.folder)
            .env("detached", "yes") // the script replaces itself by the node
            .env("ERL_EPMD_PORT", self.epmd.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODENAME", NODE)
            .env("RABBITMQ_DIST_PORT", self.distribution.to_string())
            .env("RABBITMQ_CONFIG_FILE", at("rabbitmq.conf"))
            .env("RABBITMQ_CONF_ENV_FILE", at("env.conf"))
            .env("RABBITMQ_ADVANCED_CONFIG_FILE", at("advanced.config"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", at("enabled_plugins"))
            .env("RABBITMQ_FEATURE_FLAGS_FILE", at("feature_flags"))
            .env("RABBITMQ_GENERATED_CONFIG_DIR", at("generated"))
            .env("RABBITMQ_MNESIA_BASE", at("mnesia"))
            .env("RABBITMQ_LOG_BASE", at("log"))
            .env("RABBITMQ_PID_FILE", at("pid"))
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut watcher = command.spawn().unwrap();
        let mut lines = BufReader::new(watcher.stdout.take().unwrap()).lines().map_while(Result::ok);
        let ready = lines.by_ref().any(|line| line.contains("Server startup complete") || ended(&line));
        self.watcher = Some(watcher);
        // The node would block if nobody read its output.
        std::thread::spawn(move || lines.for_each(drop));
        ready && std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()
    }

    /// Stops the node in good order.
    pub fn stop(&mut self) {
        if let Some(mut watcher) = self.watcher.take() {
            drop(watcher.stdin.take());
            watcher.wait().unwrap();
        }
    }

    /// Starts a node with the same ports and login, and no memory of the one before.
    pub fn again(&mut self) {
        for kept in ["mnesia", "feature_flags", "log"] {
            let path = self.folder.join(kept);
            let _ = if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) };
        }
        assert!(self.run(&program().unwrap()), "it does not start again");
    }

    /// Lets the node evaluate Erlang expressions, and returns its answer.
    pub fn evaluate(&self, expressions: &str) -> String {
        let mut call = Command::new("/usr/lib/erlang/bin/erl_call");
        let call = call.args(["-address", &format!("localhost:{}", self.distribution), "-c", COOKIE, "-e"]);
        let mut call = call.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        call.stdin.take().unwrap().write_all(format!("{expressions}\n").as_bytes()).unwrap();
        let answer = call.wait_with_output().unwrap();
        String::from_utf8(answer.stdout).unwrap()
    }

    /// Raises or ends RabbitMQ's memory alarm.
    pub fn alarm(&self, raised: bool) {
        let limit = if raised { "{absolute, 1048576}" } else { "0.4" };
        let output = self.evaluate(&format!("vm_memory_monitor:set_vm_memory_high_watermark({limit})."));
        assert!(output.contains("ok"), "{output}");
    }

    /// The node's address with TLS.
    pub fn secure_url(&self) -> String {
        format!("amqp://127.0.0.1:{}", self.secure)
    }

    /// The TLS options of a client.
    pub fn trust(&self, identity: Option<Identity>) -> Tls {
        self.trust.connect(identity).tls.unwrap()
    }

    pub fn url(&self) -> String {
        format!("amqp://127.0.0.1:{}", self.port)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn ended(line: &str) -> bool {
    line.contains("BOOT FAILED") || line.contains("Crash dump")
}

/// One user with all permissions, and no `guest`. RabbitMQ's password hash is the salt, then SHA-256 of salt
/// and password.
fn definitions_text() -> String {
    let salt = *b"salt";
    let hashed = digest(&SHA256, &[&salt[..], PASSWORD.as_bytes()].concat());
    let hash = base64(&[&salt[..], hashed.as_ref()].concat());
    format!(
        r#"{{"users": [{{"name": "{USER}", "password_hash": "{hash}", "tags": "",
            "hashing_algorithm": "rabbit_password_hashing_sha256"}}], "vhosts": [{{"name": "/"}}],
            "permissions": [{{"user": "{USER}", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}}]}}"#
    )
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    bytes
        .chunks(3)
        .flat_map(|three| {
            let number = (0..3).fold(0, |n, i| n << 8 | u32::from(three.get(i).copied().unwrap_or(0)));
            let digit = move |i| char::from(DIGITS[(number >> (18 - 6 * i) & 63) as usize]);
            let some = three.len() + 1;
            (0..4).map(move |i| if i < some { digit(i) } else { '=' })
        })
        .collect()
}

/// The options that certificates are added to.
fn plain() -> Options {
    Options::default()
}

/// The login that the nodes accept.
pub fn login() -> Option<Login> {
    Some(Login { user: USER.into(), password: PASSWORD.into() })
}

/// Options with that login.
pub fn options() -> Options {
    Options { login: login(), ..Options::default() }
}

/// A job's name that no other test uses.
pub fn job() -> String {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    format!("job-{}", NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
}
