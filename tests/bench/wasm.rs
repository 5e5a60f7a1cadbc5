//! Which callbacks a wasm module offers Envoy: Envoy enters the VM for those it exports and for no other. Reads no more of the format.

use anyhow::{Context, Result};

const HEADER_BYTES: usize = 8;
const EXPORT_SECTION: u8 = 7;

/// Names of all exports.
///
/// # Errors
/// The bytes are no wasm module.
pub(crate) fn exports(module: &[u8]) -> Result<Vec<String>> {
    read(module).context("not a wasm module")
}

fn read(module: &[u8]) -> Option<Vec<String>> {
    let mut rest = module.strip_prefix(b"\0asm")?.get(HEADER_BYTES - 4..)?;
    while let Some((id, after)) = rest.split_first() {
        let (length, after) = number(after)?;
        let (payload, after) = after.split_at_checked(length)?;
        if *id == EXPORT_SECTION {
            return names(payload);
        }
        rest = after;
    }
    Some(Vec::new())
}

fn names(payload: &[u8]) -> Option<Vec<String>> {
    let (count, mut rest) = number(payload)?;
    let mut names = Vec::new();
    for _ in 0..count {
        let (length, after) = number(rest)?;
        let (name, after) = after.split_at_checked(length)?;
        names.push(String::from_utf8(name.to_vec()).ok()?);
        // Its kind, then its index.
        rest = number(after.get(1..)?)?.1;
    }
    Some(names)
}

/// An unsigned LEB128 number of at most 32 bits.
fn number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0_u64;
    for (nth, byte) in bytes.iter().enumerate().take(5) {
        value |= u64::from(byte & 0x7f) << (7 * nth);
        if byte & 0x80 == 0 {
            return Some((usize::try_from(value).ok()?, bytes.get(nth + 1..)?));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_are_listed_and_garbage_is_none() {
        let module =
            [b"\0asm\x01\0\0\0".as_slice(), &[1, 1, 9], &[7, 9, 2, 1, b'a', 0, 1, 1, b'b', 2, 3]].concat();
        assert_eq!(exports(&module).unwrap(), ["a", "b"]);
        assert!(exports(&module[..module.len() - 1]).is_err());
        assert!(exports(b"\x7fELF").is_err());
    }
}
