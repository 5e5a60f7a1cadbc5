//! A decision that walks a hash map depends on its seed. In the pure rooms such a walk is found by the names of
//! the maps in the same file, or says why order is of no matter.

use std::collections::BTreeSet;

use super::Finding;
use super::lexer::is_word;
use super::purity::PURE;
use super::tree::Tree;

/// Calls that give a map's entries in its own order.
const WALKS: &[&str] =
    &["iter", "iter_mut", "keys", "values", "values_mut", "into_iter", "into_keys", "into_values", "drain"];
/// A comment with these words, on the line or the one above, says why the walk is harmless.
const EXCUSE: &str = "order does not matter";

/// No walk over a `HashMap` or `HashSet` in a pure room without its excuse.
pub(crate) fn decisions_do_not_depend_on_hash_order(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, source) in PURE.iter().flat_map(|room| tree.rust(room)) {
        let maps = map_names(&source.code);
        let excused = excused_lines(&file.text);
        for (line, text) in source.lines().filter(|(line, _)| !excused.contains(line)) {
            if let Some(name) = maps.iter().find(|name| walks(text, name)) {
                let text = format!("walks the hash map `{name}`: sort first, or say why the {EXCUSE}");
                findings.push(Finding::new(&file.path, line, text));
            }
        }
    }
    findings
}

/// Lines with the excuse, and the lines after them.
fn excused_lines(text: &str) -> BTreeSet<usize> {
    let with = text.lines().enumerate().filter(|(_, line)| line.contains(EXCUSE));
    with.flat_map(|(index, _)| [index + 1, index + 2]).collect()
}

/// Names declared in this file as hash maps or sets: fields, arguments, `let`s.
fn map_names(code: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for map in map_types(code) {
        for (at, _) in code.match_indices(map.as_str()) {
            let after = code.get(at + map.len()..).unwrap_or_default();
            if after.starts_with('<') || after.starts_with("::") {
                names.extend(declared_before(code.get(..at).unwrap_or_default()));
            }
        }
    }
    names
}

/// `HashMap`, `HashSet`, and what this file calls them.
fn map_types(code: &str) -> Vec<String> {
    let mut types = vec!["HashMap".to_owned(), "HashSet".to_owned()];
    for line in code.lines() {
        let Some((alias, of)) = line.trim_start().trim_start_matches("pub(crate) ").split_once('=') else {
            continue;
        };
        let Some(alias) = alias.trim().strip_prefix("type ") else { continue };
        if of.contains("HashMap<") || of.contains("HashSet<") {
            types.push(alias.chars().take_while(|c| is_word(*c)).collect());
        }
    }
    types
}

/// `x` of `x: &mut hashbrown::` or `let mut x = `.
fn declared_before(text: &str) -> Option<String> {
    let path_end = text.trim_end_matches(|c: char| is_word(c) || c == ':');
    // `x:HashMap` without a blank: give the colon back.
    let text = if path_end.ends_with(is_word) { text } else { path_end };
    let text = text.trim_end().trim_end_matches("mut").trim_end().trim_end_matches('&').trim_end();
    let text = text.strip_suffix([':', '=']).unwrap_or(text).trim_end();
    let name: String = text.chars().rev().take_while(|c| is_word(*c)).collect();
    let name: String = name.chars().rev().collect();
    let keyword = ["use", "mut", "let", "return", "in", "impl", "for", "pub", "as"].contains(&name.as_str());
    (!name.is_empty() && !keyword).then_some(name)
}

fn walks(line: &str, name: &str) -> bool {
    line.match_indices(name).any(|(at, _)| {
        let before = line.get(..at).unwrap_or_default();
        let after = line.get(at + name.len()..).unwrap_or_default();
        if before.chars().next_back().is_some_and(is_word) || after.chars().next().is_some_and(is_word) {
            return false;
        }
        calls_a_walk(after) || (loops_over(before) && !after.starts_with(['.', '(', ':']))
    })
}

fn calls_a_walk(after: &str) -> bool {
    let Some(method) = after.strip_prefix('.') else { return false };
    WALKS.iter().any(|walk| method.strip_prefix(walk).is_some_and(|rest| rest.starts_with('(')))
}

/// Whether `before` ends with `in`, `in &` or `in &mut`, with or without `self.`.
fn loops_over(before: &str) -> bool {
    let before = before.strip_suffix("self.").unwrap_or(before).trim_end();
    let before = before.strip_suffix("mut").unwrap_or(before).trim_end();
    let before = before.strip_suffix('&').unwrap_or(before).trim_end();
    before.ends_with(" in")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: [usize; 0] = [];

    fn found(code: &str) -> Vec<usize> {
        let tree = Tree::of(&[("routing/src/a.rs", code), ("filter/src/a.rs", code)]);
        decisions_do_not_depend_on_hash_order(&tree).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn each_way_to_walk_is_found() {
        assert_eq!(
            found("struct S { slots: hashbrown::HashMap<u8, u8> }\nfn f(s: S) { s.slots.iter() }"),
            [2]
        );
        assert_eq!(found("let mut seen = HashSet::new();\nfor x in &seen {\n"), [2]);
        assert_eq!(found("fn f(m: &mut HashMap<u8, u8>) {\n m.values_mut();\n}"), [2]);
        assert_eq!(
            found("type Slots = HashMap<u8, u8>;\nfn f(slots: &Slots<'_>) {\nfor s in slots {\n"),
            [3]
        );
    }

    #[test]
    fn lookups_ordered_maps_and_excused_walks_are_left_alone() {
        assert_eq!(found("fn f(m: &HashMap<u8, u8>) { m.get(&1); m.len(); m.retain(g); }"), NOTHING);
        assert_eq!(found("fn f(m: &BTreeMap<u8, u8>) { m.iter(); }"), NOTHING);
        assert_eq!(
            found("fn f(m: &HashMap<u8, u8>) {\n// a sum: order does not matter\nm.values().sum() }"),
            NOTHING
        );
        assert_eq!(found("use std::collections::HashMap;\nfn f(x: &[u8]) { x.iter(); }"), NOTHING);
    }
}
