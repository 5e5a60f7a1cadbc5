//! The token in a shipped config, as people put it there: the commented block of discovery made part of the config, the filter's field set.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::json;

use super::{Bootstrap, text_of};

/// How the block begins; what is commented out has `#` right before it, an explanation a blank between.
const BLOCK: &str = "    #typed_extension_protocol_options:";
/// What stands for the token in it.
const PLACE: &str = "Bearer TOKEN";

impl Bootstrap {
    /// Reads a file with the token in every place that is made for one; in a config without discovery that is the filter's only.
    ///
    /// # Errors
    /// It is missing or is no YAML, has discovery and no block for it, or configures no plugin.
    pub fn read_with_token(path: &Path, token: &str) -> Result<Self> {
        let text = text_of(path)?;
        let (has_discovery, has_block) = (text.contains("api_config_source:"), text.contains(BLOCK));
        ensure!(has_discovery == has_block, "{}: no block that brings discovery the token", path.display());
        // Envoy reads a format there.
        let bearer = format!("Bearer {}", token.replace('%', "%%"));
        let mut bootstrap = Self::parse(path, &uncommented(&text).replace(PLACE, &bearer))?;
        bootstrap.plugin(|config| config["service"]["token"] = json!(token))?;
        Ok(bootstrap)
    }
}

/// The text without the `#` before each line of the block.
fn uncommented(text: &str) -> String {
    let mut is_block = false;
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        is_block = line.starts_with(BLOCK) || is_block && line.starts_with("    #");
        match line.split_once('#').filter(|_| is_block) {
            Some((indent, rest)) => out.extend([indent, rest]),
            None => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_block_is_uncommented() {
        let text = "a:\n    # why\n    #typed_extension_protocol_options:\n    #  b: 1   # c\n\n    # d\n    #e: 1\n";
        let wanted =
            "a:\n    # why\n    typed_extension_protocol_options:\n      b: 1   # c\n\n    # d\n    #e: 1\n";
        assert_eq!(uncommented(text), wanted);
    }
}
