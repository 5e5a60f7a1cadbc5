//! Figures for people and for programs: medians, a table, and one JSON object as the last line. Knows no bench.

use std::collections::BTreeMap;

use serde::Serialize;

/// What a bench found.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) name: &'static str,
    /// Cost beside the bare Envoy's, or another figure without unit.
    pub(crate) ratios: BTreeMap<String, f64>,
    /// Figures whose names end in their unit.
    pub(crate) values: BTreeMap<String, f64>,
    pub(crate) rounds: usize,
    /// Equal inputs give an equal hash.
    pub(crate) hash: String,
}

impl Report {
    /// Nothing found yet.
    pub(crate) const fn new(name: &'static str, rounds: usize) -> Self {
        Self { name, ratios: BTreeMap::new(), values: BTreeMap::new(), rounds, hash: String::new() }
    }

    /// Keeps a ratio, to four digits.
    pub(crate) fn ratio(&mut self, name: &str, value: f64) {
        self.ratios.insert(name.to_owned(), rounded(value, 4));
    }

    /// Keeps a value, to three digits.
    pub(crate) fn value(&mut self, name: &str, value: f64) {
        self.values.insert(name.to_owned(), rounded(value, 3));
    }

    /// One line.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

/// The middle one; of an even number the mean of both; 0 of none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let upper = values.get(values.len() / 2).copied().unwrap_or(0.0);
    let lower = values.get((values.len().max(1) - 1) / 2).copied().unwrap_or(0.0);
    (lower + upper) / 2.0
}

/// Rows in aligned columns, the first one to the left.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            let width = width(column).unwrap_or(0);
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([]), 0.0);
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn columns_are_aligned() {
        let row = |cells: &[&str]| cells.iter().map(|&cell| cell.to_owned()).collect::<Vec<_>>();
        assert_eq!(table(&[row(&["a", "bb"]), row(&["ccc", "d"])]), "a    bb\nccc   d\n");
    }
}
