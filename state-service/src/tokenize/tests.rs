//! Prompts from bodies to blocks, on a small model of our own.

mod bodies;
mod engine;
mod hostile;
mod incremental;
mod model;
mod parts;
mod ways;
