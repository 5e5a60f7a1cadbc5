//! The parts by themselves: what Python prints, heads of JSON, cuts, the bounded map, placements, threads.

use super::model::tokenizer;
use crate::tokenize::approximate::{Placements, chain};
use crate::tokenize::cuts::{Cuts, STEP};
use crate::tokenize::generations::Generations;
use crate::tokenize::json::Json;
use crate::tokenize::python::{float, strftime};
use crate::tokenize::threads::{QUEUE_MAX, Threads};
use proptest::prelude::*;
use routing::block::Namespace;
use routing::time::Millis;
use std::sync::mpsc;
use std::time::Duration;

#[test]
fn floats_are_pythons() {
    let table = [
        (1.0, "1.0"),
        (0.1, "0.1"),
        (-2.5, "-2.5"),
        (1e15, "1000000000000000.0"),
        (1e16, "1e+16"),
        (1.5e300, "1.5e+300"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (-1.25e-7, "-1.25e-07"),
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (123_456_789.125, "123456789.125"),
        (f64::INFINITY, "Infinity"),
    ];
    for (value, text) in table {
        assert_eq!(float(value), text);
    }
}

#[test]
fn dates_are_right_across_leap_years() {
    for (seconds, text) in [
        (0, "1970-01-01 Thursday Jan 70"),
        (951_782_400, "2000-02-29 Tuesday Feb 00"),
        (1_709_164_800, "2024-02-29 Thursday Feb 24"),
        (4_107_542_399, "2100-02-28 Sunday Feb 00"),
        (4_107_542_400, "2100-03-01 Monday Mar 00"),
    ] {
        assert_eq!(strftime("%F %A %b %y", seconds).unwrap(), text);
    }
    assert_eq!(strftime("100%% %", 0).unwrap(), "100% %");
}

#[test]
fn a_head_of_json_is_closed_where_it_is_cut() {
    let table = [
        (r#"{"a":"b"#, r#"{"a":"b"}"#),
        (r#"{"a":"b\"#, r#"{"a":"b"}"#),
        (r#"{"a":"b\u12"#, r#"{"a":"b"}"#),
        (r#"{"a":"b\ud83d"#, r#"{"a":"b"}"#),
        (r#"{"a":"b\ud83d\ude00x"#, r#"{"a":"b😀x"}"#),
        (r#"{"a":1,"b"#, r#"{"a":1}"#),
        (r#"{"a":1,"b":"#, r#"{"a":1}"#),
        (r#"{"a":1,"b":tr"#, r#"{"a":1}"#),
        (r#"{"a":12"#, r#"{}"#),
        (r#"{"a":[1,{"b":"c"},{"d":"e"#, r#"{"a":[1,{"b":"c"},{"d":"e"}]}"#),
        (r#"{"a":[1,{"b":"c"},"#, r#"{"a":[1,{"b":"c"}]}"#),
        (r#"{"a":[1"#, r#"{"a":[]}"#),
        (r#"{"a":1} "#, r#"{"a":1}"#),
        ("{", "{}"),
    ];
    for (head, whole) in table {
        assert_eq!(Json::parse_head(head), Json::parse(whole), "{head}");
        assert!(Json::parse(whole).is_some(), "{whole}");
    }
    for nothing in ["", "x", "}", "\"a"] {
        let head = Json::parse_head(nothing);
        assert!(head.is_none_or(|json| !json.is_map()), "{nothing}");
    }
}

proptest! {
    /// Wherever a document is cut, its head reads; and what it says is the beginning of what the document says.
    #[test]
    fn any_head_reads(texts in prop::collection::vec("[ -~é😀\"\\\\\n]{0,12}", 0..6), cut in 1usize..400) {
        let messages: Vec<_> = texts.iter().map(|text| serde_json::json!({ "role": "user", "content": text })).collect();
        let text = serde_json::json!({ "model": "m", "messages": messages, "n": 1.5e3, "stream": true }).to_string();
        let cut = (0..=cut.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap();
        if cut > 0 {
            let head = Json::parse_head(&text[..cut]).expect("a head");
            let read = head.get("messages").and_then(Json::list).unwrap_or_default();
            for (json, whole) in read.iter().zip(&texts) {
                prop_assert!(whole.starts_with(json.text_of("content").unwrap_or_default()));
            }
        }
    }
}

#[test]
fn cuts_lie_behind_usable_tokens_and_depend_on_what_precedes_them_alone() {
    let cuts = Cuts::of(&tokenizer());
    let filler = "x".repeat(STEP);
    let text = format!("<s>{filler}<|r|> {filler}<|im_end|>{filler}<a><b>{filler}<a>tail");
    let places = cuts.places(&text);
    let found: Vec<_> = places.iter().map(|cut| &text[cut.from..cut.at]).collect();
    // Not behind the one that takes blanks; the longest one where two begin.
    assert_eq!(found, ["<|im_end|>", "<a><b>", "<a>"]);
    for end in places.iter().map(|cut| cut.at) {
        let longer = format!("{}<think>{filler}", &text[..end]);
        let known: Vec<_> = places.iter().filter(|cut| cut.at <= end).collect();
        assert_eq!(cuts.places(&longer).iter().take(known.len()).collect::<Vec<_>>(), known);
    }
    let mut words = tokenizer();
    words["added_tokens"][0]["single_word"] = true.into();
    assert!(Cuts::of(&words).places(&text).is_empty());
}

#[test]
fn a_bounded_map_keeps_what_is_asked_for_and_stays_within_its_bound() {
    let mut map = Generations::new(100_000);
    for key in 0..10_000_u32 {
        map.keep(key, &key, 10);
        map.keep(7, &7, 10);
        map.turn();
        assert!(map.bytes() <= 100_200, "{}", map.bytes());
    }
    assert_eq!(map.peek(&7), Some(&7));
    assert_eq!(map.peek(&9_999), Some(&9_999));
    assert_eq!(map.peek(&100), None);
}

#[test]
fn placements_count_runs_from_the_root_until_their_ttl() {
    let of = |text: &str| chain(text, Namespace::default(), 16).hashes;
    let (long, fork) = ("a".repeat(640), format!("{}{}", "a".repeat(320), "b".repeat(320)));
    assert_eq!(of(&long).len(), 10);
    let mut placements = Placements::new(1000, Millis(100));
    placements.learn(&of(&long), 1, Millis(0));
    placements.learn(&of(&long)[..3], 2, Millis(50));
    assert_eq!(placements.find(&of(&long), Millis(60)).into_iter().collect::<Vec<_>>(), [(1, 10), (2, 3)]);
    assert_eq!(placements.find(&of(&fork), Millis(60)).into_iter().collect::<Vec<_>>(), [(1, 5), (2, 3)]);
    // What began before its ttl ended does not make a run of what is left.
    assert_eq!(placements.find(&of(&long), Millis(120)).into_iter().collect::<Vec<_>>(), [(2, 3)]);
    placements.forget(2);
    assert!(placements.find(&of(&long), Millis(120)).is_empty());
    assert_ne!(of(&long), chain(&long, Namespace { lora: Some("l"), salt: None }, 16).hashes);
}

#[test]
fn placements_stay_within_their_bound() {
    let mut placements = Placements::new(64, Millis(1_000_000));
    for number in 0..500_u64 {
        let text = format!("{number:04}").repeat(100);
        placements.learn(&chain(&text, Namespace::default(), 16).hashes, 1, Millis(number));
        assert!(placements.len() <= 64 + 32, "{}", placements.len());
    }
}

#[test]
fn a_job_that_panics_ends_alone_and_a_full_queue_refuses() {
    let threads = Threads::with(1).unwrap();
    threads.submit(|| panic!("a bug")).unwrap();
    let (done, wait) = mpsc::channel();
    let (begun, hold) = (done.clone(), wait);
    threads.submit(move || begun.send(1).unwrap()).unwrap();
    assert_eq!(hold.recv_timeout(Duration::from_secs(10)), Ok(1));
    // One job holds the only thread; then the queue fills.
    let (go, gate) = mpsc::channel::<()>();
    let (inside, at_work) = mpsc::channel();
    threads
        .submit(move || {
            inside.send(()).unwrap();
            let _ = gate.recv_timeout(Duration::from_secs(30));
        })
        .unwrap();
    at_work.recv_timeout(Duration::from_secs(10)).unwrap();
    for _ in 0..QUEUE_MAX {
        threads.submit(|| {}).unwrap();
    }
    assert!(threads.submit(|| {}).is_err());
    drop(go);
    drop(done);
}
