//! Event streams as engines publish them: every recorded sample, what hostile bytes do, and real sockets.

mod decode;
mod gone;
mod hostile;
mod oracle;
mod publisher;
mod samples;
mod service;
mod sockets;
mod state;
mod zmtp;
