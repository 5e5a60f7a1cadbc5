//! What a file looks like from outside: its first line, its length.

use super::Finding;
use super::tree::Tree;

const FILTER: &str = "filter/src/";
/// Lines of a file of the filter.
const FILTER_FILE_LINES: usize = 300;
/// Lines of the whole filter: it decides nothing. (Both roles hold back, read and let go of bodies, each with its guard.)
const FILTER_LINES: usize = 1800;

/// Every Rust file begins with what it owns.
pub(crate) fn every_file_says_what_it_owns(tree: &Tree) -> Vec<Finding> {
    tree.rust("")
        .filter(|(file, _)| !file.text.starts_with("//!"))
        .map(|(file, _)| Finding::new(&file.path, 1, "begins without `//!`: say what the file owns"))
        .collect()
}

/// The filter is hostcalls; what grows belongs to `routing`.
pub(crate) fn the_filter_stays_small(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut total = 0;
    for (file, _) in tree.rust(FILTER) {
        let lines = file.text.lines().count();
        total += lines;
        if lines > FILTER_FILE_LINES {
            let text = format!("{lines} lines; a file of the filter has at most {FILTER_FILE_LINES}");
            findings.push(Finding::new(&file.path, FILTER_FILE_LINES + 1, text));
        }
    }
    if total > FILTER_LINES {
        let text =
            format!("the filter has {total} lines, more than {FILTER_LINES}: move decisions to routing");
        findings.push(Finding::new("filter/src/lib.rs", 1, text));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_its_first_line_is_found() {
        let tree = Tree::of(&[("a.rs", "//! Owns a.\n"), ("b.rs", "// no\n"), ("c.md", "text")]);
        let found = every_file_says_what_it_owns(&tree);
        assert_eq!(found.iter().map(|finding| &finding.path).collect::<Vec<_>>(), ["b.rs"]);
    }

    #[test]
    fn a_long_file_and_a_long_filter_are_found() {
        let long = "x\n".repeat(FILTER_FILE_LINES + 1);
        let tree = Tree::of(&[("filter/src/a.rs", &long), ("routing/src/a.rs", &long)]);
        assert_eq!(the_filter_stays_small(&tree).len(), 1);
        let fair = "x\n".repeat(FILTER_FILE_LINES);
        let paths: Vec<_> = (0..7).map(|n| format!("filter/src/{n}.rs")).collect();
        let files: Vec<_> = paths.iter().map(|path| (path.as_str(), fair.as_str())).collect();
        assert_eq!(the_filter_stays_small(&Tree::of(&files[..6])), []);
        let found = the_filter_stays_small(&Tree::of(&files));
        assert!(found.len() == 1 && found[0].text.contains("2100"), "{found:?}");
    }
}
