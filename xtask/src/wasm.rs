//! As much of the wasm binary format as we need: list imports and exports, drop and rename exports; `data` writes over
//! bytes of a static. Bounded by the bytes that are there; knows nothing of proxy-wasm or Envoy.

mod data;

pub(crate) use data::patch;

use anyhow::{Context, Result, bail};

const MAGIC: &[u8] = b"\0asm\x01\0\0\0";
const IMPORT_SECTION: u8 = 2;
const EXPORT_SECTION: u8 = 7;

/// One thing a module wants from its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) module: String,
    pub(crate) name: String,
}

/// One thing a module offers to its host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Export {
    name: String,
    kind: u8,
    index: u64,
}

/// All imports of a module, in its order.
pub(crate) fn imports(module: &[u8]) -> Result<Vec<Import>> {
    let mut found = Vec::new();
    for section in sections(module)? {
        if section.id != IMPORT_SECTION {
            continue;
        }
        let mut reader = Reader::new(section.payload);
        for _ in 0..reader.leb()? {
            let (module, name) = (reader.name()?, reader.name()?);
            skip_import_type(&mut reader).with_context(|| format!("import {module}.{name}"))?;
            found.push(Import { module, name });
        }
    }
    Ok(found)
}

/// Names of all exports of a module, in its order.
pub(crate) fn exports(module: &[u8]) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for section in sections(module)? {
        if section.id == EXPORT_SECTION {
            names.extend(read_exports(section.payload)?.into_iter().map(|export| export.name));
        }
    }
    Ok(names)
}

/// The same module with only those exports `name` has a name for, under that name.
pub(crate) fn select_exports<'a>(module: &[u8], name: impl Fn(&str) -> Option<&'a str>) -> Result<Vec<u8>> {
    let mut out = MAGIC.to_vec();
    for section in sections(module)? {
        if section.id == EXPORT_SECTION {
            write_section(&mut out, section.id, &exports_named(section.payload, &name)?);
        } else {
            write_section(&mut out, section.id, section.payload);
        }
    }
    Ok(out)
}

fn exports_named<'a>(payload: &[u8], name: impl Fn(&str) -> Option<&'a str>) -> Result<Vec<u8>> {
    let found = read_exports(payload)?;
    let kept: Vec<_> = found.iter().filter_map(|export| Some((name(&export.name)?, export))).collect();
    let mut out = Vec::new();
    write_leb(&mut out, kept.len() as u64);
    for (name, export) in kept {
        write_leb(&mut out, name.len() as u64);
        out.extend_from_slice(name.as_bytes());
        out.push(export.kind);
        write_leb(&mut out, export.index);
    }
    Ok(out)
}

fn write_section(out: &mut Vec<u8>, id: u8, payload: &[u8]) {
    out.push(id);
    write_leb(out, payload.len() as u64);
    out.extend_from_slice(payload);
}

struct Section<'a> {
    id: u8,
    payload: &'a [u8],
}

fn sections(module: &[u8]) -> Result<Vec<Section<'_>>> {
    let Some(body) = module.strip_prefix(MAGIC) else { bail!("not a wasm module of version 1") };
    let mut reader = Reader::new(body);
    let mut found = Vec::new();
    while !reader.rest.is_empty() {
        let id = reader.byte()?;
        let length = reader.leb()?;
        found.push(Section { id, payload: reader.take(length)? });
    }
    Ok(found)
}

fn read_exports(payload: &[u8]) -> Result<Vec<Export>> {
    let mut reader = Reader::new(payload);
    let mut found = Vec::new();
    for _ in 0..reader.leb()? {
        found.push(Export { name: reader.name()?, kind: reader.byte()?, index: reader.leb()? });
    }
    Ok(found)
}

fn skip_import_type(reader: &mut Reader<'_>) -> Result<()> {
    match reader.byte()? {
        0 => reader.leb().map(drop),
        1 => skip_value_type(reader).and_then(|()| skip_limits(reader)),
        2 => skip_limits(reader),
        3 => skip_value_type(reader).and_then(|()| reader.byte().map(drop)),
        4 => reader.byte().and_then(|_| reader.leb().map(drop)),
        other => bail!("unknown kind of import {other}"),
    }
}

/// A value type is one byte, or 0x63/0x64 (a typed reference) and its heap type.
fn skip_value_type(reader: &mut Reader<'_>) -> Result<()> {
    match reader.byte()? {
        0x63 | 0x64 => reader.leb().map(drop),
        _ => Ok(()),
    }
}

