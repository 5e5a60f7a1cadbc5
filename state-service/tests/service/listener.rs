//! Listeners among peers that connect and say nothing, or not enough.

use crate::support::{Api, PATIENCE};
use state_service::http::control_router;
use state_service::http::listener::{Patience, serve};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";

struct Control {
    address: SocketAddr,
    close: watch::Sender<bool>,
    task: JoinHandle<()>,
}

async fn control(connections_max: usize, head_wait: Duration) -> Control {
    let api = Api::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (close, closing) = watch::channel(false);
    let patience = Patience { connections_max, head_wait, ..Patience::SERVICE };
    let task = tokio::spawn(serve(listener, control_router(&api.service), closing, patience));
    Control { address, close, task }
}

impl Control {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

/// Asks, and reads the whole answer.
async fn ask(stream: &mut TcpStream) {
    stream.write_all(HEALTH).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(br#"{"alive":true}"#) {
        let read = timeout(PATIENCE, stream.read_buf(&mut answer)).await.expect("deaf").unwrap();
        assert!(read > 0, "closed: {}", String::from_utf8_lossy(&answer));
    }
}

/// Waits until the other side closes.
async fn closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    // A reset is a close as well.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("still open");
}

const NEVER: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn silent_connections_however_many_keep_nobody_out() {
    let control = control(8, NEVER).await;
    let mut kept = control.connect().await;
    ask(&mut kept).await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(control.connect().await);
    }
    ask(&mut control.connect().await).await;
    ask(&mut kept).await;
    closed(&mut silent[0]).await;
}

#[tokio::test]
async fn a_head_that_does_not_come_to_its_end_is_not_waited_for() {
    let control = control(8, Duration::from_millis(50)).await;
    let mut silent = control.connect().await;
    let mut half = control.connect().await;
    half.write_all(b"GET /healthz HTTP/1.1\r\nhost").await.unwrap();
    closed(&mut silent).await;
    closed(&mut half).await;
}

#[tokio::test]
async fn a_later_head_is_waited_for_no_longer_than_the_first() {
    let control = control(8, Duration::from_secs(1)).await;
    let mut stream = control.connect().await;
    ask(&mut stream).await;
    ask(&mut stream).await;
    stream.write_all(b"GET /he").await.unwrap();
    closed(&mut stream).await;
}

#[tokio::test]
async fn the_end_waits_for_answers_and_not_for_idle_or_silent_connections() {
    let control = control(8, NEVER).await;
    let mut idle = control.connect().await;
    ask(&mut idle).await;
    let mut silent = control.connect().await;
    let mut asking = control.connect().await;
    let head = b"PUT /v1/workers/w HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n";
    asking.write_all(head).await.unwrap();
    let mut go_on = [0; 25];
    timeout(PATIENCE, asking.read_exact(&mut go_on)).await.expect("the request runs").unwrap();
    control.close.send_replace(true);
    closed(&mut idle).await;
    closed(&mut silent).await;
    assert!(!control.task.is_finished(), "a request runs");
    asking.write_all(b"{}").await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, asking.read_to_string(&mut answer)).await.expect("no answer").unwrap();
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    timeout(PATIENCE, control.task).await.expect("does not end").unwrap();
    assert!(TcpStream::connect(control.address).await.is_err(), "nobody listens");
}
