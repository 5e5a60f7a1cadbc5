//! Writing over the bytes of an exported static in a module's data segments.

use super::{EXPORT_SECTION, IMPORT_SECTION, MAGIC, Reader, read_exports, sections, write_section};
use anyhow::{Context, Result, bail, ensure};

const GLOBAL_SECTION: u8 = 6;
const DATA_SECTION: u8 = 11;
/// Kind of an export that is a global: the address of a static.
const GLOBAL: u8 = 3;
const I32_CONST: u8 = 0x41;
const END: u8 = 0x0b;

/// The same module with `new` in place of `old` at the start of the static that is exported as `name`.
///
/// # Errors
/// No such static, or other bytes stand there.
pub(crate) fn patch(module: &[u8], name: &str, old: &[u8], new: &[u8]) -> Result<Vec<u8>> {
    ensure!(old.len() == new.len(), "a patch may not move anything");
    let address = address(module, name)?;
    let mut out = MAGIC.to_vec();
    let mut patched = 0;
    for section in sections(module)? {
        let mut payload = section.payload.to_vec();
        if section.id == DATA_SECTION {
            for segment in segments(section.payload)? {
                let Some(inside) = address.checked_sub(segment.address) else { continue };
                let Some(at) = place(&payload, &segment, inside, old) else { continue };
                payload.splice(at..at + old.len(), new.iter().copied());
                patched += 1;
            }
        }
        write_section(&mut out, section.id, &payload);
    }
    ensure!(patched == 1, "{patched} data segments have {:?} at {name}", String::from_utf8_lossy(old));
    Ok(out)
}

/// Where in the payload `old` stands, if it is what this segment puts there.
fn place(payload: &[u8], segment: &Segment, inside: u64, old: &[u8]) -> Option<usize> {
    let inside = usize::try_from(inside).ok()?;
    let end = inside.checked_add(old.len()).filter(|end| *end <= segment.length)?;
    let (from, to) = (segment.start.checked_add(inside)?, segment.start.checked_add(end)?);
    (payload.get(from..to)? == old).then_some(from)
}

/// The address that the exported global holds.
fn address(module: &[u8], name: &str) -> Result<u64> {
    let (mut imports, mut globals, mut index) = (false, Vec::new(), None);
    for section in sections(module)? {
        match section.id {
            IMPORT_SECTION => imports = imports_a_global(section.payload)?,
            GLOBAL_SECTION => globals = constants(section.payload)?,
            EXPORT_SECTION => {
                let found = read_exports(section.payload)?;
                index = found.iter().find(|one| one.name == name && one.kind == GLOBAL).map(|one| one.index);
            }
            _ => {}
        }
    }
    let index = index.with_context(|| format!("the module exports no static `{name}`"))?;
    ensure!(!imports, "a module that imports globals is not one of ours");
    let index = usize::try_from(index)?;
    globals.get(index).copied().flatten().with_context(|| format!("`{name}` has no constant address"))
}

fn imports_a_global(payload: &[u8]) -> Result<bool> {
    let mut reader = Reader::new(payload);
    for _ in 0..reader.leb()? {
        let _ = (reader.name()?, reader.name()?);
        if reader.rest.first() == Some(&GLOBAL) {
            return Ok(true);
        }
        super::skip_import_type(&mut reader)?;
    }
    Ok(false)
}

/// Values of all globals; `None` for one that is no plain `i32.const`, which ends the list: nothing behind it can be told.
fn constants(payload: &[u8]) -> Result<Vec<Option<u64>>> {
    let mut reader = Reader::new(payload);
    let mut found = Vec::new();
    for _ in 0..reader.leb()? {
        let _type_and_mutable = (reader.byte()?, reader.byte()?);
        let value = constant(&mut reader);
        let known = value.is_ok();
        found.push(value.ok());
        if !known {
            break;
        }
    }
    Ok(found)
}

/// `i32.const N; end`.
fn constant(reader: &mut Reader<'_>) -> Result<u64> {
    ensure!(reader.byte()? == I32_CONST, "not an i32.const");
    let mut value = 0i64;
    for shift in (0..35).step_by(7) {
        let byte = reader.byte()?;
        value |= i64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            // Sign of a LEB128 number of this length; an address above 2 GiB comes as a negative one.
            let value = if byte & 0x40 == 0 { value } else { value - (1 << (shift + 7)) };
            ensure!(reader.byte()? == END, "more than a constant");
            return Ok(u64::from(value as u32));
        }
    }
    bail!("a number of more than 32 bits")
}

/// A data segment with a fixed address.
struct Segment {
    address: u64,
    /// Of its bytes, in the section's payload.
    start: usize,
    length: usize,
}

fn segments(payload: &[u8]) -> Result<Vec<Segment>> {
    let mut reader = Reader::new(payload);
    let mut found = Vec::new();
    for _ in 0..reader.leb()? {
        let address = match reader.leb()? {
            0 => constant(&mut reader)?,
            kind => bail!("a data segment of kind {kind} has no fixed address"),
        };
        let length = reader.leb()?;
        let start = payload.len() - reader.rest.len();
        let length = reader.take(length)?.len();
        found.push(Segment { address, start, length });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A static `mark` of these bytes at 1027, in a segment from 1024 on.
    fn module(bytes: &[u8]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        write_section(&mut out, GLOBAL_SECTION, &[1, 0x7f, 0, I32_CONST, 0x83, 0x08, END]);
        write_section(&mut out, EXPORT_SECTION, &[1, 4, b'm', b'a', b'r', b'k', GLOBAL, 0]);
        let mut data = vec![1, 0, I32_CONST, 0x80, 0x08, END, 3 + bytes.len() as u8, 1, 2, 3];
        data.extend_from_slice(bytes);
        write_section(&mut out, DATA_SECTION, &data);
        out
    }

    #[test]
    fn a_static_is_written_over_and_nothing_else() {
        assert_eq!(patch(&module(b"is=0"), "mark", b"is=0", b"is=2").unwrap(), module(b"is=2"));
    }

    #[test]
    fn a_static_that_is_not_there_or_not_as_expected_fails() {
        assert!(patch(&module(b"is=0"), "other", b"is=0", b"is=2").is_err());
        assert!(patch(&module(b"is=1"), "mark", b"is=0", b"is=2").is_err());
        assert!(patch(&module(b"is="), "mark", b"is=0", b"is=2").is_err(), "it ends with the segment");
        assert!(patch(&module(b"is=0"), "mark", b"is=0", b"is=22").is_err());
        let whole = module(b"is=0");
        for end in 0..whole.len() {
            assert!(patch(&whole[..end], "mark", b"is=0", b"is=2").is_err(), "{end} bytes");
        }
    }

    #[test]
    fn constants_keep_their_sign_bit() {
        let value = |bytes: &[u8]| constant(&mut Reader::new(bytes)).unwrap();
        assert_eq!(value(&[I32_CONST, 0x3f, END]), 63);
        assert_eq!(value(&[I32_CONST, 0xc0, 0x00, END]), 64);
        assert_eq!(value(&[I32_CONST, 0x7f, END]), u64::from(u32::MAX));
    }
}
