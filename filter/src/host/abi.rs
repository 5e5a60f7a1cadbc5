//! Where this module and the SDK meet by symbol: the callbacks whose answers the SDK's `Action` cannot say, and the mark that
//! tells which of the shipped modules this is. What is exported here gets its ABI name from the build (`xtask/src/module.rs`).

use proxy_wasm::types::Action;
use routing::config::Module;
use std::cell::Cell;

/// The build writes over the last byte when it makes the modules.
#[unsafe(no_mangle)]
static RANKPIN_MODULE: [u8; 16] = *b"rankpin-module=?";

/// Which of the modules made of one compile this is. Read as it stands in memory: the compiler knows only what was compiled.
pub(crate) fn module() -> Module {
    // SAFETY: a live static of that type.
    let mark = unsafe { std::ptr::read_volatile(&raw const RANKPIN_MODULE) };
    match mark.last() {
        Some(b'1') => Module::Body,
        Some(b'2') => Module::Full,
        _ => Module::Headers,
    }
}

/// Answers of callbacks that stop a request; codes of Envoy's `FilterHeadersStatus` and `FilterDataStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Headers wait and the body comes. Without `allow_on_headers_stop_iteration` the body waits as well.
    UntilBody,
    /// Headers and body wait: the body's sender is held back at Envoy's limit, where [`Stop::UntilBody`] would end in 413.
    All,
    /// A part of the body waits at Envoy; callbacks see only what is new. At Envoy's limit the sender is held back.
    Held,
    /// A part of the body is ours: Envoy keeps nothing of it.
    Taken,
}

impl Stop {
    const fn code(self) -> u32 {
        match self {
            Self::UntilBody => 1,
            Self::Held => 2,
            Self::Taken => 3,
            Self::All => 4,
        }
    }
}

thread_local! {
    /// What the running callback answers in place of its `Action`.
    static SAID: Cell<Option<Stop>> = const { Cell::new(None) };
}

/// Makes the running callback stop the request this way.
pub(crate) fn stop(how: Stop) -> Action {
    SAID.set(Some(how));
    Action::Pause
}

fn said(action: u32) -> u32 {
    SAID.take().map_or(action, Stop::code)
}

unsafe extern "C" {
    // The SDK's own exports, which find the context and call it.
    fn proxy_on_request_headers(context: u32, headers: usize, end: bool) -> u32;
    fn proxy_on_request_body(context: u32, size: usize, end: bool) -> u32;
    fn proxy_on_foreign_function(context: u32, function: u32, size: usize);
}

/// Calls `Context::on_foreign_function` of a living stream, as that stream, from a tick: no Envoy calls it in this module. What
/// the stream starts there is its own; whatever the root starts must be started before.
pub(crate) fn knock(context: u32) {
    // SAFETY: integers only.
    unsafe { proxy_on_foreign_function(context, 0, 0) }
}

#[unsafe(no_mangle)]
extern "C" fn rankpin_on_request_headers(context: u32, headers: usize, end: bool) -> u32 {
    // SAFETY: integers only.
    said(unsafe { proxy_on_request_headers(context, headers, end) })
}

#[unsafe(no_mangle)]
extern "C" fn rankpin_on_request_body(context: u32, size: usize, end: bool) -> u32 {
    // SAFETY: integers only.
    said(unsafe { proxy_on_request_body(context, size, end) })
}
