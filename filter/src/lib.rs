//! The filter as Envoy loads it: callbacks become steps of the machines in `routing`, their effects become hostcalls.
//!
//! One module plays three roles, told apart by root id: downstream (decides), upstream (once per attempt) and watch (singleton).
//! Nothing is decided here; what could be wrong about a decision is tested in `routing`, natively.

mod downstream;
mod host;
mod live;
mod roles;
mod root;
mod seats;
mod store;
mod upstream;
mod vm;
mod watch;

use proxy_wasm::traits::RootContext;
use proxy_wasm::types::LogLevel;

proxy_wasm::main! {{
    proxy_wasm::set_log_level(LogLevel::Info);
    proxy_wasm::set_root_context(|id| -> Box<dyn RootContext> { Box::new(root::Root::new(id)) });
}}
