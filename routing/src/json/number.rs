//! The grammar of a number. Its value is nobody's business.

/// What of a number is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// `-`
    Minus,
    /// A leading `0`: no digit may follow.
    Zero,
    /// Digits.
    Whole,
    /// `.`
    Dot,
    /// Digits behind it.
    Fraction,
    /// `e`
    E,
    /// Its sign.
    Sign,
    /// Its digits.
    Exponent,
}

impl Number {
    /// A number begins with this byte, or none does.
    pub(super) const fn begin(byte: u8) -> Option<Self> {
        match byte {
            b'-' => Some(Self::Minus),
            b'0' => Some(Self::Zero),
            b'1'..=b'9' => Some(Self::Whole),
            _ => None,
        }
    }

    /// It goes on with this byte, or has ended before it.
    #[inline]
    pub(super) const fn next(self, byte: u8) -> Option<Self> {
        match (self, byte) {
            (Self::Whole, b'0'..=b'9') | (Self::Minus, b'1'..=b'9') => Some(Self::Whole),
            (Self::Minus, b'0') => Some(Self::Zero),
            (Self::Zero | Self::Whole, b'.') => Some(Self::Dot),
            (Self::Dot | Self::Fraction, b'0'..=b'9') => Some(Self::Fraction),
            (Self::Zero | Self::Whole | Self::Fraction, b'e' | b'E') => Some(Self::E),
            (Self::E, b'+' | b'-') => Some(Self::Sign),
            (Self::E | Self::Sign | Self::Exponent, b'0'..=b'9') => Some(Self::Exponent),
            _ => None,
        }
    }

    /// Whether it may end here.
    pub(super) const fn is_whole(self) -> bool {
        matches!(self, Self::Zero | Self::Whole | Self::Fraction | Self::Exponent)
    }
}
