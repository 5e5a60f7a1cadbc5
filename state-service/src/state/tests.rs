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
mod settling;
mod slots;
mod soft;
mod storm;
mod upload;
mod versions;
mod world;
