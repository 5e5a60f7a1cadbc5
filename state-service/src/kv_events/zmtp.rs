//! ZMTP 3.0 as a client speaks it over TCP without security: a SUB or a DEALER that connects, as engines' event sockets want it.
//!
//! Ours and not a crate's, for one reason: a publisher is a machine we do not own, and those that there are take a frame's announced
//! length for memory to reserve: 2^62 bytes end the process. Here memory grows with what has come, and a message has a limit.
//! Owns bytes and sockets; does not know what a message says, and connects once: who wants a connection again makes a new one.

mod reader;

pub use reader::{FRAMES_MAX, Item, MESSAGE_BYTES_MAX, Reader, Wrong};

use bytes::{Bytes, BytesMut};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Read at once.
const READ_BYTES: usize = 64 << 10;
const GREETING_BYTES: usize = 64;
const COMMAND: u8 = 0x04;
const MORE: u8 = 0x01;
const LONG: u8 = 0x02;

/// What we are, and what the other end has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Sub,
    Dealer,
}

impl Role {
    const fn word(self) -> &'static str {
        match self {
            Self::Sub => "SUB",
            Self::Dealer => "DEALER",
        }
    }

    fn fits(self, peer: &[u8]) -> bool {
        match self {
            Self::Sub => peer == b"PUB" || peer == b"XPUB",
            Self::Dealer => matches!(peer, b"ROUTER" | b"DEALER" | b"REP"),
        }
    }
}

/// A connection that has shaken hands.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    reader: Reader,
    buffer: BytesMut,
}

impl Connection {
    /// Connects to `tcp://host:port`. Has no deadline of its own.
    ///
    /// # Errors
    /// Nobody listens, or it is no such socket.
    pub(super) async fn connect(endpoint: &str, role: Role) -> io::Result<Self> {
        let address = endpoint.strip_prefix("tcp://").ok_or_else(|| wrong("no tcp:// address"))?;
        let mut stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        stream.write_all(&greeting()).await?;
        stream.write_all(&ready(role)).await?;
        let mut theirs = [0; GREETING_BYTES];
        stream.read_exact(&mut theirs).await?;
        check_greeting(&theirs)?;
        let mut made = Self { stream, reader: Reader::default(), buffer: BytesMut::new() };
        loop {
            match made.item()? {
                Some(Item::Command(body)) => {
                    check_ready(role, &body)?;
                    return Ok(made);
                }
                Some(Item::Message(_)) => return Err(wrong("a message before the handshake is over")),
                None => made.fill().await?,
            }
        }
    }

