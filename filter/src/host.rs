//! The hostcalls we use, each answering with a value instead of a panic. `unsafe` is here and below, and nowhere else.
//!
//! The SDK's own wrappers panic on a status they do not expect, and a panic kills every stream of the VM.
#![allow(unsafe_code, reason = "the ABI is pointers; every wrapper below is safe to call with any argument")]

pub(crate) mod abi;
pub(crate) mod body;
mod metric;

pub(crate) use metric::{counter, gauge, increment, metric_value, record};

use routing::flow::LocalReply;
use routing::header::http;
use routing::pairs;
use routing::time::Timestamp;

const OK: u32 = 0;
const REQUEST_HEADERS: u32 = 0;
const RESPONSE_HEADERS: u32 = 2;
const CALL_RESPONSE_HEADERS: u32 = 6;
const CALL_RESPONSE_BODY: u32 = 4;
const PLUGIN_CONFIGURATION: u32 = 7;
const REQUEST_STREAM: u32 = 0;

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn proxy_get_header_map_value(
        map: u32,
        key: *const u8,
        key_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    fn proxy_get_header_map_pairs(map: u32, data: *mut *mut u8, size: *mut usize) -> u32;
    fn proxy_replace_header_map_value(
        map: u32,
        key: *const u8,
        key_size: usize,
        value: *const u8,
        size: usize,
    ) -> u32;
    fn proxy_remove_header_map_value(map: u32, key: *const u8, key_size: usize) -> u32;
    fn proxy_get_property(path: *const u8, path_size: usize, data: *mut *mut u8, size: *mut usize) -> u32;
    fn proxy_set_property(path: *const u8, path_size: usize, value: *const u8, size: usize) -> u32;
    fn proxy_get_shared_data(
        key: *const u8,
        key_size: usize,
        data: *mut *mut u8,
        size: *mut usize,
        cas: *mut u32,
    ) -> u32;
    fn proxy_set_shared_data(key: *const u8, key_size: usize, value: *const u8, size: usize, cas: u32)
    -> u32;
    fn proxy_get_current_time_nanoseconds(time: *mut u64) -> u32;
    fn proxy_set_tick_period_milliseconds(period: u32) -> u32;
    fn proxy_continue_stream(stream: u32) -> u32;
    fn proxy_set_effective_context(id: u32) -> u32;
    fn proxy_get_buffer_bytes(
        buffer: u32,
        start: usize,
        max: usize,
        data: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    fn proxy_send_local_response(
        status: u32,
        details: *const u8,
        details_size: usize,
        body: *const u8,
        body_size: usize,
        headers: *const u8,
        headers_size: usize,
        grpc_status: i32,
    ) -> u32;
}

/// Runs a call that returns bytes the host allocated through the SDK's allocator (a `Vec` of exactly that size).
fn bytes(call: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> Option<Vec<u8>> {
    let mut data = std::ptr::null_mut();
    let mut size = 0;
    if call(&mut data, &mut size) != OK {
        return None;
    }
    if data.is_null() {
        return Some(Vec::new());
    }
    // SAFETY: the host got `data` from `proxy_on_memory_allocate`, which leaks a `Vec` with this capacity, and filled it.
    Some(unsafe { Vec::from_raw_parts(data, size, size) })
}

fn header(map: u32, name: &str) -> Option<Vec<u8>> {
    // SAFETY: name is a live slice; out-pointers are ours.
    bytes(|data, size| unsafe { proxy_get_header_map_value(map, name.as_ptr(), name.len(), data, size) })
}

/// All headers of the request, as [`routing::pairs::Pairs`] reads them.
pub(crate) fn request_headers() -> Option<Vec<u8>> {
    // SAFETY: out-pointers are ours.
    bytes(|data, size| unsafe { proxy_get_header_map_pairs(REQUEST_HEADERS, data, size) })
}

pub(crate) fn request_header(name: &str) -> Option<Vec<u8>> {
    header(REQUEST_HEADERS, name)
}

pub(crate) fn response_status() -> Option<u16> {
    status(RESPONSE_HEADERS)
}

pub(crate) fn call_status() -> Option<u16> {
    status(CALL_RESPONSE_HEADERS)
}

fn status(map: u32) -> Option<u16> {
    let value = header(map, routing::header::http::STATUS)?;
    std::str::from_utf8(&value).ok()?.parse().ok()
}

pub(crate) fn set_request_header(name: &str, value: &str) {
    // SAFETY: both slices live through the call.
    let _ = unsafe {
        proxy_replace_header_map_value(
            REQUEST_HEADERS,
            name.as_ptr(),
            name.len(),
            value.as_ptr(),
            value.len(),
        )
    };
}

pub(crate) fn set_response_header(name: &str, value: &str) {
    // SAFETY: both slices live through the call.
    let _ = unsafe {
        proxy_replace_header_map_value(
            RESPONSE_HEADERS,
            name.as_ptr(),
            name.len(),
            value.as_ptr(),
            value.len(),
        )
    };
}

/// The answer's `Retry-After`, read only with the statuses it matters with.
pub(crate) fn retry_after(status: u16) -> Option<Vec<u8>> {
    matches!(status, 429 | 503).then(|| header(RESPONSE_HEADERS, http::RETRY_AFTER)).flatten()
}

pub(crate) fn remove_request_header(name: &str) {
    // SAFETY: the slice lives through the call.
    let _ = unsafe { proxy_remove_header_map_value(REQUEST_HEADERS, name.as_ptr(), name.len()) };
}

/// Path parts joined by NUL, as the ABI wants them.
pub(crate) fn property(path: &str) -> Option<Vec<u8>> {
    // SAFETY: as in `header`.
    bytes(|data, size| unsafe { proxy_get_property(path.as_ptr(), path.len(), data, size) })
}

pub(crate) fn text_property(path: &str) -> Option<String> {
    property(path).and_then(|value| String::from_utf8(value).ok())
}

pub(crate) fn set_property(name: &str, value: &str) {
    // SAFETY: both slices live through the call.
    let _ = unsafe { proxy_set_property(name.as_ptr(), name.len(), value.as_ptr(), value.len()) };
}

/// A value of shared data and its compare-and-swap number.
pub(crate) fn shared(key: &str) -> Option<(Vec<u8>, u32)> {
    let mut cas = 0;
    // SAFETY: as in `header`; `cas` is ours.
    let value =
        bytes(|data, size| unsafe { proxy_get_shared_data(key.as_ptr(), key.len(), data, size, &mut cas) })?;
    Some((value, cas))
}

/// Writes shared data; with `cas` other than 0 only if nobody wrote since. Says whether it was written.
pub(crate) fn set_shared(key: &str, value: &[u8], cas: u32) -> bool {
    // SAFETY: both slices live through the call.
    unsafe { proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), cas) == OK }
}

