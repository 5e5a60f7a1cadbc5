//! All headers of a request in one piece, as proxy-wasm hands them over.
//!
//! ```text
//! u32 n │ n × (u32 bytes of the name, u32 bytes of the value) │ n × (name, 0, value, 0)        all little-endian
//! ```
//! Reads, never copies; what does not fit the format is not there. Knows no host.

const WORD: usize = size_of::<u32>();

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Pairs<'a>(pub &'a [u8]);

impl<'a> Pairs<'a> {
    /// The first value of that name, as Envoy answers when asked for it alone. Names are lower case.
    #[must_use]
    pub fn get(self, name: &str) -> Option<&'a [u8]> {
        let (count, sizes) = word(self.0)?;
        let (sizes, mut texts) = sizes.split_at_checked(count.checked_mul(2 * WORD)?)?;
        let (sizes, _) = sizes.as_chunks::<{ 2 * WORD }>();
        for pair in sizes {
            let (name_bytes, rest) = word(pair)?;
            let (value_bytes, _) = word(rest)?;
            let value_at = name_bytes.checked_add(1)?;
            let end = value_at.checked_add(value_bytes)?;
            if name_bytes == name.len() && texts.get(..name_bytes)? == name.as_bytes() {
                return texts.get(value_at..end);
            }
            texts = texts.get(end.checked_add(1)?..)?;
        }
        None
    }
}

/// The same for headers that we send. What is longer than the format has room for (there is none) becomes empty.
#[must_use]
pub fn write(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    let size =
        |n: usize, out: &mut Vec<u8>| out.extend_from_slice(&u32::try_from(n).unwrap_or(0).to_le_bytes());
    size(headers.len(), &mut out);
    for (name, value) in headers {
        size(name.len(), &mut out);
        size(value.len(), &mut out);
    }
    for (name, value) in headers {
        for text in [name, value] {
            out.extend_from_slice(text.as_bytes());
            out.push(0);
        }
    }
    out
}

fn word(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (word, rest) = bytes.split_first_chunk::<WORD>()?;
    Some((usize::try_from(u32::from_le_bytes(*word)).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::{Pairs, write};

    #[test]
    fn the_first_value_of_a_name() {
        let bytes = write(&[(":path", "/v1"), ("x-a", ""), ("x-b", "1"), ("x-b", "2"), ("x-bc", "3")]);
        let get = |name| Pairs(&bytes).get(name);
        assert_eq!(get(":path"), Some(&b"/v1"[..]));
        assert_eq!(get("x-a"), Some(&b""[..]), "empty is there");
        assert_eq!(get("x-b"), Some(&b"1"[..]), "as Envoy has it");
        assert_eq!(get("x-bc"), Some(&b"3"[..]));
        assert_eq!((get("x"), get("x-c"), get("")), (None, None, None));
        assert_eq!(Pairs(&write(&[])).get("x"), None);
    }

    #[test]
    fn what_does_not_fit_is_not_there() {
        let bytes = write(&[("x-a", "1"), ("x-b", "2")]);
        for cut in 0..bytes.len() - 2 {
            assert_eq!(Pairs(&bytes[..cut]).get("x-b"), None, "cut at {cut}");
        }
        for at in 0..bytes.len() {
            for bits in [0xff, 0x80, 0x01] {
                let mut bent = bytes.clone();
                bent[at] ^= bits;
                // Any answer, and no panic.
                let _ = (Pairs(&bent).get("x-b"), Pairs(&bent).get("none"));
            }
        }
        let many = [u32::MAX.to_le_bytes(), u32::MAX.to_le_bytes()].concat();
        assert_eq!(Pairs(&many).get("x"), None);
    }
}
