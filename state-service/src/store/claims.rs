//! Claims: of all who want to give a session its first slot at once, one may. A claim lives a while, is renewed by who has it, and
//! ends when it is given up or when its binding, or a newer one, is merged.

use super::{BATCH_MAX, Store, StoreError, at_most, record, reply, scripts};
use crate::state::Binding;
use redis::Value;
use routing::id::{SessionId, Version};
use std::sync::atomic::Ordering::Relaxed;

/// What became of a proposal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The session is bound, and not by what its maker leaves: this is where.
    Bound(Binding),
    /// Another's claim lives: this is what it proposes.
    Held(Binding),
    /// The claim is ours: bind under this version. It may be another proposal of ours, when an answer to it was lost.
    Claimed(Binding),
    /// The session's key holds what another program wrote: nobody may claim it.
    Unusable,
}

impl Store {
    /// Proposes a place for each session, under the version that its maker would give; a claim gets a version above whatever the
    /// store knows of the session, over or released as it may be. With each the version that the session leaves, if any: a binding of
    /// that version or an older one is in nobody's way.
    ///
    /// # Errors
    /// Any of [`StoreError`]; then no claim was given, or it was and lives until it is over.
    pub async fn claim(&self, proposals: &[(Binding, Option<Version>)]) -> Result<Vec<Claim>, StoreError> {
        at_most("proposals", proposals.len(), BATCH_MAX)?;
        let config = &self.inner.config;
        let mut call = scripts::CLAIM.prepare_invoke();
        call.key(&config.keys.epoch);
        call.arg(config.clock.argument()).arg(config.claim.0).arg(config.linger.0);
        for (proposal, leaves) in proposals {
            call.key(config.keys.session(proposal.session.id)).arg(record::without_deadline(proposal));
            call.arg(leaves.map_or_else(String::new, record::version));
        }
        let (now, answers) = self.ask("claim", &call).await?;
        if answers.len() != proposals.len() {
            return Err(StoreError::answer("claim"));
        }
        let claims = proposals.iter().zip(&answers).map(|((of, _), answer)| read(of.session.id, answer, now));
        let claims: Option<Vec<Claim>> = claims.collect();
        let claims = claims.ok_or_else(|| StoreError::answer("claim"))?;
        let unusable = claims.iter().filter(|claim| **claim == Claim::Unusable).count();
        self.inner.counters.foreign_records.fetch_add(unusable as u64, Relaxed);
        Ok(claims)
    }

    /// Gives up claims of exactly these versions; whether each was there.
    ///
    /// # Errors
    /// Any of [`StoreError`]; they may be given up all the same.
    pub async fn unclaim(&self, claims: &[(SessionId, Version)]) -> Result<Vec<bool>, StoreError> {
        self.claims("unclaim", "end", claims).await
    }

    /// Lets claims of exactly these versions live on; whether each was there.
    ///
    /// # Errors
    /// Any of [`StoreError`]; they may be renewed all the same.
    pub async fn renew_claims(&self, claims: &[(SessionId, Version)]) -> Result<Vec<bool>, StoreError> {
        self.claims("renew_claims", "renew", claims).await
    }

    async fn claims(
        &self,
        name: &'static str,
        verb: &str,
        claims: &[(SessionId, Version)],
    ) -> Result<Vec<bool>, StoreError> {
        at_most("claims", claims.len(), BATCH_MAX)?;
        let config = &self.inner.config;
        let mut call = scripts::CLAIMS.prepare_invoke();
        call.key(&config.keys.epoch);
        call.arg(config.clock.argument()).arg(verb).arg(config.claim.0).arg(config.linger.0);
        for (session, version) in claims {
            call.key(config.keys.session(*session)).arg(record::version(*version));
        }
        let (_, answers) = self.ask(name, &call).await?;
        let letters = answers.first().and_then(reply::text).filter(|text| text.len() == claims.len());
        let letters = letters.ok_or_else(|| StoreError::answer(name))?;
        Ok(letters.bytes().map(|letter| letter == b'y').collect())
    }
}

fn read(session: SessionId, answer: &Value, now: u64) -> Option<Claim> {
    let text = reply::text(answer)?;
    // A text that a script takes for ours and that is not, such as a worker's hash that is not its name's.
    let binding = |text: &str| record::read(session, text, now).filter(|binding| binding.target.is_some());
    Some(match text.split_at_checked(1)? {
        ("x", _) => Claim::Unusable,
        ("b", text) => binding(text).map_or(Claim::Unusable, Claim::Bound),
        ("h", text) => binding(text).map_or(Claim::Unusable, Claim::Held),
        ("c", text) => binding(text).map_or(Claim::Unusable, Claim::Claimed),
        _ => return None,
    })
}
