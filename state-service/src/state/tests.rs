//! Traces of the state: a line a command, a line an answer; then properties and sizes.

mod bounds;
mod crowd;
mod fleet;
mod life;
mod merging;
mod storm;
mod versions;
mod world;
