//! `rankpin replay`: what a placement would have done with a recorded trace, in simulated time.
//!
//! Reads a trace ([`read`]), plays its requests through the service's own [`crate::state::State`] ([`service`]) against fake engines
//! that cache blocks and publish events as real ones do ([`engine`], [`cache`]), and tells how much of the prompts was found cached
//! and how evenly the slots were loaded ([`figures`]). Knows no network, no clock and no dice: the same arguments give the same
//! figures. What the engines' time is worth is a simple model, said in `docs/REPLAY.md`.

mod args;
mod cache;
mod driver;
mod engine;
mod error;
mod figures;
mod mooncake;
mod read;
mod service;
#[cfg(test)]
mod tests;
mod trace;
mod weka;

pub use args::{AffinityArg, Format, PolicyArg, ReplayArgs};
pub use error::ReplayError;
pub use figures::Figures;

/// Replays the trace that is asked for.
///
/// # Errors
/// [`ReplayError`]: the arguments fit no fleet, the trace cannot be read, or the service placed a request nowhere.
pub fn run(args: &ReplayArgs) -> Result<Figures, ReplayError> {
    args.check()?;
    let trace = read::file(&args.trace, args.format, args.spread())?;
    driver::Driver::new(args, &trace)?.run()
}