    /// Asks for the topics that begin so.
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) async fn subscribe(&mut self, topic: &str) -> io::Result<()> {
        let frame = [&[1], topic.as_bytes()].concat();
        self.send(&[&frame]).await
    }

    /// Sends a message. Cancelled half way it leaves a torn one: the connection is of no use then.
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) async fn send(&mut self, frames: &[&[u8]]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for (at, frame) in frames.iter().enumerate() {
            let more = if at + 1 < frames.len() { MORE } else { 0 };
            put_frame(&mut bytes, more, frame);
        }
        self.stream.write_all(&bytes).await
    }

    /// The next message. May be cancelled at any time and loses nothing.
    ///
    /// # Errors
    /// The connection is lost, or what came makes no sense.
    pub(super) async fn recv(&mut self) -> io::Result<Vec<Bytes>> {
        loop {
            if let Some(message) = self.message()? {
                return Ok(message);
            }
            self.fill().await?;
        }
    }

    /// A message that has come already.
    ///
    /// # Errors
    /// As of [`Self::recv`].
    pub(super) fn try_recv(&mut self) -> io::Result<Option<Vec<Bytes>>> {
        match self.message()? {
            Some(message) => Ok(Some(message)),
            None if self.read()? => self.message(),
            None => Ok(None),
        }
    }

    fn message(&mut self) -> io::Result<Option<Vec<Bytes>>> {
        loop {
            match self.item()? {
                Some(Item::Message(frames)) => return Ok(Some(frames)),
                Some(Item::Command(body)) => self.answer(&body)?,
                None => return Ok(None),
            }
        }
    }

    fn item(&mut self) -> io::Result<Option<Item>> {
        self.reader.next(&mut self.buffer).map_err(|wrong| io::Error::new(io::ErrorKind::InvalidData, wrong))
    }

    /// A heartbeat is answered; nothing else is asked of a client.
    fn answer(&self, body: &[u8]) -> io::Result<()> {
        let Some(context) = body.strip_prefix(b"\x04PING").and_then(|rest| rest.get(2..)) else {
            return Ok(());
        };
        let mut bytes = Vec::new();
        put_frame(&mut bytes, COMMAND, &[b"\x04PONG", context].concat());
        // A peer that pings and reads nothing has its own pings to miss.
        match self.stream.try_write(&bytes) {
            Ok(written) if written == bytes.len() => Ok(()),
            Ok(_) => Err(wrong("a heartbeat could not be answered")),
            Err(error) => Err(error),
        }
    }

    async fn fill(&mut self) -> io::Result<()> {
        loop {
            if self.buffer.is_empty() {
                // A thousand idle connections keep no memory.
                self.buffer = BytesMut::new();
            }
            self.stream.readable().await?;
            if self.read()? {
                return Ok(());
            }
        }
    }

    /// Whether something came.
    fn read(&mut self) -> io::Result<bool> {
        self.buffer.reserve(READ_BYTES);
        match self.stream.try_read_buf(&mut self.buffer) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn wrong(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    let start = b"\xff\0\0\0\0\0\0\0\0\x7f\x03\0NULL";
    for (to, from) in bytes.iter_mut().zip(start) {
        *to = *from;
    }
    bytes
}

fn check_greeting(bytes: &[u8; GREETING_BYTES]) -> io::Result<()> {
    let [0xff, _, _, _, _, _, _, _, _, signed, major, _, mechanism @ ..] = bytes else {
        return Err(wrong("no ZMTP"));
    };
    match (signed & 1, major, mechanism.starts_with(b"NULL\0")) {
        (1, 3.., true) => Ok(()),
        (1, 3.., false) => Err(wrong("the socket wants authentication")),
        _ => Err(wrong("no ZMTP 3")),
    }
}

fn ready(role: Role) -> Vec<u8> {
    let mut body = b"\x05READY".to_vec();
    put_property(&mut body, "Socket-Type", role.word().as_bytes());
    if role == Role::Dealer {
        put_property(&mut body, "Identity", b"");
    }
    let mut bytes = Vec::new();
    put_frame(&mut bytes, COMMAND, &body);
    bytes
}

fn put_property(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    // Both are literals here, far below any limit.
    out.push(u8::try_from(name.len()).unwrap_or(0));
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(&u32::try_from(value.len()).unwrap_or(0).to_be_bytes());
    out.extend_from_slice(value);
}

fn put_frame(out: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(length) => out.extend_from_slice(&[flags, length]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend_from_slice(&u64::try_from(body.len()).unwrap_or(u64::MAX).to_be_bytes());
        }
    }
    out.extend_from_slice(body);
}

fn check_ready(role: Role, body: &[u8]) -> io::Result<()> {
    let Some(mut rest) = body.strip_prefix(b"\x05READY") else {
        return Err(wrong("the socket refuses us"));
    };
    while let Some((name, value, after)) = property(rest) {
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return if role.fits(value) { Ok(()) } else { Err(wrong("a socket of another kind")) };
        }
        rest = after;
    }
    Err(wrong("a socket that does not say its kind"))
}

/// Name, value, and what follows.
fn property(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(*length))?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (value, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    Some((name, value, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_greeting_and_kind_are_read() {
        check_greeting(&greeting()).unwrap();
        let mut other = greeting();
        other[12..17].copy_from_slice(b"CURVE");
        assert!(check_greeting(&other).unwrap_err().to_string().contains("authentication"));
        assert!(
            check_greeting(b"HTTP/1.1 400 Bad Request\r\n\r\n012345678901234567890123456789012345").is_err()
        );
        let body = &ready(Role::Dealer)[2..];
        check_ready(Role::Dealer, body).unwrap();
        assert!(check_ready(Role::Sub, body).is_err(), "a DEALER publishes nothing");
        for cut in 0..body.len() {
            let _ = check_ready(Role::Dealer, &body[..cut]);
        }
    }
}
