//! The promises that need a real Envoy: the shipped configs, the built filter, the real service, engines on the wire.
//! One file a theme; what can be shown without Envoy is tested elsewhere.

mod affinity;
mod agreement;
mod bad_input;
mod bodies;
mod failover;
mod first_turn;
mod openai_client;
mod policies;
mod service_away;
mod shipped;
mod spoofing;
mod support;
mod topology;
mod upstream_role;
