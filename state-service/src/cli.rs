//! The command line: what may be asked and which askings are refused before anything starts. Starts nothing itself.

use crate::auth::{Token, TokenError};
use crate::replay::ReplayArgs;
use crate::service::Followers;
use crate::store::{StoreConfig, StoreError};
use clap::{Args, Parser, Subcommand, ValueEnum};
use routing::hash::{self, Phase};
use routing::id::{Epoch, NameError, PoolName};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Keeps every conversation on the worker and rank that holds its prefix.
#[derive(Debug, Parser)]
#[command(name = "rankpin", version, about)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `rankpin` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the state service.
    Serve(ServeArgs),
    /// Print the session id and rank hash of a session key, as filter and service compute them.
    Hash(HashArgs),
    /// Print what would become of a request, and why: its key, who might serve, who was left out, who was chosen.
    Explain(ExplainArgs),
    /// Replay a recorded trace in simulated time, and print how much of its prompts a placement would have found cached.
    Replay(ReplayArgs),
}

/// How the state service runs.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Where filters and Envoy ask (route, report, watch, xDS). Port 0 takes a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7460")]
    pub data: SocketAddr,
    /// Where operators ask (workers, pools, sessions, metrics). Port 0 takes a free one.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7461")]
    pub control: SocketAddr,
    /// Pools as JSON; without it one pool `default` exists and others spring up with defaults.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Keeps declared workers across restarts in DIR/workers.json; without it they are forgotten.
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// A file with the bearer token that every request must bring (but /healthz); needed for addresses beyond loopback.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Also writes CDS and EDS as files for Envoy's `path_config_source`: DIR/cds.json and DIR/eds-POOL.json.
    #[arg(long, value_name = "DIR")]
    pub xds_dir: Option<PathBuf>,
    /// How often each worker endpoint is probed with GET /health; 0 probes never.
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    pub probe_interval_ms: u64,
    /// How often each engine's own gauges are read (running, waiting, KV usage); 0 reads never.
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    pub scrape_interval_ms: u64,
    /// The store that several replicas share, declared workers included: redis://HOST:PORT, rediss:// with TLS, also redis-cluster:// and redis-sentinel://.
    #[arg(long, value_name = "URL", group = "the_store", conflicts_with_all = ["store_file", "state_dir"])]
    pub store: Option<String>,
    /// The same, from a file: a URL with a password is none of the process list's business.
    #[arg(long, value_name = "FILE", group = "the_store", conflicts_with = "state_dir")]
    pub store_file: Option<PathBuf>,
    /// Lets hosts that send turns by themselves follow bindings and apply their own (docs/HOSTS.md). Not beside a store: one session has
    /// one authority.
    #[arg(long, conflicts_with_all = ["store", "store_file"])]
    pub outside_hosts: bool,
    /// What the names of its keys begin with: one for each fleet in a store.
    #[arg(long, value_name = "NAME", default_value = "rankpin", requires = "the_store")]
    pub store_prefix: String,
    /// A certificate authority to trust for it in place of the system's, as PEM.
    #[arg(long, value_name = "FILE", requires = "the_store")]
    pub store_ca: Option<PathBuf>,
    /// Where other replicas reach the data listener of this one, to read its index of caches when they join. Without it, the address
    /// listened on; where that is every address of the machine, the one by which it reaches the store.
    #[arg(long, value_name = "HOST:PORT", value_parser = address)]
    pub advertise: Option<String>,
    /// Writes the addresses listened on as JSON, by rename, once they are.
    #[arg(long, value_name = "FILE")]
    pub addr_file: Option<PathBuf>,
    /// How long /readyz answers 503 after a SIGTERM before the listeners close, so that balancers notice.
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(0..=3000))]
    pub drain_notice_ms: u64,
    /// How log lines look; RUST_LOG chooses which (default `info`).
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// What to hash.
#[derive(Clone, Debug, Args)]
pub struct HashArgs {
    /// The session key as it stands in the header; surrounding white space is not part of it.
    pub key: String,
    /// The pool the request belongs to.
    #[arg(long, default_value = "default")]
    pub pool: String,
    /// The model, where the listener goes by it (`pool_by` body or header): each model of a session is a session.
    #[arg(long)]
    pub model: Option<String>,
    /// The half of a request, in a pool that is split: each has a binding of its own.
    #[arg(long, value_enum, default_value_t = HalfArg::Aggregated)]
    pub phase: HalfArg,
    /// The filter's `hash_secret`.
    #[arg(long, default_value = "")]
    pub secret: String,
    /// The tenant scope.
    #[arg(long, default_value = "")]
    pub scope: String,
}

