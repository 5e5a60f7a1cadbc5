//! What engines show, and what hostile or broken ones do. The golden file named after a version is a real engine's answer, cut
//! short; the others are written after the engines' sources.

use super::read::BODY_BYTES_MAX;
use super::text::{LINE_BYTES_MAX, Sample};
use super::{Finding, Gauges, Ranks, Reader, pause};
use crate::declare::{self, EndpointSpec};
use crate::state::SlotGauges;
use proptest::prelude::*;
use routing::id::Rank;
use serde_json::json;

const VLLM: &str = include_str!("../../tests/golden/vllm_0.32.0_dp2_metrics.txt");
const VLLM_BUSY: &str = include_str!("../../tests/golden/vllm_busy_dp2_metrics.txt");
const SGLANG: &str = include_str!("../../tests/golden/sglang_dp2_metrics.txt");
const TRTLLM: &str = include_str!("../../tests/golden/trtllm_metrics.txt");

fn endpoint(numbering: &str, start: u32, size: u32) -> EndpointSpec {
    let json = json!({"endpoints": [
        {"address": "a:1", "rank_numbering": numbering, "dp_start": start, "dp_size": size}
    ]});
    declare::parse(json.to_string().as_bytes(), Some("w")).unwrap().endpoints.remove(0)
}

fn read_as(text: &str, endpoint: &EndpointSpec) -> Gauges {
    let mut reader = Reader::default();
    assert!(reader.feed(text.as_bytes()));
    reader.finish(Ranks::from(endpoint))
}

fn read(text: &str, numbering: &str, start: u32, size: u32) -> Gauges {
    read_as(text, &endpoint(numbering, start, size))
}

fn slot(rank: Option<u32>, running: u32, waiting: u32, kv_permille: u32) -> SlotGauges {
    SlotGauges { rank: rank.map(Rank), running, waiting, kv_permille: Some(kv_permille) }
}

fn told(slots: &[SlotGauges]) -> Gauges {
    Gauges { slots: slots.to_vec(), strays: 0 }
}

#[test]
fn each_rank_of_a_real_engine_is_read() {
    let idle = told(&[slot(Some(0), 0, 0, 0), slot(Some(1), 0, 0, 0)]);
    assert_eq!(read(VLLM, "global", 0, 2), idle);
}

#[test]
fn ranks_are_neither_lost_nor_summed() {
    let expected = told(&[slot(Some(0), 7, 3, 961), slot(Some(1), 2, 0, 250)]);
    assert_eq!(read(VLLM_BUSY, "global", 0, 2), expected, "nor are waiting requests counted by reason, too");
}

#[test]
fn ranks_of_vllm_are_global_whatever_its_header_takes() {
    let shifted = VLLM_BUSY.replace("engine=\"0\"", "engine=\"2\"").replace("engine=\"1\"", "engine=\"3\"");
    let expected = told(&[slot(Some(2), 7, 3, 961), slot(Some(3), 2, 0, 250)]);
    for numbering in ["local", "global"] {
        assert_eq!(read(&shifted, numbering, 2, 2), expected, "{numbering}");
        let strays = Gauges { slots: vec![], strays: 2 };
        assert_eq!(
            read(VLLM_BUSY, numbering, 2, 2),
            strays,
            "{numbering}: of another endpoint, or misdeclared"
        );
    }
}

#[test]
fn sglang_repeats_a_rank_per_tensor_rank_and_counts_as_its_header_does() {
    let expected = |start| told(&[slot(Some(start), 5, 4, 500), slot(Some(start + 1), 1, 0, 750)]);
    assert_eq!(read(SGLANG, "global", 0, 2), expected(0));
    assert_eq!(read(SGLANG, "local", 4, 2), expected(4));
    assert_eq!(read(SGLANG, "global", 4, 2).strays, 2);
}

#[test]
fn an_endpoint_of_one_rank_is_all_that_is_behind_it() {
    assert_eq!(read(TRTLLM, "none", 0, 1), told(&[slot(None, 9, 2, 625)]));
    let one = "vllm:num_requests_running{engine=\"3\"} 4\nvllm:num_requests_waiting{engine=\"3\"} 1\nvllm:kv_cache_usage_perc{engine=\"3\"} 0.5\n";
    assert_eq!(read(one, "none", 0, 1), told(&[slot(None, 4, 1, 500)]), "whatever the engine calls it");
    assert_eq!(
        read(VLLM_BUSY, "none", 0, 1),
        told(&[slot(None, 9, 3, 250)]),
        "ranks that the engine balances: their requests, and the room of the emptiest"
    );
}

#[test]
fn an_engine_that_does_not_tell_its_ranks_apart_tells_of_the_worker() {
    let text = "sglang:num_queue_reqs{tp_rank=\"0\"} 4\nsglang:num_running_reqs 2\n";
    let expected = SlotGauges { rank: None, running: 2, waiting: 4, kv_permille: None };
    assert_eq!(read(text, "global", 0, 2), told(&[expected]));
}

