//! Which package may depend on which: the arrows of docs/ARCHITECTURE.md as a table. Looks at what cargo says.

use serde_json::Value;

use super::Finding;

/// A package and what it may depend on.
struct Room {
    name: &'static str,
    /// Our own packages, for code and tests alike.
    ours: &'static [&'static str],
    /// Others, for the shipped code; `None` leaves the choice to the workspace table.
    others: Option<&'static [&'static str]>,
}

/// `filter → routing ← state-service ← tests`; the fake engine and xtask stand apart.
const ROOMS: &[Room] = &[
    Room {
        name: "routing",
        ours: &[],
        others: Some(&["hashbrown", "memchr", "serde", "serde_json", "thiserror", "xxhash-rust"]),
    },
    Room { name: "filter", ours: &["routing"], others: Some(&["log", "proxy-wasm", "serde_json"]) },
    Room { name: "filter-trap", ours: &["routing"], others: Some(&["log", "proxy-wasm", "serde_json"]) },
    Room { name: "state-service", ours: &["routing"], others: None },
    Room { name: "fake-engine", ours: &[], others: None },
    Room { name: "e2e", ours: &["routing", "state-service", "fake-engine"], others: None },
    Room { name: "xtask", ours: &[], others: Some(&["anyhow", "libc", "serde_json", "sha2", "zip"]) },
];

/// Every dependency is one its room may have.
pub(crate) fn arrows_go_one_way(metadata: &Value) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in list(&metadata["packages"]) {
        let (name, path) = (text(&package["name"]), manifest(package, metadata));
        let Some(room) = ROOMS.iter().find(|room| room.name == name) else {
            let text = format!("package `{name}` has no place among the rooms of xtask/src/tidy/doors.rs");
            findings.push(Finding::new(&path, 1, text));
            continue;
        };
        let wrong = list(&package["dependencies"]).iter().filter(|dependency| !allowed(room, dependency));
        findings.extend(wrong.map(|dependency| {
            let text = format!("`{name}` may not depend on `{}`", text(&dependency["name"]));
            Finding::new(&path, 1, text)
        }));
    }
    findings
}

fn allowed(room: &Room, dependency: &Value) -> bool {
    let name = text(&dependency["name"]);
    if !dependency["path"].is_null() {
        return room.ours.contains(&name);
    }
    let only_for_tests = dependency["kind"] == "dev";
    only_for_tests || room.others.is_none_or(|others| others.contains(&name))
}

/// Path of a package's manifest from the root.
fn manifest(package: &Value, metadata: &Value) -> String {
    let path = text(&package["manifest_path"]);
    path.strip_prefix(text(&metadata["workspace_root"])).unwrap_or(path).trim_start_matches('/').to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn findings(package: &str, dependencies: &Value) -> Vec<String> {
        let metadata = json!({"workspace_root": "/w", "packages": [
            {"name": package, "manifest_path": "/w/p/Cargo.toml", "dependencies": dependencies}]});
        let found = arrows_go_one_way(&metadata);
        assert!(found.iter().all(|finding| finding.path == "p/Cargo.toml"));
        found.into_iter().map(|finding| finding.text).collect()
    }

    #[test]
    fn an_arrow_in_the_wrong_direction_is_found() {
        let service = json!([{"name": "state-service", "path": "/w/state-service", "kind": null}]);
        for package in ["routing", "filter", "fake-engine", "xtask"] {
            assert_eq!(findings(package, &service).len(), 1, "{package}");
        }
        assert_eq!(findings("e2e", &service), Vec::<String>::new());
        let as_test = json!([{"name": "routing", "path": "/w/routing", "kind": "dev"}]);
        assert_eq!(findings("fake-engine", &as_test).len(), 1);
    }

    #[test]
    fn a_crate_the_core_may_not_use_is_found() {
        let of = |kind: Value| json!([{"name": "tokio", "kind": kind}, {"name": "serde", "kind": null}]);
        assert_eq!(findings("routing", &of(Value::Null)), ["`routing` may not depend on `tokio`"]);
        assert_eq!(findings("routing", &of(json!("dev"))), Vec::<String>::new());
        assert_eq!(findings("state-service", &of(Value::Null)), Vec::<String>::new());
    }

    #[test]
    fn a_package_without_a_room_is_found() {
        assert_eq!(findings("utils", &json!([])).len(), 1);
    }
}
