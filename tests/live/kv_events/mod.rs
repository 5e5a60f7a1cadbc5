//! Engines' cache events on the wire: real ZeroMQ between fake engines and `rankpin serve`, which hears, loses, replays and forgets as
//! engines do. No Envoy: what is cached is asked of the service, and computed at the engine's own port.

mod fleet;
mod gone;
mod lifes;
mod order;
mod other_ways;
mod shapes;
mod silence;
