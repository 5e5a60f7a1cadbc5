//! Where the store is and how it is used: a URL, checked before anything starts, and a few limits. Connects to nothing.

use super::error::StoreError;
use super::keys::Keys;
use redis::{ConnectionInfo, IntoConnectionInfo, ProtocolVersion};
use routing::time::Millis;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most addresses of a cluster or of sentinels.
const ADDRESSES_MAX: usize = 32;
/// What is said of any scheme but these.
const SCHEMES: &str = "its scheme is none of redis, redis-cluster, redis-sentinel, or with TLS rediss, rediss-cluster, \
                       rediss-sentinel (valkey and valkeys are the same)";

/// Everything the store is opened with.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    pub(super) place: Place,
    pub(super) keys: Keys,
    /// This replica's life, as it writes: never 0.
    pub writer: u64,
    /// How long a call may take.
    pub deadline: Millis,
    /// How long making a connection may take.
    pub connect: Millis,
    /// How often a store that is up is looked at, so that one that is gone or lost its memory is known though nobody asks it.
    pub beat: Millis,
    /// How long a claim lives unless renewed.
    pub claim: Millis,
    /// How long a record is kept beyond its deadline, so that its version is not given again.
    pub linger: Millis,
    /// How long what is shared by all (epoch, log, workers) lives without any replica.
    pub shared_ttl: Millis,
    /// About how many entries the log keeps.
    pub log_entries: u64,
    /// About how long it keeps them.
    pub log_keep: Millis,
    /// A certificate authority to trust in place of the system's, as PEM.
    pub ca: Option<Vec<u8>>,
    /// Whose clock decides.
    pub clock: StoreClock,
}

/// Whose clock decides what is over.
#[derive(Clone, Debug, Default)]
pub enum StoreClock {
    /// The store's own: replicas' clocks never matter.
    #[default]
    Server,
    /// A test's, in ms.
    Given(Arc<AtomicU64>),
}

impl StoreClock {
    /// As scripts take it.
    pub(super) fn argument(&self) -> String {
        match self {
            Self::Server => String::new(),
            Self::Given(now) => now.load(Ordering::SeqCst).to_string(),
        }
    }
}

/// What a URL names.
#[derive(Clone)]
pub(super) enum Place {
    One(ConnectionInfo),
    Cluster(Vec<ConnectionInfo>),
    Sentinels { sentinels: Vec<ConnectionInfo>, master: String, login: ConnectionInfo },
}

impl fmt::Debug for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Addresses only: the rest has passwords in it.
        out.write_str(match self {
            Self::One(_) => "one",
            Self::Cluster(_) => "cluster",
            Self::Sentinels { .. } => "sentinels",
        })?;
        self.servers().iter().try_for_each(|info| write!(out, " {}", info.addr()))
    }
}

impl Place {
    /// Those that the URL names, one at least.
    fn servers(&self) -> &[ConnectionInfo] {
        match self {
            Self::One(info) => std::slice::from_ref(info),
            Self::Cluster(nodes) => nodes,
            Self::Sentinels { sentinels, .. } => sentinels,
        }
    }
}

impl StoreConfig {
    /// Reads a URL. `redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]`, `rediss://` with TLS (`valkey://` and `valkeys://` are the same);
    /// `redis-cluster://…HOST,HOST` and `redis-sentinel://…HOST,HOST/MASTER[/DB]`, with TLS `rediss-…`.
    ///
    /// # Errors
    /// [`StoreError::Config`] says what is wrong, without the URL: there may be a password in it.
    pub fn new(url: &str, prefix: &str, writer: u64) -> Result<Self, StoreError> {
        Ok(Self {
            place: parse(url)?,
            keys: Keys::new(prefix)?,
            writer,
            deadline: Millis(200),
            connect: Millis(1000),
            beat: Millis(1000),
            claim: Millis(5000),
            linger: Millis(600_000),
            shared_ttl: Millis::from_secs(30 * 86_400),
            log_entries: 16_384,
            log_keep: Millis(120_000),
            ca: None,
            clock: StoreClock::Server,
        })
    }

    /// The place, for logs: addresses, no user and no password.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{:?}", self.place)
    }

    /// `HOST:PORT` of the first server that the URL names.
    #[must_use]
    pub fn server(&self) -> Option<String> {
        self.place.servers().first().map(|info| info.addr().to_string())
    }
}

fn parse(url: &str) -> Result<Place, StoreError> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| refused("it has no scheme"))?;
    let (base, kind) = match scheme.split_once('-') {
        None => (scheme, ""),
        Some((base, kind)) => (base, kind),
    };
    if !matches!(base, "redis" | "rediss" | "valkey" | "valkeys") {
        return Err(refused(SCHEMES));
    }
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (login, hosts) = authority.rsplit_once('@').map_or(("", authority), |(login, hosts)| (login, hosts));
    let at = |host: &str, path: &str| {
        let login = if login.is_empty() { String::new() } else { format!("{login}@") };
        info(&format!("{base}://{login}{host}/{path}"))
    };
    match kind {
        "" => Ok(Place::One(at(hosts, path)?)),
        "cluster" => Ok(Place::Cluster(list(hosts, |host| at(host, path))?)),
        "sentinel" => sentinels(hosts, path, at),
        _ => Err(refused(SCHEMES)),
    }
}

