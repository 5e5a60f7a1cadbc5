//! A stand-in for a vLLM, SGLang or TensorRT-LLM server without a GPU: real tokens, a real chat template, ranks with prefix caches, and
//! the same bytes on the wire. Shares no code with the router it is used to test.
//!
//! Where a request goes: [`server`](Engine) owns the socket, `route` the body, the record and the faults, `api`
//! the endpoints, `generate` the replies, `ranks` the time, `prefix_cache` the hits and `kv_events` what is told of them.

mod answer;
mod api;
mod ask;
mod body;
mod config;
mod control;
mod door;
mod fault;
mod gauges;
mod generate;
mod json;
mod kv_events;
mod model;
mod multipart;
mod prefill;
mod prefix_cache;
mod printed;
mod rank_ask;
mod rank_header;
mod ranks;
mod record;
mod route;
mod server;
mod shared;
mod space;
mod store;
mod token_cache;

pub use config::{EngineConfig, HashForm, Kind, KvEndpoint, KvEvents, Mode, Numbering, Role, Version};
pub use server::Engine;
