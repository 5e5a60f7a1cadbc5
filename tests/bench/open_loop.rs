//! Requests at a fixed rate, whatever becomes of the answers: each is due at a time of its own and its latency counts from there, so
//! that a slow answer is paid by all it delays. A new session each time. Knows who is asked; judges only that every answer is a 200.

use std::net::SocketAddr;
use std::rc::Rc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, mpsc};
use tokio::task::LocalSet;

use crate::load;

/// Connections open from the start; a request that is due while all are busy waits for one, and that counts.
const CONNECTIONS: usize = 32;
/// From the start of the clock to the first request.
const LEAD: Duration = Duration::from_millis(5);

/// What to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenLoop<'a> {
    pub(crate) to: SocketAddr,
    pub(crate) per_second: u32,
    pub(crate) requests: u32,
    /// Keeps the sessions of runs apart.
    pub(crate) run: &'a str,
}

/// What came of it, in microseconds, ascending.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answered {
    latencies_us: Vec<u32>,
    late_us: Vec<u32>,
}

/// A request and when it is due.
type Due = (u32, Instant);

impl Answered {
    /// Within this time of being due so large a share was answered whole.
    pub(crate) fn within_us(&self, share: f64) -> f64 {
        load::within_us(&self.latencies_us, share)
    }

    /// Within this time of being due so large a share was begun: how well the clock of the load itself was kept.
    pub(crate) fn late_within_us(&self, share: f64) -> f64 {
        load::within_us(&self.late_us, share)
    }
}

impl OpenLoop<'_> {
    /// Sends it all and waits for the answers.
    ///
    /// # Errors
    /// An answer is no 200, or does not come.
    pub(crate) async fn run(self) -> Result<Answered> {
        let body: Rc<str> = load::chat_body(load::BODY_BYTES).into();
        let run: Rc<str> = self.run.into();
        let mut sockets = Vec::new();
        for _ in 0..CONNECTIONS {
            let socket = TcpStream::connect(self.to).await.context("Envoy takes no connection")?;
            socket.set_nodelay(true)?;
            sockets.push(socket);
        }
        let queue = Rc::new(Mutex::new(self.clock()));
        let tasks = LocalSet::new();
        let handles: Vec<_> = sockets
            .into_iter()
            .map(|socket| {
                tasks.spawn_local(speak(socket, Rc::clone(&queue), Rc::clone(&run), Rc::clone(&body)))
            })
            .collect();
        tasks.await;
        let mut answered = Answered::default();
        for handle in handles {
            let own = handle.await??;
            answered.latencies_us.extend(own.latencies_us);
            answered.late_us.extend(own.late_us);
        }
        answered.latencies_us.sort_unstable();
        answered.late_us.sort_unstable();
        ensure!(answered.latencies_us.len() == self.requests as usize, "not every request was sent");
        Ok(answered)
    }

    /// A thread that tells each request when it is due: the runtime's own timer knows only whole milliseconds.
    fn clock(&self) -> mpsc::Receiver<Due> {
        // There is room for all: the clock never waits for answers.
        let (send, receive) = mpsc::channel(self.requests.max(1) as usize);
        let (requests, per_second) = (self.requests, self.per_second.max(1));
        thread::spawn(move || {
            let begun = Instant::now() + LEAD;
            for n in 0..requests {
                let due = begun + due_after(n, per_second);
                thread::sleep(due.saturating_duration_since(Instant::now()));
                if send.try_send((n, due)).is_err() {
                    return;
                }
            }
        });
        receive
    }
}

fn due_after(n: u32, per_second: u32) -> Duration {
    Duration::from_nanos(u64::from(n) * 1_000_000_000 / u64::from(per_second))
}

/// One connection: takes the next request that is due until there are no more.
async fn speak(
    mut socket: TcpStream,
    queue: Rc<Mutex<mpsc::Receiver<Due>>>,
    run: Rc<str>,
    body: Rc<str>,
) -> Result<Answered> {
    let mut own = Answered::default();
    let mut buffer = Vec::new();
    loop {
        let next = queue.lock().await.recv().await;
        let Some((n, due)) = next else { return Ok(own) };
        own.late_us.push(microseconds(due));
        let request = load::request(&format!("new-{run}-{n}"), &body);
        let status = load::exchange(&mut socket, &request, &mut buffer).await?;
        ensure!(status == 200, "request {n} got a {status}: {}", String::from_utf8_lossy(&buffer));
        own.latencies_us.push(microseconds(due));
    }
}

fn microseconds(since: Instant) -> u32 {
    u32::try_from(since.elapsed().as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_due_evenly() {
        assert_eq!(due_after(0, 400), Duration::ZERO);
        assert_eq!(due_after(1, 400), Duration::from_micros(2500));
        assert_eq!(due_after(u32::MAX, 1), Duration::from_secs(u64::from(u32::MAX)));
    }
}
