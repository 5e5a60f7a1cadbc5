//! `tidy`: the source rules no compiler knows. Collects the findings of every rule and prints all of them; the
//! rules are in the modules below and know nothing of each other.

mod docs;
mod doors;
mod header;
mod lexer;
mod manifests;
mod places;
mod purity;
mod tree;
mod unordered;

use anyhow::{Result, bail};

use crate::prerequisite::Missing;
use crate::workspace::Workspace;
use tree::Tree;

/// One violation, at a line that can be opened.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    /// From 1.
    line: usize,
    text: String,
}

impl Finding {
    fn new(path: &str, line: usize, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, text: text.into() }
    }
}

/// Rules over the text of the files alone.
const RULES: &[fn(&Tree) -> Vec<Finding>] = &[
    header::every_file_says_what_it_owns,
    header::the_filter_stays_small,
    purity::pure_rooms_name_no_outside,
    purity::the_filter_spells_no_header_name,
    purity::unsafe_only_where_allowed,
    unordered::decisions_do_not_depend_on_hash_order,
    places::no_machine_path,
    places::no_registry_host,
    manifests::dependencies_come_from_the_workspace_table,
    manifests::each_dependency_has_a_reason,
    docs::paths_in_the_architecture_exist,
];

/// `tidy`.
pub(crate) fn command(workspace: &Workspace, args: &[String]) -> Result<()> {
    if !args.is_empty() {
        return Err(Missing::error("usage: cargo xtask tidy"));
    }
    let tree = Tree::read(&workspace.root)?;
    let mut findings: Vec<_> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    findings.extend(doors::arrows_go_one_way(&workspace.metadata()?));
    findings.sort();
    for finding in &findings {
        println!("{}:{}: {}", finding.path, finding.line, finding.text);
    }
    if !findings.is_empty() {
        bail!("tidy: {} findings", findings.len());
    }
    println!("tidy: {} files, nothing to say", tree.files.len());
    Ok(())
}
