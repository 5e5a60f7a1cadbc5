//! The promises that need a real Envoy: the shipped configs, the built filter, the real service, engines on the wire.
//! One file a theme; what can be shown without Envoy is tested elsewhere.

mod affinity;
mod agreement;
mod bad_input;
mod bodies;
mod cases;
mod dead_hosts;
mod demands;
mod direct;
mod engines;
mod explained;
mod failures;
mod final_turn;
mod first_turn;
mod gauges;
mod held_bodies;
mod load;
mod mixed;
mod openai_client;
mod overload;
mod panic;
mod phases;
mod policies;
mod ranks;
mod restart;
mod service_away;
mod shipped;
mod soft;
mod sources;
mod spill;
mod spoofing;
mod support;
mod topology;
mod upstream_role;
mod waits;
