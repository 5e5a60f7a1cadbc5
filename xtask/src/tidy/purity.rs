//! What a room may not name: the outside in the pure rooms, header names in the filter, `unsafe` almost anywhere.

use super::Finding;
use super::lexer::{has_word, is_word};
use super::tree::Tree;

/// Rooms without IO, clock, randomness, threads or a log: the same input gives the same answer, anywhere.
pub(crate) const PURE: &[&str] = &["routing/src/", "state-service/src/state/", "state-service/src/state.rs"];

/// Crates a pure room does not name.
const CRATES: &[&str] =
    &["tokio", "axum", "hyper", "reqwest", "proxy_wasm", "rand", "getrandom", "tracing", "log", "libc"];
/// Paths it does not name.
const PATHS: &[&str] =
    &["std::fs", "std::thread", "std::env", "std::process", "std::io", "std::time::Instant"];
/// Words it does not contain, whatever they are imported as. An address of `std::net` is a value like another; a
/// socket is not.
const WORDS: &[&str] = &[
    "SystemTime",
    "Instant::now",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "ToSocketAddrs",
    "println!",
    "eprintln!",
    "dbg!",
    "thread_local!",
];

/// The files that may talk to Envoy by raw calls.
const HOSTCALLS: &[&str] = &["filter/src/host.rs", "filter/src/host/"];
/// Where `unsafe` may make one system call, in a file that names it: a child must die with its parent, and std has
/// no safe way to ask for that.
const CHILDREN: &[&str] =
    &["tests/harness/", "tests/engine/", "state-service/tests/", "xtask/src/process.rs"];
const DIE_WITH_PARENT: &str = "PR_SET_PDEATHSIG";

/// Pure rooms name no runtime, clock, random source, log, file or socket.
pub(crate) fn pure_rooms_name_no_outside(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, source) in PURE.iter().flat_map(|room| tree.rust(room)) {
        let mut say = |line, what: &str| {
            findings.push(Finding::new(&file.path, line, format!("a pure room names `{what}`")));
        };
        for (line, path) in used_paths(&source.code) {
            if let Some(banned) = banned_use(&path) {
                say(line, banned);
            }
        }
        for (line, text) in source.lines().filter(|(_, text)| !text.trim_start().starts_with("use ")) {
            if let Some(banned) = banned_inline(text) {
                say(line, banned);
            }
        }
    }
    findings.sort();
    findings.dedup();
    findings
}

fn banned_use(path: &str) -> Option<&'static str> {
    let path = path.trim_start_matches("::");
    let inside = |prefix: &&&str| {
        path.strip_prefix(**prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    };
    let time = (path.starts_with("std::time::") && path.ends_with("::*")).then_some("std::time::*");
    CRATES.iter().chain(PATHS).find(inside).copied().or(time).or_else(|| words_in(path))
}

fn banned_inline(line: &str) -> Option<&'static str> {
    let names_crate = |name: &&&str| starts_path(line, name);
    let names_path = |path: &&&str| has_word(line, path);
    CRATES
        .iter()
        .find(names_crate)
        .or_else(|| PATHS.iter().find(names_path))
        .copied()
        .or_else(|| words_in(line))
}

fn words_in(line: &str) -> Option<&'static str> {
    let has = |word: &&&str| match word.strip_suffix('!') {
        Some(name) => has_word(line, name) && line.contains(**word),
        None => has_word(line, word),
    };
    WORDS.iter().find(has).copied()
}

/// Whether `name::` begins a path in `line`.
fn starts_path(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let before = line.get(..at).and_then(|text| text.chars().next_back());
        let after = line.get(at + name.len()..).unwrap_or_default();
        !before.is_some_and(|c| is_word(c) || c == ':' || c == '.') && after.starts_with("::")
    })
}

/// Every path of every `use`, groups taken apart, with the line the `use` starts on.
fn used_paths(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let starts = code.get(..at).is_none_or(|before| !before.chars().next_back().is_some_and(is_word));
        let rest = code.get(at + 4..).unwrap_or_default();
        if let Some(end) = rest.find(';').filter(|_| starts) {
            let line = code.get(..at).unwrap_or_default().matches('\n').count() + 1;
            let tree: String =
                rest.get(..end).unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
            expand("", &tree, &mut |path| found.push((line, path)));
        }
    }
    found
}

/// `a::{b, c::{d, e}}` → `a::b`, `a::c::d`, `a::c::e`.
fn expand(prefix: &str, tree: &str, each: &mut impl FnMut(String)) {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree);
        let path = path.strip_suffix("::self").or((path == "self").then_some("")).unwrap_or(path);
        return each(format!("{prefix}{path}").trim_end_matches("::").to_owned());
    };
    let (head, group) = tree.split_at(open);
    let prefix = format!("{prefix}{}", head.trim());
    let inside = group.trim().trim_start_matches('{');
    let inside = inside.strip_suffix('}').unwrap_or(inside);
    split_top(inside).into_iter().for_each(|part| expand(&prefix, part, each));
}

