//! Hosts that keep bindings of their own: the Python example against the real service, through a network that fails. No Envoy.

mod applying;
mod example;
mod streams;
