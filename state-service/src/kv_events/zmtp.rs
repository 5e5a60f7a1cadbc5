//! A client's ZeroMQ connection: a SUB or a DEALER that connects over TCP without security, as engines' event sockets want it.
//!
//! The protocol is `omq-proto`'s, without sockets of its own: it refuses what a frame announces beyond [`MESSAGE_BYTES_MAX`] before
//! any memory is reserved, and keeps no more than has come. (`zeromq` reserves what is announced: 2^62 bytes of a publisher that is
//! not ours end the process.) Owns the socket; does not know what a message says, and connects once: who wants a connection again
//! makes a new one, as a new one is a gap in what was heard.

use bytes::{Bytes, BytesMut};
use omq_proto::proto::SocketType;
use omq_proto::proto::command::Command;
use omq_proto::proto::connection::{self, ConnectionConfig, Event};
use omq_proto::{Error, Message};
use rustix::net::sockopt;
use std::io;
use std::time::Duration;
use tokio::net::TcpStream;

/// Longest message, its frames together and a word for each: one that is longer costs the connection.
pub const MESSAGE_BYTES_MAX: usize = 33 << 20;
/// A peer that says nothing is asked by TCP after so long whether it lives, then so often, so many times: one that lost its power says no
/// goodbye, and a subscriber sends nothing that could fail.
const KEEP_ALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_AGAIN: Duration = Duration::from_secs(5);
const KEEP_ALIVE_TIMES: u32 = 3;
/// Read at once.
const READ_BYTES: usize = 64 << 10;

/// What we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Sub,
    Dealer,
}

impl Role {
    const fn kind(self) -> SocketType {
        match self {
            Self::Sub => SocketType::Sub,
            Self::Dealer => SocketType::Dealer,
        }
    }
}

/// A connection that has shaken hands.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    wire: connection::Connection,
    /// What ended it, told after the messages that came before.
    failed: Option<Error>,
}

impl Connection {
    /// Connects to `tcp://host:port`. Has no deadline of its own.
    ///
    /// # Errors
    /// Nobody listens, or it is no such socket.
    pub(super) async fn connect(endpoint: &str, role: Role) -> io::Result<Self> {
        let address = endpoint.strip_prefix("tcp://").ok_or_else(|| wrong("no tcp:// address"))?;
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        keep_alive(&stream)?;
        let config = ConnectionConfig::new(connection::Role::Client, role.kind());
        let wire = connection::Connection::new(config.max_message_size(MESSAGE_BYTES_MAX));
        let mut made = Self { stream, wire, failed: None };
        loop {
            made.flush().await?;
            if let Some(Event::HandshakeSucceeded { .. }) = made.wire.poll_event() {
                return Ok(made);
            }
            made.check()?;
            made.fill().await?;
        }
    }

    /// Asks for the topics that begin so.
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) async fn subscribe(&mut self, topic: &str) -> io::Result<()> {
        let topic = Bytes::copy_from_slice(topic.as_bytes());
        self.wire.send_command(&Command::Subscribe(topic)).map_err(invalid)?;
        self.flush().await
    }

    /// Sends a message. Cancelled half way, the rest goes out with what follows.
    ///
    /// # Errors
    /// The connection is lost.
    pub(super) async fn send(&mut self, frames: &[&[u8]]) -> io::Result<()> {
        let message = Message::multipart(frames.iter().map(|frame| Bytes::copy_from_slice(frame)));
        self.wire.send_message(&message).map_err(invalid)?;
        self.flush().await
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
            self.flush().await?;
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
        // Heartbeats are answered by the codec; nothing else is asked of a client.
        while self.wire.poll_event().is_some() {}
        if self.failed.is_none() && self.wire.has_pending_input() && !self.wire.input_blocked_on_output() {
            self.failed = self.wire.resume_input().err();
        }
        match self.wire.poll_message() {
            Some(message) => {
                Ok(Some((0..message.len()).filter_map(|part| message.part_bytes(part)).collect()))
            }
            None => self.check().map(|()| None),
        }
    }

    fn check(&mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), |error| Err(invalid(error)))
    }

    /// Sends what is to be sent, answers to heartbeats among it.
    async fn flush(&mut self) -> io::Result<()> {
        while self.wire.has_pending_transmit() {
            self.stream.writable().await?;
            match self.stream.try_write(&self.wire.poll_transmit()) {
                Ok(written) => self.wire.advance_transmit(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn fill(&mut self) -> io::Result<()> {
        loop {
            self.stream.readable().await?;
            if self.read()? {
                return Ok(());
            }
        }
    }

    /// Whether something came, or may be gone on with.
    fn read(&mut self) -> io::Result<bool> {
        if !self.wire.accepts_input() {
            // Its heartbeats wait for their answers, and we for the peer to read them.
            return Ok(self.wire.has_pending_transmit());
        }
        // Of its own each time: a thousand idle connections keep no memory.
        let mut buffer = BytesMut::with_capacity(READ_BYTES);
        match self.stream.try_read_buf(&mut buffer) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {
                self.failed = self.wire.handle_input(fitted(buffer)).err();
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEP_ALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE_AGAIN)?;
    Ok(sockopt::set_tcp_keepcnt(stream, KEEP_ALIVE_TIMES)?)
}

/// A message that is kept must not keep a whole buffer.
fn fitted(buffer: BytesMut) -> Bytes {
    if buffer.len() < READ_BYTES / 4 { Bytes::copy_from_slice(&buffer) } else { buffer.freeze() }
}

fn wrong(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

fn invalid(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
