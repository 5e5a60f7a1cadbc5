//! Text that is true on one machine only: absolute paths of ours, and hosts that a mirror replaces.

use super::Finding;
use super::tree::Tree;

/// Folders of the machines we work on. Put together here, so that this file passes its own rule.
const MACHINE: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/fa", "rm/")];

/// Registries are reached by their clients as configured, never by name.
const HOSTS: &[&str] = &[
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("python", "hosted.org"),
    concat!("npmjs", ".org"),
    concat!("npmjs", ".com"),
    concat!("deb.", "debian.org"),
    concat!("static.", "rust-lang.org"),
];

/// Cargo writes the registry's name into its lock file.
const LOCK: &str = "Cargo.lock";

/// No path of one of our machines.
pub(crate) fn no_machine_path(tree: &Tree) -> Vec<Finding> {
    find(tree, MACHINE, "a path of one machine", |before| {
        // `a/work/b` is somebody's relative path, not the folder at the root.
        !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '}' | '*' | '~'))
    })
}

/// No host name of a package registry.
pub(crate) fn no_registry_host(tree: &Tree) -> Vec<Finding> {
    find(tree, HOSTS, "a registry's host name", |before| !before.is_some_and(|c| c.is_alphanumeric()))
}

fn find(tree: &Tree, needles: &[&str], what: &str, starts: impl Fn(Option<char>) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| !file.path.ends_with(LOCK)) {
        for (index, line) in file.text.lines().enumerate() {
            let hit = |needle: &&&str| {
                line.match_indices(**needle)
                    .any(|(at, _)| starts(line.get(..at).and_then(|b| b.chars().next_back())))
            };
            if let Some(needle) = needles.iter().find(hit) {
                findings.push(Finding::new(&file.path, index + 1, format!("names {what}: `{needle}`")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_path_is_found_wherever_it_stands() {
        let planted = format!("x\ncd {}main\nsee tests{}x\n", MACHINE[0], MACHINE[1]);
        let tree = Tree::of(&[("README.md", &planted)]);
        let lines: Vec<_> = no_machine_path(&tree).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [2]);
    }

    #[test]
    fn a_registry_host_is_found_but_in_the_lock_file() {
        let planted = format!("https://{}/x\n", HOSTS[1]);
        let tree = Tree::of(&[("a.sh", &planted), ("Cargo.lock", &planted)]);
        let found = no_registry_host(&tree);
        assert_eq!(found.iter().map(|f| &f.path).collect::<Vec<_>>(), ["a.sh"]);
    }
}
