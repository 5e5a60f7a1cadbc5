//! JSON objects in the engine's own field order. `serde_json::json!` would sort the keys, and a client's
//! fixture that compares text would differ from the real engine.

use std::fmt::Write as _;

/// Text that is JSON already.
#[derive(Clone, Debug)]
pub(crate) struct Raw(pub(crate) String);

impl Raw {
    /// The same object with one more field at its end.
    pub(crate) fn with(mut self, key: &str, value: impl Json) -> Self {
        self.0.pop();
        let _ = write!(self.0, ",\"{key}\":");
        value.write(&mut self.0);
        self.0.push('}');
        self
    }
}

/// A value [`object!`] can write.
pub(crate) trait Json {
    /// Appends the value's JSON.
    fn write(&self, into: &mut String);
}

impl Json for Raw {
    fn write(&self, into: &mut String) {
        into.push_str(&self.0);
    }
}

impl Json for str {
    fn write(&self, into: &mut String) {
        // Strings always serialise.
        into.push_str(&serde_json::to_string(self).unwrap_or_default());
    }
}

impl Json for String {
    fn write(&self, into: &mut String) {
        self.as_str().write(into);
    }
}

impl Json for () {
    fn write(&self, into: &mut String) {
        into.push_str("null");
    }
}

macro_rules! displayed {
    ($($kind:ty),*) => {$(
        impl Json for $kind {
            fn write(&self, into: &mut String) {
                let _ = write!(into, "{self}");
            }
        }
    )*};
}
displayed!(bool, u16, u32, u64, usize, i32, serde_json::Value);

impl Json for f64 {
    /// As Python prints it: `1.0`, not `1`.
    fn write(&self, into: &mut String) {
        let _ = write!(into, "{self:?}");
    }
}

impl<T: Json + ?Sized> Json for &T {
    fn write(&self, into: &mut String) {
        (*self).write(into);
    }
}

impl<T: Json> Json for Option<T> {
    fn write(&self, into: &mut String) {
        match self {
            Some(value) => value.write(into),
            None => into.push_str("null"),
        }
    }
}

impl<T: Json> Json for [T] {
    fn write(&self, into: &mut String) {
        into.push('[');
        for (index, value) in self.iter().enumerate() {
            if index > 0 {
                into.push(',');
            }
            value.write(into);
        }
        into.push(']');
    }
}

impl<T: Json> Json for Vec<T> {
    fn write(&self, into: &mut String) {
        self.as_slice().write(into);
    }
}

impl<T: Json, const N: usize> Json for [T; N] {
    fn write(&self, into: &mut String) {
        self.as_slice().write(into);
    }
}

/// An object in the order written: `object! { "id": id, "usage": usage }`.
macro_rules! object {
    ($first:literal : $value:expr $(, $key:literal : $rest:expr)* $(,)?) => {{
        let mut text = String::with_capacity(256);
        text.push_str(concat!("{\"", $first, "\":"));
        $crate::json::Json::write(&$value, &mut text);
        $(
            text.push_str(concat!(",\"", $key, "\":"));
            $crate::json::Json::write(&$rest, &mut text);
        )*
        text.push('}');
        $crate::json::Raw(text)
    }};
}
pub(crate) use object;

#[cfg(test)]
mod tests {
    use super::Raw;

    #[test]
    fn keeps_order_and_escapes() {
        let inner = object! { "b": 1.0, "a": Some("x\"\n"), "n": (), "l": [1_u32, 2] };
        let Raw(text) = object! { "z": inner, "y": None::<u32>, "t": true };
        assert_eq!(text, r#"{"z":{"b":1.0,"a":"x\"\n","n":null,"l":[1,2]},"y":null,"t":true}"#);
    }
}
