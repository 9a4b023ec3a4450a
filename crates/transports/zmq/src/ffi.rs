//! The part of libzmq's C interface that this crate uses: contexts, sockets, messages, keys. All unsafe code
//! is here and in `kernel.rs`.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use libsodium_sys as _; // only to link it
use tokio::io::unix::AsyncFd;
use tokio::io::Interest;

/// Maximum number of I/O threads of libzmq in this process.
const IO_THREADS: usize = 4;
/// Maximum number of sockets of this process. A watched socket takes three: itself, and a pair for its
/// monitor.
const MAX_SOCKETS: c_int = 16_384;
/// Size of the block that `raise_bounds_of_malloc` allocates and frees, in bytes. glibc then keeps twice as
/// much freed memory.
const LARGE_BLOCK: usize = 8 << 20;

mod raw {
    use super::{c_char, c_int, c_void};

    /// `zmq_msg_t` has 64 bytes and the alignment of a pointer.
    #[repr(C, align(8))]
    pub(super) struct Msg(pub [u8; 64]);

    extern "C" {
        pub(super) fn zmq_errno() -> c_int;
        pub(super) fn zmq_strerror(code: c_int) -> *const c_char;
        pub(super) fn zmq_ctx_new() -> *mut c_void;
        pub(super) fn zmq_ctx_set(context: *mut c_void, option: c_int, value: c_int) -> c_int;
        pub(super) fn zmq_socket(context: *mut c_void, kind: c_int) -> *mut c_void;
        pub(super) fn zmq_close(socket: *mut c_void) -> c_int;
        pub(super) fn zmq_setsockopt(
            s: *mut c_void,
            option: c_int,
            value: *const c_void,
            len: usize,
        ) -> c_int;
        pub(super) fn zmq_getsockopt(
            s: *mut c_void,
            option: c_int,
            value: *mut c_void,
            len: *mut usize,
        ) -> c_int;
        pub(super) fn zmq_bind(socket: *mut c_void, endpoint: *const c_char) -> c_int;
        pub(super) fn zmq_connect(socket: *mut c_void, endpoint: *const c_char) -> c_int;
        pub(super) fn zmq_socket_monitor(s: *mut c_void, endpoint: *const c_char, events: c_int) -> c_int;
        pub(super) fn zmq_msg_init(msg: *mut Msg) -> c_int;
        pub(super) fn zmq_msg_init_size(msg: *mut Msg, size: usize) -> c_int;
        pub(super) fn zmq_msg_init_data(
            msg: *mut Msg,
            data: *mut c_void,
            size: usize,
            free: extern "C" fn(*mut c_void, *mut c_void),
            hint: *mut c_void,
        ) -> c_int;
        pub(super) fn zmq_msg_data(msg: *const Msg) -> *mut c_void;
        pub(super) fn zmq_msg_size(msg: *const Msg) -> usize;
        pub(super) fn zmq_msg_more(msg: *const Msg) -> c_int;
        pub(super) fn zmq_msg_get(msg: *const Msg, property: c_int) -> c_int;
        pub(super) fn zmq_msg_gets(msg: *const Msg, property: *const c_char) -> *const c_char;
        pub(super) fn zmq_msg_send(msg: *mut Msg, socket: *mut c_void, flags: c_int) -> c_int;
        pub(super) fn zmq_msg_recv(msg: *mut Msg, socket: *mut c_void, flags: c_int) -> c_int;
        pub(super) fn zmq_msg_close(msg: *mut Msg) -> c_int;
        pub(super) fn zmq_z85_encode(text: *mut c_char, data: *const u8, size: usize) -> *mut c_char;
        pub(super) fn zmq_curve_keypair(public: *mut c_char, secret: *mut c_char) -> c_int;
        pub(super) fn zmq_curve_public(public: *mut c_char, secret: *const c_char) -> c_int;
    }
}

/// Socket types, with their numbers in `zmq.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pair = 0,
    Sub = 2,
    Req = 3,
    Rep = 4,
    Dealer = 5,
    Router = 6,
    Pull = 7,
    Push = 8,
    Xpub = 9,
}

/// Socket options, with their numbers in `zmq.h`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Opt {
    RoutingId = 5,
    Subscribe = 6,
    SendBuffer = 11,
    ReceiveBuffer = 12,
    Descriptor = 14,
    Events = 15,
    Linger = 17,
    ReconnectInterval = 18,
    MaxMessage = 22,
    SendHighWater = 23,
    ReceiveHighWater = 24,
    LastEndpoint = 32,
    RouterMandatory = 33,
    Ipv6 = 42,
    CurveServer = 47,
    CurvePublic = 48,
    CurveSecret = 49,
    CurveServerKey = 50,
    HandshakeInterval = 66,
    HeartbeatInterval = 75,
    HeartbeatTimeout = 77,
}

