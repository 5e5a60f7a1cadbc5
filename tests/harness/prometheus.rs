//! Reads Prometheus text: enough to sum samples of one name by some of their labels. Knows no metric of ours.

/// Sum of all samples of `name` that carry every one of `labels` (`key="value"`).
#[must_use]
pub fn sum(text: &str, name: &str, labels: &[&str]) -> f64 {
    let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(sample);
    let wanted = samples.filter(|(at, own, _)| *at == name && labels.iter().all(|label| own.contains(label)));
    wanted.map(|(_, _, value)| value).sum()
}

/// Name, label text and value of one line.
fn sample(line: &str) -> Option<(&str, &str, f64)> {
    let (head, value) = line.trim().rsplit_once(' ')?;
    let (name, labels) = head.split_once('{').unwrap_or((head, ""));
    Some((name, labels, value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_by_label() {
        let text = "# HELP a b\na{x=\"1\",y=\"2\"} 3\na{x=\"1\",y=\"4\"} 5\nab 7\na 11\n";
        assert_eq!(sum(text, "a", &["x=\"1\""]), 8.0);
        assert_eq!(sum(text, "a", &["x=\"1\"", "y=\"4\""]), 5.0);
        assert_eq!(sum(text, "a", &[]), 19.0);
        assert_eq!(sum(text, "none", &[]), 0.0);
    }
}
