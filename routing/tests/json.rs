//! The streaming reader: the same as a whole parse for every document, chunking and fault; nothing else kept.

#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

use routing::json::{BodyFields, DEPTH_MAX, Fault, Paths, Progress, Reader, VALUE_BYTES_MAX};
use routing::policy::mix;
use serde::de::IgnoredAny;
use serde_json::Value;

use std::sync::Arc;

/// Reads text cut at these lengths, cyclically.
fn read_in(pointers: &[&str], text: &[u8], lengths: &[usize]) -> Result<BodyFields, Fault> {
    read_with(&Arc::new(Paths::new(pointers.iter().copied()).unwrap()), text, lengths)
}

fn read_with(paths: &Arc<Paths>, text: &[u8], lengths: &[usize]) -> Result<BodyFields, Fault> {
    let mut reader = Reader::new(paths);
    let mut rest = text;
    for length in lengths.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (chunk, after) = rest.split_at((*length).min(rest.len()));
        reader.feed(chunk);
        rest = after;
    }
    reader.finish()
}

/// One value, read whole and byte by byte.
fn at(pointer: &str, text: &str) -> Option<String> {
    let whole = read_in(&[pointer], text.as_bytes(), &[usize::MAX]).unwrap();
    let bytewise = read_in(&[pointer], text.as_bytes(), &[1]).unwrap();
    assert_eq!(whole.text(pointer), bytewise.text(pointer), "{text}");
    whole.text(pointer).map(|value| String::from_utf8(value.to_vec()).unwrap())
}

fn fault(text: &[u8]) -> Option<Fault> {
    let whole = read_in(&["/a"], text, &[usize::MAX]).err();
    assert_eq!(whole, read_in(&["/a"], text, &[1]).err(), "{}", String::from_utf8_lossy(text));
    whole
}

