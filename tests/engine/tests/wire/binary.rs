//! The binary itself: how it refuses.

use std::net::TcpListener;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

/// Only a failure waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_taken_port_is_told_in_one_line_without_a_backtrace() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fake-engine"));
    command.args(["--listen", &address]).env("RUST_BACKTRACE", "1").stdin(Stdio::null()).kill_on_drop(true);
    let ended = timeout(PATIENCE, command.output()).await.expect("it serves on a taken port").unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.starts_with(&format!("fake-engine: cannot listen on {address}: ")), "{said}");
}
