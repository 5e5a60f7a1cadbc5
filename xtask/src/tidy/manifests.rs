//! Dependencies are declared once, in the root's table, each with its reason.

use super::Finding;
use super::tree::Tree;

const TABLE: &str = "workspace.dependencies";

/// A crate takes a dependency from the workspace table or not at all.
pub(crate) fn dependencies_come_from_the_workspace_table(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with("/Cargo.toml")) {
        for (line, text) in
            entries(&file.text, |section| section != TABLE && section.ends_with("dependencies"))
        {
            let inherits = text.contains(".workspace = true") || text.contains("workspace = true");
            if !inherits {
                let text = format!("`{text}` is declared here: put it into [{TABLE}] of the root");
                findings.push(Finding::new(&file.path, line, text));
            }
        }
    }
    findings
}

/// A line of the table says why it is there; our own packages need no reason.
pub(crate) fn each_dependency_has_a_reason(tree: &Tree) -> Vec<Finding> {
    let Some(file) = tree.file("Cargo.toml") else { return Vec::new() };
    entries(&file.text, |section| section == TABLE)
        .into_iter()
        .filter(|(_, text)| !text.contains('#') && !text.contains("path = "))
        .map(|(line, text)| Finding::new(&file.path, line, format!("`{text}` has no `# reason`")))
        .collect()
}

/// Lines of the sections `wanted` says yes to, with their numbers.
fn entries(manifest: &str, wanted: impl Fn(&str) -> bool) -> Vec<(usize, &str)> {
    let mut inside = false;
    let mut found = Vec::new();
    for (index, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if let Some(section) = line.strip_prefix('[') {
            inside = wanted(section.trim_end_matches(']'));
        } else if inside && !line.is_empty() && !line.starts_with('#') {
            found.push((index + 1, line));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_past_the_table_is_found() {
        let planted = "[package]\nname = \"a\"\n[dependencies]\nserde.workspace = true\n\
                       tokio = { workspace = true, features = [] }\nrand = \"1\"\n\
                       [target.\"cfg(unix)\".dev-dependencies]\nnix = { version = \"1\" }\n";
        let tree = Tree::of(&[("routing/Cargo.toml", planted)]);
        let lines: Vec<_> =
            dependencies_come_from_the_workspace_table(&tree).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [6, 8]);
    }

    #[test]
    fn a_dependency_without_a_reason_is_found() {
        let planted = "[workspace.dependencies]\n# all of them\nrouting = { path = \"routing\" }\n\
                       a = \"1\" # why\nb = \"1\"\n[profile.dev]\ndebug = 1\n";
        let found = each_dependency_has_a_reason(&Tree::of(&[("Cargo.toml", planted)]));
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [5]);
    }
}