#[test]
fn strings_are_found_by_pointer() {
    for (pointer, text, expected) in [
        ("/a", r#"{"a":"x"}"#, Some("x")),
        ("/a", " {\n\t\"b\" : [1, {\"a\":\"no\"}] , \"a\" : \"x\" } \r\n", Some("x")),
        ("/a/b/c", r#"{"a":{"b":{"c":"x"}}}"#, Some("x")),
        ("/a/1", r#"{"a":["p","q","r"]}"#, Some("q")),
        ("/a/0/b", r#"{"a":[{"b":"x"},{"b":"y"}]}"#, Some("x")),
        ("/1", r#"["p","q"]"#, Some("q")),
        ("/1", r#"{"1":"x"}"#, Some("x")),
        ("/a/01", r#"{"a":["p","q"]}"#, None),
        ("/a/01", r#"{"a":{"01":"x"}}"#, Some("x")),
        ("/a/-", r#"{"a":["p"]}"#, None),
        ("/", r#"{"":"x"}"#, Some("x")),
        ("/a~1b/m~0n", r#"{"a/b":{"m~n":"x"}}"#, Some("x")),
        ("/~01", r#"{"~1":"x"}"#, Some("x")),
        ("/a", r#"{"A":"x"}"#, None),
        ("/a", r#"{"aa":"x","":"y"}"#, None),
        ("/a", r#"{"b":{"a":"x"}}"#, None),
        ("/a", r#"{"b":"\"a\":\"x\""}"#, None),
        ("/a/b", r#"{"a":"b"}"#, None),
        ("/a", r#"{"a":""}"#, Some("")),
        ("/a", r#""a""#, None),
        ("/a", "17", None),
    ] {
        assert_eq!(at(pointer, text).as_deref(), expected, "{pointer} {text}");
    }
}

#[test]
fn only_strings_are_values() {
    for value in ["1", "-0.5e+3", "true", "false", "null", "{}", "[]", r#"["x"]"#, r#"{"a":"x"}"#] {
        assert_eq!(at("/a", &format!(r#"{{"a":{value}}}"#)), None, "{value}");
    }
}

#[test]
fn the_last_of_repeated_members_wins() {
    for (pointer, text, expected) in [
        ("/a", r#"{"a":"x","a":"y"}"#, Some("y")),
        ("/a", r#"{"a":"x","a":1}"#, None),
        ("/a", r#"{"a":"x","a":null}"#, None),
        ("/a", r#"{"a":1,"a":"y"}"#, Some("y")),
        ("/a", r#"{"a":"x","\u0061":"y"}"#, Some("y")),
        ("/a/b", r#"{"a":{"b":"x"},"a":{"c":"y"}}"#, None),
        ("/a/b", r#"{"a":{"b":"x"},"a":[]}"#, None),
        ("/a/b", r#"{"a":{"b":"x"},"a":"y"}"#, None),
        ("/a/b", r#"{"a":{"c":"x"},"a":{"b":"y"}}"#, Some("y")),
        ("/a/0", r#"{"a":["x"],"a":[]}"#, None),
        ("/a/b/c", r#"{"a":{"b":{"c":"x"},"b":{}}}"#, None),
    ] {
        assert_eq!(at(pointer, text).as_deref(), expected, "{pointer} {text}");
    }
}

#[test]
fn escapes_are_undone_in_names_and_values() {
    for (escaped, plain) in [
        (r#"\"\\\/\b\f\n\r\t"#, "\"\\/\u{8}\u{c}\n\r\t"),
        (r"\u0041\u00e9\u20AC", "A\u{e9}\u{20ac}"),
        (r"\ud83d\ude00", "\u{1f600}"),
        (r"x\uD83D\uDE00y", "x\u{1f600}y"),
        (r"\ud83d", "\u{fffd}"),
        (r"\ude00", "\u{fffd}"),
        (r"\ud83dx", "\u{fffd}x"),
        (r"\ud83d\n", "\u{fffd}\n"),
        (r"\ud83d\ud83d\ude00", "\u{fffd}\u{1f600}"),
        (r"\ud83d\u0041", "\u{fffd}A"),
        (r"\u0000", "\0"),
        ("\u{7f}\u{e9}\u{1f600}", "\u{7f}\u{e9}\u{1f600}"),
    ] {
        assert_eq!(at("/a", &format!(r#"{{"a":"{escaped}"}}"#)).as_deref(), Some(plain), "{escaped}");
    }
    assert_eq!(at("/a\u{1f600}", r#"{"\u0061\ud83d\ude00":"x"}"#).as_deref(), Some("x"));
}

#[test]
fn a_value_at_the_limit_is_kept_and_a_longer_one_is_told() {
    let of = |length: usize| {
        let text = format!(r#"{{"a":"{}","b":"x"}}"#, "v".repeat(length));
        read_in(&["/a", "/b"], text.as_bytes(), &[7, 1000]).unwrap()
    };
    let fits = of(VALUE_BYTES_MAX);
    assert_eq!((fits.text("/a").map(<[u8]>::len), fits.too_long("/a")), (Some(VALUE_BYTES_MAX), false));
    let longer = of(VALUE_BYTES_MAX + 1);
    assert_eq!((longer.text("/a"), longer.too_long("/a")), (None, true));
    assert_eq!(longer.text("/b"), Some(&b"x"[..]), "the next value is not touched");
    let again = format!(r#"{{"a":"{}","a":"x"}}"#, "v".repeat(9000));
    assert_eq!(at("/a", &again).as_deref(), Some("x"));
    // Escapes count unescaped.
    let escaped = format!(r#"{{"a":"{}"}}"#, r"\u0041".repeat(VALUE_BYTES_MAX));
    assert_eq!(at("/a", &escaped).map(|value| value.len()), Some(VALUE_BYTES_MAX));
    let long_name = format!(r#"{{"{}":"x","a":"y"}}"#, "a".repeat(10_000));
    assert_eq!(at("/a", &long_name).as_deref(), Some("y"));
}

#[test]
fn depth_is_bounded() {
    let nested = |depth: usize| format!(r#"{{"b":{}{},"a":"x"}}"#, "[".repeat(depth), "]".repeat(depth));
    assert_eq!(at("/a", &nested(DEPTH_MAX - 1)).as_deref(), Some("x"));
    assert_eq!(fault(nested(DEPTH_MAX).as_bytes()), Some(Fault::TooDeep));
    for hostile in ["[", "{\"a\":", "[{\"a\":"] {
        assert_eq!(fault(hostile.repeat(200_000).as_bytes()), Some(Fault::TooDeep));
    }
}

#[test]
fn what_is_no_json_gives_nothing() {
    for text in [
        "{,}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":\"x\",}",
        "{\"a\" \"x\"}",
        "{a:1}",
        "{'a':1}",
        "[1,]",
        "[,1]",
        "[1 2]",
        "]",
        "}",
        "{]",
        "[}",
        "{\"a\":\"x\"]",
        "{} {}",
        "{}x",
        "1 1",
        "\"a\" :",
        "tru e",
        "True",
        "nul]",
        "NaN",
        "Infinity",
        "01",
        "-",
        "1.",
        ".5",
        "1e",
        "1e+",
        "+1",
        "--1",
        "0x1",
        "1.e1",
        "[01]",
        "[-]",
        "[1.]",
        "\"\\x\"",
        "\"\\u12g4\"",
        "\"\\u 123\"",
        "\"a\nb\"",
        "\"\u{0}\"",
        "\"\u{1f}\"",
        "\"12345678\u{1}\"",
        "/**/1",
        "\u{feff}{}",
        "{\"a\":\"x\"}\0",
        ",",
        ":",
    ] {
        let told = fault(text.as_bytes());
        assert!(matches!(told, Some(Fault::Malformed | Fault::Truncated)), "{text:?}: {told:?}");
        assert!(serde_json::from_str::<IgnoredAny>(text).is_err(), "{text:?} is JSON after all");
    }
    for (text, expected) in [
        ("", Fault::Truncated),
        ("  ", Fault::Truncated),
        ("{\"a\":\"x\"", Fault::Truncated),
        ("{\"a\":\"x\",\"b", Fault::Truncated),
        ("[1", Fault::Truncated),
        ("-", Fault::Truncated),
        ("{\"a\":\"x\"}}", Fault::Malformed),
    ] {
        assert_eq!(fault(text.as_bytes()), Some(expected), "{text:?}");
    }
}

#[test]
fn progress_tells_when_a_document_is_whole_or_lost() {
    let mut reader = Reader::new(&Arc::new(Paths::new(["/a"]).unwrap()));
    assert_eq!(reader.feed(b""), Progress::More);
    assert_eq!(reader.feed(b"{\"a\":\"x"), Progress::More);
    assert_eq!(reader.feed(b"\"}"), Progress::Whole);
    assert_eq!(reader.feed(b" \n"), Progress::Whole);
    assert_eq!(reader.feed(b"!"), Progress::Faulty(Fault::Malformed));
    assert_eq!(reader.feed(b"{}"), Progress::Faulty(Fault::Malformed), "for good");
    assert_eq!(reader.finish(), Err(Fault::Malformed));
}

#[test]
fn pointers_are_checked() {
    for text in ["", "a", "#/a", "/~", "/a~2", "/a/~x"] {
        assert!(Paths::new([text]).is_err(), "{text:?}");
    }
    assert!(Paths::new([format!("/{}", "a".repeat(255)).as_str()]).is_ok());
    assert!(Paths::new([format!("/{}", "a".repeat(256)).as_str()]).is_err());
    let none = BodyFields::none();
    assert_eq!((none.text("/a"), none.too_long("/a"), none.opening()), (None, false, None));
    let read = read_in(&["/a"], br#"{"b":"x"}"#, &[9]).unwrap();
    assert_eq!(read.text("/b"), None, "what was not asked for is not kept");
}

#[test]
fn values_are_not_printable() {
    let read = read_in(&["/a"], br#"{"a":"hunter2"}"#, &[100]).unwrap();
    assert_eq!(format!("{read:?}"), "BodyFields(1 of 1)");
}

/// A seeded stream of numbers.
struct Dice(u64, u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.1 += 1;
        (mix(self.0, self.1) % n as u64) as usize
    }

    fn pick_byte(&mut self, of: &[u8]) -> u8 {
        of[self.below(of.len())]
    }

    fn pick<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.below(of.len())]
    }
}

/// Documents of each property: fewer under node, where a debug build is ten times slower.
const SEEDS: u64 = if cfg!(target_arch = "wasm32") { 500 } else { 3000 };
const DOCUMENT_DEPTH: usize = 5;
const NAMES: &[&str] = &["a", "b", "c", "0", "1", "", "messages", "role", "a/b", "\u{e9}"];
const POINTERS: &[&str] =
    &["/a", "/b", "/a/b", "/a/0", "/b/1/a", "/c/a/b", "/0", "/", "/a/", "/a~1b", "/\u{e9}/a", "/a/b/c/0"];

/// A document as text, with odd spacing, repeated members and escapes.
fn document(dice: &mut Dice, depth: usize, out: &mut String) {
    let blank =
        |dice: &mut Dice, out: &mut String| out.push_str(dice.pick(&["", "", "", " ", "\n\t", "\r\n  "]));
    blank(dice, out);
    // The outermost is most often an object.
    let kind = if depth == DOCUMENT_DEPTH { 1 + dice.below(8) } else { dice.below(10) };
    match if depth == 0 { kind % 4 } else { kind } {
        0 => out.push_str(dice.pick(&["0", "-0", "17", "-1.5", "1e3", "2E-7", "0.0e+1", "123456789012"])),
        1 => out.push_str(dice.pick(&["true", "false", "null"])),
        2 | 3 => string(dice, out),
        4..=7 => {
            out.push('{');
            for nth in 0..dice.below(8) {
                if nth > 0 {
                    out.push(',');
                }
                blank(dice, out);
                let name = dice.pick(NAMES);
                match dice.below(5) {
                    0 if name == "a" => out.push_str("\"\\u0061\""),
                    _ => out.push_str(&serde_json::to_string(name).unwrap()),
                }
                blank(dice, out);
                out.push(':');
                document(dice, depth - 1, out);
            }
            out.push('}');
        }
        _ => {
            out.push('[');
            for nth in 0..dice.below(5) {
                if nth > 0 {
                    out.push(',');
                }
                document(dice, depth - 1, out);
            }
            out.push(']');
        }
    }
    blank(dice, out);
}

fn string(dice: &mut Dice, out: &mut String) {
    out.push('"');
    for _ in 0..dice.below(5) {
        let pieces = [
            "plain text of some length, longer than a vector",
            "x",
            "\\n",
            "\\\"",
            "\\\\",
            "\\/",
            "\\u00e9",
            "\\ud83d\\ude00",
            "\u{20ac}\u{1f600}",
            "]}",
            "{\\\"a\\\":",
        ];
        out.push_str(dice.pick(&pieces));
    }
    out.push('"');
}

fn chunking(dice: &mut Dice) -> Vec<usize> {
    (0..1 + dice.below(6)).map(|_| 1 + dice.below(dice.1 as usize % 40 + 1)).collect()
}

#[test]
fn every_document_in_every_chunking_reads_as_a_whole_parse() {
    let paths = Arc::new(Paths::new(POINTERS.iter().copied()).unwrap());
    let mut found = 0;
    for seed in 0..SEEDS {
        let mut dice = Dice(seed, 0);
        let mut text = String::new();
        document(&mut dice, DOCUMENT_DEPTH, &mut text);
        let whole: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{seed}: {error}: {text}"));
        let read = read_with(&paths, text.as_bytes(), &chunking(&mut dice))
            .unwrap_or_else(|fault| panic!("{seed}: {fault}: {text}"));
        for pointer in POINTERS {
            let expected = whole.pointer(pointer).and_then(Value::as_str).map(str::as_bytes);
            assert_eq!(read.text(pointer), expected, "seed {seed}, {pointer}: {text}");
            found += usize::from(expected.is_some());
        }
        assert_eq!(read, read_with(&paths, text.as_bytes(), &[usize::MAX]).unwrap(), "seed {seed}: {text}");
    }
    assert!(found > SEEDS as usize / 10, "only {found} values stood where pointers point");
}

#[test]
fn every_damaged_document_is_refused_just_when_a_whole_parse_refuses_it() {
    let paths = Arc::new(Paths::new(POINTERS.iter().copied()).unwrap());
    let (mut good, mut bad) = (0u64, 0u64);
    for seed in 0..SEEDS {
        let mut dice = Dice(seed, 1 << 32);
        let mut text = String::new();
        document(&mut dice, DOCUMENT_DEPTH, &mut text);
        let mut bytes = text.into_bytes();
        damage(&mut dice, &mut bytes);
        let expected = serde_json::from_slice::<IgnoredAny>(&bytes).is_ok();
        let read = read_with(&paths, &bytes, &chunking(&mut dice));
        assert_eq!(read.is_ok(), expected, "seed {seed}: {}", String::from_utf8_lossy(&bytes));
        assert_eq!(read.is_ok(), read_with(&paths, &bytes, &[usize::MAX]).is_ok(), "seed {seed}");
        good += u64::from(expected);
        bad += u64::from(!expected);
    }
    assert!(good > SEEDS / 20 && bad > SEEDS / 6, "{good} good, {bad} bad");
}

fn damage(dice: &mut Dice, bytes: &mut Vec<u8>) {
    for _ in 0..1 + dice.below(3) {
        if bytes.is_empty() {
            return;
        }
        let at = dice.below(bytes.len());
        let odd = dice.pick_byte(b"\"\\{}[]:,0-1.eEtfnu \n\0\x1f/a");
        match dice.below(5) {
            0 => bytes.truncate(at),
            1 => drop(bytes.remove(at)),
            2 => bytes.insert(at, odd),
            3 => bytes[at] = odd,
            _ => bytes[at] = dice.below(256) as u8,
        }
    }
}

#[test]
fn noise_never_panics() {
    let paths = Arc::new(Paths::new(POINTERS.iter().copied()).unwrap().with_opening());
    for seed in 0..2000 {
        let mut dice = Dice(seed, 2 << 32);
        let bytes: Vec<u8> = (0..dice.below(300)).map(|_| dice.below(256) as u8).collect();
        let structural: Vec<u8> =
            (0..dice.below(300)).map(|_| dice.pick_byte(b"\"\\{}[]:,0-1.eEtfnu \na")).collect();
        for bytes in [bytes, structural] {
            let cut = read_with(&paths, &bytes, &chunking(&mut dice));
            assert_eq!(cut, read_with(&paths, &bytes, &[usize::MAX]), "seed {seed}");
        }
    }
}

fn opening(text: &str) -> Option<u128> {
    let paths = Arc::new(Paths::new(["/model", "/messages/0/role"]).unwrap().with_opening());
    let whole = read_with(&paths, text.as_bytes(), &[usize::MAX]).unwrap();
    for length in [1, 2, 3, 7, 64] {
        assert_eq!(whole, read_with(&paths, text.as_bytes(), &[length]).unwrap(), "{text}");
    }
    whole.opening()
}

#[test]
fn turns_after_the_first_of_the_user_do_not_change_the_opening() {
    let first =
        r#"{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"hello"}]}"#;
    let later = r#"{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":"hello"},
        {"role":"assistant","content":"hi"},{"role":"user","content":"more"}],"temperature":0.5}"#;
    let opened = opening(first);
    assert!(opened.is_some());
    assert_eq!(opening(later), opened);
    for other in [
        first.replace("hello", "hallo"),
        first.replace(r#""s""#, r#""t""#),
        first.replace(r#""m""#, r#""n""#),
        first.replace("{\"model\"", "{\"system\":\"x\",\"model\""),
        first.replace("{\"model\"", "{\"instructions\":\"x\",\"model\""),
    ] {
        assert_ne!(opening(&other), opened, "{other}");
    }
    // The order of members is none of the conversation.
    let turned =
        r#"{"messages":[{"role":"system","content":"s"},{"role":"user","content":"hello"}],"model":"m"}"#;
    assert_eq!(opening(turned), opened);
    let repeated = first.replace("{\"model\"", r#"{"messages":[{"role":"user","content":"x"}],"model""#);
    assert_eq!(opening(&repeated), opened, "the last of repeated members counts");
}

#[test]
fn an_opening_needs_words_of_a_user() {
    for with in [
        r#"{"messages":[{"content":"x","role":"user"}]}"#,
        r#"{"messages":[{"role":"assistant","role":"user"}]}"#,
        r#"{"messages":[7,{"role":"user"}]}"#,
        r#"{"input":"hello"}"#,
        r#"{"input":[{"role":"user","content":"x"}]}"#,
        r#"{"prompt":"hello"}"#,
    ] {
        assert!(opening(with).is_some(), "{with}");
    }
    for without in [
        "{}",
        "[]",
        r#"{"model":"m","system":"s"}"#,
        r#"{"messages":[]}"#,
        r#"{"messages":[{"role":"assistant","content":"user"}]}"#,
        r#"{"messages":[{"role":"user","role":1}]}"#,
        r#"{"messages":[{"role":"user","role":"tool"}]}"#,
        r#"{"messages":[{"content":{"role":"user"}}]}"#,
        r#"{"messages":{"role":"user"}}"#,
        r#"{"messages":"user"}"#,
        r#"{"messages":[{"role":"user"}],"messages":null}"#,
        r#"{"input":["a","b"]}"#,
        r#"{"prompt":["a","b"]}"#,
        r#"{"prompt":[1,2]}"#,
        r#"{"text":{"prompt":"x"}}"#,
    ] {
        assert_eq!(opening(without), None, "{without}");
    }
    let not_asked = read_in(&["/a"], br#"{"prompt":"x"}"#, &[99]).unwrap();
    assert_eq!(not_asked.opening(), None, "off unless asked for");
}
