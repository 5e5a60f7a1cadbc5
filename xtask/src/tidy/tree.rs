//! The files the rules look at: those git knows, or every file where there is no git. Reads; judges nothing.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::lexer::Source;
use crate::process;

/// Larger files are data; no rule is about them.
const LARGEST_TEXT: u64 = 1 << 20;

/// The checkout, as far as it is text.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) files: Vec<File>,
    /// Every path, text or not.
    paths: Vec<String>,
}

/// One text file.
#[derive(Debug)]
pub(crate) struct File {
    /// From the root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Where the file is Rust.
    pub(crate) source: Option<Source>,
}

impl Tree {
    /// Tracked files and those about to be.
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut paths = if root.join(".git").exists() { git_files(root)? } else { walk(root, "")? };
        // git lists a deleted file until the deletion is committed.
        paths.retain(|path| root.join(path).is_file());
        let mut files = Vec::new();
        for path in &paths {
            let full = root.join(path);
            if full.metadata()?.len() > LARGEST_TEXT {
                continue;
            }
            let bytes = std::fs::read(&full).with_context(|| format!("reading {path}"))?;
            files.extend(String::from_utf8(bytes).ok().map(|text| File::new(path, text)));
        }
        Ok(Self { files, paths })
    }

    /// Rust files whose path starts with `prefix`, with their source.
    pub(crate) fn rust<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a File, &'a Source)> {
        let inside = self.files.iter().filter(move |file| file.path.starts_with(prefix));
        inside.filter_map(|file| file.source.as_ref().map(|source| (file, source)))
    }

    /// The text file at `path`.
    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Whether there is a file or folder at `path`.
    pub(crate) fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.paths.iter().any(|known| {
            known.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// A tree of planted files.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        Self {
            files: files.iter().map(|(path, text)| File::new(path, (*text).to_owned())).collect(),
            paths: files.iter().map(|(path, _)| (*path).to_owned()).collect(),
        }
    }
}

impl File {
    fn new(path: &str, text: String) -> Self {
        let source = path.ends_with(".rs").then(|| Source::lex(&text));
        Self { path: path.to_owned(), text, source }
    }
}

fn git_files(root: &Path) -> Result<Vec<String>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    let listing = process::capture(&mut git)?;
    Ok(listing.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect())
}

fn walk(root: &Path, inside: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in root.join(inside).read_dir()? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if inside.is_empty() { name.clone() } else { format!("{inside}/{name}") };
        if !entry.file_type()?.is_dir() {
            found.push(path);
        } else if name != "target" && name != ".git" {
            found.extend(walk(root, &path)?);
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_git_every_file_is_read_but_those_of_the_target_folder() {
        let root = tempfile::tempdir().unwrap();
        for path in ["a/b.rs", "target/c.rs", "d.bin"] {
            let full = root.path().join(path);
            std::fs::create_dir_all(full.parent().unwrap()).unwrap();
            std::fs::write(full, if path == "d.bin" { &b"\xff\xfe"[..] } else { b"//! x\n" }).unwrap();
        }
        let tree = Tree::read(root.path()).unwrap();
        assert_eq!(tree.files.iter().map(|file| &file.path).collect::<Vec<_>>(), ["a/b.rs"]);
        assert!(tree.has("a") && tree.has("a/b.rs") && tree.has("d.bin"));
        assert!(!tree.has("a/b") && !tree.has("target"));
    }
}
