//! The architecture document names files; this keeps the names true.

use super::Finding;
use super::tree::Tree;

const DOCUMENT: &str = "docs/ARCHITECTURE.md";
const ENDINGS: &[&str] = &[".rs", ".md", ".yaml", ".toml", ".json"];

/// Every path in backticks exists.
pub(crate) fn paths_in_the_architecture_exist(tree: &Tree) -> Vec<Finding> {
    let Some(file) = tree.file(DOCUMENT) else { return Vec::new() };
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for path in quoted(line).filter(|path| is_path(tree, path)) {
            if !tree.has(path) && !tree.has(&format!("docs/{path}")) {
                findings.push(Finding::new(DOCUMENT, index + 1, format!("there is no `{path}`")));
            }
        }
    }
    findings
}

/// What stands between backticks.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Whether a quoted text is meant as a path of this checkout: it ends like a file, or starts in a folder we have.
fn is_path(tree: &Tree, text: &str) -> bool {
    let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "./_-".contains(c));
    if !plain || text.starts_with('/') || text.starts_with("target/") {
        return false;
    }
    let Some((first, _)) = text.split_once('/') else { return false };
    ENDINGS.iter().any(|ending| text.ends_with(ending)) || tree.has(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_gone_is_found() {
        let document = "`routing/src/id.rs`, `routing/src/`, `OPERATIONS.md`\n`routing/src/old.rs` and `xtask/`\n\
                        `/v1/workers`, `a/b`, `routing::id`, `target/x.rs`, `x-data-parallel-rank`\n";
        let tree = Tree::of(&[(DOCUMENT, document), ("routing/src/id.rs", ""), ("xtask/src/main.rs", "")]);
        let found = paths_in_the_architecture_exist(&tree);
        assert_eq!(found, [Finding::new(DOCUMENT, 2, "there is no `routing/src/old.rs`")]);
    }

    #[test]
    fn a_checkout_without_the_document_passes() {
        assert_eq!(paths_in_the_architecture_exist(&Tree::of(&[])), []);
    }
}
