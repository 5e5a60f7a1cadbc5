//! A worker whose every byte the test decides: sees what arrives as it arrives, answers when told. For what a fake engine
//! cannot show, such as a body that passes before it is complete, or a stream that is held open.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);
const CHUNK_BYTES: usize = 64 << 10;
const HEAD_BYTES_MAX: usize = 64 << 10;

/// The worker.
#[derive(Debug)]
pub struct Scripted {
    listener: TcpListener,
    address: SocketAddr,
    served: AtomicUsize,
}

/// A connection from Envoy.
#[derive(Debug)]
pub struct Line {
    socket: TcpStream,
    unread: Vec<u8>,
}

impl Scripted {
    /// Listens.
    ///
    /// # Errors
    /// There is no free port.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address, served: AtomicUsize::new(0) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next connection.
    ///
    /// # Errors
    /// Nobody dials.
    pub async fn accept(&self) -> Result<Line> {
        let accepted = timeout(PATIENCE, self.listener.accept()).await.context("nobody dials the worker")?;
        Ok(Line { socket: accepted?.0, unread: Vec::new() })
    }

    /// Answers every request with an empty object and closes its connection, until dropped.
    ///
    /// # Errors
    /// A request breaks off.
    pub async fn serve(&self) -> Result<()> {
        loop {
            let mut line = Line { socket: self.listener.accept().await?.0, unread: Vec::new() };
            let head = line.head().await?;
            line.body(content_length(&head)).await?;
            line.ok().await?;
            self.served.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many requests [`Scripted::serve`] answered.
    #[must_use]
    pub fn served(&self) -> usize {
        self.served.load(Ordering::Relaxed)
    }
}

impl Line {
    /// Reads a request's head, without its empty line.
    ///
    /// # Errors
    /// It breaks off or is too large.
    pub async fn head(&mut self) -> Result<String> {
        loop {
            if let Some(end) = self.unread.windows(4).position(|four| four == b"\r\n\r\n") {
                let rest = self.unread.split_off(end + 4);
                let head = std::mem::replace(&mut self.unread, rest);
                return Ok(String::from_utf8_lossy(&head[..end]).into_owned());
            }
            if self.unread.len() > HEAD_BYTES_MAX {
                bail!("a head of more than {HEAD_BYTES_MAX} bytes");
            }
            self.more().await?;
        }
    }

    /// Reads so many bytes of the body.
    ///
    /// # Errors
    /// They do not come.
    pub async fn body(&mut self, bytes: usize) -> Result<Vec<u8>> {
        while self.unread.len() < bytes {
            let have = self.unread.len();
            self.more().await.with_context(|| format!("{have} of {bytes} bytes of the body came"))?;
        }
        let rest = self.unread.split_off(bytes);
        Ok(std::mem::replace(&mut self.unread, rest))
    }

    /// Answers 200 with an empty object and announces the connection's end.
    ///
    /// # Errors
    /// Envoy is gone.
    pub async fn ok(&mut self) -> Result<()> {
        self.write("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}").await
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// Envoy is gone.
    pub async fn write(&mut self, bytes: impl AsRef<[u8]>) -> Result<()> {
        self.socket.write_all(bytes.as_ref()).await?;
        Ok(())
    }

    async fn more(&mut self) -> Result<()> {
        let mut chunk = vec![0; CHUNK_BYTES];
        let read = timeout(PATIENCE, self.socket.read(&mut chunk)).await.context("no bytes come")??;
        if read == 0 {
            bail!("the connection ended");
        }
        self.unread.extend_from_slice(&chunk[..read]);
        Ok(())
    }
}

/// The length a head states; 0 when it states none.
#[must_use]
pub fn content_length(head: &str) -> usize {
    header(head, "content-length").and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// First value of a header in a head.
#[must_use]
pub fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}
