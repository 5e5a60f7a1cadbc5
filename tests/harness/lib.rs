//! What the live tests, the demo and the benches start and look at: a real Envoy, the real service, fake engines, and
//! clients that can be as exact or as rude as a test needs. Owns processes and their folders; asserts nothing itself.
//!
//! No port is fixed anywhere: every listener is bound to port 0 and its address read back. Children die with this process.

pub mod artifacts;
pub mod bootstrap;
pub mod child;
pub mod client;
pub mod engine;
pub mod envoy;
pub mod h2;
pub mod held;
pub mod kept;
pub mod page;
pub mod prometheus;
pub mod proxy;
pub mod raw;
pub mod redis;
pub mod scratch;
pub mod scripted;
pub mod service;
pub mod shared;
pub mod sse;
pub mod wait;
pub mod world;

pub use self::redis::Redis;
pub use bootstrap::{Bootstrap, Steering};
pub use client::{Client, Turn};
pub use engine::{Engine, EngineGroup, EngineSpec, Numbering};
pub use envoy::Envoy;
pub use scripted::Scripted;
pub use service::{Service, ServicePlan};
pub use shared::Shared;
pub use wait::wait_for;
pub use world::{World, WorldPlan};
