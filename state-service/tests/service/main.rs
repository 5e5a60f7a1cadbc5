//! The state service from outside: its routers in this process, and the real binary where its life is the matter.

mod bad_input;
mod binary;
mod bindings;
mod control;
mod data;
mod discovery;
mod explain;
mod kv;
mod listener;
mod pages;
mod probes;
mod restart;
mod scrapes;
mod support;
mod told;
