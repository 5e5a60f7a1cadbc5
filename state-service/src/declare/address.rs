//! `host:port` as operators write it: IPv4, IPv6 in brackets, or a host name; one spelling of each. Resolves nothing.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Longest host name in bytes (RFC 1035).
const HOST_BYTES_MAX: usize = 253;

/// What an address looks like, for whoever wrote something else.
pub(super) const ADDRESS_ALLOWED: &str = "host:port, or [IPv6]:port";

/// Where an endpoint is dialled.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// Host.
    pub host: Host,
    /// TCP port, never 0.
    pub port: u16,
}

/// Host part of an [`Address`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// A literal address: needs no resolving.
    Ip(IpAddr),
    /// A name, lower case.
    Name(Box<str>),
}

/// Why an address was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// A URL.
    #[error("begins with a scheme, which does not belong there")]
    Scheme,
    /// Something after the port, or a slash elsewhere.
    #[error("has a path, which does not belong there")]
    Path,
    /// No `:port`.
    #[error("has no port")]
    NoPort,
    /// The port is no number in 1..=65535.
    #[error("has a port that is no number in 1..=65535")]
    Port,
    /// Bare IPv6, or brackets around something else.
    #[error("has a colon too many, or brackets around something that is no IPv6 address")]
    Brackets,
    /// No host name either.
    #[error("has a host that is neither an IP address nor a host name")]
    Host,
}

impl Address {
    /// Reads `10.0.0.1:8000`, `[fd00::1]:8000` or `vllm-0.svc:8000`.
    ///
    /// # Errors
    /// [`AddressError`] says which part is wrong.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        if text.contains("://") {
            return Err(AddressError::Scheme);
        }
        if text.contains('/') {
            return Err(AddressError::Path);
        }
        let (host, port) = text.rsplit_once(':').ok_or(AddressError::NoPort)?;
        let host = parse_host(host)?;
        let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        let port =
            digits.then(|| port.parse().ok()).flatten().filter(|p| *p != 0).ok_or(AddressError::Port)?;
        Ok(Self { host, port })
    }

    /// The socket address, when the host needs no resolving.
    #[must_use]
    pub fn socket(&self) -> Option<SocketAddr> {
        match self.host {
            Host::Ip(ip) => Some(SocketAddr::new(ip, self.port)),
            Host::Name(_) => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Ip(ip) => SocketAddr::new(*ip, self.port).fmt(f),
            Host::Name(name) => write!(f, "{name}:{}", self.port),
        }
    }
}

fn parse_host(text: &str) -> Result<Host, AddressError> {
    if let Some(inner) = text.strip_prefix('[') {
        let inner = inner.strip_suffix(']').ok_or(AddressError::Brackets)?;
        let ip = inner.parse::<Ipv6Addr>().map_err(|_| AddressError::Brackets)?;
        // `::ffff:10.0.0.1` is dialled as `10.0.0.1`.
        return Ok(Host::Ip(ip.to_canonical()));
    }
    if text.contains(':') {
        return Err(AddressError::Brackets);
    }
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Ok(Host::Ip(ip));
    }
    // All digits and dots is a mistyped IPv4, not a name.
    let label = |l: &str| {
        !l.is_empty()
            && l.len() <= 63
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    let name = text.len() <= HOST_BYTES_MAX
        && text.split('.').all(label)
        && text.bytes().any(|b| b.is_ascii_alphabetic());
    if name { Ok(Host::Name(text.to_ascii_lowercase().into())) } else { Err(AddressError::Host) }
}