/// Splits at the commas outside of braces.
fn split_top(list: &str) -> Vec<&str> {
    let mut depth = 0usize;
    let parts = list.split(|character| {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        character == ',' && depth == 0
    });
    parts.filter(|part| !part.trim().is_empty()).collect()
}

/// Header names live in `routing/src/header.rs` alone.
pub(crate) fn the_filter_spells_no_header_name(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, source) in tree.rust("filter/src/") {
        for (line, text) in source.strings.iter().filter(|(_, text)| text.to_lowercase().starts_with("x-")) {
            let text = format!("the header name `{text}` belongs to routing/src/header.rs");
            findings.push(Finding::new(&file.path, *line, text));
        }
    }
    findings
}

/// `unsafe` is for the hostcalls, and for the call that ties a child to its parent.
pub(crate) fn unsafe_only_where_allowed(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, source) in tree.rust("") {
        let child = CHILDREN.iter().any(|place| file.path.starts_with(place));
        if HOSTCALLS.iter().any(|place| file.path.starts_with(place))
            || (child && source.code.contains(DIE_WITH_PARENT))
        {
            continue;
        }
        for (line, _) in source.lines().filter(|(_, text)| has_word(text, "unsafe")) {
            findings.push(Finding::new(&file.path, line, "`unsafe` belongs to filter/src/host alone"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(findings: &[Finding]) -> Vec<usize> {
        findings.iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn each_way_to_name_the_outside_is_found() {
        let planted = "//! x\nuse tokio::sync;\nuse std::{collections::BTreeMap, fs};\nuse std::time::{Duration, Instant};\n\
                       fn a() { log::info!(\"\"); }\nfn b() { std::thread::spawn(c); }\nfn c(t: SystemTime) {}\nuse std::net::{IpAddr, TcpStream};\n\
                       fn d() { println!(\"x\"); }\n";
        let tree = Tree::of(&[("routing/src/a.rs", planted)]);
        assert_eq!(lines(&pure_rooms_name_no_outside(&tree)), [2, 3, 4, 5, 6, 7, 8, 9]);
        let tree = Tree::of(&[("state-service/src/state/a.rs", planted)]);
        assert_eq!(pure_rooms_name_no_outside(&tree).len(), 8);
    }

    #[test]
    fn pure_code_and_other_rooms_are_left_alone() {
        let pure = "//! tokio\nuse std::time::Duration;\nuse std::{collections::BTreeMap, net::IpAddr};\n// log::info!\n\
                    fn f(catalog: u8) { catalog::x(); crate::log::y(); \"std::fs\"; self.tracing = 1; }\n";
        assert_eq!(pure_rooms_name_no_outside(&Tree::of(&[("routing/src/a.rs", pure)])), []);
        let tree = Tree::of(&[("state-service/src/http.rs", "use tokio::net;\n")]);
        assert_eq!(pure_rooms_name_no_outside(&tree), []);
    }

    #[test]
    fn groups_are_taken_apart() {
        let paths: Vec<_> =
            used_paths("use a::{self, b as c, d::{e, f}};\n").into_iter().map(|(_, p)| p).collect();
        assert_eq!(paths, ["a", "a::b", "a::d::e", "a::d::f"]);
    }

    #[test]
    fn a_header_name_in_the_filter_is_found() {
        let code = "//! x\n// \"x-no\"\nf(\"X-Session\");\ng(\"max-x-y\");\n";
        let tree = Tree::of(&[("filter/src/a.rs", code), ("routing/src/header.rs", code)]);
        let found = the_filter_spells_no_header_name(&tree);
        assert_eq!(lines(&found), [3]);
        assert!(found[0].text.contains("X-Session"));
    }

    #[test]
    fn unsafe_outside_its_places_is_found() {
        let bare = "#![deny(unsafe_code)]\n// unsafe\nunsafe { x() }\n";
        let child = "unsafe { prctl(PR_SET_PDEATHSIG) }\n";
        let tree = Tree::of(&[
            ("filter/src/host.rs", bare),
            ("filter/src/host/abi.rs", bare),
            ("tests/harness/child.rs", child),
            ("tests/harness/other.rs", bare),
            ("routing/src/a.rs", child),
        ]);
        let paths: Vec<_> = unsafe_only_where_allowed(&tree).into_iter().map(|f| (f.path, f.line)).collect();
        assert_eq!(paths, [("tests/harness/other.rs".to_owned(), 3), ("routing/src/a.rs".to_owned(), 1)]);
    }
}