/// A bit of [`Opt::Events`]: there is a message to receive.
pub(crate) const POLL_IN: c_int = 1;
/// A bit of [`Opt::Events`]: a message can be sent.
pub(crate) const POLL_OUT: c_int = 2;
const DONT_WAIT: c_int = 1;
const SEND_MORE: c_int = 2;
const SOURCE_FD: c_int = 2;

struct Context(NonNull<c_void>);

// SAFETY: any number of threads may use a libzmq context at once (zmq_ctx_new(3)).
unsafe impl Send for Context {}
// SAFETY: the same.
unsafe impl Sync for Context {}

/// The error of the last libzmq call on this thread.
fn last_error() -> io::Error {
    // SAFETY: the call has no preconditions.
    let code = unsafe { raw::zmq_errno() };
    if code < 156_384_712 {
        // The code is one of the system's.
        return io::Error::from_raw_os_error(code);
    }
    // SAFETY: for any number, libzmq returns a text that lives as long as the process.
    let text = unsafe { CStr::from_ptr(raw::zmq_strerror(code)) };
    io::Error::other(text.to_string_lossy().into_owned())
}

fn checked(returned: c_int) -> io::Result<()> {
    if returned < 0 {
        Err(last_error())
    } else {
        Ok(())
    }
}

/// Makes glibc's malloc keep the memory of freed messages. By default it returns freed memory to the system
/// whenever there are 128 KiB of it. Each message would then get new pages, and the kernel takes longer to
/// provide them than we take to fill them. Freeing a large block raises this threshold, up to 32 MiB
/// (mallopt(3), M_MMAP_THRESHOLD).
fn raise_bounds_of_malloc() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(LARGE_BLOCK)));
}

/// The context of this process. It is never freed, so messages still go out after their socket was closed.
fn context() -> io::Result<&'static Context> {
    static CONTEXT: OnceLock<Option<Context>> = OnceLock::new();
    let made = CONTEXT.get_or_init(|| {
        // SAFETY: the call has no preconditions; null is checked.
        let context = NonNull::new(unsafe { raw::zmq_ctx_new() })?;
        raise_bounds_of_malloc();
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(IO_THREADS);
        for (option, value) in [(1, threads as c_int), (2, MAX_SOCKETS)] {
            // SAFETY: the context lives, and both options take a number. If a call fails, libzmq keeps its
            // default.
            unsafe { raw::zmq_ctx_set(context.as_ptr(), option, value) };
        }
        Some(Context(context))
    });
    made.as_ref().ok_or_else(|| io::Error::other("libzmq gives no context"))
}

/// A socket. Dropping it closes it, without waiting.
pub(crate) struct RawSocket(NonNull<c_void>);

// SAFETY: a socket may move to another thread with a full fence (zmq_socket(3)). Code that shares a socket
// puts it into a mutex.
unsafe impl Send for RawSocket {}

impl RawSocket {
    pub(crate) fn new(kind: Kind) -> io::Result<Self> {
        // SAFETY: the context lives as long as the process; null is checked.
        let socket = unsafe { raw::zmq_socket(context()?.0.as_ptr(), kind as c_int) };
        NonNull::new(socket).map(Self).ok_or_else(last_error)
    }

    pub(crate) fn set_bytes(&mut self, option: Opt, value: &[u8]) -> io::Result<()> {
        // SAFETY: the socket lives. The length is that of `value`, and libzmq copies the value.
        checked(unsafe {
            raw::zmq_setsockopt(self.0.as_ptr(), option as c_int, value.as_ptr().cast(), value.len())
        })
    }

    pub(crate) fn set(&mut self, option: Opt, value: i32) -> io::Result<()> {
        self.set_bytes(option, &value.to_ne_bytes())
    }

    pub(crate) fn set_long(&mut self, option: Opt, value: i64) -> io::Result<()> {
        self.set_bytes(option, &value.to_ne_bytes())
    }

    pub(crate) fn get(&mut self, option: Opt) -> io::Result<i32> {
        let (mut value, mut length) = (0_i32, size_of::<i32>());
        // SAFETY: the socket lives. The options that callers ask for have an int value, and its length is
        // right.
        checked(unsafe {
            raw::zmq_getsockopt(self.0.as_ptr(), option as c_int, (&raw mut value).cast(), &raw mut length)
        })?;
        Ok(value)
    }

