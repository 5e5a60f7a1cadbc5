//! The fake engine over real sockets: against a real engine's answers, and every promise its users rely on.

mod binary;
mod control;
mod engines;
mod faults;
mod golden;
mod kv;
mod kv_events;
mod kv_faults;
mod kv_shapes;
mod limits;
mod ranks;
mod split;
mod stored;
mod streams;
mod support;
