//! Traces of declarations.
