//! The table of values a real engine was asked with, and Python's own answers for the rest.

use super::{RankAsk, python_int, read};

fn of_two(value: &str) -> RankAsk {
    read(Some(value.as_bytes()), 0, 2)
}

fn refused(number: &str, range: &str) -> RankAsk {
    RankAsk::OutOfRange(format!("data_parallel_rank {number} is out of range {range}."))
}

#[test]
fn what_python_refuses_is_as_if_absent() {
    assert_eq!(read(None, 0, 2), RankAsk::Any);
    for value in ["abc", "", "1.0", "1,0", "0x1", "1 0", "_1", "1_", "1__0", "+", "-", "--1", "+ 1", "1e0"] {
        assert_eq!(of_two(value), RankAsk::Any, "{value:?}");
    }
}

#[test]
fn what_python_accepts_chooses() {
    for value in ["1", " 1", "1 ", "+1", "01", "0_1", "\t1", "\u{1c}1"] {
        assert_eq!(of_two(value), RankAsk::Rank(1), "{value:?}");
    }
    assert_eq!(of_two("-0"), RankAsk::Rank(0));
    assert_eq!(read(Some(b"\xa01\x85"), 0, 2), RankAsk::Rank(1));
}

#[test]
fn out_of_range_names_the_number_and_the_range() {
    assert_eq!(of_two("2"), refused("2", "[0, 2)"));
    assert_eq!(of_two("-1"), refused("-1", "[0, 2)"));
    assert_eq!(of_two("1_0"), refused("10", "[0, 2)"));
    assert_eq!(of_two("99999999999999999999"), refused("99999999999999999999", "[0, 2)"));
}

#[test]
fn global_numbers_start_elsewhere() {
    assert_eq!(read(Some(b"4"), 4, 4), RankAsk::Rank(0));
    assert_eq!(read(Some(b"7"), 4, 4), RankAsk::Rank(3));
    assert_eq!(read(Some(b"0"), 4, 4), refused("0", "[4, 8)"));
    assert_eq!(read(Some(b"8"), 4, 4), refused("8", "[4, 8)"));
}

#[test]
fn digits_beyond_pythons_limit_are_a_value_error() {
    assert!(python_int("1".repeat(4300).as_bytes()).is_some());
    assert!(python_int("1".repeat(4301).as_bytes()).is_none());
}