    /// The last endpoint bound, as libzmq writes it.
    pub(crate) fn last_endpoint(&mut self) -> io::Result<String> {
        let mut text = [0_u8; 256];
        let mut length = text.len();
        // SAFETY: the socket lives; libzmq writes at most `length` bytes.
        checked(unsafe {
            raw::zmq_getsockopt(
                self.0.as_ptr(),
                Opt::LastEndpoint as c_int,
                text.as_mut_ptr().cast(),
                &raw mut length,
            )
        })?;
        let text = CStr::from_bytes_until_nul(&text).map_err(io::Error::other)?;
        Ok(text.to_string_lossy().into_owned())
    }

    pub(crate) fn bind(&mut self, endpoint: &str) -> io::Result<()> {
        let endpoint = CString::new(endpoint)?;
        // SAFETY: the socket lives; libzmq copies the text.
        checked(unsafe { raw::zmq_bind(self.0.as_ptr(), endpoint.as_ptr()) })
    }

    pub(crate) fn connect(&mut self, endpoint: &str) -> io::Result<()> {
        let endpoint = CString::new(endpoint)?;
        // SAFETY: the socket lives; libzmq copies the text.
        checked(unsafe { raw::zmq_connect(self.0.as_ptr(), endpoint.as_ptr()) })
    }

    /// Makes events of the socket's connections readable at `endpoint`.
    pub(crate) fn monitor(&mut self, endpoint: &str, events: i32) -> io::Result<()> {
        let endpoint = CString::new(endpoint)?;
        // SAFETY: the socket lives; libzmq copies the text.
        checked(unsafe { raw::zmq_socket_monitor(self.0.as_ptr(), endpoint.as_ptr(), events) })
    }

    /// Sends a part without waiting. On success, libzmq has taken its content.
    pub(crate) fn send(&mut self, part: &mut MessagePart, more: bool) -> io::Result<()> {
        let flags = if more { DONT_WAIT | SEND_MORE } else { DONT_WAIT };
        // SAFETY: socket and message live. On success, libzmq has taken the content and left an empty
        // message.
        checked(unsafe { raw::zmq_msg_send(&raw mut *part.0, self.0.as_ptr(), flags) })
    }

    /// Receives a part without waiting.
    pub(crate) fn receive(&mut self) -> io::Result<MessagePart> {
        let mut part = MessagePart::empty();
        // SAFETY: socket and message live, and the message is initialised.
        checked(unsafe { raw::zmq_msg_recv(&raw mut *part.0, self.0.as_ptr(), DONT_WAIT) })?;
        Ok(part)
    }
}

impl Drop for RawSocket {
    fn drop(&mut self) {
        // SAFETY: nothing else closes the socket. The monitor is switched off first: otherwise libzmq would
        // wait for a reader of its events, which may be gone.
        unsafe {
            raw::zmq_socket_monitor(self.0.as_ptr(), std::ptr::null(), 0);
            raw::zmq_close(self.0.as_ptr());
        }
    }
}

/// A socket's descriptor, for waiting. libzmq owns it, so dropping this does not close it.
pub(crate) struct Bell(c_int);

impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

/// Registers a socket's descriptor with tokio. The caller drops the registration before the socket.
pub(crate) fn watch(socket: &mut RawSocket) -> io::Result<AsyncFd<Bell>> {
    let bell = Bell(socket.get(Opt::Descriptor)?);
    // SAFETY: the descriptor is open because the socket is. The caller drops the registration before the
    // socket is closed.
    unsafe { AsyncFd::register_with_interest(bell, Interest::READABLE) }.map_err(io::Error::from)
}

/// A part of a message. It is boxed, since libzmq may point into it and it must not move.
pub(crate) struct MessagePart(Box<raw::Msg>);

// SAFETY: one thread at a time uses a message. libzmq counts references to shared content atomically.
unsafe impl Send for MessagePart {}
// SAFETY: shared references only read.
unsafe impl Sync for MessagePart {}

impl MessagePart {
    fn empty() -> Self {
        let mut part = Self(Box::new(raw::Msg([0; 64])));
        // SAFETY: the memory is large enough for a message. The call initialises it and cannot fail
        // (zmq_msg_init(3)).
        unsafe { raw::zmq_msg_init(&raw mut *part.0) };
        part
    }

    /// Copies `pieces` into one part, one after the other.
    pub(crate) fn copy_of(pieces: &[&[u8]]) -> io::Result<Self> {
        let length = pieces.iter().map(|piece| piece.len()).sum();
        let mut msg = Box::new(raw::Msg([0; 64]));
        // SAFETY: the memory is large enough for a message. The call initialises it unless it fails.
        checked(unsafe { raw::zmq_msg_init_size(&raw mut *msg, length) })?;
        let part = Self(msg);
        // SAFETY: the message lives.
        let mut place: *mut u8 = unsafe { raw::zmq_msg_data(&raw const *part.0) }.cast();
        for piece in pieces {
            // SAFETY: the message has room for all pieces, and nothing else uses it yet. Its content is
            // uninitialised, so no reference to it is made.
            unsafe {
                std::ptr::copy_nonoverlapping(piece.as_ptr(), place, piece.len());
                place = place.add(piece.len());
            }
        }
        Ok(part)
    }

