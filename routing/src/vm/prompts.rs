//! How many bytes of prompts a VM keeps while bodies come in: bounded, whatever many clients send at once.

/// Most bytes of all requests together; beyond it a prompt ends there, as behind `prompt_bytes_max`.
pub const PROMPTS_BYTES_MAX: usize = 64 << 20;

/// Bytes kept now.
#[derive(Debug, Default)]
pub struct Prompts {
    bytes: usize,
}

impl Prompts {
    /// Room for up to `wanted` more bytes: so many may be kept.
    pub fn take(&mut self, wanted: usize) -> usize {
        let given = wanted.min(PROMPTS_BYTES_MAX.saturating_sub(self.bytes));
        self.bytes += given;
        given
    }

    /// So many are kept no longer.
    pub fn give_back(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Bytes kept now.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
}
