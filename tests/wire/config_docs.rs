//! `docs/CONFIG.md` says of each field what the parser does: its tables are written from the fields' own declarations.
//! `UPDATE_EXPECT=1` rewrites them; the text around them is written by hand.

use super::{at, read};
use routing::config::{Field, Kind};
use std::fmt::Write as _;

const FILE: &str = "docs/CONFIG.md";

/// A table by the name its markers have in the file.
fn tables() -> [(&'static str, String); 3] {
    [
        ("filter", table(routing::config::fields())),
        ("service", table(state_service::config::fields())),
        ("worker", table(state_service::declare::fields())),
    ]
}

fn table(fields: &[Field]) -> String {
    let mut text =
        String::from("| field | default | allowed | unit | meaning | cost |\n|---|---|---|---|---|---|\n");
    for field in fields {
        let default = field.default_text();
        let default =
            if default.is_empty() || default == "\"\"" { "–".to_owned() } else { format!("`{default}`") };
        let unit = match field.kind {
            Kind::Integer { unit, .. } => unit,
            _ => "",
        };
        let (path, allowed) = (field.path, allowed(field));
        writeln!(text, "| `{path}` | {default} | {allowed} | {unit} | {} | {} |", field.meaning, field.cost)
            .unwrap();
    }
    text
}

fn allowed(field: &Field) -> String {
    match field.kind {
        Kind::Text { rule, .. } if !rule.is_empty() => format!("{}: {rule}", field.allowed()),
        _ => field.allowed(),
    }
    .replace('|', "\\|")
}

fn marks(name: &str) -> (String, String) {
    (
        format!("<!-- fields of the {name}, written from the code -->\n"),
        format!("<!-- end of the {name} -->\n"),
    )
}

/// The file with its tables as the code has them.
fn rewritten(text: &str) -> String {
    let mut text = text.to_owned();
    for (name, table) in tables() {
        let (begin, end) = marks(name);
        let from = text.find(&begin).unwrap_or_else(|| panic!("{FILE} lacks {begin}")) + begin.len();
        let to = text.find(&end).unwrap_or_else(|| panic!("{FILE} lacks {end}"));
        text.replace_range(from..to, &table);
    }
    text
}

#[test]
fn the_tables_of_the_documentation_are_those_of_the_code() {
    let written = read(FILE);
    let expected = rewritten(&written);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(at(FILE), &expected).unwrap();
    }
    assert_eq!(read(FILE), expected, "UPDATE_EXPECT=1 rewrites the tables of {FILE}");
}

#[test]
fn every_field_is_said_in_words() {
    for (name, table) in tables() {
        assert!(table.lines().count() > 2, "{name}");
    }
    let all = [routing::config::fields(), state_service::config::fields(), state_service::declare::fields()];
    for field in all.concat() {
        assert!(!field.meaning.is_empty() && !field.meaning.contains('|'), "{}", field.path);
    }
}
