//! Conversations that have a turn and then none while everything is replaced. Where they come back is told.

use std::collections::BTreeMap;

use anyhow::Result;
use e2e::client::{Client, Slot};

use crate::traffic::ask;

/// How many.
const COUNT: usize = 12;

/// See the module.
#[derive(Debug)]
pub(crate) struct Quiet {
    slots: BTreeMap<String, Option<Slot>>,
}

impl Quiet {
    /// Two turns of each.
    pub(crate) async fn begin(run: &str, front: &Client) -> Result<Self> {
        let mut slots = BTreeMap::new();
        for nth in 0..COUNT {
            let key = format!("quiet-{run}-{nth}");
            ask(front, &key, false).await?;
            let slot = ask(front, &key, false).await?.slot();
            slots.insert(key, slot);
        }
        Ok(Self { slots })
    }

    /// The next turn of each: how many come back to their slot, of how many.
    pub(crate) async fn come_back(self, front: &Client) -> Result<(usize, usize)> {
        let (mut kept, count) = (0, self.slots.len());
        for (key, slot) in self.slots {
            let turn = ask(front, &key, false).await?;
            kept += usize::from(turn.slot().is_some() && turn.slot() == slot);
        }
        Ok((kept, count))
    }
}
