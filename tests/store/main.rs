//! The store's client against a real Redis: what its scripts promise to replicas, and what becomes of calls when the server is
//! stopped, killed, empty, locked, or full of another program's data. And replicas of the service on it, as processes.

mod access;
mod away;
mod burst;
mod claims;
mod cluster;
mod failover;
mod follow;
mod foreign;
mod late;
mod lives;
mod merge;
mod model;
mod refused;
mod replicas;
mod snapshot;
mod support;
mod tls;
mod unread;
mod workers;
