//! Traces of config files.
