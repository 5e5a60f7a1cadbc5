//! What a request demands of the worker that serves it: endpoints its caller allows, labels, a model.
//!
//! The same in filter and service. Knows neither load nor state; who may demand something is the flow's to judge.

use crate::contract::Removal;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most addresses in an allow-list.
pub const ADDRESSES_MAX: usize = 1024;
/// Most labels in one header.
pub const LABELS_MAX: usize = 32;
/// A label that begins so repels requests that do not require it.
pub const TAINT: char = '!';

/// What a request demands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demands {
    /// `ip:port` of the endpoints that may serve; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// Labels the worker must have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub require: Vec<Label>,
    /// Labels that the worker should have: among candidates those win that have most of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefer: Vec<Label>,
    /// The model asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// A label, with any value or a certain one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// Its name.
    pub key: String,
    /// Its value; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// What a worker offers.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// Models it serves; empty: any.
    pub models: &'a [String],
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Address that would serve the request there; absent where any of its endpoints might, or none is known.
    pub address: Option<&'a str>,
}

impl Demands {
    /// Whether it demands nothing at all. Even then taints repel.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.require.is_empty() && self.prefer.is_empty() && self.model.is_none()
    }

    /// Whether some worker's address or label is asked for, so that not just anybody may serve.
    #[must_use]
    pub const fn is_strict(&self) -> bool {
        !self.addresses.is_empty() || !self.require.is_empty()
    }

    /// Every reason for which this worker may not serve; none when it may.
    #[must_use]
    pub fn refuses(&self, offer: Offer<'_>) -> Vec<Removal> {
        let mut why = Vec::new();
        if !self.allows_model(offer) {
            why.push(Removal::Model);
        }
        if !self.allows_labels(offer.labels) {
            why.push(Removal::Labels);
        }
        if !self.allows_address(offer.address) {
            why.push(Removal::AllowList);
        }
        why
    }

    /// Whether this worker may serve.
    #[must_use]
    pub fn allows(&self, offer: Offer<'_>) -> bool {
        self.allows_model(offer) && self.allows_labels(offer.labels) && self.allows_address(offer.address)
    }

    /// Whether a session that is bound there may go on: taints repel newcomers only.
    #[must_use]
    pub fn keeps(&self, offer: Offer<'_>) -> bool {
        self.allows_model(offer)
            && self.require.iter().all(|label| label.is_in(offer.labels))
            && self.allows_address(offer.address)
    }

    fn allows_model(&self, offer: Offer<'_>) -> bool {
        let Some(model) = &self.model else { return true };
        offer.models.is_empty() || offer.models.iter().any(|served| serves(served, model, offer.labels))
    }

    fn allows_labels(&self, labels: &BTreeMap<String, String>) -> bool {
        let required = self.require.iter().all(|label| label.is_in(labels));
        let repelled = labels.keys().filter_map(|key| key.strip_prefix(TAINT));
        let tolerates = |taint: &str| self.require.iter().any(|label| label.name() == taint);
        required && repelled.into_iter().all(tolerates)
    }

    fn allows_address(&self, address: Option<&str>) -> bool {
        self.addresses.is_empty() || address.is_some_and(|at| self.addresses.iter().any(|a| a == at))
    }

    /// How many preferred labels the worker has.
    #[must_use]
    pub fn preference(&self, labels: &BTreeMap<String, String>) -> usize {
        self.prefer.iter().filter(|label| label.is_in(labels)).count()
    }
}

/// Whether a worker that serves `served` serves `model`: itself, or as `base:adapter` where the adapter is among its labels.
fn serves(served: &str, model: &str, labels: &BTreeMap<String, String>) -> bool {
    let adapter = || {
        let (base, adapter) = model.split_once(':')?;
        (base == served
            && labels.get("lora").is_some_and(|all| all.split(',').any(|one| one.trim() == adapter)))
        .then_some(())
    };
    served == model || adapter().is_some()
}

impl Label {
    fn name(&self) -> &str {
        self.key.strip_prefix(TAINT).unwrap_or(&self.key)
    }

    /// Whether a worker has it; a taint of the same name counts.
    fn is_in(&self, labels: &BTreeMap<String, String>) -> bool {
        let name = self.name();
        let plain = labels.get(name);
        let found = plain.or_else(|| labels.get(&format!("{TAINT}{name}")));
        found.is_some_and(|value| self.value.as_ref().is_none_or(|wanted| wanted == value))
    }

    /// Reads `key=value,key,…`.
    ///
    /// # Errors
    /// One sentence that says what is wrong with the list.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, &'static str> {
        let mut labels = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').map_or((part, None), |(k, v)| (k.trim(), Some(v.trim())));
            if key.is_empty() {
                return Err("a label has no name");
            }
            labels.push(Self { key: key.to_owned(), value: value.map(str::to_owned) });
        }
        if labels.len() > LABELS_MAX { Err("there are too many labels") } else { Ok(labels) }
    }
}

/// Reads `ip:port,ip:port,…`.
///
/// # Errors
/// One sentence that says what is wrong with the list.
pub fn parse_addresses(text: &str) -> Result<Vec<String>, &'static str> {
    let addresses: Vec<String> =
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect();
    if addresses.is_empty() {
        return Err("the list of endpoints is empty");
    }
    if addresses.iter().any(|address| address.parse::<std::net::SocketAddr>().is_err()) {
        return Err("the list of endpoints has one that is no IP:PORT");
    }
    if addresses.len() > ADDRESSES_MAX { Err("there are too many endpoints") } else { Ok(addresses) }
}
