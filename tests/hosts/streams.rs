//! Streams over real sockets and a real end: what a host reads when the service stops, and that a dead peer keeps nobody out.

use std::time::Duration;

use e2e::proxy::Proxy;
use e2e::raw::Raw;
use e2e::scratch::Scratch;
use e2e::wait_for;
use rustix::process::{Pid, Signal, kill_process};

use crate::example::service;

fn follow(writer: &str) -> String {
    format!("GET /v1/bindings/stream?writer={writer} HTTP/1.1\r\nhost: x\r\n\r\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_service_is_the_last_line_of_a_stream_and_does_not_wait_for_its_reader() {
    let scratch = Scratch::new().unwrap();
    let service = service(&scratch).await;
    let mut host = Raw::connect(service.data()).await.unwrap();
    host.send(follow("host-a")).await.unwrap();
    host.read_until("\"writer\":").await.unwrap();
    let pid = Pid::from_raw(i32::try_from(service.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert!(host.ended().await.unwrap(), "a clean end");
    let text = String::from_utf8_lossy(host.seen()).into_owned();
    assert!(text.contains(r#""closed":"stopping""#), "{text}");
    assert!(text.ends_with("0\r\n\r\n"), "the answer is whole: {text}");
}

/// Its network is cut: the service sees it, and the host's next stream is welcome.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_was_cut_off_may_follow_again() {
    let scratch = Scratch::new().unwrap();
    let service = service(&scratch).await;
    let proxy = Proxy::start(service.data()).await.unwrap();
    let mut host = Raw::connect(proxy.address()).await.unwrap();
    host.send(follow("host-a")).await.unwrap();
    host.read_until("\"writer\":").await.unwrap();
    let mut second = Raw::connect(service.data()).await.unwrap();
    second.send(follow("host-a")).await.unwrap();
    second.read_until("writer_is_streaming").await.unwrap();
    proxy.cut();
    wait_for("the stream's end", async || {
        (service.metric("rankpin_host_streams", &[]).await.ok()? == 0.0).then_some(())
    })
    .await
    .unwrap();
    let mut again = Raw::connect(service.data()).await.unwrap();
    again.send(follow("host-a")).await.unwrap();
    again.read_until("\"writer\":").await.unwrap();
}

/// A line comes though nothing happens: a reader knows that its peer lives.
#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_stream_says_that_it_lives() {
    let scratch = Scratch::new().unwrap();
    let service = service(&scratch).await;
    let mut host = Raw::connect(service.data()).await.unwrap();
    host.send(follow("host-a")).await.unwrap();
    host.read_until("\"writer\":").await.unwrap();
    let lines = |host: &Raw| String::from_utf8_lossy(host.seen()).matches("\"bindings\":[]").count();
    assert_eq!(lines(&host), 1);
    let second = tokio::time::timeout(Duration::from_secs(30), async {
        while lines(&host) < 2 {
            assert!(host.moves().await.unwrap());
        }
    });
    second.await.expect("no second line");
}
