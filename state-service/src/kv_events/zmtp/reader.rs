//! Frames out of a stream of bytes, and messages out of frames, within limits. Pure.
//!
//! A frame that is too long for its message is read past and stands in it empty: its number can still be read, so one huge batch costs
//! its rank's slot, not the connection. What is longer than anybody sends in earnest ends the connection.

use super::{COMMAND, LONG, MORE};
use bytes::{Buf, Bytes, BytesMut};

/// Bytes kept of one message.
pub const MESSAGE_BYTES_MAX: usize = 33 << 20;
/// Frames kept of one message; more are read past, and the message is none of an event stream.
pub const FRAMES_MAX: usize = 8;
/// A frame that claims more is no frame.
const FRAME_CLAIM_MAX: u64 = 1 << 30;
/// Longest command: a READY with its properties.
const COMMAND_BYTES_MAX: u64 = 64 << 10;
/// Shorter frames are copied, so that a small one does not keep the large piece that it came in.
const COPIED_BELOW: usize = 64 << 10;

/// What a stream is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A message's frames.
    Message(Vec<Bytes>),
    /// A command's body: its name and what follows.
    Command(Bytes),
}

/// Why nothing more can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// No such frame is sent in earnest.
    #[error("a frame of {0} bytes")]
    FrameTooLong(u64),
    /// Neither is such a command.
    #[error("a command of {0} bytes")]
    CommandTooLong(u64),
}

#[derive(Clone, Copy, Debug)]
struct Head {
    flags: u8,
    length: u64,
}

/// Reads one stream.
#[derive(Debug, Default)]
pub struct Reader {
    head: Option<Head>,
    /// Bytes of the current frame that are still to be read past.
    skip: u64,
    message: Vec<Bytes>,
    kept: usize,
}

impl Reader {
    /// The next item in `buffer`; `None`: more bytes are needed. Never keeps nor reserves more than came.
    ///
    /// # Errors
    /// [`Wrong`]: the stream is of no more use.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Item>, Wrong> {
        loop {
            let Some(head) = self.head(buffer)? else { return Ok(None) };
            if head.flags & COMMAND != 0 {
                let body = whole(head, buffer).map(|length| buffer.split_to(length).freeze());
                self.head = self.head.filter(|_| body.is_none());
                return Ok(body.map(Item::Command));
            }
            if !self.frame(head, buffer) {
                return Ok(None);
            }
            self.head = None;
            if head.flags & MORE == 0 {
                self.kept = 0;
                return Ok(Some(Item::Message(std::mem::take(&mut self.message))));
            }
        }
    }

    fn head(&mut self, buffer: &mut BytesMut) -> Result<Option<Head>, Wrong> {
        if self.head.is_some() {
            return Ok(self.head);
        }
        let Some(head) = head(buffer) else { return Ok(None) };
        if head.length > FRAME_CLAIM_MAX {
            return Err(Wrong::FrameTooLong(head.length));
        }
        if head.flags & COMMAND != 0 && head.length > COMMAND_BYTES_MAX {
            return Err(Wrong::CommandTooLong(head.length));
        }
        if head.flags & COMMAND == 0 && !self.takes(head.length) {
            self.skip = head.length;
            if self.message.len() < FRAMES_MAX {
                self.message.push(Bytes::new());
            }
        }
        self.head = Some(head);
        Ok(self.head)
    }

    fn takes(&self, length: u64) -> bool {
        let room = MESSAGE_BYTES_MAX.saturating_sub(self.kept);
        self.message.len() < FRAMES_MAX && usize::try_from(length).is_ok_and(|length| length <= room)
    }

    /// Whether the frame is done.
    fn frame(&mut self, head: Head, buffer: &mut BytesMut) -> bool {
        if self.skip > 0 {
            let here = usize::try_from(self.skip).map_or(buffer.len(), |skip| skip.min(buffer.len()));
            buffer.advance(here);
            self.skip -= u64::try_from(here).unwrap_or(0);
            return self.skip == 0;
        }
        if !self.takes(head.length) {
            // Nothing of an empty frame is left to be read past.
            return true;
        }
        let Some(length) = whole(head, buffer) else { return false };
        let frame = buffer.split_to(length);
        self.kept += length;
        self.message.push(if length < COPIED_BELOW {
            Bytes::copy_from_slice(&frame)
        } else {
            frame.freeze()
        });
        true
    }
}

/// The frame's length, once all of it is there.
fn whole(head: Head, buffer: &BytesMut) -> Option<usize> {
    usize::try_from(head.length).ok().filter(|length| *length <= buffer.len())
}

fn head(buffer: &mut BytesMut) -> Option<Head> {
    let flags = *buffer.first()?;
    let (length, bytes) = if flags & LONG == 0 {
        (u64::from(*buffer.get(1)?), 2)
    } else {
        (u64::from_be_bytes(*buffer.get(1..)?.first_chunk::<8>()?), 9)
    };
    buffer.advance(bytes);
    Some(Head { flags, length })
}
