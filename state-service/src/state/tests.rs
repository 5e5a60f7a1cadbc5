//! Traces of the state.
