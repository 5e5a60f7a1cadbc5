//! HTTP/1.1 over a bare socket, for what a well-behaved client cannot do: send exact bytes, stop half way, go away, reset.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(30);
/// No answer of a test is larger, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// A connection.
#[derive(Debug)]
pub struct Raw {
    socket: TcpStream,
    seen: Vec<u8>,
}

/// An answer as it came, head and body apart; chunked framing left as it is.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Status line and headers, without the empty line.
    pub head: String,
    /// What followed the empty line.
    pub body: Vec<u8>,
}

impl Answer {
    /// The status code; 0 when the line makes no sense.
    #[must_use]
    pub fn status(&self) -> u16 {
        self.head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
    }

    /// First value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        lines.into_iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

impl Raw {
    /// Connects.
    ///
    /// # Errors
    /// Nobody listens.
    pub async fn connect(to: SocketAddr) -> Result<Self> {
        let socket = TcpStream::connect(to).await.with_context(|| format!("cannot connect to {to}"))?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, seen: Vec::new() })
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// The other side is gone.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> Result<()> {
        timeout(PATIENCE, self.socket.write_all(bytes.as_ref()))
            .await
            .context("the peer takes no bytes")??;
        Ok(())
    }

    /// Reads until `mark` was seen anywhere in what came so far.
    ///
    /// # Errors
    /// The stream ended or stalled before.
    pub async fn read_until(&mut self, mark: &str) -> Result<()> {
        while !contains(&self.seen, mark.as_bytes()) {
            if self.read_some().await? == 0 {
                bail!("the stream ended before {mark:?}: {}", String::from_utf8_lossy(&self.seen));
            }
        }
        Ok(())
    }

    /// What came so far.
    #[must_use]
    pub fn seen(&self) -> &[u8] {
        &self.seen
    }

    /// First value of a header of the answer, once its head came.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<String> {
        let (head, body) = (String::from_utf8_lossy(&self.seen).into_owned(), Vec::new());
        Answer { head, body }.header(name).map(str::to_owned)
    }

    /// Whether the stream still moves: more bytes come after those that lie in the socket already. False once it ended.
    ///
    /// # Errors
    /// It neither moves nor ends in time.
    pub async fn moves(&mut self) -> Result<bool> {
        // The first round may meet old bytes whose arrival was not noticed yet; the second drains them all before it waits.
        for _ in 0..2 {
            while let Ok(read) = self.socket.try_read_buf(&mut self.seen) {
                if read == 0 {
                    return Ok(false);
                }
            }
            match timeout(PATIENCE, self.socket.read_buf(&mut self.seen)).await {
                Err(_) => bail!("the stream neither moves nor ends"),
                Ok(Ok(0) | Err(_)) => return Ok(false),
                Ok(Ok(_)) => {}
            }
        }
        Ok(true)
    }

    /// Reads on until the other side ends or resets the stream; whether it was a clean end.
    ///
    /// # Errors
    /// It does neither in time.
    pub async fn ended(&mut self) -> Result<bool> {
        loop {
            match timeout(PATIENCE, self.socket.read_buf(&mut self.seen)).await {
                Err(_) => bail!("the stream does not end"),
                Ok(Ok(0)) => return Ok(true),
                Ok(Ok(_)) => {}
                Ok(Err(_)) => return Ok(false),
            }
        }
    }

    /// Reads the whole answer; the request must have asked for `connection: close`.
    ///
    /// # Errors
    /// A reset, a stall, or no head at all.
    pub async fn answer(&mut self) -> Result<Answer> {
        while self.read_some().await? > 0 {}
        let text = String::from_utf8_lossy(&self.seen);
        let end = self.seen.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.with_context(|| format!("no answer's head in {text:?}"))?;
        Ok(Answer {
            head: String::from_utf8_lossy(&self.seen[..end]).into_owned(),
            body: self.seen[end + 4..].to_vec(),
        })
    }

    /// Goes away with a TCP reset instead of a FIN.
    ///
    /// # Errors
    /// The socket takes no linger option.
    pub fn reset(self) -> Result<()> {
        self.socket.set_zero_linger()?;
        Ok(())
    }

    async fn read_some(&mut self) -> Result<usize> {
        if self.seen.len() > ANSWER_BYTES_MAX {
            bail!("the answer is over {ANSWER_BYTES_MAX} bytes");
        }
        let read = timeout(PATIENCE, self.socket.read_buf(&mut self.seen)).await;
        Ok(read.with_context(|| format!("no bytes for {} s", PATIENCE.as_secs()))??)
    }
}

/// One request, its answer; `head` is the request line and headers without the empty line, one per line.
///
/// # Errors
/// As [`Raw::connect`], [`Raw::send`] and [`Raw::answer`].
pub async fn exchange(to: SocketAddr, head: &str, body: &[u8]) -> Result<Answer> {
    let mut raw = Raw::connect(to).await?;
    raw.send(request(head, body)).await?;
    raw.answer().await
}

/// The bytes of a request with its length and `connection: close`.
#[must_use]
pub fn request(head: &str, body: &[u8]) -> Vec<u8> {
    let lines: Vec<&str> = head.lines().map(str::trim).collect();
    let mut bytes = lines.join("\r\n").into_bytes();
    let more =
        format!("\r\nhost: rankpin.test\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    bytes.extend_from_slice(more.as_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// The same with a body of unknown length: each part is a chunk.
#[must_use]
pub fn chunked(head: &str, parts: &[&[u8]]) -> Vec<u8> {
    let lines: Vec<&str> = head.lines().map(str::trim).collect();
    let mut bytes = lines.join("\r\n").into_bytes();
    let more = b"\r\nhost: rankpin.test\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    bytes.extend_from_slice(more);
    for part in parts.iter().filter(|part| !part.is_empty()) {
        bytes.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
        bytes.extend_from_slice(part);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(b"0\r\n\r\n");
    bytes
}

fn contains(bytes: &[u8], mark: &[u8]) -> bool {
    bytes.windows(mark.len()).any(|part| part == mark)
}
