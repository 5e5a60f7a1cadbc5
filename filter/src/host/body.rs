//! Bytes of bodies, in the callbacks that see them.

use super::{OK, bytes};

const REQUEST: u32 = 0;
const RESPONSE: u32 = 1;

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn proxy_get_buffer_bytes(
        buffer: u32,
        start: usize,
        max: usize,
        data: *mut *mut u8,
        size: *mut usize,
    ) -> u32;
    fn proxy_set_buffer_bytes(buffer: u32, start: usize, size: usize, data: *const u8, new: usize) -> u32;
}

/// The first `size` bytes that the running callback sees; empty when it sees none.
pub(crate) fn request(size: usize) -> Vec<u8> {
    part(REQUEST, size)
}

/// The same of an answer.
pub(crate) fn response(size: usize) -> Vec<u8> {
    part(RESPONSE, size)
}

fn part(buffer: u32, size: usize) -> Vec<u8> {
    if size == 0 {
        return Vec::new();
    }
    // SAFETY: out-pointers are `bytes`' own.
    bytes(|data, got| unsafe { proxy_get_buffer_bytes(buffer, 0, size, data, got) }).unwrap_or_default()
}

/// Puts `new` in place of everything the running callback sees: Envoy knows no other change that is safe.
pub(crate) fn replace_request(new: &[u8]) -> bool {
    // SAFETY: the slice lives through the call.
    unsafe { proxy_set_buffer_bytes(REQUEST, 0, usize::MAX, new.as_ptr(), new.len()) == OK }
}