fn skip_limits(reader: &mut Reader<'_>) -> Result<()> {
    let has_maximum = reader.byte()? & 1 == 1;
    reader.leb()?;
    if has_maximum {
        reader.leb()?;
    }
    Ok(())
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    fn byte(&mut self) -> Result<u8> {
        let (&first, rest) = self.rest.split_first().context("the module ends in the middle")?;
        self.rest = rest;
        Ok(first)
    }

    /// An unsigned LEB128 number: at most 10 bytes, at most 64 bits.
    fn leb(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        bail!("a number of more than 64 bits")
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8]> {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let Some((head, rest)) = self.rest.split_at_checked(length) else {
            bail!("a length of {length} where {} bytes are left", self.rest.len())
        };
        self.rest = rest;
        Ok(head)
    }

    fn name(&mut self) -> Result<String> {
        let length = self.leb()?;
        Ok(String::from_utf8(self.take(length)?.to_vec())?)
    }
}

fn write_leb(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let byte = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            return out.push(byte);
        }
        out.push(byte | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Vec<u8> {
        let mut out = vec![text.len() as u8];
        out.extend_from_slice(text.as_bytes());
        out
    }

    fn section(id: u8, parts: &[Vec<u8>]) -> Vec<u8> {
        let payload = parts.concat();
        let mut out = vec![id];
        write_leb(&mut out, payload.len() as u64 + 1);
        out.push(parts.len() as u8);
        out.extend_from_slice(&payload);
        out
    }

    fn import(module: &str, field: &str, kind: &[u8]) -> Vec<u8> {
        [name(module), name(field), kind.to_vec()].concat()
    }

    /// One import of each kind, a custom section, two exports.
    fn module() -> Vec<u8> {
        let imports = section(
            2,
            &[
                import("env", "proxy_log", &[0, 0x85, 0x01]),
                import("env", "table", &[1, 0x70, 1, 2, 3]),
                import("env", "memory", &[2, 0, 1]),
                import("other", "global", &[3, 0x7f, 1]),
                import("other", "tag", &[4, 0, 0]),
            ],
        );
        let exports = section(7, &[[name("keep"), vec![0, 1]].concat(), [name("drop"), vec![0, 2]].concat()]);
        let custom = vec![0, 4, 1, b'n', 9, 9];
        [MAGIC.to_vec(), imports, exports, custom].concat()
    }

    #[test]
    fn imports_of_every_kind_are_listed() {
        let found = imports(&module()).unwrap();
        let names: Vec<_> = found.iter().map(|import| format!("{}.{}", import.module, import.name)).collect();
        assert_eq!(names, ["env.proxy_log", "env.table", "env.memory", "other.global", "other.tag"]);
    }

    #[test]
    fn dropping_and_renaming_exports_touches_nothing_else() {
        let before = module();
        let after = select_exports(&before, |name| (name == "keep").then_some("kept")).unwrap();
        assert_eq!(exports(&before).unwrap(), ["keep", "drop"]);
        assert_eq!(exports(&after).unwrap(), ["kept"]);
        assert_eq!(imports(&after).unwrap(), imports(&before).unwrap());
        assert!(after.ends_with(&[0, 4, 1, b'n', 9, 9]));
        let same = |name: &str| Some(if name == "keep" { "keep" } else { "drop" });
        assert_eq!(select_exports(&before, same).unwrap(), before);
    }

    #[test]
    fn every_prefix_of_a_module_is_an_error_or_a_shorter_module_never_a_panic() {
        let whole = module();
        for end in 0..whole.len() {
            let cut = &whole[..end];
            let _ = imports(cut);
            let _ = exports(cut);
        }
        assert!(imports(&whole[..whole.len() - 1]).is_err());
        assert!(imports(b"\0asm\x02\0\0\0").is_err());
    }

    #[test]
    fn numbers_are_bounded() {
        assert_eq!(Reader::new(&[0xe5, 0x8e, 0x26]).leb().unwrap(), 624_485);
        assert!(Reader::new(&[0x80; 11]).leb().is_err());
        assert!(Reader::new(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02]).leb().is_err());
        assert!(Reader::new(&[1, 2]).take(u64::MAX).is_err());
        for value in [0, 127, 128, 16_384, u64::MAX] {
            let mut bytes = Vec::new();
            write_leb(&mut bytes, value);
            assert_eq!(Reader::new(&bytes).leb().unwrap(), value);
        }
    }
}