#[test]
fn what_is_no_number_or_no_rank_is_not_taken() {
    for line in [
        "vllm:num_requests_waiting{engine=\"0\"} NaN",
        "vllm:num_requests_waiting{engine=\"0\"} -1",
        "vllm:num_requests_waiting{engine=\"0\"} -Inf",
        "vllm:num_requests_waiting{engine=\"0\"} 0x10",
        "vllm:num_requests_waiting{engine=\"0\"}",
        "vllm:num_requests_waiting{engine=\"0\" 3",
        "vllm:num_requests_waiting{engine=0} 3",
        "vllm:num_requests_waiting{engine=\"0} 3",
        "vllm:num_requests_waiting{engine=\"-1\"} 3",
        "vllm:num_requests_waiting{engine=\"+1\"} 3",
        "vllm:num_requests_waiting{engine=\"\"} 3",
        "vllm:num_requests_waiting{engine=\"99999999999\"} 3",
        "vllm:num_requests_waiting_total{engine=\"0\"} 3",
        "# vllm:num_requests_waiting{engine=\"0\"} 3",
        " vllm:num_requests_waiting{engine=\"0\"} 3",
        "xvllm:num_requests_waiting{engine=\"0\"} 3",
        "vllm:",
        "",
    ] {
        assert_eq!(read(line, "global", 0, 2), Gauges::default(), "{line}");
    }
}

#[test]
fn odd_spellings_are_read() {
    for line in [
        "vllm:num_requests_waiting{engine=\"1\"} 3",
        "vllm:num_requests_waiting{ engine = \"1\" , } 3.0 1712345678901\r",
        "vllm:num_requests_waiting{model_name=\"a}b\\\"c,engine=\\\"0\\\"\",engine=\"1\"}\t3e0",
    ] {
        let expected = SlotGauges { rank: Some(Rank(1)), running: 0, waiting: 3, kv_permille: None };
        assert_eq!(read(line, "global", 0, 2), told(&[expected]), "{line}");
    }
}

#[test]
fn huge_values_stay_numbers() {
    let text =
        "vllm:num_requests_waiting 1e300\nvllm:num_requests_running +Inf\nvllm:kv_cache_usage_perc 95\n";
    assert_eq!(read(text, "none", 0, 1), told(&[slot(None, u32::MAX, u32::MAX, 1000)]));
}

#[test]
fn an_answer_is_bounded_in_bytes_lines_and_ranks() {
    let long = format!("vllm:num_requests_waiting{{a=\"{}\"}} 3\n", "x".repeat(LINE_BYTES_MAX));
    assert_eq!(read(&long, "none", 0, 1), Gauges::default());
    let after = read(&(long + "vllm:num_requests_waiting 2"), "none", 0, 1);
    assert_eq!(after.slots[0].waiting, 2, "the line after it is read");

    let mut reader = Reader::default();
    let chunk = vec![b'x'; 1 << 20];
    let taken = (0..10).take_while(|_| reader.feed(&chunk)).count();
    assert_eq!(taken, BODY_BYTES_MAX >> 20);

    let many: String =
        (0..50_000).map(|i| format!("vllm:num_requests_waiting{{engine=\"{i}\"}} 1\n")).collect();
    let Gauges { slots, strays } = read(&many, "global", 0, 2);
    assert_eq!((slots.len(), slots.len() + strays), (2, 1024));
}

#[test]
fn whoever_has_no_gauges_or_does_not_answer_is_asked_less_often() {
    let pauses = |finding| [0, 1, 2, 3, 4, 100].map(|failures| pause(1000, finding, failures));
    assert_eq!(pauses(Finding::Read), [1000; 6]);
    assert_eq!(pauses(Finding::Absent), [10_000; 6]);
    assert_eq!(pauses(Finding::TooLong), [10_000; 6]);
    assert_eq!(pauses(Finding::Failed), [1000, 2000, 4000, 8000, 10_000, 10_000]);
    assert_eq!(pause(60_000, Finding::Absent, 0), 60_000, "never more often than it was told");
}

proptest! {
    #[test]
    fn chunks_make_no_difference(cuts in prop::collection::vec(0..3000usize, 0..40)) {
        let text = VLLM_BUSY.as_bytes();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let mut reader = Reader::default();
        for pair in cuts.windows(2) {
            reader.feed(&text[pair[0]..pair[1]]);
        }
        let whole = read(VLLM_BUSY, "global", 0, 2);
        prop_assert_eq!(reader.finish(Ranks::from(&endpoint("global", 0, 2))), whole);
    }

    #[test]
    fn no_bytes_break_it(noise in prop::collection::vec(any::<u8>(), 0..400), at in 0..600usize) {
        let mut bytes = VLLM_BUSY.as_bytes().to_vec();
        let at = at.min(bytes.len());
        bytes.splice(at..(at + noise.len() / 2).min(bytes.len()), noise);
        let mut reader = Reader::default();
        reader.feed(&bytes);
        let gauges = reader.finish(Ranks::from(&endpoint("global", 0, 2)));
        prop_assert!(gauges.slots.len() <= 3);
    }

    #[test]
    fn no_line_breaks_it(line in "(vllm:num_requests_waiting)?[{}=\",\\\\ 0-9a-zé\t]{0,40}") {
        if let Some(sample) = Sample::parse(&line) {
            sample.label("engine");
        }
    }
}
