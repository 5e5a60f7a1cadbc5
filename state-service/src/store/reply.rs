//! Answers of the server, taken apart without trusting their shape. `None` is an answer that no script of ours gives.

use redis::{ErrorKind, RedisError, Value};

/// The parts of an array.
pub(super) fn list(value: Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(parts) => Some(parts),
        _ => None,
    }
}

/// A text.
pub(super) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// A number that is not negative.
pub(super) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

/// The epoch; `Some(None)`: the store has none.
pub(super) fn epoch(value: &Value) -> Option<Option<u64>> {
    match value {
        Value::Nil => Some(None),
        other => match text(other)? {
            "" => Some(None),
            hex if hex.len() == 16 => u64::from_str_radix(hex, 16).ok().map(Some),
            _ => None,
        },
    }
}

/// The error of a key that is not ours, for the classification of errors.
pub(super) fn foreign(what: &str) -> RedisError {
    RedisError::from((ErrorKind::UnexpectedReturnType, "FOREIGN", format!("{what} cannot be read")))
}
