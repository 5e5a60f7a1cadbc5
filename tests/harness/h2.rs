//! One request over HTTP/2, from the first byte on: bodies in frames, with or without their length.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::Turn;

/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// POSTs JSON on a connection of its own and reads all of the answer.
///
/// # Errors
/// No answer, or not all of it.
pub async fn post(to: SocketAddr, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Result<Turn> {
    timeout(PATIENCE, exchange(to, path, headers, body)).await.context("no answer in time")?
}

async fn exchange(to: SocketAddr, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Result<Turn> {
    let stream = TcpStream::connect(to).await.with_context(|| format!("cannot connect to {to}"))?;
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    // Ends when `sender` and the answer are gone.
    let connection = tokio::spawn(connection);
    let mut request =
        hyper::Request::post(format!("http://{to}{path}")).header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = sender.send_request(request.body(Full::new(Bytes::from(body)))?).await?;
    let (head, body) = answer.into_parts();
    let body = body.collect().await.context("the answer's body broke off")?.to_bytes().to_vec();
    connection.abort();
    Ok(Turn { status: head.status.as_u16(), headers: head.headers, body })
}
