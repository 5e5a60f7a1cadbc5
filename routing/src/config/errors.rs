//! Faults of a config: which field, what was wrong, what is allowed.

use std::fmt;

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// JSON path of the field, `$` for the whole document.
    pub path: String,
    /// What was wrong.
    pub problem: String,
    /// What is allowed.
    pub allowed: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; allowed: {}", self.path, self.problem, self.allowed)
    }
}

/// All faults of one document, in document order of the checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl ConfigErrors {
    pub(super) fn add(
        &mut self,
        path: impl Into<String>,
        problem: impl Into<String>,
        allowed: impl Into<String>,
    ) {
        self.0.push(ConfigError { path: path.into(), problem: problem.into(), allowed: allowed.into() });
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
