//! Traces of the state: a line a command, a line an answer; then properties and sizes.

mod aborts;
mod bounds;
mod crowd;
mod demands;
mod explaining;
mod fleet;
mod kv;
mod life;
mod merging;
mod named;
mod overload;
mod penalty;
mod phases;
mod pressure;
mod ranks;
mod response_ids;
mod rows;
mod settling;
mod slots;
mod soft;
mod spilling;
mod storm;
mod upload;
mod versions;
mod waiting;
mod world;
