//! The fake engine over real sockets: against a real engine's answers, and every promise its users rely on.

mod binary;
mod control;
mod faults;
mod golden;
mod limits;
mod ranks;
mod streams;
mod support;