fn sentinels(
    hosts: &str,
    path: &str,
    at: impl Fn(&str, &str) -> Result<ConnectionInfo, StoreError>,
) -> Result<Place, StoreError> {
    let (master, database) = path.split_once('/').unwrap_or((path, ""));
    if master.is_empty() {
        return Err(refused("sentinels need the name of their master: …/MASTER"));
    }
    let sentinels = list(hosts, |host| {
        at(if has_port(host) { host.to_owned() } else { format!("{host}:26379") }.as_str(), "")
    })?;
    let first = hosts.split(',').next().unwrap_or_default();
    Ok(Place::Sentinels { sentinels, master: master.to_owned(), login: at(first, database)? })
}

fn has_port(host: &str) -> bool {
    host.rsplit_once(':').is_some_and(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()))
}

fn list<T>(hosts: &str, read: impl Fn(&str) -> Result<T, StoreError>) -> Result<Vec<T>, StoreError> {
    let all: Vec<T> = hosts.split(',').take(ADDRESSES_MAX + 1).map(read).collect::<Result<_, _>>()?;
    if all.len() > ADDRESSES_MAX {
        return Err(refused("it has too many addresses"));
    }
    Ok(all)
}

fn info(url: &str) -> Result<ConnectionInfo, StoreError> {
    // The client's own words could repeat the URL.
    let info =
        url.into_connection_info().map_err(|_| refused("user, host, port or database cannot be read"))?;
    // Answers are then of one shape, and nothing is pushed.
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
    Ok(info.set_redis_settings(settings))
}

fn refused(why: &str) -> StoreError {
    StoreError::Config(format!("the URL of the store cannot be used: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use redis::ConnectionAddr;

    fn place(url: &str) -> Place {
        StoreConfig::new(url, "p", 1).unwrap().place
    }

    #[test]
    fn a_url_with_tls_a_user_and_a_database_is_read() {
        let Place::One(info) = place("rediss://me:p%40ss@store.example:7000/3") else { panic!() };
        assert!(
            matches!(info.addr(), ConnectionAddr::TcpTls { host, port: 7000, insecure: false, .. } if host == "store.example")
        );
        let settings = info.redis_settings();
        assert_eq!((settings.username(), settings.password(), settings.db()), (Some("me"), Some("p@ss"), 3));
        assert!(matches!(place("valkey://h"), Place::One(info) if info.addr().to_string() == "h:6379"));
    }

    #[test]
    fn clusters_and_sentinels_have_lists() {
        assert!(matches!(place("redis-cluster://a:1,b:2"), Place::Cluster(nodes) if nodes.len() == 2));
        let Place::Sentinels { sentinels, master, login } = place("redis-sentinel://u:p@a,b:2/main/4") else {
            panic!()
        };
        let addresses: Vec<_> = sentinels.iter().map(|info| info.addr().to_string()).collect();
        assert_eq!((addresses, master.as_str()), (vec!["a:26379".to_owned(), "b:2".to_owned()], "main"));
        assert_eq!((login.redis_settings().db(), login.redis_settings().username()), (4, Some("u")));
    }

    #[test]
    fn a_url_that_cannot_be_used_is_refused_without_its_password() {
        let many = format!("redis-cluster://{}", "a,".repeat(40));
        for url in [
            "",
            "memory",
            "http://h",
            "redis://:secret@",
            "redis://u:secret@h:port",
            "redis://u:secret@h/x",
            "redis-sentinel://h",
            "redis-ring://h",
            &many,
        ] {
            let error = StoreConfig::new(url, "p", 1).unwrap_err().to_string();
            assert!(error.contains("URL") && !error.contains("secret"), "{url}: {error}");
        }
    }

    #[test]
    fn the_refusal_of_a_scheme_names_those_that_are_taken() {
        for url in ["http://h", "redis-ring://h"] {
            let said = StoreConfig::new(url, "p", 1).unwrap_err().to_string();
            let list = said.split_once("none of ").unwrap_or_default().1;
            let named: Vec<&str> = list.split([' ', ',']).filter(|word| word.starts_with("redis")).collect();
            assert_eq!(named.len(), 6, "{said}");
            for scheme in named.into_iter().chain(["valkey", "valkeys-cluster"]) {
                let path = if scheme.ends_with("-sentinel") { "main" } else { "" };
                assert!(StoreConfig::new(&format!("{scheme}://h/{path}"), "p", 1).is_ok(), "{scheme}");
            }
        }
    }

    #[test]
    fn a_config_shows_no_password() {
        let config = StoreConfig::new("redis://me:secret@h/1", "p", 1).unwrap();
        let shown = format!("{config:?} {}", config.address());
        assert!(shown.contains("h:6379") && !shown.contains("secret"), "{shown}");
    }
}