/// The halves of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HalfArg {
    /// The pool is not split.
    Aggregated,
    /// The prefill half of a split pool.
    Prefill,
    /// The half that answers, in a split pool.
    Decode,
}

impl HalfArg {
    const fn phase(self) -> Phase {
        match self {
            Self::Aggregated => Phase::Aggregated,
            Self::Prefill => Phase::Prefill,
            Self::Decode => Phase::Decode,
        }
    }
}

/// Which request is explained, by which service.
#[derive(Clone, Debug, Args)]
pub struct ExplainArgs {
    /// The filter's config as JSON; without it the defaults.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A header of the request; may be given often.
    #[arg(long, value_name = "NAME: VALUE")]
    pub header: Vec<String>,
    /// Its body.
    #[arg(long, value_name = "FILE")]
    pub body: Option<PathBuf>,
    /// Its method.
    #[arg(long, default_value = "POST")]
    pub method: String,
    /// Its path.
    #[arg(long, default_value = "/v1/chat/completions")]
    pub path: String,
    /// The pool, whatever the config says of it.
    #[arg(long, value_name = "NAME")]
    pub pool: Option<String>,
    /// The service's control listener.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:7461")]
    pub service: String,
    /// A file with the bearer token of that listener, if it wants one.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Prints the service's answer as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Why `serve` refuses its arguments.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    /// A listener could be reached from other machines and nothing guards it.
    #[error(
        "--{listener} {address} can be reached from other machines: give --token-file FILE, or listen on 127.0.0.1"
    )]
    OpenListener {
        /// `data` or `control`.
        listener: &'static str,
        /// As given.
        address: SocketAddr,
    },
    /// The token file is no use.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// A file of the store's cannot be read.
    #[error("--{argument} {path}: {source}")]
    StoreFile {
        /// Without its dashes.
        argument: &'static str,
        /// As given.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The store's URL or prefix is no use. Says nothing of the URL, which may have a password in it.
    #[error("--store: {0}")]
    Store(#[from] StoreError),
}

impl ServeArgs {
    /// The token all requests must bring, if any.
    ///
    /// # Errors
    /// [`ArgsError`]: a listener beyond loopback without a token, or a useless token file.
    pub fn token(&self) -> Result<Option<Token>, ArgsError> {
        if let Some(path) = &self.token_file {
            return Ok(Some(Token::read(path)?));
        }
        for (listener, address) in [("data", self.data), ("control", self.control)] {
            if !address.ip().to_canonical().is_loopback() {
                return Err(ArgsError::OpenListener { listener, address });
            }
        }
        Ok(None)
    }
}

impl ServeArgs {
    /// Who else keeps the service's bindings.
    #[must_use]
    pub const fn followers(&self) -> Followers {
        match (self.store.is_some() || self.store_file.is_some(), self.outside_hosts) {
            (true, _) => Followers::Replicas,
            (false, true) => Followers::Hosts,
            (false, false) => Followers::Nobody,
        }
    }

    /// The store that this replica, of that life, shares with others; none for the only one.
    ///
    /// # Errors
    /// [`ArgsError`]: a file that cannot be read, or a URL that names no store.
    pub fn shared_store(&self, life: Epoch) -> Result<Option<StoreConfig>, ArgsError> {
        let from_file = self.store_file.as_deref().map(|path| read("store-file", path)).transpose()?;
        let Some(url) = from_file.or_else(|| self.store.clone()) else { return Ok(None) };
        let mut config = StoreConfig::new(url.trim(), &self.store_prefix, life.0)?;
        if let Some(path) = &self.store_ca {
            config.ca = Some(read("store-ca", path)?.into_bytes());
        }
        Ok(Some(config))
    }
}

fn read(argument: &'static str, path: &Path) -> Result<String, ArgsError> {
    std::fs::read_to_string(path).map_err(|source| ArgsError::StoreFile {
        argument,
        path: path.to_path_buf(),
        source,
    })
}

/// The lines `rankpin hash` prints.
///
/// # Errors
/// [`NameError`]: the pool's name breaks a rule.
pub fn hash_lines(args: &HashArgs) -> Result<String, NameError> {
    let pool = PoolName::parse(&args.pool)?;
    let key = args.key.trim().as_bytes();
    let place = args.model.as_ref().map_or_else(|| pool.to_string(), |model| format!("{pool}/{model}"));
    let session =
        hash::session_id(args.secret.as_bytes(), args.scope.as_bytes(), &place, args.phase.phase(), key);
    Ok(format!("session {session}\nrank_hash {}", hash::rank_hash(key).0))
}

fn address(text: &str) -> Result<String, String> {
    crate::declare::Address::parse(text).map(|address| address.to_string()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serve(args: &[&str]) -> ServeArgs {
        let cli = Cli::try_parse_from(["rankpin", "serve"].iter().chain(args)).unwrap();
        match cli.command {
            Command::Serve(args) => args,
            Command::Hash(_) | Command::Explain(_) | Command::Replay(_) => panic!("not serve"),
        }
    }

    #[test]
    fn loopback_needs_no_token() {
        assert!(serve(&[]).token().unwrap().is_none());
        assert!(
            serve(&["--data", "[::1]:0", "--control", "[::ffff:127.0.0.1]:0"]).token().unwrap().is_none()
        );
    }

    #[test]
    fn a_reachable_address_without_a_token_is_refused_with_its_remedy() {
        let refusal = serve(&["--control", "0.0.0.0:7461"]).token().unwrap_err().to_string();
        let expected = "--control 0.0.0.0:7461 can be reached from other machines: give --token-file FILE, or listen on 127.0.0.1";
        assert_eq!(refusal, expected);
    }

    #[test]
    fn hosts_and_a_store_exclude_each_other() {
        let refusal = |args: &[&str]| {
            let words = ["rankpin", "serve"].iter().chain(args);
            Cli::try_parse_from(words).err().map(|error| error.to_string()).unwrap_or_default()
        };
        for other in ["--outside-hosts", "--state-dir=x", "--store-file=x"] {
            let said = refusal(&["--store", "redis://127.0.0.1", other]);
            assert!(said.contains("cannot be used with"), "{other}: {said}");
        }
        assert_eq!(serve(&["--outside-hosts"]).followers(), Followers::Hosts);
        assert_eq!(serve(&["--store", "redis://127.0.0.1"]).followers(), Followers::Replicas);
        assert_eq!(serve(&[]).followers(), Followers::Nobody);
    }

    #[test]
    fn how_a_store_is_used_needs_a_store() {
        let parsed = |args: &[&str]| Cli::try_parse_from(["rankpin", "serve"].iter().chain(args));
        for option in ["--store-prefix=blue", "--store-ca=x"] {
            let said = parsed(&[option]).unwrap_err().to_string();
            assert!(said.contains("--store <URL>|--store-file <FILE>"), "{option}: {said}");
            for store in ["--store=redis://127.0.0.1", "--store-file=x"] {
                assert!(parsed(&[store, option]).is_ok(), "{store} {option}");
            }
        }
    }

    #[test]
    fn the_example_keys_have_the_ranks_of_the_design() {
        let rank = |key: &str| hash::hashed_rank(hash::rank_hash(key.as_bytes()), 4, 4).unwrap().0;
        assert_eq!([rank("session-1"), rank("conv-42"), rank("s")], [5, 6, 7]);
        let args = HashArgs {
            key: " session-1 ".into(),
            pool: "default".into(),
            model: None,
            phase: HalfArg::Aggregated,
            secret: String::new(),
            scope: String::new(),
        };
        let expected = hash::rank_hash(b"session-1").0;
        assert!(hash_lines(&args).unwrap().ends_with(&format!("rank_hash {expected}")));
    }
}
