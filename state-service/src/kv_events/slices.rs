//! Long batches in slices: the state is locked for one at a time, however much an engine publishes at once.
//!
//! Everything stays in its order. A store of many blocks becomes several, each after the last block of the one before, which is the
//! same chain; a store whose tokens and hashes do not pair costs an index nothing and stays whole.

use crate::state::kv_event::{EngineHash, KvBatch, KvEvent};
use crate::state::kv_stream::{Frame, Input};
use std::mem::take;

/// Blocks (and events, where these have fewer) given to the state at once: it is locked for so many, a fraction of a millisecond.
const BLOCKS_AT_ONCE: usize = 2048;

/// Gives inputs of one rank on, so many at a time.
#[derive(Debug, Default)]
pub(crate) struct Slices {
    inputs: Vec<Input>,
    blocks: usize,
}

impl Slices {
    /// Adds one; `full` takes what is enough for one time.
    pub(super) fn add(&mut self, input: Input, full: &mut impl FnMut(Vec<Input>)) {
        for input in cut(input) {
            let weight = weight(&input);
            if !self.inputs.is_empty() && self.blocks + weight > BLOCKS_AT_ONCE {
                self.end(full);
            }
            self.blocks += weight;
            self.inputs.push(input);
        }
    }

    /// Hands on what is left.
    pub(super) fn end(&mut self, full: &mut impl FnMut(Vec<Input>)) {
        self.blocks = 0;
        if !self.inputs.is_empty() {
            full(take(&mut self.inputs));
        }
    }
}

/// Gives on one input as so many times as it takes.
///
/// # Errors
/// The first that `each` fails with; what comes after it is not given on.
pub(crate) fn each<E>(input: Input, each: impl FnMut(Vec<Input>) -> Result<(), E>) -> Result<(), E> {
    cut(input).into_iter().map(|part| vec![part]).try_for_each(each)
}

/// An input in parts, the first of which is of its kind.
fn cut(input: Input) -> Vec<Input> {
    if weight(&input) <= BLOCKS_AT_ONCE {
        return vec![input];
    }
    match input {
        Input::Live(frame) => frames(frame, Input::Live),
        Input::Replayed(attempt, frame) => frames(frame, |frame| Input::Replayed(attempt, frame)),
        other => vec![other],
    }
}

fn frames(frame: Frame, first: impl FnOnce(Frame) -> Input) -> Vec<Input> {
    let Frame { seq, stamp, batch } = frame;
    let mut batches = batches(batch).into_iter();
    let head = Frame { seq, stamp, batch: batches.next().unwrap_or_default() };
    let more = batches.map(|batch| Input::More { seq, batch });
    [first(head)].into_iter().chain(more).collect()
}

/// Batches that say the same one after another, none of them too heavy.
fn batches(batch: KvBatch) -> Vec<KvBatch> {
    let (mut all, mut events, mut blocks) = (Vec::new(), Vec::new(), 0);
    for event in batch.events.into_iter().flat_map(parts) {
        let weight = of_event(&event);
        if !events.is_empty() && blocks + weight > BLOCKS_AT_ONCE {
            all.push(KvBatch { events: take(&mut events) });
            blocks = 0;
        }
        blocks += weight;
        events.push(event);
    }
    all.push(KvBatch { events });
    all
}

fn parts(event: KvEvent) -> Vec<KvEvent> {
    if of_event(&event) <= BLOCKS_AT_ONCE {
        return vec![event];
    }
    match event {
        KvEvent::Removed { hashes, tier, group } => {
            let part = |hashes: &[EngineHash]| KvEvent::Removed { hashes: hashes.to_vec(), tier, group };
            hashes.chunks(BLOCKS_AT_ONCE).map(part).collect()
        }
        KvEvent::Stored { .. } => stores(event),
        KvEvent::Cleared => vec![event],
    }
}

fn stores(event: KvEvent) -> Vec<KvEvent> {
    let KvEvent::Stored { hashes, parent, tokens, block_size, tier, lora, salt, extra, group, kind_ok } =
        &event
    else {
        return vec![event];
    };
    let size = usize::try_from(*block_size).unwrap_or(usize::MAX);
    let step = BLOCKS_AT_ONCE.checked_mul(size).filter(|step| *step > 0);
    let Some(step) = step.filter(|_| hashes.len().checked_mul(size) == Some(tokens.len())) else {
        return vec![event];
    };
    let parents = [*parent].into_iter().chain(hashes.chunks(BLOCKS_AT_ONCE).map(|part| part.last().copied()));
    let each = hashes.chunks(BLOCKS_AT_ONCE).zip(tokens.chunks(step)).zip(parents);
    let part = |((hashes, tokens), parent): ((&[EngineHash], &[u32]), Option<EngineHash>)| KvEvent::Stored {
        hashes: hashes.to_vec(),
        parent,
        tokens: tokens.to_vec(),
        block_size: *block_size,
        tier: *tier,
        lora: lora.clone(),
        salt: salt.clone(),
        extra: *extra,
        group: *group,
        kind_ok: *kind_ok,
    };
    each.map(part).collect()
}

fn weight(input: &Input) -> usize {
    match input {
        Input::Live(frame) | Input::Replayed(_, frame) => of_batch(&frame.batch),
        Input::More { batch, .. } => of_batch(batch),
        _ => 1,
    }
}

