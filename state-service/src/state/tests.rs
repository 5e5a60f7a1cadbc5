//! Traces of the state: a line a command, a line an answer; then properties and sizes.

mod aborts;
mod bounds;
mod crowd;
mod fleet;
mod life;
mod merging;
mod named;
mod penalty;
mod ranks;
mod soft;
mod storm;
mod versions;
mod world;
