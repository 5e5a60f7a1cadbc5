//! Merging bindings into the store: a batch is one script and at most one entry of the log. What is newer is decided by text.

use super::{BATCH_MAX, Store, StoreError, StreamId, at_most, record, reply, scripts};
use crate::state::{Binding, Outcome};
use redis::ScriptInvocation;
use std::sync::atomic::Ordering::Relaxed;

/// Most notes in one call.
pub const NOTES_MAX: usize = 256;
/// Longest note, in bytes.
pub const NOTE_BYTES_MAX: usize = 8192;

/// What a merge did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Merge {
    /// For each binding. `Rejected`: its key holds what another program wrote.
    pub outcomes: Vec<Outcome>,
    /// The entry in the log; none when nothing changed and nothing was noted.
    pub entry: Option<StreamId>,
}

impl Store {
    /// Merges bindings, newest wins, and notes one-line texts for all who follow.
    ///
    /// # Errors
    /// Any of [`StoreError`]; it may be done all the same, and can be asked for again: a merge repeated changes nothing but ends.
    pub async fn merge(&self, bindings: &[Binding], notes: &[String]) -> Result<Merge, StoreError> {
        at_most("bindings", bindings.len(), BATCH_MAX)?;
        check_notes(notes)?;
        let config = &self.inner.config;
        let mut call = scripts::MERGE.prepare_invoke();
        call.key(&config.keys.epoch).key(&config.keys.log);
        call.arg(config.clock.argument()).arg(config.linger.0);
        self.log_arguments(&mut call);
        call.arg(notes.join("\n"));
        for binding in bindings {
            call.key(config.keys.session(binding.session.id));
            call.arg(record::without_deadline(binding)).arg(binding.expires_in_ms.min(record::EXPIRES_MAX).0);
        }
        let (_, answers) = self.ask("merge", &call).await?;
        let read = || {
            let [letters, entry] = answers.as_slice() else { return None };
            let letters = reply::text(letters).filter(|letters| letters.len() == bindings.len())?;
            let outcomes: Vec<Outcome> = letters.bytes().map(outcome).collect::<Option<_>>()?;
            Some(Merge { outcomes, entry: StreamId::parse(reply::text(entry)?) })
        };
        let merge = read().ok_or_else(|| StoreError::answer("merge"))?;
        if let Some(entry) = merge.entry {
            self.inner.epochs.saw_entry(entry);
        }
        let foreign = merge.outcomes.iter().filter(|outcome| **outcome == Outcome::Rejected).count();
        self.inner.counters.foreign_records.fetch_add(foreign as u64, Relaxed);
        Ok(merge)
    }

    /// What the log's length, ttl and writer are.
    pub(super) fn log_arguments(&self, call: &mut ScriptInvocation<'_>) {
        let config = &self.inner.config;
        call.arg(config.log_entries).arg(config.log_keep.0).arg(config.shared_ttl.0);
        call.arg(format!("{:016x}", config.writer));
    }
}

fn check_notes(notes: &[String]) -> Result<(), StoreError> {
    at_most("notes", notes.len(), NOTES_MAX)?;
    for note in notes {
        at_most("bytes of a note", note.len(), NOTE_BYTES_MAX)?;
        if note.is_empty() || note.contains(['\n', '\r']) {
            return Err(StoreError::Config("a note is one line of text".to_owned()));
        }
    }
    Ok(())
}

fn outcome(letter: u8) -> Option<Outcome> {
    Some(match letter {
        b'i' => Outcome::Inserted,
        b'r' => Outcome::Refreshed,
        b'n' => Outcome::ReplacedNewer,
        b'c' | b'k' => Outcome::IgnoredConflict,
        b's' => Outcome::IgnoredStale,
        b'x' => Outcome::Rejected,
        _ => return None,
    })
}
