//! The names in `envoy/*.yaml` are those in `routing::header`, and the filter takes the config text embedded there.

use super::{at, read};
use routing::config::{FilterConfig, Steering, Watcher};
use routing::header::{self, cluster, root};
use serde_json::Value;
use std::collections::BTreeSet;

fn shipped() -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for file in std::fs::read_dir(at("envoy")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|end| end == "yaml") {
            let name = format!("envoy/{}", path.file_name().unwrap().to_str().unwrap());
            let document =
                serde_saphyr::from_str(&read(&name)).unwrap_or_else(|error| panic!("{name}: {error}"));
            found.push((name, document));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(found.len() >= 2, "static.yaml and dynamic.yaml are shipped");
    found
}

/// Calls `see` with every member and every text, wherever they stand.
fn walk<'a>(name: &'a str, value: &'a Value, see: &mut dyn FnMut(&'a str, &'a Value)) {
    see(name, value);
    match value {
        Value::Object(members) => members.iter().for_each(|(name, value)| walk(name, value, see)),
        Value::Array(list) => list.iter().for_each(|value| walk(name, value, see)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Texts of all members of that name.
fn texts<'a>(document: &'a Value, member: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    walk("", document, &mut |name, value| {
        if name == member {
            found.extend(value.as_str());
        }
    });
    found
}

fn own_headers() -> BTreeSet<&'static str> {
    header::STRIPPED.iter().chain(header::TRUSTED).chain(&[header::SPOOFED]).copied().collect()
}

#[test]
fn every_steering_header_is_stripped_first_and_natively() {
    for (file, document) in shipped() {
        let mut managers = 0;
        walk("", &document, &mut |_, value| {
            let Some(kind) = value.get("@type").and_then(Value::as_str) else { return };
            if kind.ends_with(".HttpConnectionManager") {
                managers += 1;
                let early = &value["early_header_mutation_extensions"];
                assert_eq!(texts(early, "remove"), own_headers(), "{file}");
                assert_eq!(texts(early, "key"), [header::SPOOFED].into(), "{file}: what the filter counts");
            }
        });
        assert!(managers > 0, "{file} has no listener for HTTP");
    }
}

#[test]
fn every_header_named_is_one_of_ours_or_a_session_key() {
    for (file, document) in shipped() {
        walk("", &document, &mut |name, value| {
            let Some(text) = value.as_str() else { return };
            if text.starts_with("x-") {
                let known = own_headers().contains(text) || header::SESSION_DEFAULT.contains(&text);
                assert!(known, "{file}: {name}: {text} is not in routing::header");
            }
        });
        let hashed = texts(&document, "header_name");
        assert!(hashed.iter().all(|name| header::SESSION_DEFAULT.contains(name)), "{file}: {hashed:?}");
        assert_eq!(texts(&document, "cluster_header"), BTreeSet::from([header::CLUSTER]), "{file}");
    }
}

#[test]
fn the_endpoint_list_is_read_where_it_is_written() {
    for (file, document) in shipped() {
        let (_, config) = &plugins(&document)[0];
        let sources = {
            let mut found = Vec::new();
            walk("", &document, &mut |name, value| {
                if name == "override_host_sources" && value.is_array() {
                    found.extend(texts(value, "header"));
                }
            });
            found
        };
        let expected =
            if config.steering == Steering::Endpoints { vec![header::ENDPOINTS] } else { Vec::new() };
        assert_eq!(sources, expected, "{file}");
    }
}

/// Root id and parsed config of every plugin that has a config.
fn plugins(document: &Value) -> Vec<(String, FilterConfig)> {
    let mut found = Vec::new();
    walk("", document, &mut |_, value| {
        let Some(root_id) = value.get("root_id").and_then(Value::as_str) else { return };
        if let Some(text) = value.pointer("/configuration/value").and_then(Value::as_str) {
            let config =
                FilterConfig::parse(text.as_bytes()).unwrap_or_else(|errors| panic!("{root_id}:\n{errors}"));
            found.push((root_id.to_owned(), config));
        }
    });
    found
}

#[test]
fn the_filter_takes_every_shipped_config() {
    for (file, document) in shipped() {
        let plugins = plugins(&document);
        assert!(!plugins.is_empty(), "{file} configures no filter");
        let clusters = texts(&document["static_resources"]["clusters"], "name");
        for (root_id, config) in &plugins {
            assert!(clusters.contains(config.service_cluster.as_str()), "{file}: {root_id}");
            assert_eq!(config, &plugins[0].1, "{file}: all roles read one config");
        }
        let watches = plugins.iter().any(|(root_id, _)| root_id == root::WATCH);
        assert_eq!(watches, plugins[0].1.watcher == Watcher::Singleton, "{file}");
    }
}

#[test]
fn plugins_are_named_as_the_filter_knows_them() {
    for (file, document) in shipped() {
        let roots = texts(&document, "root_id");
        let known = BTreeSet::from([root::DOWNSTREAM, root::UPSTREAM, root::WATCH]);
        assert!(roots.is_subset(&known) && roots.contains(root::DOWNSTREAM), "{file}: {roots:?}");
        let endpoints = plugins(&document)[0].1.steering == Steering::Endpoints;
        assert_eq!(roots.contains(root::UPSTREAM), endpoints, "{file}");
        assert_eq!(
            texts(&document, "vm_id"),
            BTreeSet::from([root::DOWNSTREAM]),
            "{file}: roles share one VM"
        );
        let shown = format!("%FILTER_STATE(wasm.{}:PLAIN)%", header::PROPERTY);
        assert!(texts(&document, "inline_string").iter().any(|line| line.contains(&shown)), "{file}");
    }
}

#[test]
fn clusters_are_named_as_the_filter_names_them() {
    for (file, document) in shipped() {
        let clusters: Vec<&Value> =
            document["static_resources"]["clusters"].as_array().unwrap().iter().collect();
        let names: BTreeSet<&str> = clusters.iter().filter_map(|c| c["name"].as_str()).collect();
        for name in &names {
            let prefixed = [cluster::POOL_PREFIX, cluster::WORKER_PREFIX].iter().any(|p| name.starts_with(p));
            assert!(prefixed || [cluster::SERVICE, cluster::DEFAULT].contains(name), "{file}: {name}");
        }
        assert!(names.contains(cluster::SERVICE) && names.contains(cluster::DEFAULT), "{file}: {names:?}");
        let service_names = texts(&document, "service_name");
        assert!(
            service_names.is_subset(&names),
            "{file}: EDS asks under the cluster's own name: {service_names:?}"
        );
    }
}

#[test]
fn names_of_ours_are_lower_case_and_apart() {
    let all: Vec<&str> =
        header::STRIPPED.iter().chain(header::TRUSTED).chain(header::SESSION_DEFAULT).copied().collect();
    let distinct: BTreeSet<&str> = all.iter().copied().collect();
    assert_eq!(distinct.len(), all.len(), "one name twice");
    for name in all {
        assert_eq!(name, name.to_ascii_lowercase(), "Envoy gives names in lower case");
    }
    assert!(header::SESSION_DEFAULT.iter().all(|name| !header::NEVER_A_KEY.contains(name)));
}
