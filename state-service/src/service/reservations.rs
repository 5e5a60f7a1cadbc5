//! The service towards hosts that dispatch requests themselves.

use super::{Service, done, not_an_answer};
use crate::http::problem::Problem;
use crate::state::{Command, Reply, ReservationId, Reserve, Reserved};
use routing::contract::{Prompt, Target};
use routing::id::PoolName;
use routing::time::Millis;
use xxhash_rust::xxh3::xxh3_128;

/// Longest wait for the tokens of a prompt that was given as text.
const PATIENCE: Millis = Millis(200);

/// What a host asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// As the host names it; absent: we do.
    pub id: Option<String>,
    /// The pool.
    pub pool: PoolName,
    /// Its prompt.
    pub prompt: Prompt,
    /// This slot or none.
    pub named: Option<Target>,
    /// It ends by itself after so long.
    pub within: Millis,
}

impl Service {
    /// Chooses a slot and books it; with the name of the reservation.
    ///
    /// # Errors
    /// [`Problem`] as the state refuses it.
    pub async fn reserve(&self, wish: Wish) -> Result<(String, Reserved), Problem> {
        let Wish { id, pool, prompt, named, within } = wish;
        let prompt = self.blocks_of_prompt(&pool, prompt, None, PATIENCE).await?;
        let draw = self.chance.draw();
        let id = id.unwrap_or_else(|| format!("{:016x}{:016x}", self.chance.draw(), self.epoch.0));
        let ask = Reserve { id: hashed(&id), pool, prompt, named, within, draw };
        let reply = self.apply(Command::Reserve(Box::new(ask)));
        self.tell_loads();
        match reply {
            Reply::Reserved(reserved) => Ok((id, reserved)),
            other => Err(not_an_answer(other)),
        }
    }

    /// The first byte of its answer came.
    ///
    /// # Errors
    /// [`Problem`]: nothing is reserved under that id.
    pub fn reservation_prefilled(&self, id: &str) -> Result<(), Problem> {
        let reply = self.apply(Command::ReservationPrefilled { id: hashed(id) });
        self.tell_loads();
        done(reply)
    }

    /// It is over, or will not begin.
    ///
    /// # Errors
    /// None but our own faults.
    pub fn release_reservation(&self, id: &str) -> Result<(), Problem> {
        let reply = self.apply(Command::ReleaseReservation { id: hashed(id) });
        self.tell_loads();
        done(reply)
    }
}

fn hashed(id: &str) -> ReservationId {
    ReservationId(xxh3_128(id.as_bytes()))
}
