//! A turn that the service sends elsewhere this once: what its answer says of the binding that it leaves for now.
//!
//! The answer tells the version of that binding, not its slot. Who is spilled, and where to, is the service's to say.

use super::{Binding, Effect, Here, PageChange};
use crate::contract::{Outcome, RouteReply};
use crate::id::Version;
use crate::page::{Certainty, Record};
use crate::session::Session;

/// The service's word for such a turn.
const SPILLED: &str = "spilled";

pub(super) fn is_spilled(reply: &RouteReply) -> bool {
    reply.outcome == Outcome::Unpinned && reply.reason == SPILLED
}

/// Version of the binding that the turn has all the same; older services do not tell it.
pub(super) fn version(reply: &RouteReply) -> Option<Version> {
    Some(reply.version).filter(|version| is_spilled(reply) && *version > Version::default())
}

/// A page with a binding that has moved since would send each turn to ask for the wrong slot, as long as it is spilled there.
pub(super) fn forget_older(found: Option<Record>, reply: &RouteReply, out: &mut Vec<Effect>) {
    let older = |record: &Record| version(reply).is_some_and(|version| record.version < version);
    let stale = found.filter(|record| record.certainty == Certainty::Bound && older(record));
    let moved = |record| Effect::Page(PageChange::Put(Record { certainty: Certainty::Gone, ..record }));
    out.extend(stale.map(moved));
}

/// What the session's last turn ends.
pub(super) fn ends(here: Here<'_>, session: Session, reply: &RouteReply) -> Option<Binding> {
    let version = version(reply).filter(|_| here.turn.last)?;
    Some(Binding { session, pool: here.pool.name.clone(), version })
}
