//! Placement by what engines cache: real Envoy with `envoy/kv.yaml`, the service listening to every rank's events over real ZeroMQ,
//! engines that say how much of a prompt they found.

mod adapters;
mod burst;
mod equal;
mod fleet;
mod load;
mod losses;
mod trace;
