//! Any bytes as a life of the block index, beside the model's: the same body as the tests', which run it seeded.
#![no_main]

#[path = "../../state-service/tests/blocks/model.rs"]
mod model;
#[path = "../../state-service/tests/blocks/ops.rs"]
mod ops;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| ops::run(bytes));
