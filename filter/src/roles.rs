//! What contexts of one plugin share: its config, its root context, and calls to the service.

use crate::host;
use proxy_wasm::hostcalls;
use routing::config::FilterConfig;
use routing::header::http;
use routing::time::Millis;
use std::time::Duration;

/// A configured plugin.
#[derive(Debug)]
pub(crate) struct Plugin {
    pub(crate) config: FilterConfig,
    pub(crate) root: u32,
}

impl Plugin {
    /// Calls the service; `None` when Envoy does not know its cluster or has no host there.
    pub(crate) fn call(&self, method: &str, path: &str, body: Option<&[u8]>, timeout: Millis) -> Option<u32> {
        let token = self.config.service_token.as_ref().map(|token| format!("Bearer {token}"));
        let mut headers = vec![
            (http::METHOD, method),
            (http::PATH, path),
            (http::AUTHORITY, &*self.config.service_cluster),
        ];
        if body.is_some() {
            headers.push((http::CONTENT_TYPE, "application/json"));
        }
        if let Some(token) = &token {
            headers.push((http::AUTHORIZATION, token));
        }
        let timeout = Duration::from_millis(timeout.0);
        hostcalls::dispatch_http_call(&self.config.service_cluster, headers, body, vec![], timeout).ok()
    }

    /// Sends a body as the root context: the stream that caused it may end before the answer.
    pub(crate) fn call_as_root(&self, stream: u32, path: &str, body: &[u8], timeout: Millis) {
        host::as_root(self.root, stream, || {
            // The answer is not waited for: what it tells is told again by the next regular report.
            let _ = self.call("POST", path, Some(body), timeout);
        });
    }
}