    /// A part that refers to shared bytes. libzmq keeps a reference as long as it needs the bytes, and copies
    /// nothing.
    pub(crate) fn shared(bytes: Arc<Vec<u8>>) -> io::Result<Self> {
        /// Drops the reference that `shared` gave to libzmq.
        extern "C" fn let_go(_: *mut c_void, hint: *mut c_void) {
            // SAFETY: `hint` came from `Arc::into_raw` below, and libzmq calls this once for it.
            drop(unsafe { Arc::from_raw(hint.cast_const().cast::<Vec<u8>>()) });
        }
        let mut msg = Box::new(raw::Msg([0; 64]));
        let (data, length) = (bytes.as_ptr().cast_mut().cast(), bytes.len());
        let hint = Arc::into_raw(bytes).cast_mut().cast();
        // SAFETY: the memory is large enough for a message, and the call initialises it unless it fails. The
        // message holds an `Arc`, so the bytes neither move nor change until `let_go`. Neither we nor libzmq
        // write to a message's content.
        let done = checked(unsafe { raw::zmq_msg_init_data(&raw mut *msg, data, length, let_go, hint) });
        if let Err(error) = done {
            let_go(data, hint);
            return Err(error);
        }
        Ok(Self(msg))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the message lives.
        let (data, length) =
            unsafe { (raw::zmq_msg_data(&raw const *self.0), raw::zmq_msg_size(&raw const *self.0)) };
        if length == 0 {
            return &[];
        }
        // SAFETY: libzmq returned the content's address and length. Nobody writes to it while it is borrowed.
        unsafe { std::slice::from_raw_parts(data.cast_const().cast(), length) }
    }

    /// Whether more parts of the same message follow.
    pub(crate) fn has_more(&self) -> bool {
        // SAFETY: the message lives.
        unsafe { raw::zmq_msg_more(&raw const *self.0) != 0 }
    }

    /// The descriptor of the connection that brought the message, if libzmq knows it.
    pub(crate) fn source(&self) -> Option<i32> {
        // SAFETY: the message lives.
        let found = unsafe { raw::zmq_msg_get(&raw const *self.0, SOURCE_FD) };
        (found >= 0).then_some(found)
    }

    /// The address of the peer that sent the message.
    pub(crate) fn peer_address(&self) -> Option<String> {
        // SAFETY: the message lives, and the text lives as long as the message.
        let text = unsafe { raw::zmq_msg_gets(&raw const *self.0, c"Peer-Address".as_ptr()) };
        // SAFETY: the pointer is null, which is checked, or a text with a zero byte at its end.
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }
}

impl AsRef<[u8]> for MessagePart {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl Drop for MessagePart {
    fn drop(&mut self) {
        // SAFETY: the message is initialised, and nothing else closes it.
        unsafe { raw::zmq_msg_close(&raw mut *self.0) };
    }
}

/// A CURVE key in Z85, with a zero byte at its end.
pub(crate) type Key = [u8; 41];

/// Encodes the 32 bytes of a key in Z85 (ZeroMQ RFC 32).
pub(crate) fn z85(bytes: &[u8; 32]) -> Key {
    let mut text = [0; 41];
    // SAFETY: 32 bytes give 40 digits, which fit into 41 bytes with a zero byte (zmq_z85_encode(3)).
    unsafe { raw::zmq_z85_encode(text.as_mut_ptr().cast(), bytes.as_ptr(), bytes.len()) };
    text
}

/// Creates a key pair: the public key, then the secret key.
pub(crate) fn key_pair() -> io::Result<(Key, Key)> {
    let (mut public, mut secret) = ([0; 41], [0; 41]);
    // SAFETY: both buffers have 41 bytes, as zmq_curve_keypair(3) requires.
    checked(unsafe { raw::zmq_curve_keypair(public.as_mut_ptr().cast(), secret.as_mut_ptr().cast()) })?;
    Ok((public, secret))
}

/// Computes the public key of a secret key.
pub(crate) fn public_key(secret: &Key) -> io::Result<Key> {
    let mut public = [0; 41];
    // SAFETY: the buffer has 41 bytes. The secret has 40 digits and a zero byte, as zmq_curve_public(3)
    // requires.
    checked(unsafe { raw::zmq_curve_public(public.as_mut_ptr().cast(), secret.as_ptr().cast()) })?;
    Ok(public)
}