/// An empty batch is a piece of work, too.
fn of_batch(batch: &KvBatch) -> usize {
    batch.events.iter().map(of_event).fold(1, usize::saturating_add)
}

fn of_event(event: &KvEvent) -> usize {
    match event {
        KvEvent::Stored { hashes, .. } | KvEvent::Removed { hashes, .. } => hashes.len().max(1),
        KvEvent::Cleared => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::kv_event::Tier;
    use crate::state::kv_stream::Attempt;

    fn store(first: u64, blocks: u64, parent: Option<u64>) -> KvEvent {
        KvEvent::Stored {
            hashes: (first..first + blocks).map(EngineHash).collect(),
            parent: parent.map(EngineHash),
            tokens: (0..u32::try_from(2 * blocks).unwrap())
                .map(|at| at + u32::try_from(first).unwrap())
                .collect(),
            block_size: 2,
            tier: Tier::Host,
            lora: Some("l".into()),
            salt: Some("s".into()),
            extra: 9,
            group: 1,
            kind_ok: true,
        }
    }

    fn sliced(inputs: Vec<Input>) -> Vec<Vec<Input>> {
        let (mut slices, mut all) = (Slices::default(), Vec::new());
        let mut full = |inputs| all.push(inputs);
        inputs.into_iter().for_each(|input| slices.add(input, &mut full));
        slices.end(&mut full);
        all
    }

    fn live(seq: u64, events: Vec<KvEvent>) -> Input {
        Input::Live(Frame { seq, stamp: seq, batch: KvBatch { events } })
    }

    /// Hashes, parents and tokens of all stores in a row.
    fn chain(inputs: &[Input]) -> Vec<(EngineHash, Option<EngineHash>, Vec<u32>)> {
        let mut all = Vec::new();
        for input in inputs {
            let batch = match input {
                Input::Live(frame) | Input::Replayed(_, frame) => &frame.batch,
                Input::More { batch, .. } => batch,
                other => panic!("{other:?}"),
            };
            for event in &batch.events {
                let KvEvent::Stored { hashes, parent, tokens, .. } = event else { continue };
                let parents = [*parent].into_iter().chain(hashes.iter().copied().map(Some));
                let each = hashes.iter().zip(parents).zip(tokens.chunks(2));
                all.extend(each.map(|((hash, parent), tokens)| (*hash, parent, tokens.to_vec())));
            }
        }
        all
    }

    #[test]
    fn nothing_is_handed_on_that_is_too_heavy_and_nothing_is_lost_or_reordered() {
        let long = u64::try_from(3 * BLOCKS_AT_ONCE + 7).unwrap();
        let gone = |count: u64| KvEvent::Removed {
            hashes: (0..count).map(EngineHash).collect(),
            tier: Tier::Gpu,
            group: 0,
        };
        let events = vec![store(1, 3, None), gone(long), store(100, long, Some(3)), KvEvent::Cleared];
        let whole = [live(7, events.clone())];
        let slices = sliced(vec![whole[0].clone()]);
        assert!(slices.len() > 7, "{}", slices.len());
        for slice in &slices {
            let blocks: usize = slice.iter().map(weight).sum();
            // An input counts as one by itself.
            assert!(blocks <= BLOCKS_AT_ONCE + slice.len(), "{blocks}");
        }
        let flat: Vec<Input> = slices.into_iter().flatten().collect();
        assert_eq!(chain(&flat), chain(&whole));
        assert!(matches!(&flat[0], Input::Live(frame) if frame.seq == 7));
        assert!(flat[1..].iter().all(|input| matches!(input, Input::More { seq: 7, .. })));
        let Some(Input::More { batch, .. }) = flat.last() else { panic!() };
        assert_eq!(batch.events.last(), Some(&KvEvent::Cleared));
        let removed = flat.iter().flat_map(|input| match input {
            Input::Live(frame) => frame.batch.events.clone(),
            Input::More { batch, .. } => batch.events.clone(),
            _ => Vec::new(),
        });
        let removed = removed.filter_map(|event| match event {
            KvEvent::Removed { hashes, .. } => Some(hashes.len()),
            _ => None,
        });
        assert_eq!(removed.sum::<usize>() as u64, long);
    }

    #[test]
    fn small_batches_stay_as_they_are_together_and_a_replays_parts_follow_it() {
        let small: Vec<Input> = (0..5).map(|seq| live(seq, vec![store(1 + seq, 1, None)])).collect();
        assert_eq!(sliced(small.clone()), [small]);
        let long = u64::try_from(BLOCKS_AT_ONCE + 1).unwrap();
        let frame = Frame { seq: 3, stamp: 3, batch: KvBatch { events: vec![store(1, long, None)] } };
        let slices = sliced(vec![Input::Replayed(Attempt(2), frame), Input::ReplayEnd(Attempt(2))]);
        let flat: Vec<Input> = slices.into_iter().flatten().collect();
        assert!(matches!(flat[..], [Input::Replayed(..), Input::More { seq: 3, .. }, Input::ReplayEnd(_)]));
    }

    #[test]
    fn a_store_whose_tokens_are_not_its_hashes_stays_whole() {
        let mut odd = store(1, u64::try_from(2 * BLOCKS_AT_ONCE).unwrap(), None);
        if let KvEvent::Stored { tokens, .. } = &mut odd {
            tokens.pop();
        }
        assert_eq!(parts(odd.clone()), [odd]);
    }
}
