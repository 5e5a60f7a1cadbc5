//! The block index: cases from the field, properties against a model that knows no trick, memory, hostile input.

mod cases;
mod limits;
mod memory;
mod model;
mod ops;
mod random;
mod tiers;
mod world;