pub(crate) fn now_nanos() -> u64 {
    let mut nanos = 0;
    // SAFETY: `nanos` is ours.
    let _ = unsafe { proxy_get_current_time_nanoseconds(&mut nanos) };
    nanos
}

pub(crate) fn now() -> Timestamp {
    Timestamp(now_nanos() / 1_000_000)
}

pub(crate) fn tick_every(millis: u32) {
    // SAFETY: integers only.
    let _ = unsafe { proxy_set_tick_period_milliseconds(millis) };
}

pub(crate) fn resume_request() {
    // SAFETY: integers only.
    let _ = unsafe { proxy_continue_stream(REQUEST_STREAM) };
}

/// Runs `call` as the root context, so that what it starts outlives the stream `stream`.
pub(crate) fn as_root(root: u32, stream: u32, call: impl FnOnce()) {
    // SAFETY: integers only.
    if unsafe { proxy_set_effective_context(root) } == OK {
        call();
        // SAFETY: integers only.
        let _ = unsafe { proxy_set_effective_context(stream) };
    }
}

pub(crate) fn call_body(max: usize) -> Vec<u8> {
    // SAFETY: as in `header`.
    bytes(|data, size| unsafe { proxy_get_buffer_bytes(CALL_RESPONSE_BODY, 0, max, data, size) })
        .unwrap_or_default()
}

pub(crate) fn plugin_configuration(size: usize) -> Vec<u8> {
    // SAFETY: as in `header`.
    bytes(|data, got| unsafe { proxy_get_buffer_bytes(PLUGIN_CONFIGURATION, 0, size, data, got) })
        .unwrap_or_default()
}

/// Answers the client.
pub(crate) fn answer(reply: &LocalReply) {
    let retry_after = reply.retry_after_s.map(|s| s.to_string());
    let mut headers = vec![(http::CONTENT_TYPE, "application/json")];
    if let Some(seconds) = &retry_after {
        headers.push((http::RETRY_AFTER, seconds));
    }
    respond(reply.status, &headers, reply.body.as_bytes());
}

/// Headers are (name, value) pairs.
fn respond(status: u32, headers: &[(&str, &str)], body: &[u8]) {
    let headers = pairs::write(headers);
    // SAFETY: all slices live through the call.
    let _ = unsafe {
        proxy_send_local_response(
            status,
            std::ptr::null(),
            0,
            body.as_ptr(),
            body.len(),
            headers.as_ptr(),
            headers.len(),
            -1,
        )
    };
}
