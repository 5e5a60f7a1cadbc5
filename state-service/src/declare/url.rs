//! A worker declared by its URL alone: what it is asked for, and what it told. Asks nothing itself (`told.rs` does).

use super::WorkerSpec;
use super::address::{Address, AddressError};
use routing::contract::{Engine, RankNumbering};

/// What the field looks like.
pub(super) const URL_ALLOWED: &str = "http://host:port, without a path";
/// Port of a URL that names none.
const PORT_DEFAULT: &str = "80";

/// What an engine told of itself. What it did not tell is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// What it is.
    pub engine: Option<Engine>,
    /// Its version, as it writes it.
    pub version: Option<String>,
    /// First global rank, and how many.
    pub ranks: Option<(u32, u32)>,
    /// Tokens a block.
    pub block_size: Option<u32>,
}

/// Reads `http://10.0.0.1:8000`; a slash at its end is no path.
///
/// # Errors
/// What is wrong with it.
pub(super) fn parse(text: &str) -> Result<Address, String> {
    if text.starts_with("https://") {
        return Err("is TLS: such a worker cannot be asked, declare its endpoints".to_owned());
    }
    let rest = text.strip_prefix("http://").ok_or_else(|| "does not begin with http://".to_owned())?;
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    match Address::parse(rest) {
        Err(AddressError::NoPort) => Address::parse(&format!("{rest}:{PORT_DEFAULT}")),
        // The colons of a bare `[fd00::1]` are no port's.
        Err(_) if rest.ends_with(']') => Address::parse(&format!("{rest}:{PORT_DEFAULT}")),
        other => other,
    }
    .map_err(|error| error.to_string())
}

/// As it is written.
pub(super) fn to_text(address: &Address) -> String {
    format!("http://{address}")
}

impl WorkerSpec {
    /// Keeps what the engine told an earlier declaration of the same URL: declaring it again is no reason to forget that.
    pub(crate) fn keep_told(&mut self, known: &Self) {
        let address = |spec: &Self| spec.endpoints.first().map(|endpoint| endpoint.address.clone());
        if self.by_url && known.by_url && address(self) == address(known) {
            self.endpoints.clone_from(&known.endpoints);
            self.block_size = known.block_size;
            self.engine = if self.engine == Engine::Vllm { known.engine } else { self.engine };
            self.engine_version = self.engine_version.take().or_else(|| known.engine_version.clone());
        }
    }

    /// Takes what the engine at `address` told. False: it is not declared by that URL.
    pub(crate) fn take_told(&mut self, address: &Address, told: &Told) -> bool {
        let Some(endpoint) = self.endpoints.first_mut().filter(|endpoint| endpoint.address == *address)
        else {
            return false;
        };
        if !self.by_url {
            return false;
        }
        self.engine = told.engine.unwrap_or(self.engine);
        if let Some((start, size)) = told.ranks {
            (endpoint.dp_start, endpoint.dp_size) = (start, size);
            endpoint.rank_numbering = numbering(self.engine, start);
        }
        self.block_size = told.block_size.or(self.block_size);
        self.engine_version = told.version.clone().or_else(|| self.engine_version.take());
        true
    }
}

/// A frontend whose first rank is not 0 is a node of vLLM's hybrid balancing. The one that tells its ranks (Python) counts from 0 there.
const fn numbering(engine: Engine, start: u32) -> RankNumbering {
    match engine {
        Engine::Vllm if start > 0 => RankNumbering::Local,
        Engine::Vllm | Engine::Sglang => RankNumbering::Global,
        Engine::Trtllm | Engine::Custom => RankNumbering::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::declare::parse as declaration;
    use serde_json::{Value, json};

    fn read(body: &Value) -> Result<WorkerSpec, String> {
        declaration(body.to_string().as_bytes(), Some("w1")).map_err(|faults| faults.to_string())
    }

    fn told(start: u32, size: u32) -> Told {
        Told {
            engine: Some(Engine::Vllm),
            version: Some("0.32.0".to_owned()),
            ranks: Some((start, size)),
            block_size: Some(32),
        }
    }

    #[test]
    fn a_url_is_enough_and_what_it_told_is_kept() {
        let mut spec = read(&json!({ "url": "http://10.0.0.1:8000/" })).unwrap();
        assert_eq!(spec.endpoints[0].address.to_string(), "10.0.0.1:8000");
        let address = spec.endpoints[0].address.clone();
        assert!(spec.take_told(&address, &told(0, 2)));
        assert_eq!((spec.rank_start(), spec.rank_count(), spec.block_size), (0, 2, Some(32)));
        assert_eq!(spec.engine_version.as_deref(), Some("0.32.0"));
        assert_eq!(read(&spec.to_json()), Ok(spec.clone()));

        let mut again = read(&json!({ "url": "http://10.0.0.1:8000" })).unwrap();
        again.keep_told(&spec);
        assert_eq!(again, spec);
        let mut elsewhere = read(&json!({ "url": "http://10.0.0.2:8000" })).unwrap();
        elsewhere.keep_told(&spec);
        assert_eq!(elsewhere.rank_count(), 1);
    }

    #[test]
    fn the_second_node_of_a_hybrid_deployment_counts_from_0_on_the_wire() {
        let mut spec = read(&json!({ "url": "http://node-1" })).unwrap();
        let address = spec.endpoints[0].address.clone();
        assert_eq!(address.to_string(), "node-1:80");
        assert!(spec.take_told(&address, &told(4, 4)));
        assert_eq!(spec.endpoints[0].rank_numbering, RankNumbering::Local);
        assert_eq!((spec.rank_start(), spec.rank_count()), (4, 4));
    }

    #[test]
    fn what_declares_its_endpoints_is_told_nothing() {
        let endpoints = json!([{ "address": "10.0.0.1:8000" }]);
        let mut spec = read(&json!({ "endpoints": endpoints, "url": null, "block_size": 32 })).unwrap();
        assert_eq!(spec.block_size, None);
        let address = spec.endpoints[0].address.clone();
        assert!(!spec.take_told(&address, &told(0, 2)));
        assert_eq!(spec.rank_count(), 1);
    }

    #[test]
    fn faults_are_told_at_the_url() {
        for (url, fault) in [
            ("10.0.0.1:8000", "does not begin with http://"),
            ("https://10.0.0.1:8000", "is TLS"),
            ("http://10.0.0.1:8000/v1", "has a path"),
            ("http://10.0.0.1:x", "has a port"),
        ] {
            let faults = read(&json!({ "url": url })).expect_err(url);
            assert!(faults.starts_with("url: ") && faults.contains(fault), "{faults}");
            assert_eq!(faults.lines().count(), 1, "{faults}");
        }
        assert_eq!(read(&json!({ "url": "http://[fd00::1]" })).unwrap().endpoints[0].address.port, 80);
        let both = json!({ "url": "http://10.0.0.1:8000", "endpoints": [{ "address": "10.0.0.2:8000" }] });
        assert!(read(&both).expect_err("accepted").starts_with("url: "));
    }
}
