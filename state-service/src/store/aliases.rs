//! Response ids in the store: for a replica that was not there when one was told. Written many at once, read one at a time by who is
//! asked for one that it does not know. Knows no answer, only what each id stands for.

use super::{BATCH_MAX, Store, StoreError, at_most, record, reply, scripts};
use routing::contract::SessionRef;
use routing::id::{PoolName, RankHash, SessionId};
use routing::time::Millis;

/// What a response id stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptAlias {
    /// The response id, hashed.
    pub alias: SessionId,
    /// The session.
    pub session: SessionRef,
    /// Its pool.
    pub pool: PoolName,
}

impl Store {
    /// Keeps response ids, each for so long.
    ///
    /// # Errors
    /// Any of [`StoreError`]; some may be kept all the same.
    pub async fn keep_aliases(&self, aliases: &[(KeptAlias, Millis)]) -> Result<(), StoreError> {
        at_most("aliases", aliases.len(), BATCH_MAX)?;
        let config = &self.inner.config;
        let mut call = scripts::ALIASES.prepare_invoke();
        call.key(&config.keys.epoch).arg(config.clock.argument());
        for (KeptAlias { alias, session, pool }, ttl) in aliases {
            let text = format!("{}{:016x} {pool}", session.id, session.rank_hash.0);
            // The server refuses a life of 0.
            call.key(config.keys.alias(*alias)).arg(text).arg(ttl.0.clamp(1, record::EXPIRES_MAX.0));
        }
        self.ask("keep_aliases", &call).await.map(drop)
    }

    /// What a response id stands for, if that is known.
    ///
    /// # Errors
    /// Any of [`StoreError`].
    pub async fn alias(&self, alias: SessionId) -> Result<Option<KeptAlias>, StoreError> {
        let config = &self.inner.config;
        let mut call = scripts::ALIAS.prepare_invoke();
        call.key(&config.keys.epoch).key(config.keys.alias(alias)).arg(config.clock.argument());
        let (_, answers) = self.ask("alias", &call).await?;
        let text = answers.first().and_then(reply::text).ok_or_else(|| StoreError::answer("alias"))?;
        Ok(read(alias, text))
    }
}

/// Nothing where it is not a text of ours.
fn read(alias: SessionId, text: &str) -> Option<KeptAlias> {
    let (session, pool) = text.split_once(' ')?;
    let (id, rank_hash) = session.split_at_checked(32)?;
    let rank_hash = RankHash(u64::from_str_radix(rank_hash, 16).ok().filter(|_| rank_hash.len() == 16)?);
    let session = SessionRef { id: SessionId::from_hex(id)?, rank_hash };
    Some(KeptAlias { alias, session, pool: PoolName::parse(pool).ok()? })
}
