//! Values as msgspec writes them: the shortest integer, maps in the order given. Writes only.

/// A value on its way out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Nil,
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    Array(Vec<Value>),
    /// An array of tokens, without a value each.
    Tokens(Vec<u32>),
    Map(Vec<(&'static str, Value)>),
}

impl Value {
    /// A text, or nil.
    pub(crate) fn text(text: Option<&str>) -> Self {
        text.map_or(Self::Nil, |text| Self::Text(text.to_owned()))
    }

    /// Appends the value's bytes.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Nil => out.push(0xc0),
            Self::Unsigned(number) => unsigned(*number, out),
            Self::Signed(number) => signed(*number, out),
            Self::Float(number) => {
                out.push(0xcb);
                out.extend_from_slice(&number.to_be_bytes());
            }
            Self::Text(text) => write_text(text, out),
            Self::Bytes(bytes) => {
                head(bytes.len(), &BYTES, out);
                out.extend_from_slice(bytes);
            }
            Self::Array(items) => {
                head(items.len(), &ARRAY, out);
                items.iter().for_each(|item| item.write(out));
            }
            Self::Tokens(tokens) => {
                head(tokens.len(), &ARRAY, out);
                tokens.iter().for_each(|&token| unsigned(u64::from(token), out));
            }
            Self::Map(fields) => {
                head(fields.len(), &MAP, out);
                for (name, value) in fields {
                    write_text(name, out);
                    value.write(out);
                }
            }
        }
    }
}

/// The marks of a kind that has a length.
struct Marks {
    /// The mark whose low bits are the length, and the first length that does not fit.
    short: (u8, usize),
    one: Option<u8>,
    two: u8,
    four: u8,
}

const TEXT: Marks = Marks { short: (0xa0, 32), one: Some(0xd9), two: 0xda, four: 0xdb };
const BYTES: Marks = Marks { short: (0, 0), one: Some(0xc4), two: 0xc5, four: 0xc6 };
const ARRAY: Marks = Marks { short: (0x90, 16), one: None, two: 0xdc, four: 0xdd };
const MAP: Marks = Marks { short: (0x80, 16), one: None, two: 0xde, four: 0xdf };

fn head(length: usize, marks: &Marks, out: &mut Vec<u8>) {
    match (length, marks.one) {
        (length, _) if length < marks.short.1 => out.push(marks.short.0 | length as u8),
        (..=0xff, Some(one)) => out.extend_from_slice(&[one, length as u8]),
        (..=0xffff, _) => marked(marks.two, &(length as u16).to_be_bytes(), out),
        _ => marked(marks.four, &(length as u32).to_be_bytes(), out),
    }
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    head(text.len(), &TEXT, out);
    out.extend_from_slice(text.as_bytes());
}

fn unsigned(number: u64, out: &mut Vec<u8>) {
    match number {
        ..=0x7f => out.push(number as u8),
        0x80..=0xff => marked(0xcc, &(number as u8).to_be_bytes(), out),
        0x100..=0xffff => marked(0xcd, &(number as u16).to_be_bytes(), out),
        0x1_0000..=0xffff_ffff => marked(0xce, &(number as u32).to_be_bytes(), out),
        _ => marked(0xcf, &number.to_be_bytes(), out),
    }
}

fn signed(number: i64, out: &mut Vec<u8>) {
    match number {
        0.. => unsigned(number as u64, out),
        -32..0 => out.push(number as u8),
        -0x80..-32 => marked(0xd0, &(number as i8).to_be_bytes(), out),
        -0x8000..-0x80 => marked(0xd1, &(number as i16).to_be_bytes(), out),
        -0x8000_0000..-0x8000 => marked(0xd2, &(number as i32).to_be_bytes(), out),
        _ => marked(0xd3, &number.to_be_bytes(), out),
    }
}

fn marked(mark: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(mark);
    out.extend_from_slice(bytes);
}
